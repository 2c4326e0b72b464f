"""One row a loss × every claim: a new loss is one more row, and buys every test below.

The references are slow loops over float64 numbers, written from each paper's formula, sharing no code with the library.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise as eq

COUNTS = [700_000, 300, 40, 5]  # the head overflows fp16
N, K = sum(COUNTS), len(COUNTS)
PRIOR = eq.Prior.from_counts(COUNTS)
UNIFORM = eq.Prior.from_counts([25] * K)
WITH_ABSENT = eq.Prior.from_counts([900, 100, 0, 1])


def softmax(z: list[float], factor: list[float]) -> list[float]:
    top = max(z)
    terms = [f * math.exp(value - top) for f, value in zip(factor, z, strict=True)]
    return [term / sum(terms) for term in terms]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def binary(x: float, positive: bool) -> float:
    return -math.log(sigmoid(x) if positive else sigmoid(-x))


# ------------------------------------------------------------------ references: loss of one row z[K] with class y


def reference_balanced_softmax(z: list[float], y: int, exponent: float = 1.0) -> float:
    return -math.log(softmax(z, [n**exponent for n in COUNTS])[y])


def reference_inverse_frequency(z: list[float], y: int) -> float:
    weights = [1 / n for n in COUNTS]
    return K * weights[y] / sum(weights) * -math.log(softmax(z, [1] * K)[y])


def reference_balanced_sigmoid(z: list[float], y: int) -> float:
    total = 0.0
    for j, n_j in enumerate(COUNTS):
        shift = math.log((N / K) / n_j * (N - n_j) / (N - N / K))
        total += binary(z[j] - shift, j == y)
    return total


def reference_balanced_sigmoid_half(z: list[float], y: int) -> float:
    return sum(binary(z[j] - math.log((N - n_j) / n_j), j == y) for j, n_j in enumerate(COUNTS))


def reference_focal(z: list[float], y: int, gamma: float) -> float:
    p = softmax(z, [1] * K)[y]
    return -((1 - p) ** gamma) * math.log(p)


def reference_sigmoid_focal(z: list[float], y: int, gamma: float, alpha: float | None = None) -> float:
    total = 0.0
    for j in range(K):
        q = sigmoid(z[j]) if j == y else 1 - sigmoid(z[j])
        weight = 1.0 if alpha is None else alpha if j == y else 1 - alpha
        total -= weight * (1 - q) ** gamma * math.log(q)
    return total


def reference_class_balanced(z: list[float], y: int, beta: float, gamma: float = 0.0) -> float:
    inverse = [(1 - beta) / (1 - beta**n) for n in COUNTS]
    return K * inverse[y] / sum(inverse) * reference_focal(z, y, gamma)


def reference_ldam(z: list[float], y: int, max_margin: float, scale: float) -> float:
    margins = [n**-0.25 for n in COUNTS]
    margins = [m * max_margin / max(margins) for m in margins]
    moved = [scale * (value - margins[y] * (j == y)) for j, value in enumerate(z)]
    return -math.log(softmax(moved, [1] * K)[y])


def reference_eql(z: list[float], y: int, dropped: list[int]) -> float:
    return -math.log(softmax(z, [0 if j in dropped and j != y else 1 for j in range(K)])[y])


def reference_sigmoid_eql(z: list[float], y: int, rare: list[int]) -> float:
    return sum(binary(z[j], j == y) for j in range(K) if j == y or j not in rare)


def reference_asymmetric(z: list[float], y: int, positive: float, negative: float, margin: float) -> float:
    total = 0.0
    for j in range(K):
        p = sigmoid(z[j])
        q = max(p - margin, 0.0)
        total -= (1 - p) ** positive * math.log(p) if j == y else q**negative * math.log(1 - q)
    return total


def reference_distribution_balanced(z: list[float], y: int, gamma: float) -> float:
    total = 0.0
    for j, n_j in enumerate(COUNTS):
        repeated = (1 / n_j) / (1 / COUNTS[y])
        weight = 0.1 + sigmoid(10.0 * (repeated - 0.3))
        u = z[j] + 0.05 * math.log(n_j / (N - n_j)) / 5.0
        p = sigmoid(u) if j == y else 1 - sigmoid(5.0 * u)
        total -= weight * (1 - p) ** gamma * math.log(p) / (1.0 if j == y else 5.0)
    return total


def reference_seesaw(z: list[float], y: int, p: float) -> float:
    return -math.log(softmax(z, [min(1.0, n / COUNTS[y]) ** p for n in COUNTS])[y])


def gradient_ratio(prior: eq.Prior) -> Tensor:
    return torch.linspace(1.2, 0.6, prior.num_classes, device="cpu")


def reference_equalization_v2(z: list[float], y: int) -> float:
    total = 0.0
    for j in range(K):
        negative = sigmoid(12.0 * (1.2 - 0.2 * j - 0.8))
        total += (1 + 4.0 * (1 - negative) if j == y else negative) * binary(z[j], j == y)
    return total


def reference_federated(z: list[float], y: int, drawn: list[int]) -> float:
    return sum(binary(z[j], j == y) for j in range(K) if j == y or j in drawn)


# ------------------------------------------------------------------ the table


@dataclass(frozen=True)
class Row:
    name: str
    module: Callable[..., nn.Module]  # (prior, **options) -> loss module
    function: Callable[..., Tensor]  # (logits, target, prior, **options) -> loss
    reference: Callable[[list[float], int], float]
    plain: Callable[[Tensor, Tensor], Tensor] | None = None  # what it reduces to ...
    reduced: Callable[[], nn.Module] | None = None  # ... here
    learns: float | None = None  # σ or softmax of what a constant predictor learns, the same for every class
    binary: bool = False  # K sigmoids: classes are summed, "batchmean" exists
    soft: bool = True  # takes probabilities as target ...
    mixes: bool = True  # ... and then mixes the losses of the classes
    per_class: bool = True  # holds a vector of K classes, so that it knows how many logits to expect
    weights: tuple[float, ...] | None = None  # of the classes, where the mean divides by the weights of the rows
    needs_counts: bool = True  # warns of classes without items


def plain_softmax(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y)


def plain_sigmoid(z: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, F.one_hot(y, K).to(z.dtype))


def having_had_gradients(prior: eq.Prior, **options: object) -> nn.Module:
    loss = eq.EqualizationV2Loss(prior.num_classes, **options)  # type: ignore[arg-type]
    loss.positives, loss.negatives = gradient_ratio(prior), torch.ones(prior.num_classes, device="cpu")
    return loss


class SampledAlike(eq.FederatedLoss):
    """The same classes are sampled whatever a batch shows: every second one."""

    def sampled(self, logits: Tensor, target: Tensor, foreground: Tensor | None, keys: Tensor) -> Tensor:
        return every_second(len(keys))


def every_second(number: int) -> Tensor:
    return torch.arange(number) % 2 == 0


ROWS = [
    Row(
        "balanced_softmax",
        eq.BalancedSoftmaxLoss,
        lambda z, y, prior, **o: eq.balanced_softmax_loss(z, y, eq.softmax_shift(prior), **o),
        reference_balanced_softmax,
        plain_softmax,
        lambda: eq.BalancedSoftmaxLoss(UNIFORM),
        learns=1 / K,
    ),
    Row(
        "balanced_softmax_quarter",
        lambda prior, **o: eq.BalancedSoftmaxLoss(prior, tau=0.25, **o),
        lambda z, y, prior, **o: eq.balanced_softmax_loss(z, y, 0.25 * eq.softmax_shift(prior), **o),
        lambda z, y: reference_balanced_softmax(z, y, 0.25),
        plain_softmax,
        lambda: eq.BalancedSoftmaxLoss(PRIOR, tau=0.0),
    ),
    Row(
        "inverse_frequency",
        lambda prior, **o: eq.BalancedSoftmaxLoss(
            eq.Prior.uniform(prior.num_classes), weight=eq.inverse_frequency_weights(prior), **o
        ),
        lambda z, y, prior, **o: eq.balanced_softmax_loss(
            z, y, torch.zeros(K), weight=eq.inverse_frequency_weights(prior), **o
        ),
        reference_inverse_frequency,
        plain_softmax,
        lambda: eq.BalancedSoftmaxLoss(UNIFORM, weight=eq.inverse_frequency_weights(UNIFORM)),
        learns=1 / K,
        weights=tuple(K / n / sum(1 / m for m in COUNTS) for n in COUNTS),
    ),
    Row(
        "balanced_sigmoid",
        eq.BalancedSigmoidLoss,
        lambda z, y, prior, **o: eq.balanced_sigmoid_loss(z, y, eq.sigmoid_shift(prior), **o),
        reference_balanced_sigmoid,
        plain_sigmoid,
        lambda: eq.BalancedSigmoidLoss(UNIFORM),
        learns=1 / K,
        binary=True,
    ),
    Row(
        "balanced_sigmoid_half",
        lambda prior, **o: eq.BalancedSigmoidLoss(prior, target_rate=0.5, **o),
        lambda z, y, prior, **o: eq.balanced_sigmoid_loss(z, y, prior.logit(), **o),
        reference_balanced_sigmoid_half,
        plain_sigmoid,
        lambda: eq.BalancedSigmoidLoss(UNIFORM, target_rate=1 / K),
        learns=0.5,
        binary=True,
    ),
    Row(
        "focal",
        lambda prior, **o: eq.FocalLoss(2.0, **o),
        lambda z, y, prior, **o: eq.focal_loss(z, y, 2.0, **o),
        lambda z, y: reference_focal(z, y, 2.0),
        plain_softmax,
        lambda: eq.FocalLoss(0.0),
        needs_counts=False,
        per_class=False,
    ),
    Row(
        "focal_half",
        lambda prior, **o: eq.FocalLoss(0.5, **o),
        lambda z, y, prior, **o: eq.focal_loss(z, y, 0.5, **o),
        lambda z, y: reference_focal(z, y, 0.5),
        plain_softmax,
        lambda: eq.FocalLoss(0.0),
        needs_counts=False,
        per_class=False,
    ),
    Row(
        "sigmoid_focal",
        lambda prior, **o: eq.SigmoidFocalLoss(1.5, alpha=0.25, **o),
        lambda z, y, prior, **o: eq.sigmoid_focal_loss(z, y, 1.5, alpha=0.25, **o),
        lambda z, y: reference_sigmoid_focal(z, y, 1.5, 0.25),
        plain_sigmoid,
        lambda: eq.SigmoidFocalLoss(0.0),
        binary=True,
        needs_counts=False,
        per_class=False,
    ),
    Row(
        "class_balanced",
        lambda prior, **o: eq.ClassBalancedLoss(prior, 0.9, **o),
        lambda z, y, prior, **o: eq.class_balanced_loss(z, y, eq.effective_number_weights(prior, 0.9), **o),
        lambda z, y: reference_class_balanced(z, y, 0.9),
        plain_softmax,
        lambda: eq.ClassBalancedLoss(PRIOR, 0.0),
    ),
    Row(
        "class_balanced_focal",
        lambda prior, **o: eq.ClassBalancedLoss(prior, 0.99, base="focal", gamma=1.0, **o),
        lambda z, y, prior, **o: eq.class_balanced_loss(z, y, eq.effective_number_weights(prior, 0.99), gamma=1.0, **o),
        lambda z, y: reference_class_balanced(z, y, 0.99, 1.0),
        lambda z, y: eq.focal_loss(z, y, 1.0),
        lambda: eq.ClassBalancedLoss(PRIOR, 0.0, base="focal", gamma=1.0),
    ),
    Row(
        "ldam",
        lambda prior, **o: eq.LDAMLoss(prior, max_margin=0.4, scale=3.0, **o),
        lambda z, y, prior, **o: eq.ldam_loss(z, y, eq.ldam_margins(prior, 0.4), scale=3.0, **o),
        lambda z, y: reference_ldam(z, y, 0.4, 3.0),
        lambda z, y: F.cross_entropy(3.0 * z, y),
        lambda: eq.LDAMLoss(PRIOR, max_margin=0.0, scale=3.0),
        soft=False,
    ),
    Row(
        "eql",
        lambda prior, **o: eq.EqualizationLoss(prior, 1.0, 0.001, **o),
        lambda z, y, prior, **o: eq.equalization_loss(
            z, y, eq.rare_classes(prior, 0.001).view(-1, *[1] * (z.ndim - 2 if "dim" not in o else 0)), **o
        ),
        lambda z, y: reference_eql(z, y, [1, 2, 3]),
        plain_softmax,
        lambda: eq.EqualizationLoss(PRIOR, 0.0, 0.001),
        needs_counts=False,
        soft=False,
    ),
    Row(
        "sigmoid_eql",
        lambda prior, **o: eq.SigmoidEqualizationLoss(prior, 1e-4, **o),
        lambda z, y, prior, **o: eq.sigmoid_equalization_loss(z, y, eq.rare_classes(prior, 1e-4), **o),
        lambda z, y: reference_sigmoid_eql(z, y, [2, 3]),
        plain_sigmoid,
        lambda: eq.SigmoidEqualizationLoss(PRIOR, 0.0),
        binary=True,
        needs_counts=False,
        mixes=False,
    ),
]

ROWS += [
    Row(
        "seesaw",  # without compensation, whose gradient is not that of the value: tests/losses/test_detector_losses.py
        lambda prior, **o: eq.SeesawLoss(prior, p=0.8, q=0.0, **o),
        lambda z, y, prior, **o: eq.seesaw_loss(z, y, eq.softmax_shift(prior), p=0.8, q=0.0, **o),
        lambda z, y: reference_seesaw(z, y, 0.8),
        plain_softmax,
        lambda: eq.SeesawLoss(UNIFORM, q=0.0),
        soft=False,
    ),
    Row(
        "equalization_v2",
        having_had_gradients,
        lambda z, y, prior, **o: eq.equalization_v2_loss(z, y, gradient_ratio(prior), **o),
        reference_equalization_v2,
        plain_sigmoid,
        lambda: eq.EqualizationV2Loss(K),
        binary=True,
        needs_counts=False,
    ),
    Row(
        "federated",
        SampledAlike,
        lambda z, y, prior, **o: eq.federated_loss(z, y, every_second(prior.num_classes), **o),
        lambda z, y: reference_federated(z, y, [0, 2]),
        plain_sigmoid,
        lambda: eq.FederatedLoss(PRIOR, classes=K),
        binary=True,
        needs_counts=False,
        mixes=False,  # a class that has any share in a row counts whole
    ),
]

for gamma in (0.0, 2.0):
    ROWS.append(
        Row(
            f"distribution_balanced_{gamma:g}",
            lambda prior, gamma=gamma, **o: eq.DistributionBalancedLoss(prior, gamma=gamma, **o),
            lambda z, y, prior, gamma=gamma, **o: eq.distribution_balanced_loss(
                z, y, 1 / torch.from_numpy(prior.counts.clip(1)).float(), 0.01 * prior.logit(), gamma=gamma, **o
            ),
            lambda z, y, gamma=gamma: reference_distribution_balanced(z, y, gamma),
            plain_sigmoid,
            lambda: eq.DistributionBalancedLoss(PRIOR, alpha=0.5, beta=0.0, tolerance=1.0, kappa=0.0, gamma=0.0),
            binary=True,
            mixes=False,  # the weights depend on what else the item shows
        )
    )
    ROWS.append(
        Row(
            f"asymmetric_{gamma:g}",
            lambda prior, gamma=gamma, **o: eq.AsymmetricLoss(gamma_positive=gamma / 4, margin=gamma / 20, **o),
            lambda z, y, prior, gamma=gamma, **o: eq.asymmetric_loss(
                z, y, gamma_positive=gamma / 4, margin=gamma / 20, **o
            ),
            lambda z, y, gamma=gamma: reference_asymmetric(z, y, gamma / 4, 4.0, gamma / 20),
            plain_sigmoid,
            lambda: eq.AsymmetricLoss(gamma_negative=0.0, margin=0.0),
            binary=True,
            needs_counts=False,
            per_class=False,
        )
    )

row = pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)


def batch(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits [N, K, ...] and a target that has every class."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=torch.float64)
    target = torch.arange(math.prod(shape) // K).remainder(K).reshape(shape[:1] + shape[2:])
    return logits.to(dtype), target


def grad(loss: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(logits).sum(), logits)[0]


def reference_rows(row: Row, logits: Tensor, target: Tensor) -> list[float]:
    return [row.reference(z, y) for z, y in zip(logits.tolist(), target.tolist(), strict=True)]


# ------------------------------------------------------------------ the claims


@row
def test_every_row_of_a_batch_matches_the_papers_formula(row: Row) -> None:
    logits, target = batch(12, K)
    got = row.function(logits, target, PRIOR, reduction="none")
    got = got.sum(1) if row.binary else got
    torch.testing.assert_close(
        got, torch.tensor(reference_rows(row, logits, target), dtype=torch.float64), rtol=1e-6, atol=1e-7
    )


@row
def test_sum_and_mean_reduce_the_rows_as_documented(row: Row) -> None:
    logits, target = batch(12, K)
    target[0] = 3  # so that the classes are not equally many
    total = sum(reference_rows(row, logits, target))
    assert row.function(logits, target, PRIOR, reduction="sum").item() == pytest.approx(total, rel=1e-6)
    if row.binary:
        assert row.function(logits, target, PRIOR, reduction="batchmean").item() == pytest.approx(total / 12, rel=1e-6)
        rows = 12.0 * K
    else:
        rows = 12.0 if row.weights is None else sum(row.weights[y] for y in target.tolist())
    assert row.function(logits, target, PRIOR).item() == pytest.approx(total / rows, rel=1e-6)


@row
def test_gradient_matches_finite_differences(row: Row) -> None:
    logits, target = batch(4, K, seed=1)
    assert torch.autograd.gradcheck(lambda z: row.function(z, target, PRIOR), logits.requires_grad_())


@row
def test_it_reduces_to_the_plain_loss_where_it_says(row: Row) -> None:
    assert row.plain is not None
    assert row.reduced is not None
    logits, target = batch(12, K)
    torch.testing.assert_close(row.reduced()(logits, target), row.plain(logits, target), rtol=1e-9, atol=1e-12)


def learned(loss: Callable[[Tensor, Tensor], Tensor], share: Tensor) -> Tensor:
    """Logits [1, K] of the constant predictor of least `loss` where the classes occur in these shares."""
    logits = torch.zeros(1, K, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits], lr=1, max_iter=2000, tolerance_grad=1e-13, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def step() -> Tensor:
        optimizer.zero_grad()
        total = torch.stack([loss(logits, torch.tensor([y])).sum() for y in range(K)]) @ share
        total.backward()
        return total

    for _ in range(5):
        optimizer.step(step)
    return logits.detach()


def test_every_loss_has_a_row_here_and_one_in_the_documents() -> None:
    losses = {name for name in eq.__all__ if name.endswith("Loss")}
    made = {base.__name__ for row in ROWS for base in type(row.module(PRIOR)).__mro__}
    assert losses - made == {"BalancedLinearCrossEntropyLoss"}  # of features: tests/losses/test_linear_cross_entropy.py
    documents = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()
    assert {name for name in losses if f"[`{name}(" not in documents} == set()


@row
def test_logits_of_a_balanced_loss_are_declared_to_mean_equal_classes(row: Row) -> None:
    if row.learns is not None:
        assert row.module(PRIOR).logits_mean == "uniform"


@row
def test_a_constant_predictor_learns_what_the_table_says(row: Row) -> None:
    """The definition of the product: trained on 700,000 : 300 : 40 : 5, the balanced losses learn 1 : 1 : 1 : 1."""
    module = row.module(PRIOR, reduction="none")
    found = module.probabilities(learned(module, torch.tensor(COUNTS, dtype=torch.float64) / N))[0]
    uniform = torch.full((K,), row.learns or 1 / K, dtype=torch.float64)
    if row.learns is not None:
        torch.testing.assert_close(found, uniform, rtol=2e-3, atol=2e-4)
    else:
        assert (found - uniform).abs().max() > 0.05


@row
def test_it_declares_what_its_logits_mean(row: Row) -> None:
    """Probabilities in the shape of the logits; where the loss is plain, a constant predictor learns the shares."""
    assert row.reduced is not None
    logits, _ = batch(6, K, 3, dtype=torch.bfloat16)
    module = row.module(PRIOR)
    found = module.probabilities(logits)
    assert found.shape == logits.shape
    assert found.dtype == torch.float32
    assert (found >= 0).all()
    assert (found <= 1).all()
    if not row.binary:
        torch.testing.assert_close(found.sum(1), torch.ones(6, 3))
    torch.testing.assert_close(found, module.probabilities(logits.float()), rtol=0, atol=0)
    torch.testing.assert_close(module.probabilities(logits[0, :, 0]), found[0, :, 0])
    if row.name == "class_balanced_focal":  # reduces to the focal loss, which learns other shares than those it sees
        return
    plain, share = row.reduced(), torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    torch.testing.assert_close(plain.probabilities(learned(plain, share))[0], share, rtol=1e-4, atol=1e-5)


@row
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1e4, 80.0])
def test_extreme_logits_stay_finite(row: Row, dtype: torch.dtype, size: float) -> None:
    signs = torch.cartesian_prod(*[torch.tensor([-size, 0.0, size])] * K).to(dtype)
    for y in range(K):
        target = torch.full((len(signs),), y)
        losses = row.function(signs, target, PRIOR, reduction="none")
        gradient = grad(lambda z, y=target: row.function(z, y, PRIOR, reduction="sum"), signs)
        assert losses.dtype == torch.float32
        assert losses.isfinite().all()
        assert gradient.isfinite().all()
        assert gradient.dtype == dtype


@row
def test_half_precision_logits_give_the_loss_of_their_fp32_values(row: Row) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        logits, target = batch(8, K, dtype=dtype)
        assert torch.equal(row.function(logits, target, PRIOR), row.function(logits.float(), target, PRIOR))


@row
def test_inputs_are_not_mutated(row: Row) -> None:
    logits, target = batch(8, K, dtype=torch.float32)
    kept = logits.clone(), target.clone()
    row.function(logits, target, PRIOR)
    row.module(PRIOR)(logits, target)
    assert torch.equal(logits, kept[0])
    assert torch.equal(target, kept[1])


@row
def test_the_module_equals_the_function(row: Row) -> None:
    logits, target = batch(8, K)
    for reduction in ["mean", "sum", "none"] + ["batchmean"] * row.binary:
        torch.testing.assert_close(
            row.module(PRIOR, reduction=reduction)(logits, target),
            row.function(logits, target, PRIOR, reduction=reduction),
            rtol=1e-9,  # a constant added to all logits may differ
            atol=1e-12,
        )


@row
def test_the_module_has_no_parameters_and_keeps_its_vectors_to_the_bit(row: Row) -> None:
    module = row.module(PRIOR)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    assert list(module.parameters()) == []
    wrapped = copy.deepcopy(nn.Sequential(copy.deepcopy(module)).half().to(torch.bfloat16).to("cpu").double())
    fresh = row.module(UNIFORM)
    with warnings.catch_warnings():  # of the prior that is replaced: see below
        warnings.simplefilter("ignore")
        fresh.load_state_dict(module.state_dict())
    for other in (wrapped[0], fresh):
        after = dict(other.named_buffers())
        assert after.keys() == before.keys()
        for name, buffer in before.items():
            assert after[name].dtype == buffer.dtype
            assert torch.equal(after[name], buffer)
    assert all(b.dtype in (torch.float32, torch.bool) for b in before.values())
    assert next(iter(module.to("meta").buffers()), torch.empty(0, device="meta")).is_meta


@row
def test_a_state_dict_of_another_prior_is_not_loaded_silently(row: Row) -> None:
    module, other = row.module(PRIOR), row.module(UNIFORM)
    module.load_state_dict(row.module(PRIOR).state_dict())  # the same: no warning
    differing = [n for n, buffer in module.named_buffers() if not torch.equal(buffer, other.get_buffer(n))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nn.Sequential(module).load_state_dict(nn.Sequential(other).state_dict())
    assert [str(w.message).split(" of this")[0] for w in caught] == [
        f"the state dict replaces 0.{name}" for name in differing
    ]
    for name, warning in zip(differing, caught, strict=True):
        old, new = row.module(PRIOR).get_buffer(name), other.get_buffer(name)
        first = int((old != new).nonzero()[0])
        assert f"(class {first}: {new[first].item():.4g}, was {old[first].item():.4g}" in str(warning.message)
        assert torch.equal(module.get_buffer(name), new)


@row
def test_a_checkpoint_that_is_read_into_the_state_dict_is_noticed_too(row: Row) -> None:
    """torch.distributed.checkpoint loads in place: into the buffers themselves, before load_state_dict is called."""
    module, other = row.module(PRIOR), row.module(UNIFORM).state_dict()
    differing = [n for n, buffer in module.named_buffers() if not torch.equal(buffer, other[n])]
    for loaded, noticed in ((other, differing), (other, []), (module.state_dict(), [])):
        state = module.state_dict()
        for name, buffer in state.items():
            buffer.copy_(loaded[name])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module.load_state_dict(state)
            module.load_state_dict({name: buffer.clone() for name, buffer in state.items()})  # once more: nothing new
        assert [str(w.message).split()[4] for w in caught] == noticed


@row
def test_no_way_through_the_meta_device_leaves_garbage_for_a_prior(row: Row) -> None:
    logits, target = batch(8, K, dtype=torch.float32)
    with torch.device("meta"):
        built = row.module(PRIOR)
    expected = row.module(PRIOR)(logits, target)
    for module in (built, row.module(PRIOR), row.module(PRIOR).to("meta")):
        torch.testing.assert_close(nn.Sequential(module).to_empty(device="cpu")[0](logits, target), expected)
    emptied = row.module(PRIOR)
    for name, buffer in list(emptied.named_buffers()):
        emptied._buffers[name] = buffer.to("meta")  # as accelerate's init_empty_weights does: nothing to restore from
    emptied = emptied.to_empty(device="cpu")
    if dict(emptied.named_buffers()):
        with pytest.raises(RuntimeError, match="came from the meta device without values: load a state dict"):
            emptied(logits, target)
        emptied.load_state_dict(row.module(PRIOR).state_dict())
    torch.testing.assert_close(emptied(logits, target), expected)


@row
def test_a_loss_follows_its_logits_to_another_device(row: Row) -> None:
    """The device "meta" stands in for a GPU: tensors of two devices do not mix there either."""
    logits, target = batch(8, K, dtype=torch.float32)
    module = row.module(PRIOR)
    kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for shape in [(), (3,)]:
        dense = logits.view(8, K, *[1] * len(shape)).expand(8, K, *shape)
        away = module(dense.to("meta"), target.view(8, *[1] * len(shape)).expand(8, *shape).to("meta"))
        assert away.is_meta
        assert away.shape == ()
    for name, buffer in module.named_buffers():  # shapes alone were asked for: nothing moved
        assert torch.equal(buffer, kept[name])
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert compiled(logits.to("meta"), target.to("meta")).is_meta


@row
def test_a_loss_moves_to_its_logits_once(row: Row) -> None:
    """The buffers are on a device that no tensor of the batch is on, as before `.to("cuda")`."""
    module, moved = row.module(PRIOR), row.module(PRIOR)
    logits, target = batch(8, K, dtype=torch.float32)
    for name, buffer in module.named_buffers():
        moved._buffers[name] = Elsewhere(buffer)
    torch.testing.assert_close(moved(logits, target), module(logits, target))
    assert all(type(buffer) is Tensor and buffer.device == logits.device for buffer in moved.buffers())


class Elsewhere(Tensor):
    """A tensor that names another device, and comes from there with `.to` alone."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Elsewhere:
        return values.clone().as_subclass(cls)

    @property
    def device(self) -> torch.device:
        return torch.device("meta")

    def to(self, *args: object, **options: object) -> Tensor:
        return self.as_subclass(Tensor).to(*args, **options)


