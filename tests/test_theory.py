"""The paper's statements as numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq


def test_theorem_1_adding_the_shift_and_predicting_plain_equals_bayes() -> None:
    """Three Gaussians with known p(x|y), drawn 4000 : 400 : 40. A model whose Balanced Softmax output is the posterior
    of the training distribution has, as its plain softmax, the posterior of the balanced one."""
    counts, means = [4000, 400, 40], torch.tensor([-1.0, 0.3, 1.5], dtype=torch.float64)
    prior = eq.Prior.from_counts(counts)
    x = torch.linspace(-4, 4, 81, dtype=torch.float64)
    likelihood = torch.exp(-((x[:, None] - means) ** 2) / 2)
    training = torch.tensor(counts) / sum(counts) * likelihood
    training_posterior = training / training.sum(1, keepdim=True)
    balanced_posterior = likelihood / likelihood.sum(1, keepdim=True)

    plainly_trained = training_posterior.log()  # what cross-entropy converges to
    balanced_trained = likelihood.log() + 5.0  # any logits of the balanced posterior
    close = {"rtol": 1e-6, "atol": 1e-7}  # the shift is stored as fp32
    torch.testing.assert_close(eq.balanced_softmax(balanced_trained, prior), training_posterior, **close)
    torch.testing.assert_close(eq.adjust_logits(plainly_trained, source=prior).softmax(1), balanced_posterior, **close)
    torch.testing.assert_close(eq.adjust_logits(balanced_trained, target=prior).softmax(1), training_posterior, **close)


def test_training_with_the_shift_converges_to_the_balanced_posterior() -> None:
    """The same by optimisation: minimise the expected loss over the training distribution, freely at each x."""
    counts, means = [900, 90, 10], torch.tensor([-1.0, 0.3, 1.5], dtype=torch.float64)
    prior = eq.Prior.from_counts(counts)
    x = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)
    likelihood = torch.exp(-((x[:, None] - means) ** 2) / 2)
    joint = torch.tensor(counts) / sum(counts) * likelihood
    logits = torch.zeros(len(x), 3, dtype=torch.float64, requires_grad=True)
    loss = eq.BalancedSoftmaxLoss(prior)
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss(logits, joint / joint.sum(1, keepdim=True))
        value.backward()
        return value

    optimizer.step(step)
    balanced_posterior = likelihood / likelihood.sum(1, keepdim=True)
    torch.testing.assert_close(logits.detach().softmax(1), balanced_posterior, rtol=1e-4, atol=1e-5)


def test_the_margins_of_theorem_2_minimise_the_leading_term_of_its_bound() -> None:
    """γ*_j ∝ n_j^(−1/4) minimises Σ_j (1/γ_j) sqrt(C/n_j) among positive γ with Σ γ = β."""
    counts, beta, rng = np.array([5000.0, 300, 40, 2]), 3.0, np.random.default_rng(0)

    def bound(gamma: np.ndarray) -> float:
        return float((1 / gamma * np.sqrt(7.0 / counts)).sum())

    optimal = beta * counts**-0.25 / (counts**-0.25).sum()
    others = beta * rng.dirichlet(np.ones(4) * 5, size=20_000)
    assert (np.array([bound(g) for g in others]) >= bound(optimal)).all()
    for step in np.eye(4) - 0.25:  # and it is stationary along the constraint
        slope = (bound(optimal + 1e-6 * step) - bound(optimal - 1e-6 * step)) / 2e-6
        assert abs(slope) < 1e-6
    # the Corollary: subtracting log γ* from the logits is Balanced Softmax with tau = 1/4
    logits = torch.tensor([0.3, -1.0, 0.2, 2.0], dtype=torch.float64)
    prior = eq.Prior.from_counts(counts)
    expected = (logits - torch.from_numpy(np.log(optimal))).softmax(0)
    torch.testing.assert_close(eq.balanced_softmax(logits, prior, tau=0.25), expected, rtol=1e-6, atol=1e-8)
    # LDAM's margins are the same γ*, scaled
    margins = eq.ldam_margins(prior, 0.5).double().numpy()
    assert margins / margins.sum() == pytest.approx(optimal / beta, rel=1e-6)


def test_two_sigmoids_of_opposite_logits_are_one_softmax() -> None:
    prior, d = eq.Prior.from_counts([90, 7]), torch.linspace(-8, 8, 33, dtype=torch.float64)
    sigmoids = eq.balanced_sigmoid(torch.stack([-d, d], 1), prior)
    torch.testing.assert_close(sigmoids, eq.balanced_softmax(torch.stack([0 * d, d], 1), prior), rtol=1e-6, atol=1e-9)


def test_the_tldr_formulas_of_the_paper() -> None:
    counts = [500, 60, 7]
    n, k, prior = sum(counts), 3, eq.Prior.from_counts(counts)
    eta = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    for y in range(3):
        softmax = counts[y] * math.exp(eta[y]) / sum(c * math.exp(e) for c, e in zip(counts, eta, strict=True))
        inner = eta[y] - math.log((n / k) / counts[y] * (n - counts[y]) / (n - n / k))
        sigmoid = math.exp(inner) / (1 + math.exp(inner))
        assert eq.balanced_softmax(eta, prior)[y].item() == pytest.approx(softmax, rel=1e-6)
        assert eq.balanced_sigmoid(eta, prior)[y].item() == pytest.approx(sigmoid, rel=1e-6)
        assert eq.log_balanced_softmax(eta, prior)[y].item() == pytest.approx(math.log(softmax), rel=1e-6)
        assert eq.log_balanced_sigmoid(eta, prior)[y].item() == pytest.approx(math.log(sigmoid), rel=1e-6)


def test_a_rate_of_one_half_is_the_shift_of_the_released_detection_code() -> None:
    prior = eq.Prior.from_counts([300, 20, 1], total=1000)
    f = torch.tensor(prior.probabilities)
    torch.testing.assert_close(eq.sigmoid_shift(prior, 0.5), -torch.log((1 - f) / f).float())


@pytest.mark.parametrize("num_classes", [2, 3, 7, 10, 49, 100, 1203])
def test_a_uniform_prior_shifts_by_exactly_nothing(num_classes: int) -> None:
    zeros = torch.zeros(num_classes)
    skewed = eq.Prior.from_counts(range(1, num_classes + 1))
    for prior in (eq.Prior.from_counts([17] * num_classes), eq.Prior.uniform(num_classes)):
        assert torch.equal(eq.softmax_shift(prior), zeros)
        assert torch.equal(eq.sigmoid_shift(prior), zeros)
        assert torch.equal(eq.softmax_shift(skewed, prior), eq.softmax_shift(skewed))
    assert torch.equal(eq.softmax_shift(skewed, skewed), zeros)
    multilabel = eq.Prior.from_counts([3] * num_classes, total=11)
    assert torch.equal(eq.sigmoid_shift(multilabel), zeros)
    with pytest.warns(UserWarning, match="rates of items with several classes or none"):
        assert torch.equal(eq.softmax_shift(multilabel), zeros)
