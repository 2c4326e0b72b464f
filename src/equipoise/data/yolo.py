"""Count the labels of a YOLO data set: a `data.yaml`, and one text file per image with a line `class x y w h` per
object.

`train` in the YAML file names a folder of images, a text file that lists images, or several of these. The labels of
`.../images/a.jpg` are in `.../labels/a.txt`; an image without such a file, or with an empty one, is background.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equipoise.data.reading import reading
from equipoise.prior import Prior

IMAGES = {".bmp", ".dng", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp", ".heic", ".avif"}


def count_yolo(
    path: str | os.PathLike[str], by: Literal["images", "instances"] = "images", split: str = "train"
) -> Prior:
    """Images that contain each class, out of those with an object; or objects of the class, out of all objects."""
    if by not in ("images", "instances"):
        raise ValueError(f"by={by!r}: count 'images' or 'instances'")
    content = _read_yaml(path)
    names = _names(content, path)
    counts, total = np.zeros(len(names), np.int64), 0
    for label in _label_files(content, Path(path), split):
        classes = _classes(label, len(names))
        found = np.unique(classes) if by == "images" else classes
        counts += np.bincount(found, minlength=len(names))
        total += (len(classes) > 0) if by == "images" else len(classes)
    if not total:
        raise ValueError(f"{os.fspath(path)}: its {split!r} images have no object: are the labels beside the images?")
    return Prior.from_counts(counts, int(total), class_names=names)


def _read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(f"a YOLO data set is described in YAML: pip install pyyaml ({error})") from error
    with reading(path):
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "names" not in content:
        raise ValueError(f"{os.fspath(path)} does not describe a YOLO data set: expected 'train' and 'names'")
    return content


def _names(content: dict[str, Any], path: str | os.PathLike[str]) -> list[str]:
    names = content["names"]
    if isinstance(names, dict):
        if sorted(names) != list(range(len(names))):
            raise ValueError(
                f"{os.fspath(path)}: 'names' numbers its classes {sorted(names)[:5]}, ...: expected 0, 1, …"
            )
        names = [names[index] for index in range(len(names))]
    if not isinstance(names, list) or not names:
        raise ValueError(f"{os.fspath(path)}: 'names' is {names!r:.60}: expected one name per class")
    return [str(name) for name in names]


def _label_files(content: dict[str, Any], path: Path, split: str) -> Iterator[Path]:
    """The label files of the split's images, each once, for images that have one."""
    root = path.parent / str(content.get("path") or "")
    places = content.get(split)
    if not places:
        raise ValueError(f"{path} has no {split!r}: name the images of the split")
    found = {image for place in (places if isinstance(places, list) else [places]) for image in _images(root / place)}
    for image in sorted(found):
        label = _label_of(image)
        if label.is_file():
            yield label


def _images(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (path for path in place.rglob("*") if path.suffix.lower() in IMAGES)
    elif place.is_file():
        with reading(place):
            lines = place.read_text(encoding="utf-8").split("\n")
        for line in filter(None, map(str.strip, lines)):
            yield place.parent / line  # an absolute path stays as it is
    else:
        raise ValueError(f"{place} is neither a folder of images nor a list of them")


def _label_of(image: Path) -> Path:
    parts = list(image.parts)
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index("images")
        parts[last] = "labels"
    return Path(*parts).with_suffix(".txt")


def _classes(path: Path, num_classes: int) -> Any:
    """The classes of the objects of an image, [objects]."""
    with reading(path):
        words = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        wrong = [word for word in words if not _is_class(word, num_classes)]
        if wrong:
            raise ValueError(f"{path} holds the class {wrong[0]!r:.40}: expected 0 to {num_classes - 1}")
        return np.array([int(float(word)) for word in words], np.int64)


def _is_class(word: str, num_classes: int) -> bool:
    try:
        value = float(word)
    except ValueError:
        return False
    return value.is_integer() and 0 <= value < num_classes
