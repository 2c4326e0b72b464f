"""Balanced Sigmoid (Ren et al. 2020): K binary problems that know how often each class occurs in training.

    p̂(y_j = 1 | x)  =  σ(z_j + s_j),      s_j  =  logit π_j − logit t
    loss(z, y)      =  Σ_j BCE(p̂_j, y_j)

Train with the shift, predict with plain σ(z_j). `t` is the rate that the prediction assumes for every class: by default
the mean rate of the training set, which is the paper's 1/K when every item has one label:

    s_j  =  −log( (n/K)/n_j · (n − n_j)/(n − n/K) )

With t = 1/2 it is s_j = log(n_j / (n − n_j)), as in the authors' released detection code. In a detector the shift
applies to rows that hold an object (`foreground`); background rows use the plain sigmoid (Ren et al. 2020, "Balanced
Meta-Softmax", appendix A.2).

Reference: "Balanced Activation for Long-tailed Visual Recognition", arXiv 2008.11037.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.shared import (
    Rows,
    SigmoidLoss,
    along,
    check_logs,
    check_reduction,
    check_vector,
    class_dim,
    full_precision,
    is_indices,
    is_traced,
    kernels_apply,
    not_ignored,
    one_hot,
    reduce_rows,
    rows_of,
)
from equipoise.prior import PriorLike, sigmoid_shift

Rate = float | Sequence[float] | Tensor | None


def balanced_sigmoid(logits: Tensor, prior: PriorLike, *, target_rate: Rate = None, dim: int = -1) -> Tensor:
    """p̂(y_j|x) under the training prior: σ(`logits` + logit π − logit t). Shape as `logits`, ≥ fp32.

    >>> from equipoise import Prior
    >>> balanced_sigmoid(torch.zeros(2), Prior.from_counts([9, 1]))
    tensor([0.9000, 0.1000])
    """
    return (full_precision(logits) + _shift(prior, target_rate, logits, dim)).sigmoid()


def log_balanced_sigmoid(logits: Tensor, prior: PriorLike, *, target_rate: Rate = None, dim: int = -1) -> Tensor:
    """log p̂(y_j|x) under the training prior, stable for any finite logits.

    >>> from equipoise import Prior
    >>> log_balanced_sigmoid(torch.zeros(2), Prior.from_counts([9, 1])).exp()
    tensor([0.9000, 0.1000])
    """
    return F.logsigmoid(full_precision(logits) + _shift(prior, target_rate, logits, dim))


def _shift(prior: PriorLike, target_rate: Rate, logits: Tensor, dim: int) -> Tensor:
    return along(sigmoid_shift(prior, target_rate).to(logits.device), logits, dim)


def balanced_sigmoid_loss(
    logits: Tensor,
    target: Tensor,
    shift: Tensor,
    *,
    foreground: Tensor | None = None,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Binary cross-entropy of `logits` [N, K, ...] shifted by `shift` [K], against `target`.

    shift        `sigmoid_shift(prior)`, or `prior.logit()` for a target rate of 1/2; not counts, not a `Prior`

    target       [N, K, ...] of zeros, ones or probabilities, or class indices [N, ...] or [N, 1, ...]
    foreground   [N, ...] bool: rows that hold an object. The others are not shifted; given as class indices, they mean
                 "none of the classes", whatever the index
    weight       anything that broadcasts to `logits`: 0 leaves a class out of a row (unverified labels)
    reduction    "mean" over all elements, "batchmean": sum over classes and mean over rows (the paper, and detectors),
                 "sum", "none"
    dim          the dimension of the classes: -1 for [N, anchors, K]

    Rows whose index is `ignore_index` do not count, nor do single elements of a target [N, K, ...] that are
    `ignore_index` or NaN (missing labels). Means are over the rest ("batchmean": over rows with anything left). A batch
    in which nothing counts gives 0 with zero gradient.

    >>> shift = torch.tensor([0.9, 0.1]).logit()
    >>> balanced_sigmoid_loss(torch.zeros(1, 2), torch.tensor([1]), shift, reduction="batchmean")
    tensor(4.6052)
    """
    check_reduction(reduction, "batchmean")
    check_vector(shift, "shift", "sigmoid_shift(prior)")
    check_logs(shift, "shift", "sigmoid_shift(prior)")
    rows = Rows(logits, target, dim)
    logits, target, foreground, weight = rows.logits, rows.target, rows.flat(foreground), rows.elements(weight)
    plain = foreground is weight is pos_weight is None and reduction != "none"
    if plain and (target.ndim == 1 or ignore_index not in (0, 1)) and kernels_apply(logits, target, shift):
        from equipoise.losses.kernels import sigmoid_loss

        return sigmoid_loss(logits, target, shift, ignore_index, reduction)
    dim = class_dim(logits)
    shift = along(shift, logits, dim)
    if foreground is not None:
        shift = shift * row_mask(foreground, logits)
    logits = full_precision(logits)
    target, counts = dense_target(logits, target, foreground, ignore_index)
    if pos_weight is not None:
        pos_weight = along(pos_weight, logits, dim, "pos_weight")
    loss = F.binary_cross_entropy_with_logits(logits + shift, target, weight, pos_weight=pos_weight, reduction="none")
    return rows.back(reduce_elements(loss, counts, reduction))


