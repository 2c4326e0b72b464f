"""What single losses promise beyond the contract."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise as eq
from equipoise.compiling import compiles_priors
from equipoise.losses.balanced_sigmoid import dense_target

COUNTS = [1000, 100, 10]
PRIOR = eq.Prior.from_counts(COUNTS)
LOGITS = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGET = torch.tensor([0, 1, 2, 0, 0, 1, 2, 2, 0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, torch.tensor([0.2, 1.0, 3.0])])
def test_balanced_softmax_has_every_option_of_cross_entropy(
    reduction: str, smoothing: float, weight: torch.Tensor | None
) -> None:
    target = TARGET.clone()
    target[3] = -100
    double = None if weight is None else weight.double()
    shift = torch.tensor(COUNTS, dtype=torch.float64).log()
    soft = torch.softmax(LOGITS.flip(0), 1)
    loss = eq.BalancedSoftmaxLoss(PRIOR, weight=weight, label_smoothing=smoothing, reduction=reduction)
    for y in (target, soft):
        expected = F.cross_entropy(LOGITS + shift, y, double, label_smoothing=smoothing, reduction=reduction)
        torch.testing.assert_close(loss(LOGITS, y), expected, rtol=1e-6, atol=1e-7)


def test_smoothing_towards_a_class_without_items_stays_finite() -> None:
    with pytest.warns(UserWarning, match="no item"):
        loss = eq.BalancedSoftmaxLoss(eq.Prior.from_counts([100, 0, 5]), label_smoothing=0.1)
    logits = LOGITS.float().requires_grad_()
    loss(logits, TARGET).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_one_hots_are_smoothed_as_indices_are_and_ignored_ones_are_not() -> None:
    target = TARGET.clone()
    for ignored in (False, True):
        if ignored:
            target[1] = 255
        hot = F.one_hot(torch.where(target == 255, 0, target), 3)
        hot[target == 255] = 255
        for weight in (None, torch.tensor([1.0, 2.0, 3.0])):
            loss = eq.BalancedSoftmaxLoss(PRIOR, label_smoothing=0.1, ignore_index=255, weight=weight, reduction="sum")
            torch.testing.assert_close(loss(LOGITS, hot), loss(LOGITS, target))


@pytest.mark.parametrize("ignore", [-100, -1, 255])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_a_target_that_lacks_nothing_is_not_copied_to_leave_things_out(dtype: torch.dtype, ignore: int) -> None:
    target = F.one_hot(TARGET, 3).to(dtype)
    whole, counts = dense_target(LOGITS, target, None, ignore)
    assert counts is None
    assert torch.equal(whole, target.to(LOGITS.dtype))
    for missing in (ignore, math.nan) if dtype.is_floating_point else (ignore,):
        part = target.clone()
        part[0, 1] = missing
        counts = dense_target(LOGITS, part, None, ignore)[1]
        assert counts is not None
        assert int(counts.logical_not().sum()) == 1


def test_weights_of_zero_give_zero_loss_and_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    zero = torch.zeros(3)
    for loss in (
        eq.BalancedSoftmaxLoss(PRIOR, weight=zero),
        eq.FocalLoss(2.0, weight=zero),
        eq.LDAMLoss(PRIOR, weight=zero),
        eq.EqualizationLoss(PRIOR, 0.9, 0.05, weight=zero),
    ):
        value = loss(logits, TARGET)
        assert value.item() == 0
        assert (torch.autograd.grad(value, logits)[0] == 0).all()


def test_weights_of_another_size_are_refused() -> None:
    for loss in (eq.BalancedSoftmaxLoss(PRIOR, weight=torch.ones(4)), eq.FocalLoss(1.0, weight=torch.ones(4))):
        with pytest.raises(ValueError, match="weight has 4 classes, logits of shape"):
            loss(LOGITS, TARGET)


def test_focal_weights_divide_as_in_cross_entropy() -> None:
    weight = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    got = eq.FocalLoss(0.0, weight=weight)(LOGITS, TARGET)
    torch.testing.assert_close(got, F.cross_entropy(LOGITS, TARGET, weight))


def test_inverse_frequency_weights_sum_to_the_number_of_classes() -> None:
    weights = eq.inverse_frequency_weights(PRIOR)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(), torch.tensor(3.0))
    torch.testing.assert_close(weights * torch.tensor(COUNTS), (weights * torch.tensor(COUNTS))[:1].expand(3))
    with pytest.warns(UserWarning, match="no item"):
        with_absent = eq.inverse_frequency_weights(eq.Prior.from_counts([30, 0, 10]))
    torch.testing.assert_close(with_absent, torch.tensor([0.75, 22.5, 2.25]))


def test_effective_number_weights_go_from_equal_to_inverse_frequency() -> None:
    torch.testing.assert_close(eq.effective_number_weights(PRIOR, 0.0), torch.ones(3))
    torch.testing.assert_close(
        eq.effective_number_weights(PRIOR, 1 - 1e-9), eq.inverse_frequency_weights(PRIOR), rtol=1e-5, atol=0
    )
    for beta in (1.0, -0.1):
        with pytest.raises(ValueError, match=r"in \[0, 1\)"):
            eq.effective_number_weights(PRIOR, beta)


def test_focal_matches_the_textbook_where_that_is_finite_and_goes_on_where_it_is_not() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0], [200.0, 0.0, 0.0]], requires_grad=True)
    target = torch.tensor([0, 0])
    value = eq.focal_loss(logits, target, 0.3, reduction="sum")
    gradient = torch.autograd.grad(value, logits)[0]
    assert value.isfinite()
    assert gradient.isfinite().all()
    p = logits.detach().softmax(1)[:, 0]
    textbook = torch.autograd.grad(
        (-((1 - logits.softmax(1)[:, 0]) ** 0.3) * logits.log_softmax(1)[:, 0]).sum(), logits
    )
    assert (p == 1).all()
    assert textbook[0].isnan().any(), "if this holds no more, the stable form may go"


def test_focal_with_one_class_is_zero() -> None:
    logits = torch.randn(4, 1, requires_grad=True)
    loss = eq.FocalLoss(2.0)(logits, torch.zeros(4, dtype=torch.long))
    assert loss.item() == 0
    assert (torch.autograd.grad(loss, logits)[0] == 0).all()


def test_focal_bears_a_masked_class() -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf]], requires_grad=True)
    for gamma in (0.0, 0.5, 2.0):
        for loss in (eq.FocalLoss(gamma), eq.ClassBalancedLoss(PRIOR, 0.9, "focal", gamma=gamma)):
            gradient = torch.autograd.grad(loss(logits, torch.tensor([0])), logits)[0]
            assert gradient.isfinite().all()


def test_focal_keeps_the_precision_of_the_logits() -> None:
    weight, soft = torch.ones(3, dtype=torch.float64), torch.full((9, 3), 1 / 3, dtype=torch.float64)
    assert eq.FocalLoss(2.0, weight=weight)(LOGITS.float(), TARGET).dtype == torch.float32
    assert eq.FocalLoss(2.0)(LOGITS.float(), soft).dtype == torch.float32


def test_ldam_margin_is_largest_for_the_rarest_class_that_occurs() -> None:
    torch.testing.assert_close(eq.ldam_margins(eq.Prior.from_counts([160, 10]), 0.4), torch.tensor([0.2, 0.4]))
    with pytest.warns(UserWarning, match="no item"):
        margins = eq.ldam_margins(eq.Prior.from_counts([160, 0, 10]), 0.4)
    torch.testing.assert_close(margins, torch.tensor([0.2, 0.4, 0.4]))


def test_eql_drops_rare_classes_at_the_rate_gamma_and_never_the_own_class() -> None:
    loss = eq.EqualizationLoss(PRIOR, gamma=0.3, threshold=0.5)
    drop = loss.draw(20_000, np.random.default_rng(0))
    assert not drop[:, 0].any()
    # four standard deviations: sqrt(0.3 * 0.7 / 40000) = 0.0023
    assert drop[:, 1:].mean() == pytest.approx(0.3, abs=0.01)
    assert (drop[:, 1] != drop[:, 2]).any()
    everything = torch.ones(1, 3, dtype=torch.bool)
    assert eq.equalization_loss(torch.randn(1, 3), torch.tensor([1]), everything).item() == 0


def test_eql_draws_anew_at_every_call_and_again_for_a_seed() -> None:
    loss = eq.EqualizationLoss(PRIOR, gamma=0.5, threshold=0.5)
    logits, target = LOGITS.repeat(50, 1), TARGET.repeat(50)
    torch.manual_seed(1)
    first, second = loss(logits, target), loss(logits, target)
    torch.manual_seed(1)
    assert torch.equal(loss(logits, target), first)
    assert not torch.equal(first, second)


def test_eql_drops_what_was_drawn_for_it() -> None:
    loss = eq.EqualizationLoss(PRIOR, gamma=0.5, threshold=0.5)
    drawn = torch.from_numpy(loss.draw(len(LOGITS), np.random.default_rng(0)))
    chance = np.random.default_rng(0).random((len(LOGITS), 3), np.float32)  # one stream, row after row
    assert torch.equal(drawn, torch.from_numpy(chance < 0.5) & loss.rare)
    torch.testing.assert_close(loss(LOGITS, TARGET, drawn), eq.equalization_loss(LOGITS, TARGET, drawn))


def test_sigmoid_eql_spares_rare_classes_on_foreground_rows_only() -> None:
    rare, foreground = eq.rare_classes(PRIOR, 0.05), torch.tensor([True, False])
    logits = LOGITS[:2].clone().requires_grad_()
    loss = eq.sigmoid_equalization_loss(logits, torch.tensor([0, 99]), rare, foreground=foreground, reduction="sum")
    gradient = torch.autograd.grad(loss, logits)[0]
    assert gradient[0, 2] == 0
    assert gradient[1, 2] > 0


def test_balanced_sigmoid_shifts_foreground_rows_only() -> None:
    """Background rows take the plain sigmoid, and mean none of the classes whatever their index."""
    shift = eq.sigmoid_shift(PRIOR, 0.5)
    foreground = torch.tensor([True, False])
    loss = eq.BalancedSigmoidLoss(PRIOR, target_rate=0.5, reduction="none")
    got = loss(LOGITS[:2], torch.tensor([1, 3]), foreground)
    hot = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    moved = LOGITS[:2] + torch.stack([shift, torch.zeros(3)])
    expected = F.binary_cross_entropy_with_logits(moved, hot, reduction="none")
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(loss(LOGITS[:2], hot, foreground), expected)


def test_foreground_must_be_bool_and_one_a_row() -> None:
    for loss in (eq.BalancedSigmoidLoss(PRIOR), eq.SigmoidEqualizationLoss(PRIOR, 0.1)):
        with pytest.raises(TypeError, match=r"foreground is torch\.float32: expected bool"):
            loss(LOGITS, TARGET, torch.ones(9))
        with pytest.raises(ValueError, match=r"foreground of shape \(3,\)"):
            loss(LOGITS, TARGET, torch.ones(3, dtype=torch.bool))


@pytest.mark.skipif(not compiles_priors(), reason="needs torch 2.12")
def test_activations_and_adjustment_compile_whole_and_follow_the_prior() -> None:
    other = eq.Prior.from_counts([3, 50, 7])
    for function in (
        lambda z, p: eq.balanced_softmax(z, p),
        lambda z, p: eq.log_balanced_softmax(z, p, tau=0.5),
        lambda z, p: eq.balanced_sigmoid(z, p),
        lambda z, p: eq.adjust_logits(z, source=p),
        lambda z, p: eq.adjust_logits(z, source=p, target=other),
        lambda z, p: eq.adjust_sigmoid_logits(z, source=p, target_rate=0.5),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for prior in (PRIOR, other, PRIOR):
            torch.testing.assert_close(compiled(LOGITS, prior), function(LOGITS, prior))


def test_an_older_compiler_says_what_to_do_with_a_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.compiling.compiles_priors", lambda: False)
    for function in (lambda z: eq.balanced_softmax(z, PRIOR), lambda z: eq.balanced_sigmoid(z, PRIOR)):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="compile a module that holds the shift"):
            torch.compile(function, fullgraph=True, backend="aot_eager")(LOGITS)
    torch._dynamo.reset()


@pytest.mark.skipif(not compiles_priors(), reason="needs torch 2.12")
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_vector_is_not_baked_into_a_compiled_graph(kind: Any) -> None:
    """It would silently stay that of the first call."""
    for function in (
        lambda z, p: eq.adjust_logits(z, target=p),
        lambda z, p: eq.adjust_sigmoid_logits(z, source=p, target_rate=0.5),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        with pytest.raises(Exception, match="pass a Prior made outside of it"):
            compiled(LOGITS, kind([0.5, 0.3, 0.2]))


@pytest.mark.parametrize("loss", [eq.BalancedSigmoidLoss(PRIOR), eq.SigmoidFocalLoss(2.0), eq.FocalLoss(1.0)], ids=repr)
def test_losses_export_with_a_dynamic_batch(loss: nn.Module) -> None:
    batch = torch.export.Dim("batch", min=2)
    soft = LOGITS.softmax(1)
    exported = torch.export.export(loss, (LOGITS, soft), dynamic_shapes=({0: batch}, {0: batch}))
    torch.testing.assert_close(exported.module()(LOGITS[:5], soft[:5]), loss(LOGITS[:5], soft[:5]))


def test_balanced_sigmoid_takes_pos_weight_and_an_elementwise_weight() -> None:
    hot = F.one_hot(TARGET, 3).double()
    pos_weight, mask = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64), (LOGITS > 0).double()
    shift = eq.sigmoid_shift(PRIOR)
    loss = eq.BalancedSigmoidLoss(PRIOR, pos_weight=pos_weight)
    expected = F.binary_cross_entropy_with_logits(LOGITS + shift, hot, mask, pos_weight=pos_weight)
    torch.testing.assert_close(loss(LOGITS, TARGET, weight=mask), expected)
    dense, dense_target = LOGITS.reshape(3, 3, 3).movedim(-1, 1), TARGET.reshape(3, 3)
    torch.testing.assert_close(loss(dense, dense_target), loss(LOGITS, TARGET))


def test_multi_label_counts_give_the_rates_of_their_items() -> None:
    prior = eq.Prior.from_multilabel([[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]])
    loss = eq.BalancedSigmoidLoss(prior, target_rate=0.5)
    torch.testing.assert_close(loss.shift, torch.tensor([3 / 4, 1 / 4, 2 / 4]).logit())


def test_a_class_in_every_item_and_one_in_none_stay_finite() -> None:
    with pytest.warns(UserWarning, match="no item"):
        loss = eq.BalancedSigmoidLoss(eq.Prior.from_counts([50, 0, 20], total=50), target_rate=0.5)
    logits = LOGITS.float().requires_grad_()
    value = loss(logits, TARGET)
    assert value.isfinite()
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


def test_one_class_must_name_its_target_rate() -> None:
    prior = eq.Prior.from_counts([30], total=100)
    with pytest.raises(ValueError, match=r"name target_rate, e\.g\. 0\.5"):
        eq.BalancedSigmoidLoss(prior)
    torch.testing.assert_close(eq.BalancedSigmoidLoss(prior, target_rate=0.5).shift, torch.tensor([0.3]).logit())


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.2, float("nan"), [0.1, 0.2]])
def test_a_target_rate_that_is_none_is_refused(rate: object) -> None:
    with pytest.raises(ValueError, match="target_rate"):
        eq.BalancedSigmoidLoss(PRIOR, target_rate=rate)  # type: ignore[arg-type]


def test_inductor_compiles_the_balanced_losses_whole() -> None:
    torch._dynamo.reset()
    for loss in (eq.BalancedSoftmaxLoss(PRIOR), eq.BalancedSigmoidLoss(PRIOR)):
        logits = LOGITS.float().requires_grad_()
        compiled = torch.compile(loss, fullgraph=True)
        got, expected = compiled(logits, TARGET), loss(logits, TARGET)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(torch.autograd.grad(got, logits), torch.autograd.grad(expected, logits))


@pytest.mark.parametrize("gamma", [-0.1, float("nan")])
def test_impossible_hyper_parameters_are_refused(gamma: float) -> None:
    for make in (
        lambda: eq.FocalLoss(gamma),
        lambda: eq.SigmoidFocalLoss(gamma),
        lambda: eq.SigmoidFocalLoss(2.0, alpha=gamma),
        lambda: eq.sigmoid_focal_loss(LOGITS, TARGET, 2.0, alpha=gamma),
        lambda: eq.SeesawLoss(PRIOR, p=gamma),
        lambda: eq.seesaw_loss(LOGITS, TARGET, PRIOR.log(), q=gamma),
        lambda: eq.ClassBalancedLoss(PRIOR, 0.9, "focal", gamma=gamma),
        lambda: eq.EqualizationLoss(PRIOR, gamma, 0.1),
        lambda: eq.EqualizationLoss(PRIOR, 0.9, gamma),
        lambda: eq.SigmoidEqualizationLoss(PRIOR, gamma),
    ):
        with pytest.raises(ValueError, match=r"is (nan|-0\.1)"):
            make()
    with pytest.raises(ValueError, match=r"alpha is -1: .* None \(torchvision: -1\) is none"):
        eq.SigmoidFocalLoss(2.0, alpha=-1)
    with pytest.raises(ValueError, match="expected 'cross_entropy' or 'focal'"):
        eq.ClassBalancedLoss(PRIOR, 0.9, base="sigmoid")


def test_modules_say_what_they_are() -> None:
    assert repr(eq.BalancedSoftmaxLoss(PRIOR, label_smoothing=0.1)) == (
        "BalancedSoftmaxLoss(num_classes=3, tau=1.0, ignore_index=-100, label_smoothing=0.1, reduction='mean', dim=1)"
    )
    assert repr(eq.FocalLoss(2.0)) == "FocalLoss(gamma=2.0, ignore_index=-100, reduction='mean', dim=1)"


def test_the_normalized_head_gives_cosines_and_trains_with_ldam() -> None:
    from equipoise.models.heads import NormalizedLinear

    torch.manual_seed(0)
    head, features = NormalizedLinear(5, 3), torch.randn(9, 5)
    cosines = head(features)
    expected = F.cosine_similarity(features[:, None], head.weight[None], dim=-1)
    torch.testing.assert_close(cosines, expected)
    torch.testing.assert_close(head(7 * features), cosines)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(3))
    optimizer, loss = torch.optim.SGD(head.parameters(), 0.1), eq.LDAMLoss(PRIOR)
    first = loss(head(features), TARGET).item()
    for _ in range(20):
        optimizer.zero_grad()
        value = loss(head(features), TARGET)
        value.backward()
        optimizer.step()
    assert value.item() < first


def test_the_normalized_head_bears_large_half_precision_features() -> None:
    from equipoise.models.heads import NormalizedLinear

    head = NormalizedLinear(512, 3, dtype=torch.float16)
    features = torch.full((2, 512), 3000.0)
    torch.testing.assert_close(head(features.half()).float(), head.float()(features), rtol=0.01, atol=0.01)
    assert (head.in_features, head.out_features) == (512, 3)


def test_a_model_and_its_loss_move_and_save_together() -> None:
    both = nn.ModuleDict({"model": nn.Linear(4, 3), "loss": eq.BalancedSoftmaxLoss(PRIOR)}).half()
    assert both["model"].weight.dtype == torch.float16
    assert torch.equal(both["loss"].log_prior, eq.softmax_shift(PRIOR))
    assert both.state_dict()["loss.log_prior"].dtype == torch.float32


FUNCTIONS = {
    "log_prior": (lambda v, z, y: eq.balanced_softmax_loss(z, y, v), r"pass prior\.log\(\)"),
    "shift": (lambda v, z, y: eq.balanced_sigmoid_loss(z, y, v), r"pass sigmoid_shift\(prior\)"),
    "weight": (lambda v, z, y: eq.class_balanced_loss(z, y, v), r"pass effective_number_weights\(prior, beta\)"),
    "margins": (lambda v, z, y: eq.ldam_loss(z, y, v), r"pass ldam_margins\(prior\)"),
    "drop": (lambda v, z, y: eq.equalization_loss(z, y, v), r"pass rare_classes\(prior, threshold\)"),
    "rare": (lambda v, z, y: eq.sigmoid_equalization_loss(z, y, v), r"pass rare_classes\(prior, threshold\)"),
    "bias": (
        lambda v, z, y: eq.distribution_balanced_loss(z, y, torch.ones(2), v),
        r"pass prior\.logit\(\) times kappa / tolerance",
    ),
    "sampled": (lambda v, z, y: eq.federated_loss(z, y, v), r"pass bool \[K\], True for the classes that count"),
    "ratio": (lambda v, z, y: eq.equalization_v2_loss(z, y, v), "pass the gradient from positives over that from"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_given_a_prior_or_counts_says_what_to_pass(name: str) -> None:
    function, advice = FUNCTIONS[name]
    logits, target = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(TypeError, match=f"{name} is a Prior: {advice}"):
        function(eq.Prior.from_counts([900, 100]), logits, target)
    with pytest.raises(TypeError, match=f"{name} is torch.int64, like counts: {advice}"):
        function(torch.tensor([900, 100]), logits, target)


@pytest.mark.parametrize("name", ["log_prior", "shift"])
def test_counts_and_probabilities_are_not_taken_for_logs(name: str) -> None:
    function, advice = FUNCTIONS[name]
    logits, target = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(ValueError, match=f"{name} goes up to 900, like counts, not like logs: {advice}"):
        function(torch.tensor([900.0, 100.0]), logits, target)
    for fine in ([0.0, 0.0], [44.0, 0.0], [-0.1, -2.3], [0.59, -1.6], [138.2, 101.5]):
        function(torch.tensor(fine), logits, target)
    if name == "shift":  # log odds may happen to sum to 1
        function(torch.tensor([0.9, 0.1]), logits, target)
    else:
        with pytest.raises(ValueError, match=f"values from 0.1 to 0.9 and sum 1, like probabilities: {advice}"):
            function(torch.tensor([0.9, 0.1]), logits, target)


def test_values_are_looked_at_only_where_that_waits_for_nothing() -> None:
    counts, logits, target = torch.tensor([900.0, 100.0]), torch.zeros(3, 2), torch.tensor([0, 1, 0])
    eq.balanced_softmax_loss(logits.to("meta"), target.to("meta"), counts.to("meta"))
    torch._dynamo.reset()
    torch.compile(eq.balanced_softmax_loss, fullgraph=True, backend="eager")(logits, target, counts)
    torch.func.vmap(lambda z, y: eq.balanced_softmax_loss(z, y, counts))(logits, target)


@pytest.mark.parametrize("activation", [eq.balanced_softmax, eq.log_balanced_softmax])
def test_an_activation_that_is_given_logs_or_counts_says_what_to_pass(activation: Any) -> None:
    for vector in (eq.Prior.from_counts([900, 100]).log(), torch.tensor([900, 100]), torch.tensor([900.0, 100.0])):
        with pytest.raises((TypeError, ValueError), match=r"from_counts|pass a Prior"):
            activation(torch.zeros(3, 2), vector)


def test_foreground_and_weight_follow_the_classes_to_another_dimension() -> None:
    prior = eq.Prior.from_counts([60, 30, 10])
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 3, generator=generator)
    target, foreground = torch.randint(0, 3, (2, 5), generator=generator), torch.rand(2, 5, generator=generator) < 0.5
    weight = torch.rand(2, 5, 3, generator=generator)
    for make in (eq.BalancedSigmoidLoss, lambda p, **o: eq.SigmoidEqualizationLoss(p, 0.2, **o)):
        for reduction in ("mean", "none"):
            first = make(prior, reduction=reduction)(logits.mT, target, foreground, weight.mT)
            last = make(prior, reduction=reduction, dim=-1)(logits, target, foreground, weight)
            torch.testing.assert_close(last, first if reduction == "mean" else first.mT)
            per_class = make(prior, reduction=reduction, dim=-1)(logits, target, foreground, weight[0, 0])
            same = make(prior, reduction=reduction)(logits.mT, target, foreground, weight[0, 0][:, None])
            torch.testing.assert_close(per_class, same if reduction == "mean" else same.mT)


def test_a_weight_that_looks_like_rows_is_broadcast_as_torch_does_it() -> None:
    """Logits [3, 4, 4] with their classes last: a weight [3, 4] fits the rows, but not the logits; [4, 4] does."""
    prior = eq.Prior.from_counts([60, 30, 9, 1])
    generator = torch.Generator().manual_seed(0)
    logits, weight = torch.randn(3, 4, 4, generator=generator), torch.rand(4, 4, generator=generator)
    target = torch.randint(0, 4, (3, 4), generator=generator)
    loss, moved = eq.BalancedSigmoidLoss(prior), eq.BalancedSigmoidLoss(prior, dim=-1)
    torch.testing.assert_close(moved(logits, target, weight=weight), loss(logits.mT, target, weight=weight.mT))
    with pytest.raises(RuntimeError, match="expand"):
        moved(logits, target, weight=torch.rand(3, 4))


def test_equalization_draws_for_every_row_anew() -> None:
    prior = eq.Prior.from_counts([1000] + [1] * 15)
    loss = eq.EqualizationLoss(prior, gamma=0.5, threshold=0.01, reduction="none")
    values = loss(torch.zeros(64, 16), torch.zeros(64, dtype=torch.int64))
    assert len(set(values.tolist())) > 4  # as many classes are dropped in some rows as in others, but not in all
