"""Balanced Softmax (Ren et al. 2020): cross-entropy that knows how often each class occurs in training.

    p̂(y = j | x)  =  n_j exp(z_j) / Σ_i n_i exp(z_i)                 under the training prior (Theorem 1)
    loss(z, y)    =  −log p̂(y | x)  =  cross_entropy(z + log n, y)

Train with the shift, predict without it: softmax(z) is the answer when every class is equally likely. With
`tau` the shift is tau · log n; the paper's Corollary has tau = 1/4, and its experiments find tau = 1 best.
The same loss is known as the logit-adjusted loss (Menon et al. 2021).

Reference: "Balanced Activation for Long-tailed Visual Recognition", arXiv 2008.11037.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.shared import (
    Rows,
    SoftmaxLoss,
    along,
    as_probabilities,
    check_logs,
    check_reduction,
    check_size,
    check_vector,
    class_dim,
    full_precision,
    is_indices,
    kernels_apply,
    not_ignored,
    ratio,
    shifted,
)
from equipoise.prior import PriorLike, softmax_shift


def balanced_softmax(logits: Tensor, prior: PriorLike, *, tau: float = 1.0, dim: int = -1) -> Tensor:
    """p̂(y|x) under the training prior: softmax of `logits` + tau · log π, along `dim`. Shape as `logits`, ≥ fp32.

    >>> balanced_softmax(torch.zeros(2), [0.9, 0.1])
    tensor([0.9000, 0.1000])
    """
    return log_balanced_softmax(logits, prior, tau=tau, dim=dim).exp()


def log_balanced_softmax(logits: Tensor, prior: PriorLike, *, tau: float = 1.0, dim: int = -1) -> Tensor:
    """log p̂(y|x) under the training prior, stable for any finite logits.

    >>> log_balanced_softmax(torch.zeros(2), [0.9, 0.1]).exp()
    tensor([0.9000, 0.1000])
    """
    shift = softmax_shift(prior, tau=tau).to(logits.device)
    return (full_precision(logits) + along(shift, logits, dim)).log_softmax(dim)


def balanced_softmax_loss(
    logits: Tensor,
    target: Tensor,
    log_prior: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Cross-entropy of `logits` [N, K, ...] shifted by `log_prior` [K] against `target` [N, ...] or [N, K, ...].

    `log_prior` is `prior.log()`: log p or log n, which are the same to a softmax; not counts, not a `Prior`. The other
    options are those of `torch.nn.functional.cross_entropy`, with one difference: a batch in which nothing counts
    (empty, all ignored, or all weights zero) gives 0 with zero gradient, where torch gives NaN. `dim` is the dimension
    of the classes: -1 for tokens [N, T, K]. Class indices may also have the shape [N, 1, ...].

    >>> balanced_softmax_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0.9, 0.1]).log())
    tensor(2.3026)
    """
    check_vector(log_prior, "log_prior", "prior.log()")
    check_logs(log_prior, "log_prior", "prior.log()", of_probabilities=True)
    rows = Rows(logits, target, dim)
    logits, target = rows.logits, rows.target
    if weight is None and label_smoothing == 0 and target.ndim == 1 and kernels_apply(logits, target, log_prior):
        from equipoise.losses.kernels import softmax_loss

        return rows.back(softmax_loss(logits, target, log_prior, ignore_index, reduction))
    loss = cross_entropy(
        shifted(logits, log_prior),
        target,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    return rows.back(loss)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """torch's cross-entropy in at least fp32, which gives 0 instead of NaN if nothing counts."""
    check_reduction(reduction)
    logits = full_precision(logits)
    indices, counted = is_indices(logits, target), None
    if indices:
        target = target.long()
    else:
        target, counted = as_probabilities(target, logits, ignore_index, label_smoothing)
        ignore_index, label_smoothing = -100, 0.0  # done, and refused by torch
    if weight is not None:
        check_size(len(weight), logits, class_dim(logits), "weight")
        weight = weight.to(logits.device, logits.dtype)
    loss = F.cross_entropy(
        logits,
        target,
        weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none" if reduction == "none" else "sum",
    )
    if reduction != "mean":
        return loss
    return mean_over_indices(loss, target, weight, ignore_index) if counted is None else ratio(loss, counted)


def mean_over_indices(total: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Turn a sum of losses over the class indices `target` into torch's mean: divide by the weights of those that
    count."""
    valid = not_ignored(target, ignore_index)
    if weight is None:
        return ratio(total, valid.sum())
    rows = weight.gather(0, torch.where(valid, target, 0).reshape(-1))  # gather, not weight[...]: works under vmap
    return ratio(total, torch.where(valid.reshape(-1), rows, 0.0).sum())


class BalancedSoftmaxLoss(SoftmaxLoss):
    """Balanced Softmax as a drop-in for `nn.CrossEntropyLoss`: swap the line, keep the rest.

    `prior` is that of the data as sampled in training. Predict with plain `logits.argmax(1)` or `logits.softmax(1)`.
    The buffer `log_prior` is tau · log(π · K), which is the same to a softmax as tau · log π.

    >>> from equipoise import Prior
    >>> loss = BalancedSoftmaxLoss(Prior.from_counts([900, 100]))
    >>> loss(torch.zeros(1, 2), torch.tensor([1]))
    tensor(2.3026)
    """

    log_prior: Tensor
    weight: Tensor | None
    label_smoothing: float
    logits_mean = "uniform"

    def __init__(
        self,
        prior: PriorLike,
        *,
        tau: float = 1.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction, "dim": dim}
        super().__init__(tau=tau, **options)
        self.register_buffer("log_prior", softmax_shift(prior, tau=tau))
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        options = {"weight": self.weight, "label_smoothing": self.label_smoothing, **self.common(logits)}
        return balanced_softmax_loss(logits, target, self.log_prior, **options)
