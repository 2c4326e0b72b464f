"""Train and run the detectors of `mask_rcnn` on whole batches: the same losses and detections, without waiting.

torchvision goes through a batch image by image and asks the device each time how many boxes it found. Here a batch is a
few padded arrays, so that a step is some hundred large operations:

    matching    IoU of all instances of the batch with all boxes, instances padded to the most that an image has
    sampling    a random key per box; the largest keys among positives, then among negatives
    NMS         drop the boxes that a better one overlaps, then repeat with the boxes that this leaves, until nothing
                changes; after r rounds, boxes with suppression chains of at most r are exact
    pooling     the levels of the pyramid side by side in one picture, so that one RoIAlign serves all of them

Losses equal `model(images, targets)` if everything is sampled, and detections equal `model(images)`; tests verify both.
Under torch.distributed every rank draws the keys of the whole batch and takes its part, and means are over the whole
batch, so that two processes train the same model as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList  # type: ignore[import-untyped]
from torchvision.models.detection.rpn import concat_box_prediction_layers  # type: ignore[import-untyped]
from torchvision.ops import roi_align  # type: ignore[import-untyped]

from equipoise.models.mask_rcnn import FIRST_CANDIDATES
from equipoise.models.processes import world

ASK_AGAIN = {"cuda": 16}  # rounds of NMS between checks of whether anything still changes: a check waits for the device
ROWS = {"cuda": 64}  # masks are computed in multiples of this: cuDNN searches for an algorithm at each new number
ELEMENTS = 1 << 26  # elements of a matrix of overlaps at a time
CANONICAL, LARGEST_RATIO = 224, math.log(1000 / 16)  # of the feature pyramid, and of box regression


@dataclass(frozen=True)
class Batch:
    """Images of one padded size. Rows of `boxes` and `labels` beyond an image's instances are 0; label 0 means no
    class.

    pixels     float [B, 3, H, W], normalised, 0 beyond each image
    sizes      float [B, 2]: height and width of each image
    boxes      float [B, M, 4] as x0, y0, x1, y1;  labels [B, M] from 1
    masks      uint8 [I, H, W]: the instances of the batch one after another, those of image b from row first[b]
    verified   bool [B, K], if the data set knows for which classes an unmarked place is free of the class
    """

    pixels: Tensor
    sizes: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor | None = None
    first: Tensor | None = None
    verified: Tensor | None = None


@dataclass(frozen=True)
class FrozenBatch:
    """A batch for training the classifier alone: features [B, P, F] of all boxes, labels [B, P] (-1: none)."""

    features: Tensor
    labels: Tensor
    verified: Tensor | None = None


@dataclass(frozen=True)
class Proposals:
    """The outputs of the proposal network: for all anchors, and its best boxes [B, P, 4] (`there`: not padding)."""

    objectness: Tensor
    deltas: Tensor
    anchors: Tensor
    boxes: Tensor
    there: Tensor


@dataclass(frozen=True)
class Regions:
    """The boxes of a batch that the heads can be trained on: [B, P] with labels, -1 if there is none."""

    boxes: Tensor
    labels: Tensor
    instance: Tensor


# -------------------------------------------------------------------- boxes


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """IoU of boxes [..., N, 4] with boxes [..., M, 4]: [..., N, M].

    >>> overlaps(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 3.0, 2.0], [0.0, 0.0, 2.0, 2.0]]))
    tensor([[0.3333, 1.0000]])
    """
    a, b = first.unsqueeze(-2).unbind(-1), second.unsqueeze(-3).unbind(-1)
    width = (torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0])).clamp_(min=0)
    height = (torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1])).clamp_(min=0)
    shared = width.mul_(height)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def encode(wanted: Tensor, boxes: Tensor, weights: tuple[float, ...]) -> Tensor:
    """The box regression outputs that turn `boxes` [..., 4] into `wanted`."""
    centre, size = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    to, large = (wanted[..., :2] + wanted[..., 2:]) / 2, wanted[..., 2:] - wanted[..., :2]
    wx, wy, ww, wh = weights
    dx, dy = ((to - centre) / size).unbind(-1)
    dw, dh = (large / size).log().unbind(-1)
    return torch.stack([wx * dx, wy * dy, ww * dw, wh * dh], dim=-1)


def decode(codes: Tensor, boxes: Tensor, weights: tuple[float, ...]) -> Tensor:
    """The boxes that box regression makes of `boxes` [..., 4]."""
    centre, size = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    wx, wy, ww, wh = weights
    dx, dy, dw, dh = codes.unbind(-1)
    shift = torch.stack([dx / wx, dy / wy], dim=-1) * size
    half = torch.stack([dw / ww, dh / wh], dim=-1).clamp(max=LARGEST_RATIO).exp() * size / 2
    return torch.cat([centre + shift - half, centre + shift + half], dim=-1)


def clip(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes [B, ..., 4] cut off at the edges of their images, `sizes` [B, 2]. NaN becomes 0, so that a
    diverged detector cannot yield a bad index."""
    edge = sizes.flip(-1).repeat(1, 2).view(len(sizes), *[1] * (boxes.dim() - 2), 4)
    return torch.minimum(boxes.nan_to_num(0.0).clamp(min=0), edge)


