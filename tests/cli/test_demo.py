"""The demonstration's data and runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data.digits import load_digits_lt
from equipoise.experiments.demo import METHODS, Settings, runs, shifted, summary, train

QUICK = Settings(iterations=2, seeds=2)


def test_the_digits_are_long_tailed_in_training_and_balanced_in_test() -> None:
    digits = load_digits_lt(imbalance=50)
    assert digits.prior.imbalance == pytest.approx(50, rel=0.05)
    assert (np.diff(digits.prior.counts) < 0).all()
    assert torch.bincount(digits.test_labels).tolist() == [30] * 10
    images = {image.numpy().tobytes() for image in digits.train_images}
    overlap = [image for image in digits.test_images if image.numpy().tobytes() in images]
    assert overlap == []


def test_a_seed_gives_the_same_run_to_the_bit_and_leaves_the_global_generator_alone() -> None:
    digits = load_digits_lt()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = train(METHODS["Softmax"](digits.prior), digits, QUICK, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert train(METHODS["Softmax"](digits.prior), digits, QUICK, seed=1) == first
    assert train(METHODS["Softmax"](digits.prior), digits, QUICK, seed=2) != first


def test_every_method_runs_with_every_seed() -> None:
    results: dict[str, list[eq.Judged]] = {}
    for method, _, judged in runs(QUICK, load_digits_lt()):
        results.setdefault(method, []).append(judged)
    assert {method: len(e) for method, e in results.items()} == dict.fromkeys(METHODS, 2)
    assert [row[0] for row in summary(results)] == list(METHODS)


def test_shifting_moves_by_at_most_a_pixel() -> None:
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 4, 4] = 1
    found = set()
    for seed in range(60):
        moved = shifted(image, torch.Generator().manual_seed(seed))
        assert moved.shape == image.shape
        assert moved.sum() == 1
        found.add(tuple((moved[0, 0] == 1).nonzero()[0].tolist()))
    assert found == {(y, x) for y in (3, 4, 5) for x in (3, 4, 5)}
    corner = torch.zeros(1, 1, 8, 8)
    corner[0, 0, 0, 0] = 1
    assert {shifted(corner, torch.Generator().manual_seed(s)).sum().item() for s in range(60)} == {0.0, 1.0}
