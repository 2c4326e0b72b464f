"""The class prior of a training set in any format: a folder of images, a file of labels or counts, annotations.

    folder                    ImageFolder (one folder per class), CIFAR's official folder, a folder of Parquet files, or
                              one written by `save_to_disk` of Hugging Face's datasets
    .npy                      class indices or names [N], or a multi-hot matrix [N, K]; counts if K is known
    .txt                      one label per line, or "path label" lines as in the lists of ImageNet-LT
    .csv, .tsv, .parquet      one column of class indices or names, or of lists of them (`tags.py`); without a label
                              column, columns of zeros and ones, one per class
    .npz                      several labels per item: a multi-hot array `targets`, with or without predictions
    .json                     counts or probabilities (a list, {class: n}, `Prior.to_json()`), COCO or LVIS annotations

Labels are class indices if all of them are whole numbers ("7.0" is 7, as pandas writes it); otherwise they are names,
numbered in sorted order; a fraction among numbers is refused. In .json, numbers are probabilities if one has a decimal
point and they sum to 1, otherwise counts; keys that are whole numbers are class indices, and missing counts are 0. If
something cannot be read, the error names the file, row and column.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import MOST_CLASSES
from equipoise.data.class_folders import IMAGES, class_folders
from equipoise.data.parquet import open_parquet, parquet_files, read_columns
from equipoise.data.reading import SEPARATORS, npy_header, read_json, read_table, reading, shown
from equipoise.data.tags import (
    LISTS,
    ONE_LABEL,
    TARGET,
    holds_lists,
    is_list,
    prior_of_columns_in_arrow,
    prior_of_columns_in_csv,
    prior_of_tags,
    tags_in_csv,
    tags_of,
    warn_of_lists,
)
from equipoise.prior import Prior

TEXTS = 1 << 16  # labels per batch
LABEL_COLUMNS = ("label", "labels", "target", "class", "y", "tags")


@dataclass(frozen=True)
class Source:
    """The prior of a training set and how it was counted: `unit` is what was counted, `multilabel` whether an item may
    have several classes, `column` the requested column of a table."""

    path: Path
    prior: Prior
    unit: str = "items"
    multilabel: bool = False
    column: str | None = None
    labels: bool = False  # counted from labels or images, which do not show classes that never occur
    notes: tuple[str, ...] = ()  # sentences about what was left out


def read_source(path: str | os.PathLike[str], *, column: str | None = None, counts_of: int | None = None) -> Source:
    """Count what `path` holds.

    `column` names the label column of a table; by default one called label, labels, target, class, y or tags, or the
    only one. An .npy file holds labels, unless its length is `counts_of`: then it holds one count per class.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.txt"
    >>> _ = path.write_text("owl\\ncat\\ncat\\n")
    >>> read_source(path).prior
    Prior(2 classes, total 3, imbalance 2, head 'cat': 2, tail 'owl': 1)
    """
    found = read_prior(path, column=column, counts_of=counts_of)
    if not found.prior.counted:
        raise ValueError(f"{path} holds probabilities, not counts: give the number of items per class")
    return found


def read_prior(path: str | os.PathLike[str], *, column: str | None = None, counts_of: int | None = None) -> Source:
    """Like `read_source`, but a file may also state probabilities, which were not counted."""
    found = Path(path)
    if not found.exists():
        raise FileNotFoundError(f"{found} does not exist: give a folder of images, or a file of labels or annotations")
    ending = found.suffix.lower()
    with reading(found):
        if found.is_dir():
            return _folder(found, column)
        if ending == ".json":
            return _json(found)
        if ending == ".npy":
            return _array(found, counts_of)
        if ending == ".txt":
            return Source(found, _prior_of_labels(_lines(found), found), labels=True)
        if ending == ".npz" and (source := _targets(found)) is not None:
            return source
        if ending in SEPARATORS:
            return _csv(found, column)
        if ending == ".parquet":
            return _parquet(found, column)
    raise ValueError(f"{found} ends in {ending or 'nothing'!r}: expected a folder, .npy, .txt, .csv, .parquet or .json")


def is_whole(text: str) -> bool:
    """Whether text is a class index: digits, or "7.0", which pandas writes for a column that had gaps."""
    digits = text.removesuffix(".0")
    return digits.isascii() and digits.isdecimal() and len(digits) <= 18


def is_number(text: str) -> bool:
    """Whether text is a number of any kind."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _prior_of_labels(labels: Iterable[tuple[int, str]], path: Path, unit: str = "line") -> Prior:
    """The prior of labels read as text, each with its line or row."""
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    for place, label in labels:
        counts[label] += 1
        if counts[label] == 1:
            first[label] = place
    columns, names = number_labels(first, path, unit)
    indexed = np.zeros(max(columns.values()) + 1, np.int64)
    for label, count in counts.items():  # "7" and "7.0" are one class
        indexed[columns[label]] += count
    return Prior.from_counts(indexed, class_names=names)


