"""What a report shows beyond an evaluation: intervals of means, which classes swallow which, and the prior sweep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import equipoise as eq
from equipoise.metrics.confusions import Confusions
from equipoise.metrics.intervals import mean_interval, wilson_interval, wilson_intervals
from equipoise.metrics.judging import judge
from equipoise.metrics.sweep import TAUS, WORLDS, prior_sweep

PRIOR = eq.Prior.from_counts({"cat": 900, "dog": 200, "owl": 60, "yak": 5})


def predictions(items: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that mean equal classes, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.arange(items) % 4
    return torch.randn(items, 4, generator=generator) + 1.5 * torch.nn.functional.one_hot(target, 4), target


# -------------------------------------------------------------------- intervals


def test_many_wilson_intervals_are_those_of_scipy_and_everything_without_items() -> None:
    correct, total = [0, 3, 5, 8], [5, 5, 5, 10]
    low, high = wilson_intervals([*correct, 0], [*total, 0])
    found = [binomtest(k, n).proportion_ci(method="wilson") for k, n in zip(correct, total, strict=True)]
    expected = [*((one.low, one.high) for one in found), (0.0, 1.0)]
    assert np.stack([low, high], 1) == pytest.approx(np.array(expected), abs=1e-12)
    with pytest.raises(ValueError, match=r"6.0 correct of 5.0"):
        wilson_intervals([6], [5])


def test_the_interval_of_a_mean_of_one_class_is_wilsons_and_empty_classes_do_not_count() -> None:
    assert mean_interval([8], [10]) == pytest.approx(wilson_interval(8, 10))
    assert mean_interval([8, 0], [10, 0]) == pytest.approx(wilson_interval(8, 10))
    assert mean_interval([0], [0]) == (0.0, 1.0)
    low, high = mean_interval([0, 0, 0], [10, 10, 10])
    assert low == 0.0
    assert 0.1 < high < wilson_interval(0, 10)[1]


def test_the_interval_of_a_mean_holds_the_truth_in_95_of_100_cases() -> None:
    """Classes of unlike size and accuracy, as in a tail: the nominal 95 % within the error of 4,000 draws."""
    rates, sizes = np.array([0.95, 0.7, 0.3, 0.1, 0.02]), np.array([200, 60, 30, 12, 8])
    random = np.random.default_rng(0)
    ends = np.array([mean_interval(random.binomial(sizes, rates), sizes) for _ in range(4000)])
    held = ((ends[:, 0] <= rates.mean()) & (rates.mean() <= ends[:, 1])).mean()
    assert 0.94 < held < 0.985


# -------------------------------------------------------------------- confusions


def test_confusions_of_parts_add_up_to_the_whole() -> None:
    random = np.random.default_rng(1)
    target, predicted = random.integers(0, 5, 300), random.integers(0, 5, 300)
    whole = Confusions.count(target, predicted, 5)
    parts = Confusions.count(target[:100], predicted[:100], 5) + Confusions.count(target[100:], predicted[100:], 5)
    assert parts == whole
    expected = np.zeros((5, 5), np.int64)
    np.add.at(expected, (target, predicted), 1)
    assert whole.dense().tolist() == expected.tolist()
    with pytest.raises(ValueError, match="5 and 4 classes"):
        whole + Confusions.count(target[:0], predicted[:0], 4)


def test_swallowed_names_tail_classes_and_the_larger_classes_they_are_taken_for() -> None:
    target = np.repeat([3, 2, 1, 0], [10, 10, 10, 10])
    predicted = np.array([0] * 6 + [3] * 4 + [1] * 3 + [3] * 5 + [2] * 2 + [0] * 9 + [1] + [3] * 10)
    pairs = Confusions.count(target, predicted, 4).swallowed(PRIOR)
    assert [(pair.true, pair.predicted, pair.times, pair.items) for pair in pairs] == [(3, 0, 6, 10), (2, 1, 3, 10)]
    assert (pairs[0].low, pairs[0].high) == pytest.approx(wilson_interval(6, 10))
    assert len(Confusions.count(target, predicted, 4).swallowed(PRIOR, most=1)) == 1


def test_where_all_classes_are_of_one_group_the_larger_swallows() -> None:
    pairs = Confusions.count(np.array([0, 1]), np.array([1, 0]), 2).swallowed(eq.Prior.from_counts([300, 200]))
    assert [(pair.true, pair.predicted) for pair in pairs] == [(1, 0)]


def test_swallowing_of_many_items_goes_before_that_of_one() -> None:
    target = np.array([3] + [2] * 100)
    predicted = np.array([0] + [0] * 90 + [2] * 10)
    pairs = Confusions.count(target, predicted, 4).swallowed(PRIOR)
    assert [(pair.true, round(pair.share, 2)) for pair in pairs] == [(2, 0.9), (3, 1.0)]


def test_the_flow_of_a_group_counts_classes_equally_and_sums_to_one() -> None:
    target = np.array([0] * 10 + [1] * 2 + [3] * 4)
    predicted = np.array([0] * 10 + [0, 3] + [0, 2, 3, 3])
    flow = Confusions.count(target, predicted, 4).flow(PRIOR)
    assert flow["many"] == {"many": 0.25, "medium": 0.0, "few": 0.25, "right": 0.5}
    assert flow["few"] == {"many": 0.25, "medium": 0.25, "few": 0.0, "right": 0.5}
    assert flow["medium"]["right"] is None


# -------------------------------------------------------------------- the prior sweep


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
def test_a_tau_of_the_sweep_is_adjust_logits_with_that_tau(tau: float) -> None:
    logits, target = predictions()
    sweep = prior_sweep(logits, target, PRIOR, logits_mean="train")
    adjusted = logits if tau == 0 else eq.adjust_logits(logits, source=PRIOR, tau=tau)
    expected = eq.evaluate(adjusted, target, PRIOR)
    assert sweep.correct[TAUS.tolist().index(tau)].tolist() == expected.correct.tolist()
    assert sweep.items.tolist() == expected.items.tolist()


def test_logits_of_a_balanced_loss_are_swept_as_those_of_a_plain_one_that_were_adjusted() -> None:
    logits, target = predictions()
    plain = eq.adjust_logits(logits, target=PRIOR)  # what a plain loss would have learned
    one = prior_sweep(plain, target, PRIOR, logits_mean="train")
    other = prior_sweep(logits, target, PRIOR, logits_mean="uniform")
    assert one.correct.tolist() == other.correct.tolist()
    assert (TAUS[one.as_it_is], TAUS[other.as_it_is]) == (0.0, 1.0)
    unadjusted = eq.evaluate(logits, target, PRIOR)
    assert other.correct[other.as_it_is].tolist() == unadjusted.correct.tolist()


def test_accuracy_in_a_world_weighs_classes_by_its_prior() -> None:
    logits, target = predictions()
    sweep = prior_sweep(logits, target, PRIOR, logits_mean="uniform")
    accuracy = sweep.accuracy()
    recall = sweep.correct / sweep.items
    training, uniform, reversed_ = (WORLDS.tolist().index(alpha) for alpha in (1.0, 0.0, -1.0))
    assert accuracy[training, 7] == pytest.approx((PRIOR.probabilities * recall[7]).sum())
    assert accuracy[uniform, 7] == pytest.approx(recall[7].mean())
    backward = 1 / PRIOR.counts / (1 / PRIOR.counts).sum()
    assert accuracy[reversed_, 7] == pytest.approx((backward * recall[7]).sum())


def test_bayes_rule_is_best_in_its_world() -> None:
    """Where p(x|y) is known, no tau beats tau = 1 − alpha by more than chance."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(40_000) % 4
    means = 1.5 * torch.eye(4)
    x = means[target] + torch.randn(len(target), 4, generator=generator)
    likelihood = x @ means.T - 0.5 * (means**2).sum(1)  # log p(x|y) up to a constant: logits that mean equal classes
    accuracy = prior_sweep(likelihood, target, PRIOR, logits_mean="uniform").accuracy()
    assert (accuracy.max(axis=1) - accuracy.diagonal()).max() < 0.01
    assert accuracy[0, 0] > accuracy[0, 20] + 0.05


