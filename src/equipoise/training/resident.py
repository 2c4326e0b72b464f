"""A detection data set that is decoded once and stays on the device; small data sets are trained this way.

Every image and its mirror image are on one of two canvases, wide or high, as uint8 with their masks; a batch is a
gather. Each batch comes from one canvas, like the grouping by aspect ratio in other detectors: the images of the
sampler's stream wait, wide and high ones separately, until a batch is full.

`FrozenRegions` is the same for a second stage, in which only the classifier is trained: the features of all boxes of
all images are computed once, and a step is a gather and a matrix product.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.models.detection.transform import resize_boxes  # type: ignore[import-untyped]

from equipoise.data.coco import CocoImages
from equipoise.models.batched_rcnn import Batch, Batched, FrozenBatch
from equipoise.prior import IntArray

STEP = 32  # sides of a canvas are multiples of this, as the pyramid needs


def fitting_size(height: int, width: int, shorter: int, longer: int) -> tuple[int, int]:
    """The size at which a detector sees an image: the shorter side is `shorter`, unless the longer one gets too long.

    >>> fitting_size(320, 427, 320, 480), fitting_size(160, 320, 320, 480)
    ((320, 427), (240, 480))
    """
    scale = min(shorter / min(height, width), longer / max(height, width))
    return int(height * scale), int(width * scale)


@dataclass
class Canvas:
    """Images of one padded size, each followed by its mirror image: row 2 i and 2 i + 1."""

    pixels: Tensor  # uint8 [2 n, 3, H, W]
    sizes: Tensor  # float [2 n, 2]: height and width
    boxes: Tensor  # [2 n, M, 4]
    labels: Tensor  # [2 n, M], 0: no instance
    verified: Tensor | None  # bool [2 n, K]
    masks: Tensor | None  # uint8 [I, H, W]
    first: IntArray  # [2 n + 1]: an image's masks start here


def flipped(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The mirror image: left and right exchanged."""
    width = image.shape[-1]
    target = dict(target)
    x0, y0, x1, y1 = target["boxes"].unbind(1)
    target["boxes"] = torch.stack([width - x1, y0, width - x0, y1], dim=1)
    if "masks" in target:
        target["masks"] = target["masks"].flip(-1)
    return image.flip(-1), target


