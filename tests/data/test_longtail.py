"""The seeded long-tailed draw."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from equipoise import long_tailed_indices
from equipoise.data.longtail import long_tailed_counts


@pytest.mark.parametrize(
    ("n_max", "num_classes", "imbalance", "total", "ends"),
    [
        (5000, 10, 200, 11203, (5000, 25)),
        (5000, 10, 100, 12406, (5000, 50)),
        (5000, 10, 10, 20431, (5000, 500)),
        (500, 100, 200, 9502, (500, 2)),
        (500, 100, 100, 10847, (500, 5)),
        (500, 100, 50, 12608, (500, 10)),
        (500, 100, 10, 19573, (500, 50)),
    ],
)
def test_counts_are_the_published_ones(
    n_max: int, num_classes: int, imbalance: int, total: int, ends: tuple[int, int]
) -> None:
    counts = long_tailed_counts(n_max, num_classes, imbalance)
    assert (sum(counts), (counts[0], counts[-1])) == (total, ends)


def test_the_draw_is_this_one_for_ever() -> None:
    """Records are compared by the hash of the draw: a change here makes every published number another's."""
    labels = np.arange(60) * 7 % 3
    picked = long_tailed_indices(labels, 10)
    assert picked.dtype == np.int64
    assert hashlib.sha256(picked.astype("<i8").tobytes()).hexdigest()[:16] == "2ae6d8883414ec4c"


def test_it_follows_the_published_procedure() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 400)
    labels[:4] = [0, 1, 2, 3]
    random, expected = np.random.RandomState(3), []
    largest = max(np.bincount(labels))
    for j in range(4):
        index = np.where(labels == j)[0]
        random.shuffle(index)
        expected += index[: int(largest * (1 / 20) ** (j / 3))].tolist()
    assert long_tailed_indices(labels, 20, seed=3).tolist() == expected
    assert long_tailed_indices(torch.from_numpy(labels), 20, seed=3).tolist() == expected


def test_a_larger_imbalance_draws_a_subset() -> None:
    labels = np.repeat(np.arange(10), 200)
    draws = [set(long_tailed_indices(labels, imbalance).tolist()) for imbalance in (10, 50, 200)]
    assert draws[2] < draws[1] < draws[0]


def test_it_leaves_the_global_generators_alone() -> None:
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    long_tailed_indices([0, 1] * 10, 2)
    assert np.random.rand() == expected


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"imbalance is 0\.01.*100, not 0\.01"):
        long_tailed_indices([0, 1], 0.01)
    with pytest.raises(ValueError, match="one class index per item"):
        long_tailed_indices([0.5, 1.0], 10)
