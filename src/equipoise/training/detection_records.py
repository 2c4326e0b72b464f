"""Records of detectors: a run is a line of a .jsonl file, then one small JSON, results/<table>/<method>/<seed>.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.training.records import StoredRecord

COLUMNS = ("AP_mask", "AP_f", "AP_c", "AP_r", "AP_box")
MEASURES = ("AP_fixed", "AP_pool", "AP_pool_f", "AP_pool_c", "AP_pool_r")


@dataclass(frozen=True)
class DetectionRecord(StoredRecord):
    """Everything about one run. Average precisions are LVIS's, in percent; AP_f, AP_c and AP_r, and also AP_fixed,
    AP_pool and AP_at, are for masks (for boxes if there are no masks), and None if the group has no class. `mask` and
    `box` hold all 13 numbers."""

    PATTERN: ClassVar[str] = "*/*.json"
    WHAT: ClassVar[str] = "the record of a detector"
    NESTED: ClassVar[bool] = True

    table: str
    method: str
    seed: int
    AP_mask: float | None
    AP_f: float | None
    AP_c: float | None
    AP_r: float | None
    AP_box: float | None
    mask: dict[str, float | None] | None
    box: dict[str, float | None]
    evaluated_on: str
    evaluated_images: int
    iterations: int
    complete: bool  # trained as long as the recipe says; smoke tests are not
    recipe: dict[str, Any]
    trained_on: str
    backbone: str | None
    counts: list[int]  # training images that hold each class
    class_names: list[str]
    loss_curve: list[float]
    weights: str
    seconds: float
    images_per_second: float
    evaluation_seconds: float
    engine: dict[str, Any]
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, str]
    AP_fixed: float | None = None  # the measures of detection_measures; older records lack them
    AP_pool: float | None = None
    AP_pool_r: float | None = None
    AP_pool_c: float | None = None
    AP_pool_f: float | None = None
    AP_at: dict[str, dict[str, float | None]] | None = None  # AP and AP_r by the cap on detections per image
    measures: dict[str, Any] | None = None  # all of them, for "bbox" and, if there are masks, for "segm"

    def number(self, column: str) -> float | None:
        """A field by its name; "AP_r@50" is AP_r of the best 50 detections per image. None if it is missing."""
        name, _, cap = column.partition("@")
        if cap:
            return (self.AP_at or {}).get(cap, {}).get(name)
        value: float | None = getattr(self, name)
        return value


def columns_at(records: Sequence[DetectionRecord]) -> list[str]:
    """AP and AP_r at every cap that the records hold, the largest first: names for `number`."""
    caps = sorted({int(cap) for record in records for cap in record.AP_at or ()}, reverse=True)
    return [f"{name}@{cap}" for cap in caps for name in ("AP", "AP_r")]
