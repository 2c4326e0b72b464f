"""What all losses share: the dimension of the classes, the precision, and how rows are reduced to one number.

Losses look at shapes and dtypes, not at values: no synchronisation with a GPU, no break in a compiled graph. The only
exceptions are `check_logs` and, to save copies, `none_missing`, on the CPU and outside of compiled code.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from equipoise.arrays import outside
from equipoise.compiling import constant

KERNEL_DEVICE = "cuda"  # where kernels.py runs; a test without a GPU sets another


def class_dim(logits: Tensor, dim: int = 1) -> int:
    """The dimension of the classes: `dim`, by default as in torch, [N, K], [N, K, d1, ...]; the only one of [K]."""
    return 0 if logits.ndim == 1 else dim


def check_logits(logits: Tensor) -> None:
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits are a {type(logits).__name__}: expected a tensor, e.g. torch.as_tensor(logits)")
    if not logits.is_floating_point():
        raise TypeError(f"logits are {logits.dtype}: expected floating point, the raw outputs of a model")


def full_precision(logits: Tensor) -> Tensor:
    """fp16 and bf16 logits as fp32; fp32 and fp64 as they are."""
    check_logits(logits)
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def check_dim(logits: Tensor, dim: int) -> None:
    if logits.ndim > 0 and not -logits.ndim <= dim < logits.ndim:
        raise ValueError(
            f"dim is {dim}, but logits have shape {tuple(logits.shape)}: expected {-logits.ndim} to {logits.ndim - 1}"
        )


def check_size(num_classes: int, logits: Tensor, dim: int, what: str = "prior") -> None:
    """Refuse logits whose class dimension does not have `num_classes` entries."""
    check_dim(logits, dim)
    if logits.ndim == 0 or logits.shape[dim] != num_classes:
        size = "no dimension at all" if logits.ndim == 0 else f"{logits.shape[dim]} in dimension {dim}"
        fitting = [d for d, length in enumerate(logits.shape) if length == num_classes]
        where = f", or pass dim={fitting[0]}" if fitting and dim < 0 else ""
        raise ValueError(
            f"{what} has {num_classes} classes, logits of shape {tuple(logits.shape)} have {size}: "
            f"build it with the model's num_classes{where}"
        )


def along(vector: Tensor, logits: Tensor, dim: int, what: str = "prior") -> Tensor:
    """`vector` [K] shaped to broadcast along dimension `dim` of `logits`, and on their device."""
    vector = vector.to(logits.device)
    if vector.ndim == 0:
        return vector
    check_size(vector.shape[0], logits, dim, what)
    return vector.view(-1, *[1] * (logits.ndim - 1 - dim % logits.ndim))


def check_vector(vector: Tensor, what: str, wanted: str) -> None:
    """Refuse a `Prior` and whole numbers (counts) if a function expects `wanted`."""
    if not isinstance(vector, Tensor):
        raise TypeError(f"{what} is a {type(vector).__name__}: pass {wanted}")
    if is_integer(vector):
        raise TypeError(f"{what} is {vector.dtype}, like counts: pass {wanted}, e.g. of prior = Prior.from_counts(n)")


def check_logs(vector: Tensor, what: str, wanted: str, *, of_probabilities: bool = False) -> None:
    """Refuse counts passed instead of their logs and, with `of_probabilities`, probabilities that sum to 1.

    Looks at values only if that needs no synchronisation: on the CPU, outside of a compiler. Logs are hardly ever all
    whole, and if so never above 100; logs of shares are negative, and logs of counts do not sum to 1.
    """
    if vector.device.type != "cpu" or type(vector) is not Tensor or vector.numel() < 2 or is_traced():
        return
    values = vector.detach()
    low, high = (float(value) for value in values.aminmax())
    if 100 < high < float("inf") and torch.equal(values, values.round()):
        raise ValueError(f"{what} goes up to {high:g}, like counts, not like logs: pass {wanted}")
    if of_probabilities and low >= 0 and high < 1 and abs(float(values.sum()) - 1) < 1e-4:
        raise ValueError(f"{what} has values from {low:.3g} to {high:.3g} and sum 1, like probabilities: pass {wanted}")


def is_traced() -> bool:
    """Whether a compiler, torch.func or a fake-tensor mode is at work, none of which allow a look at values."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return True
    return torch._C._functorch.maybe_current_level() is not None or torch._C._len_torch_dispatch_stack() > 0


