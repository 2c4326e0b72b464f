"""Count a column of class indices in Parquet files, in batches: it needs memory for one batch and the counts.

Arrow decodes, `np.bincount` counts, and only one column is read. Counts of files add up, so a data set spread over
several machines can be counted in place: `count_parquet` on each, then one sum of K numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.counting import add_labels
from equipoise.data.reading import reading, shown
from equipoise.prior import IntArray

BATCH = 1 << 20


def open_parquet(path: Path, **options: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile`; for anything else, the error names the file."""
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise ImportError("reading Parquet files needs pyarrow: pip install 'equipoise[parquet]'") from None
    try:
        return parquet.ParquetFile(path, **options)
    except (ValueError, OSError) as error:  # pyarrow.ArrowInvalid is a ValueError
        why = " ".join(str(error).split())
        raise ValueError(f"{path} is not a Parquet file, or is damaged: {why}") from None


def read_columns(
    path: Path, names: list[str], rows: int, *, label: str | None = None, **options: Any
) -> Iterator[tuple[int, list[NDArray[Any]]]]:
    """The columns `names` in batches of rows, with the number of the first row; the error for an empty cell names its
    row."""
    first = 0
    with reading(path), open_parquet(path, **options) as opened:
        for batch in opened.iter_batches(rows, columns=names):
            for name in names:
                refuse_empty(batch.column(name), name, path, first, label)
            yield first, [batch.column(name).to_numpy(zero_copy_only=False) for name in names]
            first += batch.num_rows


def refuse_empty(column: Any, name: str, path: Path, first: int = 0, label: str | None = None) -> None:
    """Refuse an empty cell of an Arrow column that starts at row `first`; the error names the row."""
    if column.null_count:
        row = first + int(np.argmax(np.asarray(column.is_null())))
        what = ": its label is missing. Fill" if name == label else " is empty: fill"
        raise ValueError(f"{path}, row {row}, column {shown([name])!r}{what} or drop the row")


def count_parquet(path: str | os.PathLike[str], column: str = "label", num_classes: int | None = None) -> IntArray:
    """Items per class, [num_classes], in a Parquet file or in all `*.parquet` files below a folder.

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
        for _, (labels,) in read_columns(file, [column], BATCH):
            low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
            if low < 0 or high >= (num_classes or high + 1):
                known = "" if num_classes is None else f", and num_classes is {num_classes}"
                raise ValueError(f"{file} has the label {low or high}: labels run from 0 to num_classes − 1{known}")
            counts = add_labels(counts, labels, num_classes, what=f"{file}: label")
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
