"""Predictions of a model on a test set, from a file, batch after batch: as much memory as one batch needs.

    .npz               arrays `logits` or `probabilities` [N, K] and `labels` [N]; optional `class_names` [K] and
                       `logits_mean` ("train" or "uniform"). Compressed or not, it is streamed
    .parquet, .csv     a label column and a column a class, named after it; labels are those names, or column numbers

Tables do not say whether they hold logits or probabilities: they hold probabilities if all rows of the first batch do.
Whatever cannot be used is one error that names the file, the row (counted from 0; in .csv the line) and the column.
"""

from __future__ import annotations

import csv
import os
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.parquet import open_parquet
from equipoise.data.sources import SEPARATORS, check_separator, label_column, reading, shown
from equipoise.prior import IntArray, Prior

ELEMENTS_AT_ONCE = 1 << 23
TOLERANCE = 1e-3  # of a row of probabilities' sum; half precision gets more
INDEX_COLUMN = "__index_level_0__"  # how pandas calls its index in a .parquet file; in a .csv it has no name
PARQUET_BUFFER = 1 << 16  # of each column: without it Arrow reads whole column chunks


@dataclass(frozen=True)
class Batch:
    """Some rows: float predictions [n, K], class indices [n], and the number of the first."""

    first: int
    outputs: NDArray[Any]
    labels: IntArray


class Predictions(ABC):
    """Abstract: an opened file of predictions. `batches()` reads it from the start."""

    path: Path
    num_items: int
    columns: list[str] | None  # the classes' names
    probabilities: bool
    logits_mean: str | None = None
    num_classes: int

    @abstractmethod
    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Predictions [n, K] and labels as they are in the file."""

    def row(self, number: int) -> str:
        """How a row is named in an error."""
        return f"row {number}"

    def batches(self) -> Iterator[Batch]:
        """Checked batches: finite predictions, class indices."""
        first = 0
        for outputs, labels in self.raw_batches():
            self._check_outputs(outputs, first)
            yield Batch(first, outputs, self._indices(labels, first))
            first += len(labels)

    @property
    def rows_at_once(self) -> int:
        return max(1, ELEMENTS_AT_ONCE // self.num_classes)

    def fail(self, number: int, what: str) -> ValueError:
        return ValueError(f"{self.path}, {self.row(number)}{what}")

    def column(self, index: int) -> str:
        """How a class's column is named in an error."""
        return f"column {index}" if self.columns is None else f"column {shown([self.columns[index]])!r}"

    # ---------------------------------------------------------------- checks

    def _check_outputs(self, outputs: NDArray[Any], first: int) -> None:
        bad = np.isnan(outputs) | (outputs == np.inf)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise self.fail(first + row, f", {self.column(column)} is {outputs[row, column]}: predictions are finite")
        if self.probabilities:
            tolerance = 0.03 if outputs.dtype == np.float16 else TOLERANCE
            wrong = (np.abs(outputs.sum(axis=1, dtype=np.float64) - 1) > tolerance) | (outputs < 0).any(axis=1)
            if wrong.any():
                row = int(wrong.argmax())
                total, least = outputs[row].sum(dtype=np.float64), outputs[row].min()
                raise self.fail(
                    first + row, f" is no distribution (sum {total:.4g}, least {least:.4g}): were logits meant?"
                )
            return
        nowhere = np.isneginf(outputs).all(axis=1)
        if nowhere.any():
            raise self.fail(first + int(nowhere.argmax()), " is -inf for every class")

    def _indices(self, labels: NDArray[Any], first: int) -> IntArray:
        if labels.dtype.kind == "f":
            missing = ~np.isfinite(labels) | (labels != np.floor(labels))
            if missing.any():
                row = int(missing.argmax())
                what = "is missing" if np.isnan(labels[row]) else f"is {labels[row]}, not a whole number"
                raise self.fail(first + row, f": its label {what}. Fill or drop the row")
        if labels.dtype.kind in "USO":
            found = self._by_name(labels, first)
        elif labels.dtype.kind in "iuf":
            found = self._by_number(labels.astype(np.int64))
        else:
            raise ValueError(f"{self.path}: labels are {labels.dtype}, expected class indices or names")
        bad = (found < 0) | (found >= self.num_classes)
        if bad.any():
            row = int(bad.argmax())
            raise self.fail(
                first + row, f": its label is {labels[row]}, expected a class from 0 to {self.num_classes - 1}"
            )
        return found

    def _by_number(self, labels: IntArray) -> IntArray:
        return labels

    def _by_name(self, labels: NDArray[Any], first: int) -> IntArray:
        if self.columns is None:
            raise ValueError(
                f"{self.path}: labels are names (the first is {str(labels[0])!r:.60}), but there are no class_names"
            )
        known = {name: index for index, name in enumerate(self.columns)}
        found = np.empty(len(labels), np.int64)
        for row, value in enumerate(labels):
            if value is None or value == "":
                raise self.fail(first + row, ": its label is missing. Fill or drop the row")
            index = known.get(str(value))
            if index is None:
                raise self.fail(first + row, f": its label is {str(value)!r:.60}, which no column is named after")
            found[row] = index
        return found


