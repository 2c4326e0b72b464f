"""Table 1 from its records, beside the published numbers. No number is typed here: ours come from records, the others
from published.py.

    ours              mean over the n runs of a cell, ± their sample standard deviation if n > 1, (n)
    published         mean ± standard error over three runs, as printed; at imbalance 50 one number, from a later paper
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from equipoise.experiments.record.published import USUAL
from equipoise.experiments.table1 import published as table1
from equipoise.experiments.table1.published import title_of
from equipoise.report.tables import UNKNOWN, Table, grouped, mean_std, plus_minus
from equipoise.training.records import Record, read_records

Published = tuple[float, float]  # mean, standard error
Cell = tuple[str, int, str]  # data set, imbalance, method


# -------------------------------------------------------------------- numbers


def shown(records: Iterable[Record]) -> list[Record]:
    """What the table may show: whole runs, evaluated on the test set, all of a column trained on the same draw."""
    kept = [record for record in records if record.complete and record.evaluated_on == "test"]
    draws: dict[tuple[str, int], tuple[str, str]] = {}
    for record in kept:
        drawn = (record.draw, record.pixels)
        if draws.setdefault((record.data_set, record.imbalance), drawn) != drawn:
            raise ValueError(f"{record.key} was trained on other images than the runs beside it: {drawn}")
    return kept


def by_cell(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """The runs of each cell that has one."""
    return grouped(records, lambda record: (record.data_set, record.imbalance, record.method))


def accuracies(records: Iterable[Record]) -> Mapping[Cell, list[float]]:
    """Top-1 of the runs of each cell, in percent; an empty list for a cell without runs."""
    return defaultdict(list, {cell: [run.top1 for run in runs] for cell, runs in by_cell(records).items()})


def published(cell: Cell) -> dict[str, Published]:
    """The printed numbers of a cell by source: "paper", "companion"; a row that differs has both."""
    data_set, imbalance, method = cell
    found = {}
    if imbalance in table1.IMBALANCES:
        column = table1.IMBALANCES.index(imbalance)
        for source, numbers in (("paper", table1.PAPER), ("companion", table1.COMPANION)):
            if (method, data_set) in numbers:
                found[source] = numbers[method, data_set][column]
    if (data_set, imbalance) == table1.BELOW_CELL and method in table1.COMPANION_BELOW:
        found["companion"] = table1.COMPANION_BELOW[method]
    return found


def later_cells() -> list[Cell]:
    """The cells of the imbalance that later papers report."""
    return [(*column, method) for column in table1.LATER_COLUMNS for method in table1.LATER_METHODS]


def total_variation(marginal: Sequence[float]) -> float | None:
    """½ Σ |p(y = j) − 1/K|; None for sigmoids, whose p(y) does not add up to 1.

    >>> total_variation([0.75, 0.25]), total_variation([0.75, 0.75])
    (0.25, None)
    """
    p = np.asarray(marginal)
    return float(np.abs(p - 1 / len(p)).sum() / 2) if abs(p.sum() - 1) < 1e-3 else None


# -------------------------------------------------------------------- tables


def data_set_table(records: Iterable[Record], data_set: str, column: str = "{}") -> Table:
    """Our, the paper's and the companion's numbers for every method, by imbalance; `column` makes a column's
    heading."""
    ours, rows = accuracies(records), []
    for method, title in table1.METHODS.items():
        cells = [(data_set, imbalance, method) for imbalance in table1.IMBALANCES]
        rows.append([title, "ours", *(mean_std(ours[cell], n=True) for cell in cells)])
        sources = [published(cell) for cell in cells]
        for source in ("paper", "companion"):
            if any(source in found for found in sources):
                rows.append(["", source, *(printed(found.get(source)) for found in sources)])
    header = ["method", "", *map(column.format, table1.IMBALANCES)]
    return Table(header, rows, left=2, title=f"{table1.DATA_SETS[data_set]}: top-1, %, by imbalance")


def below_table(records: Iterable[Record]) -> Table:
    """Our and the companion's numbers for the further rows."""
    ours, rows = accuracies(records), []
    for method, title in table1.BELOW.items():
        cell = (*table1.BELOW_CELL, method)
        rows.append([title, mean_std(ours[cell], n=True), printed(published(cell).get("companion"))])
    title = f"Further rows: {table1.DATA_SETS[table1.BELOW_CELL[0]]} at {table1.BELOW_CELL[1]}"
    return Table(["method", "ours", "companion"], rows, title=title)


def later_table(records: Iterable[Record]) -> Table:
    """Ours at the imbalance that later papers report, beside the same method in their usual recipe."""
    ours, rows = accuracies(records), []
    for method in table1.LATER_METHODS:
        usual = USUAL[method]
        cells = [(*column, method) for column in table1.LATER_COLUMNS]
        rows.append([title_of(method), "ours", *(mean_std(ours[cell], n=True) for cell in cells)])
        theirs = (mean_std([usual.number(*column)]) for column in table1.LATER_COLUMNS)
        rows.append([usual.title, usual.source, *theirs])
    title = f"Imbalance {table1.LATER}, which the paper does not have"
    return Table(["method", "", *table1.DATA_SETS.values()], rows, left=2, title=title)


def later_missing(have: Mapping[Cell, Sequence[Record]]) -> list[str]:
    """The cells of the later imbalance without a run, in words."""
    absent = [cell for cell in later_cells() if cell not in have]
    return [f"{title_of(method)} on {table1.DATA_SETS[data_set]}" for data_set, _, method in absent]


def missing(records: Iterable[Record]) -> str:
    """The cells without a run, in a sentence."""
    have = by_cell(records)
    parts = []
    for data_set, name in table1.DATA_SETS.items():
        absent = {
            imbalance: [title for method, title in table1.METHODS.items() if (data_set, imbalance, method) not in have]
            for imbalance in table1.IMBALANCES
        }
        whole = [str(imbalance) for imbalance, titles in absent.items() if len(titles) == len(table1.METHODS)]
        parts += [f"{name} at {', '.join(whole)}"] * bool(whole)
        parts += [
            f"{name} at {i}: {', '.join(titles)}" for i, titles in absent.items() if titles and str(i) not in whole
        ]
    below = [title for name, title in table1.BELOW.items() if (*table1.BELOW_CELL, name) not in have]
    parts += ["further rows: " + "; ".join(below)] * bool(below)
    later = later_missing(have)
    named = "" if len(later) == len(later_cells()) else f": {'; '.join(later)}"
    parts += [f"imbalance {table1.LATER}, which the paper does not have{named}"] * bool(later)
    return f"Not run yet: {'. '.join(parts)}." if parts else "Every cell has been run."


def printed(value: Published | None) -> str:
    return UNKNOWN if value is None else plus_minus(*value)


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> list[Record]:
    """The runs that the table shows."""
    return shown(read_records(results, table1.NAME))


def shown_tables(records: Sequence[Record]) -> list[Table]:
    """A table per data set, the further rows, and the later imbalance."""
    by_data_set = [data_set_table(records, data_set) for data_set in table1.DATA_SETS]
    return [*by_data_set, below_table(records), later_table(records)]


def notes(records: Sequence[Record]) -> list[str]:
    words = "ours: mean ± standard deviation (n runs); published: mean ± standard error of three runs"
    return [words, missing(records)]
