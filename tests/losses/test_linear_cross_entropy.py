"""Cross-entropy of a head whose logits never exist as a whole equals the loss on logits, by either way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise.losses import linear_cross_entropy as module
from equipoise.losses.balanced_softmax import balanced_softmax_loss
from equipoise.losses.linear_cross_entropy import BalancedLinearCrossEntropyLoss, balanced_linear_cross_entropy

ROWS, FEATURES, CLASSES = 13, 6, 11
PRIOR = eq.Prior.from_counts([2**k for k in range(CLASSES)])
WAYS = ["kernel", "parts", "one part"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Every way to compute it: torch's kernel, our loop in parts of 3 rows, and all rows at once."""
    if request.param == "kernel" and not module.HAS_KERNEL:
        pytest.skip("this torch has no linear_cross_entropy")
    monkeypatch.setattr(module, "HAS_KERNEL", request.param == "kernel")
    if request.param != "one part":
        monkeypatch.setattr(module, "PART", 3 * CLASSES)
    return request.param


def problem(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
    weight = torch.randn(CLASSES, FEATURES, generator=generator, dtype=torch.float64)
    bias = torch.randn(CLASSES, generator=generator, dtype=torch.float64)
    target = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    target[4] = -100
    tensors = [t.to(dtype).requires_grad_() for t in (features, weight, bias)]
    return (*tensors, target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_loss_on_logits_in_value_and_gradients(way, reduction, weighted, smoothing):
    class_weight = torch.linspace(0.2, 3, CLASSES, dtype=torch.float64) if weighted else None
    results = []
    for on_logits in (True, False):
        features, weight, bias, target = problem()
        if on_logits:
            loss = balanced_softmax_loss(
                F.linear(features, weight, bias),
                target,
                eq.softmax_shift(PRIOR).double(),
                weight=class_weight,
                label_smoothing=smoothing,
                reduction=reduction,
            )
        else:
            loss = balanced_linear_cross_entropy(
                features,
                weight,
                bias,
                target,
                PRIOR,
                class_weight=class_weight,
                label_smoothing=smoothing,
                reduction=reduction,
            )
        gradients = torch.autograd.grad(loss, (features, weight, bias), grad_outputs=torch.ones_like(loss))
        results.append((loss, *gradients))
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_head_without_bias_takes_the_prior_alone(way):
    features, weight, _, target = problem()
    expected = balanced_softmax_loss(F.linear(features, weight), target, eq.softmax_shift(PRIOR).double())
    torch.testing.assert_close(balanced_linear_cross_entropy(features, weight, None, target, PRIOR), expected)


def test_leading_dimensions_are_rows(way):
    features, weight, bias, target = problem(torch.float32)
    flat = balanced_linear_cross_entropy(features[:12], weight, bias, target[:12], PRIOR, reduction="none")
    shaped = balanced_linear_cross_entropy(
        features[:12].view(3, 4, FEATURES), weight, bias, target[:12].view(3, 4), PRIOR, reduction="none"
    )
    assert torch.equal(shaped, flat.view(3, 4))


@pytest.mark.parametrize("rows", [0, ROWS])
def test_a_batch_in_which_nothing_counts_gives_zero_with_zero_gradient(way, rows):
    features, weight, bias, target = problem(torch.float32)
    loss = balanced_linear_cross_entropy(features[:rows], weight, bias, torch.full_like(target, -100)[:rows], PRIOR)
    gradients = torch.autograd.grad(loss, (features, weight, bias), allow_unused=True)
    assert loss == 0
    assert all(g is None or not g.any() for g in gradients)


def test_half_features_give_a_fp32_loss_close_to_the_exact_one(way):
    features, weight, bias, target = problem(torch.bfloat16)
    exact = balanced_linear_cross_entropy(features.double(), weight.double(), bias.double(), target, PRIOR)
    loss = balanced_linear_cross_entropy(features, weight, bias, target, PRIOR)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=2**-7)
    loss.backward()
    assert features.grad.dtype == torch.bfloat16


def test_autocast_computes_the_logits_in_half(way):
    features, weight, bias, target = problem(torch.float32)
    exact = balanced_linear_cross_entropy(features, weight, bias, target, PRIOR)
    with torch.autocast("cpu", torch.bfloat16):
        loss = balanced_linear_cross_entropy(features, weight, bias, target, PRIOR)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=2**-6)
    assert loss.item() != exact.item()
    loss.backward()
    assert weight.grad.dtype == torch.float32


def test_the_module_equals_the_function_and_keeps_its_prior(way):
    features, weight, bias, target = problem(torch.float32)
    loss = BalancedLinearCrossEntropyLoss(PRIOR, tau=0.5, label_smoothing=0.1)
    expected = balanced_linear_cross_entropy(features, weight, bias, target, PRIOR, tau=0.5, label_smoothing=0.1)
    assert torch.equal(loss(features, weight, bias, target), expected)
    before = loss.log_prior.clone()
    assert torch.equal(loss.half().log_prior, before)
    assert list(loss.state_dict()) == ["log_prior"]


def test_no_tensor_as_large_as_the_logits_is_kept_for_the_backward_pass(way):
    if way == "one part":
        pytest.skip("all rows at once is what keeps them")
    features, weight, bias, target = problem(torch.float32)
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        balanced_linear_cross_entropy(features, weight, bias, target, PRIOR)
    assert max(kept, default=0) < ROWS * CLASSES


def test_bad_shapes_are_refused_with_the_value_and_the_way_out():
    features, weight, bias, target = problem(torch.float32)
    with pytest.raises(ValueError, match=r"features of shape \(13, 6\) do not fit a weight of shape \(6, 11\)"):
        balanced_linear_cross_entropy(features, weight.T, bias, target, PRIOR)
    with pytest.raises(ValueError, match=r"prior has shape \(3,\), the weight has 11 classes"):
        balanced_linear_cross_entropy(features, weight, bias, target, [0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match=r"target is torch.float32 of shape \(13, 11\): expected class indices"):
        balanced_linear_cross_entropy(features, weight, bias, torch.rand(13, 11), PRIOR)
    with pytest.raises(ValueError, match="reduction='avg'"):
        balanced_linear_cross_entropy(features, weight, bias, target, PRIOR, reduction="avg")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_adds_up_over_many_rows_and_parts_in_fp32(dtype, monkeypatch):
    """A sum of 20,000 losses overflows fp16, and bf16 cannot add 1 to 256: sums over rows and parts must be fp32."""
    monkeypatch.setattr(module, "PART", 50 * 64)
    generator = torch.Generator().manual_seed(0)
    features = (5 + torch.randn(20_000, 8, generator=generator)).to(dtype)
    weight = torch.randn(50, 8, generator=generator).to(dtype).requires_grad_()
    target = torch.randint(0, 50, (20_000,), generator=generator)
    exact = weight.detach().double().requires_grad_()
    loss = module.linear_cross_entropy(features, weight, None, target)
    reference = torch.nn.functional.cross_entropy(features.double() @ exact.T, target)
    loss.backward()
    reference.backward()
    assert loss.item() == pytest.approx(reference.item(), rel=0.01)
    assert (weight.grad.double() - exact.grad).norm() / exact.grad.norm() < 0.01


def test_a_class_weight_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"class_weight has shape \(3,\)"):
        eq.balanced_linear_cross_entropy(
            torch.zeros(2, 4),
            torch.zeros(5, 4),
            None,
            torch.tensor([0, 1]),
            eq.Prior.uniform(5),
            class_weight=torch.ones(3),
        )
