"""mosaic-lt from its records: AP, and the measures that can see a prior, beside the control of the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.experiments.mosaic_lt.published import CHOICES, METHODS, NAME
from equipoise.experiments.table2.published import CONTROL
from equipoise.experiments.table2.report import NOTE, methods_table, provenance, runs_of, there
from equipoise.experiments.voc2012_lt.report import beside_control, clearer, control_pairs, difference
from equipoise.report import tables
from equipoise.report.tables import UNKNOWN, Table, plus_minus
from equipoise.training.detection_records import MEASURES, DetectionRecord, columns_at
from equipoise.training.records import read_records

BOXES = ("AP_box", "AP_f", "AP_c", "AP_r")
MEANING = (
    "AP ranks the detections of one class among themselves, so what a method adds to all scores of a class shows only "
    "where a cap makes classes compete (AP@50 is of the best 50 detections per image, LVIS's share for 200 classes) "
    "and in AP_pool, which ranks all classes together. AP_fixed has no cap per image, and sees none of it."
)
SEEN = ("AP_pool", "AP_r@50")  # where the paper's method should show
SHORT = ("AP_box", "AP_fixed", "AP_pool", "AP_r@50", "AP_r@10")  # of the short table, and beside the control
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
    title = f"{column} beside {methods.get(CONTROL, CONTROL)!r}, by seed"
    return Table([f"{column}, difference", *(f"seed {seed}" for seed in seeds)], rows, title=title) if rows else None


def _signed(value: float | None) -> str:
    return UNKNOWN if value is None else plus_minus(value, digits=2, sign=True)


def what_is_chance(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> str:
    """Which methods differ from the control by more than seeds do, one line per measure."""
    others, lines = [name for name in methods if name != CONTROL and control_pairs(records, name)], []
    for column in ("AP_box", *SEEN):
        signs = {name: clearer(records, column, name, CONTROL) for name in others}
        said = [
            f"{word} {'; '.join(methods[name] for name in others if signs[name] == sign) or 'none'}"
            for sign, word in ((1, "Above:"), (-1, "Below:"), (0, "Within:"))
        ]
        lines.append(f"- {column}. {'. '.join(said)}.")
    control = methods.get(CONTROL, CONTROL)
    lines.insert(0, f"Beyond {control!r} of the same seed by more than two standard errors over seeds, or within:\n")
    return "\n".join(lines) if others else ""


def short_part(records: Sequence[DetectionRecord]) -> str:
    """The table in docs/detection.md: what AP sees, and the measures that can see a prior."""
    if not records:
        return "Not run yet."
    return "\n\n".join([str(methods_table(records, METHODS, columns=SHORT)), what_is_chance(records)])


def mosaic_part(records: Sequence[DetectionRecord]) -> str:
    """The whole table under its own name."""
    if not records:
        return "Not run yet."
    missing = [title for name, title in METHODS.items() if not runs_of(records, name)]
    counts = records[0].counts
    said = (
        f"{sum(count > 100 for count in counts)} frequent, {sum(10 < count <= 100 for count in counts)} common and "
        f"{sum(count <= 10 for count in counts)} rare classes, boxes; tested on {records[0].evaluated_images:,} "
        "images. Mean ± standard deviation over n seeds, the last iterate."
        + (f" Not run yet: {', '.join(missing)}." if missing else "")
    )
    beside = beside_control(records, METHODS, ("AP_r", *SHORT))
    by_seed = [differences_by_seed(records, column) for column in SEEN]
    parts = [
        said,
        MEANING,
        *map(str, measures_tables(records)),
        f"{beside.title}, mean ± standard deviation over seeds:\n\n{beside}" if beside else "",
        what_is_chance(records),
        *(str(table) for table in by_seed if table),
        provenance(records),
    ]
    return "\n\n".join(part for part in parts if part)


def choices_part(records: Sequence[DetectionRecord]) -> str:
    """What was compared on the held-out images."""
    if not records:
        return "Not run yet."
    where = f"On {records[0].evaluated_images:,} held-out images; no test image was looked at."
    return "\n\n".join([where, *map(str, measures_tables(records, CHOICES)), provenance(records)])


# -------------------------------------------------------------------- what `equipoise table` shows and writes


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


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    choices = read_records(results, f"choices/{NAME}", DetectionRecord)
    parts = {
        "results/README.md": {NAME: mosaic_part(read(results))},
        "docs/detection.md": {f"{NAME}-short": short_part(read(results))},
        "docs/lab-notes.md": {f"{NAME}-choices": choices_part(choices)},
    }
    return tables.filled(root, parts)
