"""Focal loss (Lin et al. 2017): cross-entropy in which an example counts less the better it is classified.

    softmax:   loss(z, y) = −(1 − p_y)^γ log p_y,                      p = softmax(z)
    sigmoid:   loss(z, y) = −Σ_j α_j (1 − q_j)^γ log q_j,              q_j = σ(z_j) if y_j = 1 else 1 − σ(z_j)

γ = 0 is the plain loss. log(1 − p) is computed from the logits and not from p, so that value and gradient are finite
for any finite logits and every γ ≥ 0 (including γ < 1, where the textbook form gives 0 · inf).

Reference: Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017, arXiv 1708.02002.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.balanced_sigmoid import dense_target, reduce_elements
from equipoise.losses.shared import (
    Rows,
    SigmoidLoss,
    SoftmaxLoss,
    along,
    as_probabilities,
    check_reduction,
    class_dim,
    full_precision,
    is_indices,
    one_hot,
    pick,
    reduce_rows,
)


def focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Softmax focal loss of `logits` [N, K, ...] against class indices [N, ...] or probabilities [N, K, ...].

    With probabilities t the loss is −Σ_j t_j (1 − p_j)^γ log p_j. `weight` [K] multiplies the loss, and the mean
    divides by it, as in `torch.nn.functional.cross_entropy`. The classes are in dimension `dim`.

    gamma   how strongly well-classified items are down-weighted; 0 is the plain loss

    >>> focal_loss(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0)
    tensor(0.3466)
    """
    rows = Rows(logits, target, dim)
    loss, counted = focal_rows(rows.logits, rows.target, gamma, weight, ignore_index)
    return rows.back(reduce_rows(loss, counted, reduction))


def focal_rows(
    logits: Tensor, target: Tensor, gamma: float, weight: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor | int]:
    """Focal loss per row, and the denominator of torch's weighted mean."""
    check_gamma(gamma)
    logits = full_precision(logits)
    dim = class_dim(logits)
    if weight is not None:
        weight = along(weight, logits, dim, "weight").to(logits.dtype)
    indices, log_p = is_indices(logits, target), logits.log_softmax(dim)
    if not indices:
        modulated = log_p if gamma == 0 else log_p * torch.exp(gamma * log_one_minus(log_p))
        shares, counted = as_probabilities(target, logits, ignore_index)
        loss = -modulated * shares
        return (loss if weight is None else loss * weight).sum(dim), counted
    of_target, valid = pick(log_p, target, ignore_index)
    loss = -of_target
    if gamma != 0:
        own = torch.where(valid, target, 0).long().unsqueeze(dim)
        others = log_p.scatter(dim, own, torch.finfo(log_p.dtype).min).logsumexp(dim)  # log(1 − p_y)
        loss = loss * torch.exp(gamma * others)
    if weight is None:
        return loss, valid.sum()
    of_row, _ = pick(weight.expand_as(logits), target, ignore_index)
    return loss * of_row, of_row.sum()


def log_one_minus(log_p: Tensor) -> Tensor:
    """log(1 − p_j) for every class, with a finite gradient even where p_j rounds to 1.

    Only the largest class can come close to 1; its 1 − p is the probability of all others, summed in the log domain.
    """
    dim = class_dim(log_p)
    top = one_hot(log_p, log_p.argmax(dim)).bool()
    lowest = torch.finfo(log_p.dtype).min
    others = log_p.masked_fill(top, lowest).logsumexp(dim, keepdim=True)
    return torch.where(top, others, torch.log1p(-log_p.masked_fill(top, lowest).exp()))


class FocalLoss(SoftmaxLoss):
    """Softmax focal loss as a drop-in for `nn.CrossEntropyLoss`.

    gamma   how strongly well-classified items are down-weighted; 0 is the plain loss

    >>> FocalLoss(gamma=1.0)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.3466)
    """

    weight: Tensor | None
    gamma: float

    def __init__(
        self,
        gamma: float,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        check_gamma(gamma)
        super().__init__(gamma=gamma, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return focal_loss(logits, target, self.gamma, weight=self.weight, **self.common(logits))


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float,
    *,
    alpha: float | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Sigmoid focal loss of `logits` [N, K, ...] against zeros and ones [N, K, ...] or class indices [N, ...].

    `alpha` is the weight of positives and 1 − `alpha` that of negatives; None weights neither. `reduction`,
    `ignore_index` and `dim` work as in `balanced_sigmoid_loss`.

    gamma   how strongly well-classified items are down-weighted; 0 is the plain loss
    alpha   weight of positives; that of negatives is 1 − alpha; None weights neither

    >>> sigmoid_focal_loss(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0, reduction="batchmean")
    tensor(0.6931)
    """
    check_gamma(gamma)
    check_alpha(alpha)
    check_reduction(reduction, "batchmean")
    rows = Rows(logits, target, dim)
    logits, target = full_precision(rows.logits), rows.target
    target, counts = dense_target(logits, target, None, ignore_index)
    positive = -F.logsigmoid(logits) * torch.exp(gamma * F.logsigmoid(-logits))
    negative = -F.logsigmoid(-logits) * torch.exp(gamma * F.logsigmoid(logits))
    if alpha is not None:
        positive, negative = alpha * positive, (1 - alpha) * negative
    return rows.back(reduce_elements(target * positive + (1 - target) * negative, counts, reduction))


class SigmoidFocalLoss(SigmoidLoss):
    """Sigmoid focal loss as a drop-in for `nn.BCEWithLogitsLoss`.

    gamma   how strongly well-classified items are down-weighted; 0 is the plain loss
    alpha   weight of positives; that of negatives is 1 − alpha; None weights neither

    >>> SigmoidFocalLoss(gamma=2.0)(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
    tensor(0.1733)
    """

    gamma: float
    alpha: float | None

    def __init__(
        self,
        gamma: float,
        *,
        alpha: float | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        check_gamma(gamma)
        check_alpha(alpha)
        super().__init__(gamma=gamma, alpha=alpha, ignore_index=ignore_index, reduction=reduction, dim=dim)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return sigmoid_focal_loss(logits, target, self.gamma, alpha=self.alpha, **self.common(logits))


def check_gamma(gamma: float) -> None:
    if not gamma >= 0:
        raise ValueError(f"gamma is {gamma}: it must be at least 0 (0 is the plain loss)")


def check_alpha(alpha: float | None) -> None:
    if alpha is not None and not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}: it is the weight of positives, in [0, 1]; None (torchvision: -1) is none")