@row
@pytest.mark.parametrize("dim", [-1, 2])
def test_classes_may_be_in_any_dimension(row: Row, dim: int) -> None:
    logits, target = batch(2, K, 3, 5)
    expected = row.function(logits, target, PRIOR, reduction="none")
    moved = logits.movedim(1, dim)
    back = row.module(PRIOR, reduction="none", dim=dim)(moved, target)
    torch.testing.assert_close(back, expected.movedim(1, dim) if row.binary else expected)
    for reduction in ["mean", "sum"] + ["batchmean"] * row.binary:
        options = {"reduction": reduction, "dim": dim}
        torch.testing.assert_close(
            row.module(PRIOR, **options)(moved, target), row.function(logits, target, PRIOR, reduction=reduction)
        )
    module = row.module(PRIOR, dim=dim)
    torch.testing.assert_close(
        grad(lambda z: module(z, target), moved).movedim(dim, 1),
        grad(lambda z: row.function(z, target, PRIOR), logits),
    )
    torch.testing.assert_close(module.probabilities(moved).movedim(dim, 1), row.module(PRIOR).probabilities(logits))
    one = logits[0, :, 0, 0], target[0, 0, 0]
    torch.testing.assert_close(module(*one), row.module(PRIOR)(*one))
    if row.soft:
        hot = F.one_hot(target, K).double()
        torch.testing.assert_close(
            row.function(logits.movedim(1, -1), hot, PRIOR, dim=-1), row.function(logits, hot.movedim(-1, 1), PRIOR)
        )
    with pytest.raises(ValueError, match=r"dim is 4, but logits have shape \(2, 4, 3, 5\)"):
        row.module(PRIOR, dim=4)(logits, target)
    with pytest.raises(ValueError, match=r"expected class indices \(2, 4, 3\)|have 5 in dimension -1"):
        row.module(PRIOR, dim=-1)(logits, target)


