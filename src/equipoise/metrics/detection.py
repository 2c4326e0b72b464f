"""The 13 LVIS numbers for boxes or masks, in percent, from detections as arrays. hotcoco does the work.

    AP       mean over classes and over IoU 0.50, 0.55, ..., 0.95;  AP50, AP75 at one IoU;  APs, APm, APl by size
    APr, APc, APf    over rare (at most 10 training images), common (at most 100) and frequent classes
    AR@300, ARs@300, ARm@300, ARl@300    recall

Federated rules: a class counts only in images where it is marked or known to be absent, and unmatched detections of a
class that is not marked exhaustively in an image are ignored. The 300 best detections of each image count, over all
classes.

Reference: Gupta, Dollár, Girshick, "LVIS: A Dataset for Large Vocabulary Instance Segmentation", 2019.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from equipoise.data.coco import categories_of, check_masks_of, instances
from equipoise.data.masks import MOST_PIXELS, Rle, check_masks, compress, first_wrong_runs, hotcoco, is_polygons, is_rle
from equipoise.data.reading import read_json, reading, shown
from equipoise.metrics.detection_matching import Matches, Truth, match
from equipoise.prior import FloatArray, IntArray, Prior, sigmoid_shift, softmax_shift

NUMBERS = (
    "AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf", "AR@300", "ARs@300", "ARm@300", "ARl@300",
)  # fmt: skip
MOST = 300  # detections per image, over all classes
FEDERATED = ("neg_category_ids", "not_exhaustive_category_ids")  # LVIS's fields of an image


@dataclass(frozen=True)
class Detections:
    """What a detector found: ids as in the annotation file, boxes [D, 4] as x, y, width, height, and masks as RLEs."""

    image_ids: IntArray
    category_ids: IntArray
    scores: FloatArray
    boxes: FloatArray
    masks: Sequence[Rle] | None = None

    def __post_init__(self) -> None:
        sizes = {len(part) for part in (self.image_ids, self.category_ids, self.scores, self.boxes)}
        if self.masks is not None:
            sizes.add(len(self.masks))
        if len(sizes) > 1:
            raise ValueError(f"detections have parts of different lengths: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: slice | IntArray) -> Detections:
        masks = self.masks
        if masks is not None:
            masks = masks[rows] if isinstance(rows, slice) else [masks[row] for row in rows.tolist()]
        return Detections(self.image_ids[rows], self.category_ids[rows], self.scores[rows], self.boxes[rows], masks)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Detections:
        """Read a JSON file in COCO's results format; errors name the file."""
        with reading(path):
            try:
                return cls.from_results(read_json(path))
            except TypeError as error:  # from hotcoco, about a mask
                raise ValueError(str(error)) from None

    @classmethod
    def from_results(cls, results: Sequence[dict[str, Any]]) -> Detections:
        """Read a list of results in COCO's format. A result without a box gets the one around its mask."""
        if not isinstance(results, Sequence) or not all(isinstance(result, dict) for result in results):
            raise ValueError(
                f"results are a {type(results).__name__}: expected a list of dicts, one per detection, as COCO's"
            )
        for number, result in enumerate(results):
            _check_result(result, f"result {number}")
        masked = [bool(result.get("segmentation")) for result in results]
        if any(masked) and not all(masked):
            raise ValueError(f"result {masked.index(False)} has no segmentation, others have: give one to all or none")
        masks = [result["segmentation"] for result in results] if any(masked) else None
        boxes = [
            _box_around(result["segmentation"], f"result {number}") if result.get("bbox") is None else result["bbox"]
            for number, result in enumerate(results)
        ]
        kinds: dict[str, Any] = {"image_id": np.int64, "category_id": np.int64, "score": np.float64}
        images, categories, scores = (np.array([one[key] for one in results], kind) for key, kind in kinds.items())
        return cls(images, categories, scores, np.array(boxes, np.float64).reshape(-1, 4), masks)

    def to_results(self) -> list[dict[str, Any]]:
        """A list of results in COCO's format, with compressed masks, as the LVIS test server takes it."""
        masks = [None] * len(self) if self.masks is None else self.masks
        return [
            result
            | {"score": round(result["score"], 6), "bbox": [round(side, 2) for side in box]}
            | ({} if mask is None else {"segmentation": compress(mask) if isinstance(mask["counts"], list) else mask})
            for result, box, mask in zip(self._entries(), self.boxes.tolist(), masks, strict=True)
        ]

    def adjusted(self, prior: Prior, target_rate: float | None = None, tau: float = 1.0) -> Detections:
        """Move sigmoid scores that mean the rates of `prior` to one common rate of all classes, by default the mean.

            logit score'  =  logit score − tau · (logit π_j − logit t)

        `prior` counts the training images that hold each category, with its ids: `Prior.from_coco(path)`.

        >>> prior = eq.Prior.from_counts([90, 10], class_ids=[3, 8])
        >>> found = Detections(np.array([1, 1]), np.array([3, 8]), np.array([0.9, 0.1]), np.zeros((2, 4)))
        >>> found.adjusted(prior).scores.round(3).tolist()
        [0.5, 0.5]
        """
        if not math.isfinite(tau):
            raise ValueError(f"tau is {tau}: expected a finite number, 1 for the whole shift")
        return self._moved(prior, tau * sigmoid_shift(prior, target_rate).numpy().astype(np.float64))

    def adjusted_softmax(self, prior: Prior, tau: float = 1.0) -> Detections:
        """Move scores of a softmax with background to equally frequent classes, as far as one score per box allows.

            score'  =  w score / (w score + 1 − score),   w = (K π_j)^−tau

        This is exact if the rest of a box's probability belongs to background. The shares of other classes should be
        reweighted too, but a results file does not have them; `adjust_detector_logits` is exact, with all logits of a
        box. `prior` counts the instances of each category: `Prior.from_coco(path, by="instances")`.

        >>> prior = eq.Prior.from_counts([90, 10], class_ids=[3, 8])
        >>> found = Detections(np.array([1, 1]), np.array([3, 8]), np.array([0.9, 0.1]), np.zeros((2, 4)))
        >>> found.adjusted_softmax(prior).scores.round(3).tolist()
        [0.833, 0.357]
        """
        return self._moved(prior, softmax_shift(prior, tau=tau).numpy().astype(np.float64))

    def _moved(self, prior: Prior, shift: FloatArray) -> Detections:
        """Scores with the `shift` [K] of their category subtracted from their logits."""
        ids = np.array(prior.class_ids if prior.class_ids is not None else [], np.int64)
        unknown = np.setdiff1d(self.category_ids, ids)
        if len(unknown):
            raise ValueError(f"detections have the category id {unknown[0]}, not in the training annotations")
        if len(self) and not (self.scores.min() >= 0 and self.scores.max() <= 1):
            low, high = self.scores.min(), self.scores.max()
            raise ValueError(f"scores lie in [{low:.3g}, {high:.3g}]: expected probabilities, in [0, 1]")
        order = np.argsort(ids)
        columns = order[np.searchsorted(ids, self.category_ids, sorter=order)]
        with np.errstate(divide="ignore", over="ignore"):  # scores of 0 and 1 do not change
            logits = np.log(self.scores) - np.log1p(-self.scores) - shift[columns]
            return replace(self, scores=1 / (1 + np.exp(-logits)))

    def _entries(self) -> Iterator[dict[str, Any]]:
        """The fields that results of boxes and of masks share: image, category and score."""
        for ids in zip(self.image_ids.tolist(), self.category_ids.tolist(), self.scores.tolist(), strict=True):
            yield dict(zip(("image_id", "category_id", "score"), ids, strict=True))


