"""What `equipoise train` advises before it starts and shows at the end: the page, the table, what to use, and how."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console

from equipoise.cli.image_sources import files_of
from equipoise.cli.options import KINDS
from equipoise.cli.train import TrainOptions
from equipoise.data.images import ImageList
from equipoise.data.reading import visible
from equipoise.metrics.evaluation import percent
from equipoise.metrics.judging import Judged, judge
from equipoise.models.classifiers import OWN
from equipoise.prior import Prior
from equipoise.report.changes import changes, sure
from equipoise.report.curves import draw_curves
from equipoise.report.page import TITLE, Report
from equipoise.report.page_data import Headline, Model, headline_rows, headlines
from equipoise.report.tables import Table
from equipoise.training.image_records import ImageRecord, in_full
from equipoise.training.records import read_lines
from equipoise.training.run_folder import export_run, method_folders

FEW = 5_000  # training images: with fewer, a network that starts from random weights learns little
HEADS = ("method", "top-1", "balanced", "many", "medium", "few")

Scores = Mapping[str, Mapping[str, Headline | None]]


def few_images(number: int, model: str) -> str:
    """Advice before training a model from random weights; empty if there are enough images.

    >>> few_images(400, "resnet50")
    '400 images are few for a network that starts from random weights: consider --weights pretrained, and --freeze'
    >>> few_images(5_000, "resnet50")
    ''
    """
    if number >= FEW:
        return ""
    return (
        f"{number:,} images are few for a network that starts from random weights: consider {pretrained(model)}, "
        "and --freeze"
    )


def pretrained(model: str) -> str:
    """The options for a trained backbone; this library's own networks have none.

    >>> pretrained("resnet50"), pretrained("cifar_resnet20")
    ('--weights pretrained', '--model resnet18 --weights pretrained')
    """
    return "--model resnet18 --weights pretrained" if model in OWN else "--weights pretrained"


def conclude(
    options: TrainOptions, table: str, wanted: Sequence[str], test: ImageList, as_json: bool
) -> dict[str, ImageRecord]:
    """The page that compares what was trained, the curves, and a table; the records of what was wanted."""
    lines = read_lines(options.out / "records.jsonl", KINDS) if (options.out / "records.jsonl").is_file() else ()
    records = {one.method: one for one in lines if isinstance(one, ImageRecord) and one.table == table}
    records = {name: records[name] for name in wanted if name in records}
    if not records:
        return {}
    for name in records:
        if options.export and not (options.out / name / "model.pt2").is_file():
            export_run(options.out / name)
    results = {name: judged(options.out / name, record) for name, record in records.items()}
    title = TITLE if len(results) > 1 else "The tail"
    made = Report(results, title=title, paths=files_of(test))
    page = made.save(options.out / "report.html")
    draw_curves(records, options.out / "curves.svg")
    scores = {model.name: headlines(model) for model in made.models}
    one = next(iter(records.values()))
    doubts = no_better(scores, one.class_names, one.total, one.evaluated_on)
    doubts += [remedy(options)] if doubts else []
    if as_json:
        for text in doubts:
            told_as_json(text)
        for name, record in records.items():
            typer.echo(json.dumps({"method": name} | numbers_of(record, scores[name])))
        return records
    where = in_full(one.evaluated_on)
    rows = headline_rows((name, [*found.values()]) for name, found in scores.items())
    Table(HEADS, rows, title=f"Accuracy on {where}, %, with 95 % intervals").print(Console())
    for text in doubts:
        typer.echo(visible(text))
    typer.echo(f"page: {visible(page)}")
    best, which = choice(made.models, where)
    method = f" --method {best}" if len(method_folders(options.out)) > 1 else ""
    typer.echo(f"to use {which}: equipoise predict {visible(options.out)}{method} PHOTO")
    return records


def judged(folder: Path, record: ImageRecord) -> Judged:
    """What a method's predictions are worth."""
    with np.load(folder / "predictions.npz") as file:
        prior = Prior.from_counts(record.counts, class_names=record.class_names)
        mean: Any = str(file["logits_mean"])
        return judge(file["logits"], file["labels"], prior, logits_mean=mean)


