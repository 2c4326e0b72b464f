"""A data set of detection that stays on the device, decoded once: what small data sets are trained from.

Every image and its mirror image lie on one of two canvases, wide or high, as uint8 with their masks; a batch is a
gather. Batches are of one canvas each, as in other detectors' grouping by aspect ratio: the images of the sampler's
stream wait, wide and high apart, until a batch of them is full.

`FrozenRegions` is the same for a second stage, in which the classifier alone is trained: the features of all boxes of
all images are computed once, and a step is a gather and a matrix product.
"""

from __future__ import annotations

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

STEP = 32  # sides of a canvas are multiples of it, as the pyramid needs them


def fitting_size(height: int, width: int, shorter: int, longer: int) -> tuple[int, int]:
    """The size at which a detector looks at an image: the shorter side `shorter`, unless the longer gets too long.

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


class Resident:
    """`data` on `device`, for detectors with one size of images. `targets=False` keeps the pixels only.

    `place[i]` is (canvas, row) of image i; its mirror image is in the next row.
    """

    def __init__(
        self,
        data: CocoImages,
        device: torch.device,
        *,
        shorter: int,
        longer: int,
        targets: bool = True,
        mirrored: bool = True,
        workers: int = 8,
    ) -> None:
        self.data, self.device = data, device
        side = [-(-length // STEP) * STEP for length in (shorter, longer)]
        self.place: list[tuple[int, int]] = []
        self.sizes: list[tuple[int, int]] = []
        members: tuple[list[int], list[int]] = ([], [])
        copies = 2 if mirrored else 1
        for number, image in enumerate(data.images):
            size = fitting_size(image.height, image.width, shorter, longer)
            canvas = int(size[0] > size[1])
            self.sizes.append(size)
            self.place.append((canvas, copies * len(members[canvas])))
            members[canvas].append(number)
        self.canvases: list[Canvas | None] = []
        with ThreadPoolExecutor(workers) as pool:
            for which, numbers in enumerate(members):
                height, width = side if which == 0 else side[::-1]
                items = pool.map(lambda number: self._item(number, targets), numbers)
                self.canvases.append(self._filled(items, numbers, height, width, targets, mirrored))

    @staticmethod
    def bytes(data: CocoImages, shorter: int, longer: int, *, mirrored: bool = True) -> int:
        """What it needs on the device, nearly."""
        canvas = (-(-shorter // STEP) * STEP) * (-(-longer // STEP) * STEP)
        instances = int(data.classes_per_item[0][-1]) if data.has_masks else 0
        return (2 if mirrored else 1) * canvas * (3 * len(data) + instances)

    def _item(self, number: int, targets: bool) -> tuple[Tensor, dict[str, Tensor]]:
        image, target = self.data[number] if targets else (self.data.pixels(number), {})
        height, width = self.sizes[number]
        before = image.shape[-2:]
        if before == (height, width):
            return image, target
        resized = torch.nn.functional.interpolate(image[None].float(), (height, width), mode="bilinear")[0]
        if targets:
            target["boxes"] = resize_boxes(target["boxes"], before, (height, width))
            if "masks" in target and len(target["masks"]):
                target["masks"] = torch.nn.functional.interpolate(target["masks"][:, None], (height, width))[:, 0]
            elif "masks" in target:
                target["masks"] = target["masks"].new_zeros(0, height, width)
        return resized.round().clamp(0, 255).to(torch.uint8), target

    def _filled(
        self, items: Iterable[Any], numbers: list[int], height: int, width: int, targets: bool, mirrored: bool
    ) -> Canvas | None:
        if not numbers:
            return None
        copies = 2 if mirrored else 1
        rows, offsets = copies * len(numbers), self.data.classes_per_item[0]
        in_image = np.repeat(np.diff(offsets)[numbers] if targets else np.zeros(len(numbers), np.int64), copies)
        first = np.concatenate([[0], np.cumsum(in_image)]).astype(np.int64)
        most = max(1, int(in_image.max()))
        pixels = torch.zeros(rows, 3, height, width, dtype=torch.uint8, device=self.device)
        sizes, boxes = torch.zeros(rows, 2), torch.zeros(rows, most, 4)
        labels = torch.zeros(rows, most, dtype=torch.int64)
        verified: list[Tensor] = []
        masks = None
        if targets and self.data.has_masks:
            masks = torch.zeros(int(first[-1]), height, width, dtype=torch.uint8, device=self.device)
        for row, (image, target) in zip(range(0, rows, copies), items, strict=True):
            high, wide = image.shape[-2:]
            image = image.to(self.device, non_blocking=True)
            for turned in range(copies):
                here = row + turned
                pixels[here, :, :high, :wide] = image.flip(-1) if turned else image
                sizes[here] = torch.tensor([high, wide])
                if not targets:
                    continue
                found = len(target["labels"])
                labels[here, :found] = target["labels"]
                box = target["boxes"]
                boxes[here, :found] = (
                    torch.stack([wide - box[:, 2], box[:, 1], wide - box[:, 0], box[:, 3]], 1) if turned else box
                )
                if "verified" in target:
                    verified.append(target["verified"])
                if masks is not None:
                    mask = target["masks"].to(self.device, non_blocking=True)
                    masks[first[here] : first[here + 1], :high, :wide] = mask.flip(-1) if turned else mask
        known = torch.stack(verified).to(self.device) if len(verified) == rows else None
        return Canvas(pixels, sizes.to(self.device), boxes.to(self.device), labels.to(self.device), known, masks, first)

    def batch(self, canvas: int, rows: IntArray, transform: Any, *, federated: bool = False) -> Batch:
        """The images of `rows` of a canvas; `transform` is the detector's, for its mean and deviation."""
        store = self.canvases[canvas]
        assert store is not None
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
        """Batches of `size` images of one canvas: (canvas, rows), in the order in which they fill."""
        waiting: tuple[list[int], list[int]] = ([], [])
        for image, flip in zip(drawn.tolist(), flips.tolist(), strict=True):
            canvas, row = self.place[image]
            waiting[canvas].append(row + int(flip))
            if len(waiting[canvas]) == size:
                yield canvas, np.array(waiting[canvas], np.int64)
                waiting[canvas].clear()


