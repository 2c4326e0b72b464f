"""Networks by name, and their weights from files: what is not there, or does not fit, is named."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from equipoise.models.classifiers import make_backbone
from equipoise.models.weights import stride_by_name


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


def small_state(scale: float = 1.0) -> dict[str, torch.Tensor]:
    """The state of the smallest network of ours, times a factor."""
    network, _ = make_backbone("cifar_resnet20", 32)
    return {name: value * scale if value.is_floating_point() else value for name, value in network.state_dict().items()}


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "model_ema", "state_dict_ema"])
def test_a_checkpoint_in_a_wrapper_is_opened_and_the_log_names_what_was_taken(key: str, tmp_path: Path) -> None:
    state, path, told = small_state(), tmp_path / "checkpoint.pth", list[str]()
    torch.save({"epoch": 3, key: state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}, path)
    network, _ = make_backbone("cifar_resnet20", 32, path, log=told.append)
    assert torch.equal(network.state_dict()["conv.weight"], state["conv.weight"])
    assert told == [f"{path}: took {key} out of epoch, {key}, optimizer"]


def test_of_two_models_in_a_checkpoint_the_moving_average_is_taken_unless_it_is_empty(tmp_path: Path) -> None:
    plain, averaged = small_state(1.0), small_state(2.0)
    shifted = {f"module.{name}": value for name, value in averaged.items()}
    torch.save({"model": plain, "model_ema": shifted | {"n_averaged": torch.tensor(5)}}, tmp_path / "both.pth")
    network, _ = make_backbone("cifar_resnet20", 32, tmp_path / "both.pth")
    assert torch.equal(network.state_dict()["conv.weight"], averaged["conv.weight"])
    torch.save({"model": plain, "model_ema": {}}, tmp_path / "one.pth")
    network, _ = make_backbone("cifar_resnet20", 32, tmp_path / "one.pth")
    assert torch.equal(network.state_dict()["conv.weight"], plain["conv.weight"])


@pytest.mark.parametrize("prefix", ["module.", "backbone.", "module.encoder."])
def test_a_prefix_that_all_tensors_share_is_dropped_if_the_rest_fits(prefix: str, tmp_path: Path) -> None:
    path, told = tmp_path / "prefixed.pth", list[str]()
    state = {f"{prefix}{name}": value for name, value in small_state().items()}
    torch.save(state, path)
    network, _ = make_backbone("cifar_resnet20", 32, path, log=told.append)
    assert torch.equal(network.state_dict()["conv.weight"], state[f"{prefix}conv.weight"])
    assert told == [f"{path}: took the tensors without their prefix {prefix}"]
    torch.save(state | {"projection.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ValueError, match=r"lacks \d+ tensors \("):
        make_backbone("cifar_resnet20", 32, path)
    torch.save({name: value for name, value in state.items() if "blocks.0.conv1" not in name}, path)
    with pytest.raises(ValueError, match=r"lacks \d+ tensors \("):
        make_backbone("cifar_resnet20", 32, path)


def test_a_checkpoint_with_objects_is_refused_in_one_message_and_nothing_of_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save({"model": small_state(), "args": argparse.Namespace(lr=0.1)}, path)
    message = r"holds Python objects besides tensors \(argparse\.Namespace\), and reading them could run code"
    with pytest.raises(ValueError, match=message):
        make_backbone("cifar_resnet20", 32, path)
    for content in ({"weights": small_state()}, {}, [1, 2], {1: torch.zeros(2)}):
        torch.save(content, path)
        with pytest.raises(ValueError, match="does not hold tensors by name, at the top or as state_dict_ema, "):
            make_backbone("cifar_resnet20", 32, path)


def test_a_published_small_stem_is_refused_as_its_stride_is_not_known(tmp_path: Path) -> None:
    """Only a run of this library is known to have our small stem."""
    pytest.importorskip("torchvision")
    network, _ = make_backbone("resnet18", 32)
    torch.save(network.state_dict(), tmp_path / "resnet18.pth")
    with pytest.raises(ValueError, match=re.escape("conv1.weight has shape (64, 3, 3, 3)")):
        make_backbone("resnet18", 32, tmp_path / "resnet18.pth")


def test_the_note_of_a_run_tells_its_stride(tmp_path: Path) -> None:
    file = tmp_path / "msra" / "model.safetensors"
    file.parent.mkdir()
    found = [stride_by_name(file)]
    for stride in ("1x1", None):
        (file.parent / "model.json").write_text(json.dumps({"model": "resnet50", "stride": stride}))
        found.append(stride_by_name(file))
    assert found == ["3x3", "1x1", "3x3"]
    assert stride_by_name(file.with_name("msra.pth")) == "1x1"
