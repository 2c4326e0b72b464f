"""Average precision that can see a prior: at any cap per image, AP-fixed and AP-pool, from one matching.

    AP at a cap   LVIS's AP, with a given number of best detections per image over all classes (LVIS: 300)
    AP-fixed      with the 10,000 best detections of each class over all images, without a cap per image
    AP-pool       with the detections of AP-fixed, matched as usual, then ranked by score over all classes; recall is
                  over all instances of these classes; also within the rare, common and frequent ones

AP ranks the detections of one class among themselves. Raising all scores of a class changes it only where the cap makes
classes compete; AP-fixed never sees it, AP-pool always does. Each is the mean over IoU 0.50, 0.55, ..., 0.95 of the
precision at 101 recalls, in percent. A class without instances has no AP; in a pool its detections are wrong.

Reference: Dave, Dollár, Ramanan, Kirillov, Girshick, "Evaluating Large-Vocabulary Object Detectors: The Devil is in the
Details", 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.metrics.detection_matching import IOUS, BoolArray, Matches
from equipoise.prior import FloatArray, IntArray

BEST = 10_000  # detections of a class that count in AP-fixed and AP-pool
LVIS_CAP, LVIS_CLASSES = 300, 1203
RECALLS = np.linspace(0, 1, 101)
EDGES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of scores: most are small
GROUPS = ("r", "c", "f")

Numbers = dict[str, float | None]


def scaled_cap(num_classes: int) -> int:
    """The cap per image that has as many detections per class as LVIS's 300 for 1,203 classes, at least 1.

    >>> scaled_cap(1203), scaled_cap(200), scaled_cap(20), scaled_cap(1)
    (300, 50, 5, 1)
    """
    return max(1, round(LVIS_CAP / LVIS_CLASSES * num_classes))


def ap_at(matches: Matches, cap: int | None = None) -> Numbers:
    """AP, AP_r, AP_c and AP_f of the best `cap` detections of each image, in percent; None: of all detections."""
    if cap is not None and cap < 1:
        raise ValueError(f"cap is {cap}: it must be at least 1 detection per image")
    return _over_classes(matches, None if cap is None else matches.image_rank < cap)


def ap_fixed(matches: Matches, best: int = BEST) -> Numbers:
    """AP-fixed over all, rare, common and frequent classes: AP, AP_r, AP_c and AP_f."""
    return _over_classes(matches, matches.class_rank < best)


def ap_pool(matches: Matches, best: int = BEST) -> Numbers:
    """AP-pool over all classes, and within the rare, common and frequent ones: AP, AP_r, AP_c and AP_f."""
    ranked = _ranked(matches, best)
    found: Numbers = {}
    for name, inside in _groups(matches):
        found[name] = None
        if matches.instances[inside].sum() > 0:
            segments, seen = _pooled_hits(matches, ranked[inside[matches.classes[ranked]]])
            every = np.full(len(IOUS), matches.instances[inside].sum())
            found[name] = 100 * float(_interpolated(segments, seen, every).mean())
    return found


@dataclass(frozen=True)
class Calibration:
    """Detections by score: how many in each bin, their mean score, and the share of them that is right.

    A bin without detections has NaN for the last two. `error` is the mean distance between these, over detections.
    """

    edges: FloatArray  # [B + 1]; a bin holds its upper edge
    number: IntArray
    expected: FloatArray
    observed: FloatArray

    @property
    def error(self) -> float:
        return float(np.nansum(self.number * np.abs(self.expected - self.observed)) / max(int(self.number.sum()), 1))


def pool_calibration(
    matches: Matches, iou: float = 0.5, edges: Sequence[float] = EDGES, best: int = BEST
) -> dict[str, Calibration]:
    """The calibration of the pool's scores at one IoU: for "all", and for each group that has classes.

    The scores must be probabilities.
    """
    at = _number_of(iou)
    if len(matches.scores) and not (matches.scores.min() >= 0 and matches.scores.max() <= 1):
        low, high = matches.scores.min(), matches.scores.max()
        raise ValueError(f"scores lie in [{low:.3g}, {high:.3g}]: expected probabilities, in [0, 1]")
    right = np.zeros(len(matches.order), bool)
    right[matches.hits[matches.hits_iou == at]] = True
    kept = (matches.class_rank < best) & (matches.counted | right)
    kept[matches.left[matches.left_iou == at]] = False
    return {
        "all" if name == "AP" else name.removeprefix("AP_"): _binned(
            matches.scores[chosen], right[chosen], np.array(edges)
        )
        for name, inside in _groups(matches)
        if (chosen := kept & inside[matches.classes]).any()
    }


def right_at(matches: Matches, iou: float = 0.5) -> BoolArray:
    """Which detections, in their original order, are right at one IoU: bool [D]."""
    right = np.zeros(len(matches.order), bool)
    right[matches.order[matches.hits[matches.hits_iou == _number_of(iou)]]] = True
    return right


def group_shares(matches: Matches, most: int = LVIS_CAP) -> dict[str, FloatArray]:
    """The share of rare, common and frequent classes among the best k detections of the images, for k = 1 to `most`.

    Over all images together, and over all detections, including those of classes that an image was not searched for.
    The shares end at the largest number of detections that any image has.
    """
    kept = np.flatnonzero(matches.image_rank < most)
    rank, groups = matches.image_rank[kept], matches.groups[matches.classes[kept]]
    every = np.cumsum(np.bincount(rank))
    return {group: np.cumsum(np.bincount(rank[groups == group], minlength=len(every))) / every for group in GROUPS}


def instance_shares(matches: Matches) -> dict[str, float]:
    """The share of rare, common and frequent classes among the instances."""
    every = matches.instances.sum()
    return {group: float(matches.instances[matches.groups == group].sum() / every) for group in GROUPS}


def _binned(scores: FloatArray, right: BoolArray, edges: FloatArray) -> Calibration:
    place = np.clip(np.searchsorted(edges, scores, "left") - 1, 0, len(edges) - 2)
    number = np.bincount(place, minlength=len(edges) - 1)
    sums = (np.bincount(place, weights, minlength=len(edges) - 1) for weights in (scores, right))
    with np.errstate(invalid="ignore"):
        expected, observed = (total / np.where(number, number, np.nan) for total in sums)
    return Calibration(edges, number, expected, observed)


# -------------------------------------------------------------------- inside


def _number_of(iou: float) -> int:
    at = np.flatnonzero(np.isclose(IOUS, iou))
    if len(at) == 0:
        raise ValueError(f"iou is {iou}: expected one of {', '.join(f'{value:.2f}' for value in IOUS)}")
    return int(at[0])


def _groups(matches: Matches) -> list[tuple[str, BoolArray]]:
    """The names of the numbers, and the classes that each covers."""
    every = [("AP", np.ones(len(matches.groups), bool))]
    return every + [(f"AP_{group}", matches.groups == group) for group in GROUPS]


def _over_classes(matches: Matches, kept: BoolArray | None) -> Numbers:
    """The AP of the `kept` detections, averaged over the classes with instances."""
    marked = matches.instances > 0
    each = _per_class(matches, kept)
    return {
        name: 100 * float(each[inside & marked].mean()) if (inside & marked).any() else None
        for name, inside in _groups(matches)
    }


def _per_class(matches: Matches, kept: BoolArray | None) -> FloatArray:
    """AP of each class, mean over IoUs: [K]."""
    counted = matches.counted if kept is None else matches.counted & kept
    number = len(matches.instances)
    before = np.concatenate([[0], np.cumsum(counted)])
    first = np.searchsorted(matches.classes, np.arange(number))
    chosen = slice(None) if kept is None else kept[matches.hits]
    hits, iou = matches.hits[chosen], matches.hits_iou[chosen]
    classes = matches.classes[hits]
    segments = iou * number + classes
    seen = before[hits + 1] - before[first[classes]] + _uncounted(matches, hits, segments)
    if len(matches.left):
        left = slice(None) if kept is None else kept[matches.left]
        places, of = matches.left[left], matches.left_iou[left]
        seen = seen - _left_before(of * number + matches.classes[places], places, segments, hits, len(counted))
    every = np.tile(matches.instances, len(IOUS))
    return np.asarray(_interpolated(segments, seen, every).reshape(len(IOUS), number).mean(axis=0))


def _ranked(matches: Matches, best: int) -> IntArray:
    """The places of the pool, best first over all classes; ties in the order of classes."""
    places = np.flatnonzero(matches.class_rank < best)
    return places[np.argsort(-matches.scores[places], kind="stable")]


def _pooled_hits(matches: Matches, ranked: IntArray) -> tuple[IntArray, IntArray]:
    """For each hit among `ranked` places: its IoU, and how many detections were seen up to it."""
    rank = np.full(len(matches.order), -1)
    rank[ranked] = np.arange(len(ranked))
    before = np.cumsum(matches.counted[ranked])
    chosen = rank[matches.hits] >= 0
    hits, iou = matches.hits[chosen], matches.hits_iou[chosen]
    order = np.argsort(iou * len(ranked) + rank[hits])
    hits, iou = hits[order], iou[order]
    seen = before[rank[hits]] + _uncounted(matches, hits, iou)
    left = rank[matches.left] >= 0
    places, of = rank[matches.left[left]], matches.left_iou[left]
    return iou, seen - _left_before(of, places, iou, rank[hits], len(rank))


def _uncounted(matches: Matches, hits: IntArray, segments: IntArray) -> IntArray:
    """How many hits of a segment, up to each hit, are places that count only because they are right."""
    more = np.concatenate([[0], np.cumsum(~matches.counted[hits])])
    return np.asarray(more[1:] - more[np.searchsorted(segments, segments)])


def _left_before(of: IntArray, places: IntArray, segments: IntArray, hits: IntArray, number: int) -> IntArray:
    """How many of the places that are left out in a segment come before each hit; all places are below `number`."""
    keys = np.sort(of * number + places)
    return np.searchsorted(keys, segments * number + hits) - np.searchsorted(keys, segments * number)


def _interpolated(segments: IntArray, seen: IntArray, instances: IntArray) -> FloatArray:
    """AP of each of S rankings with `instances` [S]: 0 if there are none.

    The other arguments are, for every hit, best first within its segment: the segment, ascending, and how many
    detections were seen by then.
    """
    sizes = np.bincount(segments, minlength=len(instances))
    first = np.cumsum(sizes) - sizes
    precision = (np.arange(len(segments)) - first[segments] + 1) / seen
    distinct, rank = np.unique(precision, return_inverse=True)
    # the best precision at this recall or a higher one: a running maximum from the end, one segment at a time
    keys = (len(instances) - segments) * len(distinct) + rank.ravel()
    envelope = distinct[np.maximum.accumulate(keys[::-1])[::-1] % max(len(distinct), 1)]
    values, which = np.unique(instances, return_inverse=True)
    needed = _hits_needed(values)[which.ravel()]
    reached = needed <= sizes[:, None]
    places = np.where(reached, first[:, None] + needed - 1, len(segments))
    return np.asarray(np.append(envelope, 0.0)[places].sum(axis=1) / len(RECALLS))


def _hits_needed(instances: IntArray) -> IntArray:
    """How many hits, at least 1, reach each recall with this many instances: [..., 101]."""
    number = np.maximum(instances, 1)[:, None]
    needed = np.maximum(np.floor(RECALLS * number).astype(np.int64) - 1, 1)
    for _ in range(3):
        needed += needed / number < RECALLS
    return needed
