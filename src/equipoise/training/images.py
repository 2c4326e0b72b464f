"""Runs of image classifiers for the queue: images of any size from folders or lists, any network, one machine or many.

Images are decoded once. If they fit they stay on the device, otherwise they are decoded again as needed. Under torchrun
every process does the same, on its rows of each batch; the first one writes files and records.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.data.gpu_images import EncodedStream, GpuDecoder, why_not_on
from equipoise.data.image_files import Resize, decode
from equipoise.data.image_stream import ImageStream
from equipoise.data.images import ImageList
from equipoise.metrics.evaluation import Evaluation, evaluate
from equipoise.models.classifiers import SMALL, Classifier
from equipoise.models.processes import first_says, world
from equipoise.training.augmentation.photographs import cut, draw_windows
from equipoise.training.classification import Features, Training, plain_features, thinned, train
from equipoise.training.classification_runs import LONG, probabilities, timed
from equipoise.training.image_records import ImageRecord, in_full
from equipoise.training.kinds import Context, Kind, Settings
from equipoise.training.progress import Pace, Status, in_words
from equipoise.training.recipe import MethodCell, Recipe
from equipoise.training.records import StoredRecord, hardware, in_percent, versions
from equipoise.training.sets import (
    FeatureSet,
    ImageSet,
    Photographs,
    StreamedSet,
    TrainingSet,
)
from equipoise.training.weights import weights_digest

Decode: TypeAlias = Literal["auto", "cpu", "gpu"]

SHARE = 0.4  # of the free memory that images may take
MEMORY = Path("/proc/meminfo")
JUDGED_AT_ONCE = 256
FEATURES_AT_ONCE = 64  # images between progress reports for a frozen backbone
TELLING = 5.0  # seconds of training, after the first steps, before the time to go is estimated
FIRST_GUESS = 0.02  # seconds per iteration on a GPU before one was measured


def stored_side(size: int) -> int:
    """How wide images are stored for a model that sees `size` pixels: large ones with some room for crops.

    >>> stored_side(64), stored_side(224)
    (64, 256)
    """
    return size if size <= SMALL else round(size * 8 / 7)


@dataclass(frozen=True)
class ImageData:
    """Images to train on and to evaluate on, for a model that sees `size` pixels; all are known to be readable.

    The middle square of each is kept or, with `resize` "square", the whole image, squeezed and evaluated as a whole."""

    train: ImageList
    test: ImageList
    size: int
    evaluated_on: str = "val"
    workers: int = 0
    resident: bool | None = None  # images stay on the device; None: if they fit
    resize: Resize = "shorter"
    decode: Decode = "auto"  # where images that do not stay are decoded; auto: on a GPU that can
    pixels: dict[str, NDArray[np.uint8]] = field(default_factory=dict)  # images decoded so far, by digest

    def fits(self, device: torch.device) -> bool:
        """Whether the images stay in memory."""
        if self.resident is not None:
            return self.resident
        needed = (len(self.train) + len(self.test)) * 3 * stored_side(self.size) ** 2
        return needed < SHARE * free_memory(device)

    def decoded(self, images: ImageList) -> NDArray[np.uint8]:
        """All of `images`, [N, 3, stored, stored]."""
        if images.digest not in self.pixels:
            options: dict[str, Any] = {"resize": self.resize, "workers": self.workers or None}
            found = decode(images, stored_side(self.size), **options)
            if len(found.bad):
                raise ValueError(f"{images.source}: {found.bad}")
            self.pixels[images.digest] = found.pixels
        return self.pixels[images.digest]


def free_memory(device: torch.device) -> float:
    """Free bytes on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        (line,) = (line for line in MEMORY.read_text().splitlines() if line.startswith("MemAvailable:"))
        return 1024 * float(line.split()[1])
    except (ValueError, OSError):  # not every system reports it
        return 8e9


def training_set(data: ImageData, device: torch.device) -> Photographs:
    """What runs are trained on: images on the device if they fit, otherwise streamed from their files."""
    side, labels = stored_side(data.size), torch.from_numpy(data.train.labels).to(device)
    shared: dict[str, Any] = {
        "labels": data.train.labels,
        "device_labels": labels.float() if labels.ndim == 2 else labels,
        "prior": data.train.prior,
        "size": data.size,
        "stored": side,
    }
    if data.fits(device):
        return ImageSet(**shared, images=torch.from_numpy(data.decoded(data.train)).to(device))
    shared["workers"] = data.workers
    if not decodes_on(device, data.decode):
        return StreamedSet(**shared, files=ImageStream(data.train, side, resize=data.resize))
    files = EncodedStream(data.train, side, resize=data.resize)
    return StreamedSet(**shared, files=files, decoder=GpuDecoder(side, data.resize, labels.device))


