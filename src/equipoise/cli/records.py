"""`equipoise records`: lay the records of runs out under results/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options as o
from equipoise.cli.shared import refusing
from equipoise.training.records import counted, import_records

records_app = typer.Typer(
    help="The records of runs, one small JSON each: lay new ones out.\n\n\bequipoise records import records.jsonl",
    no_args_is_help=True,
)


@records_app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A .jsonl file that `equipoise run` wrote.")],
    results: o.Results = o.RESULTS,
) -> None:
    """Lay the records of a .jsonl file, of whatever experiments, out under results/; smoke tests are left out.

    \bequipoise records import records.jsonl
    """
    with refusing():
        done = import_records(source, results, o.KINDS)
    typer.echo("; ".join(filter(None, (f"{counted(len(done.written), 'new record')} under {results}", str(done)))))
    for path in done.differing:
        typer.echo(f"{path} exists and differs: results are append-only; compare the two by hand", err=True)
    if done.differing:
        raise typer.Exit(1)