def joined(parts: Sequence[Detections]) -> Detections:
    """Detections of all parts, concatenated; with masks if every part has them."""
    if not parts:
        return Detections.from_results([])
    masks = None
    if all(part.masks is not None for part in parts):
        masks = [mask for part in parts for mask in part.masks or ()]
    return Detections(
        np.concatenate([part.image_ids for part in parts]),
        np.concatenate([part.category_ids for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.boxes for part in parts]),
        masks,
    )


class GroundTruth:
    """An annotation file to evaluate against, read once.

    Files without LVIS's fields (COCO) count as searched for every class. If the categories have no "frequency", the
    groups r, c, f come from `prior`, the training images that hold each class; without it, they are not reported.
    """

    def __init__(self, annotations: str | os.PathLike[str], prior: Prior | None = None) -> None:
        content = read_json(annotations)
        found = list(instances(content, annotations))
        for key in ("annotations", "images"):
            if not content.get(key):
                raise ValueError(f"{annotations} has no {key!r}: expected a COCO or LVIS file")
        check_masks_of(found, content, annotations)
        for number, one in enumerate(found, start=1):  # the evaluator's own ids: some files have none, or repeat one
            one.annotation["id"] = number
        self.grouped = _give_groups(content["categories"], prior, annotations)
        if prior is not None:
            _check_same_names(prior, categories_of(content, annotations))
        _check_federated_fields(content["images"], annotations)
        _give_federated_fields(content)
        counted = [one.annotation for one in found if not one.left_out]
        self.has_masks = bool(counted) and all(annotation.get("segmentation") for annotation in counted)
        lists = {"image": content["images"], "category": content["categories"]}
        self._known = {what: np.array([entry["id"] for entry in entries]) for what, entries in lists.items()}
        self._arrays = Truth.of(content, grouped=self.grouped, masks=self.has_masks)
        with reading(annotations):
            self._truth = hotcoco().COCO(content)

    def evaluate(self, detections: Detections, kind: Literal["bbox", "segm"]) -> dict[str, float | None]:
        """The 13 numbers in percent; None if nothing falls into a group."""
        self._check(detections, kind)
        found = hotcoco().LVISeval(self._truth, self._results(detections, kind), kind)
        found.evaluate()
        found.accumulate()
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its table
            found.summarize()
        numbers = found.get_results()
        return {
            name: None if numbers[name] < 0 or (name in ("APr", "APc", "APf") and not self.grouped) else
            100 * float(numbers[name])
            for name in NUMBERS
        }  # fmt: skip

    def match(self, detections: Detections, kind: Literal["bbox", "segm"]) -> Matches:
        """The matching from which `detection_measures` computes its measures."""
        self._check(detections, kind)
        return match(self._arrays, detections, kind)

    def check_masks(self, detections: Detections) -> None:
        """Refuse masks that do not fit their images, if there are any, where only boxes are evaluated."""
        if detections.masks is not None:
            self._check(detections, "bbox")
            self._check_sizes(detections)

    def _check(self, detections: Detections, kind: str) -> None:
        if kind not in ("bbox", "segm"):
            raise ValueError(f"kind={kind!r}: evaluate 'bbox' or 'segm'")
        if kind == "segm" and (detections.masks is None or not self.has_masks):
            raise ValueError("masks were asked for, but the detections or the annotations have none")
        for what, ids in (("image", detections.image_ids), ("category", detections.category_ids)):
            unknown = np.setdiff1d(ids, self._known[what])
            if len(unknown):
                raise ValueError(f"detections have the {what} id {unknown[0]}, not in the annotations")
        for what, values in (("score", detections.scores), ("box", detections.boxes)):
            wrong = np.argwhere(~np.isfinite(values))[:, 0]
            if len(wrong):
                raise ValueError(f"detection {wrong[0]} has the {what} {values[wrong[0]].tolist()}: not finite")
        if kind == "segm":
            self._check_sizes(detections)

    def _check_sizes(self, detections: Detections) -> None:
        """Refuse a mask whose size differs from its image's, if the file has sizes, and runs that do not fill it."""
        rows = np.searchsorted(self._arrays.image_ids, detections.image_ids)
        check_masks(detections.masks or (), self._arrays.sizes[rows].tolist(), "detection {}".format)

    def _results(self, detections: Detections, kind: str) -> Any:
        if len(detections) == 0 or kind == "bbox":
            columns = detections.image_ids, detections.boxes, detections.scores, detections.category_ids
            loaded = self._truth.load_res(np.column_stack(columns).astype(np.float64))
        else:  # without a box, so that a detection's size group depends on its mask, not on its box
            assert detections.masks is not None
            entries = zip(detections._entries(), detections.masks, strict=True)
            loaded = self._truth.load_res([entry | {"segmentation": mask} for entry, mask in entries])
        return loaded.cap_detections_per_image(MOST)


