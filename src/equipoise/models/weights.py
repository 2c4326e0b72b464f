"""Network weights from files: read without running code, and loaded only if every layer fits."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from equipoise.data.reading import read_json, shown

Stride = Literal["1x1", "3x3"] | None
Log = Callable[[str], None]
OF_A_RUN = "classifier.backbone."  # how the backbone's names start in a file that `equipoise train` wrote
MODEL, NETWORK = "model.safetensors", "model.json"  # such a file, and the note beside it of the network
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")  # the first that there is counts


def silent(text: str) -> None:
    """A log that keeps nothing."""


def check_stride(stride: str | None) -> None:
    """Refuse anything but a place for a stride."""
    if stride not in (None, "1x1", "3x3"):
        raise ValueError(f"--stride {stride}: expected 1x1 or 3x3, the convolutions that have it")


def stride_by_name(weights: str | os.PathLike[str] | None) -> Literal["1x1", "3x3"]:
    """Where a weights file's network has its stride: as the note of a run beside it says, or as its name suggests.

    >>> stride_by_name("resnet50_msra.pth"), stride_by_name("resnet50.pth")
    ('1x1', '3x3')
    """
    if weights is None:
        return "3x3"
    path = Path(weights)
    if path.name == MODEL and (note := path.with_name(NETWORK)).is_file():
        content = read_json(note)
        return "1x1" if isinstance(content, dict) and content.get("stride") == "1x1" else "3x3"
    original = any(word in path.name.lower() for word in ("msra", "caffe"))
    return "1x1" if original else "3x3"


def move_stride(resnet: Any) -> None:
    """Let the bottlenecks of a ResNet halve the picture in their first 1×1 convolution, as the original networks do."""
    for layer in (resnet.layer2, resnet.layer3, resnet.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)


def load_backbone(body: nn.Module, path: Path) -> None:
    """Load a ResNet's weights from a file of any float type; a classifier (fc) in the file is ignored."""
    fill(body, read_backbone(path)[0], path, without="fc.")


def fill(network: nn.Module, tensors: Mapping[str, Tensor], path: Path, without: str = "", log: Log = silent) -> None:
    """Load tensors into a network, except layers that start with `without`; an error names what does not fit.

    A prefix that all tensors share, such as "module.", is dropped if the network's names are found without it.
    """
    own = _floats(network.state_dict(), without)
    prefix = _extra_prefix([name for name, value in tensors.items() if value.is_floating_point()], own)
    if prefix:
        log(f"{path}: took the tensors without their prefix {prefix}")
    given = _floats({name.removeprefix(prefix): value for name, value in tensors.items()}, without)
    if missing := sorted(own.keys() - given.keys()):
        raise ValueError(f"{path} lacks {_named(missing)} of this network")
    if wrong := next((name for name in own if given[name].shape != own[name].shape), None):
        raise ValueError(
            f"{path}: {wrong} has shape {tuple(given[wrong].shape)}, this network's has {tuple(own[wrong].shape)}"
        )
    if extra := sorted(given.keys() - own.keys()):
        raise ValueError(f"{path} has {_named(extra)} that this network lacks: is it a file of another network?")
    network.load_state_dict({name: given[name] for name in own}, strict=False)


def _extra_prefix(names: Sequence[str], own: Collection[str]) -> str:
    """What all names start with beyond the network's own names; "" if they have nothing in common, or do not fit.

    >>> _extra_prefix(["module.conv.weight", "module.fc.bias"], {"conv.weight"})
    'module.'
    >>> _extra_prefix(["module.conv.weight", "fc.bias"], {"conv.weight"})
    ''
    """
    for dot in re.finditer(r"\.", names[0] if names else ""):
        prefix = names[0][: dot.end()]
        if all(name.startswith(prefix) for name in names) and {name.removeprefix(prefix) for name in names} >= set(own):
            return prefix
    return ""


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


def read_backbone(path: Path, log: Log = silent) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a file as in `read_tensors`; of a model of `equipoise train`, only its backbone's, and True."""
    tensors = read_tensors(path, log)
    own = {name.removeprefix(OF_A_RUN): value for name, value in tensors.items() if name.startswith(OF_A_RUN)}
    if own:
        log(f"{path}: took the backbone of this run, without its head")
    return own or tensors, bool(own)


def read_tensors(path: Path, log: Log = silent) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a torch file that holds them by name, at the top or in one of WRAPPERS.

    No object but tensors and plain data is read, so that no code in the file can run.
    """
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
        if isinstance(error, pickle.UnpicklingError) and (found := re.search(r"GLOBAL ([\w.]+)", str(error))):
            raise ValueError(
                f"{path} holds Python objects besides tensors ({found[1]}), and reading them could run code: "
                "save its state_dict alone"
            ) from None
        raise ValueError(f"{path} cannot be read as tensors ({type(error).__name__}): is it damaged?") from error
    if _by_name(content):
        return dict(content)
    inside = [name for name in WRAPPERS if isinstance(content, dict) and _by_name(content.get(name))]
    if not inside:
        raise ValueError(f"{path} does not hold tensors by name, at the top or as {', '.join(WRAPPERS)}")
    log(f"{path}: took {inside[0]} out of {shown(content)}")
    return dict(content[inside[0]])


def _by_name(content: Any) -> bool:
    """Whether it is a dict of tensors by name, and not empty."""
    pairs = content.items() if isinstance(content, dict) else ()
    return bool(pairs) and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in pairs)
