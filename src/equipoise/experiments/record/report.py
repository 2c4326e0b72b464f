"""The record table: one network per cell, beside what was published for the same network.

A cell is called above the best only with at least three seeds, by the mean of their last iterates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from equipoise.data.reading import counted
from equipoise.experiments.record import published
from equipoise.experiments.record.published import COLUMNS, DATA_SETS, Published, Version
from equipoise.experiments.table1.report import shown
from equipoise.report.tables import UNKNOWN, Table, grouped, mean_std, plus_minus
from equipoise.training.records import EARLIER, Record, read_records

ENOUGH = 3  # seeds before a cell is compared with the best
NOTE = (
    "Ours: mean ± standard deviation (n seeds) of the last iterate of one network; each seed has teachers of its own. "
    "A cell with fewer than three seeds is not counted as above the best "
    "published number, even if it is higher."
)
Column = tuple[str, int]
DESCRIBED = ("trained for", "views", "channels", "number from")  # the last columns


@dataclass(frozen=True)
class Students:
    """The runs that are shown: those of the record, and those of the next recipe."""

    records: Sequence[Record]
    of_next: Sequence[Record] = ()

    def __len__(self) -> int:
        return len(self.records) + len(self.of_next)


def by_column(records: Iterable[Record]) -> dict[Column, list[Record]]:
    """The runs of each cell that has one."""
    return grouped(records, lambda record: (record.data_set, record.imbalance))


def column_title(column: Column) -> str:
    return f"{DATA_SETS[column[0]]}, {column[1]}"


# -------------------------------------------------------------------- tables


def leaderboards(students: Students, *, linked: bool = False) -> list[Table]:
    """For each data set, every published single network of this width, the best of them, and ours; `linked` to where
    the numbers are from, in Markdown."""
    return [_leaderboard(data_set, students, linked) for data_set in DATA_SETS]


def _leaderboard(data_set: str, students: Students, linked: bool) -> Table:
    best, columns = published.best(), _columns(data_set)
    rows = _rows(data_set, published.SINGLE, linked)
    rows.append(["best published", *(plus_minus(best[column][0]) for column in columns), "", "", "", ""])
    rows.append(_ours("ours", columns, students.records, published.NAME))
    if of_next := [run for run in students.of_next if run.data_set == data_set]:
        rows.append(_ours("ours, next recipe", columns, of_next, f"{published.NEXT.folder}/{published.NAME}"))
    title = f"One ResNet-32 on {DATA_SETS[data_set]}, by imbalance: top-1, %"
    return Table(_header(data_set), rows, title=title, words=len(DESCRIBED))


def _ours(title: str, columns: Sequence[Column], records: Sequence[Record], folder: str) -> list[str]:
    ours = by_column(records)
    runs = [ours.get(column, []) for column in columns]
    numbers = [mean_std((run.top1 for run in every), digits=2, n=True) for every in runs]
    lengths = sorted({(run.iterations, len(run.teachers or {})) for every in runs for run in every})
    length = " or ".join(f"{iterations:,} × 512, after {counted(n, 'teacher')}" for iterations, n in lengths) or UNKNOWN
    return [title, *numbers, length, "1", published.STANDARD, f"results/{folder}"]


def others(*, linked: bool = False) -> list[Table]:
    """Networks of other widths and several experts, for each data set: not comparable with ours."""
    titles = {data_set: f"Other networks on {name}: not comparable" for data_set, name in DATA_SETS.items()}
    return [
        Table(_header(one), _rows(one, published.OTHERS, linked), title=title, words=len(DESCRIBED))
        for one, title in titles.items()
    ]


def _columns(data_set: str) -> list[Column]:
    return [column for column in COLUMNS if column[0] == data_set]


def _header(data_set: str) -> list[str]:
    columns = [str(imbalance) for _, imbalance in _columns(data_set)]
    return [f"{DATA_SETS[data_set]}, imbalance", *columns, *DESCRIBED]


def _rows(data_set: str, published_rows: Sequence[Published], linked: bool) -> list[list[str]]:
    """A row for every network with a number on this data set."""
    rows = []
    for row in published_rows:
        numbers = [number for column, number in zip(COLUMNS, row.numbers, strict=True) if column[0] == data_set]
        if any(number is not None for number in numbers):
            shown_numbers = [UNKNOWN if number is None else f"{number:.1f}" for number in numbers]
            source = f"[{row.source}]({row.address})" if linked and row.address else row.source
            rows.append([row.title, *shown_numbers, row.length, row.views, row.network, source])
    return rows


# -------------------------------------------------------------------- words


def verdicts(students: Students) -> list[str]:
    """For the record, and for the next recipe if it has a student."""
    of_next = [f"With the next recipe. {verdict(students.of_next)}"] if students.of_next else []
    return [verdict(students.records), *of_next]


def verdict(records: Sequence[Record]) -> str:
    """In which cells the students are above the best, in which they are not, and in which it is too early to tell."""
    ours, best = by_column(records), published.best()
    early = "Higher, but with fewer than three seeds"
    said: dict[str, list[str]] = {"Above the best published": [], "Not above the best published": [], early: []}
    for column in COLUMNS:
        if not (runs := ours.get(column)):
            continue
        number = mean(run.top1 for run in runs)
        words = f"{column_title(column)}: {plus_minus(number - best[column][0], digits=2, sign=True)}"
        if len(runs) < ENOUGH:
            words += f" ({len(runs)})"
        if number <= best[column][0]:
            said["Not above the best published"].append(words)
        else:
            said["Above the best published" if len(runs) >= ENOUGH else early].append(words)
    absent = [column_title(column) for column in COLUMNS if column not in ours]
    sentences = [f"{what}: {'; '.join(cells)}." for what, cells in said.items() if cells]
    return " ".join([*sentences, *([f"Not run yet: {'; '.join(absent)}."] if absent else [])])


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> Students:
    """All students, each with its teachers: of the record, one method in all cells, and of the next recipe."""
    return Students(*(_read(results / version.folder, version) for version in (published.RECORD, published.NEXT)))


def _read(results: Path, version: Version) -> list[Record]:
    records = shown(read_records(results, published.NAME))
    for record in records:
        if record.method != published.METHOD or not record.teachers:
            raise ValueError(f"{record.key} is not a student: expected {published.METHOD} with teachers")
        if other := of_another_recipe(record, version):
            raise ValueError(
                f"{record.key} under {results} {other}: keep its records in a folder of their own, those of the next "
                f"recipe in {published.NEXT.folder}/ of the folder that is shown"
            )
    return records


def of_another_recipe(record: Record, version: Version) -> str:
    """In what the recipe of a student differs from that of a version, in words; nothing if it does not."""
    found, usual = EARLIER | record.recipe, version.students.get(record.data_set, {})
    other = [f"{name} {found.get(name)}, not {value}" for name, value in usual.items() if found.get(name) != value]
    return f"is of another recipe ({'; '.join(other)})" if other else ""


def shown_tables(students: Students) -> list[Table]:
    return leaderboards(students)


def notes(students: Students) -> list[str]:
    return [*verdicts(students), NOTE]
