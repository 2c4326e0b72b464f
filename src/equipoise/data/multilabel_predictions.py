"""Predictions for items that may have several labels, read from a file in batches, as `predictions` reads the others.

    .npz               `logits` or `probabilities` [N, K] and `targets` (or `labels`) [N, K] of zeros and ones; −1 or
                       NaN is a label that is not known. Optional `class_names` [K] and `thresholds` [K]
    .parquet, .csv     one column per class with its predictions, named after it, and either a column of lists of labels
                       (cat;owl or cat|owl or ["cat", "owl"]; empty: none; in .parquet also lists) or for every class a
                       column of zeros and ones, named target_ and the class; then other columns are left alone

The file itself shows which kind it is: a table has several labels if it has target_ columns, or if a cell of its label
column is a list. Tables hold probabilities if all values of the first batch lie between 0 and 1.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.parquet import open_parquet
from equipoise.data.predictions import TARGETS, NpzPredictions, Predictions, check_once, open_predictions
from equipoise.data.reading import SEPARATORS, read_table, reading, shown
from equipoise.data.sources import LABEL_COLUMNS, as_text, is_number
from equipoise.data.tags import TARGET, is_list, multi_hot, tags_of


def open_either(
    path: str | os.PathLike[str], *, label: str | None = None, labelled: bool = True, several: bool = False
) -> Predictions:
    """Open a file of predictions with one label per item or with several, whichever it holds.

    Labels are optional unless `labelled`. A file without labels is opened as one for several per item if `several`.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "test.npz"
    >>> np.savez(path, logits=[[2.0, 0.0], [0.5, 1.0]], targets=[[1, 1], [0, 1]])
    >>> opened = open_either(path)
    >>> opened.multilabel, next(opened.batches()).labels.tolist()
    (True, [[1, 1], [0, 1]])
    """
    found = Path(path)
    if found.is_file():
        with reading(found):
            ending = found.suffix.lower()
            if ending == ".npz":
                return NpzPredictions(found, labelled, several=several or None)
            if ending in SEPARATORS:
                table: _Table = _Csv(found)
            elif ending == ".parquet":
                table = _Parquet(found)
            else:
                return open_predictions(path, label=label, labelled=labelled)
            if several or table.holds_several(label):
                return TablesOfSeveral(table, label)
    return open_predictions(path, label=label, labelled=labelled)


def bare_targets(path: Path) -> tuple[NDArray[Any], list[str] | None] | None:
    """The multi-hot array of an .npz file without predictions, and its `class_names`; None for any other file."""
    if not zipfile.is_zipfile(path):
        return None
    with np.load(path, allow_pickle=False) as arrays:
        name = next((name for name in ("labels", *TARGETS) if name in arrays.files), None)
        if name is None or {"logits", "probabilities"} & {*arrays.files}:
            return None
        target, names = arrays[name], arrays.get("class_names")
    if target.ndim != 2 or target.dtype.kind not in "biuf":
        raise ValueError(
            f"{path}: {name} are {target.dtype} of shape {target.shape}, expected zeros and ones [N, K], one column "
            "per class (one label per item goes into an .npy file)"
        )
    wrong = np.argwhere(~np.isin(target, (0, 1, -1)) & ~np.isnan(target))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueError(
            f"{path}, row {row}: its label of column {column} is {target[row, column]}, expected 0 or 1, or -1 where "
            "it is not known"
        )
    return target, None if names is None else [str(text) for text in as_text(names).ravel()]


class TablesOfSeveral(Predictions):
    """A table with predictions for every class, and either lists of labels or zeros and ones per class, or neither."""

    multilabel = True

    def __init__(self, table: _Table, label: str | None) -> None:
        self.path, self._table = table.path, table
        targets = [name for name in table.names if name.startswith(TARGET)] if label is None else []
        self._label = None if targets else table.label_column(label)
        self.labelled = bool(targets) or self._label is not None
        if targets:
            classes = [name.removeprefix(TARGET) for name in targets]
            missing = next((name for name in classes if name not in table.names), None)
            if missing is not None:
                raise ValueError(
                    f"{self.path} has the column {shown([TARGET + missing])!r} and no column {shown([missing])!r}: "
                    "expected the predictions of every class in a column named after it"
                )
        else:
            classes = [name for name in table.names if name != self._label]
        check_once(table.names, f"{self.path} has the column", "give every column a name of its own")
        if not classes or "" in classes:
            raise ValueError(f"{self.path} has the columns {shown(table.names)}: expected one per class, with a name")
        self.columns = self._headers = classes
        self.num_classes, self.num_items = len(classes), table.num_items
        self._read = [*classes, *(targets if self._label is None else [self._label])]
        first = next((outputs for outputs, _ in self.raw_batches()), np.zeros((0, 1)))
        self.probabilities = len(first) > 0 and bool(((first >= 0) & (first <= 1)).all())

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        place = {name: index for index, name in enumerate(self.columns or [])}
        numbers = {str(index): index for index in range(self.num_classes)}
        first = 0
        for lines, columns in self._table.batches(self._read, self.rows_at_once):
            self._first, self._lines = first, lines
            outputs = np.stack([self._as_numbers(i, columns[i]) for i in range(self.num_classes)], axis=1)
            if not self.labelled:
                labels = None
            elif self._label is None:
                own = [self._as_numbers(i, columns[self.num_classes + i], empty=-1) for i in range(self.num_classes)]
                labels = np.stack(own, axis=1)
            else:
                labels, unknown, row = multi_hot(self._lists(columns[-1]), numbers | place, self.num_classes)
                if unknown:
                    raise self.fail(row, f": its label is {shown([unknown])!r}, which no column is named after")
            yield outputs, labels
            first += len(outputs)

    def _lists(self, cells: Any) -> Iterator[list[str]]:
        for row, cell in enumerate(cells):
            try:
                yield (
                    tags_of(cell) if isinstance(cell, str) else [str(value) for value in ([] if cell is None else cell)]
                )
            except ValueError as error:
                raise self.fail(row, f": {error}") from None

    def _as_numbers(self, index: int, cells: Any, empty: float | None = None) -> NDArray[Any]:
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
            return cells.astype(np.float64)
        filled = ["" if cell is None else str(cell).strip() for cell in cells]
        filled = [str(empty) if cell == "" and empty is not None else cell for cell in filled]
        wrong = next((row for row, cell in enumerate(filled) if not is_number(cell)), None)
        if wrong is not None:
            what = f"is {shown([filled[wrong]])!r}, not a number" if filled[wrong] else "is empty"
            raise self.fail(wrong, f", {self.column(index)} {what}: fill or drop the row")
        return np.array(filled, np.float64)


# -------------------------------------------------------------------- the two kinds of table


class _Table:
    """Abstract: the columns of a file, in batches of rows."""

    path: Path
    names: list[str]
    num_items: int

    def batches(self, names: list[str], rows: int) -> Iterator[tuple[list[int] | None, list[Any]]]:
        raise NotImplementedError

    def has_lists(self, column: str) -> bool:
        raise NotImplementedError

    def label_column(self, wanted: str | None) -> str | None:
        """The column asked for, or the one with a usual name."""
        named = [wanted] if wanted is not None else [*LABEL_COLUMNS]
        return next((name for name in named if self.names.count(name) == 1), None)

    def holds_several(self, label: str | None) -> bool:
        known = set(self.names)
        if label is None and any(n.startswith(TARGET) and n.removeprefix(TARGET) in known for n in self.names):
            return True
        column = self.label_column(label)
        return column is not None and self.has_lists(column)


class _Csv(_Table):
    def __init__(self, path: Path) -> None:
        self.path = path
        (_, self.names), rows = read_table(path)
        self.num_items = sum(1 for _ in rows)

    def has_lists(self, column: str) -> bool:
        (_, header), rows = read_table(self.path, column)
        place, names = header.index(column), set(header)
        cells = (row[place].strip() for _, row in rows)
        return any(is_list(cell) and cell not in names for cell in cells)

    def batches(self, names: list[str], rows: int) -> Iterator[tuple[list[int] | None, list[Any]]]:
        (_, header), lines = read_table(self.path, names[-1])
        places = [header.index(name) for name in names]
        while some := list(islice(lines, rows)):
            yield [line for line, _ in some], [[row[place] for _, row in some] for place in places]


class _Parquet(_Table):
    def __init__(self, path: Path) -> None:
        self.path = path
        with open_parquet(path) as opened:
            self.names, self.num_items = list(opened.schema_arrow.names), opened.metadata.num_rows
            self._lists = {f.name for f in opened.schema_arrow if str(f.type).startswith(("list", "large_list"))}
            self._texts = {f.name for f in opened.schema_arrow if str(f.type) in ("string", "large_string")}

    def has_lists(self, column: str) -> bool:
        if column in self._texts:
            cells = (cell for _, (cells,) in self.batches([column], 1 << 16) for cell in cells)
            return any(cell is not None and is_list(cell.strip()) and cell not in self.names for cell in cells)
        return column in self._lists

    def batches(self, names: list[str], rows: int) -> Iterator[tuple[list[int] | None, list[Any]]]:
        with open_parquet(self.path) as opened:
            for batch in opened.iter_batches(rows, columns=names):
                yield None, [_values(batch.column(name)) for name in names]


def _values(column: Any) -> Any:
    """A column as NumPy numbers, or as a list if it has lists, text or gaps."""
    kind = str(column.type)
    if column.null_count or not kind.startswith(("bool", "int", "uint", "float", "double", "halffloat")):
        return column.to_pylist()
    return column.to_numpy(zero_copy_only=False)