@row
def test_indices_may_have_a_channel_and_one_hots_may_be_whole_numbers(row: Row) -> None:
    """[N, 1, H, W] and integer one-hots are what MONAI and other segmentation libraries hand out."""
    logits, target = batch(2, K, 3, 5)
    module = row.module(PRIOR)
    torch.testing.assert_close(module(logits, target.unsqueeze(1)), module(logits, target))
    flat = logits.movedim(1, -1).reshape(-1, K)
    torch.testing.assert_close(module(flat, target.reshape(-1, 1)), module(flat, target.reshape(-1)))
    with pytest.raises(TypeError, match="class indices are integers"):
        module(logits, target.unsqueeze(1).double())
    with pytest.raises(ValueError, match=r"target of shape \(2, 1, 5, 3\) does not fit"):
        module(logits, target.unsqueeze(1).mT)
    if row.soft:
        hot = F.one_hot(target, K).movedim(-1, 1)
        for dtype in (torch.uint8, torch.int32, torch.int64, torch.bool):
            torch.testing.assert_close(module(logits, hot.to(dtype)), module(logits, hot.double()))


@pytest.mark.parametrize("row", [r for r in ROWS if r.soft and not r.binary], ids=lambda r: r.name)
@pytest.mark.parametrize("ignore", [-1, 255])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_rows_of_a_one_hot_do_not_count(row: Row, ignore: int, reduction: str) -> None:
    """With 255 as label maps have it, which torch refuses in any target of the logits' shape."""
    logits, target = batch(2, K, 3, 5)
    options: dict[str, Any] = {"ignore_index": ignore, "reduction": reduction}
    hot = F.one_hot(target, K).movedim(-1, 1)
    soft = hot.double()
    torch.testing.assert_close(
        row.function(logits, soft, PRIOR, **options), row.function(logits, soft, PRIOR, reduction=reduction)
    )
    target[0, :2] = ignore
    hot[0, :, :2] = ignore
    if row.weights is None or reduction != "mean":  # torch's mean is by the weights of indices, and by rows otherwise
        expected = grad(lambda z: row.function(z, target, PRIOR, **options).sum(), logits)
        found = grad(lambda z: row.function(z, hot, PRIOR, **options).sum(), logits)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            row.function(logits, hot, PRIOR, **options), row.function(logits, target, PRIOR, **options)
        )
    hot[:] = ignore
    assert not row.function(logits, hot, PRIOR, **options).any()
    with pytest.raises(ValueError, match=f"ignore_index is 0, one of the {K} classes"):
        row.function(logits, soft, PRIOR, ignore_index=0)


