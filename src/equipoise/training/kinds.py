"""What the queue knows about a run and a kind of runs: classifiers, detectors, anything that can be trained in
chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from equipoise.training.progress import Status
from equipoise.training.records import StoredRecord
from equipoise.training.weights import all_finite

C = TypeVar("C")


@dataclass(frozen=True)
class Settings:
    """Where and how to run, but not what."""

    device: torch.device
    checkpoints: Path
    claims: Path  # of records: shared by all processes that write to the same file
    together: int = 1  # runs that are trained at the same time
    budget: float = float("inf")  # seconds
    validate: bool = False  # evaluate on held-out training images instead of the test set
    iterations: int | None = None  # a smoke test: shorter than the recipe says
    commit: str | None = None
    teachers: Path | None = None  # a folder with the weights of all teachers: none of them is trained then
    log: Callable[[str], None] = print
    report: Callable[[Status], None] = lambda status: None  # after every chunk of iterations

    @property
    def mark(self) -> str:
        """What tells the files of a smoke test from those of whole runs, and of smoke tests of other lengths."""
        return "" if self.iterations is None else f"-{self.iterations}"


class Run(ABC):
    """Abstract: one run in progress."""

    iteration = 0
    iterations: int
    batch_size: int
    losses: Any = ()  # of the iterations so far

    @property
    def done(self) -> bool:
        return self.iteration >= self.iterations

    @property
    def finite(self) -> bool:
        """Whether the loss, and at the end every weight, has stayed a number."""
        losses = bool(torch.isfinite(torch.as_tensor(self.losses)).all())
        return losses and (not self.done or all_finite(self.state_dict()["model"]))

    @property
    def risen(self) -> tuple[float, float] | None:
        """The first loss and the median of the last ten, if that is far above the first: training diverges."""
        losses = torch.as_tensor(self.losses)[: self.iteration]
        if len(losses) < 10:
            return None
        first, last = losses[0].item(), losses[-10:].median().item()
        return (first, last) if last > 2 * first + 1 else None

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether its state may be saved now."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data; "model" is what another run can start from."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; or, from a `note` and "model", become the finished run that they came from."""

    def note(self) -> dict[str, Any]:
        """Plain data that is kept beside the weights of a finished run."""
        return {}


R = TypeVar("R", bound=Run)


@dataclass(frozen=True)
class Context:
    """What a record holds that the run itself does not know."""

    seconds: float  # of the run's group, over all processes that worked on it
    together: int  # runs that shared the device
    started_from: str | None  # the digest of the weights
    teachers: Mapping[str, str] = field(default_factory=dict)  # the runs that taught it, with the digests of theirs


class Kind(ABC, Generic[C, R]):
    """Abstract: what the queue has to know about a kind of runs. By default each run is on its own, in one process."""

    table: str

    @abstractmethod
    def iterations(self, cell: C) -> int: ...

    @abstractmethod
    def made_from(self, cell: C) -> dict[str, Any]:
        """Recipe, data and seed, as plain data."""

    def must_match(self, run: R) -> dict[str, Any]:
        """What of the engine must be the same for a run to be resumed."""
        return self.engine(run)

    @abstractmethod
    def engine(self, run: R) -> dict[str, Any]:
        """How it is computed, as plain data."""

    @abstractmethod
    def prepare(self, cell: C, start: Mapping[str, Tensor] | None) -> R:
        """The run at its start."""

    @abstractmethod
    def train(self, runs: Sequence[R], after_chunk: Callable[[], bool], over: Callable[[], bool]) -> None:
        """Train until all are done or `after_chunk()`, called after each chunk of iterations, is true; a long chunk
        ends when `over()` is true."""

    @abstractmethod
    def judge(self, cell: C, run: R, context: Context) -> StoredRecord: ...

    @abstractmethod
    def in_words(self, record: Any) -> str:
        """A record as it is logged."""

    def name(self, cell: C) -> str:
        """The stem of its files."""
        return str(cell).replace("/", "-")

    def alike(self, cell: C) -> str:
        """A glob pattern for the stems of files of the same run, whatever its name."""
        return self.name(cell)

    def starts_from(self, cell: C) -> C | None:
        """The run whose weights this one needs."""
        return None

    def teachers(self, cell: C) -> Sequence[C]:
        """The runs whose weights teach this one."""
        return ()

    def prepare_taught(self, cell: C, teachers: Sequence[Mapping[str, Tensor]]) -> R:
        """The run at its start, with the weights of its teachers."""
        raise NotImplementedError(f"runs of {self.table} have no teachers")

    def check(self, cell: C) -> None:
        """Raise a ValueError before anything is trained if a run, or one that it needs, cannot be trained."""
        return

    def refuses(self, cell: C, weights: Mapping[str, Tensor]) -> str:
        """Why no run may start from or learn from these weights of a finished one; empty if one may."""
        return ""

    def keeps(self, cell: C) -> bool:
        """Whether the weights are kept when the run is recorded."""
        return False

    def seconds_an_iteration(self, cells: Sequence[C]) -> float:
        """An estimate before anything is trained; 0 if unknown."""
        return 0.0

    def cost(self, cell: C) -> float:
        """The cost of an iteration, as a multiple of that estimate; runs of equal cost are trained together."""
        return 1.0

    def seconds_to_judge(self) -> float:
        return 0.0

    @property
    def leads(self) -> bool:
        """Whether this process, of those that train a run together, writes files."""
        return True

    def agree(self, answer: bool) -> bool:
        """The leading process's answer."""
        return answer
