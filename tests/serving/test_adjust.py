"""Moving predictions between priors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equipoise as eq

PRIOR = eq.Prior.from_counts([900, 90, 10])
LOGITS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_bayes_rule_on_probabilities() -> None:
    p, target = LOGITS.softmax(1), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    moved = p / torch.tensor(PRIOR.probabilities) * target
    expected = moved / moved.sum(1, keepdim=True)
    got = eq.adjust_logits(LOGITS, source=PRIOR, target=target).softmax(1)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)
    back = eq.adjust_logits(eq.adjust_logits(LOGITS, source=PRIOR, target=target), source=target, target=PRIOR)
    torch.testing.assert_close(back.softmax(1), p, rtol=1e-6, atol=1e-8)


def test_tau_scales_the_source_only() -> None:
    got = eq.adjust_logits(LOGITS, source=PRIOR, target=[0.2, 0.3, 0.5], tau=0.5)
    expected = LOGITS - 0.5 * torch.tensor(PRIOR.probabilities).log() + torch.tensor([0.2, 0.3, 0.5]).log()
    torch.testing.assert_close(got.softmax(1), expected.softmax(1), rtol=1e-6, atol=1e-8)


def test_the_class_dimension_can_be_named() -> None:
    dense = LOGITS.T[None]
    torch.testing.assert_close(
        eq.adjust_logits(dense, source=PRIOR, dim=1)[0].T, eq.adjust_logits(LOGITS, source=PRIOR)
    )
    torch.testing.assert_close(eq.balanced_softmax(dense, PRIOR, dim=1)[0].T, eq.balanced_softmax(LOGITS, PRIOR))
    torch.testing.assert_close(eq.balanced_sigmoid(dense, PRIOR, dim=1)[0].T, eq.balanced_sigmoid(LOGITS, PRIOR))


def test_the_way_out_names_the_dimension() -> None:
    with pytest.raises(ValueError, match=r"prior has 3 classes, logits .* or pass dim=1"):
        eq.adjust_logits(torch.zeros(2, 3, 4, 4), source=PRIOR)
    with pytest.raises(TypeError, match=r"logits are a ndarray: expected a tensor, e\.g\. torch\.as_tensor"):
        eq.adjust_logits(np.zeros((2, 3)), source=PRIOR)  # type: ignore[arg-type]


def test_a_class_stated_impossible_gets_probability_zero_and_one_not_yet_counted_does_not() -> None:
    p = eq.adjust_logits(LOGITS, source=PRIOR, target=[0.5, 0.5, 0.0]).softmax(1)
    assert (p[:, 2] == 0).all()
    assert p.isfinite().all()
    with pytest.warns(UserWarning, match="no item"):
        r = eq.adjust_logits(LOGITS, source=[0.9, 0.1, 0.0]).softmax(
            1
        )  # nothing is known of the third: it must not win
    torch.testing.assert_close(r, eq.adjust_logits(LOGITS, source=np.array([9, 1, 1]) / 11).softmax(1))
    with pytest.warns(UserWarning, match="no item"):
        q = eq.adjust_logits(LOGITS, target=eq.Prior.from_counts([5, 5, 0])).softmax(1)
    assert (q[:, 2] > 0).all()


def test_sigmoid_logits_move_between_rates() -> None:
    rates = torch.tensor([0.9, 0.09, 0.01], dtype=torch.float64)
    for source in (PRIOR, rates, rates.tolist()):
        got = eq.adjust_sigmoid_logits(rates.logit(), source=source, target_rate=0.2).sigmoid()
        torch.testing.assert_close(got, torch.full((3,), 0.2, dtype=torch.float64), rtol=1e-6, atol=1e-8)
    got = eq.adjust_sigmoid_logits(LOGITS, source=0.3, target_rate=0.3)
    assert torch.equal(got, LOGITS)
    with pytest.raises(ValueError, match="source has 3 classes, target_rate has 2"):
        eq.adjust_sigmoid_logits(LOGITS, source=rates, target_rate=[0.1, 0.2])


def test_half_logits_are_adjusted_in_fp32() -> None:
    half = LOGITS.half()
    got = eq.adjust_logits(half, source=PRIOR)
    assert got.dtype == torch.float32
    assert torch.equal(got, eq.adjust_logits(half.float(), source=PRIOR))


def test_adjusting_undoes_what_the_activation_does() -> None:
    shifted = eq.log_balanced_softmax(LOGITS, PRIOR)
    torch.testing.assert_close(eq.adjust_logits(shifted, source=PRIOR).softmax(1), LOGITS.softmax(1))


def test_probabilities_passed_as_logits_are_warned_of_with_a_way_out() -> None:
    chances = torch.linspace(0.01, 0.99, 40, dtype=torch.float64).reshape(20, 2)
    with pytest.warns(
        UserWarning, match=r"every value is from 0 to 1.* makes the result wrong: pass logits, .*p.logit"
    ):
        eq.adjust_sigmoid_logits(chances, source=0.3, target_rate=0.1)
    rows = chances / chances.sum(1, keepdim=True)
    with pytest.warns(UserWarning, match=r"sum of 1.* makes the result wrong: pass logits, e.g. p.log\(\)"):
        eq.adjust_logits(rows, source=[0.9, 0.1])
    eq.adjust_sigmoid_logits(chances.logit(), source=0.3, target_rate=0.1)  # no warning, which would be an error here
    eq.adjust_logits(rows.log(), source=[0.9, 0.1])


def test_transforms_that_allow_no_look_at_values_take_both_adjustments() -> None:
    logits = torch.linspace(-2, 2, 48).reshape(3, 8, 2)
    prior = eq.Prior.from_counts([9, 1])
    for adjust in (
        lambda z: eq.adjust_logits(z, source=prior),
        lambda z: eq.adjust_sigmoid_logits(z, source=prior, target_rate=0.5),
    ):
        torch.testing.assert_close(torch.func.vmap(adjust)(logits), adjust(logits))
