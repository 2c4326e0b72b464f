"""Runs of detectors for the queue: where their images are, and how they are prepared, trained and evaluated.

Weights of finished runs are kept, for methods that start from them and for use. Under torchrun every process does the
same; the first one writes files and records, and evaluates.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.data.coco import CocoImages, check_same_categories
from equipoise.data.masks import hotcoco
from equipoise.metrics.detection import Detections, GroundTruth
from equipoise.models.mask_rcnn import detector_weights, stride_of
from equipoise.models.processes import first_says, world
from equipoise.models.weights import Stride
from equipoise.training.classification import thinned
from equipoise.training.detection import DetectionRecipe, DetectionTraining, predict, train
from equipoise.training.detection_judging import fields_of, measures_of, predict_best, rounded
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.kept import claims_held
from equipoise.training.kinds import Context, Kind, Settings
from equipoise.training.progress import Status
from equipoise.training.recipe import Method, MethodCell
from equipoise.training.records import hardware, versions
from equipoise.training.resident import FrozenRegions, Resident
from equipoise.training.weights import weights_digest

EVALUATION = {"cuda": 0.06}  # seconds per image kept for it before it was measured; elsewhere none
REPORT_EVERY = 2.0  # seconds
NMS = "exact"  # of proposals in training; it was once cut off after some rounds, and those detectors are different ones
SHARE = 0.4  # of the device's free memory that images may take, and then features
SHOWN = ("AP_mask", "AP_f", "AP_c", "AP_r", "AP_box", "seconds", "evaluation_seconds")


@dataclass(frozen=True)
class DetectionData:
    """What to train and evaluate on, and what the backbone starts from."""

    train: Path
    val: Path
    images: Path
    backbone: str | None = None
    stride: Stride = None  # of the backbone, if its name does not tell
    evaluated_on: str = "val"
    workers: int = 0
    resident: bool | None = None  # images stay on the device; None: on a GPU, if they fit


class Images:
    """The images to train and to evaluate on, and what is kept of them on the device between runs."""

    def __init__(self, data: DetectionData, settings: Settings) -> None:
        self.given, self.device, self.log = data, settings.device, settings.log
        self.train, self.val = CocoImages(data.train, data.images), CocoImages(data.val, data.images)
        check_same_categories(self.val.categories, data.val, self.train.categories, data.train)
        self.truth = GroundTruth(data.val, self.train.prior())
        self._resident: dict[tuple[bool, int, int], Resident] = {}
        self._frozen: tuple[Any, FrozenRegions] | None = None

    def resident(self, recipe: DetectionRecipe, *, training: bool) -> Resident | None:
        """The images on the device, if the recipe has one image size and they fit."""
        data = self.train if training else self.val
        sizes = (recipe.min_sizes[-1], recipe.max_size)
        if self.given.resident is False or len(recipe.min_sizes) > 1:
            return None
        if (training, *sizes) not in self._resident:
            needed = Resident.bytes(data, *sizes, training=training)
            if self.given.resident is None and (self.device.type == "cpu" or needed >= SHARE * self._free()):
                return None
            began = time.monotonic()
            shape = {"shorter": sizes[0], "longer": sizes[1], "workers": max(1, self.given.workers)}
            self._resident[training, *sizes] = Resident(data, self.device, training=training, **shape)
            self.log(f"{len(data)} images decoded in {time.monotonic() - began:.0f} s, kept on the device")
        return self._resident[training, *sizes]

    def _free(self) -> float:
        """Free bytes of a GPU's memory."""
        if self.device.type != "cuda":
            return float("inf")
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def freezes(self, run: DetectionTraining, key: Any) -> bool:
        """Whether the inputs of a second stage's classifier are computed once for all runs that start from the same
        detector."""
        if run.resident is None or run.recipe.start is None:
            return False
        if self._frozen is not None and self._frozen[0] == key:
            return True
        self._frozen = None  # first make room
        needed = FrozenRegions.bytes(run.batched, run.resident)
        if first_says(needed > SHARE * self._free(), self.device):
            self.log(f"features of all boxes would take {needed / 1e9:.0f} GB: computed again in every step")
            return False
        return True

    def freeze(self, run: DetectionTraining, key: Any) -> None:
        """Compute these inputs, or reuse what was computed for another method."""
        if self._frozen is None or self._frozen[0] != key:
            began = time.monotonic()
            frozen = run.freeze()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            frozen.seconds = time.monotonic() - began
            self._frozen = (key, frozen)
            self.log(f"features of all boxes computed in {frozen.seconds:.0f} s")
        run.features_seconds = round(run.freeze(self._frozen[1]).seconds, 1)