BINARY = pytest.mark.parametrize("row", [r for r in ROWS if r.binary], ids=lambda r: r.name)


@BINARY
@pytest.mark.parametrize(
    ("dtype", "ignore", "missing"),
    [(torch.float32, -100, math.nan), (torch.float64, -1, -1), (torch.bfloat16, -1, math.nan), (torch.int64, -1, -1)],
)
def test_single_labels_that_are_missing_do_not_count(row: Row, dtype: torch.dtype, ignore: int, missing: float) -> None:
    logits, _ = batch(6, K)
    generator = torch.Generator().manual_seed(3)
    known = torch.rand(6, K, generator=generator) < 0.6
    known[2], known[3] = False, True
    answers = (torch.rand(6, K, generator=generator) < 0.5) & known  # what is missing is no positive of its item
    target = answers.to(dtype).masked_fill(~known, missing)
    each = row.function(logits, answers.double(), PRIOR, reduction="none") * known
    expected = {"none": each, "sum": each.sum(), "mean": each.sum() / known.sum()}
    expected["batchmean"] = each.sum() / known.any(1).sum()
    for reduction, value in expected.items():
        module = row.module(PRIOR, ignore_index=ignore, reduction=reduction)
        torch.testing.assert_close(module(logits, target), value)
        moved = row.module(PRIOR, ignore_index=ignore, reduction=reduction, dim=-1)
        torch.testing.assert_close(moved(logits.unsqueeze(1), target.unsqueeze(1)).view_as(value), value)
    module = row.module(PRIOR, ignore_index=ignore)
    gradient = grad(lambda z: module(z, target), logits)
    assert torch.equal(gradient[~known], torch.zeros(int((~known).sum()), dtype=torch.float64))
    counted = grad(lambda z: row.function(z, answers.double(), PRIOR, reduction="none") * known, logits)
    torch.testing.assert_close(gradient, counted / known.sum())
    nothing = torch.full_like(target, missing)
    assert module(logits, nothing).item() == 0
    assert (grad(lambda z: module(z, nothing), logits) == 0).all()
    torch._dynamo.reset()
    torch.testing.assert_close(
        torch.compile(module, fullgraph=True, backend="eager")(logits, target), module(logits, target)
    )


