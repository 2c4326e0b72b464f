"""The record, as the documents show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from equipoise.data.reading import read_json
from equipoise.experiments.documents.marks import filled
from equipoise.experiments.record import published
from equipoise.experiments.record.published import Factors
from equipoise.experiments.record.report import (
    NOTE,
    Column,
    Students,
    by_column,
    column_title,
    leaderboards,
    others,
    read,
    verdicts,
)
from equipoise.experiments.table1.report import shown
from equipoise.metrics.intervals import change_interval
from equipoise.report.tables import UNKNOWN, Table, grouped, low_to_high, mean_std, plus_minus
from equipoise.training.records import Record, read_records

GAPS, TEACHERS_MEASURED = "results/benchmarks/record-students.json", "results/benchmarks/record-teachers.json"
GAP_KINDS = {  # columns
    "trained": "trained on",
    "new": "new views",
    "unseen": "views of test images",
    "training": "training images",
    "test": "test images",
}


def cells_table(records: Sequence[Record], teachers: Sequence[Record]) -> Table:
    """A row per cell: the student beside its teachers, alone and together, and how long all of it took; or the teachers
    that are there before it."""
    best, known, ours, theirs, rows = published.best(), by_name(teachers), by_column(records), by_column(teachers), []
    for column in published.COLUMNS:
        runs = ours.get(column, [])
        if not runs and column not in theirs:
            continue
        singles = alone(runs, known) if runs else [teacher.top1 for teacher in theirs[column]]
        minutes = [found / 60 for run in runs if (found := _seconds(run, known)) is not None]
        rows.append(
            [
                column_title(column),
                mean_std((run.top1 for run in runs), digits=2, n=True),
                f"{best[column][0]:.1f}, {best[column][1]}",
                mean_std(singles, n=True),
                mean_std((run.teachers_top1 for run in runs), n=True),
                low_to_high(minutes, 1) if minutes else UNKNOWN,
            ]
        )
    header = ["data", "student", "best published", "a teacher", "teachers together", "minutes, all included"]
    return Table(header, rows, title="The students and their teachers")


def by_name(records: Iterable[Record]) -> dict[str, Record]:
    """The records by the names that students give their teachers."""
    return {record.key.removeprefix(f"{record.table}/"): record for record in records}


def alone(runs: Sequence[Record], teachers: dict[str, Record]) -> list[float]:
    """Top-1 of those teachers of these runs that have a record."""
    return [teachers[name].top1 for run in runs for name in run.teachers or {} if name in teachers]


def _seconds(run: Record, teachers: dict[str, Record]) -> float | None:
    """The seconds of a student and its teachers, as shares of their groups' time; None if a teacher has no record."""
    named = [teachers.get(name) for name in run.teachers or {}]
    if not all(named):
        return None
    return sum(one.seconds / one.together for one in (run, *named) if one is not None)


def ablation(tries: Sequence[Record], teachers: Sequence[Record] = ()) -> str:
    """For docs/lab-notes.md: one ingredient at a time, evaluated on held-out training images."""
    column, planned = published.CHOICES_CELL, published.CHOICES
    runs_of = grouped(by_column(tries).get(column, []), lambda record: record.method)
    known, rows = by_name(teachers), []
    for method, title in planned.items():
        if runs := runs_of.get(method):
            accuracy = mean_std((run.balanced_accuracy for run in runs), digits=2, n=True)
            taught = mean_std(run.teachers_top1 for run in runs)
            seconds = mean_std((run.seconds / run.together for run in runs), digits=0)
            rows.append([title, f"{runs[0].iterations:,}", accuracy, taught, mean_std(alone(runs, known)), seconds])
    if not rows:
        return "Not run yet."
    header = ["", "iterations", "balanced accuracy", "teachers together, top-1", "a teacher", "seconds"]
    parts = [_held_out(column, tries), str(Table(header, rows))]
    if missing := [title for method, title in planned.items() if method not in runs_of]:
        parts.append(f"Not run yet: {'; '.join(missing)}.")
    return "\n\n".join(parts)


def _held_out(column: Column, tries: Sequence[Record]) -> str:
    """On how many images the tries of a cell were evaluated."""
    return f"{column_title(column)}, evaluated on {sum(by_column(tries)[column][0].total):,} held-out training images."


