"""Models that return more than logits are served by saying where the logits are."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq


class Model(nn.Module):
    """Returns its logits inside of something."""

    def __init__(self, form: str = "object") -> None:
        super().__init__()
        self.head, self.form = nn.Linear(4, 2), form

    def forward(self, x: Tensor) -> Any:
        logits = self.head(x)
        forms = {"object": SimpleNamespace(logits=logits), "tuple": (x, logits), "mapping": OrderedDict(logits=logits)}
        return forms[self.form]


WAYS: list[tuple[str, Any]] = [("object", "logits"), ("mapping", "logits"), ("tuple", 1), ("tuple", lambda out: out[1])]


@pytest.mark.parametrize(("form", "output"), WAYS)
def test_the_logits_are_found_and_corrected(form: str, output: Any) -> None:
    model, x = Model(form), torch.randn(3, 4)
    expected = eq.adjust_logits(model.head(x), source=[0.9, 0.1])
    assert torch.equal(eq.Rebalanced(model, source=[0.9, 0.1], output=output)(x), expected)
    rates = eq.RebalancedSigmoid(model, source=0.1, target_rate=0.5, output=output)(x)
    assert torch.equal(rates, eq.adjust_sigmoid_logits(model.head(x), source=0.1, target_rate=0.5))


def test_a_checkpoint_has_the_names_of_the_model_and_comes_back(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    served = eq.Rebalanced(Model(), source=[0.9, 0.1], output="logits")
    served.save(tmp_path / "model.safetensors")
    assert sorted(safetensors.load_file(tmp_path / "model.safetensors")) == ["head.bias", "head.weight"]
    again, x = eq.Rebalanced.load(tmp_path / "model.safetensors", Model(), output="logits"), torch.randn(3, 4)
    assert torch.equal(again(x), served(x))


def test_without_it_the_error_says_how() -> None:
    with pytest.raises(TypeError, match="output='logits'"):
        eq.Rebalanced(Model(), source=[0.9, 0.1])(torch.randn(3, 4))


def test_the_correction_is_folded_into_the_head_that_gives_the_logits() -> None:
    served = eq.Rebalanced(Model("mapping").eval(), source=[0.9, 0.1], output="logits")
    x = torch.randn(3, 4)
    folded = eq.fold_correction(served, x)
    assert not any(isinstance(module, eq.Rebalanced) for module in folded.modules())
    torch.testing.assert_close(folded(x), served(x))
