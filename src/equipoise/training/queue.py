"""Train many runs on one device within a budget of seconds: in groups, each record written as its run ends.

A group trains together and is started only if it can finish in time, by what the groups before it took; where a whole
group does not fit, a smaller one is tried. A run that does not finish all the same, or is interrupted, is saved, and
taken up next time: by a run of the same recipe, data and engine, and by no other.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.data.cifar import Cifar, LongTailedCifar, held_out, load_cifar, long_tailed_cifar, source_of
from equipoise.experiments.table1.recipe import Cell
from equipoise.metrics.evaluation import evaluate
from equipoise.training.classification import Training, TrainingSet, thinned, train, weights_digest
from equipoise.training.recipe import Recipe
from equipoise.training.records import Record, counted, hardware, versions

FIRST_GUESS = {"cuda": 0.006, "fused": 0.003, "cpu": 0.0}  # seconds an iteration before one was measured; 0: unknown
SETUP = 15.0  # seconds a group needs beside its iterations, before that was measured
TIMED = 2  # iterations that a CPU is timed with before a long run
LONG = 100  # iterations of a long run


@dataclass(frozen=True)
class Status:
    """How far a group of runs is."""

    done: int  # iterations of each run, since it was started or taken up
    iterations: int
    images_a_second: float
    seconds_to_go: float
    what: str = "iterations"

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
class Settings:
    """How to run, apart from what: none of it changes a result, except to rounding."""

    device: torch.device
    together: int = 4
    compiled: bool = False
    fused: bool = False
    deterministic: bool = True
    validate: bool = False  # judge on held-out training images instead of the test set
    iterations: int | None = None  # a smoke test: shorter than the recipe says
    commit: str | None = None
    checkpoints: Path | None = None
    say: Callable[[str], None] = print
    report: Callable[[Status], None] = lambda status: None  # after every chunk of iterations

    def configure(self) -> None:
        """cuDNN's choice of algorithms, for this process."""
        torch.backends.cudnn.deterministic = self.deterministic
        torch.backends.cudnn.benchmark = not self.deterministic

    @property
    def engine(self) -> dict[str, Any]:
        """What of it a record keeps."""
        on_gpu = self.device.type == "cuda"
        return {
            "precision": "bf16 autocast, head and loss fp32" if on_gpu else "fp32",
            "cuda_graph": on_gpu,
            "compiled": self.compiled,
            "fused": self.fused,
            "deterministic": self.deterministic,
        }


class Store:
    """The data sets, read once, and the long-tailed draws of them that lie on the device."""

    def __init__(self, root: Path, device: torch.device, *, download: bool = False) -> None:
        self.root, self.device, self.download = root, device, download
        self._cifar: dict[str, Cifar] = {}
        self._sets: dict[tuple[str, int], tuple[LongTailedCifar, TrainingSet]] = {}

    def read(self, data_set: str) -> Cifar:
        """The whole data set; fetched first if it is not there and may be."""
        name, _ = source_of(data_set)
        if name not in self._cifar:
            self._cifar[name] = load_cifar(self.root, name, download=self.download)
        return self._cifar[name]

    def get(self, data_set: str, imbalance: int) -> tuple[LongTailedCifar, TrainingSet]:
        """The draw, and the same on the device."""
        if (data_set, imbalance) not in self._sets:
            drawn = long_tailed_cifar(self.read(data_set), imbalance, draw=source_of(data_set)[1])
            on_device = TrainingSet.of(drawn.images, drawn.labels, drawn.prior, self.device)
            self._sets[data_set, imbalance] = drawn, on_device
        return self._sets[data_set, imbalance]


