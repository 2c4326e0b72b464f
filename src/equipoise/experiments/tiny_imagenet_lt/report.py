"""Tiny-ImageNet-LT from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from equipoise.data.reading import counted
from equipoise.experiments.table1.report import total_variation
from equipoise.report.tables import Table, grouped, mean_std
from equipoise.training.image_records import ImageRecord
from equipoise.training.records import read_records

NAME = "tiny-imagenet-lt"
METHODS = {
    "softmax": "Softmax",
    "cbw": "CBW",
    "cbs": "CBS",
    "ldam": "LDAM",
    "balanced_softmax": "Balanced Softmax",
    "softmax_adjusted": "Softmax, adjusted afterwards",
    "crt": "Softmax, then cRT",
    "lws": "Softmax, then LWS",
    "decoupled_balanced_softmax": "Softmax, then Balanced Softmax",
}
COLUMNS = ("top1", "many", "medium", "few")


def rows_of(records: Sequence[ImageRecord], titles: Mapping[str, str], columns: Sequence[str]) -> list[list[str]]:
    """One row per title: its method's numbers, then the number of seeds."""
    runs = grouped(records, lambda record: record.method)
    found = {title: runs.get(name, []) for name, title in titles.items()}
    return [
        [title, *(mean_std([getattr(run, column) for run in alike]) for column in columns), str(len(alike))]
        for title, alike in found.items()
    ]


def methods_table(records: Sequence[ImageRecord]) -> Table:
    """Every method: accuracies, the number of seeds, and how far p(y) is from uniform."""
    runs = grouped(records, lambda record: record.method)
    rows = []
    for row, name in zip(rows_of(records, METHODS, COLUMNS), METHODS, strict=True):
        away = mean_std([total_variation(run.marginal) for run in runs.get(name, ())], digits=2)
        rows.append([*row[:-1], away, row[-1]])
    header = ["method", "top-1", "many", "medium", "few", "p(y) from uniform", "n"]
    return Table(header, rows, title="Tiny-ImageNet-LT: accuracy, %")


def notes(records: Sequence[ImageRecord]) -> list[str]:
    """What the balanced loss changes, seed by seed."""
    runs = {(run.method, run.seed): run for run in records}
    seeds = sorted(seed for method, seed in runs if method == "balanced_softmax" and ("softmax", seed) in runs)
    if not seeds:
        return []

    def gain(column: str) -> str:
        after, before = (
            [getattr(runs[name, seed], column) for seed in seeds] for name in ("balanced_softmax", "softmax")
        )
        return mean_std([ours - plain for ours, plain in zip(after, before, strict=True)], sign=True)

    few = mean(runs["balanced_softmax", seed].few or 0 for seed in seeds)
    return [
        f"Balanced Softmax minus Softmax with the same seed, in points over {counted(len(seeds), 'seed')}: top-1 "
        f"{gain('top1')}, many {gain('many')}, medium {gain('medium')}, few {gain('few')} (to {few:.1f} %)."
    ]


# -------------------------------------------------------------------- what `equipoise table` shows


def read(results: Path) -> list[ImageRecord]:
    """The runs."""
    return read_records(results, NAME, ImageRecord)


def shown_tables(records: Sequence[ImageRecord]) -> list[Table]:
    return [methods_table(records)]
