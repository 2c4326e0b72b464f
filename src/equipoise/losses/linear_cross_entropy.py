"""Balanced cross-entropy of a linear head with very many classes: the logits [N, K] never exist as a whole.

    loss  =  cross_entropy(W x + (b + log n), y)

The prior is added to the bias, K numbers, and the logits are computed and used a few rows at a time. torch ≥ 2.13 has a
kernel for this, `torch.nn.functional.linear_cross_entropy`, which is used for fp32 and fp64. Older versions, half
precision and label smoothing use a loop over rows that computes the logits of each part again in the backward pass:
just as little memory, about a third more arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from equipoise.losses.balanced_softmax import cross_entropy, mean_over_indices
from equipoise.losses.shared import SoftmaxLoss, check_reduction
from equipoise.prior import PriorLike, softmax_shift

HAS_KERNEL = hasattr(F, "linear_cross_entropy")  # torch ≥ 2.13
PART = 1 << 27  # logits kept at a time: 512 MB of fp32


def balanced_linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    prior: PriorLike,
    *,
    tau: float = 1.0,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Balanced Softmax of `features` [..., D] through a head `weight` [K, D], `bias` [K], against `target` [...].

    Equal to `balanced_softmax_loss(F.linear(features, weight, bias), target, prior.log())`. In a training loop use
    `BalancedLinearCrossEntropyLoss`, which keeps the shift on the device. Gradients of gradients, a second backward
    pass through the same graph, `torch.func` and probability targets are not supported: use the loss on logits.

    features       the input of the head, [..., D]
    weight         the head's weight, [K, D]
    bias           the head's bias, [K], or None
    class_weight   weights of the classes, [K], as `weight` of `nn.CrossEntropyLoss`

    >>> weight, bias = torch.zeros(2, 3), torch.zeros(2)
    >>> balanced_linear_cross_entropy(torch.randn(1, 3), weight, bias, torch.tensor([1]), [0.9, 0.1])
    tensor(2.3026)
    """
    return linear_cross_entropy(
        features,
        weight,
        bias,
        target,
        softmax_shift(prior, tau=tau).to(weight.device),
        class_weight=class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    log_prior: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy, in parts, of a linear head whose logits are shifted by `log_prior` [K] (None: no shift).

    A batch in which nothing counts gives 0 with zero gradient. Half-precision features give an fp32 loss; logits are
    products in half precision, while sums over rows and parts (of the loss, and of the weight's gradient) are fp32.

    >>> linear_cross_entropy(torch.randn(1, 3), torch.zeros(2, 3), None, torch.tensor([1]))
    tensor(0.6931)
    """
    check_reduction(reduction)
    _check(features, weight, target, {"bias": bias, "prior": log_prior, "class_weight": class_weight})
    if log_prior is not None:
        log_prior = log_prior.to(weight.device)
        bias = log_prior if bias is None else bias + log_prior
    if bias is not None:
        bias = bias.to(torch.float64 if features.dtype == torch.float64 else torch.float32)
    autocast = torch.is_autocast_enabled(features.device.type)
    dtype = torch.get_autocast_dtype(features.device.type) if autocast else features.dtype
    rows, indices = features.reshape(-1, features.shape[-1]).to(dtype), target.reshape(-1).long()
    half = dtype in (torch.float16, torch.bfloat16)
    # torch's kernel sums loss and gradients over parts in the precision of the features: right for fp32 and fp64 only
    use = _by_kernel if HAS_KERNEL and label_smoothing == 0 and not half else _by_parts
    weight = weight.float() if half else weight.to(dtype)
    class_weight = None if class_weight is None else class_weight.to(weight.device, weight.dtype)
    how = {"weight": class_weight, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss = use(rows, weight, bias, indices, how | {"reduction": "none" if reduction == "none" else "sum"})
    if reduction == "mean":
        return mean_over_indices(loss, indices, class_weight, ignore_index)
    return loss.reshape(target.shape) if reduction == "none" else loss


class BalancedLinearCrossEntropyLoss(SoftmaxLoss):
    """`balanced_linear_cross_entropy` that keeps the shift of the prior as an fp32 buffer.

    class_weight   weights of the classes, [K], as `weight` of `nn.CrossEntropyLoss`

    >>> head = torch.nn.Linear(3, 2)
    >>> loss = BalancedLinearCrossEntropyLoss(eq.Prior.from_counts([900, 100]))
    >>> features, target = torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])
    >>> on_logits = eq.BalancedSoftmaxLoss(eq.Prior.from_counts([900, 100]))(head(features), target)
    >>> torch.allclose(loss(features, head.weight, head.bias, target), on_logits)
    True
    """

    log_prior: Tensor
    class_weight: Tensor | None
    label_smoothing: float

    def __init__(
        self,
        prior: PriorLike,
        *,
        tau: float = 1.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(tau=tau, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
        self.register_buffer("log_prior", softmax_shift(prior, tau=tau))
        self.register_buffer("class_weight", class_weight)

    def forward(self, features: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        self.follow(features)
        return linear_cross_entropy(
            features,
            weight,
            bias,
            target,
            self.log_prior,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )


def _by_kernel(rows: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, how: dict[str, Any]) -> Tensor:
    # torch's own choice is as many rows as make the logits as large as the features: one row at a time for a million
    # classes, and every part reads and writes the whole gradient of the weight
    options = torch.nn.LinearCrossEntropyOptions(
        batch_chunk_size=_rows_a_part(weight), chunking_method=None, allow_retain_graph=torch.compiler.is_compiling()
    )
    loss: Tensor = F.linear_cross_entropy(rows, weight, target, linear_bias=bias, options=options, **how)
    return loss


def _by_parts(rows: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, how: dict[str, Any]) -> Tensor:
    size = _rows_a_part(weight)
    if len(rows) <= size:
        return _part(rows, weight, bias, target, how)
    parts = zip(torch.split(rows, size), torch.split(target, size), strict=True)
    losses = [checkpoint(_part, x, weight, bias, y, how, use_reentrant=False) for x, y in parts]
    return torch.cat(losses) if losses[0].ndim else torch.stack(losses).sum()


def _part(rows: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, how: dict[str, Any]) -> Tensor:
    if rows.dtype in (torch.float16, torch.bfloat16):  # the weight is fp32, so that its gradient adds up in fp32
        logits = F.linear(rows, weight.to(rows.dtype)).float()
        logits = logits if bias is None else logits + bias  # a shift of 15 would lose too much in bf16
    else:
        logits = F.linear(rows, weight, bias)
    return cross_entropy(logits, target, **how)


def _rows_a_part(weight: Tensor) -> int:
    return max(1, PART // weight.shape[0])


def _check(features: Tensor, weight: Tensor, target: Tensor, vectors: dict[str, Tensor | None]) -> None:
    if weight.ndim != 2 or features.ndim == 0 or features.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"features of shape {tuple(features.shape)} do not fit a weight of shape {tuple(weight.shape)}: expected "
            "[..., D] and [K, D], as nn.Linear stores it"
        )
    if target.is_floating_point() or target.shape != features.shape[:-1]:
        raise ValueError(
            f"target is {target.dtype} of shape {tuple(target.shape)}: expected class indices of shape "
            f"{tuple(features.shape[:-1])}; for probabilities use balanced_softmax_loss on the logits"
        )
    for name, vector in vectors.items():
        if vector is not None and vector.shape != weight.shape[:1]:
            raise ValueError(
                f"{name} has shape {tuple(vector.shape)}, the weight has {weight.shape[0]} classes: expected [K]"
            )
