"""Predictions of a model on a test set, from a file, batch after batch: as much memory as one batch needs.

    .npz               arrays `logits` or `probabilities` [N, K] and `labels` [N]; optional `class_names` [K] and
                       `logits_mean` ("train" or "uniform"). Compressed or not, it is streamed; only an array that is
                       stored column by column is read whole. Other arrays are left alone
    .parquet, .csv     a label column and one column per class, named after it; labels are these names, or numbers

Logits are floats or integers; -inf rules a class out, but not every class of a row. Labels are class indices (floats
only if whole), or names where the file names its classes. Tables do not say whether they hold logits or probabilities:
they hold probabilities if all rows of the first batch do. Headers are checked before anything is read, so that a small
file cannot fill the memory. Whatever cannot be used is one error that names the file, the row (counted from 0; in .csv
the line) and the column.
"""

from __future__ import annotations

import math
import os
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.counting import MOST_CLASSES
from equipoise.data.parquet import open_parquet
from equipoise.data.reading import SEPARATORS, read_rows, reading, shown
from equipoise.data.sources import (
    LABEL_COLUMNS,
    Source,
    as_text,
    check_separator,
    is_number,
    is_whole,
    label_column,
    read_prior,
    read_source,
)
from equipoise.prior import IntArray, Prior

ELEMENTS_AT_ONCE = 1 << 23
TOLERANCE = 1e-3  # of a row of probabilities' sum; half precision gets more
INDEX_COLUMN = "__index_level_0__"  # how pandas calls its index in a .parquet file; in a .csv it has no name
NAME_BYTES = 4096  # of a name in an array: 1,024 characters
NAMES_BYTES = 1 << 28  # of all class names
PARQUET_BUFFER = 1 << 16  # of each column: without it Arrow reads whole column chunks


@dataclass(frozen=True)
class Batch:
    """Some rows: float predictions [n, K], class indices [n] (-1 where the file has none), the number of the first."""

    first: int
    outputs: NDArray[Any]
    labels: IntArray


class Predictions(ABC):
    """Abstract: an opened file of predictions. `batches()` reads it from the start.

    `columns` are the classes' names, `labelled` says whether there are labels.
    """

    path: Path
    num_items: int
    columns: list[str] | None
    labelled: bool
    probabilities: bool
    logits_mean: str | None = None
    num_classes: int

    @abstractmethod
    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        """Predictions [n, K] and labels as they are in the file."""

    def row(self, number: int) -> str:
        """How a row is named in an error."""
        return f"row {number}"

    def batches(self) -> Iterator[Batch]:
        """Checked batches: predictions that are numbers, class indices."""
        first = 0
        with reading(self.path):
            for outputs, labels in self.raw_batches():
                self._check_outputs(outputs, first)
                found = np.full(len(outputs), -1) if labels is None else self._indices(labels, first)
                yield Batch(first, outputs, found)
                first += len(outputs)
        if first == 0:
            raise ValueError(f"{self.path} has no rows: there are no predictions in it")

    def copy_others(self, archive: zipfile.ZipFile, without: Container[str]) -> set[str]:
        """Copy what else the file holds into an .npz file, and say which arrays these were."""
        return set()

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
            missing = ~np.isfinite(labels) | (labels != np.floor(labels)) | (np.abs(labels) > 2**53)
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
                f"{self.path}: labels are names (the first is {shown(labels[:1])!r}), but there are no class_names"
            )
        known = {name: index for index, name in enumerate(self.columns)}
        found = np.empty(len(labels), np.int64)
        for row, value in enumerate(labels):
            if value is None or value == "":
                raise self.fail(first + row, ": its label is missing. Fill or drop the row")
            index = known.get(str(value))
            if index is None:
                raise self.fail(first + row, f": its label is {shown([value])!r}, which no column is named after")
            found[row] = index
        return found


