"""What runs on the large long-tailed benchmarks would take: reckoned from what was measured on one GPU.

    python benchmarks/scale.py --table results/benchmarks/train-throughput-h200.json

Nothing is run. Gradients are averaged after the backward pass, not during it, so a step takes the step of one GPU and
then a ring of 2 · (g − 1) / g times the gradients through each GPU's link.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SETS = {"ImageNet-LT": 115_846, "Places-LT": 62_500, "iNaturalist 2018": 437_513}  # training images
EPOCHS, BATCH, STORED = 90, 256, 256  # per GPU; pixels of a stored side
SHAPE, SPEED = "resnet50 at 224 px, batch 256", "resident, resized"
GRADIENTS = 25.6e6 * 4  # bytes, of a ResNet-50 in fp32
LINKS = {1: float("inf"), 8: 450e9, 64: 25e9}  # bytes per second and GPU: within a machine, between machines


def hours(images: int, gpus: int, speed: float) -> float:
    """Hours for all epochs on so many GPUs; `speed` is that of one."""
    step = BATCH / speed + 2 * (gpus - 1) / gpus * GRADIENTS / LINKS[gpus]
    return EPOCHS * images / (gpus * BATCH) * step / 3600


def in_words(value: float) -> str:
    """
    >>> in_words(2.5), in_words(0.08), in_words(0.01)
    ('2.5 h', '5 min', '36 s')
    """
    if value < 1 / 30:
        return f"{3600 * value:.0f} s"
    return f"{value:.1f} h" if value >= 1 else f"{60 * value:.0f} min"


def table(path: Path) -> str:
    """The reckoning as Markdown."""
    record = json.loads(path.read_text())
    speed = record["images_per_second"][SHAPE][SPEED]
    lines = [
        f"| ResNet-50, 224 px, {EPOCHS} epochs | images | kept decoded | "
        + " | ".join(f"{g} GPU{'s' * (g > 1)}" for g in LINKS)
        + " |"
    ]
    lines.append("|:---|---:|---:|" + "---:|" * len(LINKS))
    for name, images in SETS.items():
        kept = images * 3 * STORED**2 / 1e9
        times = " | ".join(in_words(hours(images, gpus, speed)) for gpus in LINKS)
        lines.append(f"| {name} | {images:,} | {kept:.0f} GB | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True)
    print(table(parser.parse_args().table))


if __name__ == "__main__":
    main()
