"""Training augmentation of photographs, one batch at a time, on the device that holds them.

    crop      shifted by up to an eighth of the side, zeros beyond the border, mirrored half of the time
    resized   a window of 8 to 100 % of the area and an aspect of 3:4 to 4:3, resized to the whole, mirrored half of the
              time: torchvision's RandomResizedCrop and RandomHorizontalFlip
    randaugment, randaugment-crop   `resized` or `crop`, then RandAugment: two of its operations at magnitude 9 of 30
    distorted a window of 80 to 100 % of either side, resized to the whole, mirrored half of the time, and the colours
              of `distortion.py`
    whole     the whole stored image
    none      the middle of the image

Everything random is drawn on the host from one stream of random numbers per batch: a run is the same on every device,
alone or shared by several processes, and can be resumed at any batch. Images are uint8 before and after.

Reference: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equipoise.training.augmentation.autoaugment import upload

AUGMENTATIONS = ("crop", "resized", "randaugment", "randaugment-crop", "distorted", "whole", "none")
SHIFT = 1 / 8  # of the side, for `crop`
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # for `resized`
SIDES = (0.8, 1.0)  # for `distorted`
OPERATIONS, MAGNITUDE, LEVELS = 2, 9, 31  # RandAugment's, as torchvision has them

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Windows:
    """For N images: the window's centre and half its sides (1: the whole stored image), whether it is mirrored, and the
    operations [N, 2] with their signs, −1 if there are none."""

    x: Floats
    y: Floats
    half_width: Floats
    half_height: Floats
    mirrored: NDArray[np.bool_]
    operations: NDArray[np.int64]
    signs: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[Windows]) -> Windows:
        """Those of several batches, one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def part(self, start: int, stop: int) -> Windows:
        """Those of the images from `start` to `stop`."""
        return Windows(*(getattr(self, field.name)[start:stop] for field in fields(self)))


def draw_windows(number: int, augmentation: str, size: int, stored: int, random: np.random.Generator) -> Windows:
    """Everything random about `number` images that are `stored` pixels wide, for a model that sees `size` of them."""
    x, y = np.zeros(number), np.zeros(number)
    half_width = half_height = np.full(number, size / stored)
    mirrored = random.random(number) < 0.5
    if augmentation in ("resized", "randaugment"):
        area = random.uniform(*AREA, number)
        aspect = np.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1]), number))
        half_width = np.minimum(np.sqrt(area * aspect), 1)
        half_height = np.minimum(np.sqrt(area / aspect), 1)
        x, y = (random.uniform(-1, 1, number) * (1 - half) for half in (half_width, half_height))
    elif augmentation == "distorted":
        half_width, half_height = random.uniform(*SIDES, (2, number))
        x, y = (random.uniform(-1, 1, number) * (1 - half) for half in (half_width, half_height))
    elif augmentation in ("crop", "randaugment-crop"):
        most = round(SHIFT * size)
        x, y = 2 * random.integers(-most, most + 1, (2, number)) / stored  # whole pixels, so that nothing is blurred
    else:
        mirrored = np.zeros(number, np.bool_)
        if augmentation == "whole":
            half_width = half_height = np.ones(number)
    operations = np.full((number, OPERATIONS), -1)
    signs = np.ones((number, OPERATIONS), np.int64)
    if augmentation.startswith("randaugment"):
        operations = random.integers(len(RANDAUGMENT), size=(number, OPERATIONS))
        signs = random.choice([-1, 1], (number, OPERATIONS))
    boxes = [value.astype(np.float32) for value in (x, y, half_width, half_height)]
    return Windows(*boxes, mirrored, operations, signs)  # type: ignore[arg-type, call-arg]


def cut(images: Tensor, windows: Windows, size: int) -> Tensor:
    """The windows of uint8 images [N, C, S, S], each resized to [C, size, size]; zeros beyond the border.

    >>> image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    >>> whole = Windows(*(np.array([v], np.float32) for v in (0, 0, 1, 1)), *(np.array([v]) for v in (True, [-1], [1])))
    >>> cut(image, whole, 4)[0, 0, 0].tolist()
    [3, 2, 1, 0]
    """
    sign = np.where(windows.mirrored, -1, 1)
    host = np.zeros((len(images), 2, 3), np.float32)
    host[:, 0, 0], host[:, 0, 2] = windows.half_width * sign, windows.x
    host[:, 1, 1], host[:, 1, 2] = windows.half_height, windows.y
    theta = upload(host, images.device)
    grid = F.affine_grid(theta, [len(images), images.shape[1], size, size], align_corners=False)
    values = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return values.round_().clamp_(0, 255).to(torch.uint8)


def randaugment(images: Tensor, windows: Windows) -> Tensor:
    """RandAugment in place: images that drew the same operation go through it together."""
    for column in range(windows.operations.shape[1]):
        chosen, signs = windows.operations[:, column], windows.signs[:, column]
        for number, (name, signed) in enumerate(RANDAUGMENT):
            for sign in (-1, 1) if signed else (1,):
                rows = np.flatnonzero((chosen == number) & ((signs == sign) | (not signed)))
                if len(rows):
                    index = upload(rows, images.device)
                    images[index] = _apply(images[index], name, sign)
    return images


RANDAUGMENT = (  # and whether the sign of its magnitude is drawn
    ("identity", False),
    ("shear_x", True),
    ("shear_y", True),
    ("translate_x", True),
    ("translate_y", True),
    ("rotate", True),
    ("brightness", True),
    ("colour", True),
    ("contrast", True),
    ("sharpness", True),
    ("posterize", False),
    ("solarize", False),
    ("autocontrast", False),
    ("equalize", False),
)


def _apply(images: Tensor, name: str, sign: int) -> Tensor:
    """One operation of torchvision's RandAugment at MAGNITUDE of LEVELS."""
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

    transforms: Any = functional
    affine = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}

    def at(most: float) -> float:
        return sign * float(torch.linspace(0, most, LEVELS)[MAGNITUDE])  # in fp32, as in torchvision

    shear, shift, factor = math.degrees(math.atan(at(0.3))), int(at(150 / 331 * images.shape[-1])), 1 + at(0.9)
    operations: dict[str, Callable[[], Tensor]] = {
        "identity": lambda: images,
        "shear_x": lambda: transforms.affine(images, **affine | {"shear": [shear, 0.0]}, center=[0, 0]),
        "shear_y": lambda: transforms.affine(images, **affine | {"shear": [0.0, shear]}, center=[0, 0]),
        "translate_x": lambda: transforms.affine(images, **affine | {"translate": [shift, 0]}),
        "translate_y": lambda: transforms.affine(images, **affine | {"translate": [0, shift]}),
        "rotate": lambda: transforms.rotate(images, at(30)),
        "brightness": lambda: transforms.adjust_brightness(images, factor),
        "colour": lambda: transforms.adjust_saturation(images, factor),
        "contrast": lambda: transforms.adjust_contrast(images, factor),
        "sharpness": lambda: transforms.adjust_sharpness(images, factor),
        "posterize": lambda: transforms.posterize(images, round(8 - at(4))),
        "solarize": lambda: transforms.solarize(images, 255 * float(torch.linspace(1, 0, LEVELS)[MAGNITUDE])),
        "autocontrast": lambda: transforms.autocontrast(images),
        "equalize": lambda: transforms.equalize(images),
    }
    return operations[name]()