def number_labels(first: Mapping[str, int], path: Path, unit: str = "line") -> tuple[dict[str, int], list[str] | None]:
    """The class index of each label, and the names of the classes, or None if the labels are indices themselves.

    `first` has the line or row where each label first occurs.

    >>> number_labels({"owl": 1, "cat": 2}, Path("labels.txt")), number_labels({"2": 1, "0": 2}, Path("labels.txt"))
    (({'owl': 1, 'cat': 0}, ['cat', 'owl']), ({'2': 2, '0': 0}, None))
    """
    if not first:
        raise ValueError(f"{path} has no labels: there is nothing to count")
    if all(map(is_whole, first)):
        columns = {label: int(label.removesuffix(".0")) for label in first}
        label = max(columns, key=columns.__getitem__)
        if columns[label] >= MOST_CLASSES:
            where, highest = f"{path}, {unit} {first[label]}", columns[label]
            raise ValueError(f"{where}: label {highest} would make {highest + 1} classes: number the labels from 0")
        return columns, None
    if all(map(is_number, first)):
        wrong = next(label for label in first if not is_whole(label))
        raise ValueError(
            f"{path}, {unit} {first[wrong]} has the label {wrong}: classes are numbered from 0, in whole numbers. Drop "
            "unlabelled items"
        )
    names = sorted(first)
    place = {name: index for index, name in enumerate(names)}
    return {label: place[label] for label in first}, names


def label_column(
    columns: list[str],
    wanted: str | None,
    where: Path,
    option: str = "--column",
    usual: Sequence[str] = LABEL_COLUMNS,
    what: str = "labels",
) -> int:
    """Which column of a table holds the labels (or `what`); the command-line option `option`, if any, names it."""
    if wanted is not None:
        if wanted not in columns:
            raise ValueError(f"{where} has no column {wanted!r}: its columns are {shown(columns)}")
        return columns.index(wanted)
    for name in usual:
        if columns.count(name) == 1:
            return columns.index(name)
    if len(columns) == 1:
        return 0
    there = f"{where} has the columns {shown(columns)}"
    if not option:
        raise ValueError(f"{there}: expected one with the {what}, called {', '.join(usual[:-1])} or {usual[-1]}")
    several = "; several labels per item go into columns target_CLASS, or as lists into tags"
    more = several if option == "--label" else ""
    raise ValueError(f"{there}: name the one with the {what}, e.g. {option} {shown(columns[-1:])}{more}")


# -------------------------------------------------------------------- folders


def _folder(path: Path, column: str | None) -> Source:
    from equipoise.data.cifar import LAYOUTS, count_cifar, found_data_sets

    root = path.parent if path.name in {layout.folder for layout in LAYOUTS.values()} else path
    names = [name for name in found_data_sets(root) if path in (root, root / LAYOUTS[name].folder)]
    if len(names) > 1:
        folders = " or ".join(str(root / LAYOUTS[name].folder) for name in names)
        raise ValueError(f"{path} holds two data sets: pass {folders}")
    if names:
        return Source(path, count_cifar(root, names[0]), "images")
    if any(path.glob("*.parquet")):
        return _parquet(path, column)
    if (path / "state.json").is_file():
        return Source(path, _saved(path, column), column=column, labels=True)
    return _image_folder(path)


def _saved(path: Path, column: str | None) -> Prior:
    """The prior of a Hugging Face data set that `save_to_disk` wrote; its images are not read."""
    from equipoise.data.image_tables import ArrowImages, class_label_names, saved_files

    table = ArrowImages(saved_files(path), "")
    name = table.schema.names[label_column(table.schema.names, column, path)]
    prior = _prior_of_labels(enumerate(map(str, table.cells(name))), path, "row")
    names = class_label_names(table.schema, name)
    if prior.class_names is not None or len(names) < prior.num_classes:
        return prior
    return Prior.from_counts(np.pad(prior.counts, (0, len(names) - prior.num_classes)), class_names=names)


def _image_folder(path: Path) -> Source:
    found, notes = class_folders(path)
    prior = Prior.from_counts({name: len(files) for name, files in found.items()})
    return Source(path, prior, "images", labels=True, notes=notes)


# -------------------------------------------------------------------- files


