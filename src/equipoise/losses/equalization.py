"""Equalization loss (Tan et al. 2020): examples of other classes do not push rare classes down.

    softmax:   loss(z, y) = −log( exp(z_y) / Σ_i w_i exp(z_i) ),     w_i = 1 − β_i · 1[π_i < λ] · 1[i ≠ y]
    sigmoid:   loss(z, y) = Σ_i w_i BCE(z_i, y_i),                   w_i = 1 − E · 1[π_i < λ] · (1 − y_i)

β_i ~ Bernoulli(γ) is drawn separately for every row and class. E is 1 on rows that hold an object and 0 on the
background rows of a detector. In a detector λ (`threshold`) is compared with the share of training images that contain
the class. γ = 0, or a threshold below every class, gives the plain loss.

Reference: "Equalization Loss for Long-Tailed Object Recognition", CVPR 2020, arXiv 2003.05176.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equipoise.losses.balanced_sigmoid import dense_target, reduce_elements, row_mask
from equipoise.losses.balanced_softmax import cross_entropy
from equipoise.losses.shared import (
    Rows,
    SigmoidLoss,
    SoftmaxLoss,
    along,
    check_reduction,
    check_vector,
    class_dim,
    full_precision,
    own_class,
)
from equipoise.prior import Prior, PriorLike, as_prior


def rare_classes(prior: PriorLike, threshold: float) -> Tensor:
    """1[π_j < threshold]: bool [K].

    threshold   a class is rare if its share is below it

    >>> rare_classes(Prior.from_counts([90, 9, 1]), 0.05)
    tensor([False, False,  True])
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}: it is a share of the training set, in [0, 1]")
    return torch.from_numpy(as_prior(prior).probabilities < threshold)


def equalization_loss(
    logits: Tensor,
    target: Tensor,
    drop: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Softmax equalization loss of `logits` [N, K, ...] against class indices [N, ...].

    The classes are in dimension `dim`.

    drop   bool, broadcasts to `logits`: the classes left out of the denominator (the row's own class always stays in)

    >>> equalization_loss(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([[True, False, True]]))
    tensor(0.6931)
    """
    check_vector(drop, "drop", "rare_classes(prior, threshold)")
    rows = Rows(logits, target, dim)
    logits, target, drop = full_precision(rows.logits), rows.target, rows.elements(drop).to(logits.device)
    own = own_class(logits, target, ignore_index, "the softmax equalization loss").bool()
    # not −inf: in an ignored row every class may be dropped, and 0 · NaN is NaN
    logits = logits.masked_fill(drop & ~own, torch.finfo(logits.dtype).min)
    return rows.back(cross_entropy(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction))


class EqualizationLoss(SoftmaxLoss):
    """Softmax equalization loss; draws β with torch's default generator at every call, unless it is passed as `drawn`.

    gamma       probability that a rare class is spared in a row
    threshold   a class is rare if its share of the training set is below it

    >>> loss = EqualizationLoss(Prior.from_counts([90, 9, 1]), gamma=1.0, threshold=0.05)
    >>> loss(torch.zeros(1, 3), torch.tensor([0]))
    tensor(0.6931)
    """

    rare: Tensor
    weight: Tensor | None
    gamma: float

    def __init__(
        self,
        prior: Prior,
        gamma: float,
        threshold: float,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is {gamma}: it is the probability that a rare class is dropped, in [0, 1]")
        super().__init__(gamma=gamma, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("rare", rare_classes(prior, threshold))
        self.register_buffer("weight", weight)

    def draw(self, rows: int, random: np.random.Generator) -> NDArray[np.bool_]:
        """Which classes to drop in each of `rows` rows: [rows, K], for `forward`, if the caller controls the seed."""
        rare = self.rare.cpu().numpy()
        return np.asarray((random.random((rows, len(rare)), np.float32) < self.gamma) & rare)

    def _draw(self, logits: Tensor) -> Tensor:
        chance = torch.rand(logits.shape, device=logits.device) < self.gamma
        return chance & along(self.rare, logits, class_dim(logits, self.dim))

    def forward(self, logits: Tensor, target: Tensor, drawn: Tensor | None = None) -> Tensor:
        drop = self._draw(logits) if drawn is None else drawn
        return equalization_loss(logits, target, drop, weight=self.weight, **self.common(logits))


def sigmoid_equalization_loss(
    logits: Tensor,
    target: Tensor,
    rare: Tensor,
    *,
    foreground: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Sigmoid equalization loss of `logits` [N, K, ...]; classes in `rare` [K] have no negatives.

    `target`, `foreground`, `weight`, `reduction`, `ignore_index` and `dim` work as in `balanced_sigmoid_loss`. Without
    `foreground` every row counts as foreground. `rare` is `rare_classes(prior, threshold)`.

    rare   bool [K]: the classes whose negatives do not count

    >>> loss = sigmoid_equalization_loss(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([False, False, True]))
    >>> loss * 3
    tensor(1.3863)
    """
    check_reduction(reduction, "batchmean")
    check_vector(rare, "rare", "rare_classes(prior, threshold)")
    rows = Rows(logits, target, dim)
    logits, target, foreground, weight = rows.logits, rows.target, rows.flat(foreground), rows.elements(weight)
    spared = along(rare, logits, class_dim(logits))
    if foreground is not None:
        spared = spared & row_mask(foreground, logits)
    logits = full_precision(logits)
    target, counts = dense_target(logits, target, foreground, ignore_index)
    loss = F.binary_cross_entropy_with_logits(logits, target, weight, reduction="none")
    return rows.back(reduce_elements(loss * (1 - spared.to(loss.dtype) * (1 - target)), counts, reduction))


class SigmoidEqualizationLoss(SigmoidLoss):
    """Sigmoid equalization loss, for detectors and multi-label classifiers; nothing is random.

    threshold   a class is rare if its share of the training items is below it

    >>> loss = SigmoidEqualizationLoss(Prior.from_counts([90, 9, 1]), threshold=0.05, reduction="batchmean")
    >>> loss(torch.zeros(1, 3), torch.tensor([0]))
    tensor(1.3863)
    """

    rare: Tensor

    def __init__(
        self, prior: Prior, threshold: float, *, ignore_index: int = -100, reduction: str = "mean", dim: int = 1
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("rare", rare_classes(prior, threshold))

    def forward(
        self, logits: Tensor, target: Tensor, foreground: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        options = {"foreground": foreground, "weight": weight, **self.common(logits)}
        return sigmoid_equalization_loss(logits, target, self.rare, **options)
