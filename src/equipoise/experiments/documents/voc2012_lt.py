"""VOC2012-LT, as the documents show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.experiments.documents.marks import filled
from equipoise.experiments.documents.table2 import beside_part, groups_said, provenance
from equipoise.experiments.table2.control import Methods
from equipoise.experiments.table2.published import MOST
from equipoise.experiments.table2.report import methods_table, runs_of
from equipoise.experiments.voc2012_lt.published import CHOICES, CUT, METHODS, NAME, TAU_CHOICES
from equipoise.experiments.voc2012_lt.report import BESIDE, SEEN, measures_tables, methods_run, orders_compared, read
from equipoise.report.tables import low_to_high
from equipoise.training.detection_records import COLUMNS, DetectionRecord
from equipoise.training.records import read_records

LEVELS = 5  # of the feature pyramid
SAME_MEASURES = (
    "AP_fixed counts the 10,000 best detections per class, AP_pool ranks all classes together, and AP@5 counts the "
    "best 5 detections per image, LVIS's cap scaled to 20 classes; all are for masks."
)
CHANCE = ("AP_mask", "AP_r", "AP_box", *BESIDE)  # told from chance
CUT_OFF = (
    "These runs are from before NMS was exact: in training, NMS of proposals was cut off after some rounds, which left "
    "boxes undecided. They are kept as recorded, with the methods and measures of that time."
)


def voc_part(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> str:
    """VOC2012-LT under its own name."""
    if not records:
        return "Not run yet."
    missing = [title for name, title in methods.items() if not runs_of(records, name)]
    measures = measures_tables(records, methods)
    beside = ([COLUMNS, BESIDE], CHANCE, SEEN) if measures else ([COLUMNS],)
    parts = [
        f"{groups_said(records[0].counts)}; trained on {records[0].trained_on}, tested on "
        f"{records[0].evaluated_images:,} images. Mean ± standard deviation of the last iterate over n seeds; "
        "AP_f, AP_c and AP_r are for masks."
        + _detections_said(records)
        + (f" Not run yet: {', '.join(missing)}." if missing else ""),
        str(methods_table(records, methods)),
        "\n\n".join([SAME_MEASURES, *map(str, measures)]) if measures else "",
        orders_compared(records, methods),
        *beside_part(records, methods, *beside),
        provenance(records),
        unsettled_part(records),
    ]
    return "\n\n".join(part for part in parts if part)


def cut_part(records: Sequence[DetectionRecord]) -> str:
    """The runs in which NMS of proposals was cut off, with the methods that they have."""
    return f"{CUT_OFF}\n\n{voc_part(records, methods_run(records))}" if records else "No records."


def _detections_said(records: Sequence[DetectionRecord]) -> str:
    found = [run.engine["detections"] / run.evaluated_images for run in records if run.engine.get("detections")]
    return f" Runs found {low_to_high(found)} detections per image, of which at most {MOST} count." if found else ""


def unsettled_part(records: Sequence[DetectionRecord]) -> str:
    """In how many batches of the first stages NMS was cut off before the last box was decided."""
    # records from before the number of rounds was stored had 16
    first = [run for run in records if run.recipe.get("start") is None and run.engine.get("nms_unsettled") is not None]
    unsettled = [run.engine["nms_unsettled"] for run in first]
    if not any(unsettled):
        return ""
    shares = [100 * number / max(run.iterations, 1) for number, run in zip(unsettled, first, strict=True)]
    return (
        f"In training, NMS of proposals stops after {first[0].engine.get('nms_rounds', 16)} rounds. In "
        f"{low_to_high(shares, 1)} % of the batches of a first stage, some boxes were then undecided on at least one "
        f"of the {LEVELS} levels of an image."
    )


def choices_part(records: Sequence[DetectionRecord]) -> str:
    """What was compared on the held-out training images."""
    if not records:
        return "Not run yet."
    images = records[0].evaluated_images
    where = f"On the {images:,} training images that the long-tailed draw leaves out; no test image was used."
    taus = [run for run in records if run.method in TAU_CHOICES]
    tables = map(str, measures_tables(taus, TAU_CHOICES)) if taus else ["tau of `rfs_adjusted`: not run yet."]
    return "\n\n".join([where, str(methods_table(records, CHOICES, "choice")), *tables, provenance(records)])


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    choices = read_records(results, f"choices/{NAME}", DetectionRecord)
    records = read(results)
    parts = {
        "results/README.md": {NAME: voc_part(records[NAME]), CUT: cut_part(records[CUT])},
        "docs/lab-notes.md": {f"{NAME}-choices": choices_part(choices)},
    }
    return filled(root, parts)
