"""Count a column of class indices in Parquet files: batch after batch, memory of one batch and the counts.

Arrow decodes, `np.bincount` counts, and only one column is read. Counts of files add up, so a data set spread over
machines is counted where it lies: `count_parquet` there, then one sum of K numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.counting import MOST_CLASSES
from equipoise.data.reading import reading, shown
from equipoise.prior import IntArray

BATCH = 1 << 20


def open_parquet(path: Path, **options: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile`; what is none is an error that names the file."""
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise ImportError("reading Parquet files needs pyarrow: pip install 'equipoise[parquet]'") from None
    try:
        return parquet.ParquetFile(path, **options)
    except (ValueError, OSError) as error:  # pyarrow.ArrowInvalid is a ValueError
        raise ValueError(f"{path} is no Parquet file, or a damaged one: {error}") from None


def count_parquet(path: str | os.PathLike[str], column: str = "label", num_classes: int | None = None) -> IntArray:
    """Items a class, [num_classes], in a Parquet file or in all `*.parquet` files below a folder.

    `num_classes` defaults to the largest label + 1. Needs pyarrow.

    >>> import pathlib, tempfile, pyarrow, pyarrow.parquet
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.parquet"
    >>> pyarrow.parquet.write_table(pyarrow.table({"label": [2, 0, 2]}), path)
    >>> count_parquet(path, "label").tolist()
    [1, 0, 2]
    """
    counts = np.zeros(num_classes or 0, np.int64)
    for file in parquet_files(Path(path)):
        with reading(file), open_parquet(file) as opened:
            _check_column(opened.schema_arrow, column, file)
            first = 0
            for batch in opened.iter_batches(BATCH, columns=[column]):
                _check_filled(batch.column(0), column, file, first)
                first += batch.num_rows
                counts = _add(counts, batch.column(0), num_classes, file)
    if not counts.any():
        raise ValueError(f"{path} has no labels in the column {column!r}: there is nothing to count")
    return counts


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or all `*.parquet` files below a folder, in the order of their names."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a Parquet file, or a folder of them")
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"the folder {path} has no *.parquet file")
    return files


def _check_column(schema: Any, column: str, file: Path) -> None:
    if column not in schema.names:
        raise ValueError(f"{file} has no column {column!r}: its columns are {shown(schema.names)}")
    kind = str(schema.field(column).type)
    if kind not in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        raise TypeError(
            f"column {column!r} of {file} is {kind}, expected integers: number the classes first, e.g. with "
            "pyarrow.compute.dictionary_encode"
        )


def _check_filled(labels: Any, column: str, file: Path, first: int) -> None:
    if labels.null_count:
        row = first + int(np.argmax(labels.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"{file}, row {row}, column {column!r} is empty: fill or drop it")


def _add(counts: IntArray, labels: Any, num_classes: int | None, file: Path) -> IntArray:
    values = labels.to_numpy()
    if len(values) == 0:
        return counts
    low, high = int(values.min()), int(values.max())
    if high >= MOST_CLASSES and num_classes is None:
        raise ValueError(
            f"{file}: label {high} would make {high + 1} classes: number the labels from 0, or give num_classes"
        )
    if low < 0 or (num_classes is not None and high >= num_classes):
        raise ValueError(
            f"{file} has the label {low if low < 0 else high}: labels run from 0 to num_classes − 1"
            + (f", and num_classes is {num_classes}" if num_classes is not None else "")
        )
    if high >= len(counts):
        counts = np.concatenate([counts, np.zeros(high + 1 - len(counts), np.int64)])
    if high < 4 * len(values):
        found = np.bincount(values)
        counts[: len(found)] += found
    else:  # few labels of a huge range: do not build the range for every batch
        np.add.at(counts, values, 1)
    return counts