def _json(path: Path) -> Source:
    from equipoise.data.coco import count_annotations

    content = read_json(path)
    if isinstance(content, dict) and any(isinstance(content.get(key), list) for key in ("annotations", "categories")):
        return Source(path, count_annotations(content, path), "images", multilabel=True)
    try:
        prior = _prior_of_json(content)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f'{path}: {error}. Expected counts, [500, 60, 5] or {{"cat": 500}}, probabilities, or annotations'
        ) from None
    return Source(path, prior, multilabel=prior.counted and prior.total != int(prior.counts.sum()))


def _prior_of_json(content: Any) -> Prior:
    """The prior in JSON: as written by `Prior.to_json`, a list, or an object with class names or indices as keys."""
    if isinstance(content, dict) and any(isinstance(content.get(k), list | dict) for k in ("counts", "probabilities")):
        return Prior.from_json(json.dumps(content))
    return _prior_of_numbers(*numbers_of_json(content))


def numbers_of_json(content: Any) -> tuple[NDArray[Any], list[str] | None]:
    """The numbers per class in a list, or in an object with class names or indices as keys, and the names, if any."""
    values = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(values, list) or not values or not all(type(value) in (int, float) for value in values):
        raise ValueError(f"it holds {shown([content])}")
    if isinstance(content, list) or not all(map(is_whole, content)):
        return np.array(values), None if isinstance(content, list) else list(content)
    index = [int(key.removesuffix(".0")) for key in content]
    if len(set(index)) < len(index):
        raise ValueError(f"it has class {max(index, key=index.count)} twice")
    if max(index) >= MOST_CLASSES:
        raise ValueError(f"it has class {max(index)}, which would make {max(index) + 1} classes: number them from 0")
    numbers = np.array(values)
    if numbers.dtype.kind == "f" and len(index) <= max(index):
        raise ValueError(f"it has {len(index)} numbers for the classes 0 to {max(index)}")
    counts = np.zeros(max(index) + 1, numbers.dtype)
    counts[index] = numbers
    return counts, None


def _prior_of_numbers(numbers: NDArray[Any], names: list[str] | None = None) -> Prior:
    """Fractions that sum to 1 are probabilities; everything else is taken as counts, and refused if it is not valid
    counts."""
    if numbers.dtype.kind == "f" and abs(numbers.sum() - 1) <= 1e-4:
        return Prior.from_probabilities(numbers, class_names=names)
    bad = np.flatnonzero((numbers < 0) | (numbers != np.floor(numbers)))
    if len(bad):
        name = f"class {bad[0]}" if names is None else shown([names[bad[0]]])
        raise ValueError(
            f"the count of {name} is {numbers[bad[0]].item():g}, and all numbers sum to {numbers.sum():.4g}: counts "
            "are whole numbers ≥ 0, and the probabilities of classes sum to 1"
        )
    return Prior.from_counts(numbers, class_names=names)


def _array(path: Path, counts_of: int | None) -> Source:
    try:
        with open(path, "rb") as stream:
            npy_header(stream)  # refuses a header that is too long
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is not a NumPy array of numbers or text: {error}") from None
    try:
        if counts_of is not None and array.shape == (counts_of,) and array.dtype.kind in "iuf":
            return Source(path, _prior_of_numbers(np.asarray(array)))
        if array.ndim == 2:
            return Source(path, Prior.from_multilabel(array), multilabel=True)
        if array.dtype.kind in "US" and array.ndim == 1:
            return Source(path, _prior_of_labels(enumerate(as_text(array).tolist()), path, "row"), labels=True)
        return Source(path, Prior.from_labels(array), labels=True)
    except (ValueError, TypeError) as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from None


def as_text(array: NDArray[Any]) -> NDArray[Any]:
    """An array of bytes as UTF-8 text; any other array unchanged."""
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def list_lines(path: Path) -> list[str]:
    """The lines of a list of labels, or of paths with labels; empty lines are refused, except at the end."""
    with open(path, encoding="utf-8-sig") as file:
        lines = [line.strip() for line in file]
    while lines and not lines[-1]:
        lines.pop()
    missing = next((number for number, line in enumerate(lines, start=1) if not line), None)
    if missing is not None:
        raise ValueError(f"{path}, line {missing} is empty: expected one label per line")
    return lines


def _lines(path: Path) -> list[tuple[int, str]]:
    lines = list_lines(path)
    ends = [line.rsplit(maxsplit=1) for line in lines]
    if ends and all(len(end) == 2 for end in ends):
        numbered = all(is_whole(label) for _, label in ends)  # "train/n01440764/1.jpg 0"
        if numbered or all(os.path.splitext(path)[1].lower() in IMAGES for path, _ in ends):
            lines = [label for _, label in ends]
    return list(enumerate(lines, start=1))