def sides(boxes: Tensor) -> Tensor:
    """The shorter side of boxes [..., 4]."""
    return torch.minimum(boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1])


def take(values: Tensor, index: Tensor) -> Tensor:
    """Rows `index` [B, n] of `values` [B, P, ...]."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]


def survivors(boxes: Tensor, there: Tensor, overlap: float, classes: Tensor | None = None) -> Tensor:
    """NMS in G groups of boxes [G, n, 4], best first: which are kept, bool [G, n].

    `there` [G, n] marks the boxes that exist; with `classes` [G, n], only boxes of the same class drop each other.

    >>> boxes = torch.tensor([[[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.9], [9.0, 9.0, 10.0, 10.0]]])
    >>> survivors(boxes, torch.ones(1, 3, dtype=torch.bool), 0.5)
    tensor([[ True, False,  True]])
    """
    at_once = max(1, ELEMENTS // max(1, boxes.shape[1] ** 2))
    if len(boxes) > at_once:
        starts = range(0, len(boxes), at_once)
        some = [[None if x is None else x[n : n + at_once] for x in (boxes, there, classes)] for n in starts]
        return torch.cat([survivors(box, here, overlap, kind) for box, here, kind in some])  # type: ignore[arg-type]
    drops = (overlaps(boxes, boxes) > overlap).triu_(1)
    if classes is not None:
        drops &= classes[:, :, None] == classes[:, None, :]
    number = torch.bfloat16 if boxes.is_cuda else torch.float32
    drops, kept = drops.to(number), there.to(number)[:, None]
    exist, ask = kept, ASK_AGAIN.get(boxes.device.type, 4)
    with torch.autocast(boxes.device.type, enabled=False):
        for turn in range(1, boxes.shape[1] + 1):  # no chain is longer
            before = kept
            kept = torch.baddbmm(exist, kept, drops, alpha=-1).relu_()  # 1 if no kept box drops it
            if turn % ask == 0 and torch.equal(kept, before):
                break
    return kept[:, 0] > 0


def match(boxes: Tensor, instances: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The instance [B, P] that each of `boxes` [B, P, 4] overlaps most, by how much, and whether it is the best box (or
    ties with the best) for some instance. `labels` [B, M] are 0 where there is no instance."""
    at_once = max(1, ELEMENTS // max(1, instances.shape[1] * boxes.shape[-2]))
    most, index, best = [], [], []
    for start in range(0, len(instances), at_once):
        some = slice(start, start + at_once)
        shared = overlaps(instances[some], boxes[some])
        there = (labels[some] > 0)[:, :, None]
        shared = shared.masked_fill(~there, -1.0)
        values, places = shared.max(dim=1)
        most.append(values)
        index.append(places)
        best.append(((shared == shared.amax(dim=2, keepdim=True)) & there).any(dim=1))
    return torch.cat(index), torch.cat(most), torch.cat(best)


def sample(labels: Tensor, number: int, positive: float, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Draw `number` boxes per row of `labels` [B, P] (-1: none), at most a share `positive` of them with a label > 0.

    Returns their places [B, n], positives first, and which of these are boxes at all. `keys` [B, P] in [0, 1) decide.

    >>> sample(torch.tensor([[1, 0, 1, 0, -1]]), 3, 0.5, torch.tensor([[0.1, 0.2, 0.9, 0.3, 0.8]]))
    (tensor([[2, 3, 1]]), tensor([[True, True, True]]))
    """
    number = min(number, labels.shape[1])
    most = min(int(number * positive), labels.shape[1])
    wanted = torch.where(labels > 0, keys, -1.0)
    least = wanted.topk(most, dim=1).values[:, -1:] if most else torch.ones_like(wanted[:, :1])
    rank = torch.where(labels == 0, keys, -1.0)
    rank = torch.where((wanted >= least) & (wanted >= 0), 2 + keys, rank)
    values, places = rank.topk(number, dim=1)
    return places, values >= 0


# -------------------------------------------------------------------- many processes


def mean_over_ranks(count: Tensor) -> Tensor:
    """A count as its mean over all processes; dividing a sum by it makes averaged gradients exact."""
    number, _ = world()
    if number == 1:
        return count
    total = count.detach().clone().float()
    torch.distributed.all_reduce(total)
    return total / number


def largest_over_ranks(numbers: list[int], device: torch.device) -> list[int]:
    """The elementwise maximum over all processes."""
    if world()[0] == 1:
        return numbers
    most = torch.tensor(numbers, device=device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return [int(number) for number in most.tolist()]


def drawn(labels: Tensor, sampler: Any) -> tuple[Tensor, Tensor]:
    """The choice that torchvision's `sampler` would make among boxes with `labels` [B, P], as in `sample`; this process
    takes its part of the whole batch's keys."""
    (number, rank), (rows, columns) = world(), labels.shape
    keys = torch.rand(number * rows, columns, device=labels.device)[rank * rows : (rank + 1) * rows]
    return sample(labels, sampler.batch_size_per_image, sampler.positive_fraction, keys)


# -------------------------------------------------------------------- the detector


class Batched(nn.Module):
    """A detector from `mask_rcnn.detector` on batches: `forward` gives the losses of a Batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        self.constants: dict[Any, Any] = {}

    def forward(self, batch: Batch | FrozenBatch) -> dict[str, Tensor]:
        if isinstance(batch, FrozenBatch):
            return {"loss_classifier": self.frozen_loss(batch)}
        features = self.features(batch.pixels)
        found = self.proposals(features, batch.pixels.shape, batch.sizes, "training")
        losses = self.proposal_losses(found, batch) if found.deltas.requires_grad or not torch.is_grad_enabled() else {}
        return losses | self.region_losses(features, self.regions(found, batch), batch)

    def frozen_loss(self, batch: FrozenBatch) -> Tensor:
        """The classification loss: sampled as usual, but from precomputed features."""
        places, taken = drawn(batch.labels, self.model.roi_heads.fg_bg_sampler)
        logits = self.model.roi_heads.box_predictor.classify(take(batch.features, places).flatten(0, 1))
        return self.classification_loss(logits, take(batch.labels, places), taken, batch.verified)

    def features(self, pixels: Tensor) -> dict[str, Tensor]:
        """The levels of the pyramid."""
        return dict(self.model.backbone(channels_last(pixels)))

    # ---------------------------------------------------------------- proposals

    def proposals(self, features: dict[str, Tensor], shape: torch.Size, sizes: Tensor, stage: str) -> Proposals:
        rpn = self.model.rpn
        maps = list(features.values())
        objectness, deltas = rpn.head(maps)
        numbers = [level[0].numel() for level in objectness]
        scores, codes = concat_box_prediction_layers(objectness, deltas)
        scores, codes = scores.view(len(sizes), -1), codes.view(len(sizes), -1, 4)
        anchors = self._anchors(shape, maps)
        with torch.no_grad():
            boxes, there = self._best(scores, codes, anchors, numbers, sizes, stage)
        return Proposals(scores, codes, anchors, boxes, there)

    def _anchors(self, shape: torch.Size, maps: list[Tensor]) -> Tensor:
        key = ("anchors", tuple(shape[-2:]), maps[0].device)
        if key not in self.constants:
            images = ImageList(maps[0].new_empty(1, 3, *shape[-2:], dtype=torch.float32), [tuple(shape[-2:])])
            levels = [level.float() for level in maps]
            self.constants[key] = self.model.rpn.anchor_generator(images, levels)[0]
        return self.constants[key]  # type: ignore[no-any-return]

    def _best(
        self, scores: Tensor, codes: Tensor, anchors: Tensor, numbers: list[int], sizes: Tensor, stage: str
    ) -> tuple[Tensor, Tensor]:
        """The best boxes after NMS within each level."""
        rpn = self.model.rpn
        most = rpn._pre_nms_top_n[stage]
        values, places, first = [], [], 0
        for number in numbers:
            top = scores[:, first : first + number].topk(min(most, number), dim=1)
            values.append(top.values)
            places.append(top.indices + first)
            first += number
        place = torch.cat(places, dim=1)
        boxes = clip(decode(take(codes, place), anchors[place], rpn.box_coder.weights), sizes)
        score = torch.cat(values, dim=1).sigmoid()
        there = (sides(boxes) >= rpn.min_size) & (score >= rpn.score_thresh)
        kept = self._kept(boxes, there, [level.shape[1] for level in values])
        rank = torch.where(kept, score, -1.0)
        best = rank.topk(min(rpn._post_nms_top_n[stage], rank.shape[1]), dim=1)
        return take(boxes, best.indices), best.values >= 0

    def _kept(self, boxes: Tensor, there: Tensor, numbers: list[int]) -> Tensor:
        """NMS within each level of boxes [B, P, 4], with `numbers` per level: bool [B, P]. All levels at once,
        padded."""
        most = max(numbers)
        levels = [F.pad(part, (0, 0, 0, most - part.shape[1])) for part in boxes.split_with_sizes(numbers, dim=1)]
        exist = [F.pad(part, (0, most - part.shape[1])) for part in there.split_with_sizes(numbers, dim=1)]
        parts = survivors(torch.cat(levels), torch.cat(exist), self.model.rpn.nms_thresh).chunk(len(numbers))
        return torch.cat([part[:, :number] for part, number in zip(parts, numbers, strict=True)], dim=1)

    def proposal_losses(self, found: Proposals, batch: Batch) -> dict[str, Tensor]:
        """The losses of objectness and of boxes: torchvision's, on the same anchors."""
        rpn = self.model.rpn
        with torch.no_grad():
            anchors = found.anchors.expand(len(batch.boxes), -1, -1)
            index, shared, best = match(anchors, batch.boxes, batch.labels)
            matcher = rpn.proposal_matcher
            positive = (shared >= matcher.high_threshold) | best
            labels = torch.where(positive, 1, torch.where(shared < matcher.low_threshold, 0, -1))
            places, taken = drawn(labels, rpn.fg_bg_sampler)
            labels = take(labels, places)
            counted = (taken & (labels > 0))[..., None]
            wanted = encode(take(batch.boxes, take(index, places)), found.anchors[places], rpn.box_coder.weights)
            wanted = torch.where(counted, wanted, 0.0)
            total = mean_over_ranks(taken.sum())
        said = torch.where(counted, take(found.deltas, places), 0.0)
        scores = take(found.objectness, places)
        objectness = F.binary_cross_entropy_with_logits(
            scores, labels.clamp(min=0).float(), taken.float(), reduction="sum"
        )
        return {
            "loss_objectness": objectness / total,
            "loss_rpn_box_reg": F.smooth_l1_loss(said, wanted, beta=1 / 9, reduction="sum") / total,
        }

    # ---------------------------------------------------------------- regions

    @torch.no_grad()
    def regions(self, found: Proposals, batch: Batch) -> Regions:
        """Proposals and the instances themselves, each with the class of the instance it holds."""
        heads = self.model.roi_heads
        boxes = torch.cat([found.boxes, batch.boxes], dim=1)
        there = torch.cat([found.there, batch.labels > 0], dim=1)
        index, shared, _ = match(boxes, batch.boxes, batch.labels)
        labels = torch.where(shared >= heads.proposal_matcher.high_threshold, take(batch.labels, index), 0)
        return Regions(boxes, torch.where(there, labels, -1), index)

    def region_losses(self, features: dict[str, Tensor], regions: Regions, batch: Batch) -> dict[str, Tensor]:
        heads = self.model.roi_heads
        sampler = heads.fg_bg_sampler
        places, taken = drawn(regions.labels, sampler)
        labels, boxes = take(regions.labels, places), take(regions.boxes, places)
        first = min(int(sampler.batch_size_per_image * sampler.positive_fraction), labels.shape[1])  # all positives
        positive = (taken & (labels > 0))[:, :first]
        count = count_on_host(positive)
        picture = self.picture(features)
        images = torch.arange(len(labels), device=labels.device)
        hidden = heads.box_head(
            self.pool(picture, boxes.flatten(0, 1), images.repeat_interleave(boxes.shape[1]), "box")
        )
        logits, regression = heads.box_predictor(hidden)
        losses = {"loss_classifier": self.classification_loss(logits, labels, taken, batch.verified)}
        instance = take(regions.instance, places[:, :first])
        total = mean_over_ranks(taken.sum())
        if heads.trains("bbox_pred"):
            said = regression.view(*labels.shape, -1, 4)[:, :first]
            said = said.gather(2, (labels[:, :first] - 1).clamp(min=0)[..., None, None].expand(-1, -1, 1, 4))[:, :, 0]
            wanted = encode(take(batch.boxes, instance), boxes[:, :first], heads.box_coder.weights)
            said, wanted = (torch.where(positive[..., None], value, 0.0) for value in (said, wanted))
            losses["loss_box_reg"] = F.smooth_l1_loss(said, wanted, beta=1 / 9, reduction="sum") / total
        if heads.has_mask() and heads.trains("mask") and batch.masks is not None and batch.first is not None:
            number = count()
            multiple = ROWS.get(labels.device.type, 1)
            rows = min(-(-number // multiple) * multiple, positive.numel())
            some = positive.flatten().to(torch.uint8).argsort(descending=True, stable=True)[:rows]
            counted = torch.arange(rows, device=labels.device) < number  # the others fill up
            image, chosen = some // first, boxes[:, :first].flatten(0, 1)[some]
            hidden = heads.mask_head(channels_last(self.pool(picture, chosen, image, "mask")))
            said = heads.mask_predictor(hidden, (labels[:, :first].flatten()[some] - 1).clamp(min=0))
            row = torch.where(counted, batch.first[image] + instance.flatten()[some], 0)
            wanted = drawn_masks(batch.masks, row, chosen, said.shape[-1])
            share = 1.0 if world()[0] == 1 else number / mean_over_ranks(positive.sum()).clamp(min=1e-6)
            cost = F.binary_cross_entropy_with_logits(said, wanted, reduction="none").mean(dim=(1, 2))
            mean = torch.where(counted, cost, 0.0).sum() / max(number, 1)
            losses["loss_mask"] = mean * share
        return losses

    def classification_loss(self, logits: Tensor, labels: Tensor, taken: Tensor, verified: Tensor | None) -> Tensor:
        """The classification part's loss of `logits` [B · n, columns] for labels [B, n] of boxes that are `taken`."""
        part = self.model.roi_heads.classification
        weight = None
        if verified is not None:
            own = F.one_hot(labels.clamp(min=0), verified.shape[1] + 1)[..., 1:].bool()
            weight = (verified[:, None] | own).flatten(0, 1).float()
        loss: Tensor = part.loss(logits, torch.where(taken, labels, part.ignored).flatten(), weight)
        if world()[0] == 1:
            return loss
        count = taken.sum()
        return loss * count / mean_over_ranks(count)

    # ---------------------------------------------------------------- pooling

    def picture(self, features: dict[str, Tensor]) -> Tensor:
        """The levels in one fp32 picture: the finest on the left, the others stacked to its right. Each is extended by
        its last row and column, which is what RoIAlign sees beyond an edge."""
        finest, *others = (
            _continued(features[name].to(torch.float32, memory_format=torch.contiguous_format))
            for name in self.model.roi_heads.box_roi_pool.featmap_names
        )
        key = ("corners", tuple(finest.shape[-2:]), finest.device)
        if key not in self.constants:
            corners, down = [(0, 0)], 0
            for level in others:
                corners.append((finest.shape[-1], down))
                down += level.shape[-2]
            self.constants[key] = torch.tensor(corners, dtype=torch.float32, device=finest.device)
        self.corners = self.constants[key]
        width = max(level.shape[-1] for level in others)
        beside = torch.cat([F.pad(level, (0, width - level.shape[-1])) for level in others], dim=-2)
        height = max(finest.shape[-2], beside.shape[-2])
        finest, beside = (F.pad(part, (0, 0, 0, height - part.shape[-2])) for part in (finest, beside))
        return torch.cat([finest, beside], dim=-1)

    def pool(self, picture: Tensor, boxes: Tensor, images: Tensor, what: str) -> Tensor:
        """Features of boxes [N, 4] in images [N], from the level that fits a box's size."""
        pooler = getattr(self.model.roi_heads, f"{what}_roi_pool")
        with torch.no_grad():
            size = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=1).sqrt()
            level = (4 + (size / CANONICAL).log2() + 1e-6).floor().clamp(2, 1 + len(self.corners)).long()
            where = boxes / (1 << level)[:, None] + self.corners[level - 2].repeat(1, 2)
            rows = torch.cat([images[:, None].to(where.dtype), where], dim=1)
        return roi_align(picture, rows, pooler.output_size, 1.0, pooler.sampling_ratio)  # type: ignore[no-any-return]

    # ---------------------------------------------------------------- use

    @torch.no_grad()
    def detect(self, pixels: Tensor, sizes: Tensor) -> dict[str, Tensor]:
        """What is found, best first, padded to the most an image may have: "boxes" [B, D, 4] in the coordinates of
        `pixels`, "labels" [B, D] from 1, "scores" [B, D] (0: padding) and "masks" [B, D, M, M] as probabilities."""
        heads = self.model.roi_heads
        features = self.features(pixels)
        found = self.proposals(features, pixels.shape, sizes, "testing")
        picture = self.picture(features)
        images = torch.arange(len(sizes), device=pixels.device)
        number = found.boxes.shape[1]
        hidden = self.pool(picture, found.boxes.flatten(0, 1), images.repeat_interleave(number), "box")
        logits, regression = heads.box_predictor(heads.box_head(hidden))
        scores = heads.classification.scores(logits).view(len(sizes), number, -1)
        scores = torch.where(found.there[..., None], scores, 0.0)
        results = self._best_of_classes(scores, regression.view(*scores.shape, 4), found.boxes, sizes)
        if heads.has_mask():
            most = results["boxes"].shape[1]
            hidden = self.pool(picture, results["boxes"].flatten(0, 1), images.repeat_interleave(most), "mask")
            classes = (results["labels"].flatten() - 1).clamp(min=0)
            masks = heads.mask_predictor(heads.mask_head(channels_last(hidden)), classes).sigmoid()
            results["masks"] = masks.view(len(sizes), most, *masks.shape[1:])
        return results

    def _best_of_classes(self, scores: Tensor, regression: Tensor, boxes: Tensor, sizes: Tensor) -> dict[str, Tensor]:
        heads = self.model.roi_heads
        if heads.least is not None:
            return self._every_box(scores, regression, boxes, sizes)
        classes, most = scores.shape[2], heads.detections_per_img
        looked_at = min(FIRST_CANDIDATES, scores[0].numel())
        top = scores.flatten(1).topk(looked_at, dim=1)
        row, column = top.indices // classes, top.indices % classes
        codes = regression.flatten(1, 2)
        candidates = clip(decode(take(codes, top.indices), take(boxes, row), heads.box_coder.weights), sizes)
        there = (top.values > heads.score_thresh) & (sides(candidates) >= 1e-2)
        kept = survivors(candidates, there, heads.nms_thresh, column)
        rank = torch.where(kept, top.values, 0.0)
        best = rank.topk(min(most, looked_at), dim=1)
        results = {
            "boxes": take(candidates, best.indices) * (best.values > 0)[..., None],
            "labels": torch.where(best.values > 0, take(column, best.indices) + 1, 0),
            "scores": best.values,
        }
        more = (kept.sum(dim=1) < most) & ((scores > heads.score_thresh).sum(dim=(1, 2)) > looked_at)
        for image in more.nonzero().flatten().tolist():  # boxes so similar that NMS left too few: look at all of them
            for name, values in self._best_of_image(image, scores, regression, boxes, sizes).items():
                results[name][image] = 0
                results[name][image, : len(values)] = values
        return results

    def _every_box(self, scores: Tensor, regression: Tensor, boxes: Tensor, sizes: Tensor) -> dict[str, Tensor]:
        """Like `mask_rcnn.every_box`, with the classes of all images as groups of one NMS, padded to the longest."""
        heads, classes = self.model.roi_heads, scores.shape[2]
        wanted = torch.where(scores >= heads.least, scores, -1.0).transpose(1, 2)  # [B, K, P]
        most = int((wanted >= 0).sum(dim=2).max())
        values, row = (part[..., :most].flatten(1) for part in wanted.sort(dim=2, descending=True, stable=True))
        column = torch.arange(classes, device=scores.device).repeat_interleave(most).expand_as(row)
        codes = take(regression.flatten(1, 2), row * classes + column)
        candidates = clip(decode(codes, take(boxes, row), heads.box_coder.weights), sizes)
        there = (values >= 0) & (sides(candidates) >= 1e-2)
        shape = (len(scores) * classes, most)
        kept = survivors(candidates.view(*shape, 4), there.view(shape), heads.nms_thresh).view_as(there)
        ranked = torch.where(kept, values, 0.0).sort(dim=1, descending=True, stable=True)
        best, places = (part[:, : int(kept.sum(dim=1).max())] for part in ranked)
        some = best > 0
        return {
            "boxes": take(candidates, places) * some[..., None],
            "labels": torch.where(some, take(column, places) + 1, 0),
            "scores": best,
        }

    def _best_of_image(
        self, image: int, scores: Tensor, regression: Tensor, boxes: Tensor, sizes: Tensor
    ) -> dict[str, Tensor]:
        heads = self.model.roi_heads
        every = decode(regression[image], boxes[image][:, None], heads.box_coder.weights)
        found: dict[str, Tensor] = heads.best(clip(every[None], sizes[image : image + 1])[0], scores[image])
        return found


def channels_last(pixels: Tensor) -> Tensor:
    """In the memory order in which a GPU convolves fastest."""
    return pixels.contiguous(memory_format=torch.channels_last) if pixels.is_cuda else pixels


def _continued(level: Tensor) -> Tensor:
    """Extended by two columns and rows like the last."""
    level = torch.cat([level, level[..., -1:].expand(-1, -1, -1, 2)], dim=-1)
    return torch.cat([level, level[:, :, -1:].expand(-1, -1, 2, -1)], dim=-2)


def drawn_masks(masks: Tensor, rows: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Instances `rows` of uint8 masks [I, H, W] within boxes [N, 4]: [N, side, side], as torchvision draws them."""
    where = torch.cat([rows[:, None].to(boxes.dtype), boxes], dim=1)
    return roi_align(masks[:, None].float(), where, (side, side), 1.0)[:, 0]  # type: ignore[no-any-return]


def count_on_host(flags: Tensor) -> Callable[[], int]:
    """How many of `flags` are true, copied to the host while the device keeps working."""
    if not flags.is_cuda:
        return lambda: int(flags.sum())
    number = flags.sum().to("cpu", non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def wait() -> int:
        arrived.synchronize()
        return int(number)

    return wait
