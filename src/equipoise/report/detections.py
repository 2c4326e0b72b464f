"""Pictures with what a detector found: boxes, masks, names and scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor


def draw_detections(
    image: Tensor, found: dict[str, Tensor], class_names: Sequence[str], *, threshold: float = 0.3
) -> Image.Image:
    """`image`, uint8 [3, H, W], with the detections that score at least `threshold`, the best on top.

    >>> found = {"boxes": torch.tensor([[1.0, 1.0, 6.0, 6.0]]), "labels": torch.tensor([1]), "scores": torch.ones(1)}
    >>> draw_detections(torch.zeros(3, 8, 8, dtype=torch.uint8), found, ["cat"]).size
    (8, 8)
    """
    pixels = image.permute(1, 2, 0).cpu().numpy().astype(np.float32)
    order = [int(i) for i in torch.argsort(found["scores"]).tolist() if found["scores"][i] >= threshold]
    if "masks" in found:
        for place in order:
            inside = found["masks"][place].cpu().numpy()
            pixels[inside] = 0.5 * pixels[inside] + 0.5 * np.array(colour(int(found["labels"][place])))
    picture = Image.fromarray(pixels.astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for place in order:
        label = int(found["labels"][place])
        x0, y0, x1, y1 = found["boxes"][place].tolist()
        pen.rectangle((x0, y0, x1, y1), outline=colour(label), width=2)
        pen.text((x0 + 3, y0 + 2), f"{class_names[label - 1]} {found['scores'][place]:.2f}", fill=(255, 255, 255))
    return picture


def colour(label: int) -> tuple[int, int, int]:
    """A bright colour, the same for a class in every picture."""
    shade: NDArray[np.int64] = np.random.default_rng(label).permutation([60, 150, 255])
    return int(shade[0]), int(shade[1]), int(shade[2])