def open_predictions(path: str | os.PathLike[str], *, label: str | None = None) -> Predictions:
    """Open a file of predictions; `label` names the label column of a table.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "test.npz"
    >>> np.savez(path, logits=[[2.0, 0.0], [0.5, 1.0]], labels=[0, 1])
    >>> opened = open_predictions(path)
    >>> opened.num_items, opened.num_classes, next(opened.batches()).labels.tolist()
    (2, 2, [0, 1])
    """
    found = Path(path)
    if not found.is_file():
        raise FileNotFoundError(f"{found} is not a file: expected predictions, .npz, .parquet or .csv")
    ending = found.suffix.lower()
    if ending == ".npz":
        return NpzPredictions(found)
    if ending == ".parquet":
        return ParquetPredictions(found, label)
    if ending in SEPARATORS:
        return CsvPredictions(found, label)
    raise ValueError(f"{found} ends in {ending or 'nothing'!r}: expected predictions, .npz, .parquet or .csv")


def aligned(predictions: Predictions, prior: Prior, where: str) -> IntArray | None:
    """Which column of the file each class of `prior` (read from `where`) is; None where the order is the same.

    Classes are matched by name where both sides have names, else by position.
    """
    names, wanted = predictions.columns, prior.class_names
    if names is None or wanted is None or list(names) == list(wanted):
        if predictions.num_classes != prior.num_classes:
            raise ValueError(
                f"{predictions.path} has {predictions.num_classes} columns of classes, {where} has {prior.num_classes} "
                "classes: both must be those of the model"
            )
        return None
    for one, other, here, there in ((names, wanted, predictions.path, where), (wanted, names, where, predictions.path)):
        missing = [name for name in one if name not in set(other)]
        if missing:
            raise ValueError(f"{here} has the class {shown(missing)!r}, {there} has not: give both the same classes")
        twice = [name for name in one if one.count(name) > 1]
        if twice:
            raise ValueError(f"{here} has the class {shown(twice[:1])!r} twice: give every class a name of its own")
    place = {name: index for index, name in enumerate(names)}
    return np.array([place[name] for name in wanted], np.int64)


# -------------------------------------------------------------------- .npz


