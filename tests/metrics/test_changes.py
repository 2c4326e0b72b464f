"""Changes between two models that saw the same items: their intervals, and what they are made from."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.metrics.answers import Answers, both_right
from equipoise.metrics.calibration import equal_mass_bins
from equipoise.metrics.evaluation import percent, tenths
from equipoise.metrics.intervals import change_interval, wilson_interval
from equipoise.prior import FloatArray


def newcombe(a: int, b: int, c: int, d: int) -> tuple[float, float]:
    """Method 10 of Newcombe (1998), from the paper: a both right, b only after, c only before, d both wrong."""
    n = a + b + c + d
    p, q = (a + b) / n, (a + c) / n
    (l2, u2), (l3, u3) = wilson_interval(a + b, n), wilson_interval(a + c, n)
    spread = ((a + b) * (c + d) * (a + c) * (b + d)) ** 0.5
    together = a * d - b * c
    corrected = max(together - n / 2, 0) if together > 0 else together
    phi = corrected / spread if spread else 0.0
    low = ((p - l2) ** 2 - 2 * phi * (p - l2) * (u3 - q) + (u3 - q) ** 2) ** 0.5
    high = ((u2 - p) ** 2 - 2 * phi * (u2 - p) * (q - l3) + (q - l3) ** 2) ** 0.5
    return p - q - low, p - q + high


@pytest.mark.parametrize("cells", [(36, 12, 2, 0), (20, 6, 9, 15), (0, 5, 4, 31), (58, 12, 2, 28), (0, 0, 0, 9)])
def test_the_interval_of_one_class_is_newcombes_for_paired_proportions(cells: tuple[int, int, int, int]) -> None:
    a, b, c, _ = cells
    assert change_interval([a + c], [a + b], [sum(cells)], [a]) == pytest.approx(newcombe(*cells), abs=1e-12)


def test_turning_a_change_around_turns_its_interval_around() -> None:
    low, high = change_interval([60, 3], [70, 9], [100, 10], [58, 3])
    assert change_interval([70, 9], [60, 3], [100, 10], [58, 3]) == pytest.approx((-high, -low), abs=1e-12)


def test_classes_without_items_do_not_count_and_nothing_is_not_known() -> None:
    assert change_interval([6, 0], [7, 0], [10, 0], [6, 0]) == change_interval([6], [7], [10], [6])
    assert change_interval([0], [0], [0], [0]) == (-1.0, 1.0)


def test_pairs_make_the_interval_narrower_and_it_still_holds_the_truth() -> None:
    """2,000 simulated test sets of 20 classes: the paired interval is to hold the true change in 95 % of them.

    It may be a little wide, as Wilson's is for few items; 92.5 % is five standard deviations below 95 %.
    """
    random = np.random.default_rng(0)
    classes, items, draws = 20, 15, 2000
    before = random.uniform(0.2, 0.9, classes)
    after = np.minimum(before + 0.1, 1)
    held, paired, apart = 0, [], []
    for _ in range(draws):
        common, alike = random.random((classes, items)), random.random((classes, items)) < 0.7
        one, other = (np.where(alike, common, random.random((classes, items))) < p[:, None] for p in (before, after))
        counts = one.sum(1), other.sum(1), np.full(classes, items)
        low, high = change_interval(*counts, (one & other).sum(1))
        held += low <= (after - before).mean() <= high
        paired.append(high - low)
        apart.append(np.subtract(*change_interval(*counts)[::-1]))
    assert 0.925 < held / draws < 0.985
    assert np.mean(paired) < 0.8 * np.mean(apart)


# -------------------------------------------------------------------- answers


def answers(target: list[int], predicted: list[int]) -> Answers:
    return Answers(np.array(target, np.int32), np.array(predicted, np.int32), np.ones(len(target), np.float32))


def test_items_are_the_same_only_where_their_labels_are_in_the_same_order() -> None:
    one, other = answers([0, 1, 1], [0, 1, 0]), answers([0, 1, 1], [1, 1, 1])
    found = both_right([one], [other], 3)
    assert found is not None
    assert found.tolist() == [0, 1, 0]
    assert both_right([one], [answers([1, 0, 1], [0, 0, 0])], 3) is None
    assert both_right([one], [], 3) is None


def test_judging_keeps_the_answers_and_parts_add_up() -> None:
    prior = eq.Prior.from_counts([50, 5])
    logits, target = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), [0, 1, 1]
    whole = eq.judge(logits, target, prior)
    assert whole.answers is not None
    assert whole.answers.right.tolist() == [True, True, False]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(whole.answers.confidence, chances.max(1), rtol=1e-6)
    parts = [eq.judge(logits[i : i + 1], target[i : i + 1], prior) for i in range(3)]
    for other in (eq.judge(chances, target, prior, probabilities=True), sum(parts[1:], parts[0])):
        assert other.answers is not None
        np.testing.assert_array_equal(other.answers.target, target)
        np.testing.assert_array_equal(other.answers.predicted, whole.answers.predicted)
        np.testing.assert_allclose(other.answers.confidence, chances.max(1), rtol=1e-6)  # a few roundings of float32


# -------------------------------------------------------------------- calibration


def test_bins_have_equally_many_items_and_their_intervals_are_wilsons() -> None:
    random = np.random.default_rng(0)
    sure = random.uniform(0.1, 1, 1000)
    right = random.random(1000) < sure
    bins = equal_mass_bins(np.ones(1000), right, sure)
    assert [each.items for each in bins] == [100] * 10
    order = np.argsort(sure)
    for number, each in enumerate(bins):
        inside = order[100 * number : 100 * (number + 1)]
        assert each.confidence == pytest.approx(sure[inside].mean())
        assert each.accuracy == pytest.approx(right[inside].mean())
        assert (each.low, each.high) == pytest.approx(wilson_interval(int(right[inside].sum()), 100))


def test_few_items_make_few_bins_and_equal_confidence_one() -> None:
    sure: FloatArray = np.linspace(0.2, 0.8, 60)
    assert [each.items for each in equal_mass_bins(np.ones(60), sure > 0.5, sure)] == [30, 30]
    assert [each.items for each in equal_mass_bins(np.ones(500), np.ones(500), np.full(500, 0.999))] == [500]
    assert equal_mass_bins([], [], []) == []
    (one,) = equal_mass_bins(np.ones(20), np.ones(20), np.full(20, 0.9), runs=2)
    assert one.low == pytest.approx(wilson_interval(10, 10)[0])  # two runs of ten items are ten items


# -------------------------------------------------------------------- one way to round


@pytest.mark.parametrize("items", [400, 2000, 3000, 7])
def test_a_number_is_shown_alike_however_it_was_added_up(items: int) -> None:
    for right in range(items + 1):
        exact = right / items
        ways = (exact, float(np.mean([exact] * 3)), round(exact, 6), exact * (1 - 1e-12), exact * (1 + 1e-12))
        assert len({percent(way) for way in ways}) == 1
        assert abs(float(percent(exact)) - 100 * exact) <= 0.0501
    assert (tenths(0.8325), tenths(-0.8325)) == (833, -833)
