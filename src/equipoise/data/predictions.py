"""Predictions of a model on a test set, read from a file in batches: it needs memory for one batch.

    .npz               arrays `logits` or `probabilities` [N, K] and `labels` [N]; optional `class_names` [K] and
                       `logits_mean` ("train" or "uniform"). Compressed or not, it is streamed; only an array that is
                       stored column by column is read whole. Other arrays are ignored. Probabilities that are called
                       logits are refused
    .parquet, .csv     a label column and one column per class, named after it; labels are these names, or numbers

Logits are floats or integers; -inf rules a class out, but not every class of a row. Labels are class indices (floats
only if whole), or names if the file names its classes. Tables do not state whether they hold logits or probabilities;
they hold probabilities if all rows of the first batch do. Headers are checked before anything is read, so that a small
file cannot exhaust the memory. Anything that cannot be used gives one error that names the file, the row (counted from
0; in .csv the line) and the column.
"""

from __future__ import annotations

import math
import os
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import MOST_CLASSES, are_probabilities, distributions
from equipoise.data.parquet import open_parquet, read_columns
from equipoise.data.reading import SEPARATORS, npy_header, read_table, reading, shown, twice
from equipoise.data.sources import LABEL_COLUMNS, as_text, is_number, is_whole, label_column
from equipoise.prior import FloatArray, IntArray

ELEMENTS_AT_ONCE = 1 << 23
TARGETS = ("targets", "target")  # the other name that a multi-hot array may have, besides "labels"
INDEX_COLUMN = "__index_level_0__"  # the name that pandas gives its index in a .parquet file; in a .csv it has none
NAME_BYTES = 4096  # of a name in an array: 1,024 characters
NAMES_BYTES = 1 << 28  # of all class names
PARQUET_BUFFER = 1 << 16  # of each column: without it Arrow reads whole column chunks


@dataclass(frozen=True)
class Batch:
    """Some rows: float predictions [n, K], class indices [n] (-1 if the file has none), the number of the first row.

    If items have several labels, these are 1, 0 and -1 (not known), [n, K].
    """

    first: int
    outputs: NDArray[Any]
    labels: IntArray


