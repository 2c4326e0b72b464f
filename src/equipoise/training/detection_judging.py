"""Evaluate a detector by measures that can see a prior: AP at caps, AP-fixed and AP-pool, for boxes or masks.

AP-fixed needs the 10,000 best detections of each class over all images, whatever else an image holds. They are found
one batch at a time: once a class has its 10,000, it has a threshold, and detections below it are skipped. Masks are
drawn in a second pass, once it is known which detections are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from equipoise.data.coco import CocoImages
from equipoise.metrics.detection import Detections, GroundTruth
from equipoise.metrics.detection_best import BestPerClass
from equipoise.metrics.detection_measures import BEST, Numbers, ap_at, ap_fixed, ap_pool, pool_calibration, scaled_cap
from equipoise.training.detection import as_detections, found_by_batch, predict
from equipoise.training.resident import Resident

FLOOR = 1e-7  # lower scores are ignored: every class of any size still has its 10,000
MASKS = 2000  # drawn per image at most, on average: for all of LVIS, 10,000 per class make 600
CAPS = (300, 50, 20, 10)


def predict_best(
    model: nn.Module,
    data: CocoImages,
    device: torch.device,
    *,
    most: int = BEST,
    batch_size: int = 8,
    workers: int = 0,
    resident: Resident | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Detections:
    """The `most` best detections of each class in all images of `data`, without a cap per image, as from `predict`.

    If there are masks, `report` counts every image twice. A few images with many classes would have tens of thousands
    of masks each; their detections come without masks.
    """
    heads: Any = model.get_submodule("roi_heads")
    options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "resident": resident}
    kept, done = BestPerClass(most), 0
    try:
        heads.boxes_only = True
        _look_from(heads, kept, data.class_ids, device)
        for found in found_by_batch(model, data, device, **options):
            kept.add(as_detections(data, found))
            _look_from(heads, kept, data.class_ids, device)
            done += len(found)
            report(done)
        best = kept.detections()
        heads.boxes_only = False
        if not heads.has_mask() or len(best) > MASKS * len(data):
            return best
        _look_from(heads, kept, data.class_ids, device)
        return predict(model, data, device, **options, report=lambda again: report(done + again))
    finally:
        heads.least, heads.boxes_only = None, False


def _look_from(heads: Any, kept: BestPerClass, class_ids: Sequence[int], device: torch.device) -> None:
    heads.least = torch.tensor(kept.thresholds(class_ids, FLOOR), dtype=torch.float32, device=device)


def caps_for(num_classes: int) -> list[int]:
    """Caps that a record holds: LVIS's, smaller ones and the one scaled to the vocabulary.

    >>> caps_for(20)
    [300, 50, 20, 10, 5]
    """
    return sorted({*CAPS, scaled_cap(num_classes)}, reverse=True)


def measures_of(
    truth: GroundTruth, found: Detections, best: Detections, kind: Literal["bbox", "segm"], num_classes: int
) -> dict[str, Any]:
    """All measures of what was `found`, and of the `best` of each class if they have what `kind` needs, as plain
    data."""
    matches = truth.match(found, kind)
    at = {str(cap): rounded(ap_at(matches, cap)) for cap in caps_for(num_classes)}
    if kind == "segm" and best.masks is None:
        return {"AP_at": at, "AP_fixed": None, "AP_pool": None, "calibration_error": None, "detections": len(best)}
    matches = truth.match(best, kind)
    calibration = {name: round(bins.error, 6) for name, bins in pool_calibration(matches).items()}
    return {
        "AP_at": at,
        "AP_fixed": rounded(ap_fixed(matches)),
        "AP_pool": rounded(ap_pool(matches)),
        "calibration_error": calibration,
        "detections": len(best),
    }


def fields_of(measures: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record that show one kind's measures."""
    fixed, pool = (measures[name] or {} for name in ("AP_fixed", "AP_pool"))
    return {
        "AP_fixed": fixed.get("AP"),
        "AP_pool": pool.get("AP"),
        **{f"AP_pool_{group}": pool.get(f"AP_{group}") for group in "rcf"},
        "AP_at": {cap: {name: numbers[name] for name in ("AP", "AP_r")} for cap, numbers in measures["AP_at"].items()},
    }


def rounded(numbers: Numbers) -> Numbers:
    """To four digits, as records have them."""
    return {name: None if value is None else round(value, 4) for name, value in numbers.items()}
