"""Photometric distortion, one batch at a time, as in SSD and Wu et al. 2020.

    brightness   plus or minus up to 32 of 255
    contrast     times 0.5 to 1.5, before or after the next two
    saturation   times 0.5 to 1.5, and the hue turned by up to 18 degrees either way, both in HSV
    channels     in a random order

Each happens half of the time, independently. Everything random is drawn on the host; images are uint8 before and after.

References: Liu et al., "SSD: Single Shot MultiBox Detector", 2016; Wu et al., "Distribution-Balanced Loss", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.training.augmentation.autoaugment import upload

BRIGHTNESS, CONTRAST, SATURATION, HUE = 32.0, (0.5, 1.5), (0.5, 1.5), 18.0  # the last in degrees
AT_ONCE = 256  # images: each takes some ten copies in fp32

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Distortions:
    """For N images: the brightness that is added, the contrast before and after the colours, the factor of the
    saturation, the turn of the hue in degrees, and the order of the channels [N, 3]."""

    brightness: Floats
    contrast_before: Floats
    contrast_after: Floats
    saturation: Floats
    hue: Floats
    channels: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[Distortions]) -> Distortions:
        """Those of several batches, one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def part(self, start: int, stop: int) -> Distortions:
        """Those of the images from `start` to `stop`."""
        return Distortions(*(getattr(self, field.name)[start:stop] for field in fields(self)))


def draw_distortions(number: int, random: np.random.Generator) -> Distortions:
    """Everything random about `number` images."""
    happens = random.random((5, number)) < 0.5
    first = random.random(number) < 0.5
    contrast = np.where(happens[1], random.uniform(*CONTRAST, number), 1.0)
    order = random.permuted(np.tile(np.arange(3), (number, 1)), axis=1)
    values = (
        np.where(happens[0], random.uniform(-BRIGHTNESS, BRIGHTNESS, number), 0.0),
        np.where(first, contrast, 1.0),
        np.where(first, 1.0, contrast),
        np.where(happens[2], random.uniform(*SATURATION, number), 1.0),
        np.where(happens[3], random.uniform(-HUE, HUE, number), 0.0),
    )
    channels = np.where(happens[4][:, None], order, np.arange(3))
    return Distortions(*(value.astype(np.float32) for value in values), channels)  # type: ignore[arg-type, call-arg]


def distorted(images: Tensor, draws: Distortions) -> Tensor:
    """uint8 images [N, 3, H, W] with other colours.

    >>> one = Distortions(*(np.array([v], np.float32) for v in (10, 1, 1, 1, 0)), np.array([[2, 1, 0]]))
    >>> distorted(torch.tensor([[1, 2, 3]], dtype=torch.uint8).view(1, 3, 1, 1), one).flatten().tolist()
    [13, 12, 11]
    """
    parts = [
        _distorted(images[start : start + AT_ONCE], draws.part(start, start + AT_ONCE))
        for start in range(0, len(images), AT_ONCE)
    ]
    return torch.cat(parts)


def _distorted(images: Tensor, draws: Distortions) -> Tensor:
    def of_image(values: Floats) -> Tensor:
        return upload(np.ascontiguousarray(values), images.device).view(-1, 1, 1)

    found = (images.float() + of_image(draws.brightness)[:, None]) * of_image(draws.contrast_before)[:, None]
    found = _coloured(found, of_image(draws.saturation), of_image(draws.hue))
    found = found * of_image(draws.contrast_after)[:, None]
    order = upload(np.ascontiguousarray(draws.channels), images.device)[:, :, None, None].expand_as(found)
    return found.gather(1, order).round_().clamp_(0, 255).to(torch.uint8)


def _coloured(images: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Images [N, 3, H, W] with the saturation and hue of HSV changed by [N, 1, 1] each."""
    value, place = images.max(1)
    chroma = value - images.amin(1)
    red, green, blue = images.unbind(1)
    some = chroma.clamp(min=1e-6)
    sixths = torch.stack([(green - blue) / some, (blue - red) / some + 2, (red - green) / some + 4])
    turned = sixths.gather(0, place[None])[0] + hue / 60
    deep = chroma * saturation
    # a channel is the value minus the chroma in proportion to its distance from the hue
    steps = [(turned + offset) % 6 for offset in (5, 3, 1)]
    return torch.stack([value - deep * torch.minimum(step, 4 - step).clamp(0, 1) for step in steps], 1)
