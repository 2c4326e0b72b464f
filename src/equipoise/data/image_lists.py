"""Where the images of a data set are and which class each has, as its source lists them: one function per kind of
source.

folder                    one folder per class, or a Hugging Face data set that `save_to_disk` wrote
.txt                      "path label" lines, as ImageNet-LT, Places-LT and iNaturalist lists have them
.csv, .tsv, .parquet      a column of paths and one of labels; Parquet may hold the images themselves
.json                     "images", "annotations" and "categories", as iNaturalist's train2018.json
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from equipoise.data.class_folders import IMAGES, class_folders
from equipoise.data.image_tables import ArrowImages, Embedded, ParquetImages, class_label_names, saved_files
from equipoise.data.parquet import open_parquet, parquet_files, read_columns
from equipoise.data.reading import SEPARATORS, read_json, read_table, shown, twice
from equipoise.data.sources import LABEL_COLUMNS, full_cell, is_whole, label_column, list_lines
from equipoise.data.tags import LISTS, is_list
from equipoise.prior import IntArray

PATH_COLUMNS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image", "img", "image_path", "img_path",
    "image_file", "image_name",
)  # fmt: skip
CLASS_COLUMNS = (*LABEL_COLUMNS, "category", "class_name", "label_name", "category_id", "class_id")
ROWS = 1 << 16  # of a table, at once


class Columns(NamedTuple):
    """The columns of a table that hold paths (or images) and labels; None to find them."""

    path: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Listed:
    """What a source lists. `labels` are texts, or class indices if `names` has the names of the classes; `places` are
    the lines or rows they come from, and `unit` says which of the two."""

    paths: Sequence[str]
    labels: Sequence[str] | IntArray
    names: tuple[str, ...] | None = None
    places: Sequence[int] = ()
    unit: str = "line"
    embedded: Embedded | None = None
    notes: tuple[str, ...] = ()


def list_images(source: Path, columns: Columns) -> Listed:
    """The images and labels that `source` lists, whatever kind it is."""
    ending = source.suffix.lower()
    if source.is_dir():
        if (source / "state.json").is_file():
            return _saved(source, columns)
        if (source / "dataset_dict.json").is_file():
            raise ValueError(f"{source} holds several splits: pass one of them, e.g. {source / 'train'}")
        if any(source.glob("*.parquet")):
            return _parquet(source, columns)
        return _folder(source)
    if ending == ".txt":
        return _lines(source)
    if ending in SEPARATORS:
        return _table(source, columns)
    if ending == ".parquet":
        return _parquet(source, columns)
    if ending == ".json":
        return _annotations(source)
    raise ValueError(
        f"{source} ends in {ending or 'nothing'!r}: expected a folder with one folder per class, or a list of images "
        "as .txt, .csv, .tsv, .parquet or .json"
    )


# -------------------------------------------------------------------- folders and lists


def _folder(source: Path) -> Listed:
    found, notes = class_folders(source)
    labels = np.repeat(np.arange(len(found)), [len(files) for files in found.values()])
    paths = [path for files in found.values() for path in files]
    return Listed(paths, labels.astype(np.int64), tuple(found), notes=notes)


def _lines(source: Path) -> Listed:
    """Lines with a path and, as the last word, a label: all whole numbers, or all names."""
    lines = list_lines(source)
    if not lines:
        raise ValueError(f"{source} is empty: expected lines with a path and a label")
    paths, labels = [], []
    for number, line in enumerate(lines, start=1):
        parts = line.rsplit(maxsplit=1)
        if len(parts) < 2 or os.path.splitext(parts[1])[1].lower() in IMAGES:
            raise ValueError(f"{source}, line {number} has no label: {shown([line])!r}. Expected a path, then a label")
        paths.append(parts[0])
        labels.append(parts[1])
    whole = [is_whole(label) for label in labels]
    if any(whole) and not all(whole):
        wrong = whole.index(not whole[0])
        raise ValueError(
            f"{source}, line {wrong + 1} has the label {shown([labels[wrong]])!r}, line 1 has {shown(labels[:1])!r}: "
            "give all as whole numbers, or all as names"
        )
    return Listed(paths, labels, places=range(1, len(lines) + 1))


def _annotations(source: Path) -> Listed:
    """A file in COCO's format with one class per image; classes in the order of their ids."""
    from equipoise.data.coco import categories_of, image_name, instances

    content = read_json(source)
    categories = categories_of(content, source)
    label_of: dict[int, int] = {}
    images = content.get("images") or []
    for one in instances(content, source):
        if label_of.setdefault(one.image, one.column) != one.column:
            both = [list(categories.values())[column] for column in (label_of[one.image], one.column)]
            raise ValueError(
                f"{source}: image {shown([one.annotation['image_id']])} has the classes {shown(both)}: expected one "
                "class per image"
            )
    if not images:
        raise ValueError(f"{source} has no 'images': expected the file names of the images")
    bare = [image["id"] for place, image in enumerate(images) if place not in label_of]
    if bare:
        raise ValueError(f"{source}: {len(bare):,} images have no annotation and therefore no class: {shown(bare)}")
    paths = [image_name(image, f"{source}: image {shown([image['id']])}") for image in images]
    names = list(categories.values())
    if twice(names) is not None:
        names = [f"{name} ({identity})" for identity, name in categories.items()]
    return Listed(paths, np.array([label_of[place] for place in range(len(images))], np.int64), tuple(names))


