"""VOC2012-LT from its records, with the order of the methods beside the paper's on LVIS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from equipoise.experiments.table2.published import CONTROL, PAPER
from equipoise.experiments.table2.report import NOTE, methods_table, numbers, runs_of, there
from equipoise.experiments.voc2012_lt.published import CUT, METHODS, NAME
from equipoise.report.tables import Table, mean_std
from equipoise.training.detection_records import COLUMNS, MEASURES, DetectionRecord, columns_at
from equipoise.training.records import counted, read_records

Methods = Mapping[str, str]  # title by name
Records = Mapping[str, Sequence[DetectionRecord]]  # by folder


def methods_run(records: Sequence[DetectionRecord]) -> Methods:
    """The methods that have runs."""
    return {name: title for name, title in METHODS.items() if runs_of(records, name)}


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
        agrees = "the same one" if order({name: ours[name] for name in both}) == order(both) else "a different one"
        lines.append(
            f"- {column}, best first: {said}. The paper's order on LVIS, {agrees}: {paper}. Of "
            f"{counted(len(pairs), 'pair')}, {signs.count(1)} are in the paper's order, {signs.count(-1)} are reversed "
            f"and {signs.count(0)} are within two standard errors of the difference over seeds."
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
    title = f"Difference from {methods.get(CONTROL, CONTROL)!r} with the same seed"
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


# -------------------------------------------------------------------- what `equipoise table` shows


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
        found += [_whole(records[CUT], methods_run(records[CUT]), title), beside_control(records[CUT])]
    return [table for table in found if table]


def _whole(records: Sequence[DetectionRecord], methods: Methods, title: str) -> Table:
    rows = [[words, *numbers(runs_of(records, name))] for name, words in methods.items()]
    return Table(["method", *COLUMNS, "n"], rows, title=title)


def notes(records: Records) -> list[str]:
    cut = [f"{line} (NMS cut off)" for line in orders_compared(records[CUT]).splitlines()]
    return [NOTE, *orders_compared(records[NAME]).splitlines(), *cut]
