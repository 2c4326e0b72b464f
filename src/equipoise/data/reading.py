"""What the readers share: errors that name the file, strict JSON and tables, names that are safe to print, numbers in
words.

A file may come from anywhere. If it cannot be read, there is one ValueError with the file's name, whatever the library
that reads it raises. A key that occurs twice, or a quote that is left open, is refused, not resolved silently.
"""

from __future__ import annotations

import csv
import io
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

MOST_HEADER = 1 << 16  # bytes before the numbers of an .npy array
LARGE = 1 << 26  # bytes of JSON: orjson reads larger files (four times faster), but does not detect repeated keys
SEPARATORS = {".csv": ",", ".tsv": "\t"}
JOINERS = "\u200c\u200d"  # invisible, but part of Persian words and of emoji


def visible(text: object) -> str:
    r"""Text with control characters as visible escapes, so that no name can move the cursor, change colours or forge a
    line.

    >>> visible("owl\x1b[2J\n猫"), visible("gpj.\u202eexe")
    ('owl\\x1b[2J\\n猫', 'gpj.\\u202eexe')
    """
    return "".join(_escaped(c) if not c.isprintable() else c for c in str(text))


def _escaped(character: str) -> str:
    if character in JOINERS or unicodedata.category(character) in ("Zs", "Co", "Cn"):
        return character
    return character.encode("unicode_escape").decode("ascii")


def shown(names: Iterable[Any], most: int = 8) -> str:
    """The first few names, each cut to a readable length."""
    words = [visible(name) for name in names]
    cut = [word if len(word) <= 40 else word[:39] + "…" for word in words[:most]]
    return ", ".join(cut) + (f", … ({len(words):,} in all)" if len(words) > most else "")


def counted(number: int, what: str) -> str:
    """How many they are.

    >>> counted(1, "run"), counted(2, "new record"), counted(2000, "class")
    ('1 run', '2 new records', '2,000 classes')
    """
    return f"{number:,} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever goes wrong while `path` is read into one ValueError with its name."""
    try:
        yield
    except ImportError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}, byte {error.start}): save it as UTF-8") from None
    except Exception as error:
        if isinstance(error, OSError | ValueError | TypeError) and str(path) in str(error):
            raise
        why = " ".join((str(error) or type(error).__name__).split())
        raise ValueError(f"{path} is damaged, or not what its name says: {why}") from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file. Keys that occur twice in an object, NaN and half characters are refused.

    Files of more than 64 MB (annotations) are read with orjson if it is installed.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder: expected a JSON file")
    data = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        if len(data) > LARGE:
            try:
                import orjson
            except ImportError:
                pass
            else:
                return orjson.loads(data)
        text = data.decode()
        content = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
        if "\\u" in text:  # half of a surrogate pair cannot be printed or saved
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path} is not JSON: it holds half a character (\\ud800 to \\udfff)") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return content


def twice(values: Iterable[Any]) -> Any:
    """The first value that occurs a second time, or None."""
    seen: set[Any] = set()
    return next((value for value in values if value in seen or seen.add(value)), None)  # type: ignore[func-returns-value]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"the key {shown([twice(key for key, _ in pairs)])!r} occurs twice in one object")
    return made


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The non-empty lines of a .csv or .tsv file, each with its number; the file is closed at the end."""
    number = 0
    with reading(path), open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=SEPARATORS[path.suffix.lower()], strict=True)
        try:
            for row in rows:
                number = rows.line_num
                if row:
                    yield number, row
        except csv.Error as error:
            raise ValueError(
                f"{path} cannot be read as a table: {error}. Is a quote left open at line {number + 1}?"
            ) from None


def read_table(path: Path, column: str | None = None) -> tuple[tuple[int, list[str]], Iterator[tuple[int, list[str]]]]:
    """The header of a .csv or .tsv file, in which `column` is looked up, and the rows after it, each with its line."""
    rows = read_rows(path)
    line, header = next(rows, (0, None))
    if header is None:
        raise ValueError(f"{path} is empty: expected a line of column names, then one line per item")
    separator = SEPARATORS[path.suffix.lower()]
    other = next((mark for mark in ";\t" if mark != separator and mark in header[0]), None)
    if len(header) == 1 and other is not None and column not in header:
        raise ValueError(
            f"{path} has the one column {shown(header)!r}: separate columns with {separator!r}, not {other!r}"
        )
    return (line, header), _even(rows, len(header), path)


def _even(rows: Iterator[tuple[int, list[str]]], width: int, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows with as many cells as the header; any other row is an error with its line, as its cells may be misplaced."""
    for line, row in rows:
        if len(row) != width:
            raise ValueError(
                f"{path}, line {line} has {len(row)} cells, the header {width}: quote text that holds a separator"
            )
        yield line, row


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, order and type of an .npy array; NumPy itself would read a header of any length before checking it."""
    version = np.lib.format.read_magic(stream)
    length = stream.read(2 if version == (1, 0) else 4)
    size = int.from_bytes(length, "little")
    if size > MOST_HEADER:
        raise ValueError(f"its header claims {size} bytes, more than any array has")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(length + stream.read(size)))
