"""Prior-shift runs for the queue: ten seconds each on a CPU, trained in one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.experiments.digits_cnn import digits_cnn
from equipoise.experiments.prior_shift import recipe as prior_shift
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.training.queue import Context, Kind, Settings
from equipoise.training.recipe import MethodCell


class PriorShiftRun:
    """A model that is trained, `iteration` = `iterations`, or not yet."""

    finite, batch_size = True, prior_shift.BASE.batch_size

    def __init__(self, cell: MethodCell, iterations: int) -> None:
        self.cell, self.iterations, self.iteration, self.model = cell, iterations, 0, digits_cnn().eval()

    @property
    def done(self) -> bool:
        return self.iteration == self.iterations

    whole = done

    def weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    state_dict = weights

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)
        self.iteration = self.iterations

    def note(self) -> dict[str, Any]:
        return {}

    def take_weights(self, weights: dict[str, Tensor], note: Mapping[str, Any]) -> None:
        self.load_state_dict(weights)


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
                run.load_state_dict(model.state_dict())
                after_chunk()

    def judge(self, cell: MethodCell, run: PriorShiftRun, context: Context) -> PriorShiftRecord:
        with torch.inference_mode():
            logits = run.model(self.digits.test_images)
        about: dict[str, Any] = {"complete": self.settings.iterations is None, "iterations": run.iterations}
        about |= {"seconds": round(context.seconds, 1), "commit": self.settings.commit}
        return prior_shift.record(cell.method, cell.seed, self.digits, logits, **about)

    def in_words(self, record: PriorShiftRecord) -> str:
        return f"judged on {len(record.test_sets)} test sets, {record.seconds:.0f} s"
