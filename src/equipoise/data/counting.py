"""Count classes: label arrays, multi-hot matrices, label maps, and the data sets people have.

The counting functions return plain arrays; `equipoise.Prior` is their public face.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from equipoise.prior import IntArray, as_array

CHUNK = 1 << 24  # np.bincount makes an int64 copy of what it counts: bound it


def count_labels(
    labels: ArrayLike | Tensor, num_classes: int | None = None, *, ignore_index: int | None = None
) -> IntArray:
    """Items a class, [num_classes], of class indices [N].

    >>> count_labels([2, 0, 2]).tolist()
    [1, 0, 2]
    """
    array = as_array(labels)
    if array.size == 0:
        raise ValueError("there are no labels to count: the data set is empty")
    if array.ndim != 1:
        raise ValueError(
            f"labels have shape {array.shape}, expected one class index an item, [N]: "
            "for label maps use Prior.from_masks, for a multi-hot matrix Prior.from_multilabel"
        )
    return _count(_whole_labels(array), num_classes, ignore_index, "label")


def count_multilabel(multi_hot: ArrayLike | Tensor) -> tuple[IntArray, int]:
    """Positives a class [K], and the number of items N, of a matrix [N, K] of zeros and ones."""
    array = as_array(multi_hot)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"multi_hot has shape {array.shape}, expected one row an item, one column a class: [N, K]")
    counts = np.zeros(array.shape[1], np.int64)
    step = max(1, CHUNK // array.shape[1])
    for start in range(0, len(array), step):
        part = array[start : start + step]
        bad = (part != 0) & (part != 1)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(f"multi_hot[{start + row}, {column}] is {part[row, column]}: expected only 0 and 1")
        counts += part.sum(axis=0, dtype=np.int64)
    return counts, len(array)


def count_masks(masks: Iterable[ArrayLike | Tensor], num_classes: int, ignore_index: int | None = None) -> IntArray:
    """Pixels a class [num_classes] over label maps [H, W]."""
    counts, seen = np.zeros(num_classes, np.int64), 0
    for number, mask in enumerate(masks):
        array = as_array(mask)
        if array.ndim != 2:
            raise ValueError(f"mask {number} has shape {array.shape}, expected a label map [H, W] of class indices")
        counts += _count(_whole_labels(array.ravel()), num_classes, ignore_index, f"mask {number}, pixel")
        seen += 1
    if not seen:
        raise ValueError("there are no masks to count")
    return counts


def _whole_labels(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind in "USO":
        raise TypeError(
            f"labels are not integers (the first is {array.ravel()[0]!r}): number them first, e.g. "
            "names, labels = np.unique(labels, return_inverse=True)"
        )
    raise TypeError(f"labels are {array.dtype}, expected integers: convert them with .astype(int) if they are whole")


def _count(labels: NDArray[Any], num_classes: int | None, ignore_index: int | None, what: str) -> IntArray:
    counts = np.zeros(num_classes or 0, np.int64)
    for start in range(0, len(labels), CHUNK):
        part = labels[start : start + CHUNK]
        if ignore_index is not None:
            part = part[part != ignore_index]
        if len(part) == 0:
            continue
        part = part.astype(np.int64, copy=False)
        low, high = int(part.min()), int(part.max())
        if low < 0:
            raise ValueError(f"{what} {low} is negative: pass ignore_index={low} if it marks unlabelled items")
        if num_classes is not None and high >= num_classes:
            raise ValueError(
                f"{what} {high} is out of range for num_classes={num_classes}: labels run from 0 to num_classes − 1"
            )
        found = np.bincount(part, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    if len(counts) == 0:
        raise ValueError(f"every label is ignore_index={ignore_index}: there is nothing to count")
    return counts


# -------------------------------------------------------------------- labels of a data set


@dataclass(frozen=True)
class Labels:
    """The class indices of a data set, with the names of the classes where it knows them."""

    labels: NDArray[Any]
    class_names: tuple[str, ...] | None = None


def dataset_labels(dataset: Any, *, label: str = "label") -> Labels:
    """The labels of `dataset`, without decoding its images wherever they can be found apart from them."""
    found = _known_labels(dataset, label)
    if found is None:
        found = _read_every_item(dataset, label)
    if found.labels.size == 0:
        raise ValueError(f"{_describe(dataset)} is empty: there are no labels to count")
    return found


def _known_labels(dataset: Any, label: str) -> Labels | None:
    if isinstance(dataset, Subset):
        whole = dataset_labels(dataset.dataset, label=label)
        return Labels(whole.labels[np.asarray(dataset.indices, dtype=np.int64)], whole.class_names)
    if isinstance(dataset, ConcatDataset):
        return _concatenated([dataset_labels(part, label=label) for part in dataset.datasets])
    if isinstance(dataset, TensorDataset):
        if len(dataset.tensors) < 2:
            raise ValueError("the TensorDataset has one tensor only: labels are expected in the second")
        return Labels(as_array(dataset.tensors[1]))
    if hasattr(dataset, "features") and hasattr(dataset, "column_names"):
        return _hugging_face_labels(dataset, label)
    if isinstance(dataset, dict):
        raise TypeError(
            f"this is a dictionary of splits ({', '.join(map(str, dataset))}): pass one, e.g. the training split"
        )
    for attribute in ("targets", "labels"):
        values = getattr(dataset, attribute, None)
        if values is not None and not callable(values):
            return Labels(_transformed(dataset, as_array(values)), _class_names(dataset))
    return None


def _concatenated(parts: Sequence[Labels]) -> Labels:
    names = {part.class_names for part in parts}
    if len(names) > 1:
        shown = " and ".join(str(n and list(n[:3])) for n in list(names)[:2])
        raise ValueError(f"the concatenated data sets name their classes differently ({shown}, ...): count them apart")
    return Labels(np.concatenate([part.labels for part in parts]), names.pop())


def _transformed(dataset: Any, values: NDArray[Any]) -> NDArray[Any]:
    """Labels as the data set gives them out: torchvision applies `target_transform` when an item is read."""
    transform = getattr(dataset, "target_transform", None)
    if transform is None or values.ndim != 1:
        return values
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.asarray([int(transform(value.item())) for value in distinct])[inverse]


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    names = getattr(dataset, "classes", None)
    if getattr(dataset, "target_transform", None) is not None or not isinstance(names, list | tuple):
        return None
    return tuple(str(name) for name in names)


def _hugging_face_labels(dataset: Any, label: str) -> Labels:
    if dataset.column_names is not None and label not in dataset.column_names:
        raise ValueError(f"the data set has no column {label!r}: pass label= one of {list(dataset.column_names)}")
    feature = (dataset.features or {}).get(label)
    names = getattr(feature, "names", None)
    if hasattr(dataset, "select_columns") and hasattr(dataset, "__len__"):
        values = dataset.select_columns([label]).with_format("numpy")[:][label] if len(dataset) else []
    else:  # a streamed data set: one pass over the column
        values = [item[label] for item in _progress(dataset.select_columns([label]), None)]
    return Labels(np.asarray(values), None if names is None else tuple(names))


def _read_every_item(dataset: Any, label: str) -> Labels:
    length = len(dataset) if hasattr(dataset, "__len__") else None
    if length is None and not hasattr(dataset, "__iter__"):
        raise TypeError(f"{_describe(dataset)} is no data set: it has neither a length nor an iterator")
    warnings.warn(
        f"{_describe(dataset)} has no .targets or .labels: reading every item to count its labels. "
        "Count them once and keep the result (prior.to_json()), or use Prior.from_labels",
        stacklevel=5,
    )
    items: Iterable[Any] = dataset if length is None else (dataset[i] for i in range(length))
    labels = [_label_of(item, label, number) for number, item in enumerate(_progress(items, length))]
    return Labels(np.asarray(labels, dtype=np.int64), _class_names(dataset))


def _label_of(item: Any, label: str, number: int) -> int:
    try:
        value = item[label] if isinstance(item, dict) else item[1]
    except (KeyError, IndexError, TypeError):
        raise ValueError(
            f"item {number} has no label: expected (input, label), or a dictionary with the key {label!r}"
        ) from None
    array = as_array(value)
    if array.size != 1:
        raise ValueError(
            f"the label of item {number} has shape {array.shape}, expected one class index: "
            "use Prior.from_multilabel or Prior.from_masks"
        )
    return int(_whole_labels(array.reshape(1))[0])


def _progress(items: Iterable[Any], length: int | None) -> Iterator[Any]:
    """The items, with a progress bar where Rich is installed."""
    try:
        from rich.progress import track
    except ImportError:
        yield from items
        return
    yield from track(items, "counting labels", total=length, transient=True)


def _describe(dataset: Any) -> str:
    return f"this {type(dataset).__name__}"
