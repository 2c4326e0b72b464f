"""Table 1 from its records, beside the published numbers. No number is typed here: ours come from records, the others
from published.py.

    ours              mean over the n runs of a cell, ± their sample standard deviation where n > 1, (n)
    published         mean ± standard error over three runs, as printed
    difference        ours − published; its standard error is √(s²/n + e²), e being the published one and s the cell's
                      standard deviation. A single run has none: there s is pooled over the cells with n > 1,
                      s² = Σ (n − 1) s_cell² / Σ (n − 1)
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.experiments.table1 import published as table1
from equipoise.experiments.table1.engine import engine_notes, speed_table
from equipoise.experiments.table1.figure import DRAWN, DRAWN_ON, figure, marginals, marginals_digest
from equipoise.experiments.table1.published import title_of
from equipoise.prior import Prior
from equipoise.report import tables
from equipoise.report.figures import save
from equipoise.report.tables import UNKNOWN, Table, mean_std, plus_minus
from equipoise.training.records import Record, read_records

Published = tuple[float, float]  # mean, standard error
Cell = tuple[str, int, str]  # data set, imbalance, method


@dataclass(frozen=True)
class Summary:
    """Top-1 of the runs of a cell, in percent; `std` is None for a single run.

    >>> str(Summary.of([45.0, 45.6])), str(Summary.of([45.0]))
    ('45.3 ± 0.4 (2)', '45.0 (1)')
    """

    n: int
    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(len(values), statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{plus_minus(self.mean, self.std)} ({self.n})"


@dataclass(frozen=True)
class Difference:
    """A cell beside one published number. `standard_error` is None while the spread between seeds is not known."""

    cell: Cell
    source: str
    ours: Summary
    theirs: Published
    standard_error: float | None

    @property
    def points(self) -> float:
        return self.ours.mean - self.theirs[0]

    @property
    def beyond(self) -> bool:
        """More than two standard errors apart."""
        return self.standard_error is not None and abs(self.points) > 2 * self.standard_error


# -------------------------------------------------------------------- numbers


def shown(records: Iterable[Record]) -> list[Record]:
    """What the table may show: whole runs, judged on the test set, all of a column trained on the same draw."""
    kept = [record for record in records if record.complete and record.evaluated_on == "test"]
    draws: dict[tuple[str, int], tuple[str, str]] = {}
    for record in kept:
        drawn = (record.draw, record.pixels)
        if draws.setdefault((record.data_set, record.imbalance), drawn) != drawn:
            raise ValueError(f"{record.key} was trained on other images than the runs beside it: {drawn}")
    return kept


def by_cell(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """The runs of each cell."""
    cells: dict[Cell, list[Record]] = {}
    for record in records:
        cells.setdefault((record.data_set, record.imbalance, record.method), []).append(record)
    return cells


def summaries(records: Iterable[Record]) -> dict[Cell, Summary]:
    """Top-1 of each cell that has a run."""
    return {cell: Summary.of([record.top1 for record in runs]) for cell, runs in by_cell(records).items()}


def pooled_std(cells: Iterable[Summary]) -> float | None:
    """Standard deviation between seeds, pooled over the cells with several; None if there is none.

    >>> round(pooled_std([Summary(3, 45.0, 0.3), Summary(3, 50.0, 0.4), Summary(1, 60.0, None)]), 4)
    0.3536
    """
    several = [(summary.n - 1, summary.std) for summary in cells if summary.std is not None]
    if not several:
        return None
    return math.sqrt(sum(free * std**2 for free, std in several) / sum(free for free, _ in several))


def published(cell: Cell) -> dict[str, Published]:
    """The printed numbers of a cell by where they stand: "paper", "companion"; a row that differs has both."""
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


def differences(records: Iterable[Record]) -> list[Difference]:
    """Every cell with a run beside every number published for it, in the order of the table."""
    ours = summaries(records)
    pooled = pooled_std(ours.values())
    found = []
    for cell in all_cells():
        for source, theirs in published(cell).items() if cell in ours else ():
            std = pooled if ours[cell].std is None else ours[cell].std
            error = None if std is None else math.hypot(std / math.sqrt(ours[cell].n), theirs[1])
            found.append(Difference(cell, source, ours[cell], theirs, error))
    return found


def all_cells() -> list[Cell]:
    """Every cell of the table, column by column, then those under the line."""
    table = [
        (data_set, imbalance, method)
        for data_set in table1.DATA_SETS
        for imbalance in table1.IMBALANCES
        for method in table1.METHODS
    ]
    return table + [(*table1.BELOW_CELL, method) for method in table1.BELOW]


def group_accuracies(record: Record) -> dict[str, float | None]:
    """Mean accuracy in percent of the classes with many, medium and few training images; None for an empty group."""
    groups = Prior.from_counts(record.counts).groups()
    accuracy = 100 * np.asarray(record.correct) / np.asarray(record.total)
    return {
        name: float(accuracy[groups[name]].mean()) if name in groups else None for name in ("many", "medium", "few")
    }


def total_variation(marginal: Sequence[float]) -> float | None:
    """½ Σ |p(y = j) − 1/K|; None for sigmoids, whose p(y) does not add up to 1.

    >>> total_variation([0.75, 0.25]), total_variation([0.75, 0.75])
    (0.25, None)
    """
    p = np.asarray(marginal)
    return float(np.abs(p - 1 / len(p)).sum() / 2) if abs(p.sum() - 1) < 1e-3 else None


# -------------------------------------------------------------------- rows, for the terminal and for Markdown


def _method_rows(records: Iterable[Record], data_set: str) -> Iterator[list[str]]:
    """Title, "ours" | "paper" | "companion", and one text per imbalance, for every line of a data set."""
    ours = summaries(records)
    for method, title in table1.METHODS.items():
        cells = [(data_set, imbalance, method) for imbalance in table1.IMBALANCES]
        yield [title, "ours", *(_text(ours.get(cell)) for cell in cells)]
        sources = [published(cell) for cell in cells]
        for source in ("paper", "companion"):
            if any(source in found for found in sources):
                yield ["", source, *(_printed(found.get(source)) for found in sources)]


def below_table(records: Iterable[Record]) -> Table:
    """Ours and the companion's for every row under the line."""
    ours = summaries(records)
    cells = [(*table1.BELOW_CELL, method) for method in table1.BELOW]
    rows = [[title_of(cell[2]), _text(ours.get(cell)), _printed(published(cell).get("companion"))] for cell in cells]
    data_set, imbalance = table1.BELOW_CELL
    title = f"Under the line: {table1.DATA_SETS[data_set]} at {imbalance}"
    return Table(["method", "ours", "companion"], rows, title=title)