def without_dim(shape: torch.Size, dim: int) -> torch.Size:
    """`shape` without the classes: the shape of class indices."""
    return torch.Size(length for d, length in enumerate(shape) if d != dim % max(len(shape), 1))


class Rows:
    """Logits and target as the formulas expect them, with the classes in dimension 1, and the way back.

    If the classes are in another dimension `dim`, everything becomes rows [M, K]. A target with one channel in place of
    the classes, [N, 1, H, W] as in segmentation libraries, holds class indices [N, H, W].
    """

    def __init__(self, logits: Tensor, target: Tensor, dim: int) -> None:
        check_logits(logits)
        check_dim(logits, class_dim(logits, dim))
        self.shape, self.dim = logits.shape, dim
        self.moved = logits.ndim > 1 and dim % logits.ndim != 1
        dim = class_dim(logits, dim)
        if target.ndim == logits.ndim > 0 and target.shape[dim] == 1 != logits.shape[dim]:
            target = target.squeeze(dim) if without_dim(target.shape, dim) == without_dim(logits.shape, dim) else target
        is_indices(logits, target, dim)
        self.logits, self.target = self.flat(logits), self.flat(target)

    def flat(self, value: Any) -> Any:
        """A tensor with one value per row, or in the shape of the logits, as rows; None stays None."""
        if value is not None and self.moved and value.shape == without_dim(self.shape, self.dim):
            return value.reshape(-1)
        return self.elements(value)

    def elements(self, value: Any) -> Any:
        """A tensor that broadcasts to the logits, as rows; None stays None."""
        if value is None or not self.moved:
            return value
        return value.expand(self.shape).movedim(self.dim, -1).reshape(-1, self.shape[self.dim])

    def back(self, loss: Tensor) -> Tensor:
        """An unreduced loss, in the shape of the logits or of their rows."""
        if not self.moved or loss.ndim == 0:
            return loss
        rows = without_dim(self.shape, self.dim)
        return loss.reshape(rows) if loss.ndim == 1 else loss.reshape(*rows, -1).movedim(-1, self.dim)


def shifted(logits: Tensor, shift: Tensor) -> Tensor:
    """`logits` with `shift` [K] added to every row, in at least fp32."""
    return full_precision(logits) + along(shift, logits, class_dim(logits))


def is_indices(logits: Tensor, target: Tensor, dim: int | None = None) -> bool:
    """Whether `target` holds class indices (one dimension fewer) and not one value per class (the same shape)."""
    if target.shape == logits.shape:
        return False
    rows = without_dim(logits.shape, class_dim(logits) if dim is None else dim)
    if target.shape != rows:
        raise ValueError(
            f"target of shape {tuple(target.shape)} does not fit logits of shape {tuple(logits.shape)}: expected class "
            f"indices {tuple(rows)} or one value per class {tuple(logits.shape)}"
        )
    if not is_integer(target):
        raise TypeError(f"target is {target.dtype}: class indices are integers, target.long()")
    return True


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.dtype == torch.bool)


def own_class(logits: Tensor, target: Tensor, ignore_index: int, loss: str) -> Tensor:
    """`one_hot` of class indices, with an arbitrary class for ignored rows; for losses whose formula singles out one
    class, which refuse any other target."""
    if not is_indices(logits, target):
        raise ValueError(
            f"{loss} is defined for one class per row, but target has the logits' shape {tuple(target.shape)}: "
            "pass class indices"
        )
    return one_hot(logits, torch.where(not_ignored(target, ignore_index), target, 0))


def as_probabilities(
    target: Tensor, logits: Tensor, ignore_index: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor | int]:
    """A target of the logits' shape as probabilities in their dtype, smoothed, and the number of rows that count.

    All rows of probabilities count, as in torch. In an integer one-hot, rows that hold `ignore_index` do not.
    """
    classes = logits.shape[class_dim(logits)]
    if 0 <= ignore_index < classes:
        raise ValueError(
            f"ignore_index is {ignore_index}, one of the {classes} classes, but a target of the logits' shape has a "
            "value for each class: pass class indices, or another ignore_index, e.g. 255"
        )
    smooth = target.to(logits.dtype)
    if smoothing:
        smooth = smooth * (1 - smoothing) + smoothing / classes
    if not is_integer(target):
        return smooth, rows_of(logits)
    counts = not_ignored(target, ignore_index).all(class_dim(logits), keepdim=True)
    return torch.where(counts, smooth, 0.0), counts.sum()