@BINARY
def test_an_answer_cannot_mark_a_missing_label(row: Row) -> None:
    for ignore in (0, 1):
        module = row.module(PRIOR, ignore_index=ignore)
        with pytest.raises(ValueError, match=f"ignore_index is {ignore}, which is an answer"):
            module(torch.zeros(2, K), torch.ones(2, K))
        with pytest.raises(ValueError, match="which is an answer"):
            module(torch.zeros(K), torch.ones(K))
        module(torch.zeros(2, K), torch.tensor([0, 1]))  # of class indices it is one


@row
def test_dense_and_single_inputs_agree_with_the_flat_batch(row: Row) -> None:
    logits, target = batch(2, K, 3, 2)
    flat, flat_target = logits.movedim(1, -1).reshape(-1, K), target.reshape(-1)
    torch.testing.assert_close(row.function(logits, target, PRIOR), row.function(flat, flat_target, PRIOR))
    rows = row.function(flat, flat_target, PRIOR, reduction="none")
    for z, y, expected in zip(flat, flat_target, rows, strict=True):
        torch.testing.assert_close(row.module(PRIOR, reduction="none")(z, y), expected)


@row
def test_ignored_rows_do_not_count(row: Row) -> None:
    logits, target = batch(8, K)
    ignored = target.clone()
    ignored[5:] = -100
    for reduction in ["mean", "sum"] + ["batchmean"] * row.binary:
        torch.testing.assert_close(
            row.function(logits, ignored, PRIOR, reduction=reduction),
            row.function(logits[:5], target[:5], PRIOR, reduction=reduction),
        )
    assert (grad(lambda z: row.function(z, ignored, PRIOR), logits)[5:] == 0).all()
    other = torch.where(ignored == -100, 7, ignored)
    torch.testing.assert_close(row.module(PRIOR, ignore_index=7)(logits, other), row.module(PRIOR)(logits, ignored))


