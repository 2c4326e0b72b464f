"""The fold: a balanced loss for the price of K additions.

    (W x + b) + s  =  W x + (b + s)        s: the shift of the prior, [K]

A balanced loss is the plain loss of shifted logits, and a linear head can add the shift to its bias: no pass over the
[N, K] logits at all. The head does so in training mode only, and its stored bias stays unshifted: weight decay, the
optimiser and checkpoints see the parameters they always saw, and `model.eval()` predicts without the shift.

    model = fold_prior(model, prior)       then train with the plain F.cross_entropy
"""

from __future__ import annotations

from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.losses.balanced_sigmoid import Rate
from equipoise.losses.shared import PriorModule
from equipoise.prior import PriorLike, as_prior, sigmoid_shift, softmax_shift

Module = TypeVar("Module", bound=nn.Module)


class BalancedLinear(PriorModule, nn.Linear):
    """An `nn.Linear` that adds a shift to its bias in training mode. `fold_prior` makes one of a head that exists.

    The shift is an fp32 buffer that is not saved: a checkpoint is that of the plain layer, and loads into one.
    """

    shift: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return F.linear(input, self.weight, self.bias)
        bias = self.shift if self.bias is None else self.bias + self.shift
        return F.linear(input, self.weight, bias.to(self.weight.dtype))

    def extra_repr(self) -> str:
        return nn.Linear.extra_repr(self)


def fold_prior(model: Module, prior: PriorLike, *, tau: float = 1.0) -> Module:
    """Balanced Softmax inside the head: `F.cross_entropy(model(x), y)` is then the balanced loss. Returns `model`.

    `model` is the head itself, an `nn.Linear`, or a model with exactly one `nn.Linear` of as many outputs as the prior
    has classes. The layer is changed in place; fold again to change the prior, `unfold_prior` to undo. The loss must be
    the plain one, and what a model says in training mode is shifted: judge it after `model.eval()`.

    >>> model = fold_prior(torch.nn.Linear(3, 2), eq.Prior.from_counts([900, 100]))
    >>> features = torch.randn(4, 3)
    >>> shift = model(features) - model.eval()(features)
    >>> torch.allclose(shift, torch.tensor([1.8, 0.2]).log(), atol=1e-6)
    True
    """
    return _fold(model, softmax_shift(prior, tau=tau), as_prior(prior).num_classes)


def fold_sigmoid_prior(model: Module, prior: PriorLike, *, target_rate: Rate = None) -> Module:
    """Balanced Sigmoid inside the head: `F.binary_cross_entropy_with_logits(model(x), y)` is then the balanced loss.

    As `fold_prior`; every row is shifted, so a detector whose background rows must not be takes `BalancedSigmoidLoss`.

    >>> model = fold_sigmoid_prior(torch.nn.Linear(3, 2, bias=False), eq.Prior.from_counts([9, 1]), target_rate=0.5)
    >>> model(torch.zeros(3)).sigmoid()
    tensor([0.9000, 0.1000], grad_fn=<SigmoidBackward0>)
    """
    return _fold(model, sigmoid_shift(prior, target_rate), as_prior(prior).num_classes)


def unfold_prior(model: Module) -> Module:
    """Make every folded head of `model` the plain `nn.Linear` that it was. Returns `model`.

    >>> unfold_prior(fold_prior(torch.nn.Linear(3, 2), [0.9, 0.1]))
    Linear(in_features=3, out_features=2, bias=True)
    """
    for module in model.modules():
        if type(module) is BalancedLinear:
            del module.shift
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return model


def _fold(model: Module, shift: Tensor, num_classes: int) -> Module:
    head = _head(model, num_classes)
    if head.weight.is_meta:
        raise ValueError("the head is on the meta device and would lose the shift: load its weights first, then fold")
    # Changed in place, as torch's own parametrisations are: model, optimiser and hooks keep the layer that they know.
    head.__class__ = BalancedLinear
    head.register_buffer("shift", shift.to(head.weight.device), persistent=False)
    return model


def _head(model: nn.Module, num_classes: int) -> nn.Linear:
    linear: dict[str, nn.Linear] = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear or type(module) is BalancedLinear:
            linear[name] = module
    fitting = {name: m for name, m in linear.items() if m.out_features == num_classes}
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if fitting:
        raise ValueError(
            f"{len(fitting)} linear layers have {num_classes} outputs ({', '.join(fitting)}): fold the head itself, "
            f"fold_prior(model.{list(fitting)[-1]}, prior)"
        )
    found = ", ".join(f"{name or 'the model itself'} with {m.out_features}" for name, m in list(linear.items())[-3:])
    raise ValueError(
        f"the prior has {num_classes} classes, but no nn.Linear of this {type(model).__name__} has as many outputs "
        f"({found or 'it has none'}): build the prior with the model's num_classes, or use BalancedSoftmaxLoss"
    )
