"""`equipoise report`: models before and after, on a page; `equipoise evaluate`: the same numbers without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os.path import isabs
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.console import Console

from equipoise.cli.option_fields import Without, fields_as_options
from equipoise.cli.shared import counting_bar, given, print_json, refusing
from equipoise.data.reading import visible
from equipoise.report.groups import USUAL
from equipoise.report.tables import Table

if TYPE_CHECKING:
    from equipoise.data.predictions import Predictions
    from equipoise.prior import FloatArray, Prior
    from equipoise.report.multilabel_page import MultilabelReport
    from equipoise.report.page import Report


PredictionFiles = Annotated[
    list[Path],
    typer.Argument(
        help="Files of predictions to compare, in order: .npz with logits or probabilities [N, K] and labels [N], "
        "or .parquet or .csv with a label column and one column per class; - is stdin. Several labels per item: "
        "targets [N, K] of 0 and 1, lists of labels (cat;owl), or columns target_CLASS. Or the folder of a run "
        "that equipoise train wrote, which holds the counts too, or a folder of run records."
    ),
]
Label = Annotated[str | None, typer.Option(help="The label column of .parquet and .csv predictions.")]
Many = Annotated[int, typer.Option(metavar="N", help="Classes with more training items are many, or the head.")]
Few = Annotated[int, typer.Option(metavar="N", help="Classes with fewer training items are few, or the tail.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON instead of a table.")]


@dataclass(frozen=True)
class ReportOptions:
    """What a report is made from besides the files of predictions, and how."""

    counts: Annotated[
        Path | None,
        typer.Option(
            help="The training set: counts (.json list or {class: n}, .npy), labels, a folder of images, annotations."
        ),
    ] = None
    logits_mean: Annotated[
        list[str] | None,
        typer.Option(
            metavar="train|uniform",
            help="The prior that the predictions are for: train after a plain loss, uniform after a balanced one. Give "
            "it once, or once per file in the same order; train by default.",
        ),
    ] = None
    name: Annotated[list[str] | None, typer.Option(help="A model's name; one per file, in the same order.")] = None
    label: Label = None
    column: Annotated[str | None, typer.Option(help="The label column of --counts, if it is a table.")] = None
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="P|FILE.json",
            help="With several labels per item: the probability at which a label is predicted, or one per class. By "
            "default 0.5, or the thresholds of an .npz file.",
        ),
    ] = None
    many: Many = USUAL.many
    few: Few = USUAL.few
    images: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|none",
            help="The folder that `paths` in an .npz file are relative to, for pictures of the most confident "
            "mistakes, or of what is missed most. Absolute paths need no folder; none leaves all pictures out.",
        ),
    ] = None
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None

    page: ClassVar[bool] = True  # with a prior sweep

    @property
    def shared(self) -> dict[str, Any]:
        """What every page takes; each kind has a title of its own."""
        titled = {} if self.title is None else {"title": self.title}
        return {"many": self.many, "few": self.few} | titled


@dataclass(frozen=True)
class EvaluateOptions(ReportOptions):
    """The same for numbers without a page."""

    images: str | None = "none"
    page: ClassVar[bool] = False


@fields_as_options
def report(
    predictions: PredictionFiles,
    options: ReportOptions,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write every figure to this folder, as PNG and SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare models, class by class and from head to tail, on one self-contained HTML page.

    \bequipoise report softmax.npz balanced.npz --counts train_labels.npy
    equipoise report run/ce/predictions.npz run/balanced/predictions.npz --counts photos/train --images photos/val
    equipoise report a.parquet --counts counts.json --label species --many 500 --few 50 --json
    """
    with _read(predictions, options) as made:
        path = made.save(out)
        written = [] if figures is None else made.save_figures(figures)
    if as_json:
        print_json(made.to_dict() | {"page": str(path), "figures": [str(figure) for figure in written]})
        return
    _tell(made)
    typer.echo(f"page: {visible(path)} ({path.stat().st_size / 1e6:.1f} MB)")
    if written:
        typer.echo(f"figures: {len(written)} files in {visible(figures)}")


@fields_as_options
def evaluate(
    predictions: PredictionFiles,
    options: Annotated[EvaluateOptions, Without("logits_mean", "images", "title")],
    as_json: AsJson = False,
) -> None:
    """Print how good predictions are, overall and for classes with many, medium and few training items.

    The numbers of `equipoise report`, without its page.

    \bequipoise evaluate runs/first
    equipoise evaluate predictions.npz --counts train_labels.npy
    equipoise evaluate before.csv after.csv --counts photos/train --label species --json
    """
    with _read(predictions, options) as made:
        found = made.to_dict()
    if as_json:
        print_json(found)
        return
    _tell(made)


