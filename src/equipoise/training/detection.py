"""Train a detector: what a run is made of, and a plain loop.

An epoch is as many images as the training set has, whatever a sampler repeats. Draw p of a run takes the p-th image of
the sampler's stream, flipped or not depending on the seed and p; iteration i seeds torch's generators with the seed and
i. So a run that stops anywhere resumes as if it had not stopped.

Images come from their files, or from a data set that stays on the device (`resident`); if a second stage's images are
resident, the features of all boxes are computed once. Under torchrun every process trains on its part of a batch.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import accumulate, count, islice
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from equipoise.data.coco import CocoImages
from equipoise.data.masks import Rle, encode_images
from equipoise.metrics.detection import Detections
from equipoise.models.batched_rcnn import Batch, Batched, FrozenBatch, largest_over_ranks, mean_over_ranks
from equipoise.models.mask_rcnn import (
    SeesawClassification,
    SigmoidClassification,
    SoftmaxClassification,
    adjust_bias,
    detector,
    detector_weights,
    load_detector_weights,
    paste_masks,
    reset_classifier,
    resnet_fpn,
    sigmoid,
    stride_of,
)
from equipoise.models.processes import world
from equipoise.models.weights import Stride
from equipoise.prior import IntArray, Prior
from equipoise.samplers.class_balanced import ClassBalancedSampler
from equipoise.samplers.repeat_factor import RepeatFactorSampler
from equipoise.training.kinds import Run
from equipoise.training.resident import FrozenRegions, Resident, flipped

DRAWN_AT_ONCE = 1 << 28  # pixels of masks, a byte each
CLASSIFIER = "roi_heads.box_predictor.cls_score."
ASK_SECONDS, ASK_ITERATIONS = 5.0, 20  # at most, between two looks at the clock with several processes

Classification = SoftmaxClassification | SigmoidClassification | SeesawClassification


def plain_sigmoid(prior: Prior) -> SigmoidClassification:
    """K plain sigmoids, whatever the prior."""
    return sigmoid(prior.num_classes)


@dataclass(frozen=True)
class DetectionRecipe:
    """How to train a detector. The defaults are those of LVIS in the paper's companion (arXiv 2007.10740) and its code.

    classification     builds the classification part of the box head from the training set's prior and the options
    counts             what that prior counts: "images" that hold a class, or "instances"
    sampler            "repeat_factor" with `repeat_threshold`, or "class_aware": every class equally often
    start              the method whose trained detector (same seed) it starts from; then only the classifier is trained
    head               for a run with `start`: "kept" is fine-tuned, "reset" starts from scratch (cRT), "scaled" learns
                       one scale per class (LWS)
    federated          leave out of an image's loss the classes that it was not searched for
    steps              after these shares of the iterations the learning rate falls to a tenth
    min_sizes          the shorter side of an image: one of these in training, the last in use; `max_size` bounds the
                       longer one
    proposals          boxes of each level of the pyramid that compete to be proposed, in training
    """

    classification: Callable[..., Classification] = plain_sigmoid
    options: Mapping[str, Any] = field(default_factory=dict)
    counts: Literal["images", "instances"] = "images"
    sampler: Literal["repeat_factor", "class_aware"] = "repeat_factor"
    repeat_threshold: float = 0.001
    start: str | None = None
    head: Literal["kept", "reset", "scaled"] = "kept"
    federated: bool = False
    backbone: Literal["resnet18", "resnet50", "resnet101"] = "resnet50"
    epochs: float = 25
    batch_size: int = 16
    lr: float = 0.02
    warmup: int = 1000
    steps: tuple[float, ...] = (2 / 3, 8 / 9)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    min_sizes: tuple[int, ...] = (640, 672, 704, 736, 768, 800)
    max_size: int = 1333
    proposals: int = 2000

    def iterations(self, images: int) -> int:
        """Optimiser steps for a training set of this many images.

        >>> DetectionRecipe().iterations(100_170)
        156516
        """
        return round(self.epochs * images / self.batch_size)

    def learning_rate(self, iteration: int, iterations: int) -> float:
        """Linear from a thousandth over the warm-up, then a tenth after each step.

        >>> recipe = DetectionRecipe()
        >>> [round(recipe.learning_rate(i, 9_000), 6) for i in (0, 500, 1_000, 5_999, 6_000, 8_000)]
        [2e-05, 0.01001, 0.02, 0.02, 0.002, 0.0002]
        """
        passed = sum(iteration >= step * iterations for step in self.steps)
        warm = min(1.0, 0.001 + 0.999 * iteration / self.warmup) if self.warmup else 1.0
        return float(self.lr * warm * 0.1**passed)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a record.

        >>> DetectionRecipe().as_dict()["classification"]
        'plain_sigmoid'
        """
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return content | {"classification": self.classification.__name__, "options": dict(self.options)}