@row
def test_small_integers_name_the_same_classes_as_large_ones(row: Row) -> None:
    """As 8 bits without a sign, −100 is 156: a class of this prior, and no reason to ignore it."""
    prior = eq.Prior.from_counts(range(1, 201))
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([156, 0, 99])
    for reduction in ["mean", "none"] + ["batchmean"] * row.binary:
        module = row.module(prior, reduction=reduction)
        torch.testing.assert_close(module(logits, target.to(torch.uint8)), module(logits, target))


@row
@pytest.mark.parametrize("rows", [0, 3])
def test_a_batch_in_which_nothing_counts_gives_zero_with_zero_gradient(row: Row, rows: int) -> None:
    logits, target = torch.randn(rows, K), torch.full((rows,), -100)
    for reduction in ["mean", "sum"] + ["batchmean"] * row.binary:
        assert row.function(logits, target, PRIOR, reduction=reduction).item() == 0
        assert (grad(lambda z, r=reduction: row.function(z, target, PRIOR, reduction=r), logits) == 0).all()
        if row.soft and not rows:
            assert row.function(logits, torch.zeros(0, K), PRIOR, reduction=reduction).item() == 0


@row
def test_classes_without_a_single_item_stay_finite_even_as_target(row: Row) -> None:
    logits, target = batch(8, K, dtype=torch.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = row.module(WITH_ABSENT)
    assert [str(w.message)[:36] for w in caught] == ["1 of 4 classes have no item (2): eac"] * row.needs_counts
    assert module(logits, target).isfinite()
    assert grad(lambda z: module(z, target), logits).isfinite().all()
    if row.soft:
        soft = torch.full((8, K), 1 / K)
        assert grad(lambda z: module(z, soft), logits).isfinite().all()


@row
def test_indices_and_their_one_hot_probabilities_give_the_same_loss(row: Row) -> None:
    logits, target = batch(8, K)
    hot = F.one_hot(target, K).double()
    if not row.soft:
        with pytest.raises(ValueError, match="pass class indices"):
            row.function(logits, hot, PRIOR)
    elif row.weights is None:
        torch.testing.assert_close(row.function(logits, hot, PRIOR), row.function(logits, target, PRIOR))
    else:
        torch.testing.assert_close(
            row.function(logits, hot, PRIOR, reduction="sum"), row.function(logits, target, PRIOR, reduction="sum")
        )


# sigmoid_eql is linear only in hard targets: there the weight of a class depends on the target itself
@pytest.mark.parametrize("row", [r for r in ROWS if r.soft and r.mixes], ids=lambda r: r.name)
def test_soft_targets_mix_the_losses_of_the_classes(row: Row) -> None:
    """Mixup: for a target of λ a + (1 − λ) b the loss is λ loss(a) + (1 − λ) loss(b)."""
    logits, target = batch(8, K)
    other = (target + 1) % K
    mixed = 0.3 * F.one_hot(target, K).double() + 0.7 * F.one_hot(other, K).double()
    expected = 0.3 * row.function(logits, target, PRIOR, reduction="sum") + 0.7 * row.function(
        logits, other, PRIOR, reduction="sum"
    )
    torch.testing.assert_close(row.function(logits, mixed, PRIOR, reduction="sum"), expected)


@row
def test_compiles_into_one_graph(row: Row) -> None:
    torch._dynamo.reset()
    logits, target = batch(8, K, dtype=torch.float32)
    module = row.module(PRIOR)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, target), module(logits, target))
    torch.testing.assert_close(grad(lambda z: compiled(z, target), logits), grad(lambda z: module(z, target), logits))


