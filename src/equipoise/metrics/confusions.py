"""Which classes are taken for which: predicted against true classes, stored sparsely, for any number of classes.

A class is *swallowed* by another, more frequent one if its items are predicted as that one; this is how a long tail
disappears. Confusions are sums over items, so those of parts add up with `+`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.metrics.intervals import wilson_intervals
from equipoise.prior import FloatArray, IntArray, Prior

GROUPS = ("many", "medium", "few")


@dataclass(frozen=True)
class Swallowed:
    """`times` of the `items` of class `true` were predicted as the more frequent class `predicted`; Wilson 95 %."""

    true: int
    predicted: int
    times: int
    items: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.times / self.items


@dataclass(frozen=True, eq=False)
class Confusions:
    """How often class j was predicted as class k, for the pairs that occur: code j·K + k, sorted, and times."""

    num_classes: int
    codes: IntArray
    times: IntArray

    @classmethod
    def count(cls, target: IntArray, predicted: IntArray, num_classes: int) -> Confusions:
        """Count the pairs of true and predicted class indices [N].

        >>> Confusions.count(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).dense().tolist()
        [[1, 1], [0, 1]]
        """
        codes, times = np.unique(target.astype(np.int64) * num_classes + predicted, return_counts=True)
        return cls(num_classes, codes, times)

    def dense(self) -> IntArray:
        """The matrix [K, K]: true classes are rows."""
        matrix = np.zeros(self.num_classes**2, np.int64)
        matrix[self.codes] = self.times
        return matrix.reshape(self.num_classes, self.num_classes)

    def __add__(self, other: Confusions) -> Confusions:
        if not isinstance(other, Confusions):
            return NotImplemented
        if self.num_classes != other.num_classes:
            raise ValueError(f"confusions of {self.num_classes} and {other.num_classes} classes do not add")
        codes, place = np.unique(np.concatenate([self.codes, other.codes]), return_inverse=True)
        times = np.bincount(place, np.concatenate([self.times, other.times]), len(codes)).astype(np.int64)
        return Confusions(self.num_classes, codes, times)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Confusions):
            return NotImplemented
        return np.array_equal(self.codes, other.codes) and np.array_equal(self.times, other.times)

    __hash__ = None  # type: ignore[assignment]

    def predicted(self) -> IntArray:
        """How often each class was predicted, [K]."""
        return np.bincount(self.codes % self.num_classes, self.times, self.num_classes).astype(np.int64)

    def swallowed(self, prior: Prior, most: int = 15, within: Sequence[int] | None = None) -> list[Swallowed]:
        """Pairs in which a class is taken for one of a larger group, the most certain first (by the interval's lower
        end).

        If the training set has only one group, or for classes `within` a group if these are given: pairs in which a
        class is taken for one with more items.
        """
        true, predicted = np.divmod(self.codes, self.num_classes)
        items = np.bincount(true, self.times, self.num_classes).astype(np.int64)
        rank = -prior.counts if within is not None or len(prior.groups()) < 2 else _group_numbers(prior.groups(), prior)
        asked = np.ones(self.num_classes, bool) if within is None else np.isin(np.arange(self.num_classes), within)
        chosen = np.flatnonzero((rank[predicted] < rank[true]) & asked[true])
        true, predicted, times = true[chosen], predicted[chosen], self.times[chosen]
        low, high = wilson_intervals(times, items[true])
        first = np.lexsort((predicted, true, -low))[:most]
        columns = [values[first].tolist() for values in (true, predicted, times, items[true], low, high)]
        return [Swallowed(*row) for row in zip(*columns, strict=True)]

    def flow(
        self, prior: Prior, groups: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, dict[str, float | None]]:
        """Where the items of each group go: the share predicted right, and the shares predicted as a wrong class of
        each group.

        Classes count equally, whatever their number of test items; None if the test set has no item of the group. The
        classes of each group are `groups`, by default those of the prior.
        """
        groups = prior.groups() if groups is None else groups
        number = _group_numbers(groups, prior)
        true, predicted = np.divmod(self.codes, self.num_classes)
        items = np.bincount(true, self.times, self.num_classes)
        where = np.where(true == predicted, 3, number[predicted])
        shares: FloatArray = np.zeros((self.num_classes, 4))
        np.add.at(shares, (true, where), self.times / items[true])
        found: dict[str, dict[str, float | None]] = {}
        for name in GROUPS:
            members = [index for index in groups.get(name, []) if items[index] > 0]
            means = shares[members].mean(axis=0).tolist() if members else [None] * 4
            found[name] = dict(zip((*GROUPS, "right"), means, strict=True))
        return found


def _group_numbers(groups: Mapping[str, Sequence[int]], prior: Prior) -> IntArray:
    """0, 1 or 2 for a class with many, medium or few items."""
    found = np.zeros(prior.num_classes, np.int64)
    for name, members in groups.items():
        found[list(members)] = GROUPS.index(name)
    return found