# -------------------------------------------------------------------- what is drawn


def drawn_images(data: CocoImages, recipe: DetectionRecipe, seed: int, number: int) -> IntArray:
    """The first `number` images of the sampler's endless stream."""
    sampler: RepeatFactorSampler | ClassBalancedSampler
    options: dict[str, Any] = {"num_classes": data.num_classes, "seed": seed, "num_replicas": 1, "rank": 0}
    if recipe.sampler == "repeat_factor":
        sampler = RepeatFactorSampler(data.classes_per_item, threshold=recipe.repeat_threshold, **options)
    else:
        sampler = ClassBalancedSampler(classes_per_item=data.classes_per_item, **options)
    drawn: list[int] = []
    for epoch in count():
        if len(drawn) >= number:
            return np.array(drawn[:number], np.int64)
        sampler.set_epoch(epoch)
        drawn.extend(sampler)
    raise AssertionError


def is_flipped(seed: int, position: int) -> bool:
    """Whether a draw of a run shows the mirror image."""
    return bool(np.random.default_rng([seed, position]).random() < 0.5)


def draws(
    positions: Sequence[int], data: CocoImages, drawn: IntArray, seed: int, federated: bool
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Images and targets of a run's draws: draw p is image `drawn[p]`, flipped for half of all p."""
    images, targets = [], []
    for position in positions:
        image, target = data[int(drawn[position])]
        if not federated:
            target.pop("verified", None)
        if is_flipped(seed, position):
            image, target = flipped(image, target)
        images.append(image)
        targets.append(target)
    return images, targets


def loader(positions: Sequence[int], batch_size: int, workers: int, read: Callable[[list[int]], Any]) -> Iterable[Any]:
    """Apply `read` to one batch of positions after another, in worker processes."""
    if workers:  # they pass tensors through files in memory: the many of a batch would exceed the limit of open files
        torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"collate_fn": read, "worker_init_fn": leave_ctrl_c_to_the_main_process}
    return DataLoader(positions, batch_size, num_workers=workers, **options)  # type: ignore[arg-type]


def leave_ctrl_c_to_the_main_process(_: int) -> None:
    """For a worker: the main process handles Ctrl-C, and needs the worker's data until then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def padded(images: list[Tensor], targets: list[dict[str, Tensor]], transform: Any) -> Batch:
    """Images and targets of any sizes as one batch: `transform` is the detector's."""
    together, targets = transform(images, targets)
    device, (high, wide) = together.tensors.device, together.tensors.shape[-2:]
    numbers = [len(target["labels"]) for target in targets]
    # processes that share a batch pad it to the same size, so that they see the same anchors and draw the same keys
    most, height, width = largest_over_ranks([max(1, *numbers), high, wide], device)
    pixels = F.pad(together.tensors, (0, width - wide, 0, height - high))
    boxes = torch.stack([F.pad(t["boxes"], (0, 0, 0, most - len(t["boxes"]))) for t in targets])
    labels = torch.stack([F.pad(t["labels"], (0, most - len(t["labels"]))) for t in targets])
    masks = first = None
    if all("masks" in target for target in targets):
        starts = [0, *accumulate(numbers)]
        first = torch.tensor(starts[:-1], device=device)
        masks = torch.zeros(starts[-1], height, width, dtype=torch.uint8, device=device)
        for start, drawn in zip(starts, (target["masks"] for target in targets), strict=False):
            masks[start : start + len(drawn), : drawn.shape[1], : drawn.shape[2]] = drawn
    verified = [target["verified"] for target in targets if "verified" in target]
    sizes = torch.tensor(together.image_sizes, dtype=torch.float32, device=device)
    known = torch.stack(verified) if len(verified) == len(targets) else None
    return Batch(pixels, sizes, boxes, labels, masks, first, known)


