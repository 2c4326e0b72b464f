"""Image classifiers by name: any network from torchvision or timm, with its last layer replaced by a head of ours.

A name is looked up in torchvision, then in timm; "timm/NAME" looks only in timm. cifar_resnet20, 32, 44 and 56 are the
small networks of He et al. for images of about 32 pixels. Nothing is downloaded unless `weights` is "pretrained". For
images of at most 96 pixels other ResNets get a small stem: a 3×3 convolution with stride 2 and no pooling, so that the
first stage sees half the picture's side, not a quarter.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn

from equipoise.models.heads import make_neck
from equipoise.models.resnet_cifar import ResNetCifar
from equipoise.models.weights import (
    Log,
    Stride,
    check_stride,
    fill,
    move_stride,
    read_backbone,
    silent,
    stride_by_name,
)

SMALL = 96  # pixels: up to here a ResNet has a small stem
PRETRAINED = "pretrained"
OWN = {"cifar_resnet20": 3, "cifar_resnet32": 5, "cifar_resnet44": 7, "cifar_resnet56": 9}  # blocks per stage


class Classifier(nn.Module):
    """A backbone that gives features [N, F], and a head that turns them into logits [N, K].

    >>> Classifier(nn.Flatten(), nn.Linear(12, 5))(torch.zeros(2, 3, 2, 2)).shape
    torch.Size([2, 5])
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def features(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] → [N, F]."""
        return self.backbone(images)  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] → logits [N, K]."""
        return self.head(self.features(images))  # type: ignore[no-any-return]