def decodes_on(device: torch.device, asked: Decode) -> bool:
    """Whether streamed images are decoded on the device; an error if that was asked for and is not possible."""
    if asked == "cpu" or (asked == "auto" and device.type == "cpu"):
        return False
    problem = why_not_on(device)
    if problem and asked == "gpu":
        raise ValueError(f"decode gpu: {problem}; auto and cpu work everywhere")
    return problem is None


def middle(images: Tensor, size: int, resize: Resize = "shorter") -> Tensor:
    """The middle of stored images [N, 3, S, S], `size` pixels wide; squeezed images whole."""
    kept = "none" if resize == "shorter" else "whole"
    windows = draw_windows(len(images), kept, size, images.shape[-1], np.random.default_rng(0))
    return cut(images, windows, size)


@dataclass(frozen=True)
class Finished:
    """A run that was evaluated: what is written besides its record."""

    cell: MethodCell
    run: Training
    logits: Tensor
    evaluation: Evaluation
    model: str  # the name of the network
    backbone: nn.Module | None = None  # what computed the features, if the run trained only a head


class ImageClassification(Kind[MethodCell, Training]):
    """The kind of runs that `recipes` describe, by method. `start` are the tensors that backbones start from, and
    `starts_from` the name of their file; `deliver` receives every run that was evaluated."""

    def __init__(
        self,
        table: str,
        recipes: Mapping[str, Recipe],
        data: ImageData,
        settings: Settings,
        *,
        start: Mapping[str, Tensor] | None = None,
        starts_from: str | None = None,
        compiled: bool = False,
        deterministic: bool = True,
        deliver: Callable[[Finished, ImageRecord], None] | None = None,
    ) -> None:
        self.table, self.recipes, self.data, self.settings = table, recipes, data, settings
        self.start, self.file, self.compiled, self.deterministic = start, starts_from, compiled, deterministic
        self.deliver = deliver
        torch.backends.cudnn.deterministic = deterministic
        torch.backends.cudnn.benchmark = not deterministic
        self.set: TrainingSet = training_set(data, settings.device)
        self._features: Features | None = None
        if compiled:
            self._features = partial(torch.compile(plain_features), mean=self.set.mean, std=self.set.std)
        self._digests = data.train.digest, data.test.digest
        self._start_digest = None if start is None else weights_digest(start)
        self._planned, self._foretold = 0, False  # iterations of all runs; whether their time was logged

    @property
    def leads(self) -> bool:
        return world()[1] == 0

    def agree(self, answer: bool) -> bool:
        return first_says(answer, self.settings.device)

    # what a run is

    def recipe(self, cell: MethodCell) -> Recipe:
        """The cell's recipe; of a smoke test, shortened."""
        recipe, iterations = self.recipes[cell.method], self.settings.iterations
        return recipe if iterations is None else recipe.shortened(iterations)

    def iterations(self, cell: MethodCell) -> int:
        return self.recipe(cell).iterations

    def starts_from(self, cell: MethodCell) -> MethodCell | None:
        method = self.recipes[cell.method].backbone
        return None if method is None else replace(cell, method=method)

    def keeps(self, cell: MethodCell) -> bool:
        return True

    def name(self, cell: MethodCell) -> str:
        return f"{self.table.replace('/', '-')}-{super().name(cell)}{self.settings.mark}"

    def made_from(self, cell: MethodCell) -> dict[str, Any]:
        data = {"trained_on": self._digests[0], "starts_from": self.file}
        start = {} if self._start_digest is None else {"start_weights": self._start_digest}
        return self.recipe(cell).as_dict() | {"seed": cell.seed} | data | start

    def engine(self, run: Training) -> dict[str, Any]:
        on_gpu = self.settings.device.type == "cuda"
        return {
            "precision": "bf16 autocast, head and loss fp32" if on_gpu else "fp32",
            "cuda_graph": on_gpu and world()[0] == 1,
            "compiled": self.compiled,
            "deterministic": self.deterministic,
            "images": self._where(),
            "frozen": False,
            "processes": world()[0],
        }

    def must_match(self, run: Training) -> dict[str, Any]:
        """Streamed images have the pixels of images in memory, unless a GPU decodes them."""
        engine = self.engine(run)
        return engine | {"images": "in memory"} if engine["images"] == "streamed" else engine

    def _where(self) -> str:
        if not isinstance(self.set, StreamedSet):
            return "in memory"
        return "streamed" if self.set.decoder is None else "streamed, decoded on the GPU"

    def prepare(self, cell: MethodCell, start: Mapping[str, Tensor] | None) -> Training:
        return Training(
            self.recipe(cell), self.set, cell.seed, backbone=start, start=self.start, features=self._features
        )

    def train(self, runs: Sequence[Training], after_chunk: Callable[[], bool], over: Callable[[], bool]) -> None:
        pace = Pace(runs[0].iteration, time.monotonic())

        def after() -> bool:
            self._foretell(runs, pace)
            return self.agree(after_chunk())

        train(runs, after)
        self._planned -= sum(run.iteration for run in runs)  # also of runs that a checkpoint had finished before

    def _foretell(self, runs: Sequence[Training], pace: Pace) -> None:
        """Log once how long everything will take, as soon as there are enough steps to estimate it from."""
        run, number = runs[0], len(runs)
        seconds, first = pace.since(run.iteration, time.monotonic())
        if self._foretold or run.iterations < LONG or seconds < TELLING or run.iteration - first < 2:
            return
        self._foretold = True
        each = seconds / (run.iteration - first)  # of one iteration of all runs that share the device
        speed, these = number * run.batch_size / each, "this run" if number == 1 else f"these {number} runs"
        every = f", {in_words(each * (self._planned / number - run.iteration))} for all of them"
        self.settings.log(
            f"{speed:,.{0 if speed >= 10 else 1}f} images per second: about "
            f"{in_words(each * (run.iterations - run.iteration))} to go for {these} of {run.iterations:,} iterations"
            + (every if self._planned > number * run.iterations else "")
        )

    def seconds_an_iteration(self, cells: Sequence[MethodCell]) -> float:
        """An assumption for a GPU. A CPU is timed with a few iterations if there is a budget to keep."""
        self._planned = sum(map(self.iterations, cells))
        if self.settings.device.type != "cpu":
            return FIRST_GUESS
        long = [cell for cell in cells if self.iterations(cell) >= LONG and self.starts_from(cell) is None]
        if not long or math.isinf(self.settings.budget):
            return 0.0
        self.settings.log("timing a few iterations, to keep to the budget")
        return timed(self.recipe(long[0]), self.set, self.start) / self.cost(long[0])

    def cost(self, cell: MethodCell) -> float:
        return float(self.recipes[cell.method].passes)

    # judging

    def test_items(self) -> Iterator[Tensor]:
        """The test images as a model sees them, on the device, in batches."""
        device, size, side = self.settings.device, self.data.size, stored_side(self.data.size)
        if self.data.fits(device):
            pixels = torch.from_numpy(self.data.decoded(self.data.test))
            batches: Any = torch.split(pixels, JUDGED_AT_ONCE)
        else:
            files = ImageStream(self.data.test, side, resize=self.data.resize)
            loader = torch.utils.data.DataLoader(files, batch_size=JUDGED_AT_ONCE, num_workers=self.data.workers)
            batches = (batch for batch, _ in loader)
        for batch in batches:
            yield middle(batch.to(device), size, self.data.resize)

    def judge(self, cell: MethodCell, run: Training, context: Context) -> StoredRecord:
        logits = torch.cat([run.predict(items).cpu() for items in self.test_items()]).double()
        result = evaluate(logits, self.data.test.labels, self.data.train.prior)
        groups = {name: in_percent(group.accuracy) for name, group in result.groups().items()}
        record = ImageRecord(
            **self.noted(cell, run, context),
            top1=round(100 * result.top1, 4),
            balanced_accuracy=round(100 * result.balanced_accuracy, 4),
            many=groups["many"],
            medium=groups["medium"],
            few=groups["few"],
            correct=result.correct.tolist(),
            total=result.items.tolist(),
            marginal=[float(f"{value:.6g}") for value in probabilities(run.loss, logits).mean(0).tolist()],
        )
        if self.deliver is not None:
            self.deliver(self.finished(cell, run, logits, result), record)
        return record

    def noted(self, cell: MethodCell, run: Training, context: Context) -> dict[str, Any]:
        """The part of a record that does not depend on the kind of labels."""
        return {
            "table": self.table,
            "method": cell.method,
            "seed": cell.seed,
            "evaluated_on": self.data.evaluated_on,
            "iterations": run.iteration,
            "complete": self.settings.iterations is None,
            "recipe": run.recipe.as_dict(),
            "trained_on": self._digests[0],
            "tested_on": self._digests[1],
            "counts": self.data.train.prior.counts.tolist(),
            "class_names": list(self.data.train.class_names),
            "loss_curve": thinned(run.losses.tolist()),
            "weights": weights_digest(run.model),
            "starts_from": self.file,
            "start_weights": self._start_digest,
            "backbone_weights": context.started_from,
            "seconds": round(context.seconds, 1),
            "images_per_second": round(run.iteration * run.batch_size / max(context.seconds, 1e-9), 1),
            "together": context.together,
            "engine": self.engine(run),
            "commit": self.settings.commit,
            "versions": versions(),
            "hardware": hardware(self.settings.device),
        }

    def finished(self, cell: MethodCell, run: Training, logits: Tensor, result: Evaluation) -> Finished:
        """What is delivered for a run."""
        return Finished(cell, run, logits, result, run.recipe.model)

    def in_words(self, record: Any) -> str:
        groups = (("many", record.many), ("medium", record.medium), ("few", record.few))
        shown = ", ".join(f"{name} {value:.1f}" for name, value in groups if value is not None)
        return f"top-1 {record.top1:.1f} on {in_full(record.evaluated_on)} ({shown}), {in_words(record.seconds)}"


