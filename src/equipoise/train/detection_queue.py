"""Train detectors one after another within a budget of seconds, each record written as its run ends.

A run that does not finish is saved and taken up next time; the weights of one that does are kept, for methods that
start from them and for use.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.data.coco import CocoImages
from equipoise.data.masks import hotcoco
from equipoise.detection_records import DetectionRecord
from equipoise.metrics.detection import GroundTruth
from equipoise.models.mask_rcnn import detector_weights
from equipoise.recipes.table2 import Method
from equipoise.records import hardware, versions
from equipoise.train.classification import thinned
from equipoise.train.detection import DetectionTraining, predict, shortened, train

EVALUATION = {"cuda": 60.0, "cpu": 0.0}  # seconds kept for it before it was measured


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.method}/{self.seed}"


@dataclass(frozen=True)
class DetectionSettings:
    """Where and how to run, apart from what."""

    table: str
    train: Path
    val: Path
    images: Path
    device: torch.device
    checkpoints: Path
    backbone: str | None = None
    evaluated_on: str = "val"
    workers: int = 0
    iterations: int | None = None  # a smoke test: shorter than the recipe says
    commit: str | None = None
    say: Callable[[str], None] = print

    def path(self, cell: Cell, ending: str) -> Path:
        """Where a run keeps what outlives a process."""
        length = "" if self.iterations is None else f"-{self.iterations}"
        return self.checkpoints / f"{self.table.replace('/', '-')}-{cell.method}-{cell.seed}{length}.{ending}"


def run_cells(
    cells: Sequence[Cell],
    methods: Sequence[Method],
    settings: DetectionSettings,
    *,
    write: Callable[[DetectionRecord], None],
    budget: float = float("inf"),
) -> list[Cell]:
    """Train `cells` in order while `budget` seconds last; returns those that were recorded.

    A cell whose start is not there is trained after that start, which is recorded only if it is among the cells.
    """
    hotcoco()  # what is trained will be evaluated: better to learn now that it cannot
    deadline = time.monotonic() + budget
    by_name = {method.name: method for method in methods}
    data = CocoImages(settings.train, settings.images)
    val = CocoImages(settings.val, settings.images)
    if val.class_ids != data.class_ids:
        raise ValueError(f"{settings.train} and {settings.val} have different categories")
    truth = GroundTruth(settings.val, data.prior())
    wanted, waiting, recorded = set(cells), list(cells), []
    evaluation = EVALUATION[settings.device.type]
    while waiting:
        cell = waiting[0]
        start = by_name[cell.method].recipe.start
        if start is not None and not settings.path(Cell(start, cell.seed), "weights.pt").is_file():
            first = Cell(start, cell.seed)
            waiting = [first, *(other for other in waiting if other != first)]
            continue
        waiting.pop(0)
        run = _resumed(cell, by_name[cell.method], data, settings)
        finished = train(
            run,
            until=deadline - evaluation,
            workers=settings.workers,
            report=lambda done, seconds, loss, run=run: _report(settings, run, done, seconds, loss),  # type: ignore[misc]
        )
        if not finished:
            _write_tensors(settings.path(cell, "checkpoint.pt"), run.state_dict())
            settings.say(f"{cell}: out of time at iteration {run.iteration} of {run.iterations}; saved for next time")
            break
        _write_tensors(settings.path(cell, "weights.pt"), detector_weights(run.model))
        if cell in wanted:
            if time.monotonic() + evaluation > deadline:
                _write_tensors(settings.path(cell, "checkpoint.pt"), run.state_dict())
                settings.say(f"{cell}: trained, but too little time is left to evaluate it; saved for next time")
                break
            record = _record(cell, run, val, truth, settings)
            evaluation = record.evaluation_seconds * 1.2
            write(record)
            recorded.append(cell)
            settings.say(f"{cell}: " + ", ".join(f"{k} {_number(getattr(record, k))}" for k in _SHOWN))
        settings.path(cell, "checkpoint.pt").unlink(missing_ok=True)
    return recorded


_SHOWN = ("AP_mask", "AP_f", "AP_c", "AP_r", "AP_box", "seconds", "evaluation_seconds")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _resumed(cell: Cell, method: Method, data: CocoImages, settings: DetectionSettings) -> DetectionTraining:
    recipe = method.recipe
    start: dict[str, Tensor] | None = None
    if recipe.start is not None:
        start = torch.load(settings.path(Cell(recipe.start, cell.seed), "weights.pt"), weights_only=True)
    if settings.iterations is not None:
        recipe = shortened(recipe, settings.iterations, len(data))
    run = DetectionTraining(
        recipe,
        data,
        cell.seed,
        settings.device,
        backbone=settings.backbone,
        start=start,
        iterations=settings.iterations,
    )
    path = settings.path(cell, "checkpoint.pt")
    if path.is_file():
        run.load_state_dict(torch.load(path, map_location=settings.device, weights_only=True))
    settings.say(f"{cell}: iteration {run.iteration} of {run.iterations}, {recipe.batch_size} images each")
    return run


def _report(settings: DetectionSettings, run: DetectionTraining, done: int, seconds: float, loss: float) -> None:
    rate = seconds / max(done, 1)
    settings.say(
        f"  {run.iteration} of {run.iterations} iterations, loss {loss:.3f}, {run.recipe.batch_size / rate:.1f} img/s, "
        f"{rate * (run.iterations - run.iteration):.0f} s to go"
    )


def _record(
    cell: Cell,
    run: DetectionTraining,
    val: CocoImages,
    truth: GroundTruth,
    settings: DetectionSettings,
) -> DetectionRecord:
    began = time.monotonic()
    found = predict(run.model, val, settings.device, workers=settings.workers)
    masks = None
    if run.data.has_masks and truth.has_masks:
        masks = _rounded(truth.evaluate(found, "segm"))
    boxes = _rounded(truth.evaluate(found, "bbox"))
    groups = boxes if masks is None else masks
    trained = run.iterations * run.recipe.batch_size
    return DetectionRecord(
        table=settings.table,
        method=cell.method,
        seed=cell.seed,
        AP_mask=None if masks is None else masks["AP"],
        AP_f=groups["APf"],
        AP_c=groups["APc"],
        AP_r=groups["APr"],
        AP_box=boxes["AP"],
        mask=masks,
        box=boxes,
        evaluated_on=settings.evaluated_on,
        evaluated_images=len(val),
        iterations=run.iteration,
        complete=settings.iterations is None,
        recipe=run.recipe.as_dict(),
        trained_on=settings.train.name,
        backbone=None if settings.backbone is None else Path(settings.backbone).name,
        counts=run.data.prior().counts.tolist(),
        class_names=list(run.data.class_names),
        loss_curve=thinned(run.losses),
        weights=_digest(run.model),
        seconds=round(run.seconds, 1),
        images_per_second=round(trained / max(run.seconds, 1e-9), 1),
        evaluation_seconds=round(time.monotonic() - began, 1),
        engine={
            "precision": "bf16 autocast, classifier and losses fp32" if settings.device.type == "cuda" else "fp32",
            "detections": len(found),
        },
        commit=settings.commit,
        versions=versions() | _detection_versions(),
        hardware=hardware(settings.device),
    )


def _rounded(numbers: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in numbers.items()}


def _detection_versions() -> dict[str, str]:
    import torchvision  # type: ignore[import-untyped]

    return {"torchvision": torchvision.__version__, "hotcoco": str(getattr(hotcoco(), "__version__", "unknown"))}


def _digest(model: torch.nn.Module) -> str:
    total = hashlib.sha256()
    for name, value in sorted(detector_weights(model).items()):
        total.update(name.encode() + value.detach().float().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def _write_tensors(path: Path, content: Any) -> None:
    """Whole or not at all: a process killed meanwhile leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    torch.save(content, scratch)
    scratch.replace(path)
