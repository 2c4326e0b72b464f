"""Optimisers as functions of lists of tensors: nothing is read from the device, so a CUDA graph can hold a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.training.recipe import Recipe

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of AdamW


class Optimizer:
    """SGD with momentum, or AdamW, for `parameters`; `state` is everything it remembers."""

    def __init__(self, parameters: Sequence[Tensor], recipe: Recipe) -> None:
        self.parameters, self.recipe = list(parameters), recipe
        moments = 1 if recipe.optimizer == "sgd" else 2
        self.state = [torch.zeros_like(parameter) for _ in range(moments) for parameter in parameters]
        if recipe.optimizer == "adamw" and self.parameters:
            self.state.append(self.parameters[0].new_zeros(()))  # steps

    def step(self, gradients: tuple[Tensor, ...], rate: Tensor) -> None:
        """Update the parameters, with a learning rate that is on their device."""
        if self.recipe.optimizer == "sgd":
            sgd_(self.parameters, gradients, self.state, rate, self.recipe)
        else:
            number = len(self.parameters)
            first, second, steps = self.state[:number], self.state[number:-1], self.state[-1]
            adamw_(self.parameters, gradients, first, second, steps, rate, self.recipe.weight_decay)


@torch.no_grad()
def clipped(gradients: tuple[Tensor, ...], most: float) -> tuple[Tensor, ...]:
    """The gradients, scaled down if their norm over all parameters is above `most`, as in torch's `clip_grad_norm_`.

    >>> clipped((torch.tensor([3.0]), torch.tensor([4.0])), 1.0)
    (tensor([0.6000]), tensor([0.8000]))
    """
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return tuple(torch._foreach_mul(gradients, (most / (norm + 1e-6)).clamp(max=1.0)))


@torch.no_grad()
def climb_(parameters: list[Tensor], gradients: tuple[Tensor, ...], distance: float) -> None:
    """Move the parameters by `distance` in the direction of their gradients, for sharpness-aware minimisation.

    Reference: Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", 2021.

    >>> weights = [torch.zeros(1), torch.zeros(1)]
    >>> climb_(weights, (torch.tensor([3.0]), torch.tensor([4.0])), 0.1)
    >>> weights
    [tensor([0.0600]), tensor([0.0800])]
    """
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_add_(parameters, torch._foreach_mul(gradients, distance / (norm + 1e-12)))


@torch.no_grad()
def sgd_(
    parameters: list[Tensor],
    gradients: tuple[Tensor, ...],
    velocity: list[Tensor],
    rate: Tensor,
    recipe: Recipe,
) -> None:
    """SGD with momentum and weight decay on every parameter, as torch.optim.SGD; the rate is read from the device.

    v ← μ v + g + λ p;   p ← p − rate · v   (with Nesterov: p ← p − rate · (g + λ p + μ v))
    """
    decayed = torch._foreach_add(gradients, parameters, alpha=recipe.weight_decay)
    torch._foreach_mul_(velocity, recipe.momentum)
    torch._foreach_add_(velocity, decayed)
    change = torch._foreach_add(decayed, velocity, alpha=recipe.momentum) if recipe.nesterov else tuple(velocity)
    torch._foreach_add_(parameters, torch._foreach_mul(change, -rate.view(())))


@torch.no_grad()
def adamw_(
    parameters: list[Tensor],
    gradients: tuple[Tensor, ...],
    first: list[Tensor],
    second: list[Tensor],
    steps: Tensor,
    rate: Tensor,
    weight_decay: float,
) -> None:
    """AdamW as torch.optim.AdamW; weights decay, biases and the parameters of normalisation layers do not.

    m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²;   p ← p − rate · (m̂ / (√v̂ + ε) + λ p)
    """
    steps += 1
    decaying = [parameter for parameter in parameters if parameter.ndim > 1]
    torch._foreach_mul_(decaying, 1 - rate.view(()) * weight_decay)
    torch._foreach_lerp_(first, list(gradients), 1 - BETAS[0])
    torch._foreach_mul_(second, BETAS[1])
    torch._foreach_addcmul_(second, list(gradients), list(gradients), 1 - BETAS[1])
    corrections = [1 - torch.pow(beta, steps) for beta in BETAS]
    spread = torch._foreach_sqrt(torch._foreach_div(second, corrections[1]))
    torch._foreach_add_(spread, EPSILON)
    change = torch._foreach_div(first, spread)
    torch._foreach_mul_(change, -rate.view(()) / corrections[0])
    torch._foreach_add_(parameters, change)
