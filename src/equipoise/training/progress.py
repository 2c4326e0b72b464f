"""How long runs take, how far they have got, and what Ctrl-C does to them."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

STRETCH = 60.0  # seconds over which the present speed is measured
SETUP = 15.0  # seconds a group needs besides its iterations, before that was measured


def in_words(seconds: float) -> str:
    """A time in words.

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
    """The progress of a group of runs."""

    done: int
    iterations: int
    images_a_second: float
    seconds_to_go: float
    what: str = "iterations"

    @classmethod
    def at(cls, done: int, of: int, images: float, seconds: float, since: int = 0, what: str = "iterations") -> Status:
        """The status after `done` steps with `images` each; those from `since` on took `seconds`."""
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


class Pace:
    """How fast a group of runs is, over the last minute; without its first chunk of iterations, which is slower."""

    def __init__(self, done: int, now: float) -> None:
        self._marks = deque([(now, done)])
        self._chunks = 0

    def since(self, done: int, now: float) -> tuple[float, int]:
        """The seconds since the beginning of the stretch that counts, and how many iterations were done then.

        >>> pace = Pace(0, now=0.0)  # the first takes 9 s, the others 1 s each, then 2 s
        >>> pace.since(1, now=9.0), pace.since(2, now=10.0), pace.since(60, now=68.0)
        ((9.0, 0), (1.0, 1), (59.0, 1))
        >>> pace.since(120, now=188.0)
        (120.0, 60)
        """
        self._chunks += 1
        if self._chunks == 2:
            self._marks.popleft()
        start, first = self._marks[0]
        if self._chunks == 1 or now - self._marks[-1][0] >= 1:
            self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= STRETCH:
            self._marks.popleft()
            start, first = self._marks[0]
        return now - start, first


@dataclass
class Timing:
    """The time that iterations have taken so far, by groups of runs that are `like` each other."""

    guess: float = 0.0  # seconds per iteration of one run
    per_iteration: dict[Hashable, tuple[int, float]] = field(default_factory=dict)  # -> (group size, seconds)
    setup: float = SETUP

    def estimate(self, size: int, iterations: int, like: Hashable, cost: float = 1.0) -> float:
        """Estimated seconds for a group. A group smaller than the measured one is faster, but less than
        proportionally; before one was measured, an iteration takes `cost` times the guess."""
        measured, seconds = self.per_iteration.get(like, (0, 0.0))
        if measured:
            share = 0.15 + 0.85 * size / measured if size < measured else size / measured
            return self.setup + iterations * seconds * share * 1.05
        return self.setup + iterations * self.guess * cost * size

    def largest(self, size: int, iterations: int, like: Hashable, seconds: float, cost: float = 1.0) -> int:
        """The largest group, up to `size`, that takes no more than `seconds`; 0 if none does."""
        fitting = [n for n in range(1, size + 1) if self.estimate(n, iterations, like, cost) <= seconds]
        return max(fitting, default=0)


class Interrupts:
    """What Ctrl-C and SIGTERM do: they stop at once, except that the first one during training only sets `pressed`."""

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
