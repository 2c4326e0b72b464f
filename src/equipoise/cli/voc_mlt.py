"""Train the multi-label classifiers of VOC-MLT: what `equipoise run voc-mlt` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from equipoise.cli.image_tables import started
from equipoise.cli.options import RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.experiments.voc_mlt import recipe as voc
from equipoise.training.images import ImageData
from equipoise.training.kinds import Settings
from equipoise.training.multilabel import MultilabelClassification
from equipoise.training.multilabel_records import MultilabelRecord


def train_voc_mlt(options: RunOptions, data: Path, weights: str | None, stride: str | None, *, compiled: bool) -> None:
    """Train the missing runs of the table."""
    place = device_of(options.device)
    if weights is None:
        raise typer.BadParameter("the recipe starts from ImageNet weights: pass a file for ResNet-50 as --weights")
    asked = asked_cells(voc.plan(), options)
    recorded = options.recorded(voc.NAME, MultilabelRecord)
    cells = missing_cells(asked, recorded)
    if not cells:
        return
    with refusing():
        train, test = voc.find(data)
        images = ImageData(train, test, voc.BASE.size, "test", resize="square")
        recipes, start = started(voc.RECIPES, weights, stride)
    options = replace(options, together=options.together or (4 if place.type == "cuda" else 1))

    def make(settings: Settings) -> MultilabelClassification:
        shared = {"start": start, "starts_from": Path(weights).name, "compiled": compiled}
        return MultilabelClassification(voc.NAME, recipes, images, settings, **shared)  # type: ignore[arg-type]

    train_cells(cells, options, recorded, place, make)