class NpzPredictions(Predictions):
    """Arrays in a zip file, read as a stream: nothing is mapped into memory, nothing is unpacked on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                members = {Path(name).stem for name in archive.namelist() if name.endswith(".npy")}
                kinds = [name for name in ("logits", "probabilities") if name in members]
                if len(kinds) != 1 or "labels" not in members:
                    raise ValueError(
                        f"{path} has the arrays {shown(sorted(members)) or 'none at all'}: expected 'labels', and "
                        "'logits' or 'probabilities'"
                    )
                self._member = f"{kinds[0]}.npy"
                self.probabilities = kinds[0] == "probabilities"
                with archive.open(self._member) as stream:
                    self._shape, self._dtype = _header(stream, path, kinds[0])
                self._labels = _whole(archive, path, "labels")
                names = _whole(archive, path, "class_names") if "class_names" in members else None
                mean = _whole(archive, path, "logits_mean") if "logits_mean" in members else None
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is no .npz file, or a damaged one: {error}") from None
        if len(self._shape) != 2 or self._dtype.kind != "f" or self._dtype.itemsize > 8:
            raise ValueError(
                f"{path}: {kinds[0]} are {self._dtype} of shape {self._shape}, expected floats of 16, 32 or 64 bits, "
                "one row an item, one column a class: [N, K]"
            )
        self.num_items, self.num_classes = self._shape
        if self._labels.shape != (self.num_items,):
            raise ValueError(
                f"{path}: labels have shape {self._labels.shape}, expected one for each of {self.num_items} rows"
            )
        self.columns = None if names is None else [str(name) for name in names.ravel()]
        if self.columns is not None and len(self.columns) != self.num_classes:
            raise ValueError(f"{path}: {len(self.columns)} class_names for {self.num_classes} columns")
        twice = _twice(self.columns or [])
        if twice is not None:
            raise ValueError(f"{path}: class_names has {shown([twice])!r} twice: give every class a name of its own")
        self.logits_mean = None if mean is None else str(mean)
        if self.logits_mean not in (None, "train", "uniform"):
            raise ValueError(f"{path}: logits_mean is {self.logits_mean!r}, expected 'train' or 'uniform'")

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        width = self.num_classes * self._dtype.itemsize
        with zipfile.ZipFile(self.path) as archive, archive.open(self._member) as stream:
            _header(stream, self.path, self._member)
            for first in range(0, self.num_items, self.rows_at_once):
                rows = min(self.rows_at_once, self.num_items - first)
                try:
                    data = stream.read(rows * width)
                except (zipfile.BadZipFile, EOFError) as error:
                    raise ValueError(f"{self.path} is damaged after row {first}: {error}") from None
                if len(data) < rows * width:
                    raise ValueError(f"{self.path} ends at row {first + len(data) // width} of {self.num_items}")
                outputs = np.frombuffer(data, self._dtype).reshape(rows, self.num_classes)
                yield outputs.astype(self._dtype.newbyteorder("="), copy=False), self._labels[first : first + rows]


def _header(stream: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if fortran and len(shape) > 1:
        raise ValueError(f"{path}: {name} are stored column by column: save np.ascontiguousarray({name})")
    return shape, dtype


def _whole(archive: zipfile.ZipFile, path: Path, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as stream:
        try:
            array = np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
        except ValueError:
            raise ValueError(f"{path}: {name} are Python objects: save them as np.array(list({name}))") from None
    with reading(path):
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _twice(names: Sequence[str]) -> str | None:
    """The first name that occurs more than once."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


# -------------------------------------------------------------------- tables


class TablePredictions(Predictions):
    """A label column, and a column a class."""

    label: str

    def _by_number(self, labels: IntArray) -> IntArray:
        """Whole labels are the names of the columns where these are whole numbers, else their places."""
        if self._numbers is None:
            return labels
        known = np.full(max(int(labels.max(initial=0)), *self._numbers) + 1, -1, np.int64)
        known[self._numbers] = np.arange(self.num_classes)
        return np.where(labels >= 0, known[np.maximum(labels, 0)], -1)

    def _set_columns(self, names: list[str], label: str | None) -> None:
        place = label_column(names, label, self.path, "--label")
        if len(names) == 1:
            raise ValueError(f"{self.path} has the column {names[0]!r} only: expected a label column and one a class")
        self.label, self._place = names[place], place
        self.columns = names[:place] + names[place + 1 :]
        self.num_classes = len(self.columns)
        unnamed = next((name for name in self.columns if not name or name == INDEX_COLUMN), None)
        if unnamed is not None:
            raise ValueError(
                f"{self.path} has the column {unnamed!r}, the row numbers of pandas: write the table with index=False"
            )
        twice = _twice(self.columns)
        if twice is not None:
            raise ValueError(f"{self.path} has the column {twice!r} twice: give every class a name of its own")
        whole = all(name.isascii() and name.isdecimal() for name in self.columns)
        self._numbers = [int(name) for name in self.columns] if whole else None
        if self._numbers == list(range(self.num_classes)):  # numbers in order are no names
            self._numbers = None
            self._column_names, self.columns = self.columns, None
        else:
            self._column_names = self.columns

    def column(self, index: int) -> str:
        return f"column {shown([self._column_names[index]])!r}"

    def _look(self) -> None:
        """Whether the first batch is probabilities."""
        self.probabilities = False
        outputs, _ = next(iter(self.raw_batches()), (np.zeros((0, self.num_classes)), None))
        if len(outputs) and not np.isnan(outputs).any():
            sums = outputs.sum(axis=1, dtype=np.float64)
            self.probabilities = bool((outputs >= 0).all() and (np.abs(sums - 1) <= TOLERANCE).all())


