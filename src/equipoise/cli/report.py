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
    from equipoise.report.page import Report


def report(
    predictions: Annotated[
        list[Path],
        typer.Argument(
            help="Files of predictions, first before, last after: .npz with logits or probabilities [N, K] and labels "
            "[N], or .parquet or .csv with a label column and a column a class. Or a folder of run records."
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
    title: Annotated[str, typer.Option(help="The page's title.")] = "The tail, before and after",
    figures: Annotated[Path | None, typer.Option(help="Also write every figure there, as PNG and SVG.")] = None,
) -> None:
    """Compare models, class by class and from head to tail, on a page of HTML: one self-contained file."""
    with refusing():
        if any(path.is_dir() for path in predictions):
            made = _report_of_runs(predictions, title, counts, logits_mean, name)
        else:
            made = _report_of_files(predictions, counts, logits_mean, name, label, column, title)
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
    title: str,
) -> Report:
    from equipoise.data.prediction_priors import training_prior
    from equipoise.data.predictions import open_predictions
    from equipoise.report.files import judge_file
    from equipoise.report.page import Report

    if counts is None:
        raise ValueError("--counts is missing: the class counts of the training set, e.g. --counts train_labels.npy")
    means = _one_a_file(logits_mean or [], paths, "--logits-mean", share=True)
    called = _one_a_file(names or [], paths, "--name") or _names_of(paths)
    unknown = [mean for mean in means if mean not in ("train", "uniform")]
    if unknown:
        raise ValueError(f"--logits-mean is {unknown[0]!r}: train after a plain loss, uniform after a balanced one")
    opened = [open_predictions(path, label=label) for path in paths]
    prior, where = training_prior(counts, opened, column=column)
    results: dict[str, Any] = {}
    notes: dict[str, list[str]] = {}
    with counting_bar(Console(stderr=True), transient=True) as progress:
        for number, (file, name) in enumerate(zip(opened, called, strict=True)):
            mean: Any = means[number] if means else file.logits_mean or "train"
            task = progress.add_task(visible(f"judging {file.path.name}"), total=file.num_items)
            results[name] = judge_file(file, prior, where, logits_mean=mean, advance=partial(progress.advance, task))
            if not means and file.logits_mean is None:
                notes[name] = [
                    "taken to mean the training prior, as after a plain loss. After a balanced loss say --logits-mean "
                    "uniform: it matters for the prior sweep only."
                ]
    return Report(results, title=title, notes=notes)


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


def _summary(made: Report) -> Table:
    """A row of numbers for every model, and one of their intervals."""
    from equipoise.report.page_data import headlines

    rows = []
    for model in made.models:
        found = headlines(model).values()
        rows.append([model.name, *(f"{100 * v.value:.1f}" if v else UNKNOWN for v in found)])
        rows.append(["", *(f"{100 * v.low:.1f}–{100 * v.high:.1f}" if v else "" for v in found)])
    title = "Accuracy on the test set, %, with 95 % intervals"
    return Table(["model", "top-1", "over classes", "many", "medium", "few"], rows, title=title)