def row_mask(mask: Tensor, logits: Tensor) -> Tensor:
    """A mask of rows [N, ...] shaped to broadcast over the classes of `logits`."""
    if mask.dtype != torch.bool:
        raise TypeError(f"foreground is {mask.dtype}: expected bool, True for rows that hold an object")
    dim = class_dim(logits)
    if mask.shape != logits.shape[:dim] + logits.shape[dim + 1 :]:
        raise ValueError(
            f"foreground of shape {tuple(mask.shape)} does not fit logits of shape {tuple(logits.shape)}: one per row, "
            f"{tuple(logits.shape[:dim] + logits.shape[dim + 1 :])}"
        )
    return mask.unsqueeze(dim)


def dense_target(
    logits: Tensor, target: Tensor, foreground: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """`target` in the shape of `logits`, 0 where it is ignored, and a mask of what counts (None: everything):
    [N, 1, ...] for rows of class indices, [N, K, ...] for elements.

    Rows outside `foreground` that are given as indices belong to no class.
    """
    if is_indices(logits, target):
        counts = not_ignored(target, ignore_index)
        named = counts if foreground is None else counts & foreground
        hot = one_hot(logits, torch.where(named, target, 0))
        return hot * row_mask(named, logits), counts.unsqueeze(class_dim(logits))
    if target.dtype == torch.bool:
        return target.to(logits.dtype), None
    if ignore_index in (0, 1):
        raise ValueError(
            f"ignore_index is {ignore_index}, which is an answer in a target of the logits' shape: mark missing labels "
            "with another number, e.g. ignore_index=-1, or with NaN"
        )
    if none_missing(target, ignore_index):
        return target.to(logits.dtype), None
    counts = not_ignored(target, ignore_index)
    return torch.where(counts, target, 0).to(logits.dtype), counts


def none_missing(target: Tensor, ignore_index: int) -> bool:
    """Whether no element is `ignore_index` or NaN: checked on the CPU outside of a compiler, where it saves copies."""
    if target.device.type != "cpu" or type(target) is not Tensor or target.numel() == 0 or is_traced():
        return False
    low, high = target.detach().aminmax()  # NaN, if there is one
    return bool(low >= 0 and (ignore_index < 0 or high < ignore_index))


def reduce_elements(loss: Tensor, counts: Tensor | None, reduction: str) -> Tensor:
    """Reduce the loss per element as `reduction` asks; elements that do not count are 0."""
    dim = class_dim(loss)
    if counts is None:
        counted: Tensor | int = rows_of(loss) if reduction == "batchmean" else loss.numel()
    else:
        loss = torch.where(counts, loss, 0.0)
        counted = counts.any(dim).sum() if reduction == "batchmean" else counts.expand_as(loss).sum()
    return reduce_rows(loss, counted, "mean" if reduction == "batchmean" else reduction)


class BalancedSigmoidLoss(SigmoidLoss):
    """Balanced Sigmoid as a drop-in for `nn.BCEWithLogitsLoss`; predict with plain `logits.sigmoid()`.

    `target_rate` is the rate that predictions assume for a class: a number, one per class, or None for the mean rate of
    the training set. The default reduction is torch's mean over all elements; "batchmean" is the paper's.

    >>> from equipoise import Prior
    >>> loss = BalancedSigmoidLoss(Prior.from_counts([9, 1]), reduction="batchmean")
    >>> loss(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
    tensor(4.6052)
    """

    shift: Tensor
    pos_weight: Tensor | None
    logits_mean = "uniform"

    def __init__(
        self,
        prior: PriorLike,
        *,
        target_rate: Rate = None,
        pos_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("shift", sigmoid_shift(prior, target_rate))
        self.register_buffer("pos_weight", pos_weight)

    def forward(
        self, logits: Tensor, target: Tensor, foreground: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        options = {"foreground": foreground, "weight": weight, "pos_weight": self.pos_weight, **self.common(logits)}
        return balanced_sigmoid_loss(logits, target, self.shift, **options)
