"""mosaic-lt from its records: AP, and the measures that can see a prior, beside the control of the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.experiments.mosaic_lt.published import METHODS, NAME
from equipoise.experiments.table2.control import Methods, differences_by_seed
from equipoise.experiments.table2.report import NOTE, methods_table, there
from equipoise.report.tables import Table
from equipoise.training.detection_records import MEASURES, DetectionRecord, columns_at
from equipoise.training.records import read_records

BOXES = ("AP_box", "AP_f", "AP_c", "AP_r")
MEANING = (
    "AP ranks the detections of one class at a time, so a shift of all scores of a class matters only if a cap makes "
    "classes compete (AP@50 counts the best 50 detections per image, LVIS's cap scaled to 200 classes) and in AP_pool, "
    "which ranks all classes together. AP_fixed has no cap per image, so that such a shift does not change it."
)
SEEN = ("AP_pool", "AP_r@50")  # where the paper's method should show


def measures_tables(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> list[Table]:
    """AP by group, the measures without a cap, and AP at the caps, with one row for every method that has runs."""
    return [methods_table(records, methods, columns=columns) for columns in (BOXES, MEASURES, columns_at(records))]


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> list[DetectionRecord]:
    """The runs."""
    there(results)
    return read_records(results, NAME, DetectionRecord)


def shown_tables(records: Sequence[DetectionRecord]) -> list[Table]:
    """Every method that was run, and its differences from the control."""
    found = [*measures_tables(records), *(differences_by_seed(records, METHODS, column) for column in SEEN)]
    return [table for table in found if table]


def notes(records: Sequence[DetectionRecord]) -> list[str]:
    return [NOTE, MEANING]
