"""Tiny-ImageNet-LT from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from equipoise.experiments.table1.report import total_variation
from equipoise.experiments.tiny_imagenet_lt.figure import bars, bars_digest, figure
from equipoise.report import tables
from equipoise.report.figures import save
from equipoise.report.tables import Table, grouped, low_to_high, mean_std, versions_in_words
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
FIGURE = "docs/images/tiny-imagenet-lt.png"


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


def short_table(records: Sequence[ImageRecord]) -> Table:
    """Both ends of the table, as a short version."""
    header = ["accuracy, %", "all", "many (over 100)", "medium", "few (under 20)", "seeds"]
    ends = {name: METHODS[name] for name in ("softmax", "softmax_adjusted", "balanced_softmax")}
    return Table(header, rows_of(records, ends, COLUMNS))


def ways_table(records: Sequence[ImageRecord]) -> Table:
    """The usual first changes side by side: the loss's weights, the sampler, the prior."""
    ways = {
        "softmax": "cross-entropy",
        "cbw": "class weights 1/n",
        "cbs": "class-balanced sampler",
        "softmax_adjusted": "cross-entropy, adjusted afterwards",
        "balanced_softmax": "Balanced Softmax",
    }
    header = ["accuracy, %", "all classes", "few (under 20 images)", "seeds"]
    return Table(header, rows_of(records, ways, ("top1", "few")))


def part(records: Sequence[ImageRecord]) -> str:
    """The table under its heading."""
    if not records:
        return "Not run yet."
    one, counts = records[0], records[0].counts
    missing = [title for name, title in METHODS.items() if all(run.method != name for run in records)]
    trained = [run for run in records if run.recipe["backbone"] is None]
    speeds = [run.images_per_second * run.together for run in trained]
    lines = [
        f"{sum(counts):,} training images of {len(counts)} classes, {max(counts)} down to {min(counts)}; tested on "
        f"{sum(one.total):,} images. Accuracy of the last iterate in percent, mean ± standard deviation over n seeds."
        + (f" Not run yet: {', '.join(missing)}." if missing else ""),
        str(methods_table(records)),
        *notes(records),
        f"{one.hardware['device']}, {versions_in_words(one.versions, torch='torch')}; {low_to_high(speeds)} images per "
        "second over whole runs.",
    ]
    return "\n\n".join(lines)


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
        f"Balanced Softmax beside Softmax of the same seed: top-1 {gain('top1')}, many {gain('many')}, medium "
        f"{gain('medium')}, few {gain('few')} (to {few:.1f}) points over {len(seeds)} "
        f"{'seed' if len(seeds) == 1 else 'seeds'}."
    ]


# -------------------------------------------------------------------- what `equipoise table` shows and writes


def read(results: Path) -> list[ImageRecord]:
    """The runs."""
    return read_records(results, NAME, ImageRecord)


def shown_tables(records: Sequence[ImageRecord]) -> list[Table]:
    return [methods_table(records)]


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    records = read(results)
    parts = {
        "results/README.md": {NAME: part(records)},
        "README.md": {
            f"{NAME}-short": f"{short_table(records)}\n\nMean ± standard deviation over seeds, the last iterate.",
            f"{NAME}-ways": str(ways_table(records)),
        },
        "docs/integrations.md": {f"{NAME}-ways": str(ways_table(records))},
    }
    return tables.filled(root, parts)


def draw(root: Path, results: Path) -> list[Path]:
    """Draw before and after where the README shows it; the picture carries the digest of what it shows."""
    found = bars(read(results))
    return [save(figure(found), root / FIGURE, note=bars_digest(found))]
