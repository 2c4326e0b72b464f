"""The record of a prior-shift run; like all records, it is read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.training.records import StoredRecord


@dataclass(frozen=True)
class PriorShiftRecord(StoredRecord):
    """One model on all shifted test sets.

    `test_sets` is a list of {"shift", "counts", "results"}; `results` has, under "raw" and "calibrated", for every
    treatment the accuracy (in percent), the log-loss and the total variation between prior used and true; estimates
    also say whether they are `trusted` and the share of classes whose true frequency is `covered` by the 95 % interval.
    `calibration` has the temperatures, and the scores on the whole, balanced test pool before and after.
    """

    PATTERN: ClassVar[str] = "*/*.json"
    WHAT: ClassVar[str] = "the record of a prior-shift run"

    table: str
    method: str
    seed: int
    complete: bool  # trained as long as the recipe says; smoke tests are not
    iterations: int
    imbalance: float
    counts: list[int]
    validation_per_class: int
    test_per_class: int
    calibration: dict[str, Any]
    test_sets: list[dict[str, Any]]
    seconds: float
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, str]