def test_a_sweep_leaves_out_classes_without_test_items() -> None:
    sweep = prior_sweep(torch.eye(4)[:2], torch.tensor([0, 1]), PRIOR, logits_mean="uniform")
    assert np.isfinite(sweep.accuracy()).all()
    assert sorted(sweep.groups()) == ["all", "many"]
    empty = prior_sweep(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), PRIOR, logits_mean="train")
    assert np.isnan(empty.accuracy()).all()
    with pytest.raises(ValueError, match="'train' after a plain loss, 'uniform' after a balanced one"):
        prior_sweep(torch.eye(4), torch.arange(4), PRIOR, logits_mean="equal")  # type: ignore[arg-type]


# -------------------------------------------------------------------- all of it


def test_judged_parts_add_up_to_the_whole() -> None:
    logits, target = predictions()
    whole = judge(logits, target, PRIOR, logits_mean="train")
    half = [judge(logits[i::2], target[i::2], PRIOR, logits_mean="train") for i in range(2)]
    joined = sum(half[1:], half[0])
    assert joined.evaluation.correct.tolist() == whole.evaluation.correct.tolist()
    assert joined.confusions == whole.confusions
    assert joined.sweep is not None
    assert whole.sweep is not None
    assert joined.sweep.correct.tolist() == whole.sweep.correct.tolist()


def test_probabilities_are_swept_as_their_logits() -> None:
    logits, target = predictions()
    one = judge(logits, target, PRIOR, logits_mean="train").sweep
    other = judge(logits.double().softmax(1), target, PRIOR, probabilities=True, logits_mean="train").sweep
    assert one is not None
    assert other is not None
    assert np.abs(one.correct - other.correct).max() <= 1


def test_only_the_rows_asked_for_are_swept() -> None:
    logits, target = predictions()
    found = judge(logits, target, PRIOR, logits_mean="train", swept=[0, 5, 6])
    assert found.sweep is not None
    assert found.sweep.items.tolist() == [1, 1, 1, 0]
    assert found.evaluation.num_items == 400
    assert judge(logits, target, PRIOR).sweep is None
