"""Federated loss (Zhou et al. 2021): a few of the classes that are not in a batch are drawn as its negatives.

    loss(z, y)  =  Σ_{j in S} BCE(z_j, y_j),      S = classes of the batch, and others drawn until there are `classes`

The others are drawn without replacement in proportion to n_j^(1/2), where n_j is the number of training images that
hold class j. If `classes` is the number of all classes, it is the plain loss. In an LVIS image most classes were not
searched for. This loss does not know about that; pass a `weight` of 0 for unverified classes.

Reference: Zhou, Koltun, Krähenbühl, "Probabilistic two-stage detection", 2021, arXiv 2103.07461, and detectron2.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equipoise.arrays import fp32
from equipoise.losses.balanced_sigmoid import dense_target, reduce_elements
from equipoise.losses.shared import (
    Rows,
    SigmoidLoss,
    along,
    check_reduction,
    check_size,
    check_vector,
    class_dim,
    full_precision,
)
from equipoise.prior import Prior


def federated_loss(
    logits: Tensor,
    target: Tensor,
    sampled: Tensor,
    *,
    foreground: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Binary cross-entropy of `logits` [N, K, ...] over the classes that are `sampled`, bool [K], and each row's own.

    `target`, `foreground`, `weight`, `reduction`, `ignore_index` and `dim` work as in `balanced_sigmoid_loss`; "mean"
    is over all K classes.

    sampled   bool [K]: the classes that count in every row

    >>> federated_loss(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([False, True, False]), reduction="sum")
    tensor(1.3863)
    """
    check_reduction(reduction, "batchmean")
    check_vector(sampled, "sampled", "bool [K], True for the classes that count")
    rows = Rows(logits, target, dim)
    logits, target, foreground, weight = rows.logits, rows.target, rows.flat(foreground), rows.elements(weight)
    chosen = along(sampled, logits, class_dim(logits))
    logits = full_precision(logits)
    target, counts = dense_target(logits, target, foreground, ignore_index)
    loss = F.binary_cross_entropy_with_logits(logits, target, weight, reduction="none")
    return rows.back(reduce_elements(torch.where(chosen | (target > 0), loss, 0.0), counts, reduction))


class FederatedLoss(SigmoidLoss):
    """Federated loss; draws classes with torch's default generator at every call, unless they are passed as `drawn`.

    classes   how many classes count in a batch, including its own

    >>> loss = FederatedLoss(Prior.from_counts([90, 9, 1]), classes=3, reduction="sum")
    >>> loss(torch.zeros(1, 3), torch.tensor([0]))
    tensor(2.0794)
    """

    chances: Tensor  # [K] each class's n_j^(1/2)
    classes: int

    def __init__(
        self, prior: Prior, classes: int = 50, *, ignore_index: int = -100, reduction: str = "mean", dim: int = 1
    ) -> None:
        if classes < 1:
            raise ValueError(f"classes is {classes}: it must be at least 1")
        super().__init__(classes=classes, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("chances", fp32(np.sqrt(prior.counts.astype(np.float64))))

    def keys(self, random: np.random.Generator) -> NDArray[np.float32]:
        """Random keys [K] of one batch, for `forward`, if the caller controls the seed."""
        return random.exponential(size=len(self.chances)).astype(np.float32)

    def sampled(self, logits: Tensor, target: Tensor, foreground: Tensor | None, keys: Tensor) -> Tensor:
        """The classes of a batch and, by the exponential `keys` [K], others up to `classes`: bool [K]."""
        rows = Rows(logits, target, self.dim)
        logits = full_precision(rows.logits)
        dim = class_dim(logits)
        check_size(len(self.chances), logits, dim)
        shown, _ = dense_target(logits, rows.target, rows.flat(foreground), self.ignore_index)
        seen = (shown > 0).movedim(dim, -1).reshape(-1, logits.shape[dim]).any(0)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            everywhere = seen.int()
            torch.distributed.all_reduce(everywhere, torch.distributed.ReduceOp.MAX)
            seen = everywhere > 0
        # the smallest keys divided by the chances are a draw without replacement; classes of the batch come first
        chances = self.chances.to(seen.device)
        rank = torch.where(seen, -1.0, keys.to(chances) / chances.clamp(min=1e-20)).argsort().argsort()
        return seen | ((rank < self.classes) & (chances > 0)) | (self.classes >= len(rank))

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        foreground: Tensor | None = None,
        weight: Tensor | None = None,
        drawn: Tensor | None = None,
    ) -> Tensor:
        options = {"foreground": foreground, "weight": weight, **self.common(logits)}
        keys = -torch.rand_like(self.chances).clamp(min=1e-30).log() if drawn is None else drawn
        chosen = self.sampled(logits, target, foreground, keys)
        return federated_loss(logits, target, chosen, **options)