def normalised(pixels: Tensor, sizes: Tensor, mean: list[float], deviation: list[float]) -> Tensor:
    """uint8 [B, 3, H, W] as a detector wants it: mean and deviation of a channel taken out, 0 beyond each image."""
    device = pixels.device
    scale = _constant(tuple(255 * value for value in deviation), device)
    shift = _constant(tuple(-part / value for part, value in zip(mean, deviation, strict=True)), device)
    inside = (torch.arange(pixels.shape[2], device=device) < sizes[:, :1])[:, :, None] & (
        torch.arange(pixels.shape[3], device=device) < sizes[:, 1:]
    )[:, None]
    return (pixels / scale[:, None, None] + shift[:, None, None]) * inside[:, None]


_CONSTANTS: dict[Any, Tensor] = {}


def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A small tensor that is copied to the device once."""
    if (values, device) not in _CONSTANTS:
        _CONSTANTS[values, device] = torch.tensor(values, device=device)
    return _CONSTANTS[values, device]


class FrozenRegions:
    """What the classifier of a frozen detector sees in each image and its mirror image: features and labels of all
    boxes it could be trained on, [rows, P, features] and [rows, P], rows as 2 i and 2 i + 1 of image i."""

    seconds = 0.0  # that it took, where someone looked at the clock

    def __init__(self, batched: Batched, resident: Resident, autocast: Any, *, batch_size: int = 16) -> None:
        self.resident = resident
        model: Any = batched.model
        row, begin = self._rows(), 0
        instances = max(store.boxes.shape[1] for store in resident.canvases if store is not None)
        self.features = torch.empty(0)
        model.eval()
        with torch.no_grad():
            for canvas, store in enumerate(resident.canvases):
                for start in range(0, 0 if store is None else len(store.pixels), batch_size):
                    assert store is not None
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
                    if begin == 0:  # the canvases are each other turned, with as many proposals
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
        stores = [store for store in resident.canvases if store is not None]
        boxes = model.rpn._post_nms_top_n["training"] + max(store.boxes.shape[1] for store in stores)
        width = model.roi_heads.box_predictor.cls_score.in_features
        return 2 * len(resident.data) * int(boxes * width) * (2 if resident.device.type == "cuda" else 4)

    def _rows(self) -> Tensor:
        """Where the rows of the canvases, one after another, belong."""
        numbers: list[list[int]] = [[], []]
        for image, (canvas, _) in enumerate(self.resident.place):
            numbers[canvas].extend((2 * image, 2 * image + 1))
        return torch.tensor([*numbers[0], *numbers[1]], device=self.resident.device)

    def _verified(self, row: Tensor) -> Tensor | None:
        known = [store.verified for store in self.resident.canvases if store is not None]
        if any(part is None for part in known):
            return None
        verified = torch.cat([part for part in known if part is not None])
        return torch.empty_like(verified).index_copy_(0, row, verified)

    def batch(self, rows: IntArray, *, federated: bool = False) -> FrozenBatch:
        """Features and labels of all boxes of `rows`."""
        index = torch.from_numpy(np.ascontiguousarray(rows)).to(self.features.device, non_blocking=True)
        verified = self.verified[index] if federated and self.verified is not None else None
        return FrozenBatch(self.features[index], self.labels[index], verified)
