"""Table 1 and what was measured around it, as the documents show it.

difference   ours − published; its standard error is √(s²/n + e²), with the published standard error e and the
             cell's standard deviation s. Fewer than three runs say too little about s: it is then pooled over the
             cells with n > 1, s² = Σ (n − 1) s_cell² / Σ (n − 1)
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equipoise.experiments.documents.cifar_engine import engine_notes, fused_kernels, kernel_table, speed_table
from equipoise.experiments.documents.marks import filled
from equipoise.experiments.documents.table1_figure import DRAWN, DRAWN_ON, figure, marginals, marginals_digest
from equipoise.experiments.record.published import NEXT, TEACHERS
from equipoise.experiments.table1 import published as table1
from equipoise.experiments.table1.published import title_of
from equipoise.experiments.table1.report import (
    Cell,
    Published,
    accuracies,
    below_table,
    by_cell,
    data_set_table,
    later_cells,
    later_missing,
    later_table,
    missing,
    printed,
    published,
    read,
    total_variation,
)
from equipoise.prior import Prior
from equipoise.report.figures import save
from equipoise.report.tables import UNKNOWN, Table, grouped, mean_std, plus_minus, versions_in_words
from equipoise.training.records import Record, read_records

FIGURE = "docs/images/table1-marginal.png"
SHORT_METHODS = ("softmax", "cbw", "cbs", "ldam", "balanced_softmax")  # of the README
SHORT_COLUMNS = (("cifar10-lt", 100), ("cifar100-lt", 100))


class Difference(NamedTuple):
    """A cell beside one published number. `standard_error` is None while the spread between seeds is not known."""

    cell: Cell
    source: str
    ours: Sequence[float]
    theirs: Published
    points: float
    standard_error: float | None


def pooled_std(cells: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation between seeds, pooled over the cells with several; None if there is none.

    >>> round(pooled_std([[44.7, 45.0, 45.3], [49.6, 50.0, 50.4], [60.0]]), 4)
    0.3536
    """
    several = [cell for cell in cells if len(cell) > 1]
    if not several:
        return None
    squares = sum((len(cell) - 1) * statistics.variance(cell) for cell in several)
    return math.sqrt(squares / sum(len(cell) - 1 for cell in several))


def differences(records: Iterable[Record]) -> list[Difference]:
    """Every cell with a run beside every number published for it, in the order of the table."""
    ours = accuracies(records)
    pooled = pooled_std(ours.values())
    found = []
    for cell in all_cells():
        for source, theirs in published(cell).items() if ours[cell] else ():
            runs = ours[cell]
            std = pooled if len(runs) < 3 else statistics.stdev(runs)
            error = None if std is None else math.hypot(std / math.sqrt(len(runs)), theirs[1])
            found.append(Difference(cell, source, runs, theirs, statistics.mean(runs) - theirs[0], error))
    return found


def all_cells() -> list[Cell]:
    """Every cell of the table, column by column, then the further rows and those of the later imbalance."""
    table = [(*column, method) for column in table1.COLUMNS for method in table1.METHODS]
    return table + [(*table1.BELOW_CELL, method) for method in table1.BELOW] + later_cells()


def group_accuracy(record: Record, group: str) -> float | None:
    """Mean accuracy in percent of the classes with many, medium or few training images; None for an empty group."""
    members = Prior.from_counts(record.counts).groups().get(group)
    accuracy = 100 * np.asarray(record.correct) / np.asarray(record.total)
    return None if members is None else float(accuracy[members].mean())


def _column(data_set: str, imbalance: int) -> str:
    return f"{table1.DATA_SETS[data_set]}, {imbalance}"


def compact(records: Sequence[Record], methods: Iterable[str], columns: Iterable[tuple[str, int]]) -> Table:
    """Ours / the paper's, one row per method."""
    ours, columns = accuracies(records), list(columns)

    def text(cell: Cell) -> str:
        theirs = ", ".join(plus_minus(mean) for mean, _ in published(cell).values()) or UNKNOWN
        return f"{mean_std(ours[cell], n=True)} / {theirs}"

    header = ["ours / paper", *(_column(*column) for column in columns)]
    return Table(header, [[title_of(name), *(text((*column, name)) for column in columns)] for name in methods])


