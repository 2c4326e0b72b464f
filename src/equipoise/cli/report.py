"""`equipoise report`: models before and after, on a page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from equipoise.cli.shared import counting_bar, refusing
from equipoise.data.reading import visible
from equipoise.report.tables import UNKNOWN, Table

if TYPE_CHECKING:
    from equipoise.data.predictions import Predictions
    from equipoise.prior import FloatArray, Prior
    from equipoise.report.multilabel_page import MultilabelReport
    from equipoise.report.page import Report


DEFAULT_TITLE = "The tail, before and after"


def report(
    predictions: Annotated[
        list[Path],
        typer.Argument(
            help="Files of predictions, first before, last after: .npz with logits or probabilities [N, K] and labels "
            "[N], or .parquet or .csv with a label column and a column a class. Several labels per item: targets "
            "[N, K] of 0 and 1, lists of labels (cat;owl), or columns target_CLASS. Or a folder of run records."
        ),
    ],
    counts: Annotated[
        Path | None,
        typer.Option(
            help="The training set: counts (.json list or {class: n}, .npy), labels, a folder of images, annotations."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    logits_mean: Annotated[
        list[str] | None,
        typer.Option(
            metavar="train|uniform",
            help="The prior that predictions mean: train after a plain loss, uniform after a balanced one. Once for "
            "all, or once a file in their order; train by default.",
        ),
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="A model's name, once a file in their order.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column of .parquet and .csv predictions.")] = None,
    column: Annotated[str | None, typer.Option(help="The label column of --counts, where it is a table.")] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="P|FILE.json",
            help="Several labels per item: the probability from which a label is predicted, or one per class.",
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="The page's title.")] = DEFAULT_TITLE,
    figures: Annotated[Path | None, typer.Option(help="Also write every figure there, as PNG and SVG.")] = None,
) -> None:
    """Compare models, class by class and from head to tail, on a page of HTML: one self-contained file."""
    with refusing():
        if any(path.is_dir() for path in predictions):
            made: Report | MultilabelReport = _report_of_runs(predictions, title, counts, logits_mean, name)
        else:
            made = _report_of_files(predictions, counts, logits_mean, name, label, column, threshold, title)
        path = made.save(out)
        written = [] if figures is None else made.save_figures(figures)
    _summary(made).print(Console())
    for model in made.models:
        for note in model.notes:
            typer.echo(visible(f"{model.name}: {note}"))
    typer.echo(f"page: {visible(path)} ({path.stat().st_size / 1e6:.1f} MB)")
    if written:
        typer.echo(f"figures: {len(written)} files in {visible(figures)}")


def _report_of_runs(
    folders: list[Path], title: str, counts: Path | None, logits_mean: list[str] | None, names: list[str] | None
) -> Report:
    from equipoise.report.files import read_runs
    from equipoise.report.page import Report

    if len(folders) > 1:
        raise ValueError("a folder of run records stands alone: pass one folder, or files of predictions")
    if counts is not None or logits_mean or names:
        raise ValueError("run records know their counts, names and loss: leave --counts, --logits-mean and --name out")
    return Report(read_runs(folders[0]), title=title)


def _report_of_files(
    paths: list[Path],
    counts: Path | None,
    logits_mean: list[str] | None,
    names: list[str] | None,
    label: str | None,
    column: str | None,
    threshold: str | None,
    title: str,
) -> Report | MultilabelReport:
    from equipoise.data.multilabel_predictions import open_either
    from equipoise.data.prediction_priors import training_prior

    if counts is None:
        raise ValueError("--counts is missing: the class counts of the training set, e.g. --counts train_labels.npy")
    means = _one_a_file(logits_mean or [], paths, "--logits-mean", share=True)
    called = _one_a_file(names or [], paths, "--name") or _names_of(paths)
    unknown = [mean for mean in means if mean not in ("train", "uniform")]
    if unknown:
        raise ValueError(f"--logits-mean is {unknown[0]!r}: train after a plain loss, uniform after a balanced one")
    opened = [open_either(path, label=label) for path in paths]
    prior, where = training_prior(counts, opened, column=column)
    files = dict(zip(called, opened, strict=True))
    if any(file.multilabel for file in opened):
        one = next((file for file in opened if not file.multilabel), None)
        if one is not None:
            raise ValueError(f"{one.path} has one label per item, others have several: compare files of one kind")
        if means:
            raise ValueError("--logits-mean is for files with one label per item: leave it out")
        return _multilabel_report(files, prior, where, threshold, title)
    if threshold is not None:
        raise ValueError(f"--threshold is for several labels per item, and {paths[0]} has one: leave it out")
    return _single_label_report(files, prior, where, means, title)


def _single_label_report(
    files: dict[str, Predictions], prior: Prior, where: str, means: list[str], title: str
) -> Report:
    from equipoise.report.files import judge_file
    from equipoise.report.page import Report

    results: dict[str, Any] = {}
    notes: dict[str, list[str]] = {}
    with counting_bar(Console(stderr=True), transient=True) as progress:
        for number, (name, file) in enumerate(files.items()):
            mean: Any = means[number] if means else file.logits_mean or "train"
            task = progress.add_task(visible(f"judging {file.path.name}"), total=file.num_items)
            results[name] = judge_file(file, prior, where, logits_mean=mean, advance=partial(progress.advance, task))
            if not means and file.logits_mean is None:
                notes[name] = [
                    "taken to mean the training prior, as after a plain loss. After a balanced loss say --logits-mean "
                    "uniform: it matters for the prior sweep only."
                ]
    return Report(results, title=title, notes=notes)


def _multilabel_report(
    files: dict[str, Predictions], prior: Prior, where: str, threshold: str | None, title: str
) -> MultilabelReport:
    from equipoise.report.files import judge_multilabel_file
    from equipoise.report.multilabel_page import TITLE, MultilabelReport

    results: dict[str, Any] = {}
    notes: dict[str, list[str]] = {}
    with counting_bar(Console(stderr=True), transient=True) as progress:
        for name, file in files.items():
            limits: Any = _thresholds(threshold, file) if threshold else file.thresholds
            notes[name] = [] if limits is not None else ["a label is predicted from a probability of 50 %."]
            task = progress.add_task(visible(f"judging {file.path.name}"), total=file.num_items)
            advance = partial(progress.advance, task)
            limits = 0.5 if limits is None else limits
            results[name] = judge_multilabel_file(file, prior, where, threshold=limits, advance=advance)
    return MultilabelReport(results, title=TITLE if title == DEFAULT_TITLE else title, notes=notes)


def _thresholds(text: str, file: Predictions) -> float | FloatArray:
    """A number, or the numbers of a .json file: a list in column order, or by class name."""
    import numpy as np

    from equipoise.data.reading import read_json
    from equipoise.data.sources import is_number

    found = float(text) if is_number(text) else read_json(text)
    if isinstance(found, dict):
        names = file.columns or [str(index) for index in range(file.num_classes)]
        if set(found) != set(names):
            raise ValueError(
                f"{text} has thresholds of other classes than {file.path}: give one for each of its columns"
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


def _one_a_file(values: list[str], paths: list[Path], option: str, *, share: bool = False) -> list[str]:
    if share and len(values) == 1:
        return values * len(paths)
    if values and len(values) != len(paths):
        raise ValueError(f"{len(values)} times {option} for {len(paths)} files: give one a file, in their order")
    if not share and len(set(values)) < len(values):
        raise ValueError(f"two files have the same {option}: {', '.join(values)}")
    return values


def _names_of(paths: list[Path]) -> list[str]:
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    if len(set(paths)) < len(paths):
        raise ValueError("a file is given twice: compare different ones")
    return [str(path) for path in paths]


def _summary(made: Report | MultilabelReport) -> Table:
    """A row of numbers for every model, and one of their intervals."""
    from equipoise.report import multilabel_data, page_data
    from equipoise.report.page import Report

    if isinstance(made, Report):
        heads = ["top-1", "over classes", "many", "medium", "few"]
        title = "Accuracy on the test set, %, with 95 % intervals"
        scores: list[tuple[str, list[Any]]] = [(m.name, [*page_data.headlines(m).values()]) for m in made.models]
    else:
        heads = ["mAP", "head", "medium", "tail", "micro-AP", "mean F1", "F1, pairs", "ECE"]
        title = "Several labels per item, %, with 95 % intervals"
        scores = [(model.name, [*multilabel_data.headlines(model).values()]) for model in made.models]
    rows = []
    for name, found in scores:
        rows.append([name, *(f"{100 * v.value:.1f}" if v else UNKNOWN for v in found)])
        known = [v is not None and v.low is not None for v in found]
        ends = [f"{100 * v.low:.1f}–{100 * v.high:.1f}" if k else "" for v, k in zip(found, known, strict=True)]
        rows.append(["", *ends])
    return Table(["model", *heads], rows, title=title)
