"""How this library writes a file: beside its final place, then moved there, so that it is either complete or absent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(path: str | os.PathLike[str], *, new: bool = False) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` once the block ends without an error.

    A full disk, an error or a killed process leaves the old file as it was. With `new`, an existing file is never
    replaced, even if another process creates it in the meantime (FileExistsError). Missing folders are created.

    >>> import pathlib, tempfile
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with written_whole(target) as scratch:
    ...     _ = scratch.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    given = Path(path)
    if given.exists() and not given.is_file() and not given.is_dir():  # a pipe or a device: nothing to preserve
        yield given
        return
    place = given.resolve()  # a link stays a link
    if place.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = place.with_name(f".{place.stem[:50]}.{secrets.token_hex(4)}.part{place.suffix}")
    with _named(scratch, path):
        scratch.touch(exist_ok=False)
    try:
        if place.exists():
            scratch.chmod(place.stat().st_mode & 0o777)
        mode = scratch.stat().st_mode & 0o777
        yield scratch
        scratch.chmod(mode)  # safetensors replaces it by a new file that only the owner may read
        with open(scratch, "rb+") as file:
            os.fsync(file.fileno())
        if new:
            _place_new(scratch, place)
        else:
            scratch.replace(place)
    finally:
        with suppress(FileNotFoundError):
            scratch.unlink()


@contextmanager
def _named(scratch: Path, path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors about the scratch file name the file that was asked for."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) == str(scratch):
            error.filename = str(path)
        raise


def _place_new(scratch: Path, place: Path) -> None:
    """Put a whole file in a place that nothing has taken; FileExistsError if something has."""
    try:
        os.link(scratch, place)
    except OSError:  # it exists, or the file system has no links
        with open(place, "xb"):  # only one process can create it
            pass
        scratch.replace(place)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file, as UTF-8."""
    with written_whole(path) as scratch:
        scratch.write_text(text, encoding="utf-8")
