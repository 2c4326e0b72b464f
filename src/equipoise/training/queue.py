"""Train many runs on one device within a budget of seconds; each record is written as its run ends.

Classifiers and detectors are two kinds of runs (`Kind`). For both:

    Ctrl-C, SIGTERM   during training, runs are saved after the current chunk of iterations and the queue ends; a second
                      one stops at once. So does the first while runs are judged: they were saved before, and are judged
                      next time
    out of time       the first run is always begun, a later one only if the estimate of its time fits (where a whole
                      group does not fit, a smaller one is tried); what is unfinished at the deadline is saved
    killed            runs in progress are saved every two minutes: no more than that is lost
    checkpoints       a run goes on from a file only if everything it was made from is the same: recipe, data, seed,
                      what it starts from, engine, torch version and, on a CPU, threads. Else the difference is logged
                      and the run starts over. Weights that others start from may come from another engine
    smoke tests       are never shown in a table, and one of the same length that is recorded already is not repeated
    claims            a run is trained by one process at a time: whoever holds the lock of its claim file, beside the
                      file of records. What another process trains is left to it; the claim of a dead process is free
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, Generic, TypeVar

import torch
from torch import Tensor

from equipoise.data.reading import read_json
from equipoise.files import write_text
from equipoise.training.records import StoredRecord, counted, locked
from equipoise.training.weights import read_tensors, weights_digest, write_tensors

SETUP = 15.0  # seconds a group needs beside its iterations, before that was measured
SAVE_EVERY = 120.0  # seconds between checkpoints of a run in progress

C = TypeVar("C")


@dataclass(frozen=True)
class Settings:
    """Where and how to run, apart from what."""

    device: torch.device
    checkpoints: Path
    claims: Path  # shared by all processes that write records to the same file
    together: int = 1  # runs that are trained at the same time
    budget: float = float("inf")  # seconds
    validate: bool = False  # judge on held-out training images instead of the test set
    iterations: int | None = None  # a smoke test: shorter than the recipe says
    commit: str | None = None
    teachers: Path | None = None  # the folder with the weights of all teachers: then none is trained
    log: Callable[[str], None] = print
    report: Callable[[Status], None] = lambda status: None  # after every chunk of iterations


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
        """Whether the loss has stayed a number."""
        return bool(torch.isfinite(torch.as_tensor(self.losses)).all())

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether its state may be saved now."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data; "model" is what another run can start from."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; or, from a `note` and "model", become the finished run that gave them."""

    def note(self) -> dict[str, Any]:
        """Plain data that is kept beside the weights of a finished run."""
        return {}


R = TypeVar("R", bound=Run)


@dataclass(frozen=True)
class Context:
    """What a record holds that the run does not know."""

    seconds: float  # of the run's group, over all the processes that it took
    together: int  # runs that shared the device
    started_from: str | None  # the digest of the weights
    teachers: Mapping[str, str] = field(default_factory=dict)  # the runs that taught it, with the digests of theirs


class Kind(ABC, Generic[C, R]):
    """Abstract: what the queue has to know of a kind of runs. As it stands, each run is on its own, in one process."""

    table: str

    @abstractmethod
    def iterations(self, cell: C) -> int: ...

    @abstractmethod
    def made_from(self, cell: C) -> dict[str, Any]:
        """Recipe, data and seed, as plain data."""

    @abstractmethod
    def engine(self, run: R) -> dict[str, Any]:
        """How it is computed, as plain data."""

    @abstractmethod
    def prepare(self, cell: C, start: Mapping[str, Tensor] | None) -> R:
        """The run at its start."""

    @abstractmethod
    def train(self, runs: Sequence[R], after_chunk: Callable[[], bool], over: Callable[[], bool]) -> None:
        """Train until all are done or `after_chunk()`, called after each chunk of iterations, is true; where a chunk
        is long, end it when `over()` is true."""

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

    def keeps(self, cell: C) -> bool:
        """Whether the weights are kept when the run is recorded."""
        return False

    def seconds_an_iteration(self, cells: Sequence[C]) -> float:
        """A guess, before anything is trained; 0 where unknown."""
        return 0.0

    def seconds_to_judge(self) -> float:
        return 0.0

    @property
    def leads(self) -> bool:
        """Whether this process, of those that train a run together, writes files."""
        return True

    def agree(self, answer: bool) -> bool:
        """The leading process's answer."""
        return answer


