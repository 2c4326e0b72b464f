"""`equipoise demo`: three losses on long-tailed digits."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from equipoise.cli.shared import counting_bar
from equipoise.report.tables import Table

console = Console()


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method.")] = 3,
    imbalance: Annotated[float, typer.Option(min=1, help="Ratio of zeros to nines in the training set.")] = 50,
    iterations: Annotated[int, typer.Option(min=1, help="Training steps per run.")] = 600,
) -> None:
    """Train three losses on long-tailed digits on the CPU (a minute or two), print a table and write the report.

    \bequipoise demo
    equipoise demo --seeds 1 --imbalance 100 --out digits
    """
    import torch

    from equipoise.data.digits import load_digits_lt
    from equipoise.experiments.demo import METHODS, Settings, runs, summary
    from equipoise.metrics.judging import Judged
    from equipoise.report.page import Report
    from equipoise.report.sections import vega_bundle

    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file: --out is the folder for the report")
    try:
        vega_bundle()  # before training, not after it
    except ImportError as error:
        raise typer.BadParameter(str(error)) from None
    warnings.filterwarnings("ignore", message=".*have no item")  # the line below shows how many are absent
    torch.set_num_threads(1)  # steps are too small for threads to help, and on a busy machine threads slow them down
    settings = Settings(imbalance=imbalance, seeds=seeds, iterations=iterations)
    digits = load_digits_lt(imbalance)
    console.print(f"Training set: {digits.prior}", soft_wrap=True)
    console.print(f"Test set: {len(digits.test_labels)} images, the same number of each digit\n")

    start = time.perf_counter()
    results: dict[str, list[Judged]] = {method: [] for method in METHODS}
    with counting_bar(console) as progress:
        task = progress.add_task("training", total=len(METHODS) * seeds)
        for method, _, judged in runs(settings, digits):
            results[method].append(judged)
            progress.advance(task)

    title = "Accuracy on the balanced test set, % (mean ± standard deviation over n seeds)"
    header = ["loss", "top-1", "many (> 100)", "medium", "few (< 20)", "n"]
    Table(header, summary(results), title=title).print(console)
    path = Report(results, title="Long-tailed digits, three losses").save(out / "report.html")
    console.print(f"Report: {path}   ({time.perf_counter() - start:.0f} s)", soft_wrap=True)
