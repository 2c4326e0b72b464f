"""What outlives a process: checkpoints, weights of finished runs, claims. `queue` states the rules."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Generic

import torch
from torch import Tensor

from equipoise.data.reading import read_json
from equipoise.files import write_text
from equipoise.training.kinds import C, Kind, R, Settings
from equipoise.training.records import EARLIER, locked
from equipoise.training.weights import is_weights, read_tensors, weights_digest, write_tensors

ATTEMPTS = 3  # to lock a claim
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def as_in_json(content: dict[str, Any]) -> dict[str, Any]:
    """A value as it is read back after writing."""
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return plain


def note_of(weights: Path) -> Path:
    """The file beside the weights of a finished run that records how they were made."""
    return weights.with_name(weights.name.replace(".weights.pt", ".finished.json"))


def read_note(weights: Path) -> dict[str, Any]:
    """What the file beside the weights says; ValueError if it is damaged."""
    note = read_json(note_of(weights))
    if not isinstance(note, dict):
        raise ValueError(f"{note_of(weights)} is not a note about weights")
    return note


def claims_held(folder: Path) -> int:
    """How many runs are being trained by processes that share a folder of claims."""

    def is_held(path: Path) -> bool:
        with suppress(OSError), open(path, "rb") as file:
            return not locked(file, wait=False)
        return False

    return sum(is_held(path) for path in folder.glob("*.claim"))


def _changed(content: Any, here: dict[str, Any]) -> str:
    """How a file's origin differs from `here`; empty if it does not."""
    found = content.get("made_from") if isinstance(content, dict) else None
    there = EARLIER | found if isinstance(found, dict) else {}
    other = [key for key in here if there.get(key, "unknown") != here[key]]
    return ", ".join(f"{key} {there.get(key, 'unknown')}, now {here[key]}" for key in other[:3])


