"""Count data sets whose items hold more than one class: several labels, one label per token, or a label map.

    several labels    lists of class indices, or multi-hot vectors (also as several columns): items that hold the class
    tokens            sequences of class indices, where −100 is padding: tokens of the class
    masks             label maps [H, W]: pixels of the class

Items are read one at a time, so streamed data sets need no memory. From a Hugging Face data set only the label columns
are read; the items of a torch data set that keeps its labels in `.targets` or `.labels` are not read at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from equipoise.arrays import as_array
from equipoise.data.counting import add_labels, check_length, class_names_of, count_masks, progress, read_labels
from equipoise.prior import IntArray

Column = str | Sequence[str]
PADDING = -100
MASK_SUFFIXES = {".png", ".bmp", ".tif", ".tiff", ".gif", ".npy"}


def count_kind(
    dataset: Any, kind: str, label: Column, num_classes: int | None, ignore_index: int | None
) -> tuple[IntArray, int | None, tuple[str, ...] | None]:
    """Counts [K], their total (None: the sum), and the class names if the data set has any."""
    names, indices = _classes(dataset, label)
    known = num_classes or (len(names) if names else None)
    values = progress(item_labels(dataset, label), len(dataset) if hasattr(dataset, "__len__") else None)
    if kind == "multilabel":
        counts, total = _count_sets(values, known, indices)
        return counts, total, _fitting(names, counts)
    if kind == "tokens":
        counts = _count_tokens(values, known, PADDING if ignore_index is None else ignore_index)
        return counts, None, _fitting(names, counts)
    if kind == "masks":
        if known is None:
            raise ValueError("label maps do not say how many classes there are: pass num_classes")
        counts = count_masks((_label_map(value) for value in values), known, ignore_index)
        return counts, None, _fitting(names, counts)
    raise ValueError(f"kind is {kind!r}: expected 'labels', 'multilabel', 'tokens' or 'masks'")


def item_labels(dataset: Any, label: Column) -> Iterator[Any]:
    """The label of each item, unchanged, without reading the item's input if that can be avoided."""
    if isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from item_labels(part, label)
    elif hasattr(dataset, "features") and hasattr(dataset, "column_names"):
        yield from _column_values(dataset, label)
    elif isinstance(dataset, Subset) and (kept := _kept(dataset.dataset)) is not None:
        yield from (kept[int(index)] for index in dataset.indices)
    elif (kept := _kept(dataset)) is not None:
        yield from kept
    else:
        yield from read_labels(dataset, label)


def mask_files(folder: str | os.PathLike[str]) -> Iterator[NDArray[Any]]:
    """The label maps of a folder and its sub-folders: images of class indices (PNG, ...) or NumPy arrays, by name."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in MASK_SUFFIXES)
    if not paths:
        raise ValueError(f"{os.fspath(folder)} holds no label maps: expected {', '.join(sorted(MASK_SUFFIXES))} files")
    for path in paths:
        if path.suffix.lower() == ".npy":
            yield np.load(path, allow_pickle=False)
            continue
        try:
            from PIL import Image
        except ImportError as error:
            raise ImportError(f"label maps in images need Pillow: pip install 'equipoise[train]' ({error})") from error
        with Image.open(path) as image:
            if image.mode not in ("1", "L", "P", "I", "I;16"):
                raise ValueError(f"{path} is a colour image ({image.mode}): expected one class index per pixel")
            yield np.asarray(image)


# -------------------------------------------------------------------- counting


def _count_sets(values: Iterable[Any], num_classes: int | None, indices: bool) -> tuple[IntArray, int]:
    """How many items hold each class, and the number of items, from lists of classes or multi-hot vectors.

    Vectors of equal length that hold only 0 and 1 are multi-hot, unless the data set declares them as classes.
    """
    counts, hot = np.zeros(num_classes or 0, np.int64), np.zeros(0, np.int64)
    total, width, might_be_hot = 0, 0, not indices
    for value in values:
        array = as_array(value).reshape(-1)
        width = width if total else len(array)
        might_be_hot = might_be_hot and len(array) == width and bool(((array == 0) | (array == 1)).all())
        if might_be_hot:
            hot = array.astype(np.int64) + (hot if total else 0)
        if array.dtype.kind in "iu" and len(array):
            counts = add_labels(counts, np.unique(array), num_classes)
        elif len(array) and not might_be_hot:
            raise TypeError(f"item {total} is labelled {array[:5]}: expected class indices, or only 0 and 1")
        total += 1
    if not (width and might_be_hot):
        return counts, total
    if num_classes in (None, width):
        return hot, total
    if width > 2 or not counts.any():  # a list of more than two classes, all 0 or 1, would repeat one
        raise ValueError(
            f"every item has {width} zeros and ones for {num_classes} classes: expected one for each class, or lists "
            "of class indices"
        )
    return counts, total


def _count_tokens(values: Iterable[Any], num_classes: int | None, ignore_index: int) -> IntArray:
    counts = np.zeros(num_classes or 0, np.int64)
    for number, value in enumerate(values):
        array = as_array(value).reshape(-1)
        if array.dtype.kind not in "iu" and len(array):
            raise TypeError(f"the tokens of item {number} are labelled {array[:5]}: expected class indices")
        counts = add_labels(counts, array, num_classes, ignore_index)
    return counts


def _label_map(value: Any) -> NDArray[Any]:
    """A label map; its whole numbers may be floating point, as MONAI's are."""
    array = as_array(value)
    return array.astype(np.int64) if array.dtype.kind == "f" and (array == np.floor(array)).all() else array


# -------------------------------------------------------------------- reading


def _classes(dataset: Any, label: Column) -> tuple[tuple[str, ...] | None, bool]:
    """The names of the classes, and whether a Hugging Face feature declares that the values are classes."""
    if not isinstance(label, str):
        return tuple(label), False
    feature: Any = (getattr(dataset, "features", None) or {}).get(label)
    while hasattr(feature, "feature"):  # List(ClassLabel), Sequence(ClassLabel)
        feature = feature.feature
    names = getattr(feature, "names", None)
    return (class_names_of(dataset), False) if names is None else (tuple(names), True)


def _fitting(names: tuple[str, ...] | None, counts: IntArray) -> tuple[str, ...] | None:
    return names if names is not None and len(names) == len(counts) else None


def _column_values(dataset: Any, label: Column) -> Iterator[Any]:
    """The column of the labels, or several columns as one vector per item."""
    columns = [label] if isinstance(label, str) else list(label)
    missing = [name for name in columns if dataset.column_names is not None and name not in dataset.column_names]
    if missing:
        raise ValueError(f"the data set has no column {missing[0]!r}: pass label= of {list(dataset.column_names)}")
    for item in dataset.select_columns(columns):
        yield item[label] if isinstance(label, str) else [item[name] for name in columns]


def _kept(dataset: Any) -> Any:
    """Labels that a data set keeps separately from its items, unless it changes them when an item is read."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return dataset.tensors[1]
    if any(getattr(dataset, name, None) is not None for name in ("target_transform", "transforms")):
        return None
    found = {name: getattr(dataset, name, None) for name in ("targets", "labels")}
    name = next((name for name, values in found.items() if values is not None and not callable(values)), None)
    values: Any = () if name is None else found[name]
    if name is None or len(values) == 0 or isinstance(values[0], str):  # names of files
        return None
    check_length(dataset, name, len(values))
    return values
