"""The fold: a balanced loss at the cost of K additions.

    (W x + b) + s  =  W x + (b + s)        s: the shift of the prior, [K]

A balanced loss is the plain loss of shifted logits, and a linear head can add the shift to its bias, without any pass
over the [N, K] logits. The head does so in training mode only, and its stored bias stays unshifted: weight decay, the
optimiser and checkpoints see the same parameters as before, and `model.eval()` predicts without the shift. For
convolutions and subclasses of `nn.Linear`, whose forward may do anything, the shift is added to the outputs instead.

    model = fold_prior(model, prior)       then train with the plain F.cross_entropy
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.losses.balanced_sigmoid import Rate
from equipoise.losses.shared import PriorModule, along
from equipoise.prior import PriorLike, as_prior, sigmoid_shift, softmax_shift

Module = TypeVar("Module", bound=nn.Module)
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class BalancedLinear(PriorModule, nn.Linear):
    """An `nn.Linear` that adds a shift to its bias in training mode. `fold_prior` turns an existing head into one.

    The shift is an fp32 buffer that is not saved: a checkpoint equals that of the plain layer, and loads into one.
    """

    shift: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return F.linear(input, self.weight, self.bias)
        self.check_values()
        bias = self.shift if self.bias is None else self.bias + self.shift
        return F.linear(input, self.weight, bias.to(self.weight.dtype))

    def extra_repr(self) -> str:
        return nn.Linear.extra_repr(self)


class OutputShift(PriorModule):
    """The shift of a head that is not a plain `nn.Linear`: added to its outputs in training mode, and not saved
    either."""

    shift: Tensor

    def __init__(self, shift: Tensor, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        if not self.training:
            return logits
        self.check_values()
        return logits + along(self.shift, logits, self.dim).to(logits.dtype)


def fold_prior(model: Module, prior: PriorLike, *, tau: float = 1.0, head: str | None = None) -> Module:
    """Balanced Softmax inside the head: `F.cross_entropy(model(x), y)` is then the balanced loss. Returns `model`.

    `model` is the head itself, an `nn.Linear`, or a model with exactly one `nn.Linear` (or, if it has none, one 1×1
    convolution) with as many outputs as the prior has classes. Otherwise pass `head`, its name or that of the part of
    the model that holds it, as in `model.named_modules()`: head="classifier". The layer is changed in place; fold again
    to change the prior, and call `unfold_prior` to undo. The loss must be the plain one. In training mode the model's
    outputs are shifted, so evaluate it after `model.eval()`.

    >>> model = fold_prior(torch.nn.Linear(3, 2), eq.Prior.from_counts([900, 100]))
    >>> features = torch.randn(4, 3)
    >>> shift = model(features) - model.eval()(features)
    >>> torch.allclose(shift, torch.tensor([1.8, 0.2]).log(), atol=1e-6)
    True
    """
    return _fold(model, softmax_shift(prior, tau=tau), as_prior(prior).num_classes, head)


def fold_sigmoid_prior(model: Module, prior: PriorLike, *, target_rate: Rate = None, head: str | None = None) -> Module:
    """Balanced Sigmoid inside the head: `F.binary_cross_entropy_with_logits(model(x), y)` is then the balanced loss.

    Works like `fold_prior`. Every row is shifted; for a detector, whose background rows must not be shifted, use
    `BalancedSigmoidLoss`.

    >>> model = fold_sigmoid_prior(torch.nn.Linear(3, 2, bias=False), eq.Prior.from_counts([9, 1]), target_rate=0.5)
    >>> model(torch.zeros(3)).sigmoid()
    tensor([0.9000, 0.1000], grad_fn=<SigmoidBackward0>)
    """
    return _fold(model, sigmoid_shift(prior, target_rate), as_prior(prior).num_classes, head)


def unfold_prior(model: Module) -> Module:
    """Turn every folded head of `model` back into what it was. Returns `model`.

    >>> unfold_prior(fold_prior(torch.nn.Linear(3, 2), [0.9, 0.1]))
    Linear(in_features=3, out_features=2, bias=True)
    """
    for module in list(model.modules()):
        if type(module) is BalancedLinear:
            del module.shift
            module.__class__ = nn.Linear  # type: ignore[assignment]
        elif isinstance(getattr(module, "output_shift", None), OutputShift):
            del module.output_shift
            for key in [key for key, hook in module._forward_hooks.items() if hook is _shift_outputs]:
                del module._forward_hooks[key]
    return model


def is_folded(model: nn.Module) -> bool:
    """Whether a head of `model` holds a prior."""
    return any(isinstance(module, BalancedLinear | OutputShift) for module in model.modules())


def _shift_outputs(module: nn.Module, _: Any, outputs: Tensor) -> Any:
    return module.get_submodule("output_shift")(outputs)


def _fold(model: Module, shift: Tensor, num_classes: int, name: str | None) -> Module:
    head = _head(_part(model, name), num_classes, "" if name is None else f"{name}.")
    if head.weight.is_meta:
        raise ValueError("the head is on the meta device and would lose the shift: load its weights first, then fold")
    shift = shift.to(head.weight.device)
    # Changed in place, like torch's own parametrisations: model, optimiser and hooks keep the layer they know.
    if type(head) is nn.Linear or type(head) is BalancedLinear:
        head.__class__ = BalancedLinear
        head.register_buffer("shift", shift, persistent=False)
        return model
    unfold_prior(head)
    head.output_shift = OutputShift(shift, -1 if isinstance(head, nn.Linear) else -1 - len(head.kernel_size))
    head.output_shift.train(head.training)
    head.register_forward_hook(_shift_outputs, prepend=True)  # first: earlier hooks see shifted logits too
    return model


def _part(model: nn.Module, name: str | None) -> nn.Module:
    try:
        return model if name is None else model.get_submodule(name)
    except AttributeError as error:
        last = [found for found, module in model.named_modules() if isinstance(module, nn.Linear)][-3:]
        raise ValueError(f"the model has no {name!r}: its last nn.Linear are {', '.join(last) or 'none'}") from error


def _head(model: nn.Module, num_classes: int, where: str) -> nn.Linear | Convolution:
    """The one layer with this many outputs: an `nn.Linear`, else a 1×1 convolution (of any size if it is `model`
    itself)."""
    layers: dict[str, nn.Linear | Convolution] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
            continue  # part of attention, which uses its weight without calling it
        pointwise = isinstance(module, Convolution) and (set(module.kernel_size) == {1} or module is model)
        if isinstance(module, nn.Linear) or pointwise:
            layers[(where + name).rstrip(".")] = module
    fitting = {name: layer for name, layer in layers.items() if _outputs(layer) == num_classes}
    if any(isinstance(layer, nn.Linear) for layer in fitting.values()):
        fitting = {name: layer for name, layer in fitting.items() if isinstance(layer, nn.Linear)}
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if fitting:
        raise ValueError(
            f"{len(fitting)} layers have {num_classes} outputs ({', '.join(fitting)}): name the head, "
            f"fold_prior(model, prior, head={list(fitting)[-1]!r}), or fold one after the other if there are several"
        )
    last = list(layers.items())[-3:]
    found = ", ".join(f"{name or 'the model itself'} with {_outputs(layer)}" for name, layer in last)
    raise ValueError(
        f"the prior has {num_classes} classes, but no nn.Linear or 1×1 convolution of this {type(model).__name__} has "
        f"as many outputs ({found or 'it has none'}): build the prior with the model's num_classes, or use "
        "BalancedSoftmaxLoss"
    )


def _outputs(layer: nn.Linear | Convolution) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
