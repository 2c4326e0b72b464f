"""The prior-shift experiment from its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from equipoise.experiments.prior_shift.published import NAME, SHIFTS, TITLES
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.report.tables import Table
from equipoise.training.records import read_records

COLUMNS = {  # what is shown, and where it is in a record
    "as trained": ("raw", "as trained"),
    "known": ("raw", "known"),
    "EM": ("raw", "EM"),
    "BBSE": ("raw", "BBSE"),
    "calibrated": ("calibrated", "as trained"),
    "calibrated, known": ("calibrated", "known"),
    "calibrated, EM": ("calibrated", "EM"),
}


def values(records: Sequence[PriorShiftRecord], method: str, shift: str, column: str, what: str) -> list[float]:
    """One number per seed: the mean over its test sets of that shift."""
    kind, treatment = COLUMNS[column]
    return [
        mean(float(one["results"][kind][treatment][what]) for one in record.test_sets if one["shift"] == shift)
        for record in records
        if record.method == method
    ]


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> list[PriorShiftRecord]:
    return read_records(results, NAME, PriorShiftRecord)


def shown_tables(records: Sequence[PriorShiftRecord]) -> list[Table]:
    """Accuracy, then log-loss: the means over seeds, losses as headings."""
    header = ["test set", *(column.replace("calibrated", "cal.").replace(".,", ".") for column in COLUMNS)]
    seeds = len({record.seed for record in records})
    found = []
    for what, title, digits in (("accuracy", "Accuracy, %", 1), ("log_loss", "Log-loss", 2)):
        rows = []
        for method, loss in TITLES.items():
            if any(record.method == method for record in records):
                rows.append([loss, *("" for _ in COLUMNS)])
                rows += [
                    [f" {name}", *(f"{mean(values(records, method, shift, c, what)):.{digits}f}" for c in COLUMNS)]
                    for shift, name in SHIFTS.items()
                ]
        found.append(Table(header, rows, title=f"{title}, mean over {seeds} seeds"))
    return found


def notes(records: Sequence[PriorShiftRecord]) -> list[str]:
    return ["cal.: bias-corrected temperature scaling, fitted to labelled, held-out images"]