def _check_result(result: dict[str, Any], what: str) -> None:
    for key in ("image_id", "category_id", "score"):
        if key not in result:
            raise ValueError(f"{what} has no {key!r}")
        value, kinds = result[key], (int, float) if key == "score" else (int,)  # a fraction of an id would be cut off
        if type(value) not in kinds or not abs(value) < 2**62:
            raise ValueError(
                f"{what} has the {key} {shown([value])}: expected a {'' if key == 'score' else 'whole '}number"
            )
    box, mask = result.get("bbox"), result.get("segmentation")
    if box is None and not mask:
        raise ValueError(f"{what} has neither 'bbox' nor 'segmentation'")
    sides = box if isinstance(box, list | tuple) else ()
    if box is not None and (len(sides) != 4 or not all(type(s) in (int, float) and abs(s) < 1e9 for s in sides)):
        raise ValueError(f"{what} has the bbox {shown([box])}: expected x, y, width, height")
    if any(side < 0 for side in sides[2:]):
        raise ValueError(f"{what} has the bbox {shown([box])}: its width or height is negative")
    if mask and not is_rle(mask) and (box is None or not is_polygons(mask)):
        raise ValueError(f"{what} has a segmentation that is not an RLE")
    for polygon in mask if isinstance(mask, list | tuple) else ():
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"{what} has the polygon {shown([polygon])}: expected x and y of three or more points")


