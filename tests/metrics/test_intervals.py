"""Intervals of means over classes and of their changes hold the truth as often as they promise, also with few items.

`benchmarks/intervals.py` is the simulation, with more rows and draws; each row here is a part of one of its rows.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from equipoise.metrics.intervals import change_interval, mean_interval, wilson_interval

MEASURE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "intervals.py"))["measure"]
DRAWS = 1000
LEAST = 0.95 - 3.5 * (0.95 * 0.05 / DRAWS) ** 0.5  # 3.5 standard deviations of DRAWS draws below 95 %


@pytest.mark.parametrize("rates", ["Beta(2, 2)", "Beta(5, 1)"])
@pytest.mark.parametrize("items", ["1", "3", "5", "2 to 100"])
def test_means_and_changes_over_ten_classes_hold_the_truth_and_are_not_much_wider_than_they_must_be(
    rates: str, items: str
) -> None:
    row = MEASURE(rates, 10, items, DRAWS)
    for name in ("mean", "apart", "alike", "tail apart"):
        assert row[name]["held"] > LEAST, name
    assert 0.9 < row["mean"]["width"] < 1.1
    assert max(row[name]["width"] for name in ("apart", "alike", "tail apart")) < 2


@pytest.mark.parametrize("rates", ["Beta(2, 2)", "Beta(5, 1)"])
def test_a_hundred_classes_have_the_width_that_they_must_have(rates: str) -> None:
    """The truth is held in 95 % of cases, where square-and-add, measured beside it, falls short."""
    row = MEASURE(rates, 100, "3", DRAWS)
    assert row["mean"]["held"] > LEAST > row["square-and-add"]["held"]
    for name in ("mean", "apart", "alike", "tail apart"):
        assert row[name]["held"] > LEAST, name
        assert row[name]["width"] == pytest.approx(1, abs=0.1), name


def test_classes_that_are_all_right_or_all_wrong_do_not_give_a_point() -> None:
    for correct in ([10, 0], [10, 10], [0, 0], [1, 0], [1, 1]):
        items = [max(max(correct), 1)] * 2
        low, high = mean_interval(correct, items)
        assert 0 <= low < high <= 1
        assert high - low > 0.1
        assert np.subtract(*change_interval(correct, correct, items, correct)[::-1]) > 0.1


def test_equal_classes_of_one_item_each_are_one_class() -> None:
    """Nothing is known about differences between the classes, so that nothing makes the interval shorter."""
    assert mean_interval([1, 0, 1, 1, 0], [1] * 5) == pytest.approx(wilson_interval(3, 5))
    assert mean_interval([1] * 5, [1] * 5) == pytest.approx(wilson_interval(5, 5))


def test_classes_of_one_item_have_the_variance_of_their_kind_and_not_that_of_the_large_classes() -> None:
    """50 sure classes of 50 items beside ten classes of one item, of which five are right: V is that of the ten."""
    low, high = mean_interval([50] * 50 + [1, 0] * 5, [50] * 50 + [1] * 10)
    assert (high - low) / 2 == pytest.approx(1.96 * (10 * 0.25) ** 0.5 / 60, rel=0.1)


def test_a_class_is_worth_less_to_the_interval_the_more_items_it_has() -> None:
    widths = [np.subtract(*mean_interval([n // 2, 30], [n, 40])[::-1]) for n in (2, 4, 10, 40, 400)]
    assert widths == sorted(widths, reverse=True)
