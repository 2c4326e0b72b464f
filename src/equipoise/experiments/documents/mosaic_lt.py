"""mosaic-lt, as the documents show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.experiments.documents.marks import filled
from equipoise.experiments.documents.table2 import provenance
from equipoise.experiments.mosaic_lt.published import CHOICES, METHODS, NAME
from equipoise.experiments.mosaic_lt.report import (
    MEANING,
    SEEN,
    Methods,
    differences_by_seed,
    measures_tables,
    read,
)
from equipoise.experiments.table2.published import CONTROL
from equipoise.experiments.table2.report import methods_table, runs_of
from equipoise.experiments.voc2012_lt.report import beside_control, clearer, control_pairs
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.records import read_records

SHORT = ("AP_box", "AP_fixed", "AP_pool", "AP_r@50", "AP_r@10")  # of the short table, and beside the control


def what_is_chance(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> str:
    """Which methods differ from the control by more than seeds do: a line per measure."""
    others, lines = [name for name in methods if name != CONTROL and control_pairs(records, name)], []
    for column in ("AP_box", *SEEN):
        signs = {name: clearer(records, column, name, CONTROL) for name in others}
        said = [
            f"{word} {'; '.join(methods[name] for name in others if signs[name] == sign) or 'none'}"
            for sign, word in ((1, "Above:"), (-1, "Below:"), (0, "Within:"))
        ]
        lines.append(f"- {column}. {'. '.join(said)}.")
    control = methods.get(CONTROL, CONTROL)
    lines.insert(
        0, f"Compared with {control!r} with the same seed; within means at most two standard errors over seeds:\n"
    )
    return "\n".join(lines) if others else ""


def short_part(records: Sequence[DetectionRecord]) -> str:
    """The table as docs/detection.md shows it: what AP sees, and what sees a prior."""
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
        "images. Mean ± standard deviation of the last iterate over n seeds."
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
    where = f"On {records[0].evaluated_images:,} held-out images; no test image was used."
    return "\n\n".join([where, *map(str, measures_tables(records, CHOICES)), provenance(records)])


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    choices = read_records(results, f"choices/{NAME}", DetectionRecord)
    parts = {
        "results/README.md": {NAME: mosaic_part(read(results))},
        "docs/detection.md": {f"{NAME}-short": short_part(read(results))},
        "docs/lab-notes.md": {f"{NAME}-choices": choices_part(choices)},
    }
    return filled(root, parts)
