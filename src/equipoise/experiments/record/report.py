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
from equipoise.report import tables
from equipoise.report.tables import UNKNOWN, Table, grouped, low_to_high, mean_std, plus_minus
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


def cells_table(records: Sequence[Record], teachers: Sequence[Record]) -> Table:
    """A row per cell: the student beside its teachers, alone and together, and how long all of it took."""
    best, known, rows = published.best(), by_name(teachers), []
    for column, runs in by_column(records).items():
        minutes = [found / 60 for run in runs if (found := _seconds(run, known)) is not None]
        rows.append(
            [
                column_title(column),
                mean_std((run.top1 for run in runs), digits=2, n=True),
                f"{best[column][0]:.1f}, {best[column][1]}",
                mean_std(alone(runs, known), n=True),
                mean_std((run.teachers_top1 for run in runs), n=True),
                low_to_high(minutes, 1) if minutes else UNKNOWN,
            ]
        )
    header = ["data", "student", "best published", "a teacher", "six teachers together", "minutes, all included"]
    return Table(header, rows, title="The students and their teachers")


def by_name(records: Iterable[Record]) -> dict[str, Record]:
    """As students name their teachers."""
    return {record.key.removeprefix(f"{record.table}/"): record for record in records}


def alone(runs: Sequence[Record], teachers: dict[str, Record]) -> list[float]:
    """Top-1 of the teachers of these runs that have a record."""
    return [teachers[name].top1 for run in runs for name in run.teachers or {} if name in teachers]


def _seconds(run: Record, teachers: dict[str, Record]) -> float | None:
    """Of a student and its teachers, as shares of what their groups took; None where a teacher has no record."""
    named = [teachers.get(name) for name in run.teachers or {}]
    if not all(named):
        return None
    return sum(one.seconds / one.together for one in (run, *named) if one is not None)


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


def ablation(tries: Sequence[Record], teachers: Sequence[Record] = ()) -> str:
    """For docs/lab-notes.md: an ingredient at a time, judged on held-out training images."""
    tried = by_column(tries)
    if not tried:
        return "Not run yet."
    known = by_name(teachers)
    return "\n\n".join(_ablation(column, tried.get(column, []), known) for column in published.CHOICES_CELLS)


def _ablation(column: Column, tries: Sequence[Record], teachers: dict[str, Record]) -> str:
    planned = {method: published.CHOICES[method] for method in published.CHOICES_CELLS[column]}
    runs_of, rows = grouped(tries, lambda record: record.method), []
    for method, title in planned.items():
        if runs := runs_of.get(method):
            accuracy = mean_std((run.balanced_accuracy for run in runs), digits=2, n=True)
            taught = mean_std(run.teachers_top1 for run in runs)
            seconds = mean_std((run.seconds / run.together for run in runs), digits=0)
            rows.append([title, f"{runs[0].iterations:,}", accuracy, taught, mean_std(alone(runs, teachers)), seconds])
    missing = [title for method, title in planned.items() if method not in runs_of]
    parts = []
    if rows:
        judged = f"{column_title(column)}, judged on {sum(tries[0].total):,} held-out training images."
        header = ["", "iterations", "balanced accuracy", "teachers together, top-1", "a teacher", "seconds"]
        parts = [judged, str(Table(header, rows))]
    if missing:
        parts.append(f"Not run yet on {column_title(column)}: {'; '.join(missing)}.")
    return "\n\n".join(parts)


def leaderboard_part(records: Sequence[Record]) -> str:
    return "\n\n".join([str(leaderboard(records)), verdict(records), NOTE])


def cells_part(records: Sequence[Record], teachers: Sequence[Record]) -> str:
    return str(cells_table(records, teachers)) if records else "Not run yet."


# -------------------------------------------------------------------- what `equipoise table` shows and writes


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


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the record, as it should read."""
    records, teachers = read(results), shown(read_records(results, published.TEACHERS))
    tries, tried_teachers = (read_records(results, table) for table in (published.TRIES, published.TRIED_TEACHERS))
    parts = {
        "docs/record.md": {
            "record-leaderboard": leaderboard_part(records),
            "record-cells": cells_part(records, teachers),
            "record-others": str(others()),
        },
        "docs/lab-notes.md": {"record-choices": ablation(tries, tried_teachers)},
    }
    return tables.filled(root, parts)