# -------------------------------------------------------------------- a run


def build(recipe: DetectionRecipe, data: CocoImages, backbone: str | None = None, stride: Stride = None) -> nn.Module:
    """The detector of a recipe, for the classes of a training set; `backbone` is a weights file or "torchvision", and
    `stride` is where its network has the stride, if the file's name does not tell."""
    part = recipe.classification(data.prior(recipe.counts), **recipe.options)
    model: nn.Module = detector(
        resnet_fpn(recipe.backbone, backbone, stride=stride),
        data.num_classes,
        part,
        masks=data.has_masks,
        scaled=recipe.head == "scaled",
        min_size=recipe.min_sizes,
        max_size=recipe.max_size,
        rpn_pre_nms_top_n_train=recipe.proposals,
        rpn_post_nms_top_n_train=1000,
    )
    return model


def keep_only_the_classifier_trainable(model: nn.Module, head: str) -> None:
    """Freeze everything but `cls_score`; if it is scaled, train only the scales; if it is reset, start it from
    scratch."""
    predictor: Any = model.get_submodule("roi_heads.box_predictor")
    part: Any = model.get_submodule("roi_heads.classification")
    model.requires_grad_(False)
    if head == "scaled":
        predictor.cls_score.scales.requires_grad_(True)
        return
    predictor.cls_score.requires_grad_(True)
    if head == "reset":
        reset_classifier(predictor.cls_score, part.first_bias)


