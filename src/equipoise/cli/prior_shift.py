"""Train the prior-shift experiment: what `equipoise run prior-shift` does."""

from __future__ import annotations

import torch
import typer

from equipoise.cli.options import RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.table import show
from equipoise.experiments.prior_shift import recipe as prior_shift
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.experiments.prior_shift.runs import PriorShift
from equipoise.training.recipe import MethodCell


def train_prior_shift(options: RunOptions) -> None:
    """Train the missing runs, and print the results."""
    plan = [MethodCell(method, seed) for seed in prior_shift.SEEDS for method in prior_shift.METHODS]
    recorded = options.recorded(prior_shift.NAME, PriorShiftRecord)
    cells = missing_cells(asked_cells(plan, options), recorded)
    if not cells:
        return
    torch.set_num_threads(1)  # steps are too small for threads to help, and on a busy machine threads slow them down
    train_cells(cells, options, recorded, torch.device("cpu"), PriorShift)
    keys = {f"{prior_shift.NAME}/{cell}" for cell in cells}
    made = [record for record in recorded.records() if record.key in keys]
    if made:
        show(prior_shift.NAME, made)
    typer.echo(f"the table: equipoise records import {options.out}, then equipoise table {prior_shift.NAME}")