def open_predictions(path: str | os.PathLike[str], *, label: str | None = None, labelled: bool = True) -> Predictions:
    """Open a file of predictions; `label` names the label column of a table. Unless `labelled`, it may have no labels.

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
    with reading(found):
        if ending == ".npz":
            return NpzPredictions(found, labelled)
        if ending == ".parquet":
            return ParquetPredictions(found, label, labelled)
        if ending in SEPARATORS:
            return CsvPredictions(found, label, labelled)
    raise ValueError(f"{found} ends in {ending or 'nothing'!r}: expected predictions, .npz, .parquet or .csv")


# -------------------------------------------------------------------- the prior beside them


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


def training_prior(
    path: str | os.PathLike[str], opened: Sequence[Predictions], *, column: str | None = None
) -> tuple[Prior, str]:
    """The counts in `path`, with class names from the first file that has any, and where the classes came from."""
    return _completed(read_source(path, column=column, counts_of=opened[0].num_classes), opened)


def prior_of_columns(path: str | os.PathLike[str], opened: Predictions, *, column: str | None = None) -> Prior:
    """The counts or probabilities in `path`, with the classes named and ordered as the columns of `opened`."""
    source = read_prior(path, column=column, counts_of=opened.num_classes)
    prior, where = _completed(source, [opened])
    columns = aligned(opened, prior, where)
    return prior if columns is None else _ordered(prior, np.argsort(columns), opened.columns)


def _completed(source: Source, opened: Sequence[Predictions]) -> tuple[Prior, str]:
    """The prior of a source with the classes of the predictions: labels do not show one that never occurs."""
    prior, named = source.prior, next((file for file in opened if file.columns is not None), None)
    if source.labels and prior.class_names is None:
        prior = Prior.from_counts([*prior.counts.tolist(), *[0] * (opened[0].num_classes - prior.num_classes)])
    elif source.labels and named is not None and named.columns is not None:
        found = dict(zip(prior.class_names or (), prior.counts.tolist(), strict=True))
        prior = Prior.from_counts(dict.fromkeys(named.columns, 0) | found)
    if prior.class_names is None and named is not None:
        aligned(named, prior, str(source.path))
        return _ordered(prior, np.arange(prior.num_classes), named.columns), f"{named.path} (with {source.path})"
    return prior, str(source.path)


def _ordered(prior: Prior, order: IntArray, names: list[str] | None) -> Prior:
    if prior.counted:
        return Prior.from_counts(prior.counts[order], prior.total, class_names=names)
    return Prior.from_probabilities(prior.probabilities[order], class_names=names)


# -------------------------------------------------------------------- .npz


@dataclass(frozen=True)
class _Array:
    """An array of an .npz file, as its header describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool


