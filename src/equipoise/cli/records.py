"""`equipoise records`: sort the records of runs into results/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options as o
from equipoise.cli.shared import refusing
from equipoise.data.reading import counted
from equipoise.training.records import import_records

records_app = typer.Typer(
    help="Import the records of new runs, one small JSON file each.\n\n\bequipoise records import records.jsonl",
    no_args_is_help=True,
)


@records_app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A .jsonl file that `equipoise run` wrote.")],
    results: o.Results = o.RESULTS,
) -> None:
    """Sort the records of a .jsonl file, from any experiments, into results/; smoke tests are skipped.

    \bequipoise records import records.jsonl
    """
    with refusing():
        done = import_records(source, results, o.KINDS)
    typer.echo("; ".join(filter(None, (f"{counted(len(done.written), 'new record')} under {results}", str(done)))))
    for path in done.differing:
        typer.echo(f"{path} exists and differs: results are append-only; compare the two by hand", err=True)
    if done.differing:
        raise typer.Exit(1)