def _box_around(mask: Rle, what: str) -> list[float]:
    if math.prod(mask["size"]) > MOST_PIXELS:
        raise ValueError(f"{what} has a mask of {shown([list(mask['size'])])} pixels: at most {MOST_PIXELS:,} in all")
    if first_wrong_runs([mask]) is not None:
        raise ValueError(f"{what} has an RLE whose runs do not fill its size exactly")
    packed = hotcoco().mask.frPyObjects(mask, *mask["size"]) if isinstance(mask["counts"], list) else mask
    return [float(side) for side in hotcoco().mask.toBbox(packed)]


def frequency_group(images: int) -> Literal["r", "c", "f"]:
    """LVIS's rule: rare, common or frequent by the number of training images that hold the class.

    >>> [frequency_group(n) for n in (1, 10, 11, 100, 101)]
    ['r', 'r', 'c', 'c', 'f']
    """
    return "r" if images <= 10 else "c" if images <= 100 else "f"


def _check_same_names(prior: Prior, categories: dict[int, str]) -> None:
    """Refuse training annotations that give a name to another id than `categories` do: ids were assigned anew."""
    ids = {name: identity for identity, name in categories.items()}
    for identity, name in zip(prior.class_ids or (), prior.class_names or (), strict=False):
        if ids.get(name, identity) != identity and len(ids) == len(categories):
            raise ValueError(
                f"the category {shown([name])} has the id {ids[name]} in the annotations and {identity} in the "
                "training annotations"
            )


def _give_groups(categories: list[dict[str, Any]], prior: Prior | None, path: str | os.PathLike[str]) -> bool:
    if all("frequency" in category for category in categories):
        for category in categories:
            if category["frequency"] not in ("r", "c", "f"):
                given = shown([category["frequency"]])
                raise ValueError(f"{path}: category {category['id']} has the frequency {given}: expected r, c or f")
        return True
    if prior is None:
        for category in categories:
            category["frequency"] = "f"
        return False
    ordered = sorted(categories, key=lambda category: category["id"])
    if prior.num_classes != len(ordered):
        raise ValueError(f"prior has {prior.num_classes} classes, the annotations have {len(ordered)} categories")
    ids = [category["id"] for category in ordered]
    other = next((i for i, known in zip(ids, prior.class_ids or ids, strict=True) if i != known), None)
    if other is not None:
        raise ValueError(f"the annotations have the category id {shown([other])}, not in the training annotations")
    for category, count in zip(ordered, prior.counts.tolist(), strict=True):
        category["frequency"] = frequency_group(count)
    return True


def _check_federated_fields(images: list[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Each of LVIS's fields lists ids of categories, in all images or in none."""
    for key in FEDERATED:
        given = sum(key in image for image in images)
        for image in images:
            what = f"{path}: image {shown([image['id']])}"
            if key not in image and given:
                raise ValueError(f"{what} has no {key!r}, but others have: give it to all of them, or to none")
            ids = image.get(key, [])
            if not isinstance(ids, list) or not all(type(one) is int for one in ids):
                raise ValueError(f"{what} has the {key} {shown([ids])}: expected a list of category ids")


def _give_federated_fields(content: dict[str, Any]) -> None:
    """If the file has none: every class that is not marked in an image is known to be absent from it, and the others
    are marked exhaustively."""
    for image in content["images"]:
        image.setdefault("not_exhaustive_category_ids", [])
    if "neg_category_ids" in content["images"][0]:
        return
    marked: dict[int, set[int]] = {image["id"]: set() for image in content["images"]}
    for annotation in content["annotations"]:
        marked[annotation["image_id"]].add(annotation["category_id"])
    every = {category["id"] for category in content["categories"]}
    for image in content["images"]:
        image["neg_category_ids"] = sorted(every - marked[image["id"]])