def missing(records: Iterable[Record]) -> str:
    """The cells without a run, in a sentence."""
    have = by_cell(records)
    parts = []
    for data_set in table1.DATA_SETS:
        absent = {
            imbalance: [title for name, title in table1.METHODS.items() if (data_set, imbalance, name) not in have]
            for imbalance in table1.IMBALANCES
        }
        whole = [str(i) for i, titles in absent.items() if len(titles) == len(table1.METHODS)]
        if whole:
            parts.append(f"{table1.DATA_SETS[data_set]} at {', '.join(whole)}")
        parts += [
            f"{table1.DATA_SETS[data_set]} at {i}: {', '.join(titles)}"
            for i, titles in absent.items()
            if titles and str(i) not in whole
        ]
    below = [title for name, title in table1.BELOW.items() if (*table1.BELOW_CELL, name) not in have]
    if below:
        parts.append("under the line: " + "; ".join(below))
    return f"Not run yet: {'. '.join(parts)}." if parts else "Every cell has been run."


def _column(data_set: str, imbalance: int) -> str:
    return f"{table1.DATA_SETS[data_set]}, {imbalance}"


def _text(value: Summary | None) -> str:
    return UNKNOWN if value is None else str(value)


def _printed(value: Published | None) -> str:
    return UNKNOWN if value is None else plus_minus(*value)


