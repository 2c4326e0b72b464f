"""Images inside tables: the Arrow files of a saved Hugging Face data set, and Parquet files.

A cell holds the bytes of an image file, or a struct of `bytes` and `path`, as the `datasets` library writes it. Arrow
files are mapped into memory, so any row can be read directly. Parquet is compressed in groups of rows: reading in order
is fast, but in random order each image costs a whole group.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.parquet import open_parquet, read_columns, refuse_empty
from equipoise.data.reading import read_json, reading

ROWS = 1 << 16  # at once
GROUPS = 4  # of Parquet rows that are kept: threads read at slightly different places


def saved_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote, in order."""
    state = read_json(folder / "state.json")
    entries = state.get("_data_files") if isinstance(state, dict) else None
    found = [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    names = [name for name in found if isinstance(name, str) and Path(name).name == name]
    if not names or len(names) < len(found):
        raise ValueError(f"{folder / 'state.json'} names no files of a saved Hugging Face data set: save it again")
    return [folder / name for name in names]


def class_label_names(schema: Any, column: str) -> tuple[str, ...]:
    """The class names that the `datasets` library wrote into a file's schema, if any."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


class Embedded(ABC):
    """The images in the column `column` of some files, by row. Each process opens the files when it first uses them."""

    def __init__(self, files: list[Path], column: str) -> None:
        self.files, self.column = files, column
        self._opened: Any = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "column": self.column}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Embedded.__init__(self, **state)

    @property
    def opened(self) -> Any:
        """The result of `open`, once per process."""
        with self._lock:
            if self._opened is None:
                self._opened = self.open()
            return self._opened

    @abstractmethod
    def open(self) -> Any:
        """The open files."""

    @abstractmethod
    def cells(self, column: str) -> Iterator[Any]:
        """The values of a column, none of them empty."""

    @abstractmethod
    def cell(self, row: int) -> Any:
        """The image of a row, as its table has it."""

    def read(self, row: int) -> bytes | str:
        """The bytes of an image, or the path of its file."""
        cell = self.cell(row)
        found = cell if isinstance(cell, bytes) or cell is None else cell.get("bytes") or cell.get("path")
        if found is None:
            raise ValueError("no image in its row")
        return found if isinstance(found, bytes) else os.path.join(self.files[0].parent, found)


class ArrowImages(Embedded):
    """Images in files of Arrow's stream format."""

    def open(self) -> Any:
        try:
            import pyarrow  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise ImportError("reading Arrow files needs pyarrow: pip install 'equipoise[parquet]'") from None
        tables = []
        for file in self.files:
            with reading(file):
                tables.append(pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all())
                tables[-1].validate(full=True)  # a wrong offset could point anywhere in memory
        with reading(self.files[0].parent):
            return pyarrow.concat_tables(tables)

    @property
    def schema(self) -> Any:
        return self.opened.schema

    def cells(self, column: str) -> Iterator[Any]:
        found = self.opened.column(column)
        refuse_empty(found, column, self.files[0].parent)
        return iter(found.to_pylist())

    def cell(self, row: int) -> Any:
        return self.opened.column(self.column)[row].as_py()


class ParquetImages(Embedded):
    """Images in Parquet files; the last few groups of rows are kept."""

    def open(self) -> Any:
        """Every group of rows (its file, its number in it and its first row), and the groups that are kept."""
        groups, first = [], 0
        for file in self.files:
            with reading(file), open_parquet(file) as opened:
                for group in range(opened.num_row_groups):
                    groups.append((file, group, first))
                    first += opened.metadata.row_group(group).num_rows
        return groups, np.array([group[2] for group in groups], np.int64), {}

    def cells(self, column: str) -> Iterator[Any]:
        for file in self.files:
            for _, (values,) in read_columns(file, [column], ROWS):
                yield from values.tolist()

    def cell(self, row: int) -> Any:
        groups, firsts, kept = self.opened
        number = int(np.searchsorted(firsts, row, side="right")) - 1
        file, group, first = groups[number]
        with self._lock:
            if number not in kept:
                while len(kept) >= GROUPS:
                    kept.pop(next(iter(kept)))
                with reading(file), open_parquet(file) as opened:
                    kept[number] = opened.read_row_group(group, columns=[self.column]).column(self.column)
            found = kept[number]
        return found[row - first].as_py()
