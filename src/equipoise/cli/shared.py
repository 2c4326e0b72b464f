"""What several commands share: errors as one message, devices, progress, where records go."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from equipoise.data.reading import counted, visible

if TYPE_CHECKING:
    import torch

    from equipoise.training.progress import Status

SECONDS_BETWEEN_LINES = 30  # of progress, where there is no terminal to draw a bar in
SECONDS_TO_FIRST_LINE = 10


@contextmanager
def refusing(kinds: tuple[type[Exception], ...] = (OSError, ValueError, TypeError)) -> Iterator[None]:
    """Turn a file that cannot be used into one message, without a traceback and without its control characters."""
    try:
        yield
    except BrokenPipeError:  # of `| head`, and not of a file: typer ends the command without a word
        raise
    except kinds as error:
        raise typer.BadParameter(str(error)) from None


def show_warnings(log: Callable[[str], None]) -> None:
    """From now on, show each warning as one line, without the path of the code that gave it."""
    warnings.showwarning = lambda message, *_, **__: log(visible(" ".join(str(message).split())))


@contextmanager
def given(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The files that arguments name: "-" is stdin, which is kept in a file while it is read.

    Errors call it stdin.
    """
    if sum(str(path) == "-" for path in paths) > 1:
        raise typer.BadParameter("- stands for stdin, which can be read only once: name a file for the other one")
    if Path("-") not in paths:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory() as folder:
        content = sys.stdin.buffer.read()
        kept = Path(folder) / f"stdin{ending_of(content)}"
        kept.write_bytes(content)
        try:
            yield [kept if str(path) == "-" else path for path in paths]
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(str(error).replace(str(kept), "stdin")) from None


def ending_of(content: bytes) -> str:
    """The file ending for content like this.

    >>> [ending_of(text) for text in (b"PK..", b"PAR1", b"[5, 3]", b"id,label", b"label", b"cat", b"")]
    ['.npz', '.parquet', '.json', '.csv', '.csv', '.txt', '.txt']
    """
    known = {b"PK": ".npz", b"PAR1": ".parquet", b"\x93NUMPY": ".npy"}
    first = content.lstrip(b"\xef\xbb\xbf \r\n\t").partition(b"\n")[0]
    for start, ending in known.items():
        if content.startswith(start):
            return ending
    if first.startswith((b"{", b"[")):
        return ".json"
    from equipoise.data.sources import LABEL_COLUMNS  # needs torch

    alone = first.decode("utf-8", "replace").strip() in LABEL_COLUMNS  # the heading of a table of one column
    return ".csv" if b"," in first or alone else ".tsv" if b"\t" in first else ".txt"


def print_json(content: dict[str, Any]) -> None:
    """One line of JSON; NaN, which JSON lacks, becomes null, and unprintable characters become escapes."""
    text = json.dumps(_plain(content), ensure_ascii=False, allow_nan=False)
    typer.echo(text if text.isprintable() else json.dumps(_plain(content), allow_nan=False))


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def perhaps(known: Iterable[str], wanted: str) -> str:
    """A question with the name that was perhaps meant, or nothing.

    >>> perhaps(["table1", "voc2012-lt"], "voc2012"), perhaps(["table1"], "nope")
    ('. Did you mean voc2012-lt?', '')
    """
    near = difflib.get_close_matches(wanted.lower(), list(known), n=1)
    return f". Did you mean {near[0]}?" if near else ""


def device_of(text: str | None) -> torch.device:
    """The device that `--device` names; without the option, the GPU if there is one."""
    import torch

    if text is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise typer.BadParameter(f"--device {text}: only cpu, cuda and cuda:N are supported")
    if text != "cpu" and not torch.cuda.is_available():
        raise typer.BadParameter(f"--device {text}, but torch sees no GPU: leave the option out, or pass --device cpu")
    _, _, number = text.partition(":")
    if number:
        if int(number) >= torch.cuda.device_count():
            raise typer.BadParameter(f"--device {text}, but torch sees {counted(torch.cuda.device_count(), 'GPU')}")
        torch.cuda.set_device(int(number))  # where kernels of our own and graphs run
    return torch.device(text)


def check_writable(out: Path, checkpoints: Path) -> None:
    """Check before training that records can be appended to `out` and `checkpoints` can be written."""
    what, instead = f"--out {out}", "name another file"
    try:
        path = out.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        # a missing file is not created: removing it again could delete what another process has written meanwhile
        with open(path, "a+b") if path.exists() else tempfile.TemporaryFile(dir=path.parent):
            what, instead = str(checkpoints), "name a folder with --checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=checkpoints):
            pass
    except OSError as error:
        raise typer.BadParameter(f"{what} cannot be written ({error.strerror or error}): {instead}") from None


def counting_bar(console: Console, *, transient: bool = False) -> Progress:
    """A bar with how many items are done, and the elapsed and remaining time."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    more = (TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("to go"))
    return Progress(*columns, *more, console=console, transient=transient)


@contextmanager
def progress() -> Iterator[tuple[Callable[[str], None], Callable[[Status], None]]]:
    """The functions for messages and for a group's progress: a bar in a terminal, otherwise a line now and then."""

    console = Console()
    if not console.is_terminal:
        last = time.monotonic() - max(SECONDS_BETWEEN_LINES - SECONDS_TO_FIRST_LINE, 0)

        def line(status: Status) -> None:
            nonlocal last
            if time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                typer.echo(f"  {status}")

        yield typer.echo, line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} of {task.total:,}"))
    more = (TextColumn("{task.fields[speed]}"), TimeElapsedColumn(), TextColumn("elapsed"))
    with Progress(*columns, *more, console=console, transient=True) as bar:
        task = bar.add_task("iterations", total=1, speed="", visible=False)

        def say(text: str) -> None:
            bar.console.print(text, soft_wrap=True, highlight=False, markup=False)
            bar.reset(task, visible=False)

        def report(status: Status) -> None:
            shown = {"description": status.what, "completed": status.done, "total": status.iterations}
            bar.update(task, **shown, speed=f"{status.speed},", visible=True, refresh=True)  # type: ignore[arg-type]

        yield say, report
