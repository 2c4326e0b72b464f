"""What every loss does alike: which dimension holds the classes, in which precision, and how rows become one number.

Losses look at shapes and dtypes, never at values: no synchronisation with a GPU, no break in a compiled graph.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.compiling import constant

KERNEL_DEVICE = "cuda"  # where kernels.py runs; a test without a GPU says another


def class_dim(logits: Tensor) -> int:
    """Where the classes are, as in torch: [K], [N, K], [N, K, d1, ...]."""
    return 0 if logits.ndim == 1 else 1


def full_precision(logits: Tensor) -> Tensor:
    """fp16 and bf16 logits as fp32; fp32 and fp64 as they are."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits are a {type(logits).__name__}: expected a tensor, e.g. torch.as_tensor(logits)")
    if not logits.is_floating_point():
        raise TypeError(f"logits are {logits.dtype}: expected floating point, the raw outputs of a model")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def check_size(num_classes: int, logits: Tensor, dim: int, what: str = "prior") -> None:
    """Refuse logits whose class dimension does not have `num_classes` entries."""
    if logits.ndim > 0 and not -logits.ndim <= dim < logits.ndim:
        raise ValueError(f"the classes are said to be in dimension {dim}, but logits have shape {tuple(logits.shape)}")
    if logits.ndim == 0 or logits.shape[dim] != num_classes:
        size = "no dimension at all" if logits.ndim == 0 else f"{logits.shape[dim]} in dimension {dim}"
        fitting = [d for d, length in enumerate(logits.shape) if length == num_classes]
        where = f", or pass dim={fitting[0]}" if fitting and dim < 0 else ""
        raise ValueError(
            f"{what} has {num_classes} classes, logits of shape {tuple(logits.shape)} have {size}: "
            f"build it with the model's num_classes{where}"
        )


def along(vector: Tensor, logits: Tensor, dim: int, what: str = "prior") -> Tensor:
    """`vector` [K] shaped to broadcast along dimension `dim` of `logits`."""
    if vector.ndim == 0:
        return vector
    check_size(vector.shape[0], logits, dim, what)
    return vector.view(-1, *[1] * (logits.ndim - 1 - dim % logits.ndim))


def shifted(logits: Tensor, shift: Tensor) -> Tensor:
    """`logits` with `shift` [K] added to every row, in at least fp32."""
    return full_precision(logits) + along(shift, logits, class_dim(logits))


def is_indices(logits: Tensor, target: Tensor, num_classes: int | None = None) -> bool:
    """Whether `target` holds class indices (one dimension fewer) and not one value a class (the same shape)."""
    dim = class_dim(logits)
    if num_classes is not None:
        check_size(num_classes, logits, dim)
    if target.shape == logits.shape:
        return False
    if target.shape != logits.shape[:dim] + logits.shape[dim + 1 :]:
        raise ValueError(
            f"target of shape {tuple(target.shape)} does not fit logits of shape {tuple(logits.shape)}: expected class "
            f"indices {tuple(logits.shape[:dim] + logits.shape[dim + 1 :])} or one value a class {tuple(logits.shape)}"
        )
    if target.is_floating_point() or target.dtype == torch.bool:
        raise TypeError(f"target is {target.dtype}: class indices are integers (long)")
    return True


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.dtype == torch.bool)


def need_indices(logits: Tensor, target: Tensor, loss: str) -> None:
    """Refuse anything but class indices, for losses whose formula singles out one class."""
    if not is_indices(logits, target):
        raise ValueError(
            f"{loss} is defined for one class a row, but target has the logits' shape {tuple(target.shape)}: "
            "pass class indices"
        )


def as_probabilities(target: Tensor, logits: Tensor) -> Tensor:
    """A target of the logits' shape in their dtype; refused unless floating point."""
    if not target.is_floating_point():
        raise TypeError(
            f"target has the logits' shape {tuple(target.shape)} but is {target.dtype}: expected probabilities "
            "(floating point), or class indices with one dimension fewer"
        )
    return target.to(logits.dtype)


def one_hot(logits: Tensor, target: Tensor) -> Tensor:
    """Class indices as ones and zeros in the shape and dtype of `logits`."""
    dim = class_dim(logits)
    return torch.zeros_like(logits).scatter(dim, target.long().unsqueeze(dim), 1.0)


