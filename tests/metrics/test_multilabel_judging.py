"""What a report shows of several labels per item: counted as by hand, additive, and only what is sure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.metrics import multilabel_judging
from equipoise.metrics.intervals import wilson_interval
from equipoise.metrics.multilabel_judging import LOG_ODDS

PRIOR = eq.Prior.from_counts([500, 50, 5], total=1000)


def case(seed: int = 0, items: int = 200) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    target = (random.random((items, 3)) < [0.6, 0.4, 0.2]).astype(np.int64)
    logits = random.normal(size=(items, 3)) + 3 * target - 1.5
    logits[:, 1] -= 4 * target[:, 1] * target[:, 0]  # the second is missed where the first is present
    return logits, target


@pytest.mark.parametrize("probabilities", [False, True])
def test_f1_at_each_threshold_is_that_of_an_evaluation_there(probabilities: bool) -> None:
    logits, target = case()
    outputs = 1 / (1 + np.exp(-logits)) if probabilities else logits
    found = eq.judge_multilabel(outputs, target, PRIOR, probabilities=probabilities).f1_at()
    assert found.shape == (3, len(LOG_ODDS))
    for place in (0, 13, 20, 25, 40):
        threshold = 1 / (1 + np.exp(-LOG_ODDS[place]))
        there = eq.evaluate_multilabel(outputs, target, PRIOR, probabilities=probabilities, threshold=threshold)
        assert found[:, place].tolist() == [row.f1 for row in there.per_class]


def test_a_class_is_missed_where_the_other_is_present() -> None:
    logits, target = case()
    pairs = eq.judge_multilabel(logits, target, PRIOR).misses()
    first = pairs[0]
    both = (target[:, 1] == 1) & (target[:, 0] == 1)
    alone = (target[:, 1] == 1) & (target[:, 0] == 0)
    assert (first.index, first.other) == (1, 0)
    assert (first.items, first.times) == (both.sum(), (logits[both, 1] < 0).sum())
    assert (first.low, first.high) == pytest.approx(wilson_interval(first.times, first.items))
    assert first.elsewhere == (logits[alone, 1] < 0).mean()
    assert all(pair.low > pair.elsewhere for pair in pairs)


def test_what_chance_explains_is_not_shown_however_many_pairs_there_are() -> None:
    for classes, items in ((3, 60), (80, 400)):  # of 6,320 pairs, 21 lie apart at 95 % each
        random = np.random.default_rng(0)
        target = (random.random((items, classes)) < 0.3).astype(np.int64)
        prior = eq.Prior.from_counts([50] * classes, total=1000)
        assert eq.judge_multilabel(random.normal(size=(items, classes)), target, prior).misses() == []


def test_a_class_that_never_stands_alone_is_not_compared() -> None:
    logits, target = [[1.0, -1.0]] * 50 + [[1.0, 1.0]], [[1, 1]] * 51
    assert eq.judge_multilabel(logits, target, eq.Prior.from_counts([5, 5], 10)).misses() == []


def test_parts_add_up_to_the_whole() -> None:
    logits, target = case()
    parts = [eq.judge_multilabel(logits[a:b], target[a:b], PRIOR) for a, b in ((0, 70), (70, 71), (71, 200))]
    whole = eq.judge_multilabel(logits, target, PRIOR)
    found = sum(parts[1:], parts[0])
    assert np.array_equal(found.f1_at(), whole.f1_at())
    assert found.misses() == whole.misses()
    assert found.evaluation.scores() == pytest.approx(whole.evaluation.scores(), rel=1e-12)


def test_too_many_classes_have_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multilabel_judging, "MOST_PAIRED", 2)
    found = eq.judge_multilabel(*case(), PRIOR)
    assert found.together is None
    assert (found + found).misses() == []


def test_unknown_labels_are_neither_missed_nor_present() -> None:
    logits, target = case()
    masked = target.copy()
    masked[:100] = -1
    found, half = (eq.judge_multilabel(z, y, PRIOR) for z, y in ((logits, masked), (logits[100:], target[100:])))
    assert np.array_equal(found.f1_at(), half.f1_at())
    assert found.misses() == half.misses()