def _cells(path: Path, column: str | None) -> Iterator[tuple[int, str]]:
    (number, header), rows = read_table(path, column)
    first = header[0].strip()
    unnamed = len(header) == 1 and column is None and first not in LABEL_COLUMNS  # perhaps not a header but a label
    if unnamed and is_whole(first):
        yield number, first
    place = label_column(header, column, path)
    hint = "; it may be empty if cells hold lists, separated by ; or |" if header[place] in LISTS else ""
    again = False
    for line, row in rows:
        value = full_cell(row, place, header, f"{path}, line {line}", hint)
        again = again or value == first
        yield line, value
    if unnamed and again and not is_whole(first):
        yield number, first


def full_cell(row: list[str], place: int, header: list[str], where: str, hint: str = "") -> str:
    """The text of a cell, which must not be empty."""
    value = row[place].strip()
    if not value:
        raise ValueError(f"{where}, column {shown([header[place]])!r} is empty: fill or drop the row{hint}")
    return value


def _csv(path: Path, column: str | None) -> Source:
    (_, header), _ = read_table(path, column)
    if _no_label(header, column):
        prior = prior_of_columns_in_csv(path)
        if prior is not None:
            return _of_columns(path, prior, header)
    place = label_column(header, column, path)
    if header[place] not in ONE_LABEL and holds_lists(path, place):
        prior = prior_of_tags(tags_in_csv(path, place), path)
        return Source(path, prior, multilabel=True, column=column, labels=True)
    prior = _prior_of_labels(_cells(path, column), path)
    if header[place] in LISTS:
        warn_of_lists(prior.class_names or (), header[place], path)
    return Source(path, prior, column=column, labels=True)


def _of_columns(path: Path, prior: Prior, header: list[str]) -> Source:
    """The classes of a table of zeros and ones, with a note on which columns they are, unless these are named so."""
    names = prior.class_names or ()
    note = (
        f"classes are all columns of zeros and ones ({shown(names, 20)}): leave out any that is not a class, or call "
        f"those that are {TARGET}CLASS"
    )
    chosen = any(TARGET + name in header for name in names)
    return Source(path, prior, multilabel=True, notes=() if chosen else (note,))


def _no_label(columns: list[str], wanted: str | None) -> bool:
    return wanted is None and len(columns) > 2 and not any(columns.count(name) == 1 for name in LABEL_COLUMNS)


def _parquet(path: Path, column: str | None) -> Source:
    files = parquet_files(path)
    with open_parquet(files[0]) as opened:
        schema = opened.schema_arrow
        if len(files) == 1 and _no_label(schema.names, column):
            prior = prior_of_columns_in_arrow(opened.read())
            if prior is not None:
                return _of_columns(path, prior, schema.names)
    name = schema.names[label_column(schema.names, column, files[0])]
    kind = str(schema.field(name).type)
    if not kind.startswith(("string", "large_string", "dictionary<values=string", "list", "large_list")):
        return Source(path, Prior.from_parquet(path, name), column=column, labels=True)
    if kind.startswith(("list", "large_list")):
        lists = (part for file in files for _, (part,) in read_columns(file, [name], TEXTS))
        tags = (list(dict.fromkeys(map(str, tags))) for part in lists for tags in part.tolist())
        return Source(path, prior_of_tags(tags, path), multilabel=True, column=column, labels=True)
    parts = (part for file in files for part in read_columns(file, [name], TEXTS))
    texts = (pair for row, (texts,) in parts for pair in enumerate(texts.tolist(), row))
    if name in ONE_LABEL:
        return Source(path, _prior_of_labels(texts, path, "row"), column=column, labels=True)
    pairs = list(texts)
    if any(is_list(text.strip()) for _, text in pairs):
        prior = prior_of_tags((tags_of(text) for _, text in pairs), path)
        return Source(path, prior, multilabel=True, column=column, labels=True)
    prior = _prior_of_labels(pairs, path, "row")
    if name in LISTS:
        warn_of_lists(prior.class_names or (), name, path)
    return Source(path, prior, column=column, labels=True)


def _targets(path: Path) -> Source | None:
    """Several labels per item, in arrays; unknown ones do not count. None if predictions have one label per item."""
    from equipoise.data.multilabel_predictions import bare_targets
    from equipoise.data.predictions import NpzPredictions

    bare = bare_targets(path)
    if bare is not None:
        target, names = bare
        return Source(path, Prior.from_counts((target == 1).sum(0), len(target), class_names=names), multilabel=True)
    opened = NpzPredictions(path, labelled=False, several=None)
    if not opened.multilabel:
        return None
    counts = np.sum([(batch.labels == 1).sum(0) for batch in opened.batches()], axis=0)
    return Source(path, Prior.from_counts(counts, opened.num_items, class_names=opened.columns), multilabel=True)