class NpzPredictions(Predictions):
    """Arrays in a zip file, read as a stream: nothing is mapped into memory, nothing is unpacked on disk."""

    def __init__(self, path: Path, labelled: bool) -> None:
        self.path = path
        with _opened(path) as archive:
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            kinds = [name for name in ("logits", "probabilities") if name in members]
            if len(kinds) != 1 or (labelled and "labels" not in members):
                raise ValueError(
                    f"{path} has the arrays {shown(sorted(members)) or 'none at all'}: expected "
                    f"{repr('labels') + ', and ' if labelled else ''}'logits' or 'probabilities'"
                )
            twice = _twice(archive.namelist())
            if twice is not None:
                raise ValueError(f"{path} has {shown([twice])!r} twice: write it anew")
            self._outputs = _described(archive, path, kinds[0])
            self._check_shape()
            self.num_items, self.num_classes = self._outputs.shape
            self.probabilities, self.labelled = kinds[0] == "probabilities", "labels" in members
            self._labels = _described(archive, path, "labels") if self.labelled else None
            self._check_labels()
            names = self._small(archive, "class_names", self.num_classes) if "class_names" in members else None
            mean = self._small(archive, "logits_mean", 1) if "logits_mean" in members else None
        self.columns = None if names is None else [str(name) for name in names.ravel()]
        twice = _twice(self.columns or [])
        if twice is not None:
            raise ValueError(f"{path}: class_names has {shown([twice])!r} twice: give every class a name of its own")
        self.logits_mean = None if mean is None else str(mean.item())
        if self.logits_mean not in (None, "train", "uniform"):
            raise ValueError(f"{path}: logits_mean is {shown([self.logits_mean])!r}, expected 'train' or 'uniform'")

    @property
    def rows_at_once(self) -> int:
        wide = self._labels.dtype.itemsize // 8 if self._labels else 0
        return max(1, ELEMENTS_AT_ONCE // max(self.num_classes, wide))

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        with _opened(self.path) as archive:
            outputs = self._rows(archive, self._outputs, self.num_classes)
            labels = self._rows(archive, self._labels, 1) if self._labels else None
            for part in outputs:
                if part.dtype.kind in "iu":
                    part = part.astype(np.float64)
                yield part, None if labels is None else as_text(next(labels).ravel())

    def copy_others(self, archive: zipfile.ZipFile, without: Container[str]) -> set[str]:
        """Member after member, as a stream, compressed as it was."""
        copied = set()
        with reading(self.path), _opened(self.path) as mine:
            for info in mine.infolist():
                name = info.filename.removesuffix(".npy")
                if name in without or info.is_dir():
                    continue
                copy = zipfile.ZipInfo(info.filename, info.date_time)
                copy.compress_type = info.compress_type
                with mine.open(info) as source, archive.open(copy, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                copied.add(name)
        return copied

    def _check_shape(self) -> None:
        shape, dtype = self._outputs.shape, self._outputs.dtype
        if len(shape) != 2 or dtype.kind not in "fiu" or dtype.itemsize > 8 or 0 in shape[1:]:
            raise ValueError(
                f"{self.path}: {self._outputs.name} are {dtype} of shape {shape}, expected floats of 16, 32 or 64 bits "
                "or integers, one row per item, one column per class: [N, K]"
            )
        if shape[1] > MOST_CLASSES:
            raise ValueError(f"{self.path}: {self._outputs.name} have {shape[1]} columns, at most {MOST_CLASSES}")

    def _check_labels(self) -> None:
        if self._labels is None:
            return
        if self._labels.shape != (self.num_items,):
            raise ValueError(
                f"{self.path}: labels have shape {self._labels.shape}, expected one for each of {self.num_items} rows"
            )
        if self._labels.dtype.kind not in "iufUS" or not 0 < self._labels.dtype.itemsize <= NAME_BYTES:
            raise ValueError(f"{self.path}: labels are {self._labels.dtype}, expected class indices or names")

    def _small(self, archive: zipfile.ZipFile, name: str, number: int) -> NDArray[Any]:
        """An array of text, one for each of `number`, read whole after a look at its header."""
        found = _described(archive, self.path, name)
        if math.prod(found.shape) != number:
            raise ValueError(f"{self.path}: {math.prod(found.shape)} {name} for {number} columns")
        if found.dtype.itemsize > NAME_BYTES or found.dtype.itemsize * number > NAMES_BYTES:
            raise ValueError(f"{self.path}: {name} are {found.dtype}, longer than any name")
        with archive.open(f"{name}.npy") as stream:
            return as_text(np.asarray(np.lib.format.read_array(stream, allow_pickle=False)))

    def _rows(self, archive: zipfile.ZipFile, array: _Array, columns: int) -> Iterator[NDArray[Any]]:
        width, at_once = columns * array.dtype.itemsize, self.rows_at_once
        with archive.open(f"{array.name}.npy") as stream:
            _header(stream)
            if array.by_column:
                data = np.frombuffer(stream.read(self.num_items * width), array.dtype).reshape(columns, -1).T
            for first in range(0, self.num_items, at_once):
                rows = min(at_once, self.num_items - first)
                if array.by_column:
                    part = np.ascontiguousarray(data[first : first + rows])
                else:
                    part = np.frombuffer(stream.read(rows * width), array.dtype).reshape(rows, columns)
                yield part.astype(array.dtype.newbyteorder("="), copy=False)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no .npz file, or a damaged one: {error}") from None


def _described(archive: zipfile.ZipFile, path: Path, name: str) -> _Array:
    """What the header of an array says; what it does not fit is refused before anything is read."""
    with archive.open(f"{name}.npy") as stream:
        shape, by_column, dtype = _header(stream)
        size = stream.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"{path}: {name} are Python objects: save them as np.array(list({name}))")
    held = archive.getinfo(f"{name}.npy").file_size
    if held != size:
        raise ValueError(f"{path} is damaged: {name} take {held} bytes, but {size} by their header")
    return _Array(name, shape, dtype, by_column and len(shape) > 1)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)