@contextmanager
def _read(predictions: list[Path], options: ReportOptions) -> Iterator[Report | MultilabelReport]:
    """The report of the files; an error in them, or in the block that uses the report, is one message."""
    with refusing():
        predictions = _expanded(predictions)
    named = predictions if options.counts is None else [*predictions, options.counts]
    with refusing(), given(named) as found:
        if any(path.is_dir() for path in predictions):
            yield _report_of_runs(predictions, options)
        else:
            yield _report_of_files(predictions, found, options)


def _expanded(predictions: list[Path]) -> list[Path]:
    """The files of predictions, with those in folders that `equipoise train` wrote; other folders as they are."""
    from equipoise.report.files import predictions_in

    nowhere = next((path for path in predictions if str(path) != "-" and not path.exists()), None)
    if nowhere is not None:
        raise ValueError(
            f"{nowhere} does not exist: expected a file of predictions (.npz, .parquet or .csv), or the folder of a run"
        )
    found = [(predictions_in(path) if path.is_dir() else []) or [path] for path in predictions]
    return [path for part in found for path in part]


def _tell(made: Report | MultilabelReport) -> None:
    _summary(made).print(Console())
    typer.echo(visible(made.conclusion()))
    for model in made.models:
        for note in model.notes:
            typer.echo(visible(f"{model.name}: {note}"))


def _report_of_runs(folders: list[Path], options: ReportOptions) -> Report:
    from equipoise.report.files import read_runs
    from equipoise.report.page import Report

    if len(folders) > 1:
        raise ValueError("a folder of run records cannot be combined with other inputs: pass it alone")
    passed = {
        "--counts": options.counts is not None,
        "--logits-mean": bool(options.logits_mean),
        "--name": bool(options.name),
        "--threshold": options.threshold is not None,
        "--images": options.images not in (None, "none"),
    }
    if any(passed.values()):
        names = " and ".join(name for name, given in passed.items() if given)
        raise ValueError(f"run records hold counts, names and losses, but no predictions: leave {names} out")
    return Report(read_runs(folders[0]), **options.shared)


def _report_of_files(given: list[Path], found: list[Path], options: ReportOptions) -> Report | MultilabelReport:
    """The page for the files that were `given`; `found` are their paths and, last, that of the counts, if any."""
    from equipoise.data.multilabel_predictions import open_either
    from equipoise.data.prediction_priors import training_prior
    from equipoise.report.files import prior_beside

    unfit = next((path for path in given if path.suffix.lower() == ".json"), None)
    if unfit is not None:
        raise ValueError(
            f"{unfit} is not a file of predictions: expected .npz, .parquet or .csv, or the folder of a run"
        )
    recorded = prior_beside(found) if options.counts is None else None
    if options.counts is None and recorded is None:
        raise ValueError(
            "--counts is missing: the class counts of the training set, e.g. --counts train_labels.npy, or the folder "
            "of training images"
        )
    means = _one_per_file(options.logits_mean or [], given, "--logits-mean", share=True)
    called = _one_per_file(options.name or [], given, "--name") or _names_of(given)
    unknown = [mean for mean in means if mean not in ("train", "uniform")]
    if unknown:
        raise ValueError(f"--logits-mean is {unknown[0]!r}: train after a plain loss, uniform after a balanced one")
    opened = [open_either(path, label=options.label) for path in found[: len(given)]]
    prior, where = recorded or training_prior(found[-1], opened, column=options.column)
    files = dict(zip(called, opened, strict=True))
    if any(file.multilabel for file in opened):
        one = next((file for file in opened if not file.multilabel), None)
        if one is not None:
            raise ValueError(f"{one.path} has one label per item, others have several: compare files of one kind")
        if means:
            raise ValueError("--logits-mean is for files with one label per item: leave it out")
        return _multilabel_report(files, prior, where, options)
    if options.threshold is not None:
        raise ValueError(f"--threshold is for several labels per item, and {given[0]} has one: leave it out")
    return _single_label_report(files, prior, where, means, options)


def _single_label_report(
    files: dict[str, Predictions], prior: Prior, where: str, means: list[str], options: ReportOptions
) -> Report:
    from equipoise.report.files import judge_file
    from equipoise.report.page import Report

    pictured = _pictured(files, options)
    results: dict[str, Any] = {}
    notes: dict[str, list[str]] = {}
    with counting_bar(Console(stderr=True), transient=True) as progress:
        for number, (name, file) in enumerate(files.items()):
            mean: Any = means[number] if means else file.logits_mean or "train"
            task = progress.add_task(visible(f"judging {file.path.name}"), total=file.num_items)
            results[name] = judge_file(file, prior, where, logits_mean=mean, advance=partial(progress.advance, task))
            if options.page and not means and file.logits_mean is None:
                notes[name] = [
                    "assumed to be for the training prior, as after a plain loss. After a balanced loss, pass "
                    "--logits-mean uniform; this affects only the prior sweep."
                ]
    return Report(results, notes=notes, **pictured, **options.shared)


