"""The fold: a head that shifts its bias in training only equals the balanced loss, and leaves no trace."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise as eq
from equipoise.models.balanced_head import BalancedLinear, fold_prior, fold_sigmoid_prior, unfold_prior

PRIOR = eq.Prior.from_counts([900, 90, 9, 1])


def network(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4, bias=bias))


def batch(rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 5, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_plain_cross_entropy_of_a_folded_head_is_balanced_softmax_in_value_and_gradient(bias, tau):
    plain, folded = network(bias), fold_prior(network(bias), PRIOR, tau=tau)
    x, y = batch()
    expected = eq.BalancedSoftmaxLoss(PRIOR, tau=tau)(plain(x), y)
    loss = F.cross_entropy(folded(x), y)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    for ours, theirs in zip(folded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_plain_bce_of_a_sigmoid_fold_is_balanced_sigmoid():
    x, y = batch()
    hot = F.one_hot(y, 4).float()
    expected = eq.BalancedSigmoidLoss(PRIOR)(network()(x), hot)
    torch.testing.assert_close(
        F.binary_cross_entropy_with_logits(fold_sigmoid_prior(network(), PRIOR)(x), hot), expected
    )


def test_evaluation_mode_is_the_plain_model_to_the_bit():
    x, _ = batch()
    assert torch.equal(fold_prior(network(), PRIOR).eval()(x), network().eval()(x))


def test_checkpoints_are_those_of_the_plain_model_both_ways():
    plain, folded = network(), fold_prior(network(), PRIOR)
    assert list(folded.state_dict()) == list(plain.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(folded.state_dict().values(), plain.state_dict().values(), strict=True)
    )
    plain.load_state_dict(folded.state_dict())
    folded.load_state_dict(plain.state_dict())


def test_an_optimiser_made_before_the_fold_trains_the_folded_head():
    model = network()
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    fold_prior(model, PRIOR)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    before = model[2].bias.detach().clone()
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    optimiser.step()
    assert not torch.equal(model[2].bias, before)


def test_a_constant_model_learns_the_uniform_answer():
    head = fold_prior(nn.Linear(1, 4), PRIOR)
    nn.init.zeros_(head.weight)
    head.weight.requires_grad_(False)
    y = torch.repeat_interleave(torch.arange(4), torch.from_numpy(PRIOR.counts.copy()))
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=100, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(head(torch.zeros(len(y), 1)), y)
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(head.eval()(torch.zeros(1)).softmax(0), torch.full((4,), 0.25), atol=1e-3, rtol=0)


def test_the_layer_stays_the_same_object_and_keeps_its_hooks():
    model = network()
    head, seen = model[2], []
    head.register_forward_hook(lambda *_: seen.append(1))
    assert fold_prior(model, PRIOR) is model
    model(batch()[0])
    assert model[2] is head
    assert seen == [1]


def test_folding_again_replaces_the_prior_and_unfolding_removes_it():
    x, _ = batch()
    twice = fold_prior(fold_prior(network(), [0.1, 0.2, 0.3, 0.4]), PRIOR)
    assert torch.equal(twice(x), fold_prior(network(), PRIOR)(x))
    plain = unfold_prior(twice)
    assert type(plain[2]) is nn.Linear
    assert list(plain[2]._buffers) == []
    assert torch.equal(plain(x), network()(x))


def test_a_uniform_prior_changes_nothing_to_the_bit():
    x, _ = batch()
    assert torch.equal(fold_prior(network(), eq.Prior.from_counts([7, 7, 7, 7]))(x), network()(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_shift_stays_fp32_to_the_bit_in_a_half_model_that_runs(dtype):
    model = fold_prior(network(), PRIOR)
    shift = model[2].shift.clone()
    model.to(dtype)
    assert model[2].weight.dtype == dtype
    assert torch.equal(model[2].shift, shift)
    assert model(batch()[0].to(dtype)).dtype == dtype


def test_copies_and_autocast_and_compile_keep_the_fold():
    x, y = batch()
    model = fold_prior(network(), PRIOR)
    expected = F.cross_entropy(model(x), y)
    assert torch.equal(F.cross_entropy(copy.deepcopy(model)(x), y), expected)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(F.cross_entropy(compiled(x), y), expected)
    compiled.eval()
    torch.testing.assert_close(compiled(x), network().eval()(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert model.train()(x).dtype == torch.bfloat16


def test_the_head_alone_can_be_folded():
    head = nn.Linear(6, 4)
    assert fold_prior(head, PRIOR) is head
    assert isinstance(head, BalancedLinear)


def test_an_ambiguous_or_missing_head_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"2 layers have 4 outputs \(0, 1\): name the head, .* head='1'\)"):
        fold_prior(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), PRIOR)
    with pytest.raises(ValueError, match=r"prior has 3 classes, but no nn.Linear .* of this Sequential .*2 with 4"):
        fold_prior(network(), [0.5, 0.3, 0.2])
    with pytest.raises(ValueError, match=r"Sequential has as many outputs \(it has none\)"):
        fold_prior(nn.Sequential(nn.Conv2d(3, 4, 3)), PRIOR)


def test_a_head_without_weights_is_refused():
    with torch.device("meta"):
        head = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="load its weights first"):
        eq.fold_prior(head, eq.Prior.uniform(3))


class Scaled(nn.Linear):
    """A subclass whose forward is its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def subclass() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), Scaled(6, 4))


