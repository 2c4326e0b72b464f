"""Train tables of detectors: what `equipoise run table2`, `voc2012-lt` and `mosaic-lt` do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from equipoise.cli.image_sources import usual_workers
from equipoise.cli.options import DetectorChanges, RunOptions, Source
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing, show_warnings
from equipoise.experiments.mosaic_lt import recipe as mosaic_lt
from equipoise.experiments.table2 import recipe as table2
from equipoise.experiments.voc2012_lt import recipe as voc2012_lt
from equipoise.models.processes import join_processes, leave_processes, world
from equipoise.models.weights import check_stride, stride_by_name
from equipoise.training.detection import DetectionRecipe
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.detection_runs import Detection, DetectionData
from equipoise.training.kinds import Settings
from equipoise.training.recipe import Method, MethodCell

MOST_WORKERS = 12  # processes that read images
TABLES: dict[str, Any] = {module.NAME: module for module in (table2, voc2012_lt, mosaic_lt)}


def changes_of(asked: DetectorChanges) -> tuple[dict[str, Any], str]:
    """The changes that the options make to every recipe, and what they add to the name of the records."""
    if asked.longest is not None and not asked.size:
        raise typer.BadParameter("--longest needs --size")
    changes: dict[str, Any] = {"federated": True} if asked.federated else {}
    suffix = "-federated" if asked.federated else ""
    if asked.size:
        most = max(asked.size)
        changes |= {"min_sizes": tuple(sorted(asked.size)), "max_size": asked.longest or round(most * 5 / 3)}
        suffix = f"-{most}px{suffix}"
    return changes, suffix


def start_in_words(source: Source) -> str:
    if source.weights is None:
        return "no --weights: the backbone starts from random weights, and every layer is trained"
    where = source.stride or stride_by_name(source.weights)
    return f"backbone from {source.weights}, its stride in the {where} convolutions"


def train_detectors(
    table: str, options: RunOptions, source: Source, backbone: str | None, changed: DetectorChanges
) -> None:
    """Train the missing runs of a table."""
    with refusing():
        check_stride(source.stride)
    methods, known_seeds, name = _rows(table, backbone, options.validate)
    train, val, images = source.paths(TABLES[table].find)
    changes, suffix = changes_of(changed)
    name = (f"own/{train.stem}/" if source.train else "") + name + suffix
    methods = tuple(replace(method, recipe=replace(method.recipe, **changes)) for method in methods)
    evaluated_on = "val"
    if options.validate and source.data is not None:
        evaluated_on = "held_out"
        with refusing():
            val = TABLES[table].held_out(source.data, options.kept / "held_out.json")
    train_rows(name, methods, known_seeds, options, source, (train, val, images), evaluated_on)


def train_rows(
    name: str,
    methods: Sequence[Method[DetectionRecipe]],
    known_seeds: Sequence[int],
    options: RunOptions,
    source: Source,
    files: tuple[Path, Path, Path],
    evaluated_on: str = "val",
) -> None:
    """Train the missing runs of some methods on `files`: annotations to train and to evaluate on, and the image
    folder."""
    plan = [MethodCell(method.name, seed) for seed in options.seeds or known_seeds for method in methods]
    asked = asked_cells(plan, options)
    place = join_processes(device_of(options.device))
    leads = world()[1] == 0
    log = typer.echo if leads else lambda text: None
    recorded = options.recorded(name, DetectionRecord)
    cells = missing_cells(asked, recorded, log=log)
    workers = workers_for(place.type) if source.workers is None else source.workers
    weights, stride, resident = source.weights, source.stride, source.resident
    data = DetectionData(*files, weights, stride, evaluated_on, workers, resident)  # type: ignore[arg-type]

    def make(settings: Settings) -> Detection:
        settings.log(start_in_words(source))
        show_warnings(settings.log)
        return Detection(name, methods, data, settings)

    if cells:
        train_cells(cells, options, recorded, place, make, leads=leads)
    leave_processes()


def _rows(
    table: str, backbone: str | None, validate: bool
) -> tuple[tuple[Method[DetectionRecipe], ...], tuple[int, ...], str]:
    """The methods of a table, its seeds, and the name of its records."""
    if table == table2.NAME:
        if validate:
            raise typer.BadParameter("--validate is for voc2012-lt and mosaic-lt: nothing was chosen for table2")
        with refusing():
            wanted = backbone or table2.BACKBONES[0]
            return table2.methods(wanted), table2.SEEDS, f"{table2.NAME}/{wanted}"
    if backbone is not None:
        raise typer.BadParameter(f"--backbone is for table2: the recipes of {table} have a ResNet-50")
    if validate:
        return TABLES[table].CHOICES, (0,), f"choices/{table}"
    return TABLES[table].METHODS, TABLES[table].SEEDS, table


def workers_for(device: str) -> int:
    """Processes that read images, by default."""
    return min(MOST_WORKERS, usual_workers()) if device == "cuda" else 0