def whole(records: Sequence[Record]) -> str:
    """For results/README.md: the table, the further rows, groups of classes, where the numbers come from."""
    parts = [f"{missing(records)} Mean ± standard deviation (n runs); published: mean ± standard error of three runs."]
    for data_set, title in table1.DATA_SETS.items():
        parts += [f"### {title}", str(data_set_table(records, data_set, "imbalance {}"))]
    below, later = below_table(records), later_table(records)
    parts += [
        f"### {below.title}",
        str(below),
        f"### {later.title}",
        str(later),
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
    """A row per cell that has runs: accuracy by group, total variation of p(y), n."""
    cells, names = by_cell(records), ("many", "medium", "few")
    rows = []
    for cell in all_cells():
        if runs := cells.get(cell):
            distance = mean_std((total_variation(run.marginal) for run in runs), digits=2)
            columns = [mean_std(group_accuracy(run, name) for run in runs) for name in names]
            rows.append([_column(*cell[:2]), title_of(cell[2]), *columns, distance, str(len(runs))])
    return str(Table(["data", "method", "many", "medium", "few", "p(y) from uniform", "n"], rows, left=2))


def provenance(records: Iterable[Record]) -> str:
    """On what, with what and how long: a row for runs of equal length, made alike."""

    def made(record: Record) -> tuple[str, ...]:
        versions = versions_in_words(record.versions, torch="torch", cudnn="cuDNN")
        commit = (record.commit or "unknown")[:7]
        return record.hardware["device"], versions, _engine(record), commit, f"{record.iterations:,}"

    rows = []
    for alike, runs in sorted(grouped(records, made).items()):
        each = [record.seconds / record.together for record in runs]
        together = sorted({record.together for record in runs})
        rows.append([*alike, str(len(runs)), ", ".join(map(str, together)), f"{statistics.median(each):.0f}"])
    header = ["device", "versions", "engine", "commit", "iterations", "runs", "together", "seconds per run"]
    note = "Seconds per run: the time of a group of runs over the runs in it, with evaluation; the row's median."
    return f"{Table(header, rows, left=4)}\n\n{note}"


def _engine(record: Record) -> str:
    engine = record.engine
    words = [str(engine.get("precision", "unknown precision"))]
    words += [word for key, word in (("cuda_graph", "CUDA graph"), ("compiled", "compiled")) if engine.get(key)]
    words += [fused] if (fused := fused_kernels(record)) else []
    if "deterministic" in engine:
        words.append("deterministic kernels" if engine["deterministic"] else "kernels chosen by timing")
    return ", ".join(words)


def draws(records: Iterable[Record]) -> str:
    """The training sets: how many images, and the names of the draw and of its pixels."""
    runs = {(record.data_set, record.imbalance): record for record in records}
    rows = []
    for column in (*table1.COLUMNS, *table1.LATER_COLUMNS):
        if one := runs.get(column):
            sizes = [f"{size:,}" for size in (sum(one.counts), max(one.counts), min(one.counts))]
            rows.append([_column(*column), *sizes, f"`{one.draw}`", f"`{one.pixels}`"])
    return str(Table(["data", "images", "largest class", "smallest", "draw", "pixels"], rows))


def later_part(records: Sequence[Record]) -> str:
    """For docs/table1.md: the imbalance that the paper does not have, and what of it was not run."""
    absent = later_missing(by_cell(records))
    words = [f"Not run yet: {'; '.join(absent)}."] if absent else []
    return "\n\n".join([str(later_table(records)), *words])


def difference_table(records: Sequence[Record]) -> str:
    """For docs/table1.md: every cell that has runs beside what was published for it, then what to make of it."""
    found = differences(records)
    rows = []
    for cell, source, ours, theirs, points, error in found:
        numbers = [mean_std(ours, n=True), printed(theirs), _signed(points), mean_std([error])]
        rows.append([_column(*cell[:2]), title_of(cell[2]), source, *numbers])
    header = ["data", "method", "published in", "ours", "published", "difference", "standard error"]
    return "\n\n".join([str(Table(header, rows, left=3)), _verdict(found, records)])


def _verdict(found: Sequence[Difference], records: Sequence[Record]) -> str:
    if not found:
        return missing(records)
    points = [one.points for one in found if one.source == "paper"] or [one.points for one in found]
    text = (
        f"Over the {len(points)} cells of the table that have a run, ours differs from the paper by "
        f"{_signed(statistics.mean(points))} points on average ({_signed(min(points))} to {_signed(max(points))}). "
        f"{missing(records)}"
    )
    pooled = pooled_std(accuracies(records).values())
    if pooled is None:
        return (
            f"{text}\n\nEvery cell has one run so far. How much a number moves from seed to seed is therefore not "
            "known, and none of these differences can be told from chance yet."
        )
    beyond = [
        f"- {table1.DATA_SETS[one.cell[0]]} at {one.cell[1]}, {title_of(one.cell[2])}: {_signed(one.points)} against "
        f"the {one.source}, {abs(one.points) / (one.standard_error or math.inf):.1f} standard errors"
        for one in found
        if one.standard_error is not None and abs(one.points) > 2 * one.standard_error
    ]
    text += f"\n\nThe standard deviation between seeds, pooled over the cells with several, is {pooled:.2f} points."
    if not beyond:
        return f"{text} No difference is beyond two standard errors."
    return "\n\n".join([text, "Beyond two standard errors:", "\n".join(beyond)])


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
        return "No run for choosing hyper-parameters is recorded yet."
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

    in_table, changed = accuracies(records), {record.key: record.top1 for record in tried}
    rows, not_run = [], []
    for cause in causes.CAUSES:
        name, method = _column(*cause.cell[:2]), title_of(cause.cell[2])
        results = [changed[key] for run in cause.runs if (key := f"{causes.NAME}/{run}") in changed]
        if not results:
            not_run.append(f"{method} on {name}: {cause.title}")
            continue
        theirs = ", ".join(printed(value) for value in published(cause.cell).values())
        both = [mean_std(values, n=True) for values in (results, in_table[cause.cell])]
        rows.append([name, method, cause.title, *both, theirs])
    header = ["data", "method", "changed", "with it", "in the table", "published"]
    parts = [str(Table(header, rows, left=3))] if rows else []
    if not_run:
        parts.append(f"Not run yet: {'; '.join(not_run)}.")
    return "\n\n".join(parts)


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    records = read(results)
    choices: list[Record] = read_records(results, "choices")
    tried: list[Record] = read_records(results, "causes")
    teachers: list[Record] = read_records(results, TEACHERS)
    of_next: list[Record] = read_records(results / NEXT.folder, TEACHERS)
    engine, kernels = (
        json.loads((root / f"results/benchmarks/cifar-{name}-h200.json").read_text()) for name in ("engine", "kernels")
    )
    parts = {
        "README.md": {"table1-short": str(compact(records, SHORT_METHODS, SHORT_COLUMNS))},
        "results/README.md": {"table1": whole(records)},
        "docs/table1.md": {
            "table1": f"{compact(records, table1.METHODS, table1.COLUMNS)}\n\n{missing(records)}",
            "table1-differences": difference_table(records),
            "table1-causes": causes_table(records, tried),
            "table1-distances": distances_table(records),
            "table1-below": str(below_table(records)),
            "table1-later": later_part(records),
            "table1-choices": choices_table(choices),
        },
        "docs/lab-notes.md": {
            "cifar-engine": engine_notes(engine),
            "cifar-speeds": speed_table([*records, *teachers, *of_next]),
            "cifar-kernels": kernel_table(kernels),
        },
    }
    return filled(root, parts)


def draw(root: Path, results: Path) -> list[Path]:
    """Draw p(y) and write it where the documents show it; the picture carries the name of what it shows."""
    panels = marginals(read(results))
    return [save(figure(panels), root / FIGURE, note=marginals_digest(panels))]
