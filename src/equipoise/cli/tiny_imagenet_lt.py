"""Train the classifiers of Tiny-ImageNet-LT: what `equipoise run tiny-imagenet-lt` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.cli.options import RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.data.images import read_images
from equipoise.experiments.tiny_imagenet_lt import recipe as tiny
from equipoise.training.image_records import ImageRecord
from equipoise.training.images import ImageClassification, ImageData
from equipoise.training.queue import Settings


def train_tiny_imagenet_lt(options: RunOptions, data: Path, *, compiled: bool) -> None:
    """Train what is missing of the table."""
    place = device_of(options.device)
    asked = asked_cells(tiny.plan(options.validate), options)
    table = f"choices/{tiny.NAME}" if options.validate else tiny.NAME
    recorded = options.recorded(table, ImageRecord)
    cells = missing_cells(asked, recorded)
    if not cells:
        return
    with refusing():
        train, judged, called = tiny.find(data, options.validate)
        images = read_images(train)
        known = ImageData(images, read_images(judged, class_names=images.class_names), tiny.BASE.size, called)
    recipes = tiny.CHOICES if options.validate else tiny.RECIPES
    options = replace(options, together=options.together or (2 if place.type == "cuda" else 1))

    def make(settings: Settings) -> ImageClassification:
        return ImageClassification(table, recipes, known, settings, compiled=compiled)

    train_cells(cells, options, recorded, place, make)
