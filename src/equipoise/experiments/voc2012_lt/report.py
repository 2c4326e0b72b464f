"""VOC2012-LT from its records, with the order of the methods beside the paper's on LVIS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean

from equipoise.data.reading import counted
from equipoise.experiments.table2.control import Methods, beside_control, clearer, differences_by_seed
from equipoise.experiments.table2.published import PAPER
from equipoise.experiments.table2.report import NOTE, methods_table, numbers, runs_of, there
from equipoise.experiments.voc2012_lt.published import CUT, METHODS, NAME
from equipoise.report.tables import Table
from equipoise.training.detection_records import COLUMNS, MEASURES, DetectionRecord, columns_at
from equipoise.training.records import read_records

BESIDE = ("AP_fixed", "AP_pool", "AP_pool_r", "AP@5", "AP_r@20", "AP_r@10", "AP_r@5")  # beside the control
SEEN = ("AP_pool", "AP_pool_r", "AP_r@5")  # where a prior should show: shown seed by seed
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
            f"- {column}, best first: {said}. The paper's order on LVIS, {agrees}: {paper}. Of its "
            f"{counted(len(pairs), 'pair')}, ours agree in {signs.count(1)} and are reversed in {signs.count(-1)}; in "
            f"{signs.count(0)} the difference is within two standard errors over seeds."
        )
    return "\n".join(lines)


def order(values: dict[str, float]) -> list[str]:
    """Names, best first.

    >>> order({"a": 1.0, "b": 2.0})
    ['b', 'a']
    """
    return sorted(values, key=lambda name: -values[name])


def measures_tables(records: Sequence[DetectionRecord], methods: Methods = METHODS) -> list[Table]:
    """The measures that see a prior, with one row for every method that has runs; none where records lack them."""
    if not any(record.AP_at for record in records):
        return []
    return [methods_table(records, methods, columns=columns) for columns in (MEASURES, columns_at(records))]


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> Records:
    """The runs, and those from before NMS was exact; there may be none yet."""
    there(results)
    return {
        NAME: read_records(results, NAME, DetectionRecord),
        CUT: read_records(results, CUT, DetectionRecord, named=NAME),
    }


def shown_tables(records: Records) -> list[Table]:
    """Every method, run or not, and its differences from the control; then the runs from before NMS was exact, if
    any."""
    new, cut = records[NAME], records[CUT]
    found = [_whole(new, METHODS, "VOC2012-LT: average precision, %"), beside_control(new, METHODS)]
    if measures := measures_tables(new):
        by_seed = [differences_by_seed(new, METHODS, column) for column in SEEN]
        found += [*measures, beside_control(new, METHODS, BESIDE), *by_seed]
    if cut:
        title = "VOC2012-LT, NMS of proposals cut off: average precision, %"
        found += [_whole(cut, methods_run(cut), title), beside_control(cut, METHODS)]
    return [table for table in found if table]


def _whole(records: Sequence[DetectionRecord], methods: Methods, title: str) -> Table:
    rows = [[words, *numbers(runs_of(records, name))] for name, words in methods.items()]
    return Table(["method", *COLUMNS, "n"], rows, title=title)


def notes(records: Records) -> list[str]:
    cut = [f"{line} (NMS cut off)" for line in orders_compared(records[CUT]).splitlines()]
    return [NOTE, *orders_compared(records[NAME]).splitlines(), *cut]