class Detection(Kind[MethodCell, DetectionTraining]):
    """The kind of runs that `methods` describe."""

    def __init__(
        self, table: str, methods: Sequence[Method[DetectionRecipe]], data: DetectionData, settings: Settings
    ) -> None:
        hotcoco()  # everything trained will be evaluated: better to find out now if it cannot be
        self.table, self.data, self.settings = table, data, settings
        self.images = Images(data, settings)
        self.recipes = {method.name: method.recipe for method in methods}
        self._evaluation = EVALUATION.get(settings.device.type, 0.0) * len(self.images.val)
        self._freezes: dict[DetectionTraining, Any] = {}  # the key of the features that a run trains from
        with data.train.open("rb") as file:
            self._trained_on = hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def leads(self) -> bool:
        return world()[1] == 0

    def agree(self, answer: bool) -> bool:
        return first_says(answer, self.settings.device)

    # what a run is

    def recipe(self, cell: MethodCell) -> DetectionRecipe:
        """The cell's recipe; for a smoke test, with a shorter warm-up."""
        recipe, iterations = self.recipes[cell.method], self.settings.iterations
        if iterations is None:
            return recipe
        return replace(recipe, warmup=recipe.warmup * iterations // max(recipe.iterations(len(self.images.train)), 1))

    def iterations(self, cell: MethodCell) -> int:
        given, own = self.settings.iterations, self.recipes[cell.method].iterations(len(self.images.train))
        return own if given is None or own == 0 else given  # what is adjusted afterwards is never trained

    def starts_from(self, cell: MethodCell) -> MethodCell | None:
        start = self.recipes[cell.method].start
        return None if start is None else MethodCell(start, cell.seed)

    def keeps(self, cell: MethodCell) -> bool:
        return True

    def made_from(self, cell: MethodCell) -> dict[str, Any]:
        return self._identity(cell.method) | {"seed": cell.seed}

    def _identity(self, method: str) -> dict[str, Any]:
        """Recipe and data; what the run starts from is given by its identity instead of its name."""
        recipe, data = self.recipes[method], self.data
        backbone = {"weights": Path(data.backbone or "").name, "stride": data.stride}
        more = {"start": recipe.start and self._fingerprint(recipe.start), "length": self.settings.iterations}
        return recipe.as_dict() | more | {"trained_on": self._trained_on, "nms": NMS} | backbone

    def _fingerprint(self, method: str) -> str:
        return hashlib.sha256(json.dumps(self._identity(method), default=str).encode()).hexdigest()[:10]

    def name(self, cell: MethodCell) -> str:
        """With a fingerprint of recipe and data, so that runs with other options do not touch its files."""
        return f"{self.table.replace('/', '-')}-{cell.method}-{cell.seed}-{self._fingerprint(cell.method)}"

    def alike(self, cell: MethodCell) -> str:
        """A run that was one of the choices does not need to be trained again for the table."""
        return f"*-{cell.seed}-{self._fingerprint(cell.method)}"

    def engine(self, run: DetectionTraining) -> dict[str, Any]:
        """What determines which batches are drawn, and how they are computed."""
        return {
            "precision": "bf16 autocast, classifier and losses fp32" if run.device.type == "cuda" else "fp32",
            "processes": world()[0],
            "images": "from files" if run.resident is None else "resident",
            "features": "computed once" if run in self._freezes else "computed anew",
            "nms": NMS,
        }

    # what the queue does with it

    def prepare(self, cell: MethodCell, start: Mapping[str, Tensor] | None) -> DetectionTraining:
        recipe = self.recipe(cell)
        run = DetectionTraining(
            recipe,
            self.images.train,
            cell.seed,
            self.settings.device,
            backbone=self.data.backbone,
            stride=self.data.stride,
            start=None if start is None else dict(start),
            iterations=self.iterations(cell),
            resident=self.images.resident(recipe, training=True),
        )
        key = (recipe.start and self._fingerprint(recipe.start), cell.seed, recipe.proposals)
        self._freezes = {run: key} if self.images.freezes(run, key) else {}
        return run

    def train(
        self, runs: Sequence[DetectionTraining], after_chunk: Callable[[], bool], over: Callable[[], bool]
    ) -> None:
        (run,) = runs
        if run in self._freezes and not run.done:
            self.images.freeze(run, self._freezes[run])
        train(run, after_chunk, over, workers=self.data.workers, every=REPORT_EVERY)

    def seconds_to_judge(self) -> float:
        return self._evaluation

    def judge(self, cell: MethodCell, run: DetectionTraining, context: Context) -> DetectionRecord:
        began = time.monotonic()
        found = self._found(run, predict, "images evaluated")
        predicted = time.monotonic() - began
        best = self._found(run, predict_best, "images evaluated without a cap", passes=1 + run.data.has_masks)
        truth, masks, classes = self.images.truth, None, run.data.num_classes
        boxes = rounded(truth.evaluate(found, "bbox"))
        measures = {"bbox": measures_of(truth, found, best, "bbox", classes)}
        if run.data.has_masks and truth.has_masks:
            masks = rounded(truth.evaluate(found, "segm"))
            measures["segm"] = measures_of(truth, found, best, "segm", classes)
        seconds = time.monotonic() - began
        self._evaluation = seconds * 1.2
        groups, weights = boxes if masks is None else masks, detector_weights(run.model)
        return DetectionRecord(
            table=self.table,
            method=cell.method,
            seed=cell.seed,
            AP_mask=None if masks is None else masks["AP"],
            AP_f=groups["APf"],
            AP_c=groups["APc"],
            AP_r=groups["APr"],
            AP_box=boxes["AP"],
            mask=masks,
            box=boxes,
            evaluated_on=self.data.evaluated_on,
            evaluated_images=len(self.images.val),
            iterations=run.iteration,
            complete=self.settings.iterations is None,
            recipe=run.recipe.as_dict(),
            trained_on=self.data.train.name,
            backbone=None if self.data.backbone is None else Path(self.data.backbone).name,
            counts=run.data.prior().counts.tolist(),
            class_names=list(run.data.class_names),
            loss_curve=thinned(run.losses),
            weights=weights_digest({name: weights[name].float() for name in sorted(weights)}),
            seconds=round(run.seconds, 1),
            images_per_second=round(run.iterations * run.batch_size / max(run.seconds, 1e-9), 1),
            evaluation_seconds=round(seconds, 1),
            engine=self._engine_of_record(run, len(found), predicted),
            commit=self.settings.commit,
            versions=versions() | _detection_versions(),
            hardware=hardware(self.settings.device),
            **fields_of(measures["bbox" if masks is None else "segm"]),
            measures=measures,
        )

    def _found(self, run: DetectionTraining, find: Callable[..., Detections], what: str, passes: int = 1) -> Detections:
        number, resident = len(self.images.val), self.images.resident(run.recipe, training=False)
        began = time.monotonic()

        def report(done: int) -> None:
            self.settings.report(Status.at(done, passes * number, 1, time.monotonic() - began, what=what))

        given, workers = self.images.val, self.data.workers
        return find(run.model, given, run.device, batch_size=16, workers=workers, resident=resident, report=report)

    def _engine_of_record(self, run: DetectionTraining, detections: int, predicted: float) -> dict[str, Any]:
        return self.engine(run) | {
            "stride": stride_of(run.model),
            "together": max(claims_held(self.settings.claims), 1),
            "features": "computed anew" if run.features_seconds is None else "computed once",
            "features_seconds": run.features_seconds,  # for all methods
            "detections": detections,
            "predicted_images_per_second": round(len(self.images.val) / max(predicted, 1e-9), 1),
        }

    def in_words(self, record: DetectionRecord) -> str:
        shown = SHOWN if record.AP_mask is not None else ("AP_box", *SHOWN[1:4], *SHOWN[5:])
        of = "" if record.AP_mask is not None else ", all of boxes"
        values = {key: getattr(record, key) for key in shown}
        return ", ".join(f"{key} {'–' if value is None else f'{value:.1f}'}" for key, value in values.items()) + of


def _detection_versions() -> dict[str, str]:
    import torchvision  # type: ignore[import-untyped]

    return {"torchvision": torchvision.__version__, "hotcoco": str(getattr(hotcoco(), "__version__", "unknown"))}
