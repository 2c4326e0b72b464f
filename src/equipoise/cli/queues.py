"""From the options of a command to the queue: which runs are requested, which are missing, and training them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer

from equipoise.cli.options import RunOptions
from equipoise.cli.shared import check_writable, progress, refusing
from equipoise.data.reading import counted
from equipoise.training.records import Recorded, append_record, current_commit, hardware

if TYPE_CHECKING:
    import torch

    from equipoise.training.kinds import Kind, Settings


class AnyCell(Protocol):
    @property
    def seed(self) -> int: ...


C = TypeVar("C", bound=AnyCell)


def asked_cells(plan: Sequence[C], options: RunOptions) -> list[C]:
    """The part of the plan that `--only` and `--seeds` name."""
    only, seeds = list(options.only or []), None if options.seeds is None else list(options.seeds)
    for part in only:
        if not any(_within(cell, part) for cell in plan):
            raise typer.BadParameter(
                f"nothing in the plan matches --only {part}: the nearest is {_nearest(plan, part)}"
            )
    planned = sorted({cell.seed for cell in plan})
    if seeds is not None and not set(seeds) <= set(planned):
        raise typer.BadParameter(f"--seeds {seeds}: the plan has seeds {', '.join(map(str, planned))}")
    within = [cell for cell in plan if not only or any(_within(cell, part) for part in only)]
    cells = [cell for cell in within if seeds is None or cell.seed in seeds]
    if not cells:
        has = ", ".join(map(str, sorted({cell.seed for cell in within})))
        raise typer.BadParameter(f"--seeds {seeds}: the plan has seed {has} for --only {' '.join(only)}")
    return cells


def _within(cell: object, part: str) -> bool:
    return f"{cell}/".startswith(part.strip("/") + "/")


def _nearest(plan: Sequence[object], part: str) -> str:
    """The planned path of the same length as `part` that is most like it."""
    words = part.strip("/").count("/") + 1
    parts = dict.fromkeys("/".join(str(cell).split("/")[:words]) for cell in plan)
    (nearest,) = difflib.get_close_matches(part.strip("/"), list(parts), n=1, cutoff=0.0)
    return nearest


def missing_cells(
    asked: Sequence[C], recorded: Recorded, *, out: str = "file", log: Callable[[str], None] = typer.echo
) -> list[C]:
    """The cells without a record. If there are none, a message shows where the records are; `out` says what `--out`
    names."""
    with refusing():
        committed, appended = recorded.committed(), recorded.appended()
    cells = [cell for cell in asked if str(cell) not in committed | appended]
    if cells:
        return cells
    every = set(map(str, asked))
    places = [
        (number, where, instead)
        for number, where, instead in (
            (len(every & committed), f"under {recorded.results}", "--results with another folder"),
            (len(every & appended), f"in {recorded.out}", f"--out with another {out}"),
        )
        if number
    ]
    have = ", ".join(f"{number} {'has' if number == 1 else 'have'} a record {where}" for number, where, _ in places)
    them = "it" if max(number for number, *_ in places) == 1 else "them"
    log(f"nothing left to train: {have} (pass {' and '.join(instead for *_, instead in places)} to train {them} again)")
    return []


def train_cells(
    cells: Sequence[C],
    options: RunOptions,
    recorded: Recorded,
    place: torch.device,
    make: Callable[[Settings], Kind[C, Any]],
    *,
    leads: bool = True,
    shown: AbstractContextManager[Any] | None = None,
    log: Callable[[str], None] | None = None,
    finished: Callable[[], Collection[str]] | None = None,
    teachers: Path | None = None,
    what: str | None = None,
) -> None:
    """Train the cells within the budget, appending each record to `--out`; `make` runs once files can be written.

    `shown` returns the functions for messages and for progress, by default to the terminal. `finished` returns the
    cells that have a record by now, if they belong to several tables; `teachers` is a folder with their weights.
    `what` says what is trained, if it is more than a number of runs; where the records are is not shown then.
    """
    from equipoise.training.kinds import Settings
    from equipoise.training.queue import run_cells

    log = log or (typer.echo if leads else lambda text: None)
    smoke = "to train" if options.iterations is None else f"of {counted(options.iterations, 'iteration')}, for no table"
    runs = f"{counted(len(cells), 'run')} {smoke}"
    log(f"{what or runs}, on {hardware(place)['device']}")
    check_writable(options.out, options.kept)
    quiet: Any = nullcontext((log, lambda status: None))
    in_training = refusing((OSError, ValueError))  # a TypeError is a fault of the program: it keeps its traceback
    with in_training, (shown or progress()) if leads else quiet as (tell, report):
        settings = Settings(
            device=place,
            checkpoints=options.kept,
            claims=options.out.with_name(f"{options.out.name}.claims"),
            together=options.together or 1,
            budget=float("inf") if options.budget is None else options.budget,
            validate=options.validate,
            iterations=options.iterations,
            commit=options.commit or current_commit(),
            teachers=teachers,
            log=tell,
            report=report,
        )
        write = partial(append_record, options.out)
        by_now = finished or recorded.appended
        with refusing():
            kind = make(settings)
        done = run_cells(cells, kind, settings, write=write, recorded=by_now)
        left = len({*map(str, cells)} - {*by_now()})  # other processes may have recorded some
    if what is None:
        log(f"{counted(len(done), 'run')} recorded in {options.out}, {left} to go")
    elif left:
        log(f"{len(done)} of {counted(len(cells), 'model')} trained, {left} to go: the same command resumes")
