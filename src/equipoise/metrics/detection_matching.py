"""Which detections are right: matched with the truth per class and IoU as LVIS does, once for all measures.

Within an image and a class the detections are processed best first. Each takes the instance that it overlaps most,
among those that no better one took and that it overlaps by at least the IoU. Detections of a class that their image was
not searched for do not count, nor do unmatched ones of a class that is not marked exhaustively there. A crowd (COCO;
LVIS has none) is not an instance: a detection that would be wrong, but lies in a crowd of its class by at least the
IoU, is left out.

A match depends only on better detections. So the matches of the best detections per image, or per class, are the same
as among all detections, and every cap is a mask on one matching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.data.masks import hotcoco
from equipoise.prior import FloatArray, IntArray

if TYPE_CHECKING:
    from equipoise.metrics.detection import Detections

IOUS = np.linspace(0.5, 0.95, 10)
PAIRS = 1 << 22  # pairs of a detection and an instance that are compared at a time

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Truth:
    """An annotation file as arrays: images and categories in the order of their ids, one row per instance.

    verified     bool [I, K]: an image was searched for a class, so that a detection of it is right or wrong
    exhaustive   bool [I, K]: and every instance of it is marked
    """

    image_ids: IntArray
    category_ids: IntArray
    groups: NDArray[np.str_]  # "r", "c", "f" of each category; "" if the file does not tell
    images: IntArray  # [G] index of each instance's image
    categories: IntArray  # [G] index of its category
    boxes: FloatArray  # [G, 4] x, y, width, height
    crowds: BoolArray  # [G]
    masks: Sequence[Any] | None
    sizes: IntArray  # [I, 2] height and width, 0 if the file does not tell
    verified: BoolArray
    exhaustive: BoolArray

    @classmethod
    def of(cls, content: dict[str, Any], *, grouped: bool, masks: bool) -> Truth:
        """Read from the content of a file with LVIS's fields."""
        images = sorted(content["images"], key=lambda image: image["id"])
        categories = sorted(content["categories"], key=lambda category: category["id"])
        image_ids, category_ids = (np.array([one["id"] for one in entries]) for entries in (images, categories))
        annotations = content["annotations"]
        rows = np.searchsorted(image_ids, np.array([one["image_id"] for one in annotations], image_ids.dtype))
        columns = np.searchsorted(category_ids, np.array([one["category_id"] for one in annotations], np.int64))
        verified = np.zeros((len(images), len(categories)), bool)
        exhaustive = np.ones_like(verified)
        verified[rows, columns] = True
        place = {identity: column for column, identity in enumerate(category_ids.tolist())}
        for row, image in enumerate(images):
            verified[row, [place[one] for one in image["neg_category_ids"] if one in place]] = True
            exhaustive[row, [place[one] for one in image["not_exhaustive_category_ids"] if one in place]] = False
        return cls(
            image_ids,
            category_ids,
            np.array([category["frequency"] if grouped else "" for category in categories], np.str_),
            rows,
            columns,
            np.array([one.get("bbox") or [0.0] * 4 for one in annotations], np.float64).reshape(-1, 4),
            np.array([bool(one.get("iscrowd")) for one in annotations], bool),
            [one.get("segmentation") for one in annotations] if masks else None,
            np.array([[image.get("height") or 0, image.get("width") or 0] for image in images], np.int64),
            verified,
            exhaustive,
        )


@dataclass(frozen=True)
class Matches:
    """Detections ordered by class, within a class best first; equal scores in the order of images, then as given.

    hits_iou, hits   every right detection at every IoU: the number of the IoU, ascending, and its place in the order
    counted          detections that are wrong if they are not right; the others are left out in that case
    left_iou, left   counted detections that are left out at an IoU because they lie in a crowd; in the form of hits
    """

    order: IntArray  # [D] the detection at each place
    scores: FloatArray  # [D] like all below: for each place
    classes: IntArray
    image_rank: IntArray  # from 0: how many detections of its image, over all classes, come before it
    class_rank: IntArray
    counted: BoolArray
    hits_iou: IntArray
    hits: IntArray
    left_iou: IntArray
    left: IntArray
    instances: IntArray  # [K] of each class, without crowds
    groups: NDArray[np.str_]  # [K]


