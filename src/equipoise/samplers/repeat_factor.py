"""Repeat-factor sampling (Gupta, Dollár, Girshick, "LVIS", 2019): items with a rare class come several times per epoch.

    r(c) = max(1, sqrt(t / f_c))       f_c: the fraction of items that hold class c;  t: the threshold
    r(I) = max_{c in I} r(c)           1 for an item without classes

In each epoch an item occurs ⌊r⌋ times, and once more with probability r − ⌊r⌋.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.prior import FloatArray, IntArray, Prior
from equipoise.samplers.membership import ClassesPerItem, Membership, as_membership
from equipoise.samplers.resumable import ResumableSampler, over_balance_advice

_BLOCK = 1 << 16


def class_repeat_factors(counts: IntArray, num_items: int, threshold: float) -> FloatArray:
    """r(c) = max(1, sqrt(t / f_c)) for f_c = counts / num_items; 1 for a class without items.

    >>> class_repeat_factors(np.array([100, 1, 0]), num_items=100, threshold=0.04).tolist()
    [1.0, 2.0, 1.0]
    """
    with np.errstate(divide="ignore"):
        factors = np.sqrt(threshold * num_items / counts)
    return np.where(counts > 0, np.maximum(factors, 1.0), 1.0)


def item_repeat_factors(membership: Membership, threshold: float) -> FloatArray:
    """r(I) = max over the classes that item I holds, [N]."""
    of_class = class_repeat_factors(membership.counts(), membership.num_items, threshold)
    factors = np.ones(membership.num_items)
    holding = np.flatnonzero(np.diff(membership.offsets))
    factors[holding] = np.maximum.reduceat(of_class[membership.classes], membership.offsets[holding])
    return factors


class RepeatFactorSampler(ResumableSampler):
    """Indices of a shuffled epoch in which items that hold a rare class are repeated.

    `classes_per_item` is a list of lists, a pair (offsets, classes) as in a sparse CSR matrix, or a multi-hot [N, K].
    `threshold` is the fraction of items below which a class counts as rare (LVIS: 0.001). The length of an epoch
    differs a little from one to the next, but is the same on every rank (the first items fill up the last ranks).

    `seed`, `num_replicas` and `rank` are those of `torch.utils.data.DistributedSampler`; ranks default to the process
    group if there is one.

    threshold   the share of items below which a class counts as rare (LVIS: 0.001)

    >>> images = [[0]] * 98 + [[0, 1], [1]]
    >>> sampler = RepeatFactorSampler(images, threshold=0.08)
    >>> sampler.repeat_factors[[0, 98, 99]].tolist()
    [1.0, 2.0, 2.0]
    >>> sorted(sampler)[-4:], len(sampler)
    ([98, 98, 99, 99], 102)
    """

    def __init__(
        self,
        classes_per_item: ClassesPerItem,
        *,
        threshold: float,
        num_classes: int | None = None,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold is {threshold}: expected a fraction of the items, in (0, 1] (LVIS: 0.001)")
        self._membership = as_membership(classes_per_item, num_classes)
        super().__init__(self._membership.num_items, seed, num_replicas, rank)
        self.threshold = threshold
        self.repeat_factors = item_repeat_factors(self._membership, threshold)
        self._last_draws: tuple[int, int, int] | None = None

    @property
    def draws(self) -> int:
        """Draws in the current epoch over all ranks."""
        if self._last_draws is None or self._last_draws[:2] != (self.seed, self.epoch):
            repeats = _repeats(self.repeat_factors, np.random.default_rng([self.seed, self.epoch]))
            self._last_draws = (self.seed, self.epoch, int(repeats.sum()))
        return self._last_draws[2]

    @property
    def prior(self) -> Prior:
        """The class prior of what is drawn, in expected counts of one epoch."""
        member = self._membership
        expected = np.bincount(member.classes, self.repeat_factors[member.items()], minlength=member.num_classes)
        counts = np.rint(expected).astype(np.int64)
        return Prior.from_counts(counts, max(round(float(self.repeat_factors.sum())), int(counts.max())))

    def _advice(self, drawn: Prior) -> str:
        counts = self._membership.counts()
        if (self.repeat_factors == 1).all():
            rarest = counts[counts > 0].min() / self.num_items
            return (
                f"threshold={self.threshold:g} changes nothing: the rarest class is in {rarest:.3g} of the items, and "
                "only classes below the threshold are repeated; choose a larger one"
            )
        return over_balance_advice(Prior.from_counts(counts, self.num_items), drawn)

    def _blocks(self, epoch: int, start: int, count: int) -> Iterator[list[int]]:
        indices = epoch_indices(self.repeat_factors, self.seed, epoch)
        padded = np.resize(indices, start + count * self.num_replicas)  # starts over if the ranks are uneven
        mine = padded[start + self.rank :: self.num_replicas]
        for first in range(0, count, _BLOCK):
            yield mine[first : first + _BLOCK].tolist()


def epoch_indices(repeat_factors: FloatArray, seed: int, epoch: int) -> IntArray:
    """The shuffled epoch: every item as often as its repeat factor, rounded at random.

    >>> np.bincount(epoch_indices(np.array([1.0, 2.5, 3.0]), seed=0, epoch=0)).tolist()
    [1, 3, 3]
    """
    random = np.random.default_rng([seed, epoch])
    indices = np.repeat(np.arange(len(repeat_factors)), _repeats(repeat_factors, random))
    random.shuffle(indices)
    return indices


def _repeats(factors: FloatArray, random: np.random.Generator) -> IntArray:
    whole = np.floor(factors)
    return (whole + (random.random(len(factors)) < factors - whole)).astype(np.int64)