def _twice(names: Sequence[str]) -> str | None:
    """The first name that occurs more than once."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


# -------------------------------------------------------------------- tables


class TablePredictions(Predictions):
    """A label column, and one column per class."""

    label: str | None

    def _by_number(self, labels: IntArray) -> IntArray:
        """Whole labels are the names of the columns where these are whole numbers, else their places."""
        if self._numbers is None:
            return labels
        known = {number: index for index, number in enumerate(self._numbers)}
        distinct, inverse = np.unique(labels, return_inverse=True)
        return np.array([known.get(number, -1) for number in distinct.tolist()], np.int64)[inverse]

    def _set_columns(self, names: list[str], label: str | None, labelled: bool) -> None:
        self.labelled = labelled or label is not None or any(names.count(name) == 1 for name in LABEL_COLUMNS)
        self._place = label_column(names, label, self.path, "--label") if self.labelled else len(names)
        self.label = names[self._place] if self.labelled else None
        self.columns = names[: self._place] + names[self._place + 1 :]
        self.num_classes = len(self.columns)
        if not self.columns:
            raise ValueError(
                f"{self.path} has the column {shown(names)!r} only: expected a label column and one per class"
            )
        unnamed = next((name for name in self.columns if not name or name == INDEX_COLUMN), None)
        if unnamed is not None:
            raise ValueError(
                f"{self.path} has the column {unnamed!r}, the row numbers of pandas: write the table with index=False"
            )
        twice = _twice(self.columns)
        if twice is not None:
            raise ValueError(f"{self.path} has the column {shown([twice])!r} twice: give every class a name of its own")
        whole = all(is_whole(name) and name.isdecimal() for name in self.columns)
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

    def __init__(self, path: Path, label: str | None, labelled: bool) -> None:
        self.path = path
        self._open: Any = lambda: open_parquet(path, buffer_size=PARQUET_BUFFER, pre_buffer=False)
        with self._open() as opened:
            self._set_columns(opened.schema_arrow.names, label, labelled)
            self.num_items = opened.metadata.num_rows
            for name in self._column_names:
                kind = str(opened.schema_arrow.field(name).type)
                if not kind.startswith(("float", "double", "halffloat", "int", "uint")):
                    raise ValueError(
                        f"{path}: column {shown([name])!r} is {kind}, expected numbers: keep the label and one column "
                        "per class"
                    )
        self._look()

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        first = 0
        wanted = [*([] if self.label is None else [self.label]), *self._column_names]
        with self._open() as opened:
            for batch in opened.iter_batches(self.rows_at_once, columns=wanted):
                outputs = np.empty((self.num_classes, batch.num_rows), np.float32)
                for index, name in enumerate(self._column_names):
                    missing = f", {self.column(index)} is empty: fill or drop the row"
                    outputs[index] = self._values(batch.column(name), first, missing)
                labels = None
                if self.label is not None:
                    missing = f", column {shown([self.label])!r}: its label is missing. Fill or drop the row"
                    labels = self._values(batch.column(self.label), first, missing)
                yield np.ascontiguousarray(outputs.T), labels
                first += batch.num_rows

    def _values(self, values: Any, first: int, missing: str) -> NDArray[Any]:
        if values.null_count:
            raise self.fail(first + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))), missing)
        found: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return found


class CsvPredictions(TablePredictions):
    """Lines of text; quoted as usual."""

    def __init__(self, path: Path, label: str | None, labelled: bool) -> None:
        self.path = path
        lines = read_rows(path)
        _, header = next(lines, (0, None))
        if header is None:
            raise ValueError(f"{path} is empty: expected a line of column names, then one line per item")
        check_separator(header, path)
        self._set_columns(header, label, labelled)
        self.num_items = sum(1 for _ in lines)
        self._numbers_of_lines: list[int] = []
        self._look()

    def row(self, number: int) -> str:
        return f"line {self._numbers_of_lines[number - self._first]}"

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        self._first = 0
        lines = read_rows(self.path)
        next(lines)
        while rows := self._some(lines):
            labels = self._as_labels([row.pop(self._place).strip() for row in rows]) if self.labelled else None
            yield self._numbers_in(rows), labels
            self._first += len(rows)

    def _some(self, lines: Iterator[tuple[int, list[str]]]) -> list[list[str]]:
        rows: list[list[str]] = []
        self._numbers_of_lines = []
        cells = self.num_classes + self.labelled
        for number, row in lines:
            if len(row) != cells:
                raise ValueError(f"{self.path}, line {number} has {len(row)} cells, the header {cells}")
            rows.append(row)
            self._numbers_of_lines.append(number)
            if len(rows) == self.rows_at_once:
                break
        return rows

    def _numbers_in(self, rows: list[list[str]]) -> NDArray[Any]:
        try:
            return np.array(rows, dtype=np.float64)
        except ValueError:
            for row, cells in enumerate(rows):
                for index, cell in enumerate(cells):
                    if not is_number(cell):
                        what = "is empty" if not cell.strip() else f"is {shown([cell])!r}, not a number"
                        raise self.fail(
                            self._first + row, f", {self.column(index)} {what}: fill or drop the row"
                        ) from None
            raise

    def _as_labels(self, labels: Sequence[str]) -> NDArray[Any]:
        if "" in labels:
            where = f", column {shown([self.label])!r}: its label is missing. Fill or drop the row"
            raise self.fail(self._first + labels.index(""), where)
        named = self.columns is not None and self._numbers is None and any(map(is_whole, self.columns))
        if not named and all(map(is_whole, labels)):  # among names a "7" is a name
            return np.array([int(label.removesuffix(".0")) for label in labels], np.int64)
        return np.array(labels, dtype=object)