KINDS = {  # of teachers
    "ema": "without mixing",
    "cutmix": "CutMix in half of their batches",
    "sam": "SAM, within 0.1",
}
SCORES = ("top1", "balanced_accuracy")
SHARES = {0.0: "none", 0.5: "half", 1.0: "all"}  # of a student's batches
AUGMENTATIONS = {"paper": "the paper's", "crop": "crops and flips"}  # of a student, besides CutMix
CHANGES: dict[str, tuple[str, Any, Any]] = {  # in words; the factor, its values before and after
    f"teachers: {KINDS['cutmix']}": ("teachers", "ema", "cutmix"),
    f"teachers: {KINDS['sam']}": ("teachers", "ema", "sam"),
    "student: CutMix in half of its batches, not in all": ("mixed", 1.0, 0.5),
    "student: CutMix in none of its batches, not in half": ("mixed", 0.5, 0.0),
    "student: learning rate 0.2, not 0.1": ("lr", 0.1, 0.2),
    "student: 37,000 iterations, not 18,500": ("iterations", 18_500, 37_000),
    "student: crops and flips, without AutoAugment and Cutout": ("augmentation", "paper", "crop"),
}


def factors_part(tries: Sequence[Record], teachers: Sequence[Record] = ()) -> str:
    """For docs/lab-notes.md: students of three teachers, with and without each factor; and what each factor changed."""
    found = {
        column: {one: runs for one in every if (runs := _runs_of(tries, column, one.name))}
        for column, every in published.FACTORS.items()
    }
    columns = [column for column, runs in found.items() if runs]
    if not columns:
        return "Not run yet."
    titles = [column_title(column) for column in columns]
    every = dict.fromkeys(one for column in columns for one in found[column])
    rows = [
        [
            KINDS[one.teachers],
            SHARES[one.mixed],
            f"{one.lr:g}",
            f"{one.iterations:,}",
            AUGMENTATIONS[one.augmentation],
            *(_accuracy(found[column].get(one)) for column in columns),
        ]
        for one in every
    ]
    factors = ["teachers", "CutMix, student", "learning rate", "iterations", "augmentation"]
    parts = [
        " ".join(_held_out(column, tries) for column in columns),
        str(Table([*factors, *titles], rows, left=len(factors))),
        str(_effects_table(found, columns)),
        str(_threes_table(found, columns, by_name(teachers))),
    ]
    if missing := ["/".join(map(str, (*c, one.name))) for c, every in published.FACTORS.items() for one in every
                   if one not in found[c]]:  # fmt: skip
        parts.append(f"Not run yet, by the name for `--only`: {', '.join(missing)}.")
    return "\n\n".join(parts)


Found = Mapping[Column, Mapping[Factors, Sequence[Record]]]


def _runs_of(records: Sequence[Record], column: Column, method: str) -> list[Record]:
    return [record for record in by_column(records).get(column, []) if record.method == method]


def _accuracy(runs: Sequence[Record] | None) -> str:
    """The balanced accuracy, and in brackets the divergence from the teachers."""
    if not runs:
        return UNKNOWN
    divergence = mean_std((run.teachers_divergence for run in runs), digits=3)
    return f"{mean_std((run.balanced_accuracy for run in runs), digits=2)} ({divergence})"


def _effects_table(found: Found, columns: Sequence[Column]) -> Table:
    """How much the balanced accuracy changes between runs that differ in one factor."""
    rows = []
    for title, (factor, before, after) in CHANGES.items():
        changes = []
        for column in columns:
            runs = {one: mean(run.balanced_accuracy for run in every) for one, every in found[column].items()}
            pairs = [(one, replace(one, **{factor: after})) for one in runs if getattr(one, factor) == before]
            known = [runs[other] - runs[one] for one, other in pairs if other in runs]
            changes.append(", ".join(plus_minus(change, digits=2, sign=True) for change in known) or UNKNOWN)
        rows.append([title, *changes])
    rows.append(
        ["chance alone, if students erred independently (95 %)", *(_chance(found[column]) for column in columns)]
    )
    return Table(["change of one thing", *map(column_title, columns)], rows)


def _chance(found: Mapping[Factors, Sequence[Record]]) -> str:
    """How far two of these students would often differ by chance alone, as their held-out images are few."""
    first = [runs[0] for runs in found.values()]
    ends = [change_interval(a.correct, b.correct, a.total) for a, b in combinations(first, 2)]
    return f"± {max(50 * (high - low) for low, high in ends):.1f}" if ends else UNKNOWN


def _threes_table(found: Found, columns: Sequence[Column], teachers: dict[str, Record]) -> Table:
    """The three teachers of these students together and, where they have records, each alone."""
    rows = []
    for kind in dict.fromkeys(one.teachers for column in columns for one in found[column]):
        numbers = []
        for column in columns:
            runs = [run for one, every in found[column].items() if one.teachers == kind for run in every][:1]
            singles = alone(runs, teachers)
            together = mean_std(run.teachers_top1 for run in runs)
            numbers.append(f"{together} ({mean_std(singles)})" if singles else together)
        rows.append([KINDS[kind], *numbers])
    return Table(["three teachers together (alone), top-1", *map(column_title, columns)], rows)


