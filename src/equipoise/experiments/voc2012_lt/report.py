"""VOC2012-LT from its records, with the order of the methods beside the paper's on LVIS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from equipoise.experiments.table2.published import CONTROL, MOST, PAPER
from equipoise.experiments.table2.report import NOTE, methods_table, numbers, provenance, runs_of, there
from equipoise.experiments.voc2012_lt.published import CHOICES, CUT, METHODS, NAME
from equipoise.report import tables
from equipoise.report.tables import Table, low_to_high, mean_std
from equipoise.training.detection_records import COLUMNS, MEASURES, DetectionRecord, columns_at
from equipoise.training.records import read_records

LEVELS = 5  # of the feature pyramid
Methods = Mapping[str, str]  # title by name
Records = Mapping[str, Sequence[DetectionRecord]]  # by folder
SAME_MEASURES = (
    "AP_fixed is of the 10,000 best detections per class, AP_pool ranks all classes together, AP@5 is of the best 5 "
    "detections per image, LVIS's share for 20 classes; all of masks."
)
CUT_OFF = (
    "Before NMS was exact: in the training of these runs, NMS of proposals was cut off after some rounds, which left "
    "boxes undecided. They are kept as they were recorded, with the methods and measures of their time."
)


def voc_part(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> str:
    """VOC2012-LT under its own name."""
    if not records:
        return "Not run yet."
    missing = [title for name, title in methods.items() if not runs_of(records, name)]
    counts, beside = records[0].counts, beside_control(records, methods)
    parts = [
        f"{sum(count > 100 for count in counts)} frequent, {sum(10 < count <= 100 for count in counts)} common and "
        f"{sum(count <= 10 for count in counts)} rare classes; trained on {records[0].trained_on}, tested on "
        f"{records[0].evaluated_images:,} images. Mean ± standard deviation over n seeds, the last iterate; "
        "AP_f, AP_c and AP_r are of masks."
        + _detections_said(records)
        + (f" Not run yet: {', '.join(missing)}." if missing else ""),
        str(methods_table(records, methods)),
        *_measures(records, methods),
        orders_compared(records, methods),
        f"{beside.title}, mean ± standard deviation over seeds:\n\n{beside}" if beside else "",
        provenance(records),
        unsettled_part(records),
    ]
    return "\n\n".join(part for part in parts if part)


def cut_part(records: Sequence[DetectionRecord]) -> str:
    """The runs in which NMS of proposals was cut off, with their methods."""
    return f"{CUT_OFF}\n\n{voc_part(records, _run(records))}" if records else "No records."


def _run(records: Sequence[DetectionRecord]) -> Methods:
    """The methods that have runs."""
    return {name: title for name, title in METHODS.items() if runs_of(records, name)}


def _measures(records: Sequence[DetectionRecord], methods: Methods) -> list[str]:
    """The measures that can see a prior, if runs have them."""
    if not any(record.AP_at for record in records):
        return []
    found = [str(methods_table(records, methods, columns=columns)) for columns in (MEASURES, columns_at(records))]
    return [SAME_MEASURES, *found]


def _detections_said(records: Sequence[DetectionRecord]) -> str:
    found = [run.engine["detections"] / run.evaluated_images for run in records if run.engine.get("detections")]
    return f" A run found {low_to_high(found)} detections per image; at most {MOST} count." if found else ""


def orders_compared(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> str:
    """The order of the methods, and how far it agrees with the paper's (LVIS, ResNet-50)."""
    lines = []
    for column in ("AP_mask", "AP_r"):
        found = {name: [getattr(record, column) for record in runs_of(records, name)] for name in methods}
        ours = {name: mean(values) for name, values in found.items() if values and None not in values}
        both = {name: row[COLUMNS.index(column)] for name, row in PAPER["resnet50"].items() if name in ours}
        pairs = list(combinations(both, 2))
        if not pairs:
            continue
        signs = [clearer(records, column, a, b) * (1 if both[a] > both[b] else -1) for a, b in pairs]
        said = " > ".join(methods[name] for name in order(ours))
        paper = " > ".join(methods[name] for name in order(both))
        agrees = "the same" if order({name: ours[name] for name in both}) == order(both) else "another order"
        lines.append(
            f"- {column}, best first: {said}. The paper's on LVIS: {paper}; {agrees}. Of {len(pairs)} pairs "
            f"{signs.count(1)} are as there, {signs.count(-1)} the other way round, and {signs.count(0)} within two "
            "standard errors of the difference over seeds."
        )
    return "\n".join(lines)


def order(values: dict[str, float]) -> list[str]:
    """Names, best first.

    >>> order({"a": 1.0, "b": 2.0})
    ['b', 'a']
    """
    return sorted(values, key=lambda name: -values[name])