def convolution(kernel: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (5, 1, 1)), nn.Conv2d(5, 4, kernel, padding=kernel // 2), nn.Flatten())


def image() -> torch.Tensor:
    return torch.randn(2, 5, 3, 3, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("build", "head"), [(subclass, None), (subclass, "2"), (convolution, None), (lambda: convolution(3), "1")]
)
def test_any_head_can_be_folded_and_leaves_no_trace(build, head):
    x, y = batch()
    plain, folded = build(), fold_prior(fold_prior(build(), [0.1, 0.2, 0.3, 0.4], head=head), PRIOR, head=head)
    types, keys = [type(module) for module in plain.modules()], list(plain.state_dict())
    expected, loss = eq.BalancedSoftmaxLoss(PRIOR)(plain(x), y), F.cross_entropy(folded(x), y)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    for ours, theirs in zip(folded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert list(folded.state_dict()) == keys
    for other in (copy.deepcopy(folded), folded.half().float()):
        assert torch.equal(other.eval()(x), plain.half().float().eval()(x) if other is folded else plain.eval()(x))
        assert not torch.equal(other.train()(x), plain.train()(x))
        unfold_prior(other)
        assert [type(module) for module in other.modules()] == types
        assert not other[-1]._forward_hooks
        assert torch.equal(other.train()(x), plain.train()(x))


def test_the_shift_of_a_dense_head_goes_along_its_channels():
    head = fold_prior(nn.Conv2d(5, 4, 1), PRIOR)
    x, y = image(), torch.randint(0, 4, (2, 3, 3))
    expected = eq.BalancedSoftmaxLoss(PRIOR)(unfold_prior(copy.deepcopy(head))(x), y)
    torch.testing.assert_close(F.cross_entropy(head(x), y), expected)


def test_a_folded_head_of_any_kind_compiles_whole():
    x, _ = batch()
    for build in (network, subclass, convolution):
        torch._dynamo.reset()
        folded = fold_prior(build(), PRIOR)
        torch.testing.assert_close(torch.compile(folded, fullgraph=True, backend="eager")(x), folded(x))


def test_a_served_model_with_a_folded_head_of_any_kind_is_warned_of():
    for build in (network, subclass, convolution):
        with pytest.warns(UserWarning, match="trained with fold_prior"):
            eq.Rebalanced(fold_prior(build(), PRIOR), source=PRIOR)


def test_a_head_can_be_named_and_must_be_where_there_are_two():
    model = nn.ModuleDict({"head": nn.Linear(5, 4), "head_dist": nn.Linear(5, 4), "body": nn.Conv2d(5, 4, 1)})
    with pytest.raises(ValueError, match=r"2 layers have 4 outputs \(head, head_dist\): .* head='head_dist'\)"):
        fold_prior(model, PRIOR)
    assert type(fold_prior(model, PRIOR, head="head")["head"]) is BalancedLinear
    assert type(model["head_dist"]) is nn.Linear
    fold_sigmoid_prior(model, PRIOR, head="head_dist")
    assert torch.equal(model["head_dist"].shift, eq.sigmoid_shift(PRIOR))
    nested = nn.ModuleDict({"classifier": nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 4)), "other": nn.Linear(5, 4)})
    assert type(fold_prior(nested, PRIOR, head="classifier")["classifier"][1]) is BalancedLinear
    with pytest.raises(ValueError, match=r"the model has no 'fc': its last nn.Linear are classifier.0, classifier.1"):
        fold_prior(nested, PRIOR, head="fc")
    with pytest.raises(ValueError, match=r"the prior has 3 classes.*\(classifier.0 with 6, classifier.1 with 4\)"):
        fold_prior(nested, [0.5, 0.3, 0.2], head="classifier")


def test_a_projection_of_attention_is_no_head():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 1), "head": nn.Linear(4, 4)})
    assert type(fold_prior(model, PRIOR)["head"]) is BalancedLinear


def test_a_folded_head_keeps_its_shift_through_to_empty():
    for build in (network, subclass, convolution):
        folded = fold_prior(build(), PRIOR)
        buffers = [buffer.clone() for buffer in folded.buffers()]
        assert [torch.equal(a, b) for a, b in zip(folded.to_empty(device="cpu").buffers(), buffers, strict=True)] == [
            True
        ]


@pytest.mark.parametrize(
    ("name", "options", "head"),
    [
        ("mobilenetv3_small_050", {}, None),  # its head is a subclass of nn.Linear
        ("resnetv2_50", {"layers": [1, 1, 1, 1], "width_factor": 0.25}, None),  # a 1×1 convolution
        ("deit_tiny_distilled_patch16_224", {"depth": 1, "img_size": 32}, "head"),  # two heads
    ],
)
def test_models_of_timm_are_folded(name, options, head):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    prior = eq.Prior.from_counts([600, 300, 60, 30, 6, 3, 1])
    model = timm.create_model(name, pretrained=False, num_classes=7, **options).eval()
    x = torch.randn(2, 3, 32, 32)
    before, keys = model(x), list(model.state_dict())
    if head is not None:
        with pytest.raises(ValueError, match=r"2 layers have 7 outputs \(head, head_dist\): name the head"):
            fold_prior(model, prior)
    fold_prior(model, prior, head=head)
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys
    for module in model.modules():  # the heads alone in training mode: batch statistics and dropout stay out of it
        if isinstance(module, BalancedLinear) or hasattr(module, "output_shift"):
            module.train()
    shift = eq.softmax_shift(prior) * (1 if head is None else 0.5)  # a distilled model predicts the mean of its heads
    torch.testing.assert_close(model(x) - before, shift.expand(2, -1), rtol=0, atol=1e-5)