class Kept(Generic[C, R]):
    """Unfinished runs, weights of finished ones and claims, in a folder; each file records what it was made from."""

    def __init__(self, kind: Kind[C, R], settings: Settings) -> None:
        self._kind, self._settings = kind, settings
        self._starts: dict[C, dict[str, Tensor]] = {}
        self._seconds: dict[C, float] = {}
        self._warned: set[str] = set()

    # weights that others start from

    def start_of(self, cell: C) -> dict[str, Tensor] | None:
        """The weights that a run starts from; None if it starts from none, or they do not exist yet."""
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
        """The weights of one teacher. In a folder that the user gave, they must belong to this teacher and this
        data."""
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
                    f"{cell}: its teacher {teacher} is missing: {path} and {note_of(path).name} do not exist"
                )
            note, here = read_note(path), as_in_json(self._kind.made_from(teacher))
            if changed := _changed(note, here):
                raise ValueError(f"{cell}: {path} is not its teacher {teacher} ({changed})")
            weights = read_tensors(path)
            if not is_weights(weights):
                raise ValueError(f"{cell}: {path} does not hold the weights of a network")
            self._starts[teacher] = weights
        return self._starts[teacher]

    def taught_by(self, cell: C) -> dict[str, str]:
        """The digests of these weights."""
        return {str(teacher): weights_digest(weights) for teacher, weights in self.teachers_of(cell).items()}

    def weights_of(self, cell: C) -> dict[str, Tensor] | None:
        """The weights of a finished run; None if there are none, or if those that it needed are gone or others now."""
        if cell in self._starts:
            return self._starts[cell]
        needed = self._needed_by(cell)
        found = None if needed is None else self._finished(cell, as_in_json(self._kind.made_from(cell) | needed))
        if found is not None:
            self._starts[cell] = found[0]
        return self._starts.get(cell)

    def _needed_by(self, cell: C) -> dict[str, Any] | None:
        """The digests of what a run starts from and of its teachers, as its note has them; None if one is missing."""
        first, needed = self._kind.starts_from(cell), dict[str, Any]()
        if first is not None:
            if (weights := self.weights_of(first)) is None:
                return None
            needed["started_from"] = weights_digest(weights)
        if self._settings.teachers is None and (teachers := self._kind.teachers(cell)):
            every = {str(teacher): self.weights_of(teacher) for teacher in teachers}
            if None in every.values():
                return None
            needed["taught_by"] = {name: weights_digest(weights) for name, weights in every.items() if weights}
        return needed

    def _finished(self, cell: C, here: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The weights and note of a finished run that was made from `here`, perhaps under another name."""
        others = sorted(self._settings.checkpoints.glob(f"{self._kind.alike(cell)}.weights.pt"))
        for path in dict.fromkeys([self._path(cell, "weights.pt"), *others]):
            if not (path.is_file() and note_of(path).is_file()):
                continue
            try:
                note = read_note(path)
            except ValueError:
                self._warn(f"{note_of(path)} cannot be read: starting from the beginning")
                continue
            if self._is_of(path, note, here) and (weights := self._read(path)) is not None:
                if is_weights(weights):
                    return weights, note
                self._warn(f"{path} does not hold the weights of a network: starting from the beginning")
        return None

    # runs

    def resume(self, cell: C, run: R) -> None:
        """Bring a new run to where it was left, if it was saved before."""
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
        self._settings.log(f"{cell}: resumed at iteration {run.iteration} of {run.iterations}")

    def save(self, cell: C, run: R, seconds: float) -> str | None:
        """Save a run; `seconds` is what its group took in this process. Returns why it could not be saved, or None."""
        self._starts.pop(cell, None)
        if not self._kind.leads:
            return None
        content: dict[str, Any] = {"made_from": self._made_from(cell, run), "seconds": seconds + self.before(cell)}
        path = self._path(cell, "weights.pt")
        try:
            if run.done and self._kind.keeps(cell):
                note_of(path).unlink(missing_ok=True)  # weights must never have the note of others beside them
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
        """The seconds that a resumed run had taken before."""
        return self._seconds.get(cell, 0.0)

    @contextmanager
    def claimed(self, cell: C) -> Iterator[bool]:
        """Whether this process may train the run; other processes may not until the block ends.

        One claim is for its record, and one for its files, which commands with other records may share, perhaps under
        other names.
        """
        record = f"{self._kind.table}/{cell}{self._settings.mark}".replace("/", "-")
        files = self._kind.alike(cell).replace("*", "any")
        paths = self._settings.claims / f"{record}.claim", self._settings.checkpoints / f"{files}.claim"
        try:
            with ExitStack() as held:
                free = self._kind.leads and all(held.enter_context(self._claim(path)) for path in paths)
                yield self._kind.agree(free)
        finally:
            with suppress(OSError):  # there is none, or it holds other claims
                self._settings.claims.rmdir()

    @contextmanager
    def _claim(self, path: Path) -> Iterator[bool]:
        """Whether this process holds a claim, until the block ends."""
        if (file := self._locked(path)) is None:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
            file.close()

    def _locked(self, path: Path) -> IO[bytes] | None:
        for _ in range(ATTEMPTS):
            with suppress(FileNotFoundError), ExitStack() as opened:  # its holder may just have removed it
                path.parent.mkdir(parents=True, exist_ok=True)
                file = opened.enter_context(open(path, "ab"))
                if self._lock(file, path) and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    opened.pop_all()  # stays open as long as the claim is held
                    return file
            time.sleep(0.05)  # another process may only be counting claims
        return None

    def _lock(self, file: IO[bytes], path: Path) -> bool:
        """Lock a claim. Where the folder of checkpoints cannot lock files, a run counts as claimed, with a warning."""
        try:
            return locked(file, wait=False)
        except OSError as error:
            if path.parent != self._settings.checkpoints or error.errno not in NO_LOCKS:
                raise
            self._warn(f"{path.parent} cannot lock files ({error.strerror}): use it for one command at a time")
            return True

    # files

    def _path(self, cell: C, ending: str) -> Path:
        return self._settings.checkpoints / f"{self._kind.name(cell)}.{ending}"

    def _made_from(self, cell: C, run: R) -> dict[str, Any]:
        """Everything that must be the same for a run to be resumed."""
        content = self._kind.made_from(cell) | self._kind.must_match(run) | {"torch": torch.__version__}
        if self._settings.device.type == "cpu":
            content["threads"] = torch.get_num_threads()  # sums depend on them
        if self._kind.teachers(cell):
            content["taught_by"] = self.taught_by(cell)
        return as_in_json(content | {"started_from": self.started_from(cell)})

    def _is_of(self, path: Path, content: Any, here: dict[str, Any]) -> bool:
        """Whether a file was made from the same things; if not, the difference is logged."""
        if changed := _changed(content, here):
            self._warn(f"{path.name} belongs to another run ({changed}): starting from the beginning")
        return not changed

    def _read(self, path: Path) -> Any:
        try:
            return read_tensors(path)
        except ValueError as error:
            self._warn(f"{error}: starting from the beginning")
            return None

    def _warn(self, text: str) -> None:
        """Log a warning, once."""
        if text not in self._warned:
            self._warned.add(text)
            self._settings.log(text)
