"""The images of a folder with one folder per class, as torchvision's `ImageFolder` lists them.

A folder without an image is no class: it is left out, and a note says so, for counting and for training alike.
"""

from __future__ import annotations

import os
from pathlib import Path

from equipoise.data.reading import counted, shown

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})  # torchvision's list
TRAIN, VALIDATION, TEST = ("train", "training"), ("val", "valid", "validation"), ("test", "testing")  # splits


def class_folders(path: Path) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """The images of each class, as paths relative to `path`, in the order of `ImageFolder`, and notes about what was
    left out. Links are followed, but no folder is visited twice; hidden files and folders are left out."""
    classes = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise ValueError(f"{path} has no folders: expected one folder per class, or Parquet files")
    _refuse_splits(path, classes)
    real = {os.path.realpath(folder) for folder in (path, *(path / name for name in classes))}
    found = {name: _images(path, name, set(real)) for name in classes}
    if not any(found.values()):
        raise ValueError(
            f"{path} has {len(classes)} folders and no image in them: expected {', '.join(sorted(IMAGES))}"
        )
    kept = {name: files for name, files in found.items() if files}
    _refuse_splits(path, list(kept))  # beside folders without an image, such as one of annotations
    return kept, _notes(path, found)


def _refuse_splits(path: Path, folders: list[str]) -> None:
    """Refuse folders that are all parts of a data set: none of them is a class."""
    if all(name.lower() in (*TRAIN, *VALIDATION, *TEST) for name in folders):
        train = next((f", {path / name}" for name in folders if name.lower() in TRAIN), "")
        raise ValueError(f"{path} holds the splits {', '.join(folders)}: pass the one you train on{train}")


def _notes(path: Path, found: dict[str, list[str]]) -> tuple[str, ...]:
    """What is left out: folders without an image, and images beside the folders."""
    notes = []
    empty = [name for name, files in found.items() if not files]
    if empty:
        notes.append(f"left out {counted(len(empty), 'folder')} without an image: {shown(empty)}")
    loose = sorted(entry.name for entry in os.scandir(path) if is_image(entry.name) and entry.is_file())
    if loose:
        notes.append(f"left out {counted(len(loose), 'image')} beside the folders of the classes: {shown(loose)}")
    return tuple(notes)


def is_image(name: str) -> bool:
    """Whether it has the ending of an image; hidden files are left out."""
    return os.path.splitext(name)[1].lower() in IMAGES and not name.startswith(".")


def _images(root: Path, name: str, seen: set[str]) -> list[str]:
    """The images below a folder of `root`; folders in `seen` are not visited again."""
    found = []
    start = len(str(root / name)) - len(name)
    for place, folders, files in os.walk(root / name, followlinks=True, onerror=_raise):
        found += [(place, file) for file in files if is_image(file)]
        real = {name: os.path.realpath(os.path.join(place, name)) for name in sorted(folders) if name[0] != "."}
        folders[:] = [name for name, path in real.items() if path not in seen and not seen.add(path)]  # type: ignore[func-returns-value]
    return [os.path.join(place[start:], file) for place, file in sorted(found)]


def _raise(error: OSError) -> None:
    raise error
