"""The command line: equipoise demo | inspect | report | adapt | run | table | records | detect

Every command is a thin function over the library; what it prints can be had from Python too.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import equipoise
from equipoise.cli.adapt import adapt
from equipoise.cli.demo import demo
from equipoise.cli.detect import detect_app
from equipoise.cli.inspect import inspect
from equipoise.cli.predict import predict
from equipoise.cli.records import records_app
from equipoise.cli.report import report
from equipoise.cli.run import run_app
from equipoise.cli.table import table
from equipoise.cli.train import train
from equipoise.data.reading import visible


class VisibleErrors(TyperGroup):
    """The commands; what their errors quote shows control characters as escapes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            raise typer.BadParameter(visible(error.message), error.ctx, error.param, error.param_hint) from None


app = typer.Typer(
    cls=VisibleErrors,
    help="Class imbalance: look at the tail of a training set, compare models on it, move predictions to another class "
    "prior, and train the experiments of the paper.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
console = Console()


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"equipoise {equipoise.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


app.command()(train)
app.command()(predict)
app.command()(demo)
app.command()(inspect)
app.command()(report)
app.command()(adapt)
app.add_typer(run_app, name="run")
app.command()(table)
app.add_typer(records_app, name="records")
app.add_typer(detect_app, name="detect")