def one_hot(logits: Tensor, target: Tensor) -> Tensor:
    """Class indices as ones and zeros in the shape and dtype of `logits`."""
    dim = class_dim(logits)
    return torch.zeros_like(logits).scatter(dim, target.long().unsqueeze(dim), 1.0)


def not_ignored(target: Tensor, ignore_index: int) -> Tensor:
    """Targets that are neither ignored nor NaN. Compared in 64 bits: as uint8, −100 would be class 156.

    >>> not_ignored(torch.tensor([156, 7], dtype=torch.uint8), -100)
    tensor([True, True])
    """
    if target.is_floating_point():
        return (target == target) & (target != ignore_index)  # NaN alone differs from itself
    return target.long() != ignore_index


def pick(values: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """values[n, target[n]] for every row (0 for ignored rows), and which rows count."""
    valid = not_ignored(target, ignore_index)
    dim = class_dim(values)
    index = torch.where(valid, target, 0).long().unsqueeze(dim)
    return torch.where(valid, values.gather(dim, index).squeeze(dim), 0.0), valid


def check_reduction(reduction: str, *more: str) -> None:
    allowed = ("mean", "sum", "none", *more)
    if reduction not in allowed:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(map(repr, allowed))}")


def ratio(total: Tensor, weight: Tensor | int) -> Tensor:
    """total / weight, or 0 with zero gradient if nothing counts (an empty or wholly ignored batch)."""
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
    """Reduce the loss per row as `reduction` asks; `counted` is the denominator of the mean."""
    check_reduction(reduction)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else ratio(loss.sum(), counted)


def kernels_apply(logits: Tensor, target: Tensor, shift: Tensor) -> bool:
    """Whether kernels.py can compute the loss of `logits` [N, K] with one `shift` per class: compiled, on a GPU.

    `target` is class indices [N] or one value per class [N, K]. Anything unusual takes the general path, which also has
    the error messages.
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


@constant  # Dynamo would trace the import, and fail if it fails
def kernels_work() -> bool:
    """Whether kernels.py can be imported and used here; a compiler asks once per graph.

    Its operations have a first derivative in backward mode and no other. They cannot be used under torch.func, in
    forward mode, or where Dynamo traces calls of torch.autograd, which may need a second one.
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


def called_by(package: str) -> bool:
    """Whether the function that asks was called from a module of `package`."""
    return str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0] == package