def choice(models: Sequence[Model], where: str) -> tuple[str, str]:
    """The method to use, and how it is called: the first one of equals, and with a doubt if its lead may be chance."""
    ranked = sorted(models, key=lambda model: -_balanced(model))  # stable: of equals, the one that was asked for first
    best = ranked[0]
    if len(ranked) == 1:
        return best.name, "it"
    if _balanced(best) == _balanced(ranked[1]):
        others = ", ".join(model.name for model in ranked[1:] if _balanced(model) == _balanced(best))
        return best.name, f"{best.name} (tied with {others} on {where} by balanced accuracy)"
    lead = changes(ranked[1], best, []).headline["balanced"]
    doubt = "" if lead is not None and sure(lead) else ", which may be chance"
    return best.name, f"{best.name}, the best on {where} by balanced accuracy{doubt}"


def _balanced(model: Model) -> float:
    found = headlines(model)["balanced"]
    return found.value if found is not None else float("nan")


def no_better(scores: Scores, class_names: Sequence[str], total: Sequence[int], evaluated_on: str) -> list[str]:
    """What shows that no method learned anything: always answering one class, or guessing, is as good.

    >>> found = {"softmax": {"top1": Headline(0.3, 0.2, 0.4), "balanced": Headline(0.5, 0.3, 0.7)}}
    >>> for text in no_better(found, ["cat", "owl"], [40, 60], "held_out"):
    ...     print(text)
    WARNING: no method beats always answering owl: 60.0 % of the held-out images are owl, the best top-1 is 30.0 %
    WARNING: no balanced accuracy is above chance: 50.0 % at best (95 %: 30.0 to 70.0), and guessing gives 50.0 %
    """
    found = []
    common, name = max(total) / max(sum(total), 1), class_names[int(np.argmax(total))]
    top1 = max(one.value for score in scores.values() if (one := score["top1"]) is not None)
    if top1 <= common:
        where = in_full(evaluated_on).removesuffix(" images")
        found.append(
            f"WARNING: no method beats always answering {name}: {percent(common)} % of the {where} images are {name}, "
            f"the best top-1 is {percent(top1)} %"
        )
    balanced = [one for score in scores.values() if (one := score["balanced"]) is not None]
    guessing = 1 / sum(number > 0 for number in total)
    if balanced and all(one.low <= guessing for one in balanced):
        best = max(balanced, key=lambda one: one.value)
        found.append(
            f"WARNING: no balanced accuracy is above chance: {percent(best.value)} % at best (95 %: "
            f"{percent(best.low)} to {percent(best.high)}), and guessing gives {percent(guessing)} %"
        )
    return found


def remedy(options: TrainOptions) -> str:
    """What to try if nothing was learned."""
    if options.iterations is not None:
        return "this was a smoke test: leave --iterations out to train a model"
    if options.weights is None:
        return (
            f"try {pretrained(options.model)}, which starts from a trained backbone (with --freeze, in seconds), or "
            f"more --epochs (these were {options.epochs:g})"
        )
    freeze = " without --freeze, or" if options.freeze else ""
    return f"try{freeze} more --epochs (these were {options.epochs:g}), a larger --size, or another --model"


def numbers_of(record: ImageRecord, scores: Mapping[str, Headline | None]) -> dict[str, Any]:
    """Accuracies in percent, for programs, and the 95 % intervals of those that there are."""
    columns = {"top1": "top1", "balanced_accuracy": "balanced", "many": "many", "medium": "medium", "few": "few"}
    found = {column: scores[name] for column, name in columns.items()}
    ends = {column: [round(100 * v.low, 4), round(100 * v.high, 4)] for column, v in found.items() if v is not None}
    return {column: getattr(record, column) for column in columns} | {"intervals": ends}


def told_as_json(text: str) -> None:
    """Say something as a line of JSON."""
    typer.echo(json.dumps({"message": text}))