@dataclass
class Timing:
    """What iterations have taken so far, by whether the backbone is frozen."""

    kind: str  # of FIRST_GUESS
    per_iteration: dict[bool, tuple[int, float]] = field(default_factory=dict)  # frozen -> (group size, seconds)
    setup: float = SETUP

    def estimate(self, size: int, iterations: int, frozen: bool) -> float:
        """Seconds for a group. A smaller group than measured is not quite as much faster as it is smaller."""
        measured, seconds = self.per_iteration.get(frozen, (0, 0.0))
        if measured:
            share = 0.15 + 0.85 * size / measured if size < measured else size / measured
            return self.setup + iterations * seconds * share * 1.05
        return self.setup + iterations * FIRST_GUESS[self.kind] * size

    def largest(self, size: int, iterations: int, frozen: bool, seconds: float) -> int:
        """The largest group, up to `size`, that takes no more than `seconds`; 0 if none does."""
        fitting = [n for n in range(1, size + 1) if self.estimate(n, iterations, frozen) <= seconds]
        return max(fitting, default=0)


def run_cells(
    cells: Sequence[Cell],
    recipe_of: Callable[[Cell], Recipe],
    store: Store,
    settings: Settings,
    *,
    table: str,
    write: Callable[[Record], None],
    budget: float = float("inf"),
    backbones: Collection[str] = (),
) -> list[Cell]:
    """Train `cells` in order, as many as fit in `budget` seconds; returns those that were recorded.

    `backbones` names methods that others build on: their weights are kept for these.
    """
    deadline = time.monotonic() + budget
    settings.configure()
    timing = Timing("fused" if settings.fused else settings.device.type)
    kept = Kept(recipe_of, store, settings)
    waiting, recorded = list(cells), []
    wanted = set(cells)

    def keep(cell: Cell, record: Record, run: Training) -> None:
        if cell in wanted:
            write(record)
            recorded.append(cell)
        if cell.method in backbones:
            kept.keep_weights(cell, run)
        kept.forget(cell)  # only now: a process killed before has its checkpoint still

    _time_cpu(cells, recipe_of, store, settings, timing)
    while waiting:
        group, frozen = _next_group(waiting, recipe_of, settings, kept)
        iterations = _recipe(group[0], recipe_of, settings).iterations
        left = max(deadline - time.monotonic(), 0)
        size = timing.largest(len(group), iterations, frozen, left)
        if size == 0:
            to_go = counted(len(waiting), "run")
            settings.say(f"{left:.0f} s are left, too few for {group[0]}: stopping with {to_go} to go")
            break
        finished = _run_group(group[:size], recipe_of, store, settings, timing, kept, deadline, table, keep)
        if not finished:
            break
        diverged = {cell for cell, good in finished.items() if not good}
        orphans = [cell for cell in waiting if _backbone_of(cell, recipe_of) in diverged]
        for cell in orphans:
            settings.say(f"{cell}: its backbone diverged, so it cannot be trained")
        waiting = [cell for cell in waiting if cell not in finished and cell not in orphans]
    return recorded


def _recipe(cell: Cell, recipe_of: Callable[[Cell], Recipe], settings: Settings) -> Recipe:
    recipe = recipe_of(cell)
    return recipe if settings.iterations is None else recipe.shortened(settings.iterations)


def _backbone_of(cell: Cell, recipe_of: Callable[[Cell], Recipe]) -> Cell | None:
    """The run whose backbone the cell keeps: same data, same seed."""
    method = recipe_of(cell).backbone
    return None if method is None else Cell(cell.data_set, cell.imbalance, method, cell.seed)


def _next_group(
    waiting: list[Cell], recipe_of: Callable[[Cell], Recipe], settings: Settings, kept: Kept
) -> tuple[list[Cell], bool]:
    """The next runs to train together: in order, equally long, all with or all without a frozen backbone that is there.

    A backbone that is not there is put in front of `waiting`.
    """

    def shape(cell: Cell) -> tuple[int, bool]:
        recipe = _recipe(cell, recipe_of, settings)
        return recipe.iterations, recipe.backbone is not None

    for cell in list(waiting):
        backbone = _backbone_of(cell, recipe_of)
        if backbone is not None and backbone not in waiting and kept.weights_of(backbone) is None:
            waiting.insert(waiting.index(cell), backbone)
    ready = [cell for cell in waiting if _backbone_of(cell, recipe_of) not in waiting]
    first = shape(ready[0])
    return [cell for cell in ready if shape(cell) == first][: settings.together], first[1]


