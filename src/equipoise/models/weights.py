"""Network weights from files: read without running code, and loaded only if every layer fits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Stride = Literal["1x1", "3x3"] | None


def check_stride(stride: str | None) -> None:
    """Refuse anything but a place for a stride."""
    if stride not in (None, "1x1", "3x3"):
        raise ValueError(f"--stride {stride}: expected 1x1 or 3x3, the convolutions that have it")


def stride_by_name(weights: str | os.PathLike[str] | None) -> Literal["1x1", "3x3"]:
    """Where a weights file's network has its stride, as far as the file's name tells.

    >>> stride_by_name("resnet50_msra.pth"), stride_by_name("resnet50.pth")
    ('1x1', '3x3')
    """
    original = weights is not None and any(word in Path(weights).name.lower() for word in ("msra", "caffe"))
    return "1x1" if original else "3x3"


def move_stride(resnet: Any) -> None:
    """Let the bottlenecks of a ResNet halve the picture in their first 1×1 convolution, as the original networks do."""
    for layer in (resnet.layer2, resnet.layer3, resnet.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)


def load_backbone(body: nn.Module, path: Path) -> None:
    """Load a ResNet's weights from a file of any float type; a classifier (fc) in the file is ignored."""
    fill(body, read_tensors(path), path, without="fc.")


def fill(network: nn.Module, tensors: Mapping[str, Tensor], path: Path, without: str = "") -> None:
    """Load tensors into a network, except layers that start with `without`; an error names what does not fit."""
    given, own = _floats(tensors, without), _floats(network.state_dict(), without)
    if missing := sorted(own.keys() - given.keys()):
        raise ValueError(f"{path} lacks {_named(missing)} of this network")
    if wrong := next((name for name in own if given[name].shape != own[name].shape), None):
        raise ValueError(
            f"{path}: {wrong} has shape {tuple(given[wrong].shape)}, this network's has {tuple(own[wrong].shape)}"
        )
    if extra := sorted(given.keys() - own.keys()):
        raise ValueError(f"{path} has {_named(extra)} that this network lacks: is it a file of another network?")
    network.load_state_dict({name: given[name] for name in own}, strict=False)


def _floats(tensors: Mapping[str, Tensor], without: str) -> dict[str, Tensor]:
    """The tensors of real numbers, as fp32, except layers that start with `without`."""
    return {
        name: value.float()
        for name, value in tensors.items()
        if value.is_floating_point() and not (without and name.startswith(without))
    }


def _named(tensors: Sequence[str], most: int = 4) -> str:
    """How many tensors there are, and the names of the first.

    >>> _named(["fc.bias"]), _named(["a", "b", "c"], most=2)
    ('1 tensor (fc.bias)', '3 tensors (a, b and 1 more)')
    """
    more = f" and {len(tensors) - most} more" if len(tensors) > most else ""
    return f"{len(tensors)} tensor{'s' * (len(tensors) != 1)} ({', '.join(tensors[:most])}{more})"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a torch file that holds nothing else."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no weights file {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:  # both libraries raise many kinds of errors for a damaged file
        raise ValueError(f"{path} cannot be read as tensors ({type(error).__name__}): is it damaged?") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} does not hold tensors by name: save a state_dict")
    return dict(content)