class Normalised(nn.Module):
    """A classifier for images [N, 3, H, W] from 0 to 1, which it normalises first; this is served and exported."""

    mean: Tensor
    std: Tensor

    def __init__(self, classifier: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.classifier = classifier
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] → logits [N, K]."""
        return self.classifier((images - self.mean) / self.std)  # type: ignore[no-any-return]


def make_backbone(
    name: str,
    size: int,
    weights: str | os.PathLike[str] | None = None,
    *,
    stride: Stride = None,
    full_stem: bool = False,
    neck: int = 0,
    dropout: float = 0.0,
    log: Log = silent,
) -> tuple[nn.Module, int]:
    """A network without its last layer, and the number of its features for images of `size` pixels.

    weights   None: random; "pretrained": downloaded by the network's library; otherwise a file of tensors under that
              library's names, as in `fill` and `read_tensors`, or the model.safetensors of a run of `equipoise train`
    stride    where a ResNet's bottlenecks halve the picture: "3x3", or "1x1" as in the original networks (MSRA, Caffe);
              by default as the file's name suggests
    full_stem keep the first layers of a network whose weights are loaded later; with `weights` they are always kept,
              except for those of a run that had the small stem
    neck      a layer with this many features, with `dropout`, in place of the last one; 0: none
    log       receives what was taken from a file that holds more than the network's own tensors
    """
    check_stride(stride)
    fetched = str(weights) == PRETRAINED
    try:
        network, last = _network(name, pretrained=fetched)
    except (OSError, URLError) as error:
        raise OSError(f"the weights of {name} cannot be downloaded ({error}): pass a file instead") from None
    if weights is None and size <= SMALL and not full_stem:
        _shrink_stem(network)
    elif weights is not None and not fetched:
        _load(network, Path(weights), size, last or "head", log)
    if (stride or stride_by_name(weights)) == "1x1":
        if not hasattr(getattr(network, "layer2", [None])[0], "conv3"):
            raise ValueError(f"{name} has no bottlenecks with a stride: --stride is for ResNets such as resnet50")
        move_stride(network)
    if neck and not last:
        raise ValueError(f"{name} has no last layer that a neck could replace: use a network from torchvision or timm")
    if last:
        width = network.get_submodule(last).in_features
        _replace(network, last, make_neck(width, neck, dropout) if neck else nn.Identity())  # type: ignore[arg-type]
    return network, _width(network, name, size)


def has_small_stem(network: nn.Module) -> bool:
    """Whether a ResNet has the small stem for small images."""
    first = getattr(network, "conv1", None)
    small = isinstance(first, nn.Conv2d) and first.kernel_size == (3, 3)
    return small and isinstance(getattr(network, "maxpool", None), nn.Identity)


def _load(network: nn.Module, path: Path, size: int, last: str, log: Log) -> None:
    """Load a file of weights except for the last layer; a network of a run gets the stem that it had there."""
    tensors, of_a_run = read_backbone(path, log)
    first = tensors.get("conv1.weight")
    if of_a_run and first is not None and first.shape[-1] == 3:
        _shrink_stem(network)
        if has_small_stem(network) and size > SMALL:
            raise ValueError(
                f"{path} has the small stem of a run at {SMALL} pixels or less, not {size}: pass --size {SMALL} or less"
            )
    fill(network, tensors, path, without=f"{last}.", log=log)


def freeze_stages(resnet: nn.Module, stages: int) -> list[nn.Module]:
    """Freeze the stem and the first `stages` stages of a ResNet; returns what must stay in evaluation mode: its batch
    normalisations of images."""
    parts = ["conv1", "bn1", *(f"layer{number}" for number in range(1, stages + 1))]
    missing = [part for part in parts if not hasattr(resnet, part)]
    if missing:
        raise ValueError(
            f"{type(resnet).__name__} has no {missing[0]}: stages can only be frozen in ResNets such as resnet50"
        )
    for part in parts:
        resnet.get_submodule(part).requires_grad_(False)
    return [module for module in resnet.modules() if isinstance(module, nn.BatchNorm2d)]


def network_names() -> list[str]:
    """Every network name that is available here."""
    return sorted({*OWN, *_torchvision_names(), *_timm_names()})


def _network(name: str, *, pretrained: bool) -> tuple[nn.Module, str]:
    """The network, and the name of its last layer; "" if it has none."""
    if name in OWN:
        if pretrained:
            raise ValueError(f"there are no weights of {name} to download: omit --weights, or pass a file")
        return ResNetCifar(nn.Identity(), OWN[name]), ""
    plain = name.removeprefix("timm/")
    if plain == name and name in _torchvision_names():
        import torchvision  # type: ignore[import-untyped]

        network = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None)
        return network, _last_linear(network, name)
    if plain in _timm_names():
        import timm

        network = timm.create_model(plain, pretrained=pretrained)
        last: Any = network.get_classifier()
        named = [own for own, module in network.named_modules() if module is last]
        if len(named) != 1 or not isinstance(last, nn.Linear):
            raise ValueError(f"{name} does not end in one linear layer: its head cannot be replaced")
        return network, named[0]
    near = difflib.get_close_matches(plain, network_names(), n=3)
    hint = f": did you mean {' or '.join(near)}?" if near else ": expected a classifier of torchvision or timm"
    extras = {"train": ("torchvision", _torchvision_names()), "timm": ("timm", _timm_names())}
    missing = [
        f" ({library} is not installed: pip install 'equipoise[{extra}]')"
        for extra, (library, names) in extras.items()
        if not names
    ]
    raise ValueError(f"no network is named {name!r}{hint}{''.join(missing)}")


def _torchvision_names() -> list[str]:
    try:
        import torchvision
    except ImportError:
        return []
    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def _timm_names() -> list[str]:
    try:
        import timm
    except ImportError:
        return []
    return list(timm.list_models())


def _last_linear(network: nn.Module, name: str) -> str:
    linear = [own for own, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not linear or network.get_submodule(linear[-1]).out_features != 1000:
        raise ValueError(f"{name} does not end in a linear layer: its head cannot be replaced")
    return str(linear[-1])


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)


def _shrink_stem(network: Any) -> None:
    """Make the stem halve the picture's side instead of quartering it; networks other than ResNets are not changed."""
    first = getattr(network, "conv1", None)
    if isinstance(first, nn.Conv2d) and first.kernel_size == (7, 7) and hasattr(network, "maxpool"):
        network.conv1 = nn.Conv2d(3, first.out_channels, 3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()


def _width(network: nn.Module, name: str, size: int) -> int:
    """The number of features, found by a trial run, so that a size the network cannot take is refused at once."""
    training = network.training
    try:
        with torch.no_grad():
            found = network.eval()(torch.zeros(2, 3, size, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"{name} cannot take images of {size} × {size} pixels ({error}): pass another --size"
        ) from None
    finally:
        network.train(training)
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise ValueError(f"{name} does not give one vector per image: its head cannot be replaced")
    return found.shape[1]
