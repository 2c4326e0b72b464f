"""Properties over generated shapes, dtypes, counts and targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq

pytestmark = pytest.mark.filterwarnings("ignore:.*have no item")
settings.register_profile("equipoise", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("equipoise")

counts = st.lists(st.one_of(st.just(0), st.integers(1, 20), st.integers(0, 10**7)), min_size=2, max_size=12).filter(any)
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])
shapes = st.sampled_from([(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (3, 0)])
scales = st.sampled_from([0.1, 1.0, 30.0, 1e4])


def modules(prior: eq.Prior) -> list[torch.nn.Module]:
    return [
        eq.BalancedSoftmaxLoss(prior),
        eq.BalancedSoftmaxLoss(prior, tau=1.7, label_smoothing=0.1, weight=eq.inverse_frequency_weights(prior)),
        eq.BalancedSigmoidLoss(prior, target_rate=0.3),
        eq.BalancedSigmoidLoss(prior, reduction="batchmean"),
        eq.FocalLoss(0.7),
        eq.SigmoidFocalLoss(2.0, alpha=0.25),
        eq.ClassBalancedLoss(prior, 0.999),
        eq.ClassBalancedLoss(prior, 0.9, base="focal", gamma=0.5),
        eq.LDAMLoss(prior),
        eq.EqualizationLoss(prior, 0.9, 0.1),
        eq.SigmoidEqualizationLoss(prior, 0.1),
    ]


def make(
    num_classes: int, shape: tuple[int, ...], seed: int, dtype: torch.dtype, scale: float
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    full = (num_classes,) if shape == () else (shape[0], num_classes, *shape[1:])
    logits = (scale * torch.randn(full, generator=generator)).clamp(-6e4, 6e4).to(dtype)
    target = torch.randint(0, num_classes, shape, generator=generator)
    ignored = torch.rand(shape, generator=generator) < 0.2
    return logits, torch.where(ignored, -100, target)


@given(counts, shapes, seeds, dtypes, scales)
def test_every_loss_is_finite_with_a_finite_gradient_and_not_negative(
    counts: list[int], shape: tuple[int, ...], seed: int, dtype: torch.dtype, scale: float
) -> None:
    logits, target = make(len(counts), shape, seed, dtype, scale)
    for module in modules(eq.Prior.from_counts(counts)):
        leaf = logits.clone().requires_grad_()
        loss = module(leaf, target)
        loss.backward()
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32), module
        assert loss.isfinite(), module
        assert loss.item() >= 0, module
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all(), module
        assert leaf.grad.dtype == dtype


@given(counts, seeds)
def test_losses_follow_a_renumbering_of_the_classes(counts: list[int], seed: int) -> None:
    logits, target = make(len(counts), (6,), seed, torch.float64, 3.0)
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    renumbered = torch.where(target == -100, target, order.argsort()[target.clamp(min=0)])
    pairs = zip(
        modules(eq.Prior.from_counts(counts)),
        modules(eq.Prior.from_counts([counts[j] for j in order.tolist()])),
        strict=True,
    )
    for module, other in pairs:
        if not isinstance(module, eq.EqualizationLoss):  # draws
            torch.testing.assert_close(
                module(logits, target), other(logits[:, order], renumbered), rtol=1e-5, atol=1e-6
            )


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=8), st.integers(2, 1000), seeds)
def test_only_the_proportions_of_the_counts_matter(counts: list[int], factor: int, seed: int) -> None:
    logits, target = make(len(counts), (6,), seed, torch.float64, 3.0)
    small, large = eq.Prior.from_counts(counts), eq.Prior.from_counts([factor * n for n in counts])
    for make_loss in (
        eq.BalancedSoftmaxLoss,
        lambda p: eq.BalancedSigmoidLoss(p, target_rate=0.4),
        eq.BalancedSigmoidLoss,
    ):
        torch.testing.assert_close(
            make_loss(small)(logits, target), make_loss(large)(logits, target), rtol=1e-5, atol=1e-6
        )


@given(counts, seeds, st.floats(-50, 50))
def test_balanced_softmax_does_not_see_a_constant_added_to_the_logits(
    counts: list[int], seed: int, constant: float
) -> None:
    logits, target = make(len(counts), (6,), seed, torch.float64, 3.0)
    loss = eq.BalancedSoftmaxLoss(eq.Prior.from_counts(counts))
    torch.testing.assert_close(loss(logits + constant, target), loss(logits, target))


@given(counts, seeds, dtypes)
def test_activations_are_probabilities_and_their_logs(counts: list[int], seed: int, dtype: torch.dtype) -> None:
    logits, _ = make(len(counts), (6,), seed, dtype, 10.0)
    prior = eq.Prior.from_counts(counts)
    p, q = eq.balanced_softmax(logits, prior), eq.balanced_sigmoid(logits, prior)
    torch.testing.assert_close(p.sum(1), torch.ones_like(p[:, 0]))
    assert ((q >= 0) & (q <= 1)).all()
    torch.testing.assert_close(eq.log_balanced_softmax(logits, prior).exp(), p)
    torch.testing.assert_close(eq.log_balanced_sigmoid(logits, prior).exp(), q, rtol=1e-5, atol=1e-7)


@given(counts, seeds)
def test_the_loss_is_the_negative_log_of_the_activation(counts: list[int], seed: int) -> None:
    logits, target = make(len(counts), (6,), seed, torch.float64, 3.0)
    target = target.clamp(min=0)
    prior = eq.Prior.from_counts(counts)
    expected = -eq.log_balanced_softmax(logits, prior)[torch.arange(6), target]
    torch.testing.assert_close(eq.BalancedSoftmaxLoss(prior, reduction="none")(logits, target), expected)
    hot = F.one_hot(target, len(counts)).double()
    p = eq.balanced_sigmoid(logits, prior)
    got = eq.BalancedSigmoidLoss(prior, reduction="none")(logits, target)
    torch.testing.assert_close(got, F.binary_cross_entropy(p, hot, reduction="none"), rtol=1e-5, atol=1e-6)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.integers(1, 5))
def test_counting_parts_and_adding_is_counting_the_whole(labels: list[int], parts: int) -> None:
    whole = eq.Prior.from_labels(labels, 9)
    assert whole.counts.tolist() == [labels.count(j) for j in range(9)]
    pieces = [piece for piece in np.array_split(np.array(labels), parts) if len(piece)]
    assert sum(eq.Prior.from_labels(piece, 9) for piece in pieces) == whole
    assert eq.Prior.from_json(whole.to_json()) == whole
    groups = whole.groups(many=5, few=2)
    assert sorted(j for members in groups.values() for j in members) == list(range(9))
    assert all(groups.values())


@given(counts, seeds, st.integers(0, 40), st.integers(0, 40))
def test_evaluating_parts_and_adding_is_evaluating_the_whole(
    counts: list[int], seed: int, first: int, rest: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(first + rest, len(counts), generator=generator)
    target = torch.randint(0, len(counts), (first + rest,), generator=generator)
    prior = eq.Prior.from_counts(counts)
    whole: Any = eq.evaluate(logits, target, prior)
    parts = eq.evaluate(logits[:first], target[:first], prior) + eq.evaluate(logits[first:], target[first:], prior)
    assert (parts.bin_items == whole.bin_items).all()
    assert (parts.bin_correct == whole.bin_correct).all()
    np.testing.assert_allclose(parts.probability, whole.probability, rtol=1e-5)
    if first + rest:
        assert whole.top1 == (logits.argmax(1) == target).double().mean().item()
        assert 0 <= whole.total_variation <= 1 - 1 / len(counts) + 1e-6
        assert whole.marginal.sum() == pytest.approx(1)


@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.lists(st.floats(0.01, 1), min_size=6, max_size=6), seeds
)
def test_adjusting_there_and_back_changes_nothing(source: list[float], target: list[float], seed: int) -> None:
    a = np.array(source) / sum(source)
    b = np.array(target[: len(a)]) / sum(target[: len(a)])
    logits, _ = make(len(a), (6,), seed, torch.float64, 3.0)
    there = eq.adjust_logits(logits, source=a, target=b)
    torch.testing.assert_close(
        eq.adjust_logits(there, source=b, target=a).softmax(1), logits.softmax(1), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(eq.adjust_logits(logits, source=a, target=a), logits)
