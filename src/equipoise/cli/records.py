"""`equipoise records`: lay the records of runs out under results/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.shared import Results, refusing
from equipoise.training import records as record_files
from equipoise.training.records import counted

records_app = typer.Typer(help="The records of runs, one small JSON each: lay new ones out.", no_args_is_help=True)


@records_app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A .jsonl file that `equipoise run` wrote.")],
    results: Results = Path("results"),
) -> None:
    """Lay the records of a .jsonl file out under results/; smoke tests are left out."""
    lay_out(source, results, record_files.Record)


def lay_out(source: Path, results: Path, kind: type[record_files.StoredRecord]) -> None:
    """Import a .jsonl file and say what became of its lines; those that differ from what is there are a failure."""
    with refusing():
        done = record_files.import_records(source, results, kind)
    typer.echo("; ".join(filter(None, (f"{counted(len(done.written), 'new record')} under {results}", str(done)))))
    for path in done.differing:
        typer.echo(f"{path} exists and differs: results are append-only; compare the two by hand", err=True)
    if done.differing:
        raise typer.Exit(1)