# -------------------------------------------------------------------- Markdown


def compact(records: Sequence[Record]) -> str:
    """For the README: ours / the paper's, a row a method."""
    ours = summaries(records)
    header = ["ours / paper"]
    header += [_column(data_set, i) for data_set in table1.DATA_SETS for i in table1.IMBALANCES]
    rows = []
    for method, title in table1.METHODS.items():
        row = [title]
        for data_set in table1.DATA_SETS:
            for imbalance in table1.IMBALANCES:
                cell = (data_set, imbalance, method)
                printed = ", ".join(plus_minus(mean) for mean, _ in published(cell).values()) or UNKNOWN
                row.append(f"{_text(ours.get(cell))} / {printed}")
        rows.append(row)
    return f"{Table(header, rows)}\n\n{missing(records)}"


def whole(records: Sequence[Record]) -> str:
    """For results/README.md: the table, the rows under the line, groups of classes, where the numbers come from."""
    parts = [f"{missing(records)} Mean ± standard deviation (n runs); published: mean ± standard error of three runs."]
    header = ["method", "", *(f"imbalance {i}" for i in table1.IMBALANCES)]
    for data_set, title in table1.DATA_SETS.items():
        parts += [f"### {title}", str(Table(header, list(_method_rows(records, data_set)), left=2))]
    below = below_table(records)
    parts += [
        f"### {below.title}",
        str(below),
        "### Many, medium and few",
        "Mean accuracy of the classes with more than 100, 20 to 100, and fewer than 20 training images, and how far "
        "p(y) is from uniform (total variation; – for sigmoids, whose p(y) does not add up to 1).",
        groups(records),
        "### Where the numbers come from",
        provenance(records),
        draws(records),
    ]
    return "\n\n".join(parts)


def groups(records: Sequence[Record]) -> str:
    """A row a cell that has runs: accuracy by group, total variation of p(y), n."""
    cells = by_cell(records)
    rows = []
    for cell in all_cells():
        if cell in cells:
            runs = [group_accuracies(record) for record in cells[cell]]
            distance = mean_std((total_variation(record.marginal) for record in cells[cell]), digits=2)
            columns = [mean_std(run[name] for run in runs) for name in ("many", "medium", "few")]
            rows.append([_column(*cell[:2]), title_of(cell[2]), *columns, distance, str(len(runs))])
    return str(Table(["data", "method", "many", "medium", "few", "p(y) from uniform", "n"], rows, left=2))


def provenance(records: Iterable[Record]) -> str:
    """On what, with what and how long: a row for runs of equal length, made alike."""
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        versions = [f"torch {record.versions['torch']}"]
        if "cudnn" in record.versions:
            versions.append(f"cuDNN {record.versions['cudnn']}")
        device, commit = record.hardware["device"], (record.commit or "unknown")[:7]
        made: tuple[str, ...] = (device, ", ".join(versions), _engine(record.engine), commit, f"{record.iterations:,}")
        alike.setdefault(made, []).append(record)
    rows = []
    for made, runs in sorted(alike.items()):
        each = [record.seconds / record.together for record in runs]
        together = sorted({record.together for record in runs})
        rows.append([*made, str(len(runs)), ", ".join(map(str, together)), f"{statistics.median(each):.0f}"])
    header = ["device", "versions", "engine", "commit", "iterations", "runs", "together", "seconds a run"]
    note = "Seconds a run: the time of a group of runs over the runs in it, evaluation included, the median of the row."
    return f"{Table(header, rows, left=4)}\n\n{note}"


