"""Prior-shift runs for the queue: ten seconds each on a CPU, trained in one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.experiments.demo import digits_cnn
from equipoise.experiments.prior_shift import recipe as prior_shift
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.training.kinds import Context, Kind, Run, Settings
from equipoise.training.recipe import MethodCell


class PriorShiftRun(Run):
    """A model that is trained, `iteration` = `iterations`, or not yet."""

    batch_size = prior_shift.BASE.batch_size
    whole = Run.done

    def __init__(self, cell: MethodCell, iterations: int) -> None:
        self.cell, self.iterations, self.model = cell, iterations, digits_cnn().eval()

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.iteration = self.iterations


class PriorShift(Kind[MethodCell, PriorShiftRun]):
    """All runs share the digits."""

    table = prior_shift.NAME

    def __init__(self, settings: Settings) -> None:
        self.settings, self.digits = settings, prior_shift.load()

    def iterations(self, cell: MethodCell) -> int:
        return self.settings.iterations or prior_shift.BASE.iterations

    def name(self, cell: MethodCell) -> str:
        return f"{self.table}-{super().name(cell)}-{self.iterations(cell)}"

    def made_from(self, cell: MethodCell) -> dict[str, Any]:
        return {"method": cell.method, "seed": cell.seed, "iterations": self.iterations(cell)}

    def engine(self, run: PriorShiftRun) -> dict[str, Any]:
        return {}

    def prepare(self, cell: MethodCell, start: Mapping[str, Tensor] | None) -> PriorShiftRun:
        return PriorShiftRun(cell, self.iterations(cell))

    def train(self, runs: Sequence[PriorShiftRun], after_chunk: Callable[[], bool], over: Callable[[], bool]) -> None:
        for run in runs:
            if not run.done:
                model = prior_shift.fit(run.cell.method, run.cell.seed, self.digits, run.iterations)
                run.load_state_dict({"model": model.state_dict()})
                after_chunk()

    def judge(self, cell: MethodCell, run: PriorShiftRun, context: Context) -> PriorShiftRecord:
        with torch.inference_mode():
            logits = run.model(self.digits.test_images)
        about: dict[str, Any] = {"complete": self.settings.iterations is None, "iterations": run.iterations}
        about |= {"seconds": round(context.seconds, 1), "commit": self.settings.commit}
        return prior_shift.record(cell.method, cell.seed, self.digits, logits, **about)

    def in_words(self, record: PriorShiftRecord) -> str:
        return f"judged on {len(record.test_sets)} test sets, {record.seconds:.0f} s"
