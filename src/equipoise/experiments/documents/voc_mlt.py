"""VOC-MLT, as the documents show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.experiments.documents.marks import filled
from equipoise.experiments.voc_mlt.report import METHODS, NAME, differences_table, methods_table, notes, read
from equipoise.report.tables import low_to_high, versions_in_words
from equipoise.training.multilabel_records import MultilabelRecord

SHORT = ("map", "map_tail", "micro_ap", "f1_macro")


def part(records: Sequence[MultilabelRecord]) -> str:
    """The tables under their heading."""
    if not records:
        return "Not run yet."
    one, counts = records[0], records[0].counts
    missing = [title for name, title in METHODS.items() if all(run.method != name for run in records)]
    trained = [run for run in records if run.recipe["backbone"] is None]
    lines = [
        f"{one.trained_items:,} training images, {max(counts)} down to {min(counts)} per class, the published list; "
        f"tested on {one.items:,} other images of PASCAL VOC 2012 of our own choice (published numbers are for VOC "
        "2007). Mean ± standard deviation of the last iterate over n seeds, in percent."
        + (f" Not run yet: {', '.join(missing)}." if missing else ""),
        str(methods_table(records)),
        str(differences_table(records)),
        *notes(records),
        f"{one.hardware['device']}, {versions_in_words(one.versions, torch='torch')}; "
        f"{low_to_high([run.seconds for run in trained] or [0.0])} s per run with "
        f"{low_to_high([float(run.together) for run in trained] or [0.0])} at a time.",
    ]
    return "\n\n".join(lines)


def short(records: Sequence[MultilabelRecord]) -> str:
    """Four columns, for those who have a minute."""
    if not records:
        return "Not run yet."
    images = f"Tested on {records[0].items:,} images of our own choice; %, mean ± standard deviation over n seeds."
    return f"{methods_table(records, SHORT)}\n\n{images} {notes(records)[0]}"


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    records = read(results)
    parts = {"results/README.md": {NAME: part(records)}, "docs/multilabel.md": {f"{NAME}-short": short(records)}}
    return filled(root, parts)