def _engine(engine: Mapping[str, Any]) -> str:
    words = [str(engine.get("precision", "unknown precision"))]
    parts = (("cuda_graph", "CUDA graph"), ("compiled", "compiled"), ("fused", "fused kernels"))
    words += [word for key, word in parts if engine.get(key)]
    if "deterministic" in engine:
        words.append("deterministic kernels" if engine["deterministic"] else "kernels chosen by timing")
    return ", ".join(words)


def draws(records: Iterable[Record]) -> str:
    """The training sets: how many images, and the names of the draw and of its pixels."""
    columns = {(record.data_set, record.imbalance): record for record in records}
    rows = []
    for data_set in table1.DATA_SETS:
        for imbalance in table1.IMBALANCES:
            if (data_set, imbalance) in columns:
                one = columns[data_set, imbalance]
                sizes = [f"{sum(one.counts):,}", f"{max(one.counts):,}", f"{min(one.counts):,}"]
                rows.append([_column(data_set, imbalance), *sizes, f"`{one.draw}`", f"`{one.pixels}`"])
    return str(Table(["data", "images", "largest class", "smallest", "draw", "pixels"], rows))


def difference_table(records: Sequence[Record]) -> str:
    """For docs/table1.md: every cell that has runs beside what was published for it, then what to make of it."""
    found = differences(records)
    rows = [
        [
            _column(*one.cell[:2]),
            title_of(one.cell[2]),
            one.source,
            str(one.ours),
            _printed(one.theirs),
            _signed(one.points),
            UNKNOWN if one.standard_error is None else f"{one.standard_error:.1f}",
        ]
        for one in found
    ]
    header = ["data", "method", "published in", "ours", "published", "difference", "standard error"]
    return "\n\n".join([str(Table(header, rows, left=3)), _verdict(found, records)])


def _verdict(found: Sequence[Difference], records: Sequence[Record]) -> str:
    if not found:
        return missing(records)
    points = [one.points for one in found if one.source == "paper"] or [one.points for one in found]
    text = (
        f"Over the {len(points)} cells of the table that have a run, ours is {_signed(statistics.mean(points))} points "
        f"from the paper on average, {_signed(min(points))} to {_signed(max(points))}. {missing(records)}"
    )
    pooled = pooled_std(summaries(records).values())
    if pooled is None:
        return (
            f"{text}\n\nEvery cell has one run so far. How much a number moves from seed to seed is therefore not "
            "known, and none of these differences can be told from chance yet."
        )
    beyond = [
        f"- {table1.DATA_SETS[one.cell[0]]} at {one.cell[1]}, {title_of(one.cell[2])}: {_signed(one.points)} against "
        f"the {one.source}, {abs(one.points) / (one.standard_error or math.inf):.1f} standard errors"
        for one in found
        if one.beyond
    ]
    text += f"\n\nThe standard deviation between seeds, pooled over the cells with several, is {pooled:.2f} points."
    return text + (
        "\n\nBeyond two standard errors:\n\n" + "\n".join(beyond)
        if beyond
        else " No difference is beyond two standard errors."
    )


def _signed(value: float) -> str:
    """With its sign, which zero does not have.

    >>> _signed(-0.31), _signed(0.28), _signed(-0.01)
    ('−0.3', '+0.3', '0.0')
    """
    text = plus_minus(value, sign=True)
    return "0.0" if text in ("+0.0", "−0.0") else text


def choices_table(choices: Sequence[Record]) -> str:
    """For docs/table1.md: what hyper-parameters are chosen from, judged on held-out training images."""
    if not choices:
        return "No run that a choice could be made from is recorded yet."
    rows = []
    for cell, runs in by_cell(choices).items():
        recipe = runs[0].recipe
        options = ", ".join(f"{name} {value}" for name, value in recipe["options"].items()) or UNKNOWN
        nesterov = "on" if recipe["nesterov"] else "off"
        accuracy = mean_std(record.balanced_accuracy for record in runs)
        rows.append([_column(*cell[:2]), title_of(cell[2]), options, nesterov, accuracy, str(len(runs))])
    return str(Table(["data", "method", "options", "Nesterov", "balanced accuracy", "n"], rows, left=4))


