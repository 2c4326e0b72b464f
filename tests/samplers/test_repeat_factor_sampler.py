"""RepeatFactorSampler: the factors and the epoch against plain loops, and what ranks, epochs and states promise."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.prior import Prior
from equipoise.samplers import repeat_factor as module
from equipoise.samplers.repeat_factor import RepeatFactorSampler

IMAGES = [[0]] * 96 + [[0, 1], [0, 1, 1], [2], []]


def reference_factors(images: list[list[int]], threshold: float) -> list[float]:
    """The definition, in plain loops."""
    holding: Counter[int] = Counter()
    for classes in images:
        for c in set(classes):
            holding[c] += 1
    class_factor = {c: max(1.0, math.sqrt(threshold * len(images) / count)) for c, count in holding.items()}
    return [max((class_factor[c] for c in classes), default=1.0) for classes in images]


def reference_epoch(factors: list[float], seed: int, epoch: int) -> list[int]:
    random = np.random.default_rng([seed, epoch])
    rounding = random.random(len(factors))
    indices = []
    for item, factor in enumerate(factors):
        whole = int(factor)
        times = whole + 1 if rounding[item] < factor - whole else whole
        indices.extend([item] * times)
    random.shuffle(shuffled := np.array(indices))
    return shuffled.tolist()


images_strategy = st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=40).filter(any)


@pytest.mark.filterwarnings("ignore:every list has . zeros and ones")  # as it may happen to have
@settings(max_examples=100, deadline=None)
@given(images=images_strategy, threshold=st.floats(1e-4, 1), seed=st.integers(0, 2**40), epoch=st.integers(0, 3))
def test_factors_and_epoch_are_identical_to_the_plain_loop(images, threshold, seed, epoch):
    sampler = RepeatFactorSampler(images, threshold=threshold, seed=seed)
    sampler.set_epoch(epoch)
    factors = reference_factors(images, threshold)
    assert sampler.repeat_factors.tolist() == factors
    expected = reference_epoch(factors, seed, epoch)
    assert len(sampler) == len(expected)
    assert list(sampler) == expected


def test_an_item_comes_as_often_as_its_factor_on_average():
    sampler = RepeatFactorSampler(IMAGES, threshold=0.05)
    expected = sampler.repeat_factors[[0, 96, 98, 99]]
    assert expected == pytest.approx([1, math.sqrt(0.05 / 0.02), math.sqrt(0.05 / 0.01), 1])
    times: Counter[int] = Counter()
    for _ in range(2000):
        times.update(sampler)
    found = np.array([times[i] for i in (0, 96, 98, 99)]) / 2000
    assert np.abs(found - expected).max() < 4 * 0.5 / 2000**0.5


def test_a_class_named_twice_in_an_item_counts_once():
    once = RepeatFactorSampler([[0], [1], [0, 1]], threshold=1)
    twice = RepeatFactorSampler([[0, 0], [1], [1, 0, 1]], threshold=1)
    assert once.repeat_factors.tolist() == twice.repeat_factors.tolist()


def test_the_ways_to_say_classes_per_item_agree():
    images = [[0], [1, 2], [], [0]]
    hot = torch.tensor([[c in classes for c in range(3)] for classes in images])
    pair = (torch.tensor([0, 1, 3, 3, 4]), torch.tensor([0, 1, 2, 0]))
    expected = list(RepeatFactorSampler(images, threshold=0.9))
    assert list(RepeatFactorSampler(hot, threshold=0.9)) == expected
    assert list(RepeatFactorSampler(pair, threshold=0.9)) == expected


@pytest.mark.parametrize("num_replicas", [2, 3, 7])
def test_ranks_agree_on_the_length_and_together_give_the_single_stream(num_replicas):
    for epoch in range(5):
        single = RepeatFactorSampler(IMAGES, threshold=0.05)
        ranks = [
            RepeatFactorSampler(IMAGES, threshold=0.05, num_replicas=num_replicas, rank=rank)
            for rank in range(num_replicas)
        ]
        for sampler in (single, *ranks):
            sampler.set_epoch(epoch)
        whole = list(single)
        drawn = [list(rank) for rank in ranks]
        assert {len(rank) for rank in ranks} == {len(indices) for indices in drawn} == {-(-len(whole) // num_replicas)}
        together = [index for turn in zip(*drawn, strict=True) for index in turn]
        assert together == (whole + whole)[: len(together)]


def test_more_ranks_than_items_still_give_every_rank_an_index():
    ranks = [RepeatFactorSampler([[0], [1]], threshold=0.1, num_replicas=5, rank=rank) for rank in range(5)]
    assert [len(list(rank)) for rank in ranks] == [1] * 5


@pytest.mark.parametrize("stop", [0, 1, 50, 101])
def test_resumes_in_the_middle_of_an_epoch_to_the_same_next_index(stop, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 16)
    sampler = RepeatFactorSampler(IMAGES, threshold=0.05, seed=9)
    sampler.set_epoch(3)
    iterator = iter(sampler)
    assert len(list(islice(iterator, stop))) == stop
    resumed = RepeatFactorSampler(IMAGES, threshold=0.05)
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(3)
    assert list(resumed) == list(iterator)
    assert list(resumed) == list(sampler)  # both go on to epoch 4


def test_epochs_differ_in_order_and_in_rounding():
    sampler = RepeatFactorSampler(IMAGES, threshold=0.05)
    epochs = [list(sampler) for _ in range(20)]
    assert len({tuple(epoch) for epoch in epochs}) == 20
    assert len({len(epoch) for epoch in epochs}) > 1


def test_preview_gives_the_expected_prior_and_says_that_a_balanced_loss_would_over_balance():
    sampler = RepeatFactorSampler(IMAGES, threshold=0.08, num_classes=5)
    with pytest.warns(UserWarning, match=r"imbalance from 98 to 33\.\d+: a balanced loss"):
        drawn = sampler.preview()
    # factors: 1 for 97 items, 2 for the two that hold class 1, sqrt(8) for the one with class 2
    assert drawn == Prior.from_counts([100, 4, 3, 0, 0], total=104)


def test_preview_says_when_the_threshold_is_too_small_to_change_anything():
    sampler = RepeatFactorSampler(IMAGES, threshold=0.01)
    with pytest.warns(UserWarning, match=r"threshold=0.01 changes nothing: the rarest class is in 0.01 of the items"):
        drawn = sampler.preview()
    assert drawn == Prior.from_counts([98, 2, 1], total=100)


@pytest.mark.parametrize("threshold", [0, -0.1, 1.5, float("nan")])
def test_a_threshold_outside_0_to_1_is_refused(threshold):
    with pytest.raises(ValueError, match=f"threshold is {threshold}: expected a fraction of the items"):
        RepeatFactorSampler(IMAGES, threshold=threshold)


def test_one_class_an_item_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"holds 0 where a list of classes is expected: give one list per item"):
        RepeatFactorSampler([0, 1, 1], threshold=0.1)