def clearer(records: Sequence[DetectionRecord], column: str, a: str, b: str) -> int:
    """1 if method `a` is above `b` by more than two standard errors of the difference over seeds, -1 if it is below,
    else 0; for a single seed, the sign of the difference."""
    of_a, of_b = ({run.seed: run.number(column) for run in runs_of(records, name)} for name in (a, b))
    pairs = [(of_a[seed], of_b[seed]) for seed in of_a.keys() & of_b.keys()]
    differences = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    if not differences:
        return 0
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    middle = mean(differences)
    return 0 if abs(middle) <= 2 * error else (1 if middle > 0 else -1)


def beside_control(
    records: Sequence[DetectionRecord], methods: Methods = METHODS, columns: Sequence[str] = COLUMNS
) -> Table | None:
    """The differences of the first stage, and of each second stage, from the control of the same seed: mean ± standard
    deviation, with the number of seeds. None if there is no control."""
    rows = []
    for name, title in methods.items():
        pairs = control_pairs(records, name)
        if not pairs or name == CONTROL:
            continue
        found = [[difference(*pair, column) for pair in pairs] for column in columns]
        known = [[value for value in values if value is not None] for values in found]
        rows.append([title, *(mean_std(values, digits=2, sign=True) for values in known), str(len(pairs))])
    title = f"Beside {methods.get(CONTROL, CONTROL)!r} of the same seed"
    return Table(["difference", *columns, "n"], rows, title=title) if rows else None


def control_pairs(records: Sequence[DetectionRecord], method: str) -> list[tuple[DetectionRecord, DetectionRecord]]:
    """Each run of a method with the control that has its seed, its backbone and the same first stage."""
    control = {_beginning(record): record for record in runs_of(records, CONTROL)}
    return [(run, control[_beginning(run)]) for run in runs_of(records, method) if _beginning(run) in control]


def difference(run: DetectionRecord, control: DetectionRecord, column: str) -> float | None:
    """`run` minus `control`; None if one of them lacks the number."""
    ours, theirs = run.number(column), control.number(column)
    return None if ours is None or theirs is None else ours - theirs


def _beginning(record: DetectionRecord) -> tuple[Any, ...]:
    """What a detector and the second stages that start from it have in common."""
    return record.seed, record.recipe.get("start") or record.method, record.backbone


def unsettled_part(records: Sequence[DetectionRecord]) -> str:
    """In how many batches of the first stages NMS was cut off before the last box was decided."""
    # records that do not yet note the number of rounds had 16
    first = [run for run in records if run.recipe.get("start") is None and run.engine.get("nms_unsettled") is not None]
    unsettled = [run.engine["nms_unsettled"] for run in first]
    if not any(unsettled):
        return ""
    shares = [100 * number / max(run.iterations, 1) for number, run in zip(unsettled, first, strict=True)]
    return (
        f"In training, NMS of proposals stops after {first[0].engine.get('nms_rounds', 16)} rounds. In "
        f"{low_to_high(shares, 1)} % of the batches of a first stage, at least one of the {LEVELS} levels of one of "
        "the images was then not decided to the last box."
    )


def choices_part(records: Sequence[DetectionRecord]) -> str:
    """What was compared on the held-out training images."""
    if not records:
        return "Not run yet."
    images = records[0].evaluated_images
    where = f"On the {images:,} training images that the long-tailed draw leaves out; no test image was looked at."
    return "\n\n".join([where, str(methods_table(records, CHOICES, "choice")), provenance(records)])


# -------------------------------------------------------------------- what `equipoise table` shows and writes


def read(results: Path) -> Records:
    """The runs, and those from before NMS was exact; there may be none yet."""
    there(results)
    return {
        NAME: read_records(results, NAME, DetectionRecord),
        CUT: read_records(results, CUT, DetectionRecord, named=NAME),
    }


def shown_tables(records: Records) -> list[Table]:
    """Every method, run or not, and its difference from the control; then the runs from before NMS was exact, if
    any."""
    found = [_whole(records[NAME], METHODS, "VOC2012-LT: average precision, %"), beside_control(records[NAME])]
    if any(record.AP_at for record in records[NAME]):
        for columns in (MEASURES, columns_at(records[NAME])):
            found.append(methods_table(records[NAME], METHODS, columns=columns))
    if records[CUT]:
        title = "VOC2012-LT, NMS of proposals cut off: average precision, %"
        found += [_whole(records[CUT], _run(records[CUT]), title), beside_control(records[CUT])]
    return [table for table in found if table]


def _whole(records: Sequence[DetectionRecord], methods: Methods, title: str) -> Table:
    rows = [[words, *numbers(runs_of(records, name))] for name, words in methods.items()]
    return Table(["method", *COLUMNS, "n"], rows, title=title)


def notes(records: Records) -> list[str]:
    cut = [f"{line} (NMS cut off)" for line in orders_compared(records[CUT]).splitlines()]
    return [NOTE, *orders_compared(records[NAME]).splitlines(), *cut]


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    choices = read_records(results, f"choices/{NAME}", DetectionRecord)
    records = read(results)
    parts = {
        "results/README.md": {NAME: voc_part(records[NAME]), CUT: cut_part(records[CUT])},
        "docs/lab-notes.md": {f"{NAME}-choices": choices_part(choices)},
    }
    return tables.filled(root, parts)
