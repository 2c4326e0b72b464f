"""Train detectors one after another within a budget of seconds, each record written as its run ends.

A run that does not finish is saved and taken up next time; the weights of one that does are kept, for methods that
start from them and for use.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.data.coco import CocoImages
from equipoise.data.masks import hotcoco
from equipoise.experiments.table2.recipe import Method
from equipoise.metrics.detection import GroundTruth
from equipoise.models.batched_rcnn import ROUNDS, world
from equipoise.models.mask_rcnn import detector_weights, load_detector_weights, stride_of
from equipoise.training.classification import thinned
from equipoise.training.detection import DetectionRecipe, DetectionTraining, Stride, predict, shortened, train
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.queue import Status, interruptible, write_tensors
from equipoise.training.records import hardware, versions
from equipoise.training.resident import FrozenRegions, Resident

EVALUATION = {"cuda": 0.02}  # seconds an image kept for it before it was measured; elsewhere none
REPORT_EVERY = 2.0  # seconds
SHARE = 0.4  # of the device's free memory that images may take, and then features


def join_processes(device: torch.device) -> torch.device:
    """Under torchrun, join the other processes; the device of this one. Alone, nothing happens."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not torch.distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, timeout=timedelta(hours=6))  # the first evaluates, others wait
    return device


def _together() -> None:
    """Wait for the other processes."""
    if world()[0] > 1:
        torch.distributed.barrier()


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
    stride: Stride = None  # of the backbone, where its name does not say it
    evaluated_on: str = "val"
    workers: int = 0
    resident: bool | None = None  # images stay on the device; None: on a GPU, where they fit
    save_every: float = 120.0  # seconds, in case the process is ended from outside
    iterations: int | None = None  # a smoke test: shorter than the recipe says
    together: int = 1  # commands that share the device meanwhile, for the record
    commit: str | None = None
    say: Callable[[str], None] = print
    report: Callable[[Status], None] = lambda status: None  # every few seconds


def note_of(weights: Path) -> Path:
    """The file beside the weights of a finished run that says how they came about."""
    return weights.with_name(weights.name.replace(".weights.pt", ".finished.json"))


class _Files:
    """What outlives a process: of a run cut off its state, of a finished one its weights and how they came about.

    Names end with a fingerprint of the recipe and the training annotations, so that a changed recipe or data set never
    goes on from old files, and a run that was one of the choices need not be trained again for the table.
    """

    def __init__(self, settings: DetectionSettings, methods: Sequence[Method]) -> None:
        self.settings = settings
        self.recipes = {method.name: method.recipe for method in methods}
        with settings.train.open("rb") as file:
            self.trained_on = hashlib.file_digest(file, "sha256").hexdigest()

    def fingerprint(self, method: str) -> str:
        recipe = self.recipes[method]
        start = None if recipe.start is None else self.fingerprint(recipe.start)
        content = recipe.as_dict() | {"start": start, "length": self.settings.iterations}
        trained = [content, self.trained_on, Path(self.settings.backbone or "").name]
        trained += [] if self.settings.stride is None else [self.settings.stride]
        return hashlib.sha256(json.dumps(trained, default=str).encode()).hexdigest()[:10]

    def path(self, cell: Cell, ending: str) -> Path:
        table = self.settings.table.replace("/", "-")
        return self.settings.checkpoints / f"{table}-{cell.method}-{cell.seed}-{self.fingerprint(cell.method)}.{ending}"

    def finished(self, cell: Cell) -> Path | None:
        """The weights of this run, or of the same run under another name."""
        same = f"*-{cell.seed}-{self.fingerprint(cell.method)}.weights.pt"
        found = [self.path(cell, "weights.pt"), *sorted(self.settings.checkpoints.glob(same))]
        return next((path for path in found if path.is_file() and note_of(path).is_file()), None)

    def finish(self, cell: Cell, run: DetectionTraining) -> None:
        path = self.path(cell, "weights.pt")
        if world()[1] == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            note = {"iteration": run.iteration, "losses": run.losses, "seconds": run.seconds}
            note |= {"unsettled": run.unsettled, "features_seconds": run.features_seconds}
            note["detector"] = {
                "backbone": run.recipe.backbone,
                "stride": stride_of(run.model),
                "size": run.recipe.min_sizes[-1],
                "longest": run.recipe.max_size,
            }
            note_of(path).write_text(json.dumps(note))
        _write_tensors(path, detector_weights(run.model))

    def take_up(self, cell: Cell, run: DetectionTraining) -> None:
        """Bring a new run to where it was left."""
        weights, state = self.finished(cell), self.path(cell, "checkpoint.pt")
        if weights is not None:
            note = json.loads(note_of(weights).read_text())
            run.iteration, run.losses, run.seconds = note["iteration"], note["losses"], note["seconds"]
            run.unsettled, run.features_seconds = note["unsettled"], note.get("features_seconds")
            load_detector_weights(run.model, torch.load(weights, map_location=run.device, weights_only=True))
        elif state.is_file():
            run.load_state_dict(torch.load(state, map_location=run.device, weights_only=True))


