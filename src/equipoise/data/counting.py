"""Count classes in label arrays, multi-hot matrices, label maps and data sets.

The counting functions return plain arrays; `equipoise.Prior` is their public interface.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from equipoise.arrays import MOST_CLASSES, as_array, outside
from equipoise.prior import IntArray

CHUNK = 1 << 24  # np.bincount makes an int64 copy of what it counts: limit its size


def count_labels(
    labels: ArrayLike | Tensor, num_classes: int | None = None, *, ignore_index: int | None = None
) -> IntArray:
    """Items per class, [num_classes], of class indices [N].

    >>> count_labels([2, 0, 2]).tolist()
    [1, 0, 2]
    """
    if not hasattr(labels, "__len__") or isinstance(labels, set | frozenset | dict):
        raise TypeError(f"labels are a {type(labels).__name__}: pass a list, array or tensor, one class index per item")
    if num_classes is not None and num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}: expected at least 1")
    array = as_array(labels)
    if array.size == 0:
        raise ValueError("there are no labels to count: the data set is empty")
    if array.ndim != 1:
        raise ValueError(
            f"labels have shape {array.shape}, expected one class index per item, [N]: "
            "for label maps use Prior.from_masks, for a multi-hot matrix Prior.from_multilabel"
        )
    counts = np.zeros(num_classes or 0, np.int64)
    counts = add_labels(counts, _whole_labels(array), num_classes, ignore_index)
    if not counts.any():
        raise ValueError(f"every label is ignore_index={ignore_index}: there is nothing to count")
    return counts


def count_multilabel(multi_hot: ArrayLike | Tensor) -> tuple[IntArray, int]:
    """Positives per class [K], and the number of items N, of a matrix [N, K] of zeros and ones."""
    try:
        array = as_array(multi_hot)
    except ValueError:
        raise ValueError(
            "multi_hot is ragged: expected a matrix [N, K] of zeros and ones, not lists of classes"
        ) from None
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"multi_hot has shape {array.shape}, expected one row per item, one column per class: [N, K]")
    counts = np.zeros(array.shape[1], np.int64)
    step = max(1, CHUNK // array.shape[1])
    for start in range(0, len(array), step):
        part = array[start : start + step]
        bad = (part != 0) & (part != 1)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(
                f"multi_hot[{start + row}, {column}] is {part[row, column]}: expected only 0 and 1 (where some are "
                "not known, count the others: Prior.from_counts((multi_hot == 1).sum(0), total=len(multi_hot)))"
            )
        counts += part.sum(axis=0, dtype=np.int64)
    return counts, len(array)


def count_masks(masks: Iterable[ArrayLike | Tensor], num_classes: int, ignore_index: int | None = None) -> IntArray:
    """Pixels per class [num_classes] over label maps [H, W] or [1, H, W]."""
    counts, seen = np.zeros(num_classes, np.int64), 0
    for number, mask in enumerate(masks):
        array = as_array(mask)
        array = array[0] if array.ndim == 3 and len(array) == 1 else array  # MONAI's [1, H, W]
        if array.ndim != 2:
            raise ValueError(f"mask {number} has shape {array.shape}, expected a label map [H, W] of class indices")
        add_labels(counts, _whole_labels(array.ravel()), num_classes, ignore_index, f"mask {number}, pixel")
        seen += 1
    if not seen:
        raise ValueError("there are no masks to count")
    return counts


def _whole_labels(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind in "USO":
        flat = array.ravel()
        where = next((i for i, value in enumerate(flat) if not isinstance(value, int | np.integer)), 0)
        if isinstance(flat[where], list | tuple | np.ndarray):
            raise TypeError(f"label {where} is {flat[where]!r}, not one class: use Prior.from_multilabel")
        if not isinstance(flat[where], str):
            raise TypeError(f"label {where} is {flat[where]!r}: drop or number what is missing, then pass ignore_index")
        raise TypeError(
            f"labels are not integers (label {where} is {str(flat[where])!r}): number them first, e.g. "
            "names, labels = np.unique(labels, return_inverse=True)"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise TypeError("labels hold NaN: drop or number what is missing, then pass ignore_index")
    raise TypeError(f"labels are {array.dtype}, expected integers: convert them with .astype(int) if they are whole")


def add_labels(
    counts: IntArray,
    labels: NDArray[Any],
    num_classes: int | None,
    ignore_index: int | None = None,
    what: str = "label",
) -> IntArray:
    """`counts` with `labels` added: in place, or enlarged if `num_classes` is None."""
    for start in range(0, len(labels), CHUNK):
        part = labels[start : start + CHUNK]
        if ignore_index is not None:
            part = part[part != ignore_index]
        if len(part) == 0:
            continue
        low, high = int(part.min()), int(part.max())
        if low < 0:
            raise ValueError(f"{what} {low} is negative: pass ignore_index={low} if it marks unlabelled items")
        if num_classes is not None and high >= num_classes:
            raise ValueError(
                f"{what} {high} is out of range for num_classes={num_classes}: labels run from 0 to num_classes − 1"
            )
        if high >= MOST_CLASSES and num_classes is None:
            raise ValueError(
                f"{what} {high} would make {high + 1} classes: number the labels from 0, or pass num_classes"
            )
        if high >= len(counts):
            counts = np.concatenate([counts, np.zeros(high + 1 - len(counts), np.int64)])
        if high < 4 * len(part):
            found = np.bincount(part.astype(np.int64, copy=False))
            counts[: len(found)] += found
        else:  # few labels with a huge range: do not build the range for every part
            np.add.at(counts, part, 1)
    return counts


# -------------------------------------------------------------------- labels of a data set


@dataclass(frozen=True)
class Labels:
    """The class indices of a data set, with the names of the classes if it has any."""

    labels: NDArray[Any]
    class_names: tuple[str, ...] | None = None


def dataset_labels(dataset: Any, *, label: str = "label") -> Labels:
    """The labels of `dataset`, without decoding its images if the labels are stored separately."""
    found = _labels(dataset, label)
    if found.labels.size == 0:
        raise ValueError(f"{_describe(dataset)} is empty: there are no labels to count")
    return found


def _labels(dataset: Any, label: str) -> Labels:
    if isinstance(dataset, Subset):
        return _subset_labels(dataset, label)
    if isinstance(dataset, ConcatDataset):
        return _concatenated([_labels(part, label) for part in dataset.datasets])
    found = _known_labels(dataset, label)
    return _read_items(dataset, label) if found is None else found


def _known_labels(dataset: Any, label: str) -> Labels | None:
    """The labels of a data set that keeps them separately from its items; None if it does not."""
    if isinstance(dataset, TensorDataset):
        if len(dataset.tensors) < 2:
            raise ValueError("the TensorDataset has one tensor only: labels are expected in the second")
        return Labels(as_array(dataset.tensors[1]))
    if isinstance(dataset, DataLoader):
        raise TypeError("this is a DataLoader: pass its data set, loader.dataset")
    if hasattr(dataset, "features") and hasattr(dataset, "column_names"):
        return _hugging_face_labels(dataset, label)
    if isinstance(dataset, dict):
        splits = ", ".join(map(str, dataset))
        raise TypeError(f"this is a dictionary of splits ({splits}): pass one, e.g. the training split")
    samples = getattr(getattr(dataset, "reader", None), "samples", None)
    if isinstance(samples, list) and samples and isinstance(samples[0], tuple) and len(samples[0]) == 2:  # timm's
        names = tuple(getattr(dataset.reader, "class_to_idx", None) or ())
        return Labels(_transformed(dataset, np.asarray([target for _, target in samples])), names or None)
    for attribute in ("targets", "labels"):
        values = getattr(dataset, attribute, None)
        if values is None or callable(values) or as_array(values).dtype.kind in "USO":
            continue
        array = as_array(values)
        if array.ndim:
            check_length(dataset, attribute, len(array))
        return Labels(_transformed(dataset, array), class_names_of(dataset))
    return None


def check_length(dataset: Any, attribute: str, length: int) -> None:
    """Refuse labels that a data set keeps beside its items, if there are more or fewer of them."""
    if hasattr(dataset, "__len__") and length != len(dataset):
        raise ValueError(
            f"{_describe(dataset)} has {length} .{attribute} for {len(dataset)} items: pass the labels of the items "
            "that you train on to Prior.from_labels or Prior.from_multilabel"
        )


def _subset_labels(subset: Any, label: str) -> Labels:
    """The labels of nested subsets; if the data set itself must be read, only the items in the subset are."""
    index = np.asarray(subset.indices, dtype=np.int64)
    whole = subset.dataset
    while isinstance(whole, Subset):
        index, whole = np.asarray(whole.indices, dtype=np.int64)[index], whole.dataset
    found = _labels(whole, label) if isinstance(whole, ConcatDataset) else _known_labels(whole, label)
    if found is None:
        return _read_items(whole, label, index)
    return Labels(found.labels[index], found.class_names)


def _concatenated(parts: Sequence[Labels]) -> Labels:
    names = {part.class_names for part in parts if part.class_names is not None}
    if len(names) > 1:
        shown = " and ".join(str(list(n[:3])) for n in sorted(names)[:2])
        raise ValueError(
            f"the concatenated data sets name their classes differently ({shown}, ...): "
            "bring their labels to one numbering, and count those with Prior.from_labels"
        )
    labels = np.concatenate([part.labels for part in parts if part.labels.size] or [np.zeros(0, np.int64)])
    return Labels(labels, names.pop() if names else None)


def _transformed(dataset: Any, values: NDArray[Any]) -> NDArray[Any]:
    """Labels as the data set returns them: torchvision applies `target_transform` when an item is read."""
    transform = getattr(dataset, "target_transform", None)
    if transform is None or values.ndim != 1 or values.size == 0:
        return values
    distinct, inverse = np.unique(values, return_inverse=True)
    made = [_one_label(transform(value.item()), f"target_transform({value})") for value in distinct]
    return np.asarray(made)[inverse]


def class_names_of(dataset: Any) -> tuple[str, ...] | None:
    """The names of the classes, if a data set has them in torchvision's form."""
    names = getattr(dataset, "classes", None)
    if getattr(dataset, "target_transform", None) is not None or not isinstance(names, list | tuple):
        return None
    # torchvision's ImageNet has a tuple of synonyms per class
    return tuple(", ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in names)


def _hugging_face_labels(dataset: Any, label: str) -> Labels:
    if dataset.column_names is not None and label not in dataset.column_names:
        raise ValueError(f"the data set has no column {label!r}: pass label= one of {list(dataset.column_names)}")
    feature = (dataset.features or {}).get(label)
    names = getattr(feature, "names", None)
    if hasattr(feature, "feature"):  # List(ClassLabel), Sequence(ClassLabel)
        raise TypeError(
            f"the column {label!r} holds several classes per item: Prior.from_dataset takes kind='multilabel', or "
            f"kind='tokens' if it has one per token, and a sampler takes classes_per_item=dataset[{label!r}]"
        )
    if hasattr(dataset, "select_columns") and hasattr(dataset, "__len__"):
        values = dataset.select_columns([label]).with_format("numpy")[:][label] if len(dataset) else []
    else:  # a streamed data set: one pass over the column
        values = [item[label] for item in progress(dataset.select_columns([label]), None)]
    return Labels(np.asarray(values), None if names is None else tuple(names))


def _read_items(dataset: Any, label: str, index: IntArray | None = None) -> Labels:
    """Labels from reading every item, or only those of `index`."""
    length = len(index) if index is not None else len(dataset) if hasattr(dataset, "__len__") else None
    values = progress(read_labels(dataset, label, index), length)
    labels = [_one_label(value, f"the label of item {number}") for number, value in enumerate(values)]
    return Labels(np.asarray(labels, dtype=np.int64), class_names_of(dataset))


def read_labels(dataset: Any, label: str | Sequence[str], index: IntArray | None = None) -> Iterator[Any]:
    """The label of every item, or of those of `index`, from reading the items, with a warning."""
    streamed = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__")
    if streamed and not hasattr(dataset, "__iter__"):
        raise TypeError(f"{_describe(dataset)} is not a data set: it has neither a length nor an iterator")
    warnings.warn(
        f"{_describe(dataset)} has no .targets or .labels: reading every item to count its labels. "
        "Count them once and keep the result (prior.to_json())",
        stacklevel=outside(),
    )
    chosen = range(len(dataset)) if index is None and not streamed else index
    items: Iterable[Any] = dataset if chosen is None else (dataset[int(i)] for i in chosen)
    return (_label_of(item, label, number) for number, item in enumerate(items))


def _label_of(item: Any, label: str | Sequence[str], number: int) -> Any:
    try:
        return item[label] if isinstance(item, dict) else item[1]
    except (KeyError, IndexError, TypeError):
        raise ValueError(
            f"item {number} has no label: expected (input, label), or a dictionary with the key {label!r} "
            "(name another with label=)"
        ) from None


def _one_label(value: Any, what: str) -> int:
    array = as_array(value)
    if array.size != 1:
        raise ValueError(
            f"{what} has shape {array.shape}, expected one class index: pass kind='multilabel', 'tokens' or "
            "'masks', or use Prior.from_multilabel or Prior.from_masks"
        )
    return int(_whole_labels(array.reshape(1))[0])


def progress(items: Iterable[Any], length: int | None) -> Iterator[Any]:
    """The items, with a progress bar if Rich is installed."""
    try:
        from rich.progress import track
    except ImportError:
        yield from items
        return
    yield from track(items, "counting labels", total=length, transient=True)


def _describe(dataset: Any) -> str:
    return f"this {type(dataset).__name__}"
