"""ClassBalancedSampler: what is drawn, how often, in which order, and that it can be stopped and taken up anywhere."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch.utils.data import DataLoader, TensorDataset

from equipoise.prior import Prior
from equipoise.samplers import class_balanced as module
from equipoise.samplers.class_balanced import ClassBalancedSampler, progressive
from equipoise.samplers.permutation import permute

LABELS = np.repeat([0, 1, 3, 4], [50, 20, 7, 3])  # class 2 has no items
MULTI = [[0], [0, 1], [0], [2, 0, 2], [], [1], [0]]


def long_tail(num_items: int, num_classes: int, seed: int = 0) -> np.ndarray:
    weights = np.exp(-np.arange(num_classes) * np.log(100) / (num_classes - 1))
    return np.random.default_rng(seed).choice(num_classes, num_items, p=weights / weights.sum())


# -------------------------------------------------------------------- the permutations


@pytest.mark.parametrize("size", [*range(1, 40), 255, 256, 257, 4095, 65537, 1 << 18])
def test_permute_is_a_permutation_for_every_size(size):
    values = permute(np.arange(size, dtype=np.uint32), np.full(size, size, np.uint32), np.full(size, 7, np.uint32))
    assert np.array_equal(np.sort(values), np.arange(size))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_order_of_a_small_class_occurs_and_every_item_is_as_likely_at_each_position(size):
    keys = np.random.default_rng(0).integers(0, 1 << 32, 48_000, dtype=np.uint32)
    columns = [permute(np.full_like(keys, p), np.full_like(keys, size), keys) for p in range(size)]
    assert len(set(zip(*(column.tolist() for column in columns), strict=True))) == math.factorial(size)
    expected = len(keys) / size
    for column in columns:
        chi_square = ((np.bincount(column, minlength=size) - expected) ** 2 / expected).sum()
        assert chi_square < size - 1 + 5 * (2 * (size - 1)) ** 0.5


def test_neighbours_in_a_large_permutation_are_unrelated():
    size = 100_003
    values = permute(np.arange(size, dtype=np.uint32), np.full(size, size, np.uint32), np.full(size, 3, np.uint32))
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / size**0.5
    assert abs(np.corrcoef(np.arange(size), values)[0, 1]) < 5 / size**0.5
    steps = np.diff(values.astype(np.int64)) % size
    assert Counter(steps.tolist()).most_common(1)[0][1] < 12  # an affine map would have one step only


# -------------------------------------------------------------------- what is drawn


def test_every_run_of_classes_is_a_fresh_permutation_of_those_with_items():
    drawn = LABELS[list(ClassBalancedSampler(LABELS, num_samples=4 * 500))].reshape(500, 4)
    assert np.array_equal(np.sort(drawn, axis=1), np.tile([0, 1, 3, 4], (500, 1)))
    found = Counter(map(tuple, drawn.tolist()))
    assert len(found) == 24
    assert max(found.values()) < 3 * 500 / 24


@pytest.mark.parametrize("num_classes", [3, 5000])  # narrow and wide sorting keys
def test_rounds_are_permutations_for_few_and_for_many_classes(num_classes):
    labels = np.arange(20 * num_classes) % num_classes
    drawn = labels[list(ClassBalancedSampler(labels))].reshape(20, num_classes)
    assert np.array_equal(np.sort(drawn, axis=1), np.tile(np.arange(num_classes), (20, 1)))
    assert len({tuple(row) for row in drawn.tolist()}) >= 5


def test_items_of_a_class_come_without_replacement_and_are_reshuffled_when_exhausted():
    indices = np.asarray(list(ClassBalancedSampler(LABELS, num_samples=4 * 60)))
    of_class = indices[LABELS[indices] == 1]
    assert len(of_class) == 60
    passes = of_class.reshape(3, 20)
    assert np.array_equal(np.sort(passes, axis=1), np.tile(np.flatnonzero(LABELS == 1), (3, 1)))
    assert not np.array_equal(passes[0], passes[1])


def test_a_large_class_is_exhausted_over_the_epochs_before_an_item_comes_again():
    sampler = ClassBalancedSampler(LABELS, num_samples=20)  # 5 of class 0 an epoch: 10 epochs for its 50 items
    seen = []
    for epoch in range(10):
        sampler.set_epoch(epoch)
        seen += [index for index in sampler if LABELS[index] == 0]
    assert sorted(seen) == np.flatnonzero(LABELS == 0).tolist()


def test_strength_zero_gives_every_item_exactly_once_an_epoch():
    sampler = ClassBalancedSampler(long_tail(5000, 30), strength=0.0)
    for epoch in (0, 1, 7):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert sorted(indices) == list(range(5000))
        assert indices != sorted(indices)


@pytest.mark.parametrize("strength", [0.25, 0.5, 0.9])
def test_strength_draws_classes_by_a_power_of_their_counts(strength):
    labels = long_tail(20_000, 20)
    counts = np.bincount(labels)
    sampler = ClassBalancedSampler(labels, strength=strength)
    drawn = np.bincount(labels[list(sampler)])
    expected = counts ** (1 - strength) / (counts ** (1 - strength)).sum() * 20_000
    assert np.abs(drawn - expected).max() <= 2  # not only on average: each class keeps its rate
    assert np.array_equal(sampler.prior.counts, np.rint(expected))


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_every_class_keeps_its_rate_over_any_stretch(strength):
    labels = long_tail(20_000, 20)
    sampler = ClassBalancedSampler(labels, strength=strength)
    rates = sampler.prior.probabilities
    drawn = labels[list(sampler)]
    for start, stop in pairwise(range(0, 20_001, 2500)):
        expected = rates * (stop - start)
        assert np.abs(np.bincount(drawn[start:stop], minlength=20) - expected).max() < 4


def test_the_middle_of_an_epoch_is_as_even_as_its_ends_across_blocks():
    labels = long_tail(200_000, 50)  # several blocks
    drawn = labels[list(ClassBalancedSampler(labels, strength=0.5))]
    halves = [np.bincount(half, minlength=50) for half in np.split(drawn, 2)]
    assert np.abs(halves[0] - halves[1]).max() <= 3


def test_target_is_the_prior_that_is_drawn():
    labels = long_tail(10_000, 3)
    sampler = ClassBalancedSampler(labels, target=Prior.from_probabilities([0.1, 0.2, 0.7]))
    assert np.abs(np.bincount(labels[list(sampler)]) - [1000, 2000, 7000]).max() <= 2
    assert sampler.prior.counts.tolist() == [1000, 2000, 7000]


def test_a_class_that_the_target_excludes_is_never_drawn():
    sampler = ClassBalancedSampler([0, 1, 1, 2], target=[0.5, 0.5, 0.0], num_samples=1000)
    assert 3 not in set(sampler)


def test_progressive_strength_follows_the_epoch():
    labels = long_tail(3000, 10)
    sampler = ClassBalancedSampler(labels, strength=progressive(epochs=5))
    imbalances = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        drawn = np.bincount(labels[list(sampler)])
        assert np.abs(drawn - sampler.prior.counts).max() <= 2
        imbalances.append(sampler.prior.imbalance)
    assert imbalances[0] == Prior.from_labels(labels).imbalance
    assert imbalances[4:] == [1.0, 1.0]
    assert all(after < before for before, after in pairwise(imbalances[:5]))


def test_multi_label_items_are_drawn_through_a_class_they_hold():
    sampler = ClassBalancedSampler(classes_per_item=MULTI, num_samples=3000)
    drawn = Counter(sampler)
    assert 4 not in drawn  # it holds no class
    held = np.zeros(3)
    for index, times in drawn.items():
        held[sorted(set(MULTI[index]))] += times
    assert np.abs(sampler.prior.counts - held).max() <= 3
    assert sampler.prior.total == 3000


@pytest.mark.parametrize("form", ["lists", "pair", "tensors", "multi-hot", "bool tensor"])
def test_the_ways_to_say_classes_per_item_agree(form):
    hot = np.array([[c in classes for c in range(3)] for classes in MULTI])
    flat = [c for classes in MULTI for c in sorted(set(classes))]
    offsets = np.cumsum([0] + [len(set(classes)) for classes in MULTI])
    forms = {
        "lists": MULTI,
        "pair": (offsets, np.array(flat, np.int32)),
        "tensors": (torch.tensor(offsets), torch.tensor(flat)),
        "multi-hot": hot.astype(np.float32),
        "bool tensor": torch.from_numpy(hot),
    }
    given_form = ClassBalancedSampler(classes_per_item=forms[form], num_samples=50)
    assert list(given_form) == list(ClassBalancedSampler(classes_per_item=MULTI, num_samples=50))


def test_lists_that_look_like_a_multi_hot_matrix_are_noticed():
    hot = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    with pytest.warns(UserWarning, match="every list has 3 zeros and ones.*pass an array"):
        ClassBalancedSampler(classes_per_item=hot)
    assert ClassBalancedSampler(classes_per_item=np.asarray(hot)).prior.num_classes == 3
    ClassBalancedSampler(classes_per_item=[[0, 1], [1, 0]])  # may well be pairs of classes


def test_labels_may_be_a_list_a_tensor_a_small_integer_array_or_a_memory_map(tmp_path):
    expected = list(ClassBalancedSampler(LABELS))
    on_disk = np.memmap(tmp_path / "labels.bin", np.int16, "w+", shape=LABELS.shape)
    on_disk[:] = LABELS
    for labels in (LABELS.tolist(), torch.from_numpy(LABELS), LABELS.astype(np.uint8), on_disk):
        assert list(ClassBalancedSampler(labels)) == expected


def test_labels_larger_than_a_chunk_are_grouped_as_smaller_ones(monkeypatch):
    labels = long_tail(1000, 7)
    expected = list(ClassBalancedSampler(labels))
    monkeypatch.setattr(module, "CHUNK", 64)
    assert list(ClassBalancedSampler(labels)) == expected


def test_more_classes_than_a_sorting_key_holds_are_grouped_right():
    labels = np.random.default_rng(0).integers(0, 200_000, 300_000)
    index = ClassBalancedSampler(labels)._index
    assert np.array_equal(index.items, np.argsort(labels, kind="stable"))


def test_ignored_items_are_never_drawn():
    labels = np.where(np.arange(80) % 3 == 0, -1, LABELS)
    drawn = list(ClassBalancedSampler(labels, ignore_index=-1, num_samples=1000))
    assert set(labels[drawn].tolist()) == {0, 1, 3, 4}


def test_indices_are_plain_ints():
    assert {type(index) for index in ClassBalancedSampler(LABELS)} == {int}


# -------------------------------------------------------------------- seeds and epochs


def test_a_seed_gives_the_same_epoch_again_and_another_seed_or_epoch_another():
    first = list(ClassBalancedSampler(LABELS, seed=3))
    assert first == list(ClassBalancedSampler(LABELS, seed=3))
    assert first != list(ClassBalancedSampler(LABELS, seed=4))
    later = ClassBalancedSampler(LABELS, seed=3)
    later.set_epoch(1)
    assert first != list(later)


def test_an_epoch_that_ran_to_its_end_is_followed_by_the_next():
    sampler, chosen = ClassBalancedSampler(LABELS), ClassBalancedSampler(LABELS)
    for epoch in range(3):
        chosen.set_epoch(epoch)
        assert list(sampler) == list(chosen)


def test_a_look_at_the_first_indices_does_not_use_up_the_epoch():
    sampler = ClassBalancedSampler(LABELS)
    assert list(islice(sampler, 5)) == list(sampler)[:5]


def test_a_look_at_the_first_indices_does_not_lose_a_loaded_position():
    sampler = ClassBalancedSampler(LABELS)
    whole = list(sampler)
    sampler.load_state_dict({"epoch": 0, "position": 30, "seed": 0, "items": 80})
    assert list(islice(sampler, 5)) == whole[30:35]
    assert list(sampler) == whole[30:]


def test_set_epoch_again_repeats_a_finished_epoch():
    sampler = ClassBalancedSampler(LABELS)
    sampler.set_epoch(2)
    first = list(sampler)
    sampler.set_epoch(2)
    assert list(sampler) == first


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_blocks_join_without_a_seam(strength, monkeypatch):
    labels = long_tail(4000, 9)
    whole = list(ClassBalancedSampler(labels, strength=strength))
    monkeypatch.setattr(module, "_BLOCK", 100)
    small = list(ClassBalancedSampler(labels, strength=strength))
    assert np.array_equal(np.sort(whole), np.sort(small)) or strength == 0.5
    assert np.mean(np.equal(whole, small)) > 0.99  # only ties in time may fall otherwise


# -------------------------------------------------------------------- ranks


@settings(max_examples=40, deadline=None)
@given(
    num_items=st.integers(1, 200),
    num_replicas=st.integers(1, 5),
    strength=st.sampled_from([0.0, 0.5, 1.0]),
    epoch=st.integers(0, 3),
)
def test_ranks_have_equal_length_and_together_give_the_single_stream(num_items, num_replicas, strength, epoch):
    labels = long_tail(num_items, 6)
    single = ClassBalancedSampler(labels, strength=strength, num_samples=num_items + num_replicas)
    ranks = [
        ClassBalancedSampler(labels, strength=strength, num_samples=num_items, num_replicas=num_replicas, rank=rank)
        for rank in range(num_replicas)
    ]
    for rank in ranks:
        rank.set_epoch(epoch)
    drawn = [list(rank) for rank in ranks]
    assert {len(indices) for indices in drawn} == {len(ranks[0])} == {-(-num_items // num_replicas)}
    together = [index for turn in zip(*drawn, strict=True) for index in turn]
    stream = module._Stream.of(single._index, single._rates(epoch), 0)
    expected, position = [], epoch * num_items
    while len(expected) < len(together):
        block = stream.indices(position, 1, len(together) - len(expected)).tolist()
        expected, position = expected + block, position + len(block)
    assert together == expected


# -------------------------------------------------------------------- resuming


@pytest.mark.parametrize("strength", [0.5, 1.0])
@pytest.mark.parametrize("stop", [0, 1, 37, 79, 80])
def test_resumes_in_the_middle_of_an_epoch_to_the_same_next_index(strength, stop):
    sampler = ClassBalancedSampler(LABELS, strength=strength, seed=5)
    sampler.set_epoch(4)
    iterator = iter(sampler)
    for _ in range(stop):
        next(iterator)
    state = sampler.state_dict()
    resumed = ClassBalancedSampler(LABELS, strength=strength)
    resumed.load_state_dict(state)
    resumed.set_epoch(4)  # what a training loop does anyway: it keeps the position
    assert list(resumed) == list(iterator)
    assert list(resumed) == list(sampler)  # both go on to epoch 5


def test_state_counts_what_was_given_out_across_blocks(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 8)
    sampler = ClassBalancedSampler(LABELS)
    iterator = iter(sampler)
    for given_out in range(1, 60):
        next(iterator)
        assert sampler.state_dict()["position"] == given_out


def test_state_is_plain_and_survives_json():
    sampler = ClassBalancedSampler(LABELS)
    next(iter(sampler))
    assert json.loads(json.dumps(sampler.state_dict())) == {
        "epoch": 0,
        "position": 1,
        "seed": 0,
        "items": 80,
        "draws": 80,
    }


def test_another_epoch_forgets_a_loaded_position():
    sampler = ClassBalancedSampler(LABELS)
    sampler.load_state_dict({"epoch": 1, "position": 30, "seed": 0, "items": 80})
    sampler.set_epoch(2)
    fresh = ClassBalancedSampler(LABELS)
    fresh.set_epoch(2)
    assert list(sampler) == list(fresh)


def test_a_state_may_be_loaded_under_another_number_of_ranks():
    def ranks(count):
        return [ClassBalancedSampler(LABELS, num_samples=24, num_replicas=count, rank=rank) for rank in range(count)]

    whole = list(ClassBalancedSampler(LABELS, num_samples=24))
    before = ranks(4)
    iterators = [iter(sampler) for sampler in before]
    given_out = [next(iterator) for _ in range(3) for iterator in iterators]
    states = [sampler.state_dict() for sampler in before]
    assert states[1:] == states[:-1]
    after = ranks(3)
    for sampler in after:
        sampler.load_state_dict(states[0])
    rest = [index for turn in zip(*after, strict=True) for index in turn]
    assert given_out + rest == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_after_the_batches_that_a_loader_with_workers_returned(workers):
    data = TensorDataset(torch.arange(80))
    sampler = ClassBalancedSampler(LABELS)

    def loader(sampler):
        return DataLoader(
            data, batch_size=4, sampler=sampler, num_workers=workers, prefetch_factor=3 if workers else None
        )

    expected = [batch.tolist() for (batch,) in loader(sampler)]
    sampler.set_epoch(0)
    batches = iter(loader(sampler))
    for _ in range(7):
        next(batches)
    state = sampler.state_dict(consumed=7 * 4)
    if workers:  # the loader has asked ahead: without `consumed` the state would skip batches
        assert sampler.state_dict()["position"] > 7 * 4
    del batches
    resumed = ClassBalancedSampler(LABELS)
    resumed.load_state_dict(state)
    assert [batch.tolist() for (batch,) in loader(resumed)] == expected[7:]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 under torch 2.15
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [7, 20])
def test_a_stateful_data_loader_resumes_to_the_next_batch(workers, stop):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    data = TensorDataset(torch.arange(80))

    def loader():
        return stateful.StatefulDataLoader(
            data, batch_size=4, sampler=ClassBalancedSampler(LABELS), num_workers=workers
        )

    whole = loader()
    epochs = [[batch.tolist() for (batch,) in whole] for _ in range(2)]
    stopped = loader()
    for _ in islice(stopped, stop):
        pass
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    rest = [batch.tolist() for (batch,) in resumed]
    assert rest == epochs[0][stop:]
    assert [batch.tolist() for (batch,) in resumed] == epochs[1]


def test_a_state_of_other_data_is_refused():
    with pytest.raises(ValueError, match=r"state is of 81 items, this sampler has 80"):
        ClassBalancedSampler(LABELS).load_state_dict({"epoch": 0, "position": 0, "seed": 0, "items": 81})
    with pytest.raises(ValueError, match=r"not the state of a sampler: \['yielded'\] lacks"):
        ClassBalancedSampler(LABELS).load_state_dict({"yielded": 3})


def test_more_consumed_than_given_out_is_refused():
    sampler = ClassBalancedSampler(LABELS)
    next(iter(sampler))
    with pytest.raises(ValueError, match="consumed is 2, but this iteration has given out 1"):
        sampler.state_dict(consumed=2)


# -------------------------------------------------------------------- preview


def test_preview_of_class_balance_is_exactly_uniform_and_says_that_a_balanced_loss_would_over_balance():
    sampler = ClassBalancedSampler(LABELS, num_samples=81, num_classes=7)
    with pytest.warns(UserWarning, match=r"imbalance from 16\.67 to 1: a balanced loss .* would over-balance"):
        drawn = sampler.preview()
    assert drawn.counts.tolist() == [20, 20, 0, 20, 20, 0, 0]
    assert drawn == sampler.prior


def test_preview_promises_no_less_imbalance_than_there_is():
    sampler = ClassBalancedSampler(classes_per_item=[[0], [0, 1], [], [2]])
    with pytest.warns(UserWarning, match="in other shares than they have in the data: build a balanced loss from"):
        sampler.preview()


def test_the_prior_of_a_class_that_is_hardly_ever_drawn_is_of_whole_numbers():
    drawn = ClassBalancedSampler([0, 1, 2], target=[1e-18, 0.5, 0.5]).prior
    assert drawn.counts[0] == 0
    assert drawn.counts[1] == drawn.counts[2] > 10**15


def test_a_state_that_is_refused_changes_nothing():
    sampler = ClassBalancedSampler(LABELS, seed=3)
    sampler.set_epoch(2)
    with pytest.raises(ValueError, match="at draw 0 of 71 per epoch, this sampler has 80"):
        sampler.load_state_dict({"epoch": 5, "position": 0, "seed": 9, "items": 80, "draws": 71})
    assert (sampler.epoch, sampler.seed) == (2, 3)


def test_preview_says_when_the_sampler_changes_nothing():
    with pytest.warns(UserWarning, match=r"changes nothing \(strength is 0\)"):
        assert ClassBalancedSampler(LABELS, strength=0).preview() == Prior.from_labels(LABELS)
    with pytest.warns(UserWarning, match="changes nothing"):
        ClassBalancedSampler([0, 1, 2] * 5).preview()


def test_the_prior_itself_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ClassBalancedSampler(LABELS).prior.imbalance == 1


# -------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either labels"),
        ({"labels": [0, 1], "classes_per_item": [[0]]}, "and not both"),
        ({"labels": []}, "no labels to count"),
        ({"labels": [[0, 1], [1, 0]]}, r"shape \(2, 2\): pass a multi-hot matrix .* as classes_per_item="),
        ({"labels": [0, -1]}, "label -1 is negative: pass ignore_index=-1"),
        ({"labels": [0, 5], "num_classes": 3}, "label 5 is out of range for num_classes=3"),
        ({"labels": [0, 1], "num_samples": 0}, "num_samples is 0"),
        ({"labels": [0, 1], "strength": 1.5}, "strength is 1.5 in epoch 0"),
        ({"labels": [0, 1], "strength": float("nan")}, "strength is nan"),
        ({"labels": [0, 1], "seed": -1}, "seed is -1"),
        ({"labels": [0, 1], "num_replicas": 2}, "rank is not given and there is no process group"),
        ({"labels": [0, 1], "num_replicas": 2, "rank": 2}, "rank is 2 of num_replicas=2"),
        ({"labels": [0, 1], "target": [0.2, 0.3, 0.5]}, "target has 3 classes, the items have 2"),
        ({"labels": [0, 0, 2], "target": [0, 1.0, 0]}, "nothing to draw"),
        ({"classes_per_item": [[], []]}, "none of the 2 items has a class"),
        ({"classes_per_item": []}, "classes_per_item is empty"),
        ({"classes_per_item": [[0, -3]]}, "class -3 is out of range"),
        ({"classes_per_item": np.array([[0, 2]])}, r"classes_per_item\[0, 1\] is 2"),
        ({"classes_per_item": (np.array([0, 3]), np.array([1, 2]))}, "offsets run from 0 to 3 for 2 classes"),
        ({"classes_per_item": [[0]], "ignore_index": -1}, "ignore_index=-1 goes with labels"),
    ],
)
def test_bad_input_is_refused_with_the_value_and_the_way_out(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClassBalancedSampler(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ["cat", "owl"]}, "labels are not integers"),
        ({"labels": [0.5, 1.0]}, "labels are float64"),
        ({"classes_per_item": [0, 1, 1]}, "holds 0 where a list of classes is expected"),
        ({"classes_per_item": [["cat"]]}, "classes are <U3"),
    ],
)
def test_input_of_the_wrong_type_is_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        ClassBalancedSampler(**arguments)


def test_a_prior_or_a_data_set_in_place_of_labels_is_refused() -> None:
    data = TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]))
    for wrong in (Prior.uniform(2), data):
        with pytest.raises(TypeError, match="pass one class index per item"):
            ClassBalancedSampler(wrong)  # type: ignore[arg-type]


def test_a_sampler_says_what_it_is() -> None:
    sampler = ClassBalancedSampler([0, 0, 1], num_samples=8, seed=3, num_replicas=2, rank=1)
    assert repr(sampler) == "ClassBalancedSampler(3 items, 8 draws per epoch, seed 3, rank 1 of 2)"


def test_the_prior_is_right_where_an_epoch_is_short_or_a_class_very_rare():
    short = ClassBalancedSampler([0] * 990 + [1] * 10, strength=0, num_samples=10)
    assert short.prior.probabilities == pytest.approx([0.99, 0.01], rel=0.01)
    with pytest.warns(UserWarning, match="changes nothing"):
        short.preview()
    rare = ClassBalancedSampler([0] * 50 + [1] * 50, target=Prior.from_probabilities([0.999, 0.001]))
    assert rare.prior.probabilities == pytest.approx([0.999, 0.001], rel=0.01)


def test_ignored_items_do_not_lengthen_the_epoch():
    sampler = ClassBalancedSampler([0, 0, 0, 1, -1, -1, -1], strength=0, ignore_index=-1)
    assert sorted(sampler) == [0, 1, 2, 3]


def test_a_progressive_sampler_can_be_pickled():
    sampler = ClassBalancedSampler(LABELS, strength=progressive(3))
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_a_state_of_another_epoch_length_is_refused():
    state = ClassBalancedSampler(LABELS, num_samples=1000).state_dict()
    with pytest.raises(ValueError, match="at draw 0 of 1000 per epoch, this sampler has 100"):
        ClassBalancedSampler(LABELS, num_samples=100).load_state_dict(state)
    with pytest.raises(ValueError, match="at draw -5"):
        ClassBalancedSampler(LABELS).load_state_dict({"epoch": 0, "position": -5, "seed": 0, "items": 80})


def test_scipy_rows_say_classes_per_item():
    rows = csr_array(np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]]))
    lists = [[0, 2], [], [1]]
    assert list(ClassBalancedSampler(classes_per_item=rows)) == list(ClassBalancedSampler(classes_per_item=lists))


def test_the_labels_of_a_data_set_are_found():
    dataset = TensorDataset(torch.zeros(9), torch.tensor([0] * 6 + [1] * 2 + [2]))
    found = ClassBalancedSampler.from_dataset(dataset, num_samples=6, seed=3)
    assert list(found) == list(ClassBalancedSampler([0] * 6 + [1] * 2 + [2], num_samples=6, seed=3))
