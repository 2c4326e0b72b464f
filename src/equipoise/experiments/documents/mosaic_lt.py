"""mosaic-lt, as the documents show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.experiments.documents.marks import filled
from equipoise.experiments.documents.table2 import beside_part, groups_said, provenance
from equipoise.experiments.mosaic_lt.published import CHOICES, METHODS, NAME
from equipoise.experiments.mosaic_lt.report import MEANING, SEEN, measures_tables, read
from equipoise.experiments.table2.control import what_is_chance
from equipoise.experiments.table2.report import methods_table, runs_of
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.records import read_records

SHORT = ("AP_box", "AP_fixed", "AP_pool", "AP_r@50", "AP_r@10")  # of the short table, and beside the control
CHANCE = ("AP_box", *SEEN)  # told from chance


def short_part(records: Sequence[DetectionRecord]) -> str:
    """The table as docs/detection.md shows it: what AP sees, and what sees a prior."""
    if not records:
        return "Not run yet."
    return "\n\n".join([str(methods_table(records, METHODS, columns=SHORT)), what_is_chance(records, METHODS, CHANCE)])


def mosaic_part(records: Sequence[DetectionRecord]) -> str:
    """The whole table under its own name."""
    if not records:
        return "Not run yet."
    missing = [title for name, title in METHODS.items() if not runs_of(records, name)]
    said = (
        f"{groups_said(records[0].counts)}, boxes; tested on {records[0].evaluated_images:,} images. Mean ± standard "
        "deviation of the last iterate over n seeds." + (f" Not run yet: {', '.join(missing)}." if missing else "")
    )
    parts = [
        said,
        MEANING,
        *map(str, measures_tables(records)),
        *beside_part(records, METHODS, [("AP_r", *SHORT)], CHANCE, SEEN),
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