class ParquetPredictions(TablePredictions):
    """Row group after row group, in batches."""

    def __init__(self, path: Path, label: str | None) -> None:
        self.path = path
        self._open: Any = lambda: open_parquet(path, buffer_size=PARQUET_BUFFER, pre_buffer=False)
        with self._open() as opened:
            self._set_columns(opened.schema_arrow.names, label)
            self.num_items = opened.metadata.num_rows
            for name in self._column_names:
                kind = str(opened.schema_arrow.field(name).type)
                if not kind.startswith(("float", "double", "halffloat", "int", "uint")):
                    raise ValueError(
                        f"{path}: column {name!r} is {kind}, expected numbers: keep the label and one column a class"
                    )
        self._look()

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        first = 0
        with self._open() as opened:
            for batch in opened.iter_batches(self.rows_at_once, columns=[self.label, *self._column_names]):
                outputs = np.empty((self.num_classes, batch.num_rows), np.float32)
                for index, name in enumerate(self._column_names):
                    values = batch.column(name)
                    if values.null_count:
                        row = first + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
                        raise self.fail(row, f", {self.column(index)} is empty: fill or drop the row")
                    outputs[index] = values.to_numpy(zero_copy_only=False)
                labels = batch.column(self.label)
                if labels.null_count:
                    row = first + int(np.argmax(labels.is_null().to_numpy(zero_copy_only=False)))
                    raise self.fail(row, f", column {self.label!r}: its label is missing. Fill or drop the row")
                yield np.ascontiguousarray(outputs.T), labels.to_numpy(zero_copy_only=False)
                first += batch.num_rows


class CsvPredictions(TablePredictions):
    """Lines of text; quoted as usual."""

    def __init__(self, path: Path, label: str | None) -> None:
        self.path = path
        with self._lines() as lines:
            header = next(lines, None)
            if not header:
                raise ValueError(f"{path} is empty: expected a line of column names, then a line an item")
            if len(header) == 1:
                check_separator(header[0], SEPARATORS[path.suffix.lower()], path)
            self._set_columns(header, label)
            self.num_items = sum(1 for row in lines if row)
        self._numbers_of_lines: list[int] = []
        self._look()

    def row(self, number: int) -> str:
        return f"line {self._numbers_of_lines[number - self._first]}"

    def _lines(self) -> Any:
        return _CsvLines(self.path)

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        self._first = 0
        with self._lines() as lines:
            next(lines)
            while rows := self._some(lines):
                labels = [row.pop(self._place).strip() for row in rows]
                yield self._numbers_in(rows), self._as_labels(labels)
                self._first += len(rows)

    def _some(self, lines: Any) -> list[list[str]]:
        rows: list[list[str]] = []
        self._numbers_of_lines = []
        for row in lines:
            if not row:
                continue
            if len(row) != self.num_classes + 1:
                raise ValueError(
                    f"{self.path}, line {lines.line_num} has {len(row)} cells, the header {self.num_classes + 1}"
                )
            rows.append(row)
            self._numbers_of_lines.append(lines.line_num)
            if len(rows) == self.rows_at_once:
                break
        return rows

    def _numbers_in(self, rows: list[list[str]]) -> NDArray[Any]:
        try:
            return np.array(rows, dtype=np.float64)
        except ValueError:
            for row, cells in enumerate(rows):
                for index, cell in enumerate(cells):
                    if not _is_number(cell):
                        what = "is empty" if not cell.strip() else f"is {cell!r:.60}, not a number"
                        raise self.fail(
                            self._first + row, f", {self.column(index)} {what}: fill or drop the row"
                        ) from None
            raise

    def _as_labels(self, labels: Sequence[str]) -> NDArray[Any]:
        if "" in labels:
            where = f", column {self.label!r}: its label is missing. Fill or drop the row"
            raise self.fail(self._first + labels.index(""), where)
        named = self.columns is not None and self._numbers is None and any(map(_is_whole, self.columns))
        if not named and all(map(_is_whole, labels)):  # among names a "7" is a name
            return np.array([int(float(label)) for label in labels], np.int64)
        return np.array(labels, dtype=object)


class _CsvLines:
    """A csv reader that closes its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, encoding="utf-8-sig", newline="")  # noqa: SIM115
        self._reader = csv.reader(self._file, delimiter=SEPARATORS[path.suffix.lower()])

    def __enter__(self) -> _CsvLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> list[str]:
        with reading(self._path):
            return next(self._reader)

    @property
    def line_num(self) -> int:
        return self._reader.line_num


def _is_whole(text: str) -> bool:
    """Whether text is a class index: digits, also as "7.0", which pandas writes of a column that had gaps."""
    digits = text.removesuffix(".0")
    return digits.isascii() and digits.isdecimal()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
