"""The images for a command: which to train and to evaluate on, what size they have, and which cannot be read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console

from equipoise.cli.shared import counting_bar
from equipoise.data.cores import usable_cores
from equipoise.data.image_files import Progress, check_images, decode, quiet, sides
from equipoise.data.images import ImageList, find_splits, read_images, stratified_split
from equipoise.data.reading import visible
from equipoise.models.processes import world
from equipoise.training.images import ImageData, stored_side
from equipoise.training.progress import in_words

LOOKED_AT = 200  # how many images are opened to choose a training size
SIZES = (32, 64, 96, 128, 160, 224)
LARGEST_ON_CPU = 64
MOST_WORKERS = 32
SECONDS_BETWEEN_COUNTS = 10


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
    decode: str = "auto"


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
    for note in train.notes if world()[1] == 0 else ():
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
    found = []
    for index in range(0, len(images), step):
        try:
            with quiet():
                found.append(min(sides(images.open(index))))
        except Exception:  # a bad image: named later
            continue
    middle = float(np.median(found)) if found else SIZES[-1]
    most = LARGEST_ON_CPU if device.type == "cpu" else SIZES[-1]
    return min(most, next((size for size in SIZES if size >= middle), SIZES[-1]))


def usual_workers() -> int:
    """Processes or threads that decode: one per core, shared by the processes that torchrun started here."""
    return max(1, min(MOST_WORKERS, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


@contextmanager
def counting(log: Callable[[str], None]) -> Iterator[Callable[[str], Progress]]:
    """A function that begins to count one thing after another: bars in a terminal, otherwise a line now and then."""
    console = Console(stderr=True)
    if console.is_terminal:
        with counting_bar(console, transient=True) as bar:

            def begin(what: str) -> Progress:
                task = bar.add_task(what, total=None)
                return lambda done, total: bar.update(task, completed=done, total=total)

            yield begin
        return
    yield lambda what: lines_now_and_then(log, what)


def lines_now_and_then(log: Callable[[str], None], what: str) -> Progress:
    """A line every ten seconds, with the time that is left."""
    began = last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > SECONDS_BETWEEN_COUNTS and done < total:
            last = now
            log(f"  {what}: {done:,} of {total:,}, {in_words((now - began) * (total - done) / done)} to go")

    return progress


def readable(given: ImageSource, data: ImageData, device: torch.device, log: Any) -> ImageData:
    """The data without the images that cannot be read, which are named and counted."""
    workers = given.workers if given.workers is not None else usual_workers()
    data = replace(data, workers=workers, resident=given.resident, decode=given.decode)  # type: ignore[arg-type]
    pixels: dict[str, Any] = {}
    found: list[ImageList] = []
    kept_in_memory = data.fits(device)
    data = replace(data, resident=kept_in_memory)  # decided once: memory is free now
    doing = "decoding" if kept_in_memory else "checking"
    log(f"{doing} {len(data.train):,} training and {len(data.test):,} evaluation images")
    with counting(log) as begin:
        for images, what in ((data.train, "training"), (data.test, "evaluation")):
            reading: dict[str, Any] = {"workers": workers or None, "progress": begin(f"{doing} {what} images")}
            decoded = decode(images, stored_side(data.size), resize=data.resize, **reading) if kept_in_memory else None
            bad = decoded.bad if decoded is not None else check_images(images, **reading)
            if len(bad) and given.on_bad_image == "refuse":
                raise ValueError(f"{images.source}: {bad}; pass --on-bad-image skip to skip them")
            kept = images.without(bad, all_classes=images is data.train) if len(bad) else images
            if len(bad):
                log(visible(f"{images.source}: {bad}; skipped"))
            if decoded is not None:
                pixels[kept.digest] = decoded.pixels[decoded.good] if len(bad) else decoded.pixels
            found.append(kept)
    return replace(data, train=found[0], test=found[1], pixels=pixels)


def shared_files(train: ImageList, test: ImageList) -> int:
    """How many files are in both lists; of images inside tables none is counted."""
    if train.embedded is not None or test.embedded is not None:
        return 0
    own, other = (
        {os.path.normpath(os.path.join(root, path)) for path in images.paths}
        for images, root in ((train, train.root.resolve()), (test, test.root.resolve()))
    )
    return len(own & other)


def files_of(images: ImageList) -> list[str] | None:
    """Where each image is, for pictures of mistakes; None for images that are no files of their own."""
    files = [images.open(index) for index in range(len(images))] if isinstance(images.open(0), str) else []
    return [str(Path(file).resolve()) for file in files if isinstance(file, str)] or None