def run_cells(
    cells: Sequence[Cell],
    methods: Sequence[Method],
    settings: DetectionSettings,
    *,
    write: Callable[[DetectionRecord], None],
    budget: float = float("inf"),
) -> list[Cell]:
    """Train `cells` in order while `budget` seconds last; returns those that were recorded.

    Under torch.distributed all processes call it; the first writes files and records, and evaluates.

    A cell whose start is not there is trained after that start, which is recorded only if it is among the cells. One
    whose loss is no number any more is left out, with those that start from it; the others go on.
    """
    hotcoco()  # what is trained will be evaluated: better to learn now that it cannot
    deadline = time.monotonic() + budget
    by_name = {method.name: method for method in methods}
    store, files = _Store(settings), _Files(settings, methods)
    wanted, waiting, recorded = set(cells), list(cells), []
    failed: set[Cell] = set()
    begun = False
    evaluation = EVALUATION.get(settings.device.type, 0.0) * len(store.val)
    while waiting:
        cell = waiting[0]
        start = by_name[cell.method].recipe.start
        first = None if start is None else Cell(start, cell.seed)
        if first in failed:
            settings.say(f"{cell}: left out, as {first} was")
            failed.add(waiting.pop(0))
            continue
        if first is not None and files.finished(first) is None:
            waiting = [first, *(other for other in waiting if other != first)]
            continue
        if begun and _first_says(time.monotonic() + evaluation >= deadline, settings.device):
            settings.say(f"{cell}: out of time, not begun")
            break
        waiting.pop(0)
        begun = True
        run = _resumed(cell, by_name[cell.method], store, files)
        try:
            with interruptible(settings.say) as interrupted:
                finished = train(
                    run,
                    until=deadline - evaluation,
                    stop=interrupted,
                    workers=settings.workers,
                    report=lambda done, seconds, loss, run=run: settings.report(_status(run, done, seconds)),  # type: ignore[misc]
                    every=REPORT_EVERY,
                    save=lambda cell=cell, run=run: _write_tensors(files.path(cell, "checkpoint.pt"), run.state_dict()),  # type: ignore[misc]
                    save_every=settings.save_every,
                )
        except FloatingPointError as error:
            settings.say(f"{cell}: left out: {error}")
            failed.add(cell)
            if _first_says(interrupted(), settings.device):
                raise KeyboardInterrupt from None
            continue
        if not finished:
            _write_tensors(files.path(cell, "checkpoint.pt"), run.state_dict())
            by_hand = _first_says(interrupted(), settings.device)
            why = "interrupted" if by_hand else "out of time"
            settings.say(f"{cell}: {why} at iteration {run.iteration} of {run.iterations}; saved for next time")
            if by_hand:
                raise KeyboardInterrupt
            break
        if _first_says(files.finished(cell) is None, settings.device):
            files.finish(cell, run)
        if world()[1] == 0:
            files.path(cell, "checkpoint.pt").unlink(missing_ok=True)
        if _first_says(interrupted(), settings.device):
            settings.say(f"{cell}: interrupted after its last iteration; saved, to be evaluated next time")
            raise KeyboardInterrupt
        if cell in wanted:
            if _first_says(time.monotonic() + evaluation > deadline, settings.device):
                settings.say(f"{cell}: trained, but too little time is left to evaluate it; saved for next time")
                break
            recorded.append(cell)
            if world()[1] > 0:
                continue
            try:
                record = _record(cell, run, store, settings)
            except KeyboardInterrupt:
                settings.say(f"{cell}: interrupted while it was evaluated; its weights are kept")
                raise
            evaluation = record.evaluation_seconds * 1.2
            write(record)
            shown = _SHOWN if record.AP_mask is not None else ("AP_box", *_SHOWN[1:4], *_SHOWN[5:])
            of = "" if record.AP_mask is not None else ", all of boxes"
            settings.say(f"{cell}: " + ", ".join(f"{k} {_number(getattr(record, k))}" for k in shown) + of)
    return recorded


def _first_says(answer: bool, device: torch.device) -> bool:
    """The first process's answer, for all of them."""
    if world()[0] == 1:
        return answer
    flag = torch.tensor(int(answer), device=device)
    torch.distributed.broadcast(flag, 0)
    return bool(flag)