# -------------------------------------------------------------------- time


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(42), in_words(600), in_words(9_000), in_words(500_000)
    ('42 s', '10 min', '2.5 h', '5.8 days')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


@dataclass(frozen=True)
class Status:
    """How far a group of runs is."""

    done: int
    iterations: int
    images_a_second: float
    seconds_to_go: float
    what: str = "iterations"

    @classmethod
    def at(cls, done: int, of: int, images: float, seconds: float, since: int = 0, what: str = "iterations") -> Status:
        """After `done` of so many steps of `images` each; those from `since` on took `seconds`."""
        each = max(seconds, 1e-9) / max(done - since, 1)
        return cls(done, of, images / each, each * (of - done), what)

    @property
    def speed(self) -> str:
        """
        >>> Status(1, 9, 0.37, 60).speed
        '0.4 img/s, 60 s to go'
        """
        digits = 0 if self.images_a_second >= 10 else 1
        return f"{self.images_a_second:,.{digits}f} img/s, {in_words(self.seconds_to_go)} to go"

    def __str__(self) -> str:
        return f"{self.done:,} of {self.iterations:,} {self.what}, {self.speed}"


@dataclass
class Timing:
    """What iterations have taken so far, by whether the run starts from the weights of another."""

    guess: float = 0.0  # seconds an iteration of one run
    per_iteration: dict[bool, tuple[int, float]] = field(default_factory=dict)  # -> (group size, seconds)
    setup: float = SETUP

    def estimate(self, size: int, iterations: int, second_stage: bool) -> float:
        """Seconds for a group. A smaller group than measured is not quite as much faster as it is smaller."""
        measured, seconds = self.per_iteration.get(second_stage, (0, 0.0))
        if measured:
            share = 0.15 + 0.85 * size / measured if size < measured else size / measured
            return self.setup + iterations * seconds * share * 1.05
        return self.setup + iterations * self.guess * size

    def largest(self, size: int, iterations: int, second_stage: bool, seconds: float) -> int:
        """The largest group, up to `size`, that takes no more than `seconds`; 0 if none does."""
        fitting = [n for n in range(1, size + 1) if self.estimate(n, iterations, second_stage) <= seconds]
        return max(fitting, default=0)