def counting(target: Tensor, ignore_index: int) -> Tensor:
    """Which class indices count. Compared in 64 bits: as uint8, −100 is the class 156.

    >>> counting(torch.tensor([156, 7], dtype=torch.uint8), -100)
    tensor([True, True])
    """
    return target.long() != ignore_index


def pick(values: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """values[n, target[n]] for every row, and which rows count (those ignored are 0)."""
    valid = counting(target, ignore_index)
    dim = class_dim(values)
    index = torch.where(valid, target, 0).long().unsqueeze(dim)
    return torch.where(valid, values.gather(dim, index).squeeze(dim), 0.0), valid


def check_reduction(reduction: str, *more: str) -> None:
    allowed = ("mean", "sum", "none", *more)
    if reduction not in allowed:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(map(repr, allowed))}")


def ratio(total: Tensor, weight: Tensor | int) -> Tensor:
    """total / weight, and 0 with zero gradient where nothing counts (an empty or wholly ignored batch)."""
    if type(weight) is int:
        return total / max(weight, 1)  # not sym_max, for which torch 2.11 breaks a compiled graph
    if not isinstance(weight, Tensor):
        return total / torch.sym_max(weight, 1)  # type: ignore[return-value]  # a symbol while a model is exported
    if not weight.is_floating_point():
        return total / weight.clamp(min=1)
    return total / torch.where(weight == 0, 1.0, weight)


def rows_of(logits: Tensor) -> int:
    """How many predictions there are: the product of all dimensions but the classes'."""
    return logits.numel() // logits.shape[class_dim(logits)]


def reduce_rows(loss: Tensor, counted: Tensor | int, reduction: str) -> Tensor:
    """Loss a row to what `reduction` names; `counted` is the denominator of the mean."""
    check_reduction(reduction)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else ratio(loss.sum(), counted)


def kernels_apply(logits: Tensor, target: Tensor, shift: Tensor) -> bool:
    """Whether the loss of `logits` [N, K] with one `shift` a class can be that of kernels.py: compiled, on a GPU.

    `target` is class indices [N] or one value a class [N, K]. Whatever is out of the ordinary stays on the general way,
    and so do its error messages.
    """
    return (
        torch.compiler.is_compiling()
        and all(type(tensor) is Tensor and tensor.device == logits.device for tensor in (logits, target, shift))
        and logits.device.type == KERNEL_DEVICE
        and logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and shift.dtype == torch.float32
        and logits.ndim == 2
        and shift.numel() > 0
        and shift.shape == logits.shape[1:]
        and (target.shape == logits.shape or (target.shape == logits.shape[:1] and is_integer(target)))
        and not (target.requires_grad or shift.requires_grad)
        and kernels_work()
    )


@constant  # Dynamo would trace the import, and fail where it fails
def kernels_work() -> bool:
    """Whether kernels.py can be had and used here; a compiler asks once for each graph.

    Its operations have a first derivative, backward, and no other: not under torch.func, in forward mode, or where
    Dynamo traces calls of torch.autograd, which may ask for a second one.
    """
    if (
        os.environ.get("EQUIPOISE_KERNELS") == "0"
        or torch.compiler.is_exporting()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or getattr(sys.modules.get("torch._dynamo.config"), "trace_autograd_ops", False)
    ):
        return False
    try:
        import equipoise.losses.kernels  # noqa: F401
    except ImportError:  # triton does not come with every torch
        return False
    return True


class PriorModule(nn.Module):
    """A loss that holds vectors of the prior as buffers which stay what they are, to the bit.

    They move with the module between devices and into its `state_dict`, but `.half()` and `.to(torch.bfloat16)` leave
    their dtype alone: log(65,505) has no business in half precision.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self

    def extra_repr(self) -> str:
        options = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"}
        sizes = [f"num_classes={len(b)}" for b in self._buffers.values() if b is not None and b.ndim == 1][:1]
        return ", ".join(sizes + [f"{k}={v!r}" for k, v in options.items()])


class SoftmaxLoss(PriorModule):
    """A loss after which the softmax of the logits are probabilities."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """What `logits` [N, K, ...] mean after training with this loss: the same shape, at least fp32."""
        return full_precision(logits).softmax(class_dim(logits))


class SigmoidLoss(PriorModule):
    """A loss after which the sigmoid of each logit is a probability."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """What `logits` [N, K, ...] mean after training with this loss: the same shape, at least fp32."""
        return full_precision(logits).sigmoid()
