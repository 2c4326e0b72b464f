"""The training augmentation of CIFAR, a whole chunk of batches at a time, on the device of the data.

    paper   crop of 32 from the image padded by 4 zeros → flip → AutoAugment → Cutout of 16
    crop    crop of 32 from the image padded by 4 zeros → flip            (→ normalise, in the model's step)

Images stay uint8 until they are normalised. Cutout writes zeros before the normalisation, as the released code of
Ren et al. 2020 does. Everything random is drawn on the host from (seed, chunk number): the stream of a run is the same
on every device, does not depend on what else runs, and can be resumed at any chunk.

Reference for Cutout: DeVries, Taylor, 2017, arXiv 1708.04552.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from equipoise.training.augmentation.autoaugment import SIZE, AutoAugment, draw_atoms, upload

AUGMENTATIONS = ("paper", "crop")
PADDING = 4
CUTOUT = 16
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class Draws:
    """What was drawn for N images: crop corner, flip, two atoms, Cutout's centre. All on the host."""

    top: NDArray[np.int64]
    left: NDArray[np.int64]
    flip: NDArray[np.int64]
    atoms: NDArray[np.int64]
    centre_y: NDArray[np.int64]
    centre_x: NDArray[np.int64]

    def first(self, number: int) -> Draws:
        """The draws of the first `number` images."""
        return Draws(*(getattr(self, field.name)[:number] for field in fields(self)))


def draw(number: int, random: np.random.Generator) -> Draws:
    """Everything random about the augmentation of `number` images."""
    top, left = random.integers(2 * PADDING + 1, size=(2, number))
    flip = random.integers(2, size=number)
    atoms = draw_atoms(number, random)
    centre_y, centre_x = random.integers(SIZE, size=(2, number))
    return Draws(top, left, flip, atoms, centre_y, centre_x)


def pad(images: Tensor) -> Tensor:
    """[N, 3, 32, 32] → [N, 3, 40, 40] with a border of zeros, from which crops are cut."""
    return functional.pad(images, (PADDING,) * 4)


def crop_and_flip(padded: Tensor, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
    """The 32×32 windows at (top, left) of the images `index` [N] of `padded` [M, 3, 40, 40], mirrored where flip is 1.

    >>> one = torch.arange(3 * 40 * 40).view(1, 3, 40, 40)
    >>> zero = torch.tensor([0])
    >>> crop_and_flip(one, zero, zero, zero, flip=zero)[0, 0, 0, :3]
    tensor([0, 1, 2])
    >>> crop_and_flip(one, zero, zero, zero, flip=zero + 1)[0, 0, 0, :3]
    tensor([31, 30, 29])
    """
    steps = torch.arange(SIZE, device=padded.device)
    rows = top[:, None] + steps
    columns = left[:, None] + torch.where(flip[:, None] > 0, SIZE - 1 - steps, steps)
    channels = torch.arange(3, device=padded.device)
    return padded[
        index[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
    ]


def cutout(images: Tensor, centre_y: Tensor, centre_x: Tensor) -> Tensor:
    """Zeros in the 16×16 square about the centre, [centre − 8, centre + 8), clipped at the border.

    >>> one = torch.ones(1, 3, 32, 32, dtype=torch.uint8)
    >>> cutout(one, torch.tensor([0]), torch.tensor([16]))[0, 0].logical_not().sum()  # 8 rows of 16
    tensor(128)
    """
    steps = torch.arange(SIZE, device=images.device)
    half = CUTOUT // 2
    rows = (steps >= centre_y[:, None] - half) & (steps < centre_y[:, None] + half)
    columns = (steps >= centre_x[:, None] - half) & (steps < centre_x[:, None] + half)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def normalise(images: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """uint8 [N, 3, H, W] → fp32, divided by 255, minus the mean, over the standard deviation.

    >>> normalise(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten()
    tensor([-2.4291, -2.4183, -2.2214])
    """
    # scalars per channel: no tensor is created on the device, so that this can be captured in a CUDA graph
    channels = [
        (images[:, channel].float() / 255 - centre) / spread
        for channel, (centre, spread) in enumerate(zip(mean, std, strict=True))
    ]
    return torch.stack(channels, dim=1)


@functools.cache
def _autoaugment(device: torch.device) -> AutoAugment:
    """One instance for all data sets on a device: its tables take a second to compute."""
    return AutoAugment(device)


class TrainingAugmentation:
    """Turns indices of a data set that is on a device into augmented uint8 images there."""

    def __init__(self, images: Tensor) -> None:
        """`images` [M, 3, 32, 32] uint8, on the device on which they will be augmented."""
        self.padded = pad(images)
        self.autoaugment = _autoaugment(images.device)

    def __call__(self, index: NDArray[np.int64], draws: Draws, kind: str = "paper") -> Tensor:
        """The images `index` [N] under `draws` (N of them): [N, 3, 32, 32] uint8. `kind` is one of AUGMENTATIONS."""
        host = np.stack([index, draws.top, draws.left, draws.flip, draws.centre_y, draws.centre_x])
        device_index, top, left, flip, centre_y, centre_x = upload(host, self.padded.device)
        images = crop_and_flip(self.padded, device_index, top, left, flip)
        return images if kind == "crop" else cutout(self.autoaugment(images, draws.atoms), centre_y, centre_x)
