"""Both kinds of runs, small enough for a CPU, with one way to send them through the queue."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.training.classification_runs import Classification, Store
from equipoise.training.detection import DetectionRecipe
from equipoise.training.detection_runs import Detection, DetectionData
from equipoise.training.kinds import Kind, Settings
from equipoise.training.queue import run_cells
from equipoise.training.recipe import Cell, Method, MethodCell, Recipe
from helpers.cifar_files import write_cifar10
from helpers.coco_files import SIDE, write_lvis
from helpers.small_detectors import use_small_detectors

CPU = torch.device("cpu")
CLASSIFIER = Recipe(blocks=1, batch_size=4, iterations=43, warmup=5)
CLASSIFIERS = {
    "one": CLASSIFIER,
    "two": replace(CLASSIFIER, loss=BalancedSoftmaxLoss),
    "second": replace(CLASSIFIER, backbone="one", iterations=3, warmup=0),
}
DETECTOR = DetectionRecipe(
    backbone="resnet18", epochs=0.5, batch_size=2, warmup=0, lr=0.005, min_sizes=(SIDE,), max_size=SIDE
)
DETECTORS = (
    Method("one", DETECTOR),
    Method("two", replace(DETECTOR, lr=0.002)),
    Method("second", replace(DETECTOR, start="one", head="scaled")),
)


@dataclass
class Queue:
    """Runs "one", "two", and "second", which starts from "one"; `chunk` of `iterations` are trained at a time."""

    folder: Path
    make: Callable[[Settings], Kind[Any, Any]]
    cell: Callable[[str], Any]
    chunk: int
    iterations: int

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def settings(self, **options: Any) -> Settings:
        return Settings(CPU, self.checkpoints, self.folder / "claims", **options)

    def __call__(self, *methods: str, recorded: Any = tuple, **options: Any) -> tuple[list[Any], list[str]]:
        """Train, and return the records and what was logged."""
        said: list[str] = []
        records: list[Any] = []
        settings = self.settings(**({"log": said.append} | options))
        with warnings.catch_warnings(action="ignore"):
            cells = [self.cell(method) for method in methods]
            run_cells(cells, self.make(settings), settings, write=records.append, recorded=recorded)
        return records, said

    def file(self, method: str, ending: str) -> Path:
        """The file of a run."""
        with warnings.catch_warnings(action="ignore"):
            return self.checkpoints / f"{self.make(self.settings()).name(self.cell(method))}.{ending}"


def classifiers(folder: Path) -> Queue:
    if not (folder / "data").exists():
        write_cifar10(folder / "data")

    def make(settings: Settings) -> Classification:
        store = Store(folder / "data", CPU)
        return Classification("table1", lambda cell: CLASSIFIERS[cell.method], store, settings, backbones={"one"})

    return Queue(folder, make, lambda method: Cell("cifar10-lt", 20, method, 0), 20, 43)


def detectors(folder: Path, monkeypatch: pytest.MonkeyPatch, methods: Sequence[Any] = DETECTORS) -> Queue:
    use_small_detectors(monkeypatch)
    monkeypatch.setattr("equipoise.training.detection_runs.REPORT_EVERY", 0)
    for name, images in (("train.json", 8), ("val.json", 2)):
        write_lvis(folder / "images", images, name=name)
    data = DetectionData(folder / "images" / "train.json", folder / "images" / "val.json", folder / "images")
    return Queue(folder, lambda settings: Detection("own", methods, data, settings), lambda m: MethodCell(m, 0), 1, 2)
