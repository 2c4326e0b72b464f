"""Our optimisers are torch's, with the rate on the device."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from equipoise.training.optimizers import Optimizer
from equipoise.training.recipe import Recipe


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_ten_steps_equal_torchs(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).double()
    twin = copy.deepcopy(model)
    recipe = replace(Recipe(), optimizer=kind, nesterov=True, weight_decay=0.1)
    ours = Optimizer(list(model.parameters()), recipe)
    if kind == "sgd":
        theirs: torch.optim.Optimizer = torch.optim.SGD(
            twin.parameters(), 0.1, recipe.momentum, weight_decay=0.1, nesterov=True
        )
    else:
        decayed = [p for p in twin.parameters() if p.ndim > 1]
        rest = [p for p in twin.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        theirs = torch.optim.AdamW(groups, 0.1)
    for step in range(10):
        rate = 0.1 / (step + 1)
        x = torch.randn(4, 5, dtype=torch.float64)
        gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        ours.step(gradients, torch.tensor([rate], dtype=torch.float64))
        theirs.zero_grad()
        twin(x).square().mean().backward()
        for group in theirs.param_groups:
            group["lr"] = rate
        theirs.step()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


def test_the_state_is_everything_that_it_remembers() -> None:
    parameters = [torch.ones(2, 2), torch.ones(2)]
    recipe = replace(Recipe(), optimizer="adamw")
    first = Optimizer([p.clone() for p in parameters], recipe)
    gradients = tuple(torch.full_like(p, 0.3) for p in parameters)
    first.step(gradients, torch.tensor([0.1]))
    again = Optimizer([p.clone() for p in first.parameters], recipe)
    for own, saved in zip(again.state, first.state, strict=True):
        own.copy_(saved)
    for one in (first, again):
        one.step(gradients, torch.tensor([0.1]))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, again.parameters, strict=True))
