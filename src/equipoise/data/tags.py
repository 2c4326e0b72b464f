"""Several labels per item in a table: lists in a column, or one column of zeros and ones per class.

    lists        cat;owl  or  cat|owl  or  ["cat", "owl"]  or  [0, 3]; an empty cell has no label. In .parquet also a
                 column of lists
    multi-hot    0 and 1, one column per class; empty or −1: not known

In a training set, a column is read as lists if it is not called label, target, class or y (which hold one label) and
one of its cells is a list. If no column holds labels, all columns of zeros and ones are classes, or only those called
target_CLASS if there are any; the others are ignored.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import outside
from equipoise.data.reading import read_table, shown
from equipoise.prior import Prior

MARKS = ";|"
TARGET = "target_"  # before the name of a class: the column of its zeros and ones
ONE_LABEL = ("label", "target", "class", "y")  # columns that hold one label per item, whatever its text
LISTS = ("labels", "tags")  # columns that usually hold lists


def is_list(cell: str) -> bool:
    """Whether a cell holds a list of labels: with a separator between them, or as JSON.

    >>> is_list("cat;owl"), is_list('["cat"]'), is_list("cat"), is_list("")
    (True, True, False, False)
    """
    return any(mark in cell for mark in MARKS) or (cell.startswith("[") and cell.endswith("]"))


def tags_of(cell: str) -> list[str]:
    """The labels in a cell, each once, in their order.

    >>> tags_of("cat; owl;"), tags_of("[0, 3]"), tags_of("cat"), tags_of("")
    (['cat', 'owl'], ['0', '3'], ['cat'], [])
    """
    cell = cell.strip()
    if cell.startswith("[") and cell.endswith("]"):
        try:
            found = json.loads(cell.replace("'", '"')) if '"' not in cell else json.loads(cell)
        except ValueError:
            raise ValueError(f'{shown([cell])!r} is not a list: write ["cat", "owl"] or cat;owl') from None
        if any(type(value) not in (str, int) for value in found):
            raise ValueError(f"{shown([cell])!r} holds something that is not a label: expected names, or class indices")
        parts = [str(value) for value in found]
    else:
        parts = cell.replace(MARKS[1], MARKS[0]).split(MARKS[0])
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def warn_of_lists(names: Sequence[str], column: str, path: Path) -> None:
    """Warn if whole cells, counted as classes, look like lists: split at commas or spaces, they hold few labels."""
    for mark, fewer in ((",", 1), (" ", 2)):  # a name may well have a space: only if half as many are left
        several = [name for name in names if mark in name]
        labels = {part.strip() for name in names for part in name.split(mark) if part.strip()}
        if len(several) > 1 and fewer * len(labels) <= len(names):
            warnings.warn(
                f"{path}, column {shown([column])!r}: cells such as {shown(several[:1])!r} look like lists separated "
                f"by {mark!r}, but each is counted as one class: separate labels with ; or |",
                stacklevel=outside(),
            )
            return


def multi_hot(lists: Iterable[list[str]], place: dict[str, int], num_classes: int) -> tuple[NDArray[np.int8], str, int]:
    """Zeros and ones [n, K], and the first label that is not a class, with its row ("" and −1 if all are known)."""
    rows = list(lists)
    made = np.zeros((len(rows), num_classes), np.int8)
    for row, tags in enumerate(rows):
        for tag in tags:
            column = place.get(tag)
            if column is None:
                return made, tag, row
            made[row, column] = 1
    return made, "", -1


# -------------------------------------------------------------------- the prior of a training set


def prior_of_tags(lists: Iterable[list[str]], path: Path) -> Prior:
    """How many of all items have each label: names in sorted order, or indices if all labels are whole numbers."""
    counts: Counter[str] = Counter()
    total = 0
    for tags in lists:
        counts.update(tags)
        total += 1
    if not counts:
        raise ValueError(f"{path} has no labels: there is nothing to count")
    if all(tag.isascii() and tag.isdecimal() and len(tag) <= 7 for tag in counts):
        indexed = np.zeros(1 + max(map(int, counts)), np.int64)
        for tag, number in counts.items():
            indexed[int(tag)] += number
        return Prior.from_counts(indexed, total)
    return Prior.from_counts({name: counts[name] for name in sorted(counts)}, total)


def tags_in_csv(path: Path, place: int) -> Iterator[list[str]]:
    """The labels of every line."""
    _, rows = read_table(path)
    for line, row in rows:
        try:
            yield tags_of(row[place])
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None


def holds_lists(path: Path, place: int) -> bool:
    """Whether a cell of a .csv file's column is a list."""
    _, rows = read_table(path)
    return any(is_list(row[place].strip()) for _, row in rows)


def prior_of_columns_in_csv(path: Path) -> Prior | None:
    """The positives of each column that holds only zeros, ones and unknown labels; None if no column does."""
    (_, header), rows = read_table(path)
    ones, known = np.zeros(len(header), np.int64), np.zeros(len(header), bool)
    binary, total = np.ones(len(header), bool), 0
    for _, row in rows:
        for column in np.flatnonzero(binary):
            cell = row[column].strip().removesuffix(".0")
            binary[column] = cell in ("0", "1", "", "-1")
            known[column] |= cell in ("0", "1")
            ones[column] += cell == "1"
        total += 1
    return _prior_of_columns(header, ones, binary & known, total)


def prior_of_columns_in_arrow(table: Any) -> Prior | None:
    """The same for an Arrow table."""
    ones, binary = np.zeros(table.num_columns, np.int64), np.zeros(table.num_columns, bool)
    for place, column in enumerate(table.columns):
        if str(column.type).startswith(("bool", "int", "uint", "float", "double")):
            values = column.drop_null().to_numpy()
            known = (values == 0) | (values == 1)
            binary[place] = bool(known.any() and (known | (values == -1) | np.isnan(values)).all())
            ones[place] = int((values == 1).sum())
    return _prior_of_columns(table.column_names, ones, binary, table.num_rows)


def _prior_of_columns(header: list[str], ones: NDArray[Any], binary: NDArray[Any], total: int) -> Prior | None:
    targets = np.array([name.startswith(TARGET) for name in header])
    if targets.sum() > 1:
        wrong = next((name for name, own, kept in zip(header, targets, binary, strict=True) if own and not kept), None)
        if wrong is not None:
            raise ValueError(
                f"column {shown([wrong])!r} holds more than 0, 1 and -1 (or empty: unknown), or no 0 and 1"
            )
        binary = targets
    if not total or binary.sum() < 2:
        return None
    names = [name.removeprefix(TARGET) for name, kept in zip(header, binary, strict=True) if kept]
    return Prior.from_counts(ones[binary], total, class_names=names)