class Interrupts:
    """What Ctrl-C and SIGTERM do: stop at once, but while training, only `pressed` the first time."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.pressed, self._training, self._log = False, False, log

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle both signals, as far as this thread can; one that is ignored stays ignored."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a job in the background of a script
                    before[number] = signal.signal(number, self._press)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def training(self) -> Iterator[None]:
        self._training = True
        try:
            yield
        finally:
            self._training = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed or not self._training:
            raise KeyboardInterrupt
        self.pressed = True
        with suppress(OSError):
            self._log("interrupted: stopping after these iterations, to save them; press Ctrl-C again to stop at once")


# -------------------------------------------------------------------- what outlives a process


def as_in_json(content: dict[str, Any]) -> dict[str, Any]:
    """What is read again of what is written."""
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return plain


def note_of(weights: Path) -> Path:
    """The file beside the weights of a finished run that says how they came about."""
    return weights.with_name(weights.name.replace(".weights.pt", ".finished.json"))


def claims_held(folder: Path) -> int:
    """How many runs are being trained by processes that share a folder of claims."""

    def is_held(path: Path) -> bool:
        with suppress(OSError), open(path, "rb") as file:
            return not locked(file, wait=False)
        return False

    return sum(is_held(path) for path in folder.glob("*.claim"))


def _changed(content: Any, here: dict[str, Any]) -> str:
    """In what a file was made from something else than `here`; empty where in nothing."""
    found = content.get("made_from") if isinstance(content, dict) else None
    there = found if isinstance(found, dict) else {}
    other = [key for key in here if there.get(key, "unknown") != here[key]]
    return ", ".join(f"{key} {there.get(key, 'unknown')}, now {here[key]}" for key in other[:3])


class Kept(Generic[C, R]):
    """Unfinished runs, weights of finished ones and claims, in a folder; each file with what it was made from."""

    def __init__(self, kind: Kind[C, R], settings: Settings) -> None:
        self._kind, self._settings = kind, settings
        self._starts: dict[C, dict[str, Tensor]] = {}
        self._seconds: dict[C, float] = {}
        self._warned: set[str] = set()

    # weights that others start from

    def start_of(self, cell: C) -> dict[str, Tensor] | None:
        """The weights that a run starts from; None where it starts from none, or they are not there yet."""
        first = self._kind.starts_from(cell)
        return None if first is None else self.weights_of(first)

    def started_from(self, cell: C) -> str | None:
        """The digest of these weights."""
        start = self.start_of(cell)
        return None if start is None else weights_digest(start)

    def teachers_of(self, cell: C) -> dict[C, dict[str, Tensor]]:
        """The weights of the run's teachers, all of which have finished."""
        return {teacher: self._teacher_of(cell, teacher) for teacher in self._kind.teachers(cell)}

    def _teacher_of(self, cell: C, teacher: C) -> dict[str, Tensor]:
        """The weights of one teacher. In a folder that the user gave, they must be of this teacher and this data."""
        given = self._settings.teachers
        if given is None:
            if (weights := self.weights_of(teacher)) is None:
                raise ValueError(
                    f"{cell}: the weights of its teacher {teacher} are not in {self._settings.checkpoints}"
                )
            return weights
        if teacher not in self._starts:
            path = given / f"{self._kind.name(teacher)}.weights.pt"
            if not (path.is_file() and note_of(path).is_file()):
                raise ValueError(
                    f"{cell}: its teacher {teacher} is missing: {path} and {note_of(path).name} are not there"
                )
            note, here = read_json(note_of(path)), as_in_json(self._kind.made_from(teacher))
            if changed := _changed(note, here):
                raise ValueError(f"{cell}: {path} is not its teacher {teacher} ({changed})")
            self._starts[teacher] = read_tensors(path)
        return self._starts[teacher]

    def taught_by(self, cell: C) -> dict[str, str]:
        """The digests of these weights."""
        return {str(teacher): weights_digest(weights) for teacher, weights in self.teachers_of(cell).items()}

    def weights_of(self, cell: C) -> dict[str, Tensor] | None:
        """The weights of a finished run."""
        if cell not in self._starts and (found := self._finished(cell, as_in_json(self._kind.made_from(cell)))):
            self._starts[cell] = found[0]
        return self._starts.get(cell)

    def _finished(self, cell: C, here: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Weights and note of a finished run that was made from `here`, perhaps under another name."""
        others = sorted(self._settings.checkpoints.glob(f"{self._kind.alike(cell)}.weights.pt"))
        for path in dict.fromkeys([self._path(cell, "weights.pt"), *others]):
            if not (path.is_file() and note_of(path).is_file()):
                continue
            try:
                note = json.loads(note_of(path).read_text())
            except ValueError:
                self._warn(f"{note_of(path)} cannot be read: starting from the beginning")
                continue
            if self._is_of(path, note, here) and (weights := self._read(path)) is not None:
                return weights, note
        return None

    # runs

    def resume(self, cell: C, run: R) -> None:
        """Bring a new run to where it was left, if it was."""
        here = self._made_from(cell, run)
        path = self._path(cell, "checkpoint.pt")
        if self._kind.keeps(cell) and (found := self._finished(cell, here)):
            run.load_state_dict(found[1] | {"model": found[0]})
            self._seconds[cell] = float(found[1].get("seconds", 0.0))
        elif path.is_file() and (content := self._read(path)) is not None and self._is_of(path, content, here):
            run.load_state_dict(content["run"])
            self._seconds[cell] = float(content["seconds"])
        else:
            return
        self._settings.log(f"{cell}: taken up at iteration {run.iteration} of {run.iterations}")

    def save(self, cell: C, run: R, seconds: float) -> str | None:
        """Keep a run; `seconds` is what its group took in this process. Why it could not be kept, or None."""
        self._starts.pop(cell, None)
        if not self._kind.leads:
            return None
        content: dict[str, Any] = {"made_from": self._made_from(cell, run), "seconds": seconds + self.before(cell)}
        path = self._path(cell, "weights.pt")
        try:
            if run.done and self._kind.keeps(cell):
                note_of(path).unlink(missing_ok=True)  # the weights never lie beside the note of others
                write_tensors(path, run.state_dict()["model"])
                write_text(note_of(path), json.dumps(content | run.note()))
                self.forget(cell)
            else:
                write_tensors(self._path(cell, "checkpoint.pt"), content | {"run": run.state_dict()})
        except OSError as error:
            return f"{error}: these iterations are lost"
        return None

    def forget(self, cell: C) -> None:
        """Remove the checkpoint of a run."""
        if self._kind.leads:
            self._path(cell, "checkpoint.pt").unlink(missing_ok=True)

    def before(self, cell: C) -> float:
        """The seconds that a run which was taken up had taken before."""
        return self._seconds.get(cell, 0.0)

    @contextmanager
    def claimed(self, cell: C) -> Iterator[bool]:
        """Whether this process may train the run; others may not until the block ends."""
        length = "" if self._settings.iterations is None else f"-{self._settings.iterations}"
        path = self._settings.claims / (f"{self._kind.table}/{cell}{length}".replace("/", "-") + ".claim")
        file = self._claim(path) if self._kind.leads else None
        try:
            yield self._kind.agree(file is not None)
        finally:
            if file is not None:
                path.unlink(missing_ok=True)
                file.close()
                with suppress(OSError):  # other claims are in it
                    path.parent.rmdir()

    def _claim(self, path: Path, attempts: int = 3) -> IO[bytes] | None:
        for _ in range(attempts):
            with suppress(FileNotFoundError), ExitStack() as opened:  # its holder may just have removed it
                path.parent.mkdir(parents=True, exist_ok=True)
                file = opened.enter_context(open(path, "ab"))
                if locked(file, wait=False) and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    opened.pop_all()  # stays open as long as the claim is held
                    return file
            time.sleep(0.05)  # another process may only be counting claims
        return None

    # files

    def _path(self, cell: C, ending: str) -> Path:
        return self._settings.checkpoints / f"{self._kind.name(cell)}.{ending}"

    def _made_from(self, cell: C, run: R) -> dict[str, Any]:
        """Everything that must be the same for a run to be taken up."""
        content = self._kind.made_from(cell) | self._kind.engine(run) | {"torch": torch.__version__}
        if self._settings.device.type == "cpu":
            content["threads"] = torch.get_num_threads()  # sums depend on them
        if self._kind.teachers(cell):
            content["taught_by"] = self.taught_by(cell)
        return as_in_json(content | {"started_from": self.started_from(cell)})

    def _is_of(self, path: Path, content: Any, here: dict[str, Any]) -> bool:
        """Whether a file was made from what is here; if not, the difference is logged."""
        if changed := _changed(content, here):
            self._warn(f"{path.name} is not of this run ({changed}): starting from the beginning")
        return not changed

    def _read(self, path: Path) -> Any:
        try:
            return read_tensors(path)
        except ValueError as error:
            self._warn(f"{error}: starting from the beginning")
            return None

    def _warn(self, text: str) -> None:
        """Log it, once."""
        if text not in self._warned:
            self._warned.add(text)
            self._settings.log(text)


# -------------------------------------------------------------------- the queue


def run_cells(
    cells: Sequence[C],
    kind: Kind[C, R],
    settings: Settings,
    *,
    write: Callable[[StoredRecord], None],
    recorded: Callable[[], Collection[str]] = tuple,
) -> list[C]:
    """Train `cells` in order, as many as the budget allows; returns those that were recorded.

    `recorded` gives the cells that have a record by now, perhaps by another process. A run that another needs is
    trained before it, and recorded only if it is among `cells`.
    """
    queue = _Queue(cells, kind, settings, write, recorded)
    if settings.teachers is not None:  # one that cannot be used is reported before anything is trained
        for cell in cells:
            queue.kept.teachers_of(cell)
    with queue.interrupts.handled():
        while queue.train_next():
            pass
    return queue.recorded


class _Queue(Generic[C, R]):
    def __init__(
        self,
        cells: Sequence[C],
        kind: Kind[C, R],
        settings: Settings,
        write: Callable[[StoredRecord], None],
        recorded: Callable[[], Collection[str]],
    ) -> None:
        self.kind, self.settings, self.write, self.recorded_by_now = kind, settings, write, recorded
        self.deadline = time.monotonic() + settings.budget
        self.interrupts = Interrupts(settings.log)
        self.kept = Kept(kind, settings)
        self.waiting, self.wanted, self.recorded = list(cells), set(cells), list[C]()
        self.trained, self.failed = set[C](), set[C]()
        self.timing = Timing(kind.seconds_an_iteration(cells))

    # what to train next

    def train_next(self) -> bool:
        """Train the next group; whether there may be another one."""
        with ExitStack() as claims:
            group = self._next_group(claims)
            return bool(group) and self._train_group(group)

    def _next_group(self, claims: ExitStack) -> list[C]:
        """The next runs to train together, claimed: in order, equally long, all with or all without a start."""
        self._order_by_start()
        ready = [cell for cell in self.waiting if not any(first in self.waiting for first in self._needs(cell))]
        for shape in dict.fromkeys(map(self._shape, ready)):
            alike = [cell for cell in ready if self._shape(cell) == shape]
            size = self._size(min(len(alike), self.settings.together), *shape)
            if size == 0:
                left = max(self.deadline - time.monotonic(), 0)
                to_go = counted(len(self.waiting), "run")
                self.settings.log(f"{left:.0f} s are left, too few for {alike[0]}: stopping with {to_go} to go")
                return []
            group: list[C] = []
            for cell in alike:
                if len(group) < size and self._claim(cell, claims):
                    group.append(cell)
            if group:
                return group
        if self.waiting:
            to_go = counted(len(self.waiting), "run")
            self.settings.log(f"other processes are training {self.waiting[0]} or what it starts from: {to_go} to go")
        return []

    def _order_by_start(self) -> None:
        """Put what is not there in front of the run that needs it; leave out what needs one that cannot be had."""
        for cell in list(self.waiting):
            for first in self._needs(cell):
                if first in self.waiting:
                    continue
                missing = self.kind.agree(self.kept.weights_of(first) is None)
                if first in self.failed or (missing and first in self.trained):
                    what = "is taught by" if first in self.kind.teachers(cell) else "starts from"
                    self.settings.log(f"{cell}: left out, as it {what} {first}")
                    self.failed.add(cell)
                    self.waiting.remove(cell)
                    break
                if missing:
                    self.waiting.insert(self.waiting.index(cell), first)

    def _needs(self, cell: C) -> list[C]:
        """The runs whose weights a run needs."""
        first = self.kind.starts_from(cell)
        trained = self.kind.teachers(cell) if self.settings.teachers is None else ()
        return [*([] if first is None else [first]), *trained]

    def _shape(self, cell: C) -> tuple[int, bool]:
        return self.kind.iterations(cell), self.kind.starts_from(cell) is not None or bool(self.kind.teachers(cell))

    def _size(self, size: int, iterations: int, second_stage: bool) -> int:
        """How many runs of this shape can be trained in the time that is left; of the first group, at least one."""
        left = self.deadline - time.monotonic() - self.kind.seconds_to_judge()
        fitting = self.timing.largest(size, iterations, second_stage, left)
        if self.kind.agree(fitting == 0):
            return 0 if self.trained else 1
        return max(fitting, 1)

    def _claim(self, cell: C, claims: ExitStack) -> bool:
        """Whether the run is ours; one that another process has finished meanwhile is not waiting any more."""
        if not claims.enter_context(self.kept.claimed(cell)):
            return False
        if cell in self.wanted:
            finished = str(cell) in self.recorded_by_now()
        else:
            finished = self.kept.weights_of(cell) is not None
        if self.kind.agree(finished):
            self.waiting.remove(cell)
            self.wanted.discard(cell)
        return cell in self.waiting

    # training

    def _train_group(self, group: Sequence[C]) -> bool:
        """Train, save and judge a group; whether there is time for another."""
        began = time.monotonic()
        runs = {cell: self._prepared(cell) for cell in group}
        together = f" {len(group)} together" if len(group) > 1 else ""
        self.settings.log(f"training{together}: " + ", ".join(map(str, group)))
        first = min(run.iteration for run in runs.values())
        start = time.monotonic()
        try:
            with self.interrupts.training():
                self.kind.train(list(runs.values()), self._after_chunk(runs, began), self._is_over)
        except Exception:
            self._save([cell for cell in group if runs[cell].whole], runs, "stopped", began)
            raise
        seconds, iterations = time.monotonic() - start, runs[group[0]].iterations - first
        self.trained.update(group)
        pressed = self.kind.agree(self.interrupts.pressed)
        good = self._without_diverged(runs)
        why = "interrupted" if pressed else "out of time"
        self._save([cell for cell in good if not runs[cell].done], runs, why, began)
        finished = [cell for cell in good if runs[cell].done]
        self._save(finished, runs, "interrupted" if pressed else None, began)
        if pressed:
            raise KeyboardInterrupt
        in_time = self._judge_group(finished, runs, began, judged_only=not iterations)
        if iterations and len(finished) == len(group):
            self.timing.per_iteration[self._shape(group[0])[1]] = (len(group), seconds / iterations)
            self.timing.setup = max(2.0, time.monotonic() - began - seconds)
        return in_time and len(finished) == len(good)

    def _prepared(self, cell: C) -> R:
        """A run at its start, or where it was left."""
        if self.kind.teachers(cell):
            run = self.kind.prepare_taught(cell, list(self.kept.teachers_of(cell).values()))
        else:
            run = self.kind.prepare(cell, self.kept.start_of(cell))
        self.kept.resume(cell, run)
        return run

    def _is_over(self) -> bool:
        return self.interrupts.pressed or time.monotonic() >= self.deadline - self.kind.seconds_to_judge()

    def _after_chunk(self, runs: Mapping[C, R], began: float) -> Callable[[], bool]:
        start = saved = time.monotonic()
        first = min(run.iteration for run in runs.values())

        def after_chunk() -> bool:
            nonlocal saved
            now, done = time.monotonic(), min(run.iteration for run in runs.values())
            one = next(iter(runs.values()))
            images = len(runs) * one.batch_size
            self.settings.report(Status.at(done, one.iterations, images, now - start, first))
            over = self._is_over()
            if now - saved >= SAVE_EVERY and not over:
                for cell, run in runs.items():
                    if not run.done and (problem := self.kept.save(cell, run, now - began)):
                        self.settings.log(f"{cell}: {problem}")
                saved = time.monotonic()
            return over

        return after_chunk

    def _without_diverged(self, runs: Mapping[C, R]) -> list[C]:
        for cell, run in runs.items():
            if not run.finite:
                self.settings.log(f"{cell}: the loss became infinite or not a number; no record is written")
                self.failed.add(cell)
                self.waiting.remove(cell)
                self.kept.forget(cell)
        return [cell for cell, run in runs.items() if run.finite]

    def _save(self, cells: Sequence[C], runs: Mapping[C, R], why: str | None, began: float) -> None:
        """Keep runs that have no record yet; `why` they stop is reported, None where they go on to be judged."""
        for cell in cells:
            run = runs[cell]
            problem = self.kept.save(cell, run, time.monotonic() - began)
            if why or problem:
                where = f"{why or 'stopped'} at iteration {run.iteration} of {run.iterations}"
                with suppress(OSError):  # a pipe that nobody reads any more
                    self.settings.log(f"{cell}: {where}; {problem or 'saved, and taken up next time'}")

    def _judge_group(self, cells: Sequence[C], runs: Mapping[C, R], began: float, *, judged_only: bool) -> bool:
        """Record what was trained, as far as there is time."""
        for cell in cells:
            if cell in self.wanted:
                late = time.monotonic() + self.kind.seconds_to_judge() > self.deadline
                if self.kind.agree(late and not (judged_only and not self.recorded)):
                    self.settings.log(f"{cell}: trained, but too little time is left to judge it; saved for next time")
                    return False
                seconds = time.monotonic() - began + self.kept.before(cell)
                context = Context(seconds, len(cells), self.kept.started_from(cell), self.kept.taught_by(cell))
                self._record(cell, runs[cell], context)
            self.waiting.remove(cell)
            self.kept.forget(cell)  # only now: a process killed before has its checkpoint still
        return True

    def _record(self, cell: C, run: R, context: Context) -> None:
        """Judge a run and write its record, before anything is logged: nobody may be listening any more."""
        if self.kind.leads:
            try:
                self.write(record := self.kind.judge(cell, run, context))
            except KeyboardInterrupt:
                self.settings.log(f"{cell}: interrupted while it was judged; saved, and judged next time")
                raise
            self.settings.log(f"{cell}: {self.kind.in_words(record)}")
        self.recorded.append(cell)
