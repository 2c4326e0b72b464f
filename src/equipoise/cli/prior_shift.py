"""`equipoise run prior-shift` and `equipoise table prior-shift`: what the prior is worth when it changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from equipoise.cli.shared import refusing
from equipoise.cli.table import show
from equipoise.training import records as record_files

if TYPE_CHECKING:
    pass

NAME = "prior-shift"


def run_prior_shift(
    table: Annotated[str, typer.Argument(help="prior-shift.")],
    more: Annotated[list[int] | None, typer.Argument(hidden=True, metavar="more seeds")] = None,
    seeds: Annotated[list[int] | None, typer.Option(help="Only these seeds: --seeds 0 1 2.")] = None,
    results: Annotated[
        Path, typer.Option(help="Where each record is written as its run ends; those there are kept.")
    ] = Path("results"),
    iterations: Annotated[
        int | None, typer.Option(min=1, help="A smoke test of so many training steps; nothing is written.")
    ] = None,
) -> None:
    """Train long-tailed digits on the CPU and judge the models under shifted class frequencies (about two minutes).

    Accuracy and log-loss as trained, with the true class frequencies, and with estimated ones; docs/estimation.md.
    """
    import torch

    from equipoise.experiments.prior_shift import recipe as prior_shift

    if more and not seeds:
        raise typer.BadParameter(f"what is {' '.join(map(str, more))}? Seeds are given as --seeds 0 1 2")
    wanted = [*seeds, *(more or [])] if seeds else list(prior_shift.SEEDS)
    unknown = sorted(set(wanted) - set(prior_shift.SEEDS))
    if unknown:
        raise typer.BadParameter(f"--seeds {unknown[0]}: the plan has seeds {', '.join(map(str, prior_shift.SEEDS))}")
    have: set[str] = set()
    if iterations is None:
        with refusing():
            have = {record.key for record in record_files.read_records(results, NAME, prior_shift.PriorShiftRecord)}
    cells = [(m, seed) for seed in wanted for m in prior_shift.METHODS if f"{NAME}/{m}/{seed}" not in have]
    console = Console()
    console.print(f"{len(cells)} runs {'missing' if iterations is None else 'of a smoke test'}", highlight=False)
    torch.set_num_threads(1)  # steps are too small for threads to help, and they hinder on a busy machine
    made = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=len(cells))
        for method, seed in cells:
            record = prior_shift.run(method, seed, iterations=iterations)
            made.append(record)
            if record.complete:
                path = results / f"{record.key}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(record.to_json(indent=1))
            progress.advance(task)
    if made:
        show(NAME, made, console)
    if iterations is None:
        console.print(f"{len(made)} new records under {results / NAME}; the table: equipoise table {NAME}")