def match(truth: Truth, detections: Detections, kind: Literal["bbox", "segm"]) -> Matches:
    """Match `detections`, whose ids `truth` knows, by their boxes or masks."""
    image = np.searchsorted(truth.image_ids, detections.image_ids)
    category = np.searchsorted(truth.category_ids, detections.category_ids)
    number = len(truth.category_ids)
    by_image = stable_order(image, len(truth.image_ids))
    best = by_image[np.argsort(-detections.scores[by_image], kind="stable")]
    image_rank = np.empty(len(best), np.int64)
    image_rank[best] = rank_within(image[best], len(truth.image_ids))
    order = best[stable_order(category[best], number)]
    image, category, image_rank = image[order], category[order], image_rank[order]
    verified, exhaustive = truth.verified[image, category], truth.exhaustive[image, category]
    cells, counted = image * number + category, verified & exhaustive
    places, instances, shared = _overlapping(truth, detections, kind, order, cells, verified)
    crowd = truth.crowds[instances]
    hits_iou, hits = _taken(places[~crowd], instances[~crowd], shared[~crowd], cells, len(truth.images))
    left_iou, left = _in_crowds(places[crowd], shared[crowd], counted, hits_iou * len(order) + hits)
    return Matches(
        order,
        detections.scores[order],
        category,
        image_rank,
        rank_within(category, number),
        counted,
        hits_iou,
        hits,
        left_iou,
        left,
        np.bincount(truth.categories[~truth.crowds], minlength=number),
        truth.groups,
    )


def stable_order(keys: IntArray, number: int) -> IntArray:
    """The order that sorts keys in [0, number); equal keys keep their order."""
    small = number <= 1 << 16  # 16 bits, which NumPy sorts by radix
    return np.argsort(keys.astype(np.uint16) if small else keys, kind="stable")


