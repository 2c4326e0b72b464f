"""Small images with several labels each, laid out as VOC-MLT is."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("bird", "cat", "owl")
RATES = (0.7, 0.4, 0.15)  # of each class, among the training images


def write_tagged(folder: Path, train: int = 24, test: int = 12, side: int = 36) -> Path:
    """labels.csv and images, each class a bright square at a place of its own."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = [["part", "file", "labels"]]
    for number in range(train + test):
        part = "train" if number < train else "test"
        present = [place for place, rate in enumerate(RATES) if random.random() < (rate if part == "train" else 0.5)]
        if number == 0:
            present = [0, 1, 2]
        pixels = random.integers(0, 90, (side, side + 8, 3))
        for place in present:
            pixels[10 * place : 10 * place + 10, 4:20, place] += 150
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / f"{number}.png")
        rows.append([part, f"images/{number}.png", " ".join(CLASSES[place] for place in present)])
    with open(folder / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder
