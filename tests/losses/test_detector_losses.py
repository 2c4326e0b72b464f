"""What the contract cannot hold: state, sampling, and a gradient that is not that of the value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.models.mask_rcnn import equalized_v2_sigmoid, federated_sigmoid, seesaw

PRIOR = eq.Prior.from_counts([400, 100, 25, 4])


def softmax(z: list[float]) -> list[float]:
    return [math.exp(value) / sum(map(math.exp, z)) for value in z]


# -------------------------------------------------------------------- seesaw


def factors(z: list[float], y: int, p: float, q: float) -> list[float]:
    counts, scores = PRIOR.counts.tolist(), softmax(z)
    mitigation = [min(1.0, (n / counts[y]) ** p) for n in counts]
    compensation = [max(1.0, (s / max(scores[y], 0.01)) ** q) for s in scores]
    return [1.0 if j == y else mitigation[j] * compensation[j] for j in range(4)]


@pytest.mark.parametrize("q", [0.5, 2.0])
def test_seesaw_matches_the_formula_and_sends_no_gradient_through_the_compensation(q: float) -> None:
    logits = 3 * torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.arange(12) % 4
    given = logits.clone().requires_grad_()
    losses = eq.SeesawLoss(PRIOR, p=0.8, q=q, reduction="none")(given, target)
    losses.sum().backward()
    for z, y, loss, gradient in zip(
        logits.tolist(), target.tolist(), losses.tolist(), given.grad.tolist(), strict=True
    ):  # type: ignore[union-attr]
        s = factors(z, y, 0.8, q)
        terms = [factor * math.exp(value) for factor, value in zip(s, z, strict=True)]
        assert loss == pytest.approx(-math.log(terms[y] / sum(terms)), rel=1e-6)
        expected = [term / sum(terms) - (j == y) for j, term in enumerate(terms)]
        assert gradient == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert any(max(factors(z, y, 0.0, q)) > 1.5 for z, y in zip(logits.tolist(), target.tolist(), strict=True))


def test_seesaw_with_compensation_takes_classes_in_the_last_dimension() -> None:
    logits = 3 * torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(2))
    target = (torch.arange(10) % 4).view(2, 5)
    expected = eq.SeesawLoss(PRIOR, reduction="none")(logits, target)
    torch.testing.assert_close(eq.SeesawLoss(PRIOR, reduction="none", dim=-1)(logits.mT, target), expected)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (PRIOR, TypeError, "log_prior is a Prior"),
        (torch.tensor([400, 100, 25, 4]), TypeError, "log_prior is torch.int64, like counts"),
        (torch.tensor([400.0, 100.0, 25.0, 4.0]), ValueError, "log_prior goes up to 400, like counts"),
        (torch.tensor([0.7, 0.1, 0.1, 0.1]), ValueError, "and sum 1, like probabilities"),
    ],
)
def test_seesaw_takes_logs_and_nothing_else(given: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        eq.seesaw_loss(torch.zeros(1, 4), torch.tensor([0]), given)  # type: ignore[arg-type]


def test_a_detector_with_seesaw_loss_tells_objects_from_background_and_then_which() -> None:
    part = seesaw(PRIOR)
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 3, 1, part.ignored])
    holds = torch.tensor([0.0, 1.0, 1.0])
    objects = torch.nn.functional.binary_cross_entropy_with_logits(logits[:3, 0], holds, reduction="sum")
    which = eq.SeesawLoss(PRIOR, reduction="sum")(logits[1:3, 1:], torch.tensor([2, 0]))
    torch.testing.assert_close(part.loss(logits, labels), (objects + which) / 3)
    scores = part.scores(logits)
    assert scores.shape == (4, 4)
    torch.testing.assert_close(scores.sum(1), logits[:, 0].sigmoid())
    nothing = logits.clone().requires_grad_()
    part.loss(nothing, torch.full((4,), part.ignored)).backward()
    assert not nothing.grad.any()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="unverified classes"):
        part.loss(logits, labels, torch.ones(4, 4))


# -------------------------------------------------------------------- equalization v2


def test_gradients_add_up_with_the_weights_of_their_time() -> None:
    loss = eq.EqualizationV2Loss(2, reduction="batchmean")
    logits, target = torch.tensor([[0.5, -1.0], [2.0, 0.0]]), torch.tensor([0, 7])
    foreground = torch.tensor([True, False])
    loss.observe(logits, target, foreground)
    scores = logits.sigmoid()
    torch.testing.assert_close(loss.positives, torch.tensor([1 - scores[0, 0], 0.0]))
    torch.testing.assert_close(loss.negatives, torch.stack([scores[1, 0], scores[0, 1] + scores[1, 1]]))
    before, negative = loss.negatives.clone(), torch.sigmoid(12 * (loss.ratio - 0.8))
    loss.observe(logits, torch.tensor([-100, 1]), foreground)  # the first row is ignored
    torch.testing.assert_close(loss.negatives - before, negative * scores[1])


def test_labels_that_are_missing_give_no_gradient_wherever_the_classes_are() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, weight = torch.randn(3, 4, 5, generator=generator), torch.rand(3, 4, 5, generator=generator)
    known = torch.rand(3, 4, 5, generator=generator) < 0.6
    answers = (torch.rand(3, 4, 5, generator=generator) < 0.5).float()
    plain = eq.EqualizationV2Loss(4)
    plain.observe(logits, answers, weight=weight * known)
    assert (plain.positives > 0).all()
    for missing, target in [(-1, answers.masked_fill(~known, -1)), (-100, answers.masked_fill(~known, math.nan))]:
        for dim in (1, -1):
            loss = eq.EqualizationV2Loss(4, ignore_index=missing, dim=dim)
            loss.observe(*(value.movedim(1, dim) for value in (logits, target)), weight=weight.movedim(1, dim))
            torch.testing.assert_close(loss.positives, plain.positives)
            torch.testing.assert_close(loss.negatives, plain.negatives)


def test_rows_may_be_observed_wherever_the_classes_are() -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    target, foreground = torch.arange(15).view(3, 5) % 4, torch.arange(15).view(3, 5) % 3 > 0
    target[0] = -100
    first, last, one = eq.EqualizationV2Loss(4), eq.EqualizationV2Loss(4, dim=-1), eq.EqualizationV2Loss(4, dim=-1)
    first.observe(logits, target.unsqueeze(1), foreground)
    last.observe(logits.mT, target, foreground)
    torch.testing.assert_close(last.state_dict(), first.state_dict())
    one.observe(logits[1, :, 0], target[1, 0])
    scores, hot = logits[1, :, 0].sigmoid(), torch.arange(4) == target[1, 0]
    torch.testing.assert_close(one.positives, torch.where(hot, 1 - scores, 0.0))
    torch.testing.assert_close(one.negatives, torch.where(hot, 0.0, scores))


def test_gradients_of_a_checkpoint_are_loaded_and_none_are_made_up() -> None:
    loss = eq.EqualizationV2Loss(2)
    loss.observe(torch.zeros(3, 2), torch.tensor([0, 0, 1]))
    other = eq.EqualizationV2Loss(2)
    other.load_state_dict(loss.state_dict())  # no warning of another prior: there is none
    assert torch.equal(other.ratio, loss.ratio)
    for name, buffer in list(other.named_buffers()):
        other._buffers[name] = buffer.to("meta")
    with pytest.raises(RuntimeError, match="came from the meta device without values"):
        other.to_empty(device="cpu").observe(torch.zeros(3, 2), torch.tensor([0, 0, 1]))


def test_a_class_that_had_few_positives_is_spared_negatives() -> None:
    loss = eq.EqualizationV2Loss(2, reduction="none")
    for _ in range(50):
        loss.observe(torch.zeros(10, 2), torch.zeros(10, dtype=torch.long))
    assert loss.ratio.tolist() == [100.0, 0.0]
    common, rare = loss(torch.zeros(2, 2), torch.tensor([0, 1]))[torch.tensor([1, 0]), torch.tensor([0, 1])]
    assert rare < 0.01 < common


def test_a_detector_observes_what_it_trains_on_and_nothing_else() -> None:
    part = equalized_v2_sigmoid(PRIOR)
    logits, labels = torch.zeros(3, 4), torch.tensor([0, 1, part.ignored])
    part.loss(logits, labels)
    assert part.criterion.negatives.sum() == 0  # type: ignore[union-attr]
    part.loss(logits.requires_grad_(), labels)
    assert part.criterion.positives.tolist() == [0.5, 0.0, 0.0, 0.0]  # type: ignore[union-attr]
    assert part.criterion.negatives.tolist() == [0.5, 1.0, 1.0, 1.0]  # type: ignore[union-attr]


# -------------------------------------------------------------------- federated


def test_classes_of_the_batch_are_sampled_and_others_by_the_root_of_their_counts() -> None:
    loss = eq.FederatedLoss(PRIOR, classes=2)
    logits, target = torch.zeros(3, 4), torch.tensor([2, 2, -100])
    random, times = np.random.default_rng(0), 4000
    drawn = torch.zeros(4)
    for _ in range(times):
        chosen = loss.sampled(logits, target, None, torch.from_numpy(loss.keys(random)))
        assert chosen[2]
        assert chosen.sum() == 2
        drawn += chosen
    share = torch.tensor([20.0, 10.0, 0.0, 2.0]) / 32
    torch.testing.assert_close(drawn[[0, 1, 3]] / times, share[[0, 1, 3]], atol=0.03, rtol=0)
    every = loss.sampled(logits, torch.tensor([0, 1, 2]), None, torch.rand(4))
    assert every.tolist() == [True, True, True, False]


def test_labels_that_are_missing_show_no_class_wherever_the_classes_are() -> None:
    logits, keys = torch.zeros(2, 4, 3), torch.tensor([9.0, 9.0, 9.0, 9.0])
    target = torch.zeros(2, 4, 3)
    target[0, 3, 1] = 1
    expected = [True, False, False, True]  # 3 is shown, and 0 is drawn: the most images
    for missing, ignored in [(-1.0, -1), (math.nan, -100), (7.0, 7)]:
        target[1, 2, 0] = missing
        for dim in (1, -1):
            loss = eq.FederatedLoss(PRIOR, classes=2, ignore_index=ignored, dim=dim)
            assert loss.sampled(logits.movedim(1, dim), target.movedim(1, dim), None, keys).tolist() == expected
    indices, foreground = torch.tensor([[3, -100, 1], [3, 3, 3]]), torch.ones(2, 3, dtype=torch.bool)
    foreground[0, 2] = False
    loss = eq.FederatedLoss(PRIOR, classes=2, dim=-1)
    assert loss.sampled(logits.mT, indices, foreground, keys).tolist() == expected
    with pytest.raises(ValueError, match=r"prior has 4 classes, logits of shape \(2, 3\) have 3"):
        loss.sampled(torch.zeros(2, 3), torch.tensor([0, 3]), None, keys)


def test_classes_are_sampled_where_the_logits_are() -> None:
    """The device "meta" stands in for a GPU, and a compiled loss does not move its vectors."""
    loss = eq.FederatedLoss(PRIOR, classes=2)
    logits, target, keys = torch.zeros(3, 4), torch.tensor([0, 1, 1]), torch.ones(4)
    assert loss(logits.to("meta"), target.to("meta")).is_meta
    assert loss(logits.to("meta"), target.to("meta"), drawn=keys).is_meta
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert compiled(logits.to("meta"), target.to("meta")).is_meta
    torch.testing.assert_close(compiled(logits, target, drawn=keys), loss(logits, target, drawn=keys))


def test_a_draw_of_the_callers_decides_the_loss() -> None:
    loss = eq.FederatedLoss(PRIOR, classes=2, reduction="sum")
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    keys = torch.tensor([9.0, 9.0, 9.0, 1e-3])
    expected = eq.federated_loss(logits, torch.tensor([0]), torch.tensor([True, False, False, True]), reduction="sum")
    assert loss(logits, torch.tensor([0]), drawn=keys) == expected


def test_background_boxes_show_no_class_and_unseen_classes_are_never_drawn() -> None:
    prior = eq.Prior.from_counts([400, 100, 0, 4])
    loss = eq.FederatedLoss(prior, classes=3)
    logits, target = torch.zeros(2, 4), torch.tensor([1, 3])
    foreground = torch.tensor([True, False])
    found = [loss.sampled(logits, target, foreground, torch.rand(4) + 0.1).tolist() for _ in range(20)]
    assert found == [[True, True, False, True]] * 20
    part = federated_sigmoid(prior, classes=4)
    plain = eq.FederatedLoss(prior, classes=4, reduction="batchmean")(logits, target - 1, torch.tensor([True, True]))
    assert part.loss(logits, target) == plain


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eq.FederatedLoss(PRIOR, classes=0), "classes is 0"),
        (lambda: eq.SeesawLoss(PRIOR, p=-1.0), "p is -1.0"),
    ],
)
def test_options_without_a_meaning_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