class Resident:
    """`data` on `device`, for detectors with one image size; data that is not for training has only pixels, unmirrored.

    `place[i]` is (canvas, row) of image i; its mirror image is in the next row.
    """

    def __init__(
        self,
        data: CocoImages,
        device: torch.device,
        *,
        shorter: int,
        longer: int,
        training: bool = True,
        workers: int = 8,
    ) -> None:
        self.data, self.device, self.training = data, device, training
        height, width = (-(-length // STEP) * STEP for length in (shorter, longer))
        self.sizes = [fitting_size(image.height, image.width, shorter, longer) for image in data.images]
        self.place: list[tuple[int, int]] = []
        members: tuple[list[int], list[int]] = ([], [])
        for number, (high, wide) in enumerate(self.sizes):
            canvas = int(high > wide)
            self.place.append((canvas, (1 + training) * len(members[canvas])))
            members[canvas].append(number)
        with ThreadPoolExecutor(workers) as pool:
            wide_ones = self._filled(pool.map(self._item, members[0]), members[0], height, width)
            high_ones = self._filled(pool.map(self._item, members[1]), members[1], width, height)
        self.canvases = [wide_ones, high_ones]

    @staticmethod
    def bytes(data: CocoImages, shorter: int, longer: int, *, training: bool = True) -> int:
        """What it needs on the device, nearly."""
        canvas = (-(-shorter // STEP) * STEP) * (-(-longer // STEP) * STEP)
        instances = int(data.classes_per_item[0][-1]) if data.has_masks else 0
        return (1 + training) * canvas * (3 * len(data) + instances)

    def _item(self, number: int) -> tuple[Tensor, dict[str, Tensor]]:
        if self.training:
            image, target = self.data[number]
        else:
            image = self.data.pixels(number)
            target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
        before, size = image.shape[-2:], self.sizes[number]
        if before == size:
            return image, target
        resized = torch.nn.functional.interpolate(image[None].float(), size, mode="bilinear")[0]
        target["boxes"] = resize_boxes(target["boxes"], before, size)
        if "masks" in target and len(target["masks"]):
            target["masks"] = torch.nn.functional.interpolate(target["masks"][:, None], size)[:, 0]
        elif "masks" in target:
            target["masks"] = target["masks"].new_zeros(0, *size)
        return resized.round().clamp(0, 255).to(torch.uint8), target

    def _filled(self, items: Iterable[Any], numbers: list[int], height: int, width: int) -> Canvas:
        in_image = np.zeros(len(numbers), np.int64)
        if self.training:
            in_image = np.repeat(np.diff(self.data.classes_per_item[0])[numbers], 2)
        first = np.concatenate([[0], np.cumsum(in_image)]).astype(np.int64)
        rows, most = len(in_image), int(in_image.max(initial=1))
        pixels = torch.zeros(rows, 3, height, width, dtype=torch.uint8, device=self.device)
        sizes, boxes = torch.zeros(rows, 2), torch.zeros(rows, most, 4)
        labels = torch.zeros(rows, most, dtype=torch.int64)
        verified: list[Tensor] = []
        masks = None
        if self.training and self.data.has_masks:
            masks = torch.zeros(int(first[-1]), height, width, dtype=torch.uint8, device=self.device)
        for row, (image, target) in zip(range(0, rows, 1 + self.training), items, strict=True):
            if masks is not None:
                target["masks"] = target["masks"].to(self.device, non_blocking=True)
            item = image.to(self.device, non_blocking=True), target
            for here, (image, target) in enumerate([item, flipped(*item)] if self.training else [item], row):
                high, wide = image.shape[-2:]
                pixels[here, :, :high, :wide] = image
                sizes[here] = torch.tensor([high, wide])
                found = len(target["labels"])
                labels[here, :found], boxes[here, :found] = target["labels"], target["boxes"]
                if "verified" in target:
                    verified.append(target["verified"])
                if masks is not None:
                    masks[first[here] : first[here + 1], :high, :wide] = target["masks"]
        known = torch.stack(verified).to(self.device) if 0 < len(verified) == rows else None
        return Canvas(pixels, sizes.to(self.device), boxes.to(self.device), labels.to(self.device), known, masks, first)

    def batch(self, canvas: int, rows: IntArray, transform: Any, *, federated: bool = False) -> Batch:
        """The images in `rows` of a canvas; `transform` is the detector's, for its mean and deviation."""
        store = self.canvases[canvas]
        index = torch.from_numpy(np.ascontiguousarray(rows)).to(self.device, non_blocking=True)
        sizes = store.sizes[index]
        masks = first = None
        if store.masks is not None:
            number = np.diff(store.first)[rows]
            starts = np.concatenate([[0], np.cumsum(number)[:-1]]).astype(np.int64)
            every = np.repeat(store.first[:-1][rows] - starts, number) + np.arange(int(number.sum()))
            masks = store.masks[torch.from_numpy(every).to(self.device, non_blocking=True)]
            first = torch.from_numpy(starts).to(self.device, non_blocking=True)
        return Batch(
            normalised(store.pixels[index], sizes, transform.image_mean, transform.image_std),
            sizes,
            store.boxes[index],
            store.labels[index],
            masks,
            first,
            store.verified[index] if federated and store.verified is not None else None,
        )

    def grouped(self, drawn: IntArray, flips: np.ndarray[Any, Any], size: int) -> Iterator[tuple[int, IntArray]]:
        """Batches of `size` images from one canvas: (canvas, rows), in the order in which they fill."""
        waiting: tuple[list[int], list[int]] = ([], [])
        for image, flip in zip(drawn.tolist(), flips.tolist(), strict=True):
            canvas, row = self.place[image]
            waiting[canvas].append(row + int(flip))
            if len(waiting[canvas]) == size:
                yield canvas, np.array(waiting[canvas], np.int64)
                waiting[canvas].clear()


def normalised(pixels: Tensor, sizes: Tensor, mean: list[float], deviation: list[float]) -> Tensor:
    """uint8 [B, 3, H, W] normalised for a detector: by the mean and deviation of each channel, 0 beyond each image."""
    device = pixels.device
    scale = _constant(tuple(255 * value for value in deviation), device)
    shift = _constant(tuple(-part / value for part, value in zip(mean, deviation, strict=True)), device)
    inside = (torch.arange(pixels.shape[2], device=device) < sizes[:, :1])[:, :, None] & (
        torch.arange(pixels.shape[3], device=device) < sizes[:, 1:]
    )[:, None]
    return (pixels / scale[:, None, None] + shift[:, None, None]) * inside[:, None]


@functools.cache
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A small tensor that is copied to the device once."""
    return torch.tensor(values, device=device)


class FrozenRegions:
    """What the classifier of a frozen detector sees in each image and its mirror image: features and labels of all
    boxes it could be trained on, [rows, P, features] and [rows, P], with rows 2 i and 2 i + 1 for image i."""

    seconds = 0.0  # that it took, if it was timed

    def __init__(self, batched: Batched, resident: Resident, autocast: Any, *, batch_size: int = 16) -> None:
        self.resident = resident
        model: Any = batched.model
        row, begin = self._rows(), 0
        instances = max(store.boxes.shape[1] for store in resident.canvases)
        self.features = torch.empty(0)
        model.eval()
        with torch.no_grad():
            for canvas, store in enumerate(resident.canvases):
                for start in range(0, len(store.pixels), batch_size):
                    rows = np.arange(start, min(start + batch_size, len(store.pixels)))
                    batch = resident.batch(canvas, rows, model.transform)
                    with autocast:
                        features = batched.features(batch.pixels)
                        proposals = batched.proposals(features, batch.pixels.shape, batch.sizes, "training")
                        regions = batched.regions(proposals, batch)
                        images = torch.arange(len(rows), device=batch.pixels.device)
                        every = images.repeat_interleave(regions.boxes.shape[1])
                        picture = batched.picture(features)
                        pooled = batched.pool(picture, regions.boxes.flatten(0, 1), every, "box")
                        hidden = model.roi_heads.box_head(pooled).view(*regions.labels.shape, -1)
                    if begin == 0:  # the canvases are rotations of each other, with equally many proposals
                        most = proposals.boxes.shape[1] + instances
                        self.features = hidden.new_zeros(len(row), most, hidden.shape[2])
                        self.labels = regions.labels.new_full((len(row), most), -1)
                    here = row[begin : begin + len(rows)]
                    self.features[here, : hidden.shape[1]] = hidden
                    self.labels[here, : hidden.shape[1]] = regions.labels
                    begin += len(rows)
        self.verified = self._verified(row)

    @staticmethod
    def bytes(batched: Batched, resident: Resident) -> int:
        """What it needs on the device, nearly."""
        model: Any = batched.model
        boxes = model.rpn._post_nms_top_n["training"] + max(store.boxes.shape[1] for store in resident.canvases)
        width = model.roi_heads.box_predictor.cls_score.in_features
        return 2 * len(resident.data) * int(boxes * width) * (2 if resident.device.type == "cuda" else 4)

    def _rows(self) -> Tensor:
        """Where the rows of the canvases, taken one after another, belong."""
        numbers: list[list[int]] = [[], []]
        for image, (canvas, _) in enumerate(self.resident.place):
            numbers[canvas].extend((2 * image, 2 * image + 1))
        return torch.tensor([*numbers[0], *numbers[1]], device=self.resident.device)

    def _verified(self, row: Tensor) -> Tensor | None:
        known = [store.verified for store in self.resident.canvases if store.verified is not None]
        if sum(map(len, known)) < len(row):
            return None
        verified = torch.cat(known)
        return torch.empty_like(verified).index_copy_(0, row, verified)

    def batch(self, rows: IntArray, *, federated: bool = False) -> FrozenBatch:
        """Features and labels of all boxes of `rows`."""
        index = torch.from_numpy(np.ascontiguousarray(rows)).to(self.features.device, non_blocking=True)
        verified = self.verified[index] if federated and self.verified is not None else None
        return FrozenBatch(self.features[index], self.labels[index], verified)
