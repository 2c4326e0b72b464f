"""Class-balanced sampling: first the class, then an item of it.

    q_c  ∝  n_c^(1 − s) · target_c^s          s = 1: class-balanced;  1/2: square-root;  0: instance-balanced

Class c is drawn for the k-th time at the moment (k + v) / q_c, with v in (0, 1) a hash of (seed, c, k), and the stream
consists of all these draws in order of time. So every class keeps its rate over any stretch of the stream, not only on
average: with s = 1 each run of K draws is a fresh permutation of the K classes, and with s = 0 each run of N draws
holds every item once. Draw k of a class takes item k mod n_c of a permutation that is new for each pass k div n_c:
without replacement, reshuffled when exhausted. Any stretch can be computed on its own, so epochs, ranks and resuming
cost nothing, there is no limit of 2^24 categories, and the only memory is one index array.

References: Shen, Lin, Huang, "Relay Backpropagation", 2016 (class-aware sampling); Mahajan et al. 2018 (square-root);
Kang et al., "Decoupling Representation and Classifier", 2020 (the strengths, and raising them over the epochs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset

from equipoise.arrays import as_array
from equipoise.data.counting import CHUNK, count_labels, dataset_labels
from equipoise.prior import FloatArray, IntArray, Prior, PriorLike, as_prior
from equipoise.samplers.membership import ClassesPerItem, Membership, as_membership
from equipoise.samplers.permutation import GOLDEN, LARGEST, Words, mix, permute
from equipoise.samplers.resumable import ResumableSampler, over_balance_advice

Strength = float | Callable[[int], float]

_BLOCK = 1 << 15  # draws computed at a time: small enough for the cache, large enough for NumPy


class ClassBalancedSampler(ResumableSampler):
    """Indices such that every class is drawn equally often, or as often as `strength` and `target` ask for.

    `labels` is one class index per item: list, tensor, array or `np.memmap`. If an item has several classes, pass
    `classes_per_item` instead: a list of lists, a pair (offsets, classes) as in a sparse CSR matrix, or a multi-hot
    [N, K]; a class is drawn, then an item that holds it. A class without items is never drawn; `num_classes` is needed
    if the last classes have no items, and items labelled `ignore_index` are left out.

    `num_samples` is the number of draws in an epoch over all ranks together (default: the number of items that are not
    ignored). `strength` goes from 0 (items as they are) through 0.5 (square-root) to 1 (class-balanced), and may be a
    function of the epoch: see `progressive`. `target` is the class prior that strength 1 aims at (default: uniform).

    `seed`, `num_replicas` and `rank` are those of `torch.utils.data.DistributedSampler`; ranks default to the process
    group if there is one. Every rank gives the same number of indices, and together they give the stream of a single
    process (continued by a few draws if `num_samples` is not a multiple of the number of ranks).

    ignore_index   items with this label are left out
    num_samples    draws per epoch over all ranks; None is the number of items
    strength       0 draws items as they are, 1 balances the classes; or a function of the epoch
    target         the class prior that strength 1 aims at; None is uniform

    >>> labels = [0, 0, 0, 0, 0, 0, 1, 1, 2]
    >>> sampler = ClassBalancedSampler(labels, num_samples=6)
    >>> [labels[i] for i in sampler]
    [2, 0, 1, 2, 0, 1]
    >>> sampler.prior
    Prior(3 classes, total 6, imbalance 1, head 0: 2, tail 0: 2)
    """

    def __init__(
        self,
        labels: ArrayLike | Tensor | None = None,
        *,
        classes_per_item: ClassesPerItem | None = None,
        num_classes: int | None = None,
        ignore_index: int | None = None,
        num_samples: int | None = None,
        strength: Strength = 1.0,
        target: PriorLike | None = None,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if (labels is None) == (classes_per_item is None):
            raise ValueError("give either labels (one class per item) or classes_per_item (several), not both")
        self._membership: Membership | None = None
        if classes_per_item is not None:
            if ignore_index is not None:
                raise ValueError(f"ignore_index={ignore_index} goes with labels: leave it out of classes_per_item")
            self._membership = as_membership(classes_per_item, num_classes)
            num_items, self._index = self._membership.num_items, _index_membership(self._membership)
        else:
            array = _label_array(labels)
            num_items, self._index = len(array), _index_labels(array, num_classes, ignore_index)
        super().__init__(num_items, seed, num_replicas, rank)
        if num_samples is not None and (num_samples < 1 or int(num_samples) != num_samples):
            raise ValueError(f"num_samples is {num_samples}: expected the draws per epoch over all ranks, at least 1")
        kept = len(self._index.items) if self._membership is None else num_items  # without those that are ignored
        self.num_samples = kept if num_samples is None else int(num_samples)
        self._strength = strength
        self._target = None if target is None else as_prior(target)
        if self._target is not None and self._target.num_classes != len(self._index.counts):
            raise ValueError(
                f"target has {self._target.num_classes} classes, the items have {len(self._index.counts)}: "
                "give num_classes, or a target with one entry per class"
            )
        self._rates(0)  # a wrong strength or target is an error here, not in the first epoch

    @classmethod
    def from_dataset(cls, dataset: Any, *, label: str = "label", **options: Any) -> ClassBalancedSampler:
        """A sampler for `dataset`, whose labels are found as in `Prior.from_dataset`; `options` as above."""
        return cls(dataset_labels(dataset, label=label).labels, **options)

    @property
    def draws(self) -> int:
        """Draws per epoch over all ranks."""
        return self.num_samples

    @property
    def strength(self) -> float:
        """The strength of the current epoch."""
        return _strength_at(self._strength, self.epoch)

    @property
    def prior(self) -> Prior:
        """The class prior of what is drawn in the current epoch, in expected counts of one epoch.

        If rounding to whole numbers would change one by more than 1 %, the counts are those of several epochs.
        """
        rates = self._rates(self.epoch)
        if self._membership is None:
            return Prior.from_counts(_whole_counts(rates, self.num_samples))
        # An item that holds several classes is drawn for each of them, and brings the others along.
        member = self._membership
        of_class = np.divide(rates, self._index.counts, out=np.zeros_like(rates), where=self._index.counts > 0)
        of_item = np.bincount(member.items(), of_class[member.classes], minlength=member.num_items)
        held = np.bincount(member.classes, of_item[member.items()], minlength=member.num_classes)
        counts = _whole_counts(np.asarray(held, np.float64), self.num_samples)
        epochs = max(1, round(counts.sum() / (held.sum() * self.num_samples)))
        return Prior.from_counts(counts, max(epochs * self.num_samples, int(counts.max())))

    def _advice(self, drawn: Prior) -> str:
        source = Prior.from_counts(self._index.counts, max(self.num_items, int(self._index.counts.sum())))
        drawn_shares, shares = (prior.counts / prior.counts.sum() for prior in (drawn, source))
        if np.allclose(drawn_shares, shares, rtol=0.02, atol=0):
            why = f"strength is {self.strength:g}" if self.strength < 1 else "the items are drawn as they are"
            return f"the sampler changes nothing ({why}): the classes are drawn as often as they occur in the data"
        return over_balance_advice(source, drawn)

    def _blocks(self, epoch: int, start: int, count: int) -> Iterator[list[int]]:
        stream = _Stream.of(self._index, self._rates(epoch), self.seed)
        position = epoch * self.num_samples + start + self.rank
        while count > 0:
            block = stream.indices(position, self.num_replicas, count)
            position += len(block) * self.num_replicas
            count -= len(block)
            yield block.tolist()

    def _rates(self, epoch: int) -> FloatArray:
        """q_c: the probability that a draw is from class c, [K]."""
        counts, strength = self._index.counts, _strength_at(self._strength, epoch)
        wanted = np.ones(len(counts)) if self._target is None else self._target.probabilities
        rates = np.where(counts > 0, np.maximum(counts, 1.0) ** (1 - strength) * wanted**strength, 0.0)
        if not rates.any():
            raise ValueError("target gives every class that has items the probability 0: there is nothing to draw")
        return np.asarray(rates / rates.sum())


def progressive(epochs: int) -> Callable[[int], float]:
    """A strength that rises linearly from 0 in the first epoch to 1 in the last of `epochs`.

    epochs   the number of training epochs

    >>> sampler = ClassBalancedSampler([0, 0, 0, 1], strength=progressive(epochs=3))
    >>> for epoch in range(3):
    ...     sampler.set_epoch(epoch)
    ...     print(sampler.strength, sampler.prior.probabilities.round(2))
    0.0 [0.75 0.25]
    0.5 [0.63 0.37]
    1.0 [0.5 0.5]
    """
    if epochs < 2:
        raise ValueError(f"epochs is {epochs}: a rising strength needs at least 2")
    return partial(_rising, epochs=epochs)  # can be pickled: samplers travel to other processes


def _rising(epoch: int, epochs: int) -> float:
    return min(epoch / (epochs - 1), 1.0)


# -------------------------------------------------------------------- the items of each class


@dataclass(frozen=True)
class _Index:
    """The items of class c are `items[starts[c] : starts[c] + counts[c]]`."""

    counts: IntArray
    starts: IntArray
    items: NDArray[Any]  # uint32 if it can hold the largest index: half the memory

    @classmethod
    def empty(cls, counts: IntArray, num_items: int) -> _Index:
        """Room for the items of each class, out of `num_items`."""
        if counts.max() >= LARGEST:
            raise ValueError(f"a class has {counts.max()} items: at most 2^31 − 1 can be shuffled")
        dtype = np.uint32 if num_items <= 1 << 32 else np.int64
        return cls(counts, np.cumsum(counts) - counts, np.empty(int(counts.sum()), dtype))


def _label_array(labels: Any) -> NDArray[Any]:
    if isinstance(labels, Prior | Dataset):
        raise TypeError(f"labels are a {type(labels).__name__}: pass one class index per item, e.g. dataset.targets")
    array = as_array(labels)
    if array.ndim == 2:
        raise ValueError(f"labels have shape {array.shape}: pass a multi-hot matrix [N, K] as classes_per_item=")
    return array


def _index_labels(labels: NDArray[Any], num_classes: int | None, ignore_index: int | None) -> _Index:
    """Sort the items by class, in chunks: the labels may be a memory map that is larger than the memory."""
    counts = count_labels(labels, num_classes, ignore_index=ignore_index)
    index = _Index.empty(counts, len(labels))
    free = index.starts.copy()
    for start in range(0, len(labels), CHUNK):
        part = np.asarray(labels[start : start + CHUNK])
        kept = np.arange(len(part)) if ignore_index is None else np.flatnonzero(part != ignore_index)
        keys = part[kept]
        order = _radix_argsort(keys, len(counts).bit_length())
        found = np.bincount(keys, minlength=len(counts))
        # Items of class c go to free[c], free[c] + 1, ...: a constant offset from the place in the sorted chunk.
        places = np.repeat(free - (np.cumsum(found) - found), found)
        places += np.arange(len(order))
        index.items[places] = kept[order] + start
        free += found
    return index


def _index_membership(member: Membership) -> _Index:
    index = _Index.empty(member.counts(), member.num_items)
    index.items[:] = member.items()[np.argsort(member.classes, kind="stable")]
    return index


# -------------------------------------------------------------------- the stream


@dataclass(frozen=True)
class _Stream:
    """The endless stream of draws: any stretch costs as much as its length plus one look at each class."""

    order: _Rounds | _Timeline  # which class is drawn, and how often it was drawn before
    sizes: Words  # [C], number of items of each class that is drawn
    starts: IntArray  # [C], where they begin in `items`
    keys: Words  # [C], the class's key, from the seed
    items: NDArray[Any]

    @classmethod
    def of(cls, index: _Index, rates: FloatArray, seed: int) -> _Stream:
        classes = np.flatnonzero(rates)
        first, second = np.random.SeedSequence(seed).generate_state(2)
        keys = mix(mix(classes.astype(np.uint32) * GOLDEN + first) ^ second)
        gaps = 1 / rates[classes]
        equal = np.ptp(gaps) <= 1e-9 * gaps[0]
        order = _Rounds(keys) if equal else _Timeline(keys, gaps)
        return cls(order, index.counts[classes].astype(np.uint32), index.starts[classes], keys, index.items)

    def indices(self, position: int, step: int, count: int) -> NDArray[Any]:
        """Items at `position`, position + step, ... up to the end of its block, at most `count`."""
        before, number, turn = self.order.block_at(position)
        mine = slice(position - before, position - before + step * count, step)
        number, turn = number[mine], turn[mine]
        size = self.sizes[number]
        passes = np.floor(turn / size)
        place = (turn - passes * size).astype(np.uint32)
        key = mix(self.keys[number] + passes.astype(np.int64).astype(np.uint32) * GOLDEN)
        return np.asarray(self.items[self.starts[number] + permute(place, size, key)])


@dataclass(frozen=True)
class _Rounds:
    """Equal rates: round k holds turn k of every class, in order of v."""

    keys: Words

    def block_at(self, position: int) -> tuple[int, IntArray, IntArray]:
        """Draws before the block that holds `position`; class number and turn of each draw in it."""
        classes = len(self.keys)
        rounds = max(1, _BLOCK // classes)
        block = position // (rounds * classes)
        turns = np.arange(block * rounds, (block + 1) * rounds)
        order = _argsort_rows(_hash(self.keys, turns[:, None]))
        return block * rounds * classes, order.ravel(), np.repeat(turns, classes)


@dataclass(frozen=True)
class _Timeline:
    """Any rates: turn k of class c is at time (k + v) · gap_c, and a block holds all turns in a span of time."""

    keys: Words
    gaps: FloatArray  # 1 / q_c: draws between two draws of the class

    def block_at(self, position: int) -> tuple[int, IntArray, IntArray]:
        """Draws before the block that holds `position`; class number and turn of each draw in it."""
        width = max(_BLOCK, len(self.gaps))
        block = position // width
        while (first := self._turns(block * width)).sum() > position:
            block -= 1
        while (last := self._turns((block + 1) * width)).sum() <= position:
            block, first = block + 1, last
        drawn = last - first
        number = np.repeat(np.arange(len(drawn)), drawn)
        turn = np.arange(len(number)) + np.repeat(first - (np.cumsum(drawn) - drawn), drawn)
        time = (turn + _jitter(self.keys[number], turn)) * self.gaps[number] - block * width  # in [0, 2 · width)
        order = _radix_argsort((np.maximum(time, 0) * (2.0**48 / (2 * width))).astype(np.int64), 48)
        return int(first.sum()), number[order], turn[order]

    def _turns(self, time: int) -> IntArray:
        """How often each class was drawn before `time`."""
        elapsed = time / self.gaps
        whole = np.floor(elapsed).astype(np.int64)
        return whole + (_jitter(self.keys, whole) < elapsed - whole)


def _hash(keys: Words, turns: IntArray) -> Words:
    return mix(turns.astype(np.uint32) * GOLDEN ^ keys)


def _jitter(keys: Words, turns: IntArray) -> FloatArray:
    """v in (0, 1) for each key and turn: 24 bits, so that its distance from 0 and 1 exceeds the rounding of times."""
    return ((_hash(keys, turns) >> np.uint32(8)).astype(np.float64) + 0.5) * 2.0**-24


def _argsort_rows(words: Words) -> IntArray:
    """The order of each row. Sorts hash and column packed into one number, several times faster than argsort."""
    bits = words.shape[1].bit_length()
    packed: NDArray[Any] = words
    if bits > 12:  # fewer than 20 bits of hash would be left
        packed, bits = words.astype(np.uint64) << np.uint64(32), 32
    mask = packed.dtype.type((1 << bits) - 1)
    packed = packed & ~mask | np.arange(words.shape[1], dtype=packed.dtype)
    packed.sort(axis=1)
    return np.asarray(packed & mask, dtype=np.int64)


def _radix_argsort(values: NDArray[Any], bits: int) -> IntArray:
    """The stable order of whole numbers below 2^bits: NumPy uses radix sort for 16-bit keys, in linear time."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    for shift in range(16, bits, 16):
        order = order[np.argsort((values >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def _strength_at(strength: Strength, epoch: int) -> float:
    value = strength(epoch) if callable(strength) else strength
    if not 0 <= value <= 1:
        raise ValueError(
            f"strength is {value} in epoch {epoch}: it goes from 0 (items as they are) through 0.5 (square-root) "
            "to 1 (class-balanced)"
        )
    return float(value)


def _whole_counts(rates: FloatArray, draws: int) -> IntArray:
    """Whole numbers in proportion to `rates`: for one epoch of `draws`, or for several if that rounds too much."""
    counts = np.rint(rates * draws)
    drawn = rates > 0
    if not (np.abs(counts[drawn] / counts.sum() * rates.sum() / rates[drawn] - 1) < 0.01).all():
        most = np.floor(2.0**53 / draws)  # whole numbers stay exact
        epochs = min(np.ceil(1000 / (rates[drawn].min() * draws)), most)
        counts = np.rint(rates * draws * epochs)
    return counts.astype(np.int64)
