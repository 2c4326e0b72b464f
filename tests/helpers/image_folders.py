"""Small real images in folders, of classes that can be told apart by colour and place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COUNTS = (24, 12, 6, 3)
NETWORK = "shufflenet_v2_x0_5"  # the smallest of torchvision


def write_photos(folder: Path, counts: tuple[int, ...] = COUNTS, *, seed: int = 0, side: int = 40) -> Path:
    """One folder per class, "class0" and so on, of so many JPEG files."""
    random = np.random.default_rng(seed)
    for label, count in enumerate(counts):
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = random.integers(0, 100, (side, side + 8, 3))
            pixels[..., label % 3] += 60
            pixels[8:24, 8 * label : 8 * label + 12] += 90
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number}.jpg")
    return folder


def write_splits(folder: Path) -> Path:
    """train and val of such folders."""
    write_photos(folder / "train")
    write_photos(folder / "val", (4,) * len(COUNTS), seed=1)
    return folder
