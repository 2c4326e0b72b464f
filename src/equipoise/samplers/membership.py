"""Which classes each item holds, as one flat array: a common form for the different ways to store it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.arrays import as_array, outside
from equipoise.prior import IntArray

ClassesPerItem: TypeAlias = "Sequence[Sequence[int]] | tuple[NDArray[Any], NDArray[Any]] | NDArray[Any] | Tensor"


@dataclass(frozen=True)
class Membership:
    """Item i holds `classes[offsets[i] : offsets[i + 1]]`, sorted, each class once."""

    offsets: IntArray
    classes: IntArray
    num_classes: int

    @property
    def num_items(self) -> int:
        return len(self.offsets) - 1

    def items(self) -> IntArray:
        """The item of each entry of `classes`."""
        return np.repeat(np.arange(self.num_items), np.diff(self.offsets))

    def counts(self) -> IntArray:
        """How many items hold each class, [K]."""
        return np.bincount(self.classes, minlength=self.num_classes)


def as_membership(classes_per_item: ClassesPerItem, num_classes: int | None = None) -> Membership:
    """Read a list of lists, a pair (offsets [N + 1], classes) as in a sparse CSR matrix, or a multi-hot [N, K].

    A class named twice in an item (two objects in one image) counts once.

    >>> as_membership([[2, 0, 2], [], [1]])
    Membership(offsets=array([0, 2, 2, 3]), classes=array([0, 2, 1]), num_classes=3)
    """
    rows: Any = classes_per_item
    if hasattr(rows, "indptr"):  # SciPy's compressed rows
        classes_per_item = (rows.indptr, rows.indices)
    if isinstance(classes_per_item, tuple) and len(classes_per_item) == 2 and np.ndim(classes_per_item[0]) == 1:
        offsets, classes = _from_pair(*classes_per_item)
    elif isinstance(classes_per_item, np.ndarray | Tensor):
        offsets, classes, num_classes = _from_multi_hot(as_array(classes_per_item), num_classes)
    else:
        offsets, classes = _from_lists(cast(Sequence[Sequence[int]], classes_per_item))
    if len(offsets) == 1:
        raise ValueError("classes_per_item is empty: there is no item to draw")
    if len(classes) == 0:
        raise ValueError(f"none of the {len(offsets) - 1} items has a class: there is nothing to balance")
    return _checked(offsets, classes, num_classes)


def _from_lists(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    try:
        lengths = np.fromiter((len(classes) for classes in lists), np.int64, len(lists))
    except TypeError:
        first = next((classes for classes in lists if not hasattr(classes, "__len__")), None)
        raise TypeError(
            f"classes_per_item holds {first!r} where a list of classes is expected: give one list per item, "
            "[[0, 3], [1], []]; for one class per item use ClassBalancedSampler(labels)"
        ) from None
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = list(chain.from_iterable(lists))
    classes = np.asarray(flat) if flat else np.zeros(0, np.int64)
    if len(lengths) and lengths.min() == lengths.max() > 2 and np.isin(classes, (0, 1)).all():
        warnings.warn(
            f"every list has {lengths[0]} zeros and ones, which are read as the classes 0 and 1: if they are "
            "multi-hot, pass an array [N, K], np.asarray(classes_per_item)",
            stacklevel=outside(),
        )
    return offsets, _whole(classes)


def _from_pair(offsets: Any, classes: Any) -> tuple[IntArray, IntArray]:
    starts, flat = _whole(as_array(offsets)), _whole(as_array(classes))
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != len(flat) or (np.diff(starts) < 0).any():
        shown = f"from {starts[0]} to {starts[-1]}" if len(starts) else "empty"
        raise ValueError(
            f"offsets run {shown} for {len(flat)} classes: item i holds classes[offsets[i]:offsets[i + 1]], so they "
            "rise from 0 to the number of classes given (scipy: (matrix.indptr, matrix.indices))"
        )
    return starts, flat


def _from_multi_hot(matrix: NDArray[Any], num_classes: int | None) -> tuple[IntArray, IntArray, int]:
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"classes_per_item has shape {matrix.shape}: a multi-hot matrix is [items, classes]")
    if num_classes not in (None, matrix.shape[1]):
        raise ValueError(
            f"the multi-hot matrix has {matrix.shape[1]} columns, but num_classes is {num_classes}: give one column "
            "per class, or leave num_classes out"
        )
    hot = matrix != 0
    if not (matrix[hot] == 1).all():
        row, column = np.argwhere(hot & (matrix != 1))[0]
        raise ValueError(f"classes_per_item[{row}, {column}] is {matrix[row, column]}: expected only 0 and 1")
    offsets = np.concatenate([[0], np.cumsum(hot.sum(axis=1, dtype=np.int64))])
    return offsets, np.flatnonzero(hot) % matrix.shape[1], matrix.shape[1]


def _whole(values: NDArray[Any]) -> IntArray:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise TypeError(f"classes are {values.dtype} of shape {values.shape}: expected a flat array of whole numbers")
    return values.astype(np.int64, copy=False)


def _checked(offsets: IntArray, classes: IntArray, num_classes: int | None) -> Membership:
    low, high = int(classes.min()), int(classes.max())
    num_classes = high + 1 if num_classes is None else num_classes
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"class {low if low < 0 else high} is out of range for num_classes={num_classes}: "
            "classes run from 0 to num_classes − 1"
        )
    entries = np.unique(Membership(offsets, classes, num_classes).items() * num_classes + classes)
    kept = np.bincount(entries // num_classes, minlength=len(offsets) - 1)
    return Membership(np.concatenate([[0], np.cumsum(kept)]), entries % num_classes, num_classes)
