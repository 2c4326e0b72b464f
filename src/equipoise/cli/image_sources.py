"""The images for a command: which to train and to evaluate on, what size they have, and which cannot be read."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console

from equipoise.cli.shared import counting_bar
from equipoise.data.image_files import check_images, decode
from equipoise.data.images import ImageList, find_splits, read_images, stratified_split
from equipoise.data.reading import visible
from equipoise.training.images import ImageData, stored_side

LOOKED_AT = 200  # how many images are opened to choose a training size
SIZES = (32, 64, 96, 128, 160, 224)
LARGEST_ON_CPU = 64


@dataclass(frozen=True)
class ImageSource:
    """Where images are, a folder or list (`source`) or one to train and one to evaluate on, and how they are read."""

    source: Path | None = None
    train: Path | None = None
    val: Path | None = None
    images: Path | None = None
    held_out: float = 0.2
    on_bad_image: str = "skip"
    workers: int | None = None
    resident: bool | None = None


def read_lists(given: ImageSource) -> tuple[ImageList, ImageList, str]:
    """The images to train and to evaluate on, and a name for the latter."""
    place = given.train or given.source
    assert place is not None
    source, found, test = find_splits(place)
    val, where = given.val or found or test, "val" if given.val or found else "test"
    train = read_images(source, images=given.images)
    for name in train.class_names:
        if not name.isascii() and name.encode(errors="ignore").decode() != name:
            raise ValueError(f"{source}: the class {visible(name)!r} has a name that is not UTF-8: rename its folder")
    for note in train.notes:
        typer.echo(visible(f"{source}: {note}"), err=True)
    if val is not None:
        return train, read_images(val, images=given.images, class_names=train.class_names), where
    kept, left = stratified_split(train.labels, given.held_out, seed=0)
    if not len(left):
        raise ValueError(f"{source} has too few images of every class to hold some out: give --val, or more images")
    return train.subset(kept), train.subset(left), "held_out"


def size_for(images: ImageList, device: torch.device) -> int:
    """A size close to that of the images themselves; a small one on a CPU, so that training ends the same day."""
    step = max(1, len(images) // LOOKED_AT)
    sides = []
    for index in range(0, len(images), step):
        try:
            sides.append(min(images.read(index).size))
        except ValueError:  # a bad image: reported later
            continue
    middle = float(np.median(sides)) if sides else SIZES[-1]
    most = LARGEST_ON_CPU if device.type == "cpu" else SIZES[-1]
    return min(most, next((size for size in SIZES if size >= middle), SIZES[-1]))


def readable(given: ImageSource, data: ImageData, device: torch.device, log: Any) -> ImageData:
    """The data without the images that cannot be read, which are listed and counted."""
    workers = given.workers if given.workers is not None else min(12, os.cpu_count() or 1)
    data = replace(data, workers=workers, resident=given.resident)
    pixels: dict[str, Any] = {}
    found: list[ImageList] = []
    with counting_bar(Console(stderr=True), transient=True) as bar:
        for images, what in ((data.train, "decoding"), (data.test, "decoding images to evaluate on")):
            task = bar.add_task(what, total=len(images))

            def progress(done: int, total: int, task: Any = task) -> None:
                bar.update(task, completed=done)

            reading: dict[str, Any] = {"workers": workers or None, "progress": progress}
            decoded = decode(images, stored_side(data.size), **reading) if data.fits(device) else None
            bad = decoded.bad if decoded is not None else check_images(images, **reading)
            if len(bad) and given.on_bad_image == "refuse":
                raise ValueError(f"{images.source}: {bad}; pass --on-bad-image skip to skip them")
            if len(bad):
                log(visible(f"{images.source}: {bad}; skipped"))
            kept = images.without(bad) if len(bad) else images
            if decoded is not None:
                pixels[kept.digest] = decoded.pixels[decoded.good] if len(bad) else decoded.pixels
            found.append(kept)
    return replace(data, train=found[0], test=found[1], pixels=pixels)
