"""The record from its records: one network per cell, beside what was published for the same network.

A cell is called above the best only with three seeds or more, by the mean of their last iterates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from equipoise.experiments.record import published
from equipoise.experiments.record.published import COLUMNS, DATA_SETS, Published
from equipoise.experiments.table1.report import shown
from equipoise.report.tables import UNKNOWN, Table, grouped, mean_std, plus_minus
from equipoise.training.records import Record, read_records

ENOUGH = 3  # seeds before a cell is compared with the best
NOTE = (
    "Ours: mean ± standard deviation (n seeds) of the last iterate of one network; each seed has six teachers of its "
    "own. A cell with fewer than three seeds is not called above the best."
)
Column = tuple[str, int]


def by_column(records: Iterable[Record]) -> dict[Column, list[Record]]:
    """The runs of each cell that has one."""
    return grouped(records, lambda record: (record.data_set, record.imbalance))


def column_title(column: Column) -> str:
    return f"{DATA_SETS[column[0]]}, {column[1]}"


# -------------------------------------------------------------------- tables


def leaderboard(records: Sequence[Record]) -> Table:
    """Every published single network of this width, the best of them, and ours."""
    ours = by_column(records)
    rows = [_row(row) for row in published.SINGLE]
    best = published.best()
    rows.append(["**best published**", *(plus_minus(best[column][0]) for column in COLUMNS), "", "", "", ""])
    numbers = [mean_std((run.top1 for run in ours.get(column, [])), n=True) for column in COLUMNS]
    lengths = sorted({run.iterations for run in records})
    length = " or ".join(f"{iterations:,} × 512" for iterations in lengths) or UNKNOWN
    rows.append(["**ours**, one student of six", *numbers, length, "1", published.STANDARD, "results/record"])
    return Table(_header(), rows, title="One ResNet-32 on CIFAR-LT: top-1, %")


def others() -> Table:
    """Networks of other widths and several experts: not to be compared with ours."""
    return Table(_header(), [_row(row) for row in published.OTHERS], title="Other networks: not comparable")


def _header() -> list[str]:
    return ["", *map(column_title, COLUMNS), "trained for", "views", "channels", "number from"]


def _row(row: Published) -> list[str]:
    numbers = [UNKNOWN if number is None else f"{number:.1f}" for number in row.numbers]
    return [row.title, *numbers, row.length, row.views, row.network, row.source]


# -------------------------------------------------------------------- words


def verdict(records: Sequence[Record]) -> str:
    """Where the students are above the best, where below, and where it is too early to tell."""
    ours, best = by_column(records), published.best()
    said: dict[str, list[str]] = {"Above the best published": [], "Not above it": [], "Fewer than three seeds": []}
    for column in COLUMNS:
        if not (runs := ours.get(column)):
            continue
        number = mean(run.top1 for run in runs)
        words = f"{column_title(column)}: {plus_minus(number - best[column][0], digits=2, sign=True)}"
        if len(runs) < ENOUGH:
            said["Fewer than three seeds"].append(f"{words} ({len(runs)})")
        else:
            said["Above the best published" if number > best[column][0] else "Not above it"].append(words)
    absent = [column_title(column) for column in COLUMNS if column not in ours]
    sentences = [f"{what}: {'; '.join(cells)}." for what, cells in said.items() if cells]
    return " ".join([*sentences, *([f"Not run yet: {'; '.join(absent)}."] if absent else [])])


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> list[Record]:
    """The students: one method in all cells, each with its teachers."""
    records = shown(read_records(results, published.NAME))
    for record in records:
        if record.method != published.METHOD or not record.teachers:
            raise ValueError(f"{record.key} is no student: expected {published.METHOD} with teachers")
    return records


def shown_tables(records: Sequence[Record]) -> list[Table]:
    return [leaderboard(records)]


def notes(records: Sequence[Record]) -> list[str]:
    return [verdict(records), NOTE]
