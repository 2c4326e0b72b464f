"""Train tables of detectors: what `equipoise run table2`, `voc2012-lt` and `mosaic-lt` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from equipoise.cli.image_sources import usual_workers
from equipoise.cli.options import RunOptions
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


@dataclass(frozen=True)
class Source:
    """Where images and the backbone's weights come from."""

    data: Path | None
    train: Path | None
    val: Path | None
    images: Path | None
    weights: str | None
    stride: str | None
    workers: int | None
    resident: bool | None

    def paths(self, find: Callable[[Path], tuple[Path, Path, Path]]) -> tuple[Path, Path, Path]:
        """The annotations to train and to evaluate on, and the folder of the images; `find` looks for them in
        --data."""
        if self.train and self.val and self.images:
            return self.train, self.val, self.images
        if self.train or self.val or self.images:
            raise typer.BadParameter("your own data needs all of --train, --val and --images")
        if self.data is None:
            raise typer.BadParameter("which data? Give --data FOLDER, or your own with --train, --val and --images")
        with refusing():
            return find(self.data)

    def in_words(self) -> str:
        if self.weights is None:
            return "no --weights: the backbone starts from random weights, and every layer is trained"
        where = self.stride or stride_by_name(self.weights)
        return f"backbone from {self.weights}, its stride in the {where} convolutions"


def changes_of(size: Sequence[int] | None, longest: int | None, federated: bool) -> tuple[dict[str, Any], str]:
    """The changes that the options make to every recipe, and what they add to the name of the records."""
    if longest is not None and not size:
        raise typer.BadParameter("--longest needs --size")
    changes: dict[str, Any] = {"federated": True} if federated else {}
    if size:
        changes |= {"min_sizes": tuple(sorted(size)), "max_size": longest or round(max(size) * 5 / 3)}
    return changes, (f"-{max(size)}px" if size else "") + ("-federated" if federated else "")


def train_detectors(table: str, options: RunOptions, source: Source, backbone: str | None, **changed: Any) -> None:
    """Train the missing runs of a table."""
    with refusing():
        check_stride(source.stride)
    methods, known_seeds, name = _rows(table, backbone, options.validate)
    train, val, images = source.paths(TABLES[table].find)
    changes, suffix = changes_of(**changed)
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
        settings.log(source.in_words())
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