def _pictured(files: dict[str, Predictions], options: ReportOptions) -> dict[str, Any]:
    """The paths of the files' images, and the folder that they start from; refused before anything is evaluated."""
    root = None if options.images in (None, "none") else Path(options.images or "")
    if root is not None and not root.is_dir():
        raise ValueError(f"--images {root} is not a folder: expected the one that image paths are relative to")
    paths = {} if options.images == "none" else {name: found for name, file in files.items() if (found := file.paths())}
    if root is not None and not paths:
        raise ValueError("--images is given, but no file has `paths`: an .npz may hold them, one text per item")
    if root is None and paths and not any(isabs(path) for found in paths.values() for path in found):
        typer.echo("no pictures: image paths are relative; pass --images DIR, the folder they start from", err=True)
    return {"paths": paths, "images": root}


def _multilabel_report(
    files: dict[str, Predictions], prior: Prior, where: str, options: ReportOptions
) -> MultilabelReport:
    from equipoise.report.files import judge_multilabel_file
    from equipoise.report.multilabel_data import threshold_in_words
    from equipoise.report.multilabel_page import MultilabelReport

    pictured = _pictured(files, options)
    results: dict[str, Any] = {}
    notes: dict[str, list[str]] = {}
    with counting_bar(Console(stderr=True), transient=True) as progress:
        for name, file in files.items():
            limits: Any = _thresholds(options.threshold, file) if options.threshold else file.thresholds
            task = progress.add_task(visible(f"judging {file.path.name}"), total=file.num_items)
            advance = partial(progress.advance, task)
            limits = 0.5 if limits is None else limits
            notes[name] = [threshold_in_words(limits)]
            results[name] = judge_multilabel_file(file, prior, where, threshold=limits, advance=advance)
    return MultilabelReport(results, notes=notes, **pictured, **options.shared)


def _thresholds(text: str, file: Predictions) -> float | FloatArray:
    """A number, or the numbers in a .json file: a list in column order, or by class name."""
    import numpy as np

    from equipoise.data.reading import read_json
    from equipoise.data.sources import is_number

    found = float(text) if is_number(text) else read_json(text) if Path(text).exists() else None
    if isinstance(found, dict):
        names = file.columns or [str(index) for index in range(file.num_classes)]
        if set(found) != set(names):
            raise ValueError(
                f"{text} has thresholds for other classes than {file.path}: give one for each of its columns"
            )
        found = [found[name] for name in names]
    values = np.asarray(found, np.float64) if _are_numbers(found) else np.zeros(0)
    if values.shape not in ((), (file.num_classes,)) or not ((values > 0) & (values < 1)).all():
        raise ValueError(
            f"--threshold is {text}: expected a probability between 0 and 1, or one per class in a .json file"
        )
    return values


def _are_numbers(found: Any) -> bool:
    values = found if isinstance(found, list) else [found]
    return all(type(value) in (int, float) for value in values)


def _one_per_file(values: list[str], paths: list[Path], option: str, *, share: bool = False) -> list[str]:
    if share and len(values) == 1:
        return values * len(paths)
    if values and len(values) != len(paths):
        raise ValueError(f"{len(values)} values of {option} for {len(paths)} files: give one per file, in order")
    if not share and len(set(values)) < len(values):
        raise ValueError(f"two files have the same {option}: {', '.join(values)}")
    return values


def _names_of(paths: list[Path]) -> list[str]:
    from equipoise.report.files import method_of

    stems = ["stdin" if str(path) == "-" else method_of(path) or path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    if len(set(paths)) < len(paths):
        raise ValueError("a file is given twice: compare different ones")
    return [str(path) for path in paths]


def _summary(made: Report | MultilabelReport) -> Table:
    """A row of numbers for every model, and one with their intervals."""
    from equipoise.report import multilabel_data, page_data
    from equipoise.report.page import Report

    if isinstance(made, Report):
        heads = ["top-1", "balanced", "many", "medium", "few"]
        title = "Accuracy on the test set, %, with 95 % intervals"
        scores: list[tuple[str, list[Any]]] = [(m.name, [*page_data.headlines(m).values()]) for m in made.models]
    else:
        heads = ["mAP", "head", "medium", "tail", "micro-AP", "mean F1", "micro-F1", "ECE"]
        title = "Several labels per item, %, with 95 % intervals"
        scores = [(model.name, [*multilabel_data.headlines(model).values()]) for model in made.models]
    return Table(["model", *heads], page_data.headline_rows(scores), title=title)