class PriorModule(nn.Module):
    """A loss that holds vectors of the prior as buffers, which stay the same bit for bit.

    They move with the module between devices and into its `state_dict`, but `.half()` and `.to(torch.bfloat16)` do not
    change their dtype: half precision is too coarse for log(65,505).
    """

    _kept: Mapping[str, Tensor] = MappingProxyType({})  # the values of buffers that are on the meta device now
    _lost: tuple[str, ...] = ()  # buffers that came from there without values

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get("_buffers", {}).get(name)
        if isinstance(held, Tensor) and isinstance(value, Tensor) and called_by("transformers"):
            value = self._loaded(name, held, value)
        super().__setattr__(name, value)

    def _loaded(self, name: str, held: Tensor, given: Tensor) -> Tensor:
        """What a buffer becomes when transformers' `from_pretrained` assigns to it.

        Values from the checkpoint are marked. Anything else is uninitialised memory, for a buffer that the checkpoint
        does not have; the buffer then keeps the values that the module was built with.
        """
        if getattr(given, "_is_hf_initialized", False):
            return given
        if held.is_meta:
            self._lost = (*self._lost, name)
            return given
        return held.to(given.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is None or moved is None or moved is buffer:
                continue
            source = self._kept.get(name, buffer) if buffer.is_meta else buffer
            if source.is_meta and not moved.is_meta:
                self._lost = (*self._lost, name)
                continue
            if moved.is_meta:
                self._kept = {**self._kept, name: source}
            self._buffers[name] = source.to(moved.device)  # not `moved`: to_empty and half() change values
        return self

    def check_values(self) -> None:
        """Refuse to compute with uninitialised memory."""
        if self._lost:
            raise RuntimeError(
                f"{', '.join(self._lost)} of this {type(self).__name__} came from the meta device without values: load "
                "a state dict that holds them, or build the module from its prior outside of the meta device"
            )

    def extra_repr(self) -> str:
        options = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"}
        sizes = [f"num_classes={len(b)}" for b in self._buffers.values() if b is not None and b.ndim == 1][:1]
        return ", ".join(sizes + [f"{k}={v!r}" for k, v in options.items()])


class Loss(PriorModule):
    """Abstract: a loss that keeps its options as attributes."""

    reductions: tuple[str, ...] = ()  # beside torch's
    grown: tuple[str, ...] = ()  # buffers that training changes: a checkpoint may differ in them
    ignore_index: int
    reduction: str
    dim: int = 1  # of the classes
    logits_mean: Literal["train", "uniform"] = "train"  # the prior that logits mean after training with this loss
    _saved: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType({})  # buffers in a state dict, and copies of them

    def __init__(self, **options: Any) -> None:
        super().__init__()
        check_reduction(options["reduction"], *self.reductions)
        for name, value in options.items():
            setattr(self, name, value)

    def common(self, logits: Tensor) -> dict[str, Any]:
        """The options that every loss function takes."""
        self.follow(logits)
        return {"ignore_index": self.ignore_index, "reduction": self.reduction, "dim": self.dim}

    def follow(self, logits: Tensor) -> None:
        """Move the buffers to the device of the logits once, as the functions would do at every call."""
        self.check_values()
        if is_traced() or type(logits) is not Tensor or logits.is_meta:
            return
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.device != logits.device:
                self._buffers[name] = buffer.to(logits.device)

    def _save_to_state_dict(self, *args: Any) -> None:
        super()._save_to_state_dict(*args)
        # torch.distributed.checkpoint loads into these tensors themselves, before load_state_dict sees them
        self._saved = {name: (b, b.clone()) for name, b in self._buffers.items() if b is not None}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        loaded = {name: b for name, b in self._buffers.items() if b is not None and prefix + name in state_dict}
        of_prior = {name: b for name, b in loaded.items() if name not in (*self._lost, *self.grown)}
        before = {name: self._built(name, b) for name, b in of_prior.items() if not b.is_meta}
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._lost, self._saved = tuple(name for name in self._lost if name not in loaded), {}
        for name, old in before.items():
            new = self._buffers[name]
            if new is not None and new.shape == old.shape and not new.is_meta:
                self._warn_of_another(prefix + name, old.cpu().reshape(-1), new.cpu().reshape(-1))

    def _built(self, name: str, buffer: Tensor) -> Tensor:
        """A copy of the buffer as it was before anything was loaded."""
        saved, copy = self._saved.get(name, (None, buffer))
        return copy if saved is buffer else buffer.clone()

    def _loaded(self, name: str, held: Tensor, given: Tensor) -> Tensor:
        found = super()._loaded(name, held, given)
        if found is given and not held.is_meta and name not in self.grown and found.shape == held.shape:
            self._warn_of_another(name, held.cpu().reshape(-1), found.cpu().reshape(-1))
        return found

    def _warn_of_another(self, name: str, old: Tensor, new: Tensor) -> None:
        """Warn if a checkpoint comes from a run with another prior; it is loaded all the same, as torch does."""
        differ = (~torch.isclose(new.double(), old.double(), rtol=1e-5, atol=1e-6)).nonzero().flatten().tolist()
        if differ:
            shown = ", ".join(f"class {j}: {new[j].item():.4g}, was {old[j].item():.4g}" for j in differ[:3])
            warnings.warn(
                f"the state dict replaces {name} of this {type(self).__name__}, which was built from another prior: "
                f"{len(differ)} of {len(old)} classes differ ({shown}{', ...' if len(differ) > 3 else ''}); "
                f"to keep the prior of this loss, load without that key",
                stacklevel=outside(),
            )


class SoftmaxLoss(Loss):
    """A loss after which the softmax of the logits are probabilities."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """What `logits` [N, K, ...] mean after training with this loss: the same shape, at least fp32."""
        return full_precision(logits).softmax(class_dim(logits, self.dim))


class SigmoidLoss(Loss):
    """A loss after which the sigmoid of each logit is a probability."""

    reductions = ("batchmean",)

    def probabilities(self, logits: Tensor) -> Tensor:
        """What `logits` [N, K, ...] mean after training with this loss: the same shape, at least fp32."""
        return full_precision(logits).sigmoid()
