"""VOC-MLT from its records."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from equipoise.report.tables import UNKNOWN, Table, grouped, mean_std
from equipoise.training.multilabel_records import MultilabelRecord
from equipoise.training.records import read_records

NAME = "voc-mlt"
METHODS = {
    "bce": "BCE",
    "class_aware": "BCE, class-aware sampling",
    "focal": "Focal",
    "asl": "ASL",
    "db": "Distribution-Balanced, class-aware sampling",
    "eql": "EQL",
    "balanced_sigmoid": "Balanced Sigmoid",
    "balanced_sigmoid_half": "Balanced Sigmoid, released form",
    "bce_adjusted": "BCE, adjusted afterwards",
}
COLUMNS = {
    "map": "mAP",
    "map_head": "head",
    "map_medium": "medium",
    "map_tail": "tail",
    "micro_ap": "micro-AP",
    "f1_macro": "F1 macro",
    "f1_micro": "F1 micro",
}
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 % of Student's t, 1 to 9 degrees
RELEASED_HEAD = 100  # images: a class with exactly this many is in the head in the authors' split, and medium here


def methods_table(records: Sequence[MultilabelRecord], columns: Sequence[str] = tuple(COLUMNS)) -> Table:
    """Every method: its scores and the number of seeds."""
    runs = grouped(records, lambda record: record.method)
    rows = []
    for name, title in METHODS.items():
        alike = runs.get(name, [])
        numbers = [mean_std([getattr(run, column) for run in alike]) for column in columns]
        rows.append([title, *numbers, str(len(alike))])
    header = ["method", *(COLUMNS[column] for column in columns), "n"]
    return Table(header, rows, title="VOC-MLT, our own test images: %")


def gains(records: Sequence[MultilabelRecord], method: str, column: str) -> list[float]:
    """A method's score minus that of BCE with the same seed, by seed."""
    plain = {run.seed: getattr(run, column) for run in records if run.method == "bce"}
    own = {run.seed: getattr(run, column) for run in records if run.method == method}
    pairs = [(own[seed], plain[seed]) for seed in sorted(own.keys() & plain.keys())]
    return [after - before for after, before in pairs if after is not None and before is not None]


def within_chance(differences: Sequence[float]) -> bool:
    """Whether Student's 95 % interval of their mean contains 0; always True for a single value.

    >>> within_chance([1.0, 1.2, 0.9]), within_chance([1.0, -0.5, 0.9]), within_chance([0.0, 0.0]), within_chance([3.0])
    (False, True, True, True)
    """
    number = len(differences)
    if number < 2:
        return True
    return abs(mean(differences)) <= STUDENT[min(number, 10) - 2] * stdev(differences) / sqrt(number)


def differences_table(records: Sequence[MultilabelRecord]) -> Table:
    """Every method's difference from BCE of the same seed; in brackets if it is within chance."""

    def cell(method: str, column: str) -> str:
        found = gains(records, method, column)
        text = mean_std(found, sign=True)
        return f"({text})" if text != UNKNOWN and within_chance(found) else text

    others = [(name, title) for name, title in METHODS.items() if name != "bce"]
    rows = [[title, *(cell(name, column) for column in COLUMNS)] for name, title in others]
    return Table(
        ["difference from BCE", *COLUMNS.values()],
        rows,
        title="VOC-MLT: difference from BCE with the same seed, points",
    )


def notes(records: Sequence[MultilabelRecord]) -> list[str]:
    """What each number can see, what is chance, and in which group the split differs from the authors'."""
    return [
        "mAP ranks the images of one class at a time, so it does not depend on the prior: subtracting the prior from "
        "the logits of BCE after training leaves every mAP unchanged. micro-AP pools the scores of all classes, and F1 "
        "uses one threshold, a probability of 1/2, for all of them, so both depend on it.",
        "Differences are from the BCE run with the same seed. Those in brackets may be chance: the 95 % interval of "
        "the mean over seeds (Student's t) includes 0. It does not cover the choice of test images.",
        *released_split(records),
    ]


def released_split(records: Sequence[MultilabelRecord]) -> list[str]:
    """Head and medium mAP of the authors' split, if it differs."""
    between = [name for name, count in zip(records[0].class_names, records[0].counts, strict=True) if count == 100]
    if not between:
        return []

    def of_group(run: MultilabelRecord, low: int, high: float) -> float:
        pairs = zip(run.counts, run.average_precision, strict=True)
        return mean(value for count, value in pairs if low <= count < high and value is not None)

    runs = grouped(records, lambda record: record.method)
    shown = [
        f"{METHODS[name]} {mean_std([of_group(run, RELEASED_HEAD, float('inf')) for run in alike])} and "
        f"{mean_std([of_group(run, 20, RELEASED_HEAD) for run in alike])}"
        for name, alike in runs.items()
        if name in ("bce", "db", "balanced_sigmoid")
    ]
    return [
        f"Head, medium and tail have more than 100, 20 to 100 and fewer than 20 training images. The authors count "
        f"{', '.join(between)}, with exactly 100, as head; head and medium mAP are then {'; '.join(shown)}."
    ]


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> list[MultilabelRecord]:
    """The runs."""
    return read_records(results, NAME, MultilabelRecord)


def shown_tables(records: Sequence[MultilabelRecord]) -> list[Table]:
    return [methods_table(records), differences_table(records)]