def distances_table(records: Sequence[Record]) -> str:
    """Beside the figure: how far p(y) is from uniform, with the number of runs."""
    cells = by_cell(records)
    imbalances = sorted(table1.IMBALANCES)
    rows = []
    for method in DRAWN:
        runs = [cells.get((DRAWN_ON, imbalance, method), []) for imbalance in imbalances]
        distances = ([total_variation(run.marginal) for run in group] for group in runs)
        rows.append([title_of(method), *(mean_std(group, digits=2, n=True) for group in distances)])
    return str(Table(["total variation from uniform", *(f"imbalance {i}" for i in imbalances)], rows))


def causes_table(records: Sequence[Record], tried: Sequence[Record]) -> str:
    """For docs/table1.md: runs with one thing changed, beside the same cell of the table and what was published."""
    from equipoise.experiments.table1 import causes  # recipes: they need torch

    as_printed, changed = summaries(records), {record.key: record.top1 for record in tried}
    rows, not_run = [], []
    for cause in causes.CAUSES:
        name, method = _column(*cause.cell[:2]), title_of(cause.cell[2])
        results = [changed[key] for run in cause.runs if (key := f"{causes.NAME}/{run}") in changed]
        if not results:
            not_run.append(f"{method} on {name}: {cause.title}")
            continue
        theirs = ", ".join(_printed(value) for value in published(cause.cell).values())
        rows.append([name, method, cause.title, str(Summary.of(results)), _text(as_printed.get(cause.cell)), theirs])
    header = ["data", "method", "changed", "with it", "in the table", "published"]
    parts = [str(Table(header, rows, left=3))] if rows else []
    if not_run:
        parts.append(f"Not run yet: {'; '.join(not_run)}.")
    return "\n\n".join(parts)


# -------------------------------------------------------------------- what `equipoise table` shows and writes

FIGURE = "docs/images/table1-marginal.png"


def read(results: Path) -> list[Record]:
    """The runs that the table shows."""
    return shown(read_records(results, table1.NAME))


def shown_tables(records: Sequence[Record]) -> list[Table]:
    """A table per data set, and the rows under the line."""
    header = ["method", "", *map(str, table1.IMBALANCES)]
    return [
        *(
            Table(header, list(_method_rows(records, name)), left=2, title=f"{title}: top-1, %, by imbalance")
            for name, title in table1.DATA_SETS.items()
        ),
        below_table(records),
    ]


def notes(records: Sequence[Record]) -> list[str]:
    return [
        "ours: mean ± standard deviation (n runs); published: mean ± standard error of three runs",
        missing(records),
    ]


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    records = read(results)
    choices: list[Record] = read_records(results, "choices")
    tried: list[Record] = read_records(results, "causes")
    engine = json.loads((root / "results/benchmarks/cifar-engine-h200.json").read_text())
    parts = {
        "README.md": {"table1": compact(records), "table1-distances": distances_table(records)},
        "results/README.md": {"table1": whole(records)},
        "docs/table1.md": {
            "table1-differences": difference_table(records),
            "table1-causes": causes_table(records, tried),
            "table1-distances": distances_table(records),
            "table1-below": str(below_table(records)),
            "table1-choices": choices_table(choices),
        },
        "docs/lab-notes.md": {"cifar-engine": engine_notes(engine), "cifar-speeds": speed_table(records)},
    }
    return tables.filled(root, parts)


def draw(root: Path, results: Path) -> list[Path]:
    """Draw p(y) and write it where the documents show it; the picture carries the name of what it shows."""
    panels = marginals(read(results))
    return [save(figure(panels), root / FIGURE, note=marginals_digest(panels))]