class _Store:
    """The images to train and to evaluate on, and what is kept of them on the device between runs."""

    def __init__(self, settings: DetectionSettings) -> None:
        self.settings = settings
        self.data = CocoImages(settings.train, settings.images)
        self.val = CocoImages(settings.val, settings.images)
        if self.val.class_ids != self.data.class_ids:
            raise ValueError(f"{settings.train} and {settings.val} have different categories")
        self.truth = GroundTruth(settings.val, self.data.prior())
        self._resident: dict[tuple[bool, int, int], Resident] = {}
        self._frozen: tuple[Any, FrozenRegions] | None = None

    def resident(self, recipe: DetectionRecipe, *, training: bool) -> Resident | None:
        """The images on the device, where the recipe has one size of images and they fit."""
        data = self.data if training else self.val
        sizes = (recipe.min_sizes[-1], recipe.max_size)
        if self.settings.resident is False or len(recipe.min_sizes) > 1:
            return None
        if (training, *sizes) not in self._resident:
            if self.settings.resident is None and not self._fits(data, sizes, training):
                return None
            began = time.monotonic()
            self._resident[training, *sizes] = Resident(
                data,
                self.settings.device,
                shorter=sizes[0],
                longer=sizes[1],
                targets=training,
                mirrored=training,
                workers=max(1, self.settings.workers),
            )
            self.settings.say(f"{len(data)} images decoded in {time.monotonic() - began:.0f} s, kept on the device")
        return self._resident[training, *sizes]

    def _fits(self, data: CocoImages, sizes: tuple[int, int], training: bool) -> bool:
        if self.settings.device.type != "cuda":
            return False
        return Resident.bytes(data, *sizes, mirrored=training) < SHARE * self._free()

    def _free(self) -> float:
        """Bytes of a GPU's memory that nothing holds."""
        if self.settings.device.type != "cuda":
            return float("inf")
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.settings.device)[0]

    def frozen(self, run: DetectionTraining, key: Any) -> None:
        """What the classifier of a second stage sees, computed once for all methods that start from the same."""
        if run.resident is None or run.recipe.start is None:
            return
        if self._frozen is not None and self._frozen[0] == key:
            run.features_seconds = round(run.freeze(self._frozen[1]).seconds, 1)
            return
        self._frozen = None  # first make room
        needed = FrozenRegions.bytes(run.batched, run.resident)
        if _first_says(needed > SHARE * self._free(), self.settings.device):
            self.settings.say(f"features of all boxes would take {needed / 1e9:.0f} GB: computed anew in every step")
            return
        began = time.monotonic()
        frozen = run.freeze()
        if self.settings.device.type == "cuda":
            torch.cuda.synchronize(self.settings.device)
        frozen.seconds = time.monotonic() - began
        self._frozen, run.features_seconds = (key, frozen), round(frozen.seconds, 1)
        self.settings.say(f"features of all boxes computed in {frozen.seconds:.0f} s")


_SHOWN = ("AP_mask", "AP_f", "AP_c", "AP_r", "AP_box", "seconds", "evaluation_seconds")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _resumed(cell: Cell, method: Method, store: _Store, files: _Files) -> DetectionTraining:
    settings, recipe, data = files.settings, method.recipe, store.data
    start: dict[str, Tensor] | None = None
    if recipe.start is not None:
        weights = files.finished(Cell(recipe.start, cell.seed))
        assert weights is not None  # run_cells trains it first
        start = torch.load(weights, map_location="cpu", weights_only=True)
    if settings.iterations is not None:
        recipe = shortened(recipe, settings.iterations, len(data))
    run = DetectionTraining(
        recipe,
        data,
        cell.seed,
        settings.device,
        backbone=settings.backbone,
        stride=settings.stride,
        start=start,
        iterations=settings.iterations,
        resident=store.resident(recipe, training=True),
    )
    files.take_up(cell, run)
    if recipe.start is not None and not run.done:
        store.frozen(run, (files.fingerprint(recipe.start), cell.seed, recipe.proposals))
    settings.say(f"{cell}: iteration {run.iteration} of {run.iterations}, {recipe.batch_size} images each")
    return run


def _status(run: DetectionTraining, done: int, seconds: float) -> Status:
    """How far a run is, after so many iterations in so many seconds of this process."""
    rate = seconds / max(done, 1)
    left = run.iterations - run.iteration
    return Status(run.iteration, run.iterations, run.recipe.batch_size / max(rate, 1e-9), rate * left)


def _record(
    cell: Cell,
    run: DetectionTraining,
    store: _Store,
    settings: DetectionSettings,
) -> DetectionRecord:
    val, truth = store.val, store.truth
    resident = store.resident(run.recipe, training=False)
    began = time.monotonic()

    def report(done: int) -> None:
        rate = (time.monotonic() - began) / done
        settings.report(Status(done, len(val), 1 / max(rate, 1e-9), rate * (len(val) - done), "images evaluated"))

    found = predict(
        run.model, val, settings.device, batch_size=16, workers=settings.workers, resident=resident, report=report
    )
    predicted = time.monotonic() - began
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
            "stride": stride_of(run.model),
            "precision": "bf16 autocast, classifier and losses fp32" if settings.device.type == "cuda" else "fp32",
            "processes": world()[0],
            "together": settings.together,
            "images": "from files" if run.resident is None else "resident",
            "features": "computed anew" if run.features_seconds is None else "computed once",
            "features_seconds": run.features_seconds,  # for all methods
            "detections": len(found),
            "predicted_images_per_second": round(len(val) / max(predicted, 1e-9), 1),
            "nms_rounds": ROUNDS if settings.device.type == "cuda" else None,  # as many as it takes
            "nms_unsettled": run.unsettled,
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
    """The first process writes it, and the others wait."""
    if world()[1] == 0:
        write_tensors(path, content)
    _together()