def teachers_part(record: Mapping[str, Any]) -> str:
    """For docs/lab-notes.md: kinds of teachers, alone and together, from what benchmarks/record_teachers.py wrote."""
    rows = []
    for one in record["together"]:
        kinds = one["kinds"]
        alone = record["alone"][kinds[0]].values() if len(kinds) == 1 else ()
        singles = [mean_std(single[score] for single in alone) for score in SCORES]
        title = " + ".join(KINDS.get(kind.removeprefix("teacher_"), kind) for kind in kinds)
        rows.append([title, *singles, str(one["networks"]), *(f"{one[score]:.1f}" for score in SCORES)])
    header = ["teachers", "one: top-1", "one: balanced", "networks", "together: top-1", "together: balanced"]
    data_set, imbalance = record["cell"].split("/")
    where = f"{column_title((data_set, int(imbalance)))}, {record['images']:,} held-out training images."
    return f"{where}\n\n{Table(header, rows)}"


def first_part(records: Sequence[Record]) -> str:
    """For docs/lab-notes.md: what the record's first recipe reached on the test set."""
    cells = [
        f"{column_title(column)}: {mean_std((run.top1 for run in runs), digits=2, n=True)}, its teachers together "
        f"{mean_std((run.teachers_top1 for run in runs), digits=2)}"
        for column, runs in by_column(records).items()
    ]
    title = published.CHOICES["distilled_18500"]
    return f"On the test set the recipe of the row “{title}” reached: {'; '.join(cells)}." if cells else "Not run."


def gap_table(record: Mapping[str, Any]) -> Table:
    """How far students are from their teachers, from what benchmarks/record_students.py wrote."""
    rows = [
        [
            _student_title(one),
            *(_with_error(one[kind]["student"]) for kind in GAP_KINDS),
            f"{one['test']['teacher']['divergence']:.2f}",
            *(f"{100 * one['test'][who]['agreement']:.0f} %" for who in ("student", "teacher")),
        ]
        for one in record["students"]
    ]
    header = ["student", *GAP_KINDS.values(), "a teacher, test images", "same class", "a teacher, same class"]
    return Table(header, rows)


def _with_error(one: Mapping[str, float]) -> str:
    return f"{one['divergence']:.3f} ± {one['error']:.3f}"


def ensemble_table(record: Mapping[str, Any]) -> Table:
    """What more teachers add on held-out training images, where there are any; from the same file."""
    found = {_student_title(one): one["held_out"] for one in record["students"] if "held_out" in one}
    most = max(map(len, found.values()), default=0)
    rows = [[title, *(f"{accuracy:.1f}" for accuracy in accuracies)] for title, accuracies in found.items()]
    return Table(["teachers together", *map(str, range(1, most + 1))], rows)


def _student_title(one: Mapping[str, Any]) -> str:
    _, data_set, imbalance, _, seed = one["student"].split("/")
    return f"{column_title((data_set, int(imbalance)))}, seed {seed}"


def leaderboard_part(students: Students) -> str:
    return "\n\n".join([*verdicts(students), *map(str, leaderboards(students, linked=True)), NOTE])


def cells_part(records: Sequence[Record], teachers: Sequence[Record]) -> str:
    return str(cells_table(records, teachers)) if records or teachers else "Not run yet."


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the record, as it should read."""
    students, teachers = read(results), shown(read_records(results, published.TEACHERS))
    next_teachers = shown(read_records(results / published.NEXT.folder, published.TEACHERS))
    tries: list[Record] = read_records(results, published.TRIES)
    tried_teachers: list[Record] = read_records(results, published.TRIED_TEACHERS)
    first: list[Record] = read_records(results, published.FIRST, named=published.NAME)
    gaps = read_json(root / GAPS)
    parts = {
        "docs/record.md": {
            "record-leaderboard": leaderboard_part(students),
            "record-cells": cells_part(students.records, teachers),
            "record-next": cells_part(students.of_next, next_teachers),
            "record-others": "\n\n".join(map(str, others(linked=True))),
        },
        "docs/lab-notes.md": {
            "record-choices": ablation(tries, tried_teachers),
            "record-factors": factors_part(tries, tried_teachers),
            "record-teachers": teachers_part(read_json(root / TEACHERS_MEASURED)),
            "record-first": first_part(first),
            "record-students": f"{gap_table(gaps)}\n\n{ensemble_table(gaps)}",
        },
    }
    return filled(root, parts)
