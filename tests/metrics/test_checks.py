"""Probabilities that are passed as logits are noticed; logits are not taken for probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.arrays import are_probabilities

PRIOR = eq.Prior.from_counts([500, 50, 5])
LABELS = np.arange(60) % 3
KINDS = {
    "normal": lambda random, rows, classes: random.normal(size=(rows, classes)),
    "positive": lambda random, rows, classes: random.random((rows, classes)) * 5,
    "from 0 to 1": lambda random, rows, classes: random.random((rows, classes)),
    "after ReLU": lambda random, rows, classes: np.maximum(random.normal(size=(rows, classes)), 0),
    "small": lambda random, rows, classes: random.normal(size=(rows, classes)) * 1e-3,
    "zeros": lambda random, rows, classes: np.zeros((rows, classes)),
    "one-hot": lambda random, rows, classes: np.eye(classes)[random.integers(0, classes, rows)],
    "log-probabilities": lambda random, rows, classes: np.log(random.dirichlet(np.ones(classes), rows)),
}


def chances(dtype: Any = torch.float64) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(60, 3))).softmax(1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_softmax_outputs_passed_as_logits_are_warned_of_and_the_way_out_gives_no_warning(dtype: Any) -> None:
    given = chances(dtype)
    with pytest.warns(UserWarning, match=r"look like probabilities .* pass probabilities=True, or logits, e.g. np.log"):
        found = eq.evaluate(given, LABELS, PRIOR)
    right = eq.evaluate(given, LABELS, PRIOR, probabilities=True)
    again = eq.evaluate(given.double().log(), LABELS, PRIOR)
    assert found.top1 == right.top1 == again.top1
    assert again.ece == pytest.approx(right.ece, abs=0.01)  # half precision rounds sums
    assert found.ece != pytest.approx(right.ece, abs=0.02)


def test_the_warning_points_to_the_caller_and_holds_for_judge_arrays_and_dense_outputs() -> None:
    with pytest.warns(UserWarning, match="look like probabilities") as caught:
        eq.judge(chances().numpy(), LABELS, PRIOR)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="look like probabilities"):
        eq.evaluate(chances().reshape(3, 4, 5, 3).movedim(-1, 1), LABELS.reshape(3, 4, 5), PRIOR)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [2, 64])
@pytest.mark.parametrize("classes", [2, 3, 100])
def test_no_alarm_for_logits(kind: str, rows: int, classes: int) -> None:
    """2,000 batches of each kind; two rows with a sum of 1 by chance, to a thousandth, are one in a million at most."""
    random = np.random.default_rng([rows, classes])
    for _ in range(2000 if classes < 100 else 50):
        assert not are_probabilities(KINDS[kind](random, rows, classes))
    eq.evaluate(KINDS[kind](random, rows, classes), np.arange(rows) % classes, eq.Prior.uniform(classes))


def test_sigmoid_outputs_passed_as_logits_are_warned_of() -> None:
    random = np.random.default_rng(0)
    logits, target = random.normal(size=(60, 3)), (random.random((60, 3)) < 0.4).astype(np.int64)
    prior = eq.Prior.from_multilabel(target)
    given = 1 / (1 + np.exp(-logits))
    for outputs in (given, given.round()):  # also predicted labels: as logits, each of them would be predicted
        with pytest.warns(UserWarning, match=r"every value is from 0 to 1.*predicted labels.*probabilities=True"):
            eq.evaluate_multilabel(outputs, target, prior)
        eq.evaluate_multilabel(outputs, target, prior, probabilities=True)
    with pytest.warns(UserWarning, match="every value is from 0 to 1"):
        eq.judge_multilabel(given, target, prior)
    for fine in (logits, np.abs(logits) + given, np.zeros((60, 3)), given[:5]):
        eq.evaluate_multilabel(fine, target[: len(fine)], prior)