@row
def test_per_sample_gradients_with_vmap(row: Row) -> None:
    logits, target = batch(6, K)
    module = row.module(PRIOR)
    each = torch.func.vmap(torch.func.grad(lambda z, y: module(z, y)), randomness="different")(logits, target)
    for z, y, expected in zip(logits, target, each, strict=True):
        torch.testing.assert_close(grad(lambda v, y=y: module(v, y), z), expected)


@row
def test_under_autocast_the_loss_is_fp32(row: Row) -> None:
    features, target = torch.randn(8, 5), torch.arange(8) % K
    linear, module = nn.Linear(5, K), row.module(PRIOR)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = linear(features)
        loss = module(logits, target)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, module(logits.float(), target))


@row
def test_wrong_shapes_and_dtypes_are_refused_with_the_way_out(row: Row) -> None:
    module = row.module(PRIOR)
    if row.per_class:
        with pytest.raises(ValueError, match=r"has 4 classes, logits of shape \(2, 3\) have 3"):
            module(torch.zeros(2, 3), torch.tensor([0, 3]))  # a class that the logits lack: the size is said first
    with pytest.raises(ValueError, match=r"target of shape \(3,\) does not fit logits of shape \(2, 4\)"):
        module(torch.zeros(2, K), torch.tensor([0, 1, 2]))
    with pytest.raises(TypeError, match="class indices are integers"):
        module(torch.zeros(2, K), torch.tensor([0.0, 1.0]))
    with pytest.raises(TypeError, match="expected floating point"):
        module(torch.zeros(2, K, dtype=torch.long), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="expected one of 'mean', 'sum', 'none'"):
        row.module(PRIOR, reduction="average")