class Predictions(ABC):
    """Abstract: an opened file of predictions. `batches()` reads it from the start.

    `columns` are the names of the classes; `labelled` is whether there are labels.
    """

    path: Path
    num_items: int
    num_classes: int
    columns: list[str] | None
    labelled: bool
    probabilities: bool
    multilabel = False  # whether an item may have several labels
    thresholds: FloatArray | None = None  # [K], if the file has them
    logits_mean: str | None = None
    label_size = 0  # of a label, in numbers of eight bytes
    _headers: list[str] | None  # of the classes' columns, for errors
    _numbers: dict[int, int] | None = None  # the columns by name, if the names are whole numbers
    _first: int  # first row of the batch that is checked
    _lines: list[int] | None = None  # line numbers of its rows, in a text file

    @abstractmethod
    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        """Predictions [n, K] and labels, unchanged from the file."""

    def batches(self) -> Iterator[Batch]:
        """Checked batches: predictions as numbers, labels as class indices."""
        first = 0
        with reading(self.path):
            for outputs, labels in self.raw_batches():
                self._first = first
                self._check_outputs(outputs)
                read = self._multi_hot if self.multilabel else self._indices
                found = np.full(len(outputs), -1) if labels is None else read(labels)
                yield Batch(first, outputs, found)
                first += len(outputs)
        if first == 0:
            raise ValueError(f"{self.path} has no rows: there are no predictions in it")

    def copy_others(self, archive: zipfile.ZipFile, without: Container[str]) -> set[str]:
        """Copy everything else in the file into an .npz file, and return the names of these arrays."""
        return set()

    def paths(self) -> list[str] | None:
        """The paths of the images, if the file has them: an array `paths` [N] beside the predictions."""
        return None

    @property
    def rows_at_once(self) -> int:
        return max(1, ELEMENTS_AT_ONCE // max(self.num_classes, self.label_size))

    # ---------------------------------------------------------------- checks

    def fail(self, row: int, what: str) -> ValueError:
        """The error for a row of the batch."""
        place = f"row {self._first + row}" if self._lines is None else f"line {self._lines[row]}"
        return ValueError(f"{self.path}, {place}{what}")

    def column(self, index: int) -> str:
        """The name of a class's column in an error."""
        return f"column {index}" if self._headers is None else f"column {shown([self._headers[index]])!r}"

    def _check_outputs(self, outputs: NDArray[Any]) -> None:
        bad = np.isnan(outputs) | (outputs == np.inf)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise self.fail(row, f", {self.column(column)} is {outputs[row, column]}: predictions must be finite")
        half = outputs.dtype == np.float16
        if not (self.probabilities or self._first) and are_probabilities(outputs, half=half, several=self.multilabel):
            raise ValueError(f"{self.path}: its logits are probabilities: name the array 'probabilities', not 'logits'")
        if self.multilabel:
            self._check_chances(outputs)
            return
        wrong = ~distributions(outputs, half=half) if self.probabilities else np.isneginf(outputs).all(axis=1)
        if wrong.any():
            values = outputs[row := int(wrong.argmax())]
            sums = f"sum {values.sum(dtype=np.float64):.4g}, least {values.min():.4g}"
            what = f"not a distribution ({sums}): are these logits?" if self.probabilities else "-inf for every class"
            raise self.fail(row, f" is {what}")

    def _check_chances(self, outputs: NDArray[Any]) -> None:
        """With several labels per item, every probability is checked by itself."""
        wrong = (outputs < 0) | (outputs > 1)
        if self.probabilities and wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise self.fail(row, f", {self.column(column)} is {outputs[row, column]}, not a probability: logits?")

    def _multi_hot(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels [n, K] as 1, 0 and -1; NaN becomes -1."""
        missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
        wrong = ~(missing | (labels == 0) | (labels == 1) | (labels == -1))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            what = f"{labels[row, column]}, expected 0 or 1, or -1 where it is not known"
            raise self.fail(row, f": its label of {self.column(column)} is {what}")
        return np.where(missing, -1, labels).astype(np.int8)

    def _indices(self, labels: NDArray[Any]) -> IntArray:
        """Class indices: numbers are positions, unless the columns are named after numbers; text is a column's name."""
        kind = labels.dtype.kind
        if kind == "f":
            wrong = ~np.isfinite(labels) | (labels != np.floor(labels)) | (np.abs(labels) > 2**53)
            if wrong.any():
                value = labels[row := int(wrong.argmax())]
                what = "is missing" if np.isnan(value) else f"is {value}, not a whole number"
                raise self.fail(row, f": its label {what}. Fill or drop the row")
        if kind in "iuf":
            found = labels.astype(np.int64)
            if self._numbers is not None:
                distinct, inverse = np.unique(found, return_inverse=True)
                found = np.array([self._numbers.get(number, -1) for number in distinct.tolist()], np.int64)[inverse]
        elif kind not in "USO":
            raise ValueError(f"{self.path}: labels are {labels.dtype}, expected class indices or names")
        elif self.columns is None:
            first = repr(shown(labels[:1]))
            raise ValueError(f"{self.path}: labels are names (the first is {first}), but there are no class_names")
        else:
            known = {name: index for index, name in enumerate(self.columns) if name}
            found = np.array([known.get(str(value), -1) for value in labels], np.int64)
        bad = (found < 0) | (found >= self.num_classes)
        if bad.any():
            value = labels[row := int(bad.argmax())]
            what = f"{value}, expected a class from 0 to {self.num_classes - 1}"
            if kind not in "iuf":
                unknown = f"{shown([value])!r}, which no column is named after"
                what = unknown if str(value) else "missing. Fill or drop the row"
            raise self.fail(row, f": its label is {what}")
        return found


def open_predictions(path: str | os.PathLike[str], *, label: str | None = None, labelled: bool = True) -> Predictions:
    """Open a file of predictions; `label` names the label column of a table. Labels are optional unless `labelled`.

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

    def __init__(self, path: Path, labelled: bool = True, *, several: bool | None = False) -> None:
        # several labels per item: False no, None if the labels are a matrix, True even if there are no labels
        self.path = path
        with _opened(path) as archive:
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            kinds = [name for name in ("logits", "probabilities") if name in members]
            allowed = ("labels",) if several is False else ("labels", *TARGETS)
            truth = next((name for name in allowed if name in members), None)
            if len(kinds) != 1 or (labelled and truth is None):
                raise ValueError(
                    f"{path} has the arrays {shown(sorted(members)) or 'none at all'}: expected "
                    f"{repr('labels') + ', and ' if labelled else ''}'logits' or 'probabilities'"
                )
            check_once(archive.namelist(), f"{path} has", "write it anew")
            self._outputs = _described(archive, path, kinds[0])
            self._labels = None if truth is None else _described(archive, path, truth)
            if self._labels and truth in TARGETS and not labelled and len(self._labels.shape) != 2:
                self._labels = None  # `equipoise adapt` calls a prior so
            self.probabilities, self.labelled = kinds[0] == "probabilities", self._labels is not None
            matrix = self._labels is not None and len(self._labels.shape) == 2
            self.multilabel = matrix if several is None else several
            self._check_shapes()
            self.columns = self._headers = self._texts(archive, "class_names", self.num_classes)
            mean = self._texts(archive, "logits_mean", 1)
            self.thresholds = self._thresholds(archive) if self.multilabel and "thresholds" in members else None
        check_once(self.columns or [], f"{path}: class_names has")
        self.logits_mean = None if mean is None else mean[0]
        if self.logits_mean not in (None, "train", "uniform"):
            raise ValueError(f"{path}: logits_mean is {shown([self.logits_mean])!r}, expected 'train' or 'uniform'")

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        with _opened(self.path) as archive:
            width = self.num_classes if self.multilabel else 1
            labels = self._rows(archive, self._labels, width) if self._labels else None
            for part in self._rows(archive, self._outputs, self.num_classes):
                outputs = part.astype(np.float64) if part.dtype.kind in "iu" else part
                found = None if labels is None else as_text(next(labels))
                yield outputs, found if found is None or self.multilabel else found.ravel()

    def copy_others(self, archive: zipfile.ZipFile, without: Container[str]) -> set[str]:
        """One member at a time, as a stream, compressed as before."""
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

    def paths(self) -> list[str] | None:
        """Read whole; ignored unless it is a list with one text per row."""
        with reading(self.path), _opened(self.path) as archive:
            if "paths.npy" not in archive.namelist() or _described(archive, self.path, "paths").dtype.kind not in "US":
                return None
            return self._texts(archive, "paths", self.num_items)

    def _check_shapes(self) -> None:
        what, shape, dtype = f"{self.path}: {self._outputs.name}", self._outputs.shape, self._outputs.dtype
        if len(shape) != 2 or dtype.kind not in "fiu" or dtype.itemsize > 8 or 0 in shape[1:]:
            raise ValueError(
                f"{what} are {dtype} of shape {shape}, expected floats of 16, 32 or 64 bits or integers, one row per "
                "item, one column per class: [N, K]"
            )
        self.num_items, self.num_classes = shape
        if self.num_classes > MOST_CLASSES:
            raise ValueError(f"{what} have {self.num_classes} columns, at most {MOST_CLASSES}")
        if self._labels is not None:
            shape, dtype = self._labels.shape, self._labels.dtype
            if self.multilabel:
                if shape != self._outputs.shape or dtype.kind not in "biuf":
                    raise ValueError(
                        f"{self.path}: {self._labels.name} are {dtype} of shape {shape}, {self._outputs.name} have "
                        f"shape {self._outputs.shape}: expected a 0 or 1 for every class of every row"
                    )
                return
            if shape != (self.num_items,):
                raise ValueError(
                    f"{self.path}: labels have shape {shape}, expected one for each of {self.num_items} rows"
                )
            if dtype.kind not in "iufUS" or not 0 < dtype.itemsize <= NAME_BYTES:
                raise ValueError(f"{self.path}: labels are {dtype}, expected class indices or names")
            self.label_size = dtype.itemsize // 8

    def _texts(self, archive: zipfile.ZipFile, name: str, number: int) -> list[str] | None:
        """An array of `number` texts, read whole after its header is checked; None if there is none."""
        if f"{name}.npy" not in archive.namelist():
            return None
        found = _described(archive, self.path, name)
        if math.prod(found.shape) != number:
            raise ValueError(f"{self.path}: {math.prod(found.shape)} {name} for {number} columns")
        if found.dtype.itemsize > NAME_BYTES or found.dtype.itemsize * number > NAMES_BYTES:
            raise ValueError(f"{self.path}: {name} are {found.dtype}, longer than any name")
        with archive.open(f"{name}.npy") as stream:
            array = as_text(np.asarray(np.lib.format.read_array(stream, allow_pickle=False)))
        return [str(text) for text in array.ravel()]

    def _thresholds(self, archive: zipfile.ZipFile) -> FloatArray:
        """One probability for all classes, or one per class."""
        found = _described(archive, self.path, "thresholds")
        if found.shape not in ((), (self.num_classes,)) or found.dtype.kind != "f":
            raise ValueError(
                f"{self.path}: thresholds are {found.dtype} of shape {found.shape}, expected one per class"
            )
        with archive.open("thresholds.npy") as stream:
            values = np.asarray(np.lib.format.read_array(stream, allow_pickle=False), np.float64)
        wrong = values[~((values > 0) & (values < 1))]
        if wrong.size:
            raise ValueError(f"{self.path}: thresholds hold {wrong[0]}, expected probabilities between 0 and 1")
        return values

    def _rows(self, archive: zipfile.ZipFile, array: _Array, columns: int) -> Iterator[NDArray[Any]]:
        width, at_once = columns * array.dtype.itemsize, self.rows_at_once
        with archive.open(f"{array.name}.npy") as stream:
            npy_header(stream)
            if array.by_column:
                whole = np.frombuffer(stream.read(self.num_items * width), array.dtype).reshape(columns, -1).T
            for first in range(0, self.num_items, at_once):
                rows = min(at_once, self.num_items - first)
                if array.by_column:
                    part = whole[first : first + rows]
                else:
                    part = np.frombuffer(stream.read(rows * width), array.dtype).reshape(rows, columns)
                yield np.ascontiguousarray(part, array.dtype.newbyteorder("="))


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not an .npz file, or is damaged: {error}") from None


def _described(archive: zipfile.ZipFile, path: Path, name: str) -> _Array:
    """The header of an array; data that does not fit it is refused before anything is read."""
    with archive.open(f"{name}.npy") as stream:
        shape, by_column, dtype = npy_header(stream)
        size = stream.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"{path}: {name} are Python objects: save them as np.array(list({name}))")
    held = archive.getinfo(f"{name}.npy").file_size
    if held != size:
        raise ValueError(f"{path} is damaged: {name} take {held} bytes, but {size} by their header")
    return _Array(name, shape, dtype, by_column and len(shape) > 1)


def check_once(names: Sequence[str], what: str, instead: str = "give every class a name of its own") -> None:
    """Refuse a name that occurs twice."""
    found = twice(names)
    if found is not None:
        raise ValueError(f"{what} {shown([found])!r} twice: {instead}")


# -------------------------------------------------------------------- tables


class TablePredictions(Predictions):
    """A label column, and one column per class."""

    label: str | None
    _headers: list[str]

    def _set_columns(self, names: list[str], label: str | None, labelled: bool) -> None:
        self.labelled = labelled or label is not None or any(names.count(name) == 1 for name in LABEL_COLUMNS)
        self._place = label_column(names, label, self.path, "--label") if self.labelled else len(names)
        self.label = names[self._place] if self.labelled else None
        classes = self.columns = self._headers = names[: self._place] + names[self._place + 1 :]
        self.num_classes = len(classes)
        if not classes:
            raise ValueError(
                f"{self.path} has the column {shown(names)!r} only: expected a label column and one per class"
            )
        unnamed = next((name for name in classes if name in ("", INDEX_COLUMN)), None)
        if unnamed is not None:
            raise ValueError(
                f"{self.path} has the column {unnamed!r}, the row numbers of pandas: write the table with index=False"
            )
        check_once(classes, f"{self.path} has the column")
        if all(is_whole(name) and name.isdecimal() for name in classes):
            self._numbers = {int(name): index for index, name in enumerate(classes)}
            if list(self._numbers) == list(range(self.num_classes)):  # numbers in order are not names
                self._numbers = self.columns = None

    def _look(self) -> None:
        """Whether the first batch holds probabilities."""
        outputs = next((outputs for outputs, _ in self.raw_batches()), np.zeros((0, 1)))
        self.probabilities = len(outputs) > 0 and bool(distributions(outputs, half=outputs.dtype == np.float16).all())


class ParquetPredictions(TablePredictions):
    """One row group after another, in batches."""

    def __init__(self, path: Path, label: str | None, labelled: bool) -> None:
        self.path = path
        with open_parquet(path) as opened:
            schema, self.num_items = opened.schema_arrow, opened.metadata.num_rows
        self._set_columns(schema.names, label, labelled)
        for name in self._headers:
            kind = str(schema.field(name).type)
            if not kind.startswith(("float", "double", "halffloat", "int", "uint")):
                raise ValueError(
                    f"{path}: column {shown([name])!r} is {kind}, expected numbers: keep the label and one column "
                    "per class"
                )
        self._look()

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        names = self._headers if self.label is None else [*self._headers, self.label]
        options = {"buffer_size": PARQUET_BUFFER, "pre_buffer": False}
        for _, columns in read_columns(self.path, names, self.rows_at_once, label=self.label, **options):
            outputs = np.stack(columns[: self.num_classes], axis=1, dtype=np.float32, casting="same_kind")
            yield outputs, None if self.label is None else columns[-1]


class CsvPredictions(TablePredictions):
    """Lines of text; quoted as usual."""

    def __init__(self, path: Path, label: str | None, labelled: bool) -> None:
        self.path = path
        (_, header), lines = read_table(path, label)
        self._set_columns(header, label, labelled)
        self.num_items = sum(1 for _ in lines)
        self._look()

    def raw_batches(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        _, lines = read_table(self.path, self.label)
        while some := list(islice(lines, self.rows_at_once)):
            self._lines, rows = [number for number, _ in some], [row for _, row in some]
            labels = self._as_labels([row.pop(self._place).strip() for row in rows]) if self.labelled else None
            yield self._numbers_in(rows), labels

    def _numbers_in(self, rows: list[list[str]]) -> NDArray[Any]:
        try:
            return np.array(rows, dtype=np.float64)
        except ValueError:
            cells = ((row, index, cell) for row, line in enumerate(rows) for index, cell in enumerate(line))
            row, index, cell = next(found for found in cells if not is_number(found[2]))
            what = f"is {shown([cell])!r}, not a number" if cell.strip() else "is empty"
            raise self.fail(row, f", {self.column(index)} {what}: fill or drop the row") from None

    def _as_labels(self, labels: Sequence[str]) -> NDArray[Any]:
        if "" in labels:
            where = f", column {shown([self.label])!r}: its label is missing. Fill or drop the row"
            raise self.fail(labels.index(""), where)
        named = self.columns is not None and self._numbers is None and any(map(is_whole, self.columns))
        if not named and all(map(is_whole, labels)):  # if the classes have names, "7" is a name
            return np.array([int(label.removesuffix(".0")) for label in labels], np.int64)
        return np.array(labels, dtype=object)
