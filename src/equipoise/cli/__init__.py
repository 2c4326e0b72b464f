"""The command line: equipoise inspect | train | predict | evaluate | report | adapt | demo | detect, and
run | table | records

Every command is a thin function over the library: what it computes is available from Python, too.
"""

from __future__ import annotations

import os
import time
import warnings
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
from equipoise.cli.report import evaluate, report
from equipoise.cli.run import run_app
from equipoise.cli.shared import show_warnings
from equipoise.cli.table import table
from equipoise.cli.train import train
from equipoise.data.cores import processes_together
from equipoise.data.reading import visible

USE = "Your data and models"
PAPER = "The paper's experiments"
SECONDS_FOR_THE_FIRST = 20
HELP = ["-h", "--help"]
ORDER = ("inspect", "train", "predict", "evaluate", "report", "adapt", "demo", "detect", "run", "table", "records")


def leave_it_to_the_first() -> None:
    """Under torchrun, wait for the first process to report the error: torchrun then ends the others, and it is shown
    once. If the first process goes on, the error is of this process only, and it reports it itself."""
    if os.environ.get("RANK", "0") != "0" and processes_together() > 1:
        time.sleep(SECONDS_FOR_THE_FIRST)


def hide_types_of_flags(command: Any) -> None:
    """Show `--export`, not `--export <bool>`, in the help of a command and of those below it: a flag takes no value."""
    names = {"help_option_names": HELP}
    for option in (*command.params, command.get_help_option(command.context_class(command, **names))):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    for below in getattr(command, "commands", {}).values():
        hide_types_of_flags(below)


class VisibleErrors(TyperGroup):
    """The commands, those for users first; quoted text in their errors shows control characters as escapes, and a
    warning is one line."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        hide_types_of_flags(self)
        return super().make_context(*args, **settings)

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: (*ORDER, name).index(name))

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                show_warnings(lambda text: typer.echo(text, err=True))
                return super().invoke(ctx)
        except typer.BadParameter as error:
            leave_it_to_the_first()
            if not error.message:  # an option that is missing: click finds the words itself
                raise
            raise typer.BadParameter(visible(error.message), error.ctx, error.param, error.param_hint) from None


app = typer.Typer(
    cls=VisibleErrors,
    help="Tools for class imbalance: inspect a training set, train and compare models, adapt predictions to another "
    "class prior, and run the experiments of the paper.\n\n\bequipoise inspect photos/train\n"
    "equipoise train photos --loss balanced_softmax\nequipoise COMMAND -h",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": HELP},
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


app.command(rich_help_panel=USE)(inspect)
app.command(rich_help_panel=USE)(train)
app.command(rich_help_panel=USE)(predict)
app.command(rich_help_panel=USE)(evaluate)
app.command(rich_help_panel=USE)(report)
app.command(rich_help_panel=USE)(adapt)
app.command(rich_help_panel=USE)(demo)
app.add_typer(detect_app, name="detect", rich_help_panel=USE)
app.add_typer(run_app, name="run", rich_help_panel=PAPER)
app.command(rich_help_panel=PAPER)(table)
app.add_typer(records_app, name="records", rich_help_panel=PAPER)
