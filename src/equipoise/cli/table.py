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

# Each has a module `report` with read(results), shown_tables(records) and notes(records), and in a checkout one in
# experiments/documents with documents(root, results), and draw(root, results) where it has a figure.
EXPERIMENTS = {
    "table1": "table1",
    "record": "record",
    "table2": "table2",
    "voc2012-lt": "voc2012_lt",
    "mosaic-lt": "mosaic_lt",
    "tiny-imagenet-lt": "tiny_imagenet_lt",
    "voc-mlt": "voc_mlt",
    "prior-shift": "prior_shift",
}


def table(
    table: Annotated[str, typer.Argument(help=f"Which table: {', '.join(EXPERIMENTS)}, or a recipe file of your own.")],
    results: o.Results = o.RESULTS,
    write: Annotated[
        bool, typer.Option("--write", help="In a checkout: also render it into the documents, and draw the figure.")
    ] = False,
) -> None:
    """Print the table of an experiment from its records, next to the published numbers.

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
    report: Any = import_module(f"equipoise.experiments.{EXPERIMENTS[table]}.report")
    with refusing():
        records = report.read(results)
    if not records:
        raise typer.BadParameter(
            f"{results} holds no record of {table}: the records are in a checkout of the repository, not in the "
            "installed package. Run this in a checkout, or pass the folder of your own records as --results"
        )
    show(table, records)
    if write:
        write_documents(table, results)


def write_documents(table: str, results: Path) -> None:
    """Render a table into the documents of this repository; the modules that do are in no wheel."""
    root = results.resolve().parent
    with refusing(), _of_a_checkout(root):
        rendered: Any = import_module(f"equipoise.experiments.documents.{EXPERIMENTS[table]}")
        for path, text in rendered.documents(root, results).items():
            write_text(path, text)
            typer.echo(f"rendered {path.relative_to(root)}")
        for path in rendered.draw(root, results) if hasattr(rendered, "draw") else ():
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
    """Documents that are not there are those of a checkout, and so are the modules that render them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("equipoise."):
            raise
        raise ValueError(
            "--write renders this project's own documents, which the installed package cannot do: run it in a "
            "checkout of the repository, installed with pip install -e '.[cli,report]'"
        ) from None
    except FileNotFoundError as error:
        raise ValueError(
            f"--write renders the documents of a checkout of the repository, which {root} is not ({error.filename} is "
            "missing): run this in a checkout"
        ) from None


def show(table: str, records: Sequence[Any]) -> None:
    """Print the tables of an experiment from records, and what to know about them."""
    report: Any = import_module(f"equipoise.experiments.{EXPERIMENTS[table]}.report")
    console = Console()
    for each in report.shown_tables(records):
        each.print(console)
    for note in report.notes(records):
        console.print(visible(note), markup=False, highlight=False)
