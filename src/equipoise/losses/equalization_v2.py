"""Equalization loss v2 (Tan et al. 2021): each class's negatives are weighted by the gradients it has received so far.

    loss(z, y)  =  Σ_j w_j BCE(z_j, y_j),       w_j = 1 + α (1 − f(g_j)) where y_j = 1,   f(g_j) where y_j = 0
    f(g)        =  1 / (1 + exp(−γ (g − μ)))
    g_j         =  Σ w_j |σ(z_j) − 1| over positives  /  Σ w_j σ(z_j) over negatives,   over all of training

A class with as much gradient from positives as from negatives (g near 1) keeps its negatives; for a rare one (g near 0)
the negatives hardly count, and the positives count up to 1 + α times. Before a class has received any gradient, g is
100, which gives the plain loss. No prior is needed. `observe` adds a batch to g; a training loop calls it once per
step, before the loss.

Reference: "Equalization Loss v2: A New Gradient Balance Approach for Long-tailed Object Detection", CVPR 2021, arXiv
2012.08548.
"""

from __future__ import annotations

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.balanced_sigmoid import dense_target, reduce_elements
from equipoise.losses.shared import Rows, SigmoidLoss, along, check_reduction, check_vector, class_dim, full_precision

UNSEEN = 100.0  # the ratio of a class without any gradient yet


def gradient_weights(
    ratio: Tensor, *, gamma: float = 12.0, mu: float = 0.8, alpha: float = 4.0
) -> tuple[Tensor, Tensor]:
    """The weights of positives and of negatives, each [K], for classes with these ratios of gradients.

    >>> [weight.tolist() for weight in gradient_weights(torch.tensor([100.0, 0.8]))]
    [[1.0, 3.0], [1.0, 0.5]]
    """
    negative = torch.sigmoid(gamma * (ratio - mu))
    return 1 + alpha * (1 - negative), negative


def equalization_v2_loss(
    logits: Tensor,
    target: Tensor,
    ratio: Tensor,
    *,
    gamma: float = 12.0,
    mu: float = 0.8,
    alpha: float = 4.0,
    foreground: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """EQL v2 of `logits` [N, K, ...] for classes whose gradients so far have these ratios, `ratio` [K].

    `target`, `foreground`, `weight`, `reduction`, `ignore_index` and `dim` work as in `balanced_sigmoid_loss`.

    ratio       gradients from positives over gradients from negatives so far, [K]
    gamma, mu   slope and centre of f: how the ratio of gradients becomes a weight
    alpha       how much the positives of a class without gradients gain

    >>> loss = equalization_v2_loss(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([100.0, 0.8]), reduction="sum")
    >>> loss / torch.tensor(2.0).log()
    tensor(1.5000)
    """
    check_reduction(reduction, "batchmean")
    check_vector(ratio, "ratio", "the gradient from positives over that from negatives per class")
    rows = Rows(logits, target, dim)
    logits, target, foreground, weight = rows.logits, rows.target, rows.flat(foreground), rows.elements(weight)
    dim = class_dim(logits)
    positive, negative = (along(part, logits, dim) for part in gradient_weights(ratio, gamma=gamma, mu=mu, alpha=alpha))
    logits = full_precision(logits)
    target, counts = dense_target(logits, target, foreground, ignore_index)
    loss = -(positive * target * F.logsigmoid(logits) + negative * (1 - target) * F.logsigmoid(-logits))
    return rows.back(reduce_elements(loss if weight is None else loss * weight, counts, reduction))


class EqualizationV2Loss(SigmoidLoss):
    """EQL v2 for `num_classes` classes; their gradients so far are buffers, and part of the state.

    num_classes   how many classes the logits have
    gamma, mu     slope and centre of f: how the ratio of gradients becomes a weight
    alpha         how much the positives of a class without gradients gain

    >>> loss = EqualizationV2Loss(2, reduction="sum")
    >>> loss(torch.zeros(1, 2), torch.tensor([0]))
    tensor(1.3863)
    >>> loss.observe(torch.tensor([[0.0, 2.0]]), torch.tensor([0]))
    >>> loss.ratio
    tensor([100.,   0.])
    """

    grown = ("positives", "negatives")
    positives: Tensor
    negatives: Tensor
    gamma: float
    mu: float
    alpha: float

    def __init__(
        self,
        num_classes: int,
        *,
        gamma: float = 12.0,
        mu: float = 0.8,
        alpha: float = 4.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        options = {"gamma": gamma, "mu": mu, "alpha": alpha}
        super().__init__(**options, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("positives", torch.zeros(num_classes, device="cpu"))
        self.register_buffer("negatives", torch.zeros(num_classes, device="cpu"))

    @property
    def ratio(self) -> Tensor:
        """The gradient from positives over that from negatives, [K]; 100 if there was none from negatives."""
        return torch.where(self.negatives > 0, self.positives / self.negatives.clamp(min=1e-30), UNSEEN)

    @torch.no_grad()
    def observe(
        self, logits: Tensor, target: Tensor, foreground: Tensor | None = None, weight: Tensor | None = None
    ) -> None:
        """Add a batch's gradients; if several processes train together, those of all processes."""
        self.follow(logits)
        rows = Rows(logits, target, self.dim)
        logits, weight = full_precision(rows.logits), rows.elements(weight)
        dim = class_dim(logits)
        positive, negative = (along(part, logits, dim) for part in gradient_weights(self.ratio, **self._form()))
        target, counts = dense_target(logits, rows.target, rows.flat(foreground), self.ignore_index)
        size = (logits.sigmoid() - target).abs() * (1.0 if weight is None else weight)
        if counts is not None:
            size = torch.where(counts, size, 0.0)
        others = [place for place in range(logits.ndim) if place != dim]
        gradients = [size * target * positive, size * (1 - target) * negative]
        found = torch.stack([part.sum(others) if others else part for part in gradients]).to(self.positives)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(found)
        self.positives += found[0]
        self.negatives += found[1]

    def _form(self) -> dict[str, float]:
        return {"gamma": self.gamma, "mu": self.mu, "alpha": self.alpha}

    def forward(
        self, logits: Tensor, target: Tensor, foreground: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        options = {"foreground": foreground, "weight": weight, **self._form(), **self.common(logits)}
        return equalization_v2_loss(logits, target, self.ratio, **options)
