"""The class counts of whatever a training set lies in: a folder of images, a file of labels or counts, annotations.

    folder                    ImageFolder (one folder a class), CIFAR's official folder, or a folder of Parquet files
    .npy                      class indices or names [N], or a multi-hot matrix [N, K]
    .txt                      a label a line, or "path label" lines as in the lists of ImageNet-LT
    .csv, .tsv, .parquet      one column of class indices or names
    .json                     counts (a list, {class: n}, `Prior.to_json()`), or COCO or LVIS annotations

Labels that are names are numbered in sorted order. What cannot be read is an error that names the file, row and column.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.counting import MOST_CLASSES
from equipoise.data.parquet import open_parquet
from equipoise.prior import Prior

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})  # torchvision's list
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test"})
LABEL_COLUMNS = ("label", "labels", "target", "class", "y")
SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Source:
    """A training set as far as a prior needs it: `unit` is what was counted, `multilabel` if an item may have several
    classes, `column` the column of a table that was asked for."""

    path: Path
    prior: Prior
    unit: str = "items"
    multilabel: bool = False
    column: str | None = None
    labels: bool = False  # counted from labels, which a class that never occurs has none of


def read_source(path: str | os.PathLike[str], *, column: str | None = None, counts_of: int | None = None) -> Source:
    """Count what `path` holds.

    `column` names the label column of a table; by default one called label, labels, target, class or y, or the only
    one. An .npy file holds labels, unless its length is `counts_of`: then it holds the counts of so many classes.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.txt"
    >>> _ = path.write_text("owl\\ncat\\ncat\\n")
    >>> read_source(path).prior
    Prior(2 classes, total 3, imbalance 2, head 'cat': 2, tail 'owl': 1)
    """
    found = Path(path)
    if not found.exists():
        raise FileNotFoundError(f"{found} does not exist: give a folder of images, or a file of labels or annotations")
    if found.is_dir():
        return _folder(found, column)
    ending = found.suffix.lower()
    if ending == ".json":
        return _json(found)
    if ending == ".npy":
        return _array(found, counts_of)
    if ending == ".txt":
        return Source(found, prior_of_values(_lines(found), str(found)), labels=True)
    if ending in SEPARATORS:
        return Source(found, prior_of_values(_cells(found, column), str(found)), column=column, labels=True)
    if ending == ".parquet":
        return Source(found, _parquet(found, column), column=column, labels=True)
    raise ValueError(f"{found} ends in {ending or 'nothing'!r}: expected a folder, .npy, .txt, .csv, .parquet or .json")


def prior_of_values(values: Iterable[str], where: str) -> Prior:
    """The prior of labels read as text: class indices where all are whole numbers, else names in sorted order."""
    found = values if isinstance(values, Counter) else Counter(values)
    if not found:
        raise ValueError(f"{where} has no labels: there is nothing to count")
    if all(_is_index(value) for value in found):
        highest = max(int(value) for value in found)
        if highest >= MOST_CLASSES:
            raise ValueError(f"{where}: label {highest} would make {highest + 1} classes: number the labels from 0")
        return Prior.from_counts(_by_index(found, highest))
    negative = next((value for value in found if value[:1] == "-" and value[1:].isdecimal()), None)
    if negative and all(value.lstrip("-").isdecimal() for value in found):
        raise ValueError(f"{where} has the label {negative}: classes are numbered from 0. Drop what is not labelled")
    return Prior.from_counts({name: found[name] for name in sorted(found)})


def label_column(columns: list[str], wanted: str | None, where: Path, option: str = "--column") -> int:
    """Which column of a table holds the labels; `option` of the command line names it."""
    if wanted is not None:
        if wanted not in columns:
            raise ValueError(f"{where} has no column {wanted!r}: its columns are {shown(columns)}")
        return columns.index(wanted)
    for name in LABEL_COLUMNS:
        if columns.count(name) == 1:
            return columns.index(name)
    if len(columns) == 1:
        return 0
    raise ValueError(
        f"{where} has the columns {shown(columns)}: say which holds the labels, e.g. {option} {shown(columns[-1:])}"
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors of reading text as a table, with the name of the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}, byte {error.start}): save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a table: {error}. Is a quote left open?") from None


def shown(names: Iterable[Any], most: int = 8) -> str:
    """The first few names, each cut to a readable length."""
    words = [str(name) if len(str(name)) <= 40 else str(name)[:39] + "…" for name in names]
    return ", ".join(words[:most]) + (f", … ({len(words)} in all)" if len(words) > most else "")


# -------------------------------------------------------------------- folders


def _folder(path: Path, column: str | None) -> Source:
    from equipoise.data.cifar import LAYOUTS, count_cifar

    root = path.parent if path.name in {layout.folder for layout in LAYOUTS.values()} else path
    names = [
        name
        for name, layout in LAYOUTS.items()
        if (root / layout.folder).is_dir() and path in (root, root / layout.folder)
    ]
    if len(names) > 1:
        folders = " or ".join(str(root / LAYOUTS[name].folder) for name in names)
        raise ValueError(f"{path} holds two data sets: pass {folders}")
    if names:
        return Source(path, count_cifar(root, names[0]), "images")
    if any(path.glob("*.parquet")):
        return Source(path, _parquet(path, column), column=column, labels=True)
    return Source(path, _image_folder(path), "images")


def _image_folder(path: Path) -> Prior:
    classes = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise ValueError(f"{path} has no folders: expected one folder a class, CIFAR's files or Parquet files")
    splits = [name for name in classes if name.lower() in SPLITS]
    if splits == classes:
        raise ValueError(f"{path} holds the splits {', '.join(splits)}: pass the one you train on, {path / splits[0]}")
    counts = {name: sum(1 for _ in _images(path / name)) for name in classes}
    if not any(counts.values()):
        raise ValueError(
            f"{path} has {len(classes)} folders and no image in them: expected {', '.join(sorted(IMAGES))}"
        )
    return Prior.from_counts(counts)


def _images(folder: Path) -> Iterator[str]:
    for _, _, files in os.walk(folder, followlinks=True):
        yield from (name for name in files if os.path.splitext(name)[1].lower() in IMAGES)


# -------------------------------------------------------------------- files


def _json(path: Path) -> Source:
    from equipoise.data.coco import read_json

    content = read_json(path)
    if isinstance(content, dict) and ("annotations" in content or "categories" in content):
        return Source(path, Prior.from_coco(path), "images", multilabel=True)
    try:
        if isinstance(content, dict) and isinstance(content.get("counts"), list | dict):
            counts, total, names = content["counts"], content.get("total"), content.get("class_names")
            prior = Prior.from_counts(counts, total, class_names=names, class_ids=content.get("class_ids"))
        elif isinstance(content, dict) and all(_is_index(key) for key in content):
            by_index: dict[Any, Any] = {int(key): value for key, value in content.items()}
            prior = Prior.from_counts(by_index)
        elif isinstance(content, dict | list):
            prior = Prior.from_counts(content)
        else:
            raise ValueError(f"it holds {content!r:.60}")
    except (ValueError, TypeError) as error:
        raise ValueError(f'{path}: {error}. Expected counts, [500, 60, 5] or {{"cat": 500}}, or annotations') from None
    return Source(path, prior, multilabel=prior.total != int(prior.counts.sum()))


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdecimal()


def _array(path: Path, counts_of: int | None) -> Source:
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is no NumPy array of numbers or text: {error}") from None
    try:
        if counts_of is not None and array.shape == (counts_of,) and array.dtype.kind in "iuf":
            return Source(path, Prior.from_counts(np.asarray(array)))
        if array.ndim == 2:
            return Source(path, Prior.from_multilabel(array), multilabel=True)
        if array.dtype.kind in "US":
            return Source(path, prior_of_values((str(value) for value in array.astype(str)), str(path)), labels=True)
        return Source(path, Prior.from_labels(array), labels=True)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None


def _lines(path: Path) -> list[str]:
    with reading(path), open(path, encoding="utf-8-sig") as file:
        lines = [line.strip() for line in file]
    while lines and not lines[-1]:
        lines.pop()
    missing = next((number for number, line in enumerate(lines, start=1) if not line), None)
    if missing is not None:
        raise ValueError(f"{path}, line {missing} is empty: expected a label a line")
    ends = [line.rsplit(maxsplit=1) for line in lines]
    if ends and all(len(end) == 2 and _is_index(end[1]) for end in ends):  # "train/n01440764/1.jpg 0"
        return [end[1] for end in ends]
    return lines


def _cells(path: Path, column: str | None) -> Iterator[str]:
    separator = SEPARATORS[path.suffix.lower()]
    with reading(path), open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator)
        header = next(rows, None)
        if header is None:
            raise ValueError(f"{path} is empty: expected a line of column names, then a line an item")
        if len(header) == 1 and column is None:
            check_separator(header[0], separator, path)
        first = header[0].strip()
        unnamed = len(header) == 1 and column is None and first not in LABEL_COLUMNS  # perhaps no header, but a label
        if unnamed and _is_index(first):
            yield first
        place = label_column(header, column, path)
        again = False
        for row in rows:
            if not row:
                continue
            value = row[place].strip() if place < len(row) else ""
            if not value:
                raise ValueError(
                    f"{path}, line {rows.line_num}, column {header[place]!r} is empty: fill or drop the row"
                )
            again = again or value == first
            yield value
        if unnamed and again and not _is_index(first):
            yield first


def check_separator(header: str, separator: str, path: Path) -> None:
    """Refuse a table whose one column is several: they are separated by something else."""
    other = next((mark for mark in ";\t" if mark != separator and mark in header), None)
    if other is not None:
        raise ValueError(
            f"{path} has the one column {shown([header])!r}: separate columns with {separator!r}, not {other!r}"
        )


def _parquet(path: Path, column: str | None) -> Prior:
    first = path if path.is_file() else min(path.glob("*.parquet"))
    with open_parquet(first) as opened:
        schema = opened.schema_arrow
    name = schema.names[label_column(schema.names, column, first)]
    kind = str(schema.field(name).type)
    if "string" not in kind:
        return Prior.from_parquet(path, name)
    counts: Counter[str] = Counter()
    for file in [path] if path.is_file() else sorted(path.rglob("*.parquet")):
        with open_parquet(file) as opened:
            row = 0
            for batch in opened.iter_batches(columns=[name]):
                values = batch.column(0).to_pylist()
                if None in values:
                    raise ValueError(
                        f"{file}, row {row + values.index(None)}, column {name!r} is empty: fill or drop it"
                    )
                counts.update(values)
                row += len(values)
    return prior_of_values(counts, str(path))


def _by_index(found: Counter[str], highest: int) -> list[int]:
    """Counts by class index; "7" and "07" are one class."""
    counts = [0] * (highest + 1)
    for value, times in found.items():
        counts[int(value)] += times
    return counts