def _time_cpu(
    cells: Sequence[Cell], recipe_of: Callable[[Cell], Recipe], store: Store, settings: Settings, timing: Timing
) -> None:
    """Before long runs on a CPU: time a few iterations, and say how long all of them will take."""
    recipes = [_recipe(cell, recipe_of, settings) for cell in cells]
    long = [i for i, recipe in enumerate(recipes) if recipe.iterations >= LONG and recipe.backbone is None]
    if settings.device.type != "cpu" or not long:
        return
    recipe = recipes[long[0]]
    _, data = store.get(cells[long[0]].data_set, cells[long[0]].imbalance)
    for _ in range(2):  # the first is slower
        run = Training(recipe.shortened(TIMED), data, seed=0)
        start = time.monotonic()
        train([run])
        each = (time.monotonic() - start) / TIMED
    timing.per_iteration[False] = (1, each)
    total = each * sum(recipe.iterations for recipe in recipes)
    settings.say(
        f"On this CPU an iteration takes {each:.2g} s: {in_words(each * recipe.iterations)} for a run of "
        f"{recipe.iterations:,}, about {in_words(total)} for all that is wanted. A GPU needs a minute or two a run; "
        "--iterations 50 only tries things out"
    )


def _run_group(
    group: Sequence[Cell],
    recipe_of: Callable[[Cell], Recipe],
    store: Store,
    settings: Settings,
    timing: Timing,
    kept: Kept,
    deadline: float,
    table: str,
    keep: Callable[[Cell, Record, Training], None],
) -> dict[Cell, bool]:
    """Train a group, and `keep` each run that finished; those, with whether their loss stayed finite."""
    start = time.monotonic()
    runs = [_prepared(cell, _recipe(cell, recipe_of, settings), store, settings, kept) for cell in group]
    iterations = runs[0].recipe.iterations - min(run.iteration for run in runs)
    together = f" {len(group)} together" if len(group) > 1 else ""
    settings.say(f"training{together}: " + ", ".join(map(str, group)))
    training_start = time.monotonic()

    def report(done: int, seconds: float) -> None:
        each = max(seconds, 1e-9) / max(done, 1)
        images = len(runs) * runs[0].recipe.batch_size / each
        settings.report(Status(done, iterations, images, each * (iterations - done)))

    results: dict[Cell, bool] = {}
    at_once = False
    with interruptible(settings.say) as interrupted:
        try:
            finished = train(runs, until=deadline, stop=interrupted, report=report)
            training_seconds = time.monotonic() - training_start
            for cell, run in zip(group, runs, strict=True):
                if not run.done:
                    continue
                if not bool(torch.isfinite(run.losses).all()):
                    results[cell] = False
                    kept.forget(cell)
                    settings.say(f"{cell}: the loss became infinite or not a number; no record is written")
                    continue
                seconds = time.monotonic() - start + kept.seconds_before(cell)
                record = _record(cell, run, store, settings, kept, table, seconds, len(group))
                keep(cell, record, run)  # before anything is said: nobody may be listening any more
                results[cell] = True
                settings.say(f"{cell}: top-1 {record.top1:.2f} on {record.evaluated_on}, {record.seconds:.0f} s")
        except KeyboardInterrupt:  # the second: at once
            at_once = True
            raise
        finally:  # whatever else happened, what is trained and not recorded is taken up next time
            left = [(cell, run) for cell, run in zip(group, runs, strict=True) if cell not in results and run.whole]
            if not at_once:
                kept.save(left, time.monotonic() - start)
    if interrupted():
        raise KeyboardInterrupt
    if finished and iterations:
        frozen = runs[0].recipe.backbone is not None
        timing.per_iteration[frozen] = (len(group), training_seconds / iterations)
        timing.setup = max(2.0, time.monotonic() - start - training_seconds)
    return results


@contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed: once asks to stop where it can be saved, twice stops."""
    pressed = threading.Event()

    def press(*_: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        with suppress(OSError):
            say("interrupted: stopping after these iterations, to save them; press Ctrl-C again to stop at once")

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a job in the background of a script
    if ignored or threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _prepared(cell: Cell, recipe: Recipe, store: Store, settings: Settings, kept: Kept) -> Training:
    """A run at its start, or where it was left."""
    _, data = store.get(cell.data_set, cell.imbalance)
    kernels = {"compiled": settings.compiled, "fused": settings.fused}
    run = Training(recipe, data, cell.seed, backbone=kept.backbone_of(cell), **kernels)
    kept.resume(run, cell)
    return run


@torch.no_grad()
def _record(
    cell: Cell,
    run: Training,
    store: Store,
    settings: Settings,
    kept: Kept,
    table: str,
    seconds: float,
    together: int,
) -> Record:
    drawn, data = store.get(cell.data_set, cell.imbalance)
    if settings.validate:
        left = held_out(drawn)
        images, labels = drawn.cifar.train_images[left], drawn.cifar.train_labels[left]
    else:
        images, labels = drawn.cifar.test_images, drawn.cifar.test_labels
    logits = run.predict(torch.from_numpy(images).to(data.device)).cpu().double()
    result = evaluate(logits, labels, drawn.prior)
    # p(y) in the units the loss was trained in: LDAM's cosines times its scale, sigmoids for K binary problems
    sigmoid = "Sigmoid" in type(run.loss).__name__
    scores = (float(getattr(run.loss, "scale", 1.0)) * logits).softmax(1) if not sigmoid else logits.sigmoid()
    return Record(
        table=table,
        data_set=cell.data_set,
        imbalance=cell.imbalance,
        method=cell.method,
        seed=cell.seed,
        top1=round(100 * result.top1, 4),
        balanced_accuracy=round(100 * result.balanced_accuracy, 4),
        evaluated_on="held_out" if settings.validate else "test",
        iterations=run.iteration,
        complete=settings.iterations is None,
        recipe=run.recipe.as_dict(),
        draw=drawn.digest,
        pixels=drawn.pixel_digest,
        counts=drawn.prior.counts.tolist(),
        correct=result.correct.tolist(),
        total=result.items.tolist(),
        marginal=[float(f"{value:.6g}") for value in scores.mean(0).tolist()],
        loss_curve=thinned(run.losses.tolist()),
        weights=weights_digest(run.model),
        seconds=round(seconds, 1),
        together=together,
        engine=settings.engine,
        commit=settings.commit,
        versions=versions(),
        hardware=hardware(settings.device),
        backbone_weights=kept.backbone_digest(cell),
    )


# -------------------------------------------------------------------- what outlives a process


class Kept:
    """Unfinished runs and trained backbones, in files where a folder was given, each with what it was made from."""

    def __init__(self, recipe_of: Callable[[Cell], Recipe], store: Store, settings: Settings) -> None:
        self._recipe_of, self._store, self._settings = recipe_of, store, settings
        self._weights: dict[Cell, Mapping[str, Tensor]] = {}
        self._seconds: dict[Cell, float] = {}

    # a backbone's weights

    def weights_of(self, cell: Cell) -> Mapping[str, Tensor] | None:
        """The weights that a run ended with, if they are there and of the same recipe and data."""
        if cell not in self._weights:
            content = self._read(cell, "weights.pt", engine=False)
            if content is not None:
                self._weights[cell] = content["weights"]
        return self._weights.get(cell)

    def backbone_of(self, cell: Cell) -> Mapping[str, Tensor] | None:
        """The weights that a second stage starts from; None for a run from scratch."""
        backbone = _backbone_of(cell, self._recipe_of)
        return None if backbone is None else self.weights_of(backbone)

    def backbone_digest(self, cell: Cell) -> str | None:
        """Names them."""
        weights = self.backbone_of(cell)
        return None if weights is None else weights_digest(weights)

    def keep_weights(self, cell: Cell, run: Training) -> None:
        self._weights[cell] = {name: value.cpu() for name, value in run.model.state_dict().items()}
        if self._settings.checkpoints is not None:
            made_from = self._made_from(cell, engine=False)
            write_tensors(self._path(cell, "weights.pt"), {"made_from": made_from, "weights": self._weights[cell]})

    # an unfinished run

    def save(self, runs: Sequence[tuple[Cell, Training]], seconds: float) -> None:
        """Runs that have no record yet; `seconds` is what the group took in this process."""
        if runs and self._settings.checkpoints is None:
            self._settings.say("stopped, and no folder for checkpoints was given: these runs are lost")
            return
        for cell, run in runs:
            path = self._path(cell, "checkpoint.pt")
            try:
                content = {
                    "made_from": self._made_from(cell, engine=True),
                    "seconds": seconds + self.seconds_before(cell),
                    "run": run.state_dict(),
                }
                write_tensors(path, content)
            except (OSError, RuntimeError) as error:  # torch says a full disk as a RuntimeError
                said = f"{path} could not be written ({error}): these iterations are lost"
            else:
                said = "saved, and taken up next time"
            with suppress(OSError):  # a pipe that nobody reads any more
                self._settings.say(f"{cell}: stopped at iteration {run.iteration}; {said}")

    def resume(self, run: Training, cell: Cell) -> None:
        """Bring the run to where it was left, if it was."""
        content = self._read(cell, "checkpoint.pt", engine=True)
        if content is not None:
            run.load_state_dict(content["run"])
            self._seconds[cell] = float(content["seconds"])
            self._settings.say(f"{cell}: taken up at iteration {run.iteration}")

    def seconds_before(self, cell: Cell) -> float:
        """What a run that was taken up had taken before."""
        return self._seconds.get(cell, 0.0)

    def forget(self, cell: Cell) -> None:
        if self._settings.checkpoints is not None:
            self._path(cell, "checkpoint.pt").unlink(missing_ok=True)

    # files

    def _path(self, cell: Cell, ending: str) -> Path:
        assert self._settings.checkpoints is not None
        length = "" if self._settings.iterations is None else f"-{self._settings.iterations}"
        what = "-validate" if self._settings.validate else ""
        return self._settings.checkpoints / f"{str(cell).replace('/', '-')}{what}{length}.{ending}"

    def _made_from(self, cell: Cell, *, engine: bool) -> dict[str, Any]:
        """What must be the same for a file to be of use, as plain data."""
        drawn, _ = self._store.get(cell.data_set, cell.imbalance)
        content = _recipe(cell, self._recipe_of, self._settings).as_dict()
        content |= {"seed": cell.seed, "draw": drawn.digest, "pixels": drawn.pixel_digest}
        if engine:
            content |= self._settings.engine | {"torch": torch.__version__}
            if self._settings.device.type == "cpu":
                content["threads"] = torch.get_num_threads()  # sums depend on them
            content["backbone_weights"] = self.backbone_digest(cell)
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return plain

    def _read(self, cell: Cell, ending: str, *, engine: bool) -> dict[str, Any] | None:
        """What the cell's file holds; None if there is none, or if it is of something else, which is said."""
        if self._settings.checkpoints is None:
            return None
        path = self._path(cell, ending)
        if not path.is_file():
            return None
        try:
            content: dict[str, Any] = torch.load(path, weights_only=True)
            there = dict(content.get("made_from", {}))
        except Exception as error:  # torch raises many kinds for a damaged file; EOFError would end us without a word
            self._settings.say(f"{path} cannot be read ({type(error).__name__}): starting from the beginning")
            return None
        here = self._made_from(cell, engine=engine)
        other = [key for key in here if there.get(key) != here[key]]
        if other:
            changed = ", ".join(f"{key} {there.get(key, 'unknown')}, now {here[key]}" for key in other[:3])
            self._settings.say(f"{path.name} is not of this run ({changed}): starting from the beginning")
            return None
        return content


def write_tensors(path: Path, content: Any) -> None:
    """Whole or not at all: a process killed meanwhile leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")  # another process may write the same
    try:
        torch.save(content, scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
