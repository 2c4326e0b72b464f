"""COCO and LVIS files with pictures, a few KB, made for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 64
COLOURS = ((220, 40, 40), (40, 220, 40), (40, 40, 220))


def rectangle(x: int, y: int, width: int, height: int, side: int = SIDE) -> dict[str, Any]:
    """An uncompressed RLE of a filled rectangle."""
    mask = np.zeros((side, side), np.uint8)
    mask[y : y + height, x : x + width] = 1
    flat = mask.T.ravel()
    ends = np.flatnonzero(np.diff(flat, prepend=0))
    return {"size": [side, side], "counts": np.diff(ends, prepend=0, append=flat.size).tolist()}


def write_lvis(folder: Path, images: int = 8, *, seed: int = 0, name: str = "annotations.json") -> Path:
    """Coloured rectangles on noise, one colour a class: class 0 in every image, 1 in every second, 2 in every fourth;
    a fourth category never occurs. Ids are neither small nor in order."""
    random = np.random.default_rng(seed)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    ids = [30, 7, 12, 50]
    order = sorted(ids)
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [
            {"id": identity, "name": f"class {order.index(identity)}", "frequency": "fcrr"[order.index(identity)]}
            for identity in ids
        ],
    }
    for number in range(images):
        pixels = random.integers(90, 140, (SIDE, SIDE, 3)).astype(np.uint8)
        classes = [c for c in range(3) if number % (2**c) == 0]
        for place, c in enumerate(classes):
            width, height = (int(side) for side in random.integers(14, 28, 2))
            x = int(random.integers(0, SIDE - width))
            y = min(20 * place + int(random.integers(0, 4)), SIDE - height)
            pixels[y : y + height, x : x + width] = COLOURS[c]
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": 1000 - number,
                    "category_id": order[c],
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "segmentation": rectangle(x, y, width, height),
                }
            )
        Image.fromarray(pixels).save(folder / "pictures" / f"{number}.png")
        content["images"].append(
            {
                "id": 1000 - number,
                "file_name": f"pictures/{number}.png",
                "height": SIDE,
                "width": SIDE,
                "neg_category_ids": [order[c] for c in range(4) if c not in classes],
                "not_exhaustive_category_ids": [],
            }
        )
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def edit(path: Path, change: Any) -> Path:
    """Apply `change` to the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path
