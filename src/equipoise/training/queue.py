"""Train many runs on one device within a time budget; each record is written when its run ends.

Classifiers and detectors are two kinds of runs (`Kind`). For both:

    Ctrl-C, SIGTERM   during training, runs are saved after the current chunk of iterations and the queue ends; a second
                      one stops at once. While runs are evaluated, the first one stops at once: they were saved before,
                      and are evaluated next time
    out of time       the first run is always started, a later one only if its estimated time fits (if a whole group
                      does not fit, a smaller one is tried); runs that are unfinished at the deadline are saved
    killed            runs in progress are saved every two minutes: no more than that is lost
    checkpoints       a run resumes from a file only if everything it was made from is the same: recipe, data, seed,
                      starting point, engine, torch version and, on a CPU, threads. Otherwise the difference is logged
                      and the run starts over. Weights that others start from may come from another engine
    smoke tests       are never shown in a table, and one of the same length that is already recorded is not repeated
    claims            a run is trained by one process at a time: the one that holds the locks of its claim files, one
                      for its record and one for its checkpoint and weights. Other processes skip the run; claims of
                      dead processes are released
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import Generic

from equipoise.data.reading import counted
from equipoise.training.kept import Kept
from equipoise.training.kinds import C, Context, Kind, R, Settings
from equipoise.training.progress import Interrupts, Pace, Status, Timing
from equipoise.training.records import StoredRecord

SAVE_EVERY = 120.0  # seconds between checkpoints of a run in progress
LOOK_EVERY = 10.0  # seconds between looks at its loss
NAMED = 6  # runs that a message lists


def run_cells(
    cells: Sequence[C],
    kind: Kind[C, R],
    settings: Settings,
    *,
    write: Callable[[StoredRecord], None],
    recorded: Callable[[], Collection[str]] = tuple,
) -> list[C]:
    """Train `cells` in order, as many as the budget allows; returns those that were recorded.

    `recorded` returns the cells that have a record by now, perhaps from another process. Runs that others need are
    trained before them, those of a whole group of others at a time, and recorded only if they are among `cells`.
    """
    for cell in cells:
        kind.check(cell)
    queue = _Queue(cells, kind, settings, write, recorded)
    if settings.teachers is not None:  # report a folder that cannot be used before anything is trained
        for cell in cells:
            for teacher, weights in queue.kept.teachers_of(cell).items():
                if why := kind.refuses(teacher, weights):
                    raise ValueError(f"{cell}: its teacher {teacher} is refused: {why}")
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
        self.trained, self.failed, self.warned = set[C](), set[C](), set[C]()
        self.usable = set[C]()  # finished runs whose weights others may have
        self._order_by_start()
        self.timing = Timing(kind.seconds_an_iteration(self.waiting))

    # what to train next

    def train_next(self) -> bool:
        """Train the next group; returns whether there may be another one."""
        with ExitStack() as claims:
            group = self._next_group(claims)
            return bool(group) and self._train_group(group)

    def _next_group(self, claims: ExitStack) -> list[C]:
        """The next runs to train together, claimed: in order, equally long and large, all with or all without a
        start."""
        self._order_by_start()
        before = len(self.waiting)
        ready = [cell for cell in self.waiting if not any(first in self.waiting for first in self._needs(cell))]
        for shape in dict.fromkeys(map(self._shape, ready)):
            alike = [cell for cell in ready if self._shape(cell) == shape]
            size = self._size(min(len(alike), self.settings.together), *shape)
            if size == 0:
                left = max(self.deadline - time.monotonic(), 0)
                to_go = counted(len(self.waiting), "run")
                self.settings.log(f"{left:.0f} s are left, not enough for {alike[0]}: stopping with {to_go} to go")
                return []
            group: list[C] = []
            for cell in alike:
                if len(group) < size and self._claim(cell, claims):
                    group.append(cell)
            if group:
                return group
        if len(self.waiting) < before:  # another process has finished some: what needs them may be ready now
            return self._next_group(claims)
        if self.waiting:
            to_go = counted(len(self.waiting), "run")
            self.settings.log(f"other processes are training {self.waiting[0]} or what it needs: {to_go} to go")
        return []

    def _order_by_start(self) -> None:
        """Put what runs need before them, and add what is missing; leave out runs that need one that cannot be had."""
        added = [one for group in self._groups() for cell in group for one in self._put_needs_before(cell, group)]
        if added:
            named = ", ".join(map(str, added[:NAMED])) + (", ..." if len(added) > NAMED else "")
            self.settings.log(f"and {counted(len(added), 'run')} whose weights are needed and missing: {named}")

    def _put_needs_before(self, cell: C, group: Sequence[C]) -> list[C]:
        """Put what a run needs before its group, or leave the run out; returns the runs that were not waiting, and what
        they need in turn."""
        added: list[C] = []
        for first in self._needs(cell) if cell in self.waiting else ():
            if first not in self.waiting:
                if self._usable(first):
                    continue
                if first not in self.failed | self.trained:
                    self.waiting.append(first)
                    added += [first, *self._put_needs_before(first, [first])]
                if first not in self.waiting:
                    self._skip(cell, first)
                    break
            self._put_before(first, group)
        return added

    def _usable(self, first: C) -> bool:
        """Whether others may start from or learn from the weights of a finished run."""
        weights = self.kept.weights_of(first)
        if first not in self.failed | self.usable and weights is not None:
            if why := self.kind.refuses(first, weights):
                self.settings.log(f"{first}: {why}")
                self.failed.add(first)
            else:
                self.usable.add(first)
        return self.kind.agree(weights is not None and first in self.usable)

    def _groups(self) -> list[list[C]]:
        """The waiting runs, in order; runs of one shape that may be trained together are one group."""
        alike = (list(every) for _, every in groupby(self.waiting, self._shape))
        size = self.settings.together
        return [every[start : start + size] for every in alike for start in range(0, len(every), size)]

    def _put_before(self, first: C, group: Sequence[C]) -> None:
        """Have a run trained before all of a group, unless it is already."""
        place = min(self.waiting.index(cell) for cell in group if cell in self.waiting)
        if (now := self.waiting.index(first)) > place:
            self.waiting.insert(place, self.waiting.pop(now))

    def _skip(self, cell: C, first: C) -> None:
        what = "is taught by" if first in self.kind.teachers(cell) else "starts from"
        self.settings.log(f"{cell}: skipped, as it {what} {first}")
        self.failed.add(cell)
        self.waiting.remove(cell)
        self._leave_out_unneeded()

    def _leave_out_unneeded(self) -> None:
        """Leave out runs that are neither wanted nor needed by one that is waiting."""
        needed = {first for cell in self.waiting for first in self._needs(cell)}
        kept = [cell for cell in self.waiting if cell in self.wanted or cell in needed]
        if len(kept) < len(self.waiting):
            self.waiting = kept
            self._leave_out_unneeded()

    def _needs(self, cell: C) -> list[C]:
        """The runs whose weights a run needs."""
        first = self.kind.starts_from(cell)
        trained = self.kind.teachers(cell) if self.settings.teachers is None else ()
        return [*([] if first is None else [first]), *trained]

    def _shape(self, cell: C) -> tuple[int, bool, float]:
        started = self.kind.starts_from(cell) is not None or bool(self.kind.teachers(cell))
        return self.kind.iterations(cell), started, self.kind.cost(cell)

    def _size(self, size: int, iterations: int, started: bool, cost: float) -> int:
        """How many runs of this shape can be trained in the time that is left; for the first group, at least one."""
        left = self.deadline - time.monotonic() - self.kind.seconds_to_judge()
        fitting = self.timing.largest(size, iterations, (started, cost), left, cost)
        if self.kind.agree(fitting == 0):
            return 0 if self.trained else 1
        return max(fitting, 1)

    def _claim(self, cell: C, claims: ExitStack) -> bool:
        """Whether this process got the run, until `claims` are released; one that another process has finished in the
        meantime is no longer waiting."""
        with ExitStack() as own:
            if not own.enter_context(self.kept.claimed(cell)):
                return False
            if cell in self.wanted:
                finished = str(cell) in self.recorded_by_now()
            else:
                finished = self.kept.weights_of(cell) is not None
            if self.kind.agree(finished):
                self.waiting.remove(cell)
                self.wanted.discard(cell)
                return False
            claims.enter_context(own.pop_all())
        return True

    # training

    def _train_group(self, group: Sequence[C]) -> bool:
        """Train, save and evaluate a group; returns whether there is time for another."""
        began = time.monotonic()
        runs = {cell: self._prepared(cell) for cell in group}
        together = f" {len(group)} together" if len(group) > 1 else ""
        self.settings.log(f"training{together}: " + ", ".join(map(str, group)))
        first = min(run.iteration for run in runs.values())
        start = time.monotonic()
        with self.interrupts.training():  # also while they are saved
            try:
                self.kind.train(list(runs.values()), self._after_chunk(runs, began), self._is_over)
            except Exception:
                self._save([cell for cell in group if runs[cell].whole], runs, lambda: "stopped", began)
                raise
            seconds, iterations = time.monotonic() - start, runs[group[0]].iterations - first
            self.trained.update(group)
            pressed = self.kind.agree(self.interrupts.pressed)
            good = self._without_diverged(runs)
            self._warn({cell: runs[cell] for cell in good})
            why = "interrupted" if pressed else "out of time"
            self._save([cell for cell in good if not runs[cell].done], runs, lambda: why, began)
            finished = [cell for cell in good if runs[cell].done]
            self._save(finished, runs, lambda: "interrupted" if self.interrupts.pressed else None, began)
        if self.kind.agree(self.interrupts.pressed):
            raise KeyboardInterrupt
        in_time = self._judge_group(finished, runs, began, judged_only=not iterations)
        if iterations and len(finished) == len(group):
            self.timing.per_iteration[self._shape(group[0])[1:]] = (len(group), seconds / iterations)
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
        saved = looked = time.monotonic()
        reached = {cell: run.iteration for cell, run in runs.items()}
        pace = Pace(min(reached.values()), saved)

        def after_chunk() -> bool:
            nonlocal saved, looked
            now = time.monotonic()
            going = [run for cell, run in runs.items() if run.iteration > reached[cell]]  # not those that diverged
            reached.update((cell, run.iteration) for cell, run in runs.items())
            done, one = min((run.iteration for run in going), default=0), next(iter(runs.values()))
            images = len(going) * one.batch_size
            self.settings.report(Status.at(done, one.iterations, images, *pace.since(done, now)))
            if now - looked >= LOOK_EVERY:
                self._warn(runs)
                looked = time.monotonic()
            over = self._is_over()
            if now - saved >= SAVE_EVERY and not over:
                for cell, run in runs.items():
                    if not run.done and (problem := self.kept.save(cell, run, now - began)):
                        self.settings.log(f"{cell}: {problem}")
                saved = time.monotonic()
            return over

        return after_chunk

    def _warn(self, runs: Mapping[C, R]) -> None:
        """Warn once of each run whose loss has grown."""
        for cell, run in runs.items():
            if cell not in self.warned and run.risen is not None:
                self.warned.add(cell)
                first, last = run.risen
                self.settings.log(
                    f"WARNING: {cell}: the loss rose from {first:.3g} to {last:.3g} by iteration {run.iteration:,} of "
                    f"{run.iterations:,}: training diverges; try a lower learning rate"
                )

    def _without_diverged(self, runs: Mapping[C, R]) -> list[C]:
        good = [cell for cell, run in runs.items() if run.finite]
        for cell in runs:
            if cell not in good:
                self.settings.log(f"{cell}: its loss or a weight became infinite or NaN; no record is written")
                self.failed.add(cell)
                self.waiting.remove(cell)
                self.kept.forget(cell)
        return good

    def _save(self, cells: Sequence[C], runs: Mapping[C, R], stopped: Callable[[], str | None], began: float) -> None:
        """Save runs that have no record yet, and report why they were `stopped`; None: they go on to be evaluated."""
        for cell in cells:
            run = runs[cell]
            problem = self.kept.save(cell, run, time.monotonic() - began)
            if (why := stopped()) or problem:
                where = "after its last iteration" if run.done else f"at iteration {run.iteration} of {run.iterations}"
                saved = f"saved, and {'evaluated' if run.done else 'resumed'} next time"
                with suppress(OSError):  # a pipe that nobody reads any more
                    self.settings.log(f"{cell}: {why or 'stopped'} {where}; {problem or saved}")

    def _judge_group(self, cells: Sequence[C], runs: Mapping[C, R], began: float, *, judged_only: bool) -> bool:
        """Record what was trained, as far as time allows."""
        for cell in cells:
            if cell in self.wanted:
                late = time.monotonic() + self.kind.seconds_to_judge() > self.deadline
                if self.kind.agree(late and not (judged_only and not self.recorded)):
                    self.settings.log(f"{cell}: trained, but not enough time is left to evaluate it; saved")
                    return False
                seconds = time.monotonic() - began + self.kept.before(cell)
                context = Context(seconds, len(cells), self.kept.started_from(cell), self.kept.taught_by(cell))
                self._record(cell, runs[cell], context)
            self.waiting.remove(cell)
            self.kept.forget(cell)  # only now: a process killed before this still has its checkpoint
        return True

    def _record(self, cell: C, run: R, context: Context) -> None:
        """Evaluate a run and write its record before anything is logged: logging may fail if nobody is listening any
        more."""
        if self.kind.leads:
            try:
                self.write(record := self.kind.judge(cell, run, context))
            except KeyboardInterrupt:
                self.settings.log(f"{cell}: interrupted while it was evaluated; saved, and evaluated next time")
                raise
            self.settings.log(f"{cell}: {self.kind.in_words(record)}")
        self.recorded.append(cell)
