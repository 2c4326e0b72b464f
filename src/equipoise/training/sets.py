"""What runs are trained on: labels, their prior, and augmented items on a device, one chunk of batches at a time.

    CifarSet      32×32 images with the paper's augmentation; what is drawn depends on (seed, chunk)
    ImageSet      images of any size, decoded once and kept on the device; what is drawn depends on (seed, iteration)
    StreamedSet   the same, from files that are decoded as needed
    FeatureSet    features of a frozen backbone, computed once

Several processes may share a batch: each fills its own rows, and what is drawn for a row does not depend on the
process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.gpu_images import GpuDecoder, collated
from equipoise.models.processes import world
from equipoise.prior import IntArray, Prior
from equipoise.training.augmentation import cifar, photographs
from equipoise.training.augmentation.autoaugment import upload
from equipoise.training.augmentation.distortion import Distortions, distorted, draw_distortions
from equipoise.training.recipe import Recipe

CHUNK = 20  # iterations that are augmented, and can be checkpointed, together
CHUNK_BYTES = 1 << 29  # bytes that a chunk of images may take
AT_ONCE_BYTES = 1 << 28  # bytes of stored images that are augmented together: many small operations are slow one by one
INITIALISATION, ORDER, AUGMENTATION, LOSS, MIXING, LAYERS = range(6)  # the streams of random numbers of a run
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Order = NDArray[np.int32]  # [iterations, batch size]: the items of each batch
Fill = Callable[[Tensor, int], None]
"""Writes the augmented items of the batches from an iteration on into [steps, rows, ...]."""


def stream_of(seed: int, *path: int) -> np.random.Generator:
    """An independent stream of random numbers for each (seed, path)."""
    return np.random.default_rng([seed, *path])


def own_rows(batch_size: int) -> slice:
    """The rows of a batch that this process trains on."""
    number, rank = world()
    rows = batch_size // number
    return slice(rank * rows, (rank + 1) * rows)


class TrainingSet(ABC):
    """Abstract: `labels` [N] or [N, K] on the host and `device_labels` where items are made; runs share one."""

    labels: IntArray
    device_labels: Tensor
    prior: Prior
    shape: tuple[int, ...]  # of an item
    dtype = torch.uint8
    chunk = CHUNK
    mean: tuple[float, ...] = IMAGENET_MEAN  # of the items' channels; (): they are not normalised
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def device(self) -> torch.device:
        return self.device_labels.device

    @abstractmethod
    def filler(self, order: Order, recipe: Recipe, seed: int) -> Fill:
        """The function that fills the chunks of a run."""


@dataclass(frozen=True)
class CifarSet(TrainingSet):
    """Training images of CIFAR on a device, ready to be augmented."""

    labels: IntArray
    device_labels: Tensor
    prior: Prior
    augmentation: cifar.TrainingAugmentation
    shape = (3, 32, 32)
    mean, std = cifar.MEAN, cifar.STD

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: IntArray, prior: Prior, device: torch.device) -> CifarSet:
        """Made from images [N, 3, 32, 32] uint8 and class indices [N] on the host."""
        augmentation = cifar.TrainingAugmentation(torch.from_numpy(images).to(device))
        return cls(labels, torch.from_numpy(labels).to(device), prior, augmentation)

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Refuse an augmentation that CIFAR does not have."""
        if recipe.augmentation not in cifar.AUGMENTATIONS:
            known = " or ".join(map(repr, cifar.AUGMENTATIONS))
            raise ValueError(f"augmentation is {recipe.augmentation!r}: on CIFAR, expected {known}")

    def filler(self, order: Order, recipe: Recipe, seed: int) -> Fill:
        self.check(recipe)
        size = order.shape[1]

        def fill(items: Tensor, iteration: int) -> None:
            # the whole chunk is drawn even if fewer steps are left: what is drawn depends only on (seed, chunk)
            number = len(items) * size
            stream = stream_of(seed, AUGMENTATION, iteration // CHUNK)
            draws = cifar.draw(CHUNK * size, stream).first(number)
            index = order[iteration : iteration + len(items)].reshape(-1).astype(np.int64)
            items.flatten(0, 1).copy_(self.augmentation(index, draws, recipe.augmentation))

        return fill


@dataclass(frozen=True)
class Photographs(TrainingSet):
    """Abstract: square uint8 images, stored `stored` pixels wide and shown to a model at `size`."""

    labels: IntArray
    device_labels: Tensor
    prior: Prior
    size: int
    stored: int

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (3, self.size, self.size)

    @property
    def chunk(self) -> int:  # type: ignore[override]
        """One batch on a CPU; on a GPU as many as its share of memory holds."""
        return 1 if self.device.type == "cpu" else CHUNK

    def augmented(self, images: Tensor, recipe: Recipe, seed: int, iterations: Sequence[int]) -> Tensor:
        """This process's rows of the batches of `iterations`, [rows, 3, stored, stored], augmented."""
        size, kind = recipe.batch_size, recipe.augmentation
        rows, drawn, colours = own_rows(size), [], []
        for iteration in iterations:
            stream = stream_of(seed, AUGMENTATION, iteration)
            whole = photographs.draw_windows(size, kind, self.size, self.stored, stream)
            drawn.append(whole.part(rows.start, rows.stop))
            if kind == "distorted":
                colours.append(draw_distortions(size, stream).part(rows.start, rows.stop))
        windows = photographs.Windows.of(drawn)
        found = photographs.cut(images, windows, self.size)
        if kind == "distorted":
            return distorted(found, Distortions.of(colours))
        return photographs.randaugment(found, windows) if kind.startswith("randaugment") else found


@dataclass(frozen=True)
class ImageSet(Photographs):
    """Images on the device: `images` [N, 3, stored, stored] uint8."""

    images: Tensor | None = None

    def filler(self, order: Order, recipe: Recipe, seed: int) -> Fill:
        assert self.images is not None
        images, size = self.images, order.shape[1]
        rows = own_rows(size)
        at_once = max(1, AT_ONCE_BYTES // max((rows.stop - rows.start) * 3 * self.stored**2, 1))

        def fill(items: Tensor, iteration: int) -> None:
            for start in range(0, len(items), at_once):
                out = items[start : start + at_once]
                steps = range(iteration + start, iteration + start + len(out))
                index = upload(order[steps.start : steps.stop, rows].reshape(-1).astype(np.int64), self.device)
                out.flatten(0, 1).copy_(self.augmented(images[index], recipe, seed, steps))

        return fill


@dataclass(frozen=True)
class StreamedSet(Photographs):
    """Images that `files` decodes in `workers` processes: an `ImageStream`, or an `EncodedStream` for a `decoder` on
    the device."""

    files: Any = None
    workers: int = 0
    decoder: GpuDecoder | None = None

    def filler(self, order: Order, recipe: Recipe, seed: int) -> Fill:
        batches: Iterator[Tensor] = iter(())
        at = -1  # the iteration of the next batch

        def fill(items: Tensor, iteration: int) -> None:
            nonlocal batches, at
            if at != iteration:  # at the start, or resumed from a checkpoint
                batches, at = self.batches(order[iteration:]), iteration
            for out in items:
                out.copy_(self.augmented(next(batches), recipe, seed, [at]))
                at += 1

        return fill

    def batches(self, order: Order) -> Iterator[Tensor]:
        """This process's rows of each batch, uint8 [rows, 3, stored, stored] on the device."""
        rows = own_rows(order.shape[1])
        loader = torch.utils.data.DataLoader(
            self.files,
            batch_sampler=(batch[rows].tolist() for batch in order),
            num_workers=self.workers,
            collate_fn=None if self.decoder is None else collated,
            pin_memory=self.decoder is None and self.device.type == "cuda",
            prefetch_factor=4 if self.workers else None,
        )
        for batch in loader:
            yield batch[0].to(self.device, non_blocking=True) if self.decoder is None else self.decoder(batch)


@dataclass(frozen=True)
class FeatureSet(TrainingSet):
    """Features [N, F] of every image, computed once; a model is then only a head."""

    labels: IntArray
    device_labels: Tensor
    prior: Prior
    features: Tensor
    dtype = torch.float32
    mean = std = ()

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.features.shape[1:])

    def filler(self, order: Order, recipe: Recipe, seed: int) -> Fill:
        rows = own_rows(order.shape[1])

        def fill(items: Tensor, iteration: int) -> None:
            index = order[iteration : iteration + len(items), rows].astype(np.int64)
            items.copy_(self.features[upload(index, self.device)])

        return fill
