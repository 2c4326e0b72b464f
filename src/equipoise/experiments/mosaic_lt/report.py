"""mosaic-lt from its records: AP, and the measures that can see a prior, beside the control of the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.experiments.mosaic_lt.published import METHODS, NAME
from equipoise.experiments.table2.published import CONTROL
from equipoise.experiments.table2.report import NOTE, methods_table, there
from equipoise.experiments.voc2012_lt.report import control_pairs, difference
from equipoise.report.tables import UNKNOWN, Table, plus_minus
from equipoise.training.detection_records import MEASURES, DetectionRecord, columns_at
from equipoise.training.records import read_records

BOXES = ("AP_box", "AP_f", "AP_c", "AP_r")
MEANING = (
    "AP ranks the detections of one class at a time, so a shift of all scores of a class matters only if a cap makes "
    "classes compete (AP@50 counts the best 50 detections per image, LVIS's cap scaled to 200 classes) and in AP_pool, "
    "which ranks all classes together. AP_fixed has no cap per image, so that such a shift does not change it."
)
SEEN = ("AP_pool", "AP_r@50")  # where the paper's method should show
Methods = Mapping[str, str]  # title by name


def measures_tables(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> list[Table]:
    """AP by group, the measures without a cap, and AP at the caps, with one row for every method that has runs."""
    return [methods_table(records, methods, columns=columns) for columns in (BOXES, MEASURES, columns_at(records))]


def differences_by_seed(records: Sequence[DetectionRecord], column: str, methods: Methods = METHODS) -> Table | None:
    """Each run's difference from the control of its seed, one column per seed."""
    seeds = sorted({record.seed for record in records})
    rows = []
    for name, title in methods.items():
        found = {run.seed: difference(run, control, column) for run, control in control_pairs(records, name)}
        if found and name != CONTROL:
            values = [found.get(seed) for seed in seeds]
            rows.append([title, *(_signed(value) for value in values)])
    title = f"{column}, difference from {methods.get(CONTROL, CONTROL)!r} by seed"
    return Table([f"{column}, difference", *(f"seed {seed}" for seed in seeds)], rows, title=title) if rows else None


def _signed(value: float | None) -> str:
    return UNKNOWN if value is None else plus_minus(value, digits=2, sign=True)


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> list[DetectionRecord]:
    """The runs."""
    there(results)
    return read_records(results, NAME, DetectionRecord)


def shown_tables(records: Sequence[DetectionRecord]) -> list[Table]:
    """Every method that was run, and its differences from the control."""
    found = [*measures_tables(records), *(differences_by_seed(records, column) for column in SEEN)]
    return [table for table in found if table]


def notes(records: Sequence[DetectionRecord]) -> list[str]:
    return [NOTE, MEANING]