class FrozenClassification(ImageClassification):
    """Heads on the features of one frozen backbone, computed once, from the middle of every image."""

    def __init__(self, *args: Any, network: str, backbone: nn.Module, width: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._began, self._done = time.monotonic(), 0
        self.network, self.backbone = network, backbone.eval().to(self.settings.device)
        self._start_digest = weights_digest(backbone)
        own: dict[str, Any] = {"model": f"features-{width}", "augmentation": "none"}
        self.recipes = {name: replace(recipe, **own) for name, recipe in self.recipes.items()}
        assert isinstance(self.set, Photographs)
        self.start, self.mean, self.std = None, self.set.mean, self.set.std
        self._test = [self._features_of(items) for items in super().test_items()]
        features = torch.cat([self._features_of(items) for items in self._train_items(self.set)])
        self.set = FeatureSet(self.set.labels, self.set.device_labels, self.set.prior, features)
        self.settings.log(f"features of {self._done:,} images computed in {time.monotonic() - self._began:.0f} s")

    def _train_items(self, images: Photographs) -> Iterator[Tensor]:
        plain = Recipe(augmentation="none")
        order = np.arange(len(images.labels), dtype=np.int32)
        for start in range(0, len(order), JUDGED_AT_ONCE):
            part = order[None, start : start + JUDGED_AT_ONCE]
            rows = np.tile(part, world()[0])  # each process takes the images of all
            items = torch.empty(1, part.shape[1], *images.shape, dtype=torch.uint8, device=images.device)
            images.filler(rows, replace(plain, batch_size=rows.shape[1]), 0)(items, 0)
            yield items[0]

    @torch.no_grad()
    def _features_of(self, items: Tensor) -> Tensor:
        network, found = Classifier(self.backbone, nn.Identity()), []
        for part in torch.split(items, FEATURES_AT_ONCE):
            found.append(plain_features(network, part, self.mean, self.std).float())
            self._done += len(part)
            number, seconds = len(self.data.train) + len(self.data.test), time.monotonic() - self._began
            self.settings.report(Status.at(self._done, number, 1, seconds, what="images whose features are computed"))
        return torch.cat(found)

    def test_items(self) -> Iterator[Tensor]:
        return iter(self._test)

    def engine(self, run: Training) -> dict[str, Any]:
        return super().engine(run) | {"frozen": True, "frozen_backbone": self._start_digest}

    def finished(self, cell: MethodCell, run: Training, logits: Tensor, result: Evaluation) -> Finished:
        return Finished(cell, run, logits, result, self.network, copy.deepcopy(self.backbone).cpu())