class DetectionTraining(Run):
    """The state of one run: model, optimiser, iteration, losses.

    `resident` is `data` on the device; `frozen`, for a run with `start`, is what its classifier sees in these images.
    """

    def __init__(
        self,
        recipe: DetectionRecipe,
        data: CocoImages,
        seed: int,
        device: torch.device,
        *,
        backbone: str | None = None,
        stride: Stride = None,
        start: dict[str, Tensor] | None = None,
        iterations: int | None = None,
        resident: Resident | None = None,
    ) -> None:
        if (recipe.start is None) != (start is None):
            given = "none were" if start is None else "some were"
            raise ValueError(f"the recipe starts from the weights of {recipe.start!r}, but {given} given")
        if recipe.batch_size % world()[0]:
            raise ValueError(f"a batch of {recipe.batch_size} images cannot be split among {world()[0]} processes")
        self.recipe, self.data, self.seed, self.device = recipe, data, seed, device
        self.iterations = recipe.iterations(len(data)) if iterations is None else iterations
        self.batch_size = recipe.batch_size
        self.resident, self.frozen = resident, None  # type: Resident | None, FrozenRegions | None
        torch.manual_seed(seed)
        model = build(recipe, data, backbone, stride)  # also with a start: sets the stride, and what is trained
        if start is not None:
            anew = {name: value for name, value in model.state_dict().items() if CLASSIFIER in name}
            load_detector_weights(model, start | anew if recipe.head == "reset" else start)  # it may have more columns
            keep_only_the_classifier_trainable(model, recipe.head)
            moved = getattr(model.get_submodule("roi_heads.classification"), "moved", None)
            if moved is not None:
                adjust_bias(model, moved)
        self.model = model.to(device)
        if device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)
        self.batched = Batched(self.model)
        self.parallel: nn.Module = self.batched
        if world()[0] > 1:
            self.parallel = nn.parallel.DistributedDataParallel(self.batched)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(
            trained,
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=device.type == "cuda",
        )
        self.losses: list[float] = []
        self.seconds = 0.0  # of training, over all processes that worked on it
        self.features_seconds: float | None = None  # that the features took, if they were computed once

    @property
    def whole(self) -> bool:
        """Whether the state may be saved: not while losses of some iterations are still on the device."""
        return len(self.losses) == self.iteration

    def batches(self, workers: int = 0) -> Iterator[Any]:
        """The remaining batches, one after another: this process's part."""
        size = self.recipe.batch_size
        number, rank = world()
        mine = slice(rank * (size // number), (rank + 1) * (size // number))
        if self.resident is not None:
            yield from self._resident_batches(self.resident, mine)
            return
        drawn = drawn_images(self.data, self.recipe, self.seed, self.iterations * size)
        read = partial(draws, data=self.data, drawn=drawn, seed=self.seed, federated=self.recipe.federated)
        left = np.arange(self.iteration * size, self.iterations * size).reshape(-1, size)[:, mine].ravel()
        yield from loader(left.tolist(), size // number, workers, read)

    def _resident_batches(self, resident: Resident, mine: slice) -> Iterator[tuple[int, IntArray]]:
        """Rows of a canvas; for a frozen detector, whose features have one size, rows of all images (canvas -1)."""
        size = self.recipe.batch_size
        waiting = 2 * (size - 1)  # images that do not fill a batch yet
        drawn = drawn_images(self.data, self.recipe, self.seed, self.iterations * size + waiting)
        flips = np.array([is_flipped(self.seed, position) for position in range(len(drawn))])
        if self.frozen is not None:
            for start in range(self.iteration * size, self.iterations * size, size):
                yield -1, (2 * drawn + flips)[start : start + size][mine]
            return
        for canvas, rows in islice(resident.grouped(drawn, flips, size), self.iteration, self.iterations):
            yield canvas, rows[mine]

    def freeze(self, frozen: FrozenRegions | None = None) -> FrozenRegions:
        """Train from the classifier's inputs for the resident images, computed now unless given."""
        if self.resident is None or self.recipe.start is None:
            raise ValueError("only a run with a start, from resident images, has anything to compute once")
        self.frozen = frozen or FrozenRegions(self.batched, self.resident, autocast(self.device))
        return self.frozen

    def gathered(self, first: Any, second: Any) -> Batch | FrozenBatch:
        """A batch on the device, from what `batches` returned."""
        if self.resident is None:
            images = [image.to(self.device, non_blocking=True) for image in first]
            transform: Any = self.model.transform
            for _ in range(world()[1] * len(images)):  # sizes of the other processes' images
                transform.torch_choice(transform.min_size)
            targets = [{name: value.to(self.device, non_blocking=True) for name, value in t.items()} for t in second]
            return padded(images, targets, transform)
        if self.frozen is not None:
            return self.frozen.batch(second, federated=self.recipe.federated)
        return self.resident.batch(first, second, self.model.transform, federated=self.recipe.federated)

    def step(self, first: Any, second: Any) -> Tensor:
        """One step of SGD on what `batches` returned; gives the loss, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(self.iteration, self.iterations)
        if not self.model.training:
            self.model.train()
        torch.manual_seed((self.seed << 32) + self.iteration)
        batch = self.gathered(first, second)
        torch.manual_seed((self.seed << 32) + self.iteration)  # again: how many sizes were drawn depends on the process
        with autocast(self.device):
            losses = self.parallel(batch)
        loss = torch.stack([value.float() for value in losses.values() if value.requires_grad]).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.iteration += 1
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data, for a file that `torch.load(weights_only=True)` can read."""
        return {
            "iteration": self.iteration,
            "losses": self.losses,
            "seconds": self.seconds,
            "model": detector_weights(self.model),
            "criterion": self.model.get_submodule("roi_heads.classification").state_dict(),  # what EQL v2 has seen
            "optimizer": self.optimizer.state_dict(),
        }

    def note(self) -> dict[str, Any]:
        """What is kept beside the weights of a finished run, including how to build their detector."""
        return {
            "iteration": self.iteration,
            "losses": self.losses,
            "training_seconds": self.seconds,
            "features_seconds": self.features_seconds,
            "detector": {
                "backbone": self.recipe.backbone,
                "stride": stride_of(self.model),
                "size": self.recipe.min_sizes[-1],
                "longest": self.recipe.max_size,
                "classification": type(self.model.get_submodule("roi_heads.classification")).__name__,
                "categories": [{"id": key, "name": name} for key, name in self.data.categories.items()],
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iteration, self.losses = int(state["iteration"]), list(state["losses"])
        self.seconds = float(state.get("training_seconds", state["seconds"]))  # a note also has the queue's "seconds"
        self.features_seconds = state.get("features_seconds")
        load_detector_weights(self.model, state["model"])
        if "criterion" in state:
            self.model.get_submodule("roi_heads.classification").load_state_dict(state["criterion"])
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, nothing elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def train(
    run: DetectionTraining,
    after_chunk: Callable[[], object] = lambda: False,
    over: Callable[[], bool] = lambda: False,
    *,
    workers: int = 0,
    every: float = 20.0,
) -> bool:
    """Train to the end, or until `after_chunk()` or `over()` is true; returns whether it reached the end.

    `over` is called after every iteration, `after_chunk` every few seconds and when training stops. A loss that is not
    finite ends the training.
    """
    if run.done:
        return True
    last, pending = time.monotonic(), []
    agreed = _Agreement(run)
    for first_part, second_part in run.batches(workers):
        pending.append(run.step(first_part, second_part))
        due, stop = agreed(time.monotonic() - last >= every, over())
        if due or stop or run.done:
            run.losses.extend(mean_over_ranks(torch.stack(pending)).tolist())  # the only wait for the device
            run.seconds += time.monotonic() - last
            pending = []
            if not run.finite:
                break
            ended = after_chunk()
            if stop or (ended and world()[0] == 1):  # with several processes the first one decides, when next asked
                break
            last = time.monotonic()
    return run.done


class _Agreement:
    """The first process's clock: all processes must stop after the same iteration, but communicate seldom."""

    def __init__(self, run: DetectionTraining) -> None:
        self.run, self.first, self.next, self.began = run, run.iteration, run.iteration + 1, time.monotonic()

    def __call__(self, due: bool, stop: bool) -> tuple[bool, bool]:
        if world()[0] == 1:
            return due, stop
        if self.run.iteration < self.next:
            return False, False
        each = (time.monotonic() - self.began) / (self.run.iteration - self.first)
        wait = int(min(max(ASK_SECONDS / max(each, 1e-9), 1), ASK_ITERATIONS))
        said = torch.tensor([due, stop, self.run.iteration + wait], dtype=torch.int64, device=self.run.device)
        torch.distributed.broadcast(said, 0)
        due, stop, self.next = bool(said[0]), bool(said[1]), int(said[2])
        return due, stop


# -------------------------------------------------------------------- what a detector finds


def _pixels(numbers: Sequence[int], data: CocoImages) -> list[Tensor]:
    """The images alone; no mask is decoded."""
    return [data.pixels(number) for number in numbers]


def predict(
    model: nn.Module,
    data: CocoImages,
    device: torch.device,
    *,
    batch_size: int = 8,
    workers: int = 0,
    resident: Resident | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Detections:
    """What `model` finds in every image of `data`, with the ids of its file; `resident` is `data` on the device.

    `report` receives the number of images done after each batch.
    """
    found: dict[int, dict[str, Any]] = {}
    for some in found_by_batch(model, data, device, batch_size=batch_size, workers=workers, resident=resident):
        found |= some
        report(len(found))
    return as_detections(data, dict(sorted(found.items())))


@torch.no_grad()
def found_by_batch(
    model: nn.Module,
    data: CocoImages,
    device: torch.device,
    *,
    batch_size: int = 8,
    workers: int = 0,
    resident: Resident | None = None,
) -> Iterator[dict[int, dict[str, Any]]]:
    """What `model` finds, one batch at a time: arrays for each image, for `as_detections`."""
    model.eval()
    if resident is not None:
        yield from _found_resident(model, resident, batch_size)
        return
    first = 0
    for images in loader(range(len(data)), batch_size, workers, partial(_pixels, data=data)):
        with autocast(device):
            results = model([image.to(device) for image in images])
        found: dict[int, dict[str, Any]] = {}
        for number, result in enumerate(results, start=first):
            found[number] = {name: result[name].double().cpu().numpy() for name in ("boxes", "labels", "scores")}
            if "masks" in result:
                found[number]["masks"] = encode_images([result["masks"]])[0]  # LVIS: 6 million of them
        first += len(images)
        yield found


def _found_resident(model: Any, resident: Resident, batch_size: int) -> Iterator[dict[int, dict[str, Any]]]:
    batched, data = Batched(model), resident.data
    for canvas in range(len(resident.canvases)):
        numbers = [number for number, place in enumerate(resident.place) if place[0] == canvas]
        for start in range(0, len(numbers), batch_size):
            some = numbers[start : start + batch_size]
            rows = np.array([resident.place[number][1] for number in some])
            batch = resident.batch(canvas, rows, model.transform)
            with autocast(resident.device):
                results = batched.detect(batch.pixels, batch.sizes)
            images = [data.images[number] for number in some]
            size = torch.tensor([[image.width, image.height] * 2 for image in images], dtype=torch.float64)
            resized = torch.tensor([resident.sizes[number][::-1] * 2 for number in some], dtype=torch.float64)
            results["boxes"] = results["boxes"] * (size / resized).float().to(resident.device)[:, None]
            kept = (results["scores"] > 0).sum(dim=1).tolist()
            arrays = {name: results[name].double().cpu().numpy() for name in ("boxes", "labels", "scores")}
            found: dict[int, dict[str, Any]] = {}
            for place, (number, most) in enumerate(zip(some, kept, strict=True)):
                found[number] = {name: values[place, :most] for name, values in arrays.items()}
            if "masks" in results:
                _draw_masks(results, data, some, kept, found)
            yield found


def _draw_masks(
    results: dict[str, Tensor], data: CocoImages, some: list[int], kept: list[int], found: dict[int, dict[str, Any]]
) -> None:
    """Add the masks of the images `some` to `found`, for as many images at a time as fit."""
    drawn: dict[int, Tensor] = {}
    for place, (number, most) in enumerate(zip(some, kept, strict=True)):
        size = (data.images[number].height, data.images[number].width)
        drawn[number] = paste_masks(results["masks"][place, :most], results["boxes"][place, :most], size)
        if place + 1 == len(some) or sum(masks.numel() for masks in drawn.values()) > DRAWN_AT_ONCE:
            for done, masks in zip(drawn, encode_images(list(drawn.values())), strict=True):
                found[done]["masks"] = masks
            drawn.clear()


def as_detections(data: CocoImages, found: Mapping[int, dict[str, Any]]) -> Detections:
    """What was found in images of `data`, by image number, with the ids of the file."""
    ids = np.array([data.images[number].id for number in found], np.int64)
    boxes = np.concatenate([result["boxes"] for result in found.values()])
    boxes[:, 2:] -= boxes[:, :2]
    labels = np.concatenate([result["labels"] for result in found.values()]).astype(np.int64)
    masks: list[Rle] | None = None
    if all("masks" in result for result in found.values()):
        masks = [mask for result in found.values() for mask in result["masks"]]
    return Detections(
        np.repeat(ids, [len(result["scores"]) for result in found.values()]),
        np.array(data.class_ids, np.int64)[labels - 1],
        np.concatenate([result["scores"] for result in found.values()]),
        boxes,
        masks,
    )
