"""Train tables of detectors: what `equipoise run table2` and `voc2012-lt` do."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from equipoise.cli.options import RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.experiments.table2 import recipe as table2
from equipoise.experiments.voc2012_lt import recipe as voc2012_lt
from equipoise.models.batched_rcnn import world
from equipoise.models.mask_rcnn import stride_by_name
from equipoise.training.detection import DetectionRecipe
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.detection_runs import Detection, DetectionData, join_processes, with_changes
from equipoise.training.queue import Settings
from equipoise.training.recipe import Method, MethodCell


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

    @property
    def own(self) -> bool:
        """Whether it is a user's own data, rather than a data set in its official layout."""
        given = (self.train, self.val, self.images)
        if any(given) and not all(given):
            raise typer.BadParameter("your own data needs all of --train, --val and --images")
        return all(given)

    def paths(self, table: str) -> tuple[Path, Path, Path]:
        """Annotations to train and to evaluate on, and the folder of the images."""
        if self.train and self.val and self.images:
            return self.train, self.val, self.images
        if self.data is None:
            raise typer.BadParameter("which data? Give --data FOLDER, or your own with --train, --val and --images")
        with refusing():
            return voc2012_lt.find(self.data) if table == voc2012_lt.NAME else table2.find(self.data)

    def in_words(self) -> str:
        if self.weights is None:
            return "no --weights: the backbone starts from random numbers, and every layer is trained"
        where = self.stride or stride_by_name(self.weights)
        return f"backbone from {self.weights}, its stride in the {where} convolutions"


@dataclass(frozen=True)
class Changes:
    """What the options change in every recipe."""

    size: Sequence[int] | None = None
    longest: int | None = None
    federated: bool = False

    @property
    def suffix(self) -> str:
        """What they add to the name of the records."""
        return (f"-{max(self.size)}px" if self.size else "") + ("-federated" if self.federated else "")

    def as_dict(self) -> dict[str, Any]:
        if self.longest is not None and not self.size:
            raise typer.BadParameter("--longest goes with --size")
        changes: dict[str, Any] = {"federated": True} if self.federated else {}
        if self.size:
            longest = self.longest or round(max(self.size) * 5 / 3)
            changes |= {"min_sizes": tuple(sorted(self.size)), "max_size": longest}
        return changes


def train_detectors(table: str, options: RunOptions, source: Source, backbone: str, changes: Changes) -> None:
    """Train what is missing of a table."""
    if source.stride not in (None, "1x1", "3x3"):
        raise typer.BadParameter(f"--stride {source.stride}: expected 1x1 or 3x3")
    methods, known_seeds, name = _rows(table, backbone, options.validate)
    own, (train, val, images) = source.own, source.paths(table)
    name = (f"own/{train.stem}/" if own else "") + name + changes.suffix
    methods = with_changes(methods, **changes.as_dict())
    evaluated_on = "val"
    if options.validate and source.data is not None:
        evaluated_on = "held_out"
        val = voc2012_lt.write_held_out(source.data, options.kept / "held_out.json")
    plan = [MethodCell(method.name, seed) for seed in options.seeds or known_seeds for method in methods]
    asked = asked_cells(plan, options)
    place = join_processes(device_of(options.device))
    leads = world()[1] == 0
    log = typer.echo if leads else lambda text: None
    recorded = options.recorded(name, DetectionRecord)
    cells = missing_cells(asked, recorded, log=log)
    workers = workers_for(place.type) if source.workers is None else source.workers
    weights, stride, resident = source.weights, source.stride, source.resident
    data = DetectionData(train, val, images, weights, stride, evaluated_on, workers, resident)  # type: ignore[arg-type]

    def make(settings: Settings) -> Detection:
        settings.log(source.in_words())
        warnings.showwarning = lambda message, *_, **__: settings.log(str(message))
        return Detection(name, methods, data, settings)

    if cells:
        with warnings.catch_warnings():
            train_cells(cells, options, recorded, place, make, leads=leads)


def _rows(
    table: str, backbone: str, validate: bool
) -> tuple[tuple[Method[DetectionRecipe], ...], tuple[int, ...], str]:
    """The methods of a table, its seeds, and the name that its records have."""
    if table != voc2012_lt.NAME:
        if validate:
            raise typer.BadParameter("--validate is for voc2012-lt: nothing was chosen for table2")
        with refusing():
            return table2.methods(backbone), table2.SEEDS, f"{table2.NAME}/{backbone}"
    if validate:
        return voc2012_lt.CHOICES, (0,), f"choices/{voc2012_lt.NAME}"
    return voc2012_lt.METHODS, voc2012_lt.SEEDS, voc2012_lt.NAME


def workers_for(device: str) -> int:
    """Processes that read images, by default."""
    return min(12, os.cpu_count() or 1) if device == "cuda" else 0
