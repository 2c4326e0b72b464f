"""Tiny-ImageNet-LT, as the documents show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.experiments.documents.marks import filled
from equipoise.experiments.documents.tiny_imagenet_lt_figure import bars, bars_digest, figure
from equipoise.experiments.tiny_imagenet_lt.report import COLUMNS, METHODS, NAME, methods_table, notes, read, rows_of
from equipoise.report.figures import save
from equipoise.report.tables import Table, low_to_high, versions_in_words
from equipoise.training.image_records import ImageRecord

FIGURE = "docs/images/tiny-imagenet-lt.png"
DEVIATION = "Mean ± standard deviation over seeds, after the last training step."


def short_table(records: Sequence[ImageRecord]) -> Table:
    """Both ends, for those who have a minute."""
    header = ["accuracy, %", "all", "many (over 100)", "medium", "few (under 20)", "seeds"]
    ends = {name: METHODS[name] for name in ("softmax", "softmax_adjusted", "balanced_softmax")}
    return Table(header, rows_of(records, ends, COLUMNS))


def ways_table(records: Sequence[ImageRecord]) -> Table:
    """What people change first, beside each other: the loss's weights, the sampler, the prior."""
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


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    records = read(results)
    parts = {
        "results/README.md": {NAME: part(records)},
        "README.md": {
            f"{NAME}-short": f"{short_table(records)}\n\n{DEVIATION}",
            f"{NAME}-ways": str(ways_table(records)),
        },
        "docs/integrations.md": {f"{NAME}-ways": str(ways_table(records))},
    }
    return filled(root, parts)


def draw(root: Path, results: Path) -> list[Path]:
    """Draw before and after where the README shows it; the picture carries the name of what it shows."""
    found = bars(read(results))
    return [save(figure(found), root / FIGURE, note=bars_digest(found))]
