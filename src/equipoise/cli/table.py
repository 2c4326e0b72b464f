"""`equipoise table`: show an experiment from its records, beside the published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equipoise.cli import options as o
from equipoise.cli.shared import perhaps, refusing
from equipoise.data.reading import visible
from equipoise.files import write_text

# Each offers read(results), shown_tables(records), notes(records) and documents(root, results); draw(root, results)
# if it has a figure.
EXPERIMENTS = {
    "table1": "equipoise.experiments.table1.report",
    "record": "equipoise.experiments.record.report",
    "table2": "equipoise.experiments.table2.report",
    "voc2012-lt": "equipoise.experiments.voc2012_lt.report",
    "mosaic-lt": "equipoise.experiments.mosaic_lt.report",
    "tiny-imagenet-lt": "equipoise.experiments.tiny_imagenet_lt.report",
    "voc-mlt": "equipoise.experiments.voc_mlt.report",
    "prior-shift": "equipoise.experiments.prior_shift.report",
}


def table(
    table: Annotated[str, typer.Argument(help=f"Which table: {', '.join(EXPERIMENTS)}, or a recipe file of your own.")],
    results: o.Results = o.RESULTS,
    write: Annotated[
        bool, typer.Option("--write", help="Also render it into the documents beside the results, and draw the figure.")
    ] = False,
) -> None:
    """Print the table of an experiment from its records, beside the published numbers.

    \bequipoise table table1
    equipoise table voc2012-lt --results my/results
    """
    if table == "causes":
        raise typer.BadParameter("the runs of causes are rendered below Table 1: equipoise table table1 --write")
    if table.endswith(".py"):
        show_own(Path(table), results, write)
        return
    if table not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise typer.BadParameter(f"no table is named {table!r}: expected one of {known}{perhaps(EXPERIMENTS, table)}")
    report: Any = import_module(EXPERIMENTS[table])
    with refusing():
        records = report.read(results)
    if not records:
        raise typer.BadParameter(
            f"{results} holds no record of {table}: the records are in a checkout of the repository, not in the "
            "installed package. Run this in a checkout, or pass the folder of your own records as --results"
        )
    show(table, records)
    if write:
        root = results.resolve().parent
        with refusing(), _of_a_checkout(root):
            for path, text in report.documents(root, results).items():
                write_text(path, text)
                typer.echo(f"rendered {path.relative_to(root)}")
            for path in report.draw(root, results) if hasattr(report, "draw") else ():
                typer.echo(f"drew {path.relative_to(root)}")


def show_own(path: Path, results: Path, write: bool) -> None:
    """Print the table of a user's file."""
    from equipoise.cli.own_tables import shown_own

    if write:
        raise typer.BadParameter("--write renders this project's own documents: leave it out for your tables")
    with refusing():
        tables = shown_own(path, results)
    for each in tables:
        each.print(Console())


@contextmanager
def _of_a_checkout(root: Path) -> Iterator[None]:
    """Explain missing documents: they are part of a checkout."""
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(
            f"--write renders the documents of a checkout of the repository, which {root} is not ({error.filename} is "
            "missing): run this in a checkout"
        ) from None


def show(table: str, records: Sequence[Any], console: Console | None = None) -> None:
    """Print the tables of an experiment from records, and the notes on them."""
    report: Any = import_module(EXPERIMENTS[table])
    console = console or Console()
    for each in report.shown_tables(records):
        each.print(console)
    for note in report.notes(records):
        console.print(visible(note), markup=False, highlight=False)