def rank_within(keys: IntArray, number: int) -> IntArray:
    """How many equal keys come before each key.

    >>> rank_within(np.array([5, 2, 5, 5, 2]), 6).tolist()
    [0, 0, 1, 2, 1]
    """
    order = stable_order(keys, number)
    sizes = np.bincount(keys, minlength=number)
    ranks = np.empty(len(keys), np.int64)
    ranks[order] = np.arange(len(keys)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks


def _overlapping(
    truth: Truth, detections: Detections, kind: str, order: IntArray, cells: IntArray, verified: BoolArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Pairs of a place and an instance of its image and class that overlap by at least the lowest IoU, and by how much,
    in the order of places and, for one place, in the order of the file."""
    own = truth.images * len(truth.category_ids) + truth.categories
    by_cell = np.argsort(own, kind="stable")
    known = own[by_cell]
    looked_at = np.flatnonzero(verified)
    first = np.searchsorted(known, cells[looked_at], "left")
    number = np.searchsorted(known, cells[looked_at], "right") - first
    some = number > 0
    looked_at, first, number = looked_at[some], first[some], number[some]
    ends = np.cumsum(number)
    parts = []
    for start in range(0, int(ends[-1]) if len(ends) else 0, PAIRS):
        rows = slice(*np.searchsorted(ends, [start, start + PAIRS], "right").tolist())
        counts = number[rows]
        places = np.repeat(looked_at[rows], counts)
        within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        instances = by_cell[np.repeat(first[rows], counts) + within]
        if kind == "bbox":
            shared = box_overlaps(detections.boxes[order[places]], truth.boxes[instances], truth.crowds[instances])
        else:
            shared = _mask_overlaps(truth, detections, order[places], instances, cells[places])
        enough = shared >= IOUS[0]
        parts.append((places[enough], instances[enough], shared[enough]))
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    found = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return found[0], found[1], found[2]


def box_overlaps(first: FloatArray, second: FloatArray, crowds: BoolArray | None = None) -> FloatArray:
    """IoU of boxes [P, 4] with boxes [P, 4], pair by pair, as x, y, width, height; with crowds, the share of the first.

    >>> box_overlaps(np.array([[0.0, 0.0, 2.0, 2.0]]), np.array([[1.0, 0.0, 2.0, 2.0]])).round(4).tolist()
    [0.3333]
    """
    low = np.maximum(first[:, :2], second[:, :2])
    high = np.minimum(first[:, :2] + first[:, 2:], second[:, :2] + second[:, 2:])
    shared = np.maximum(high - low, 0.0).prod(axis=1)
    own = first[:, 2:].prod(axis=1)
    together = own + second[:, 2:].prod(axis=1) - shared
    if crowds is not None:
        together = np.where(crowds, own, together)
    return np.asarray(np.divide(shared, together, out=np.zeros_like(shared), where=together > 0))


def _mask_overlaps(
    truth: Truth, detections: Detections, rows: IntArray, instances: IntArray, cells: IntArray
) -> FloatArray:
    """The same for masks, one image and class at a time."""
    assert truth.masks is not None
    assert detections.masks is not None
    overlap = hotcoco().mask.iou
    shared = np.zeros(len(rows))
    order = np.argsort(cells, kind="stable")
    for pairs in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        ours, row = np.unique(rows[pairs], return_inverse=True)
        theirs, column = np.unique(instances[pairs], return_inverse=True)
        size = truth.sizes[truth.images[theirs[0]]].tolist()
        found = [_packed(detections.masks[one], size) for one in ours.tolist()]
        marked = [_packed(truth.masks[one], size) for one in theirs.tolist()]
        shared[pairs] = np.asarray(overlap(found, marked, truth.crowds[theirs].tolist()))[row, column]
    return shared


def _packed(segmentation: Any, size: list[int]) -> Any:
    """Polygons or an RLE as a compressed RLE."""
    masks = hotcoco().mask
    if isinstance(segmentation, dict):
        lists = isinstance(segmentation["counts"], list)
        return masks.frPyObjects(segmentation, *segmentation["size"]) if lists else segmentation
    return masks.merge(masks.frPyObjects(segmentation, *size))


def _taken(
    places: IntArray, instances: IntArray, shared: FloatArray, cells: IntArray, number: int
) -> tuple[IntArray, IntArray]:
    """Which places hit an instance at which IoU, for all images and classes at once: first their best, then their
    second, ..."""
    starts = np.flatnonzero(np.diff(places, prepend=-1))  # the first pair of each place
    turn = rank_within(np.unique(cells[places[starts]], return_inverse=True)[1].ravel(), len(starts))
    turns = np.repeat(turn, np.diff(starts, append=len(places)))
    by_turn = np.argsort(turns, kind="stable")
    free = np.ones((len(IOUS), number), bool)
    found = []
    for pairs in np.split(by_turn, np.cumsum(np.bincount(turns))[:-1]) if len(turns) else []:
        place, instance, value = places[pairs], instances[pairs], shared[pairs]
        first = np.flatnonzero(np.diff(place, prepend=-1))
        owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(place)))
        possible = np.where((value >= IOUS[:, None]) & free[:, instance], value, -1.0)
        best = np.maximum.reduceat(possible, first, axis=1)
        is_best = (possible == best[:, owner]) & (possible >= 0)
        chosen = np.maximum.reduceat(np.where(is_best, np.arange(len(place)), -1), first, axis=1)  # the last among ties
        iou, row = np.nonzero(chosen >= 0)
        free[iou, instance[chosen[iou, row]]] = False
        found.append((iou, place[first[row]]))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    iou, place = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((place, iou))
    return iou[order], place[order]


def _in_crowds(places: IntArray, shared: FloatArray, counted: BoolArray, hits: IntArray) -> tuple[IntArray, IntArray]:
    """Which counted places that hit nothing (`hits`: number of the IoU times all places, plus place) lie in a crowd."""
    iou, pair = np.nonzero((shared >= IOUS[:, None]) & counted[places])
    keys = np.setdiff1d(iou * len(counted) + places[pair], hits)
    return keys // max(len(counted), 1), keys % max(len(counted), 1)
