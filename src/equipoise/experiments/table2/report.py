"""Table 2 from its records, beside the paper's numbers, and what all tables of detectors share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.experiments.table2.published import BACKBONES, METHODS, NAME, PAPER
from equipoise.report.tables import Table, mean_std, plus_minus
from equipoise.training.detection_records import COLUMNS, DetectionRecord
from equipoise.training.records import read_records

NOTE = "ours: mean ± standard deviation of n runs"
CALIBRATION = (
    "Calibration error of the scores that AP_pool ranks, in percent: the mean distance between a score and the share "
    "of right detections (IoU 0.5) among those with about that score."
)
Records = Mapping[str, Sequence[DetectionRecord]]  # by backbone


def backbone_table(records: Sequence[DetectionRecord], backbone: str) -> Table:
    """Our numbers and the paper's for each method."""
    rows = []
    for name, title in METHODS.items():
        rows.append([title, "ours", *numbers(runs_of(records, name))])
        if name in PAPER[backbone]:
            rows.append(["", "paper", *map(plus_minus, PAPER[backbone][name]), ""])
    title = f"LVIS v1, {BACKBONES[backbone]}: average precision, %"
    return Table(["method", "", *COLUMNS, "n"], rows, left=2, title=title)


def methods_table(
    records: Sequence[DetectionRecord],
    methods: Mapping[str, str],
    what: str = "method",
    columns: Sequence[str] = COLUMNS,
) -> Table:
    """One row for every method (name, title) that has runs."""
    rows = [[title, *numbers(runs, columns)] for name, title in methods.items() if (runs := runs_of(records, name))]
    return Table([what, *columns, "n"], rows)


def runs_of(records: Sequence[DetectionRecord], method: str) -> list[DetectionRecord]:
    return [record for record in records if record.method == method]


def numbers(runs: Sequence[DetectionRecord], columns: Sequence[str] = COLUMNS) -> list[str]:
    """Mean ± standard deviation of each column, and n."""
    return [*(mean_std(run.number(column) for run in runs) for column in columns), str(len(runs))]


def calibration_table(records: Sequence[DetectionRecord], methods: Mapping[str, str]) -> Table | None:
    """The calibration error over all, frequent, common and rare classes, in percent; None where records lack it."""
    groups, rows = ("all", "f", "c", "r"), []
    for name, title in methods.items():
        errors = [error for run in runs_of(records, name) if (error := _calibration_error(run))]
        if errors:
            each = [[error.get(group) for error in errors] for group in groups]
            shares = [[None if value is None else 100 * value for value in values] for values in each]
            rows.append([title, *(mean_std(values, digits=2) for values in shares), str(len(errors))])
    return Table(["calibration error", *groups, "n"], rows) if rows else None


def _calibration_error(run: DetectionRecord) -> dict[str, float]:
    """By group, of masks if the detector has masks; empty where it was not measured."""
    measures = run.measures or {}
    found: dict[str, float] | None = measures.get("segm", measures.get("bbox", {})).get("calibration_error")
    return found or {}


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> Records:
    """The runs of each backbone; there may be none yet."""
    there(results)
    return {name: read_records(results, f"{NAME}/{name}", DetectionRecord) for name in BACKBONES}


def there(results: Path) -> None:
    if not results.is_dir():
        raise FileNotFoundError(f"{results} does not exist: pass the folder of the records as --results")


def shown_tables(records: Records) -> list[Table]:
    return [backbone_table(runs, backbone) for backbone, runs in records.items()]


def notes(records: Records) -> list[str]:
    return [NOTE]