# -------------------------------------------------------------------- tables


def _table(source: Path, columns: Columns) -> Listed:
    (_, header), rows = read_table(source, columns.path)
    header = [name.strip() for name in header]
    path, label = _columns(header, columns, source)
    paths, labels, places = [], [], []
    for line, row in rows:
        paths.append(full_cell(row, path, header, f"{source}, line {line}"))
        labels.append(full_cell(row, label, header, f"{source}, line {line}"))
        places.append(line)
    _refuse_lists(labels, header[label], source)
    return Listed(paths, labels, places=places)


def _columns(header: list[str], columns: Columns, where: Path, images: Sequence[str] = ()) -> tuple[int, int]:
    """Which columns hold the paths (or the `images`) and the labels: those named, else those with usual names, else the
    only one left."""
    usual = (*images, *PATH_COLUMNS)
    path = label_column(header, columns.path, where, "--path-column", usual, "paths of the images")
    others = [name for place, name in enumerate(header) if place != path]
    if not others:
        raise ValueError(f"{where} has the one column {shown(header)!r}: expected one of paths and one of labels")
    label = others[label_column(others, columns.label, where, "--label-column", CLASS_COLUMNS)]
    return path, next(place for place, name in enumerate(header) if name == label and place != path)


def _refuse_lists(labels: Sequence[str], column: str, source: Path) -> None:
    """Refuse lists of labels, in columns that may hold them and in those of any other name."""
    found = next((label for label in labels if is_list(label.strip())), None)
    if found is not None and (column in LISTS or column not in CLASS_COLUMNS):
        raise ValueError(
            f"{source}: its column {shown([column])!r} holds several labels per image ({shown([found])}): equipoise "
            "train takes one class per image; see docs/multilabel.md. If each is one class, call the column label"
        )


def _parquet(source: Path, columns: Columns) -> Listed:
    files = parquet_files(source)
    with open_parquet(files[0]) as opened:
        schema = opened.schema_arrow
    path, label = _columns(schema.names, columns, files[0], _image_columns(schema))
    if _holds_images(schema.field(path).type):
        return _embedded(ParquetImages(files, schema.names[path]), schema, schema.names[label], source)
    texts: list[str] = []
    labels: list[str] = []
    places: list[int] = []
    for file in files:
        for first, (some, classes) in read_columns(file, [schema.names[path], schema.names[label]], ROWS):
            texts += [str(text) for text in some.tolist()]
            labels += [str(one) for one in classes.tolist()]
            places += range(first, first + len(some))
    _refuse_lists(labels, schema.names[label], source)
    return _named(Listed(texts, labels, places=places, unit="row"), schema, schema.names[label])


def _saved(source: Path, columns: Columns) -> Listed:
    """A folder that `datasets.Dataset.save_to_disk` wrote: its Arrow files, in order."""
    files = saved_files(source)
    schema = ArrowImages(files, "").schema
    path, label = _columns(schema.names, columns, source, _image_columns(schema))
    if not _holds_images(schema.field(path).type):
        raise ValueError(f"{source}: its column {shown([schema.names[path]])!r} holds no images")
    return _embedded(ArrowImages(files, schema.names[path]), schema, schema.names[label], source)


def _embedded(embedded: Embedded, schema: Any, column: str, source: Path) -> Listed:
    labels = [str(label) for label in embedded.cells(column)]
    _refuse_lists(labels, column, source)
    paths = [f"row {row}" for row in range(len(labels))]
    return _named(Listed(paths, labels, places=range(len(labels)), unit="row", embedded=embedded), schema, column)


def _named(listed: Listed, schema: Any, column: str) -> Listed:
    """Labels as indices, if a Hugging Face data set has written the names of its classes into the file."""
    names = class_label_names(schema, column)
    if not all(is_whole(label) and int(label.removesuffix(".0")) < len(names) for label in listed.labels):
        return listed
    labels = np.array([int(label.removesuffix(".0")) for label in listed.labels], np.int64)
    return Listed(listed.paths, labels, tuple(names), listed.places, listed.unit, listed.embedded)


def _image_columns(schema: Any) -> list[str]:
    return [name for name in schema.names if _holds_images(schema.field(name).type)]


def _holds_images(kind: Any) -> bool:
    """Whether a column of Arrow's type `kind` holds image files: binary, or a struct with a field "bytes"."""
    return str(kind).startswith(("binary", "large_binary")) or (
        str(kind).startswith("struct") and any(kind.field(place).name == "bytes" for place in range(kind.num_fields))
    )
