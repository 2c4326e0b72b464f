"""Networks by name, and their weights from files: what is not there, or does not fit, is named."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from equipoise.models.classifiers import make_backbone


@pytest.mark.parametrize(("library", "extra"), [("torchvision", "train"), ("timm", "timm")])
def test_a_name_that_is_not_found_says_which_library_is_missing(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf"{library} is not installed: pip install 'equipoise\[{extra}\]'"):
        make_backbone("no_such_network", 32)


def saved(path: Path, name: str, without: str = " ") -> Path:
    """The state of a torchvision network in a file, except the tensors whose names have `without` in them."""
    models = pytest.importorskip("torchvision.models")
    state = models.get_model(name, num_classes=7).state_dict()
    torch.save({key: value for key, value in state.items() if without not in key}, path)
    return path


def test_weights_with_layers_that_the_network_lacks_are_refused_with_their_names(tmp_path: Path) -> None:
    """A ResNet-34 has all the layers of a ResNet-18, at the same shapes, and sixteen blocks instead of eight."""
    with pytest.raises(
        ValueError, match=r"has 80 tensors \(layer1\.2\.bn1\.bias, .* and 76 more\) that this network lacks"
    ):
        make_backbone("resnet18", 32, saved(tmp_path / "resnet34.pth", "resnet34"))


def test_layers_that_the_file_lacks_are_named(tmp_path: Path) -> None:
    missing = "lacks 1 tensor (layer3.0.conv1.weight) of this network"
    with pytest.raises(ValueError, match=re.escape(missing)):
        make_backbone("resnet18", 32, saved(tmp_path / "part.pth", "resnet18", "layer3.0.conv1"))


@pytest.mark.parametrize("without", [" ", "fc."])
def test_the_last_layer_of_a_file_may_have_any_shape_or_be_absent(without: str, tmp_path: Path) -> None:
    network, width = make_backbone("resnet18", 32, saved(tmp_path / "resnet18.pth", "resnet18", without))
    stored = torch.load(tmp_path / "resnet18.pth", weights_only=True)
    assert width == 512
    assert torch.equal(network.state_dict()["layer4.1.conv2.weight"], stored["layer4.1.conv2.weight"])
