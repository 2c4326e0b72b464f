"""A served model is right for the prior that it is told, says so when it cannot be, and keeps what it was told."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import equipoise as eq
from equipoise.data.digits import Digits, load_digits_lt

TARGET = eq.Prior.from_probabilities(np.arange(1, 11) / 55)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def trained(digits: Digits, loss: nn.Module) -> nn.Sequential:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        loss(model(digits.train_images), digits.train_labels).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits_lt()


@pytest.fixture(scope="module")
def plain(digits: Digits) -> nn.Sequential:
    """A network trained with the plain loss on long-tailed digits."""
    return trained(digits, nn.CrossEntropyLoss())


@pytest.fixture(scope="module")
def balanced(digits: Digits) -> nn.Sequential:
    return trained(digits, eq.BalancedSoftmaxLoss(digits.prior))


def log_loss(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    """Under the test set's prior, or under the prior that `weight` says."""
    return float(F.cross_entropy(logits, labels, weight))


# -------------------------------------------------------------------- what it gives


def test_a_plain_model_served_for_equal_classes_beats_itself_on_the_balanced_test_set(digits, plain):
    with torch.no_grad():
        before, after = plain(digits.test_images), eq.Rebalanced(plain, source=digits.prior)(digits.test_images)
    accuracy = [float((z.argmax(1) == digits.test_labels).float().mean()) for z in (before, after)]
    assert accuracy[1] > accuracy[0] + 0.03
    assert log_loss(after, digits.test_labels) < log_loss(before, digits.test_labels)


def test_a_balanced_model_served_for_its_training_prior_is_better_there(digits, balanced):
    weight = torch.tensor(digits.prior.probabilities).float()
    with torch.no_grad():
        served = eq.Rebalanced(balanced, target=digits.prior)
        before, after = balanced(digits.test_images), served(digits.test_images)
    assert log_loss(after, digits.test_labels, weight) < log_loss(before, digits.test_labels, weight)


@pytest.mark.parametrize("source", [None, eq.Prior.from_counts(range(100, 0, -10))])
@pytest.mark.parametrize("target", [TARGET, TARGET.probabilities, TARGET.probabilities.tolist()])
def test_it_gives_what_adjust_logits_gives(digits, plain, source, target):
    x = digits.test_images[:5]
    served = eq.Rebalanced(plain, source=source, target=target)
    assert torch.equal(served(x), eq.adjust_logits(plain(x), source=source, target=target))


def test_tau_scale_and_dimension_are_applied(digits):
    x = torch.randn(2, 3, 4, 4)
    dense = nn.Conv2d(3, 10, 1)
    served = eq.Rebalanced(dense, source=digits.prior, tau=0.5, scale=2.0, dim=1)
    torch.testing.assert_close(
        served(x), eq.adjust_logits(2 * dense(x), source=digits.prior, tau=0.5, dim=1), rtol=0, atol=0
    )


def test_the_target_can_be_changed_and_changed_back(digits, plain):
    x = digits.test_images[:5]
    served = eq.Rebalanced(plain, source=digits.prior)
    first = served(x)
    served.target = TARGET
    assert served.target == TARGET
    assert torch.equal(served(x), eq.adjust_logits(plain(x), source=digits.prior, target=TARGET))
    served.target = None
    assert served.target.probabilities.tolist() == [0.1] * 10
    assert torch.equal(served(x), first)


def test_a_refused_target_leaves_the_old_one(digits, plain):
    served = eq.Rebalanced(plain, source=digits.prior, target=TARGET)
    with pytest.raises(ValueError, match="source has 10 classes, target has 2"):
        served.target = [0.5, 0.5]
    assert served.target == TARGET
    assert torch.equal(served.shift, eq.softmax_shift(digits.prior, TARGET))


def test_the_source_is_a_fact_and_cannot_be_assigned(digits, plain):
    served = eq.Rebalanced(plain, source=digits.prior)
    with pytest.raises(AttributeError):
        served.source = TARGET
    assert served.source == digits.prior


def test_a_class_of_target_probability_zero_gets_probability_zero(digits, plain):
    target = np.array([0.0, *[1 / 9] * 9])
    p = eq.Rebalanced(plain, source=digits.prior, target=target)(digits.test_images).softmax(1)
    assert (p[:, 0] == 0).all()
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)))


def test_the_wrapped_model_and_its_gradients_are_left_alone(digits, plain):
    before = copy.deepcopy(plain.state_dict())
    served = eq.Rebalanced(plain, source=digits.prior, target=TARGET)
    served(digits.test_images[:2]).sum().backward()
    assert served.model is plain
    assert all(torch.equal(before[name], value) for name, value in plain.state_dict().items())
    assert list(served.parameters()) == list(plain.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_model_keeps_its_shift_and_answers_in_fp32(digits, dtype):
    served = eq.Rebalanced(network(), source=digits.prior)
    shift = served.shift.clone()
    served.to(dtype)
    x = digits.test_images[:3].to(dtype)
    assert torch.equal(served.shift, shift)
    assert torch.equal(served(x), served.model(x).float() - shift)


def test_a_compiled_model_sees_a_new_target_without_compiling_again(digits, plain):
    x = digits.test_images[:4]
    served = eq.Rebalanced(plain, source=digits.prior)
    compiled = torch.compile(served, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), served(x))
    with torch.compiler.set_stance("fail_on_recompile"):
        served.target = TARGET
        torch.testing.assert_close(compiled(x), eq.adjust_logits(plain(x), source=digits.prior, target=TARGET))


def test_a_target_can_be_changed_after_a_move_in_inference_mode(digits):
    served = eq.Rebalanced(network(), source=digits.prior)
    with torch.inference_mode():
        served.shift = served.shift.clone()
    served.target = TARGET
    assert torch.equal(served.shift, eq.softmax_shift(digits.prior, TARGET))


# -------------------------------------------------------------------- guard rails


def test_the_same_source_and_target_get_a_note_and_nothing_changes(digits, plain):
    with pytest.warns(UserWarning, match="source and target are the same") as caught:
        served = eq.Rebalanced(plain, source=digits.prior, target=digits.prior.probabilities)
    assert caught[0].filename == __file__
    x = digits.test_images[:3]
    torch.testing.assert_close(served(x), plain(x))
    served.target = None
    with pytest.warns(UserWarning, match="source and target are the same"):
        served.target = torch.tensor(digits.prior.probabilities, dtype=torch.float32)  # rounded, and still the same


def test_two_unnamed_priors_are_refused(plain):
    with pytest.raises(ValueError, match=r"both None .* name at least one; source is what the logits mean"):
        eq.Rebalanced(plain)


def test_numbers_of_classes_that_disagree_are_refused(digits, plain):
    with pytest.raises(ValueError, match="source has 10 classes, target has 2"):
        eq.Rebalanced(plain, source=digits.prior, target=[0.5, 0.5])
    with pytest.raises(ValueError, match="the prior has 2 classes, the model's last layer has 10 outputs"):
        eq.Rebalanced(nn.Sequential(plain), source=[0.9, 0.1])
    hidden = nn.Sequential(plain, nn.Identity())  # the last layer is out of sight: found at the first batch
    with pytest.raises(ValueError, match=r"the prior has 2 classes, logits of shape \(3, 10\) have 10"):
        eq.Rebalanced(hidden, source=[0.9, 0.1])(digits.test_images[:3])
    with pytest.raises(ValueError, match="or pass dim=1"):
        eq.Rebalanced(nn.Conv2d(3, 2, 1), source=[0.9, 0.1])(torch.randn(4, 3, 5, 5))


def test_class_names_that_disagree_are_refused():
    model = nn.Linear(3, 2)
    source = eq.Prior.from_counts({"cat": 90, "owl": 10})
    with pytest.raises(ValueError, match=r"same names in another order.*column 0 is 'cat' in source, 'owl' in target"):
        eq.Rebalanced(model, source=source, target=eq.Prior.from_counts({"owl": 5, "cat": 5}))
    with pytest.raises(ValueError, match=r"not those of source \(column 1 is 'owl' in source, 'yak' in target\)"):
        eq.Rebalanced(model, source=source, target=eq.Prior.from_counts({"cat": 5, "yak": 6}))
    served = eq.Rebalanced(model, source=source)
    with pytest.raises(ValueError, match="another order"):
        served.target = eq.Prior.from_counts({"owl": 5, "cat": 6})
    by_id = [eq.Prior.from_counts([9, 1], class_ids=ids) for ids in ([3, 7], [3, 8])]
    with pytest.raises(ValueError, match="class_ids of target are not those of source"):
        eq.Rebalanced(model, source=by_id[0], target=by_id[1])


def test_names_on_one_side_are_the_names():
    named = eq.Prior.from_counts({"cat": 90, "owl": 10})
    assert eq.Rebalanced(nn.Linear(3, 2), source=named).target.class_names == ("cat", "owl")
    assert eq.Rebalanced(nn.Linear(3, 2), source=[0.5, 0.5], target=named).class_names == ("cat", "owl")
    assert eq.Rebalanced(nn.Linear(3, 2), source=[0.2, 0.8]).class_names is None


def test_a_cosine_head_needs_its_scale(digits):
    cosine = nn.Sequential(nn.Flatten(), eq.NormalizedLinear(64, 10))
    with pytest.raises(ValueError, match=r"cosines in \[−1, 1\].*scale=30.*scale=1 if"):
        eq.Rebalanced(cosine, source=digits.prior)
    x = digits.test_images[:40]
    served = eq.Rebalanced(cosine, source=digits.prior, scale=30)
    torch.testing.assert_close(served(x), eq.adjust_logits(30 * cosine(x), source=digits.prior))


def cosines(x: Tensor) -> Tensor:
    return F.normalize(x.flatten(1)[:, :10] + 0.1, dim=1)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_outputs_that_look_like_cosines_get_one_warning_and_a_scale_silences_it(digits):
    x = digits.test_images
    served = eq.Rebalanced(Function(cosines), source=digits.prior)
    for item in x[:25].split(1):  # requests of one item, too few values so far to tell
        served(item)
    with pytest.warns(UserWarning, match=r"logits lie in \[.*like cosines.*pass it as scale.*pass scale=1"):
        served(x[:1])
    served(x)
    eq.Rebalanced(Function(cosines), source=digits.prior, scale=1)(x)


def test_ordinary_logits_are_not_taken_for_cosines(digits, plain):
    served = eq.Rebalanced(plain, source=digits.prior)
    served(digits.test_images[:1])
    served.model = Function(cosines)  # it was decided at the first batch: the values are looked at no more
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        served(digits.test_images)
    assert heard == []


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(plain, scale):
    with pytest.raises(ValueError, match=rf"scale is {scale}: expected a number above 0"):
        eq.Rebalanced(plain, source=TARGET, scale=scale)


def test_a_folded_head_means_uniform_and_says_so(digits):
    model = eq.fold_prior(network(), digits.prior).eval()
    with pytest.warns(UserWarning, match="trained with fold_prior, so its logits mean a uniform prior"):
        eq.Rebalanced(model, source=digits.prior)
    eq.Rebalanced(model, target=digits.prior)


def test_what_is_no_classifier_is_refused(digits, plain):
    with pytest.raises(TypeError, match=r"model is a Tensor: .* adjust_logits"):
        eq.Rebalanced(torch.zeros(2, 10), source=digits.prior)
    with pytest.raises(TypeError, match="change its target"):
        eq.Rebalanced(eq.Rebalanced(plain, source=digits.prior), source=digits.prior)
    with pytest.raises(TypeError, match=r"returned a dict, not a tensor of logits: .*\.logits"):
        eq.Rebalanced(Function(lambda x: {"logits": x}), source=digits.prior)(digits.test_images)
    with pytest.raises(TypeError, match="target is 'uniform': expected a Prior, probabilities, or None for uniform"):
        eq.Rebalanced(plain, source=digits.prior, target="uniform")
    with pytest.raises(ValueError, match=r"use Prior\.from_counts for counts"):
        eq.Rebalanced(nn.Linear(3, 2), source=[900, 100])


def test_its_picture_shows_both_priors(digits, plain):
    text = repr(eq.Rebalanced(plain, source=digits.prior, scale=2.0))
    assert f"source={digits.prior!r}" in text
    assert "target=Prior(10 classes, not counted" in text
    assert "scale=2.0" in text


# -------------------------------------------------------------------- sigmoid


def multilabel() -> tuple[nn.Sequential, eq.Prior]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), eq.Prior.from_counts([400, 40, 4], 1000)


def test_the_sigmoid_twin_gives_what_adjust_sigmoid_logits_gives_and_its_rate_can_be_changed(digits):
    model, rates = multilabel()
    x = digits.test_images[:5]
    for source in (rates, rates.probabilities, rates.probabilities.tolist(), 0.1):
        served = eq.RebalancedSigmoid(model, source=source, target_rate=0.3)
        assert torch.equal(served(x), eq.adjust_sigmoid_logits(model(x), source=source, target_rate=0.3))
        served.target_rate = [0.5, 0.2, 0.1]
        assert served.target_rate == (0.5, 0.2, 0.1)
        expected = eq.adjust_sigmoid_logits(model(x), source=source, target_rate=[0.5, 0.2, 0.1])
        assert torch.equal(served(x), expected)


def test_a_binary_model_is_better_at_the_rate_that_it_is_served_for(digits):
    """Digit 5 or not: trained where a fifth are fives, judged where half are. The wrapper restores the odds."""
    is_five = digits.train_labels == 5
    rest = (~is_five).nonzero()[: 4 * int(is_five.sum()), 0]
    index = torch.cat([is_five.nonzero()[:, 0], rest])
    x, y = digits.train_images[index], is_five[index].float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4, 1), nn.Flatten(0))  # too small to fit
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20)

    def closure():
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    served = eq.RebalancedSigmoid(model, source=0.2, target_rate=0.5)
    weight = torch.where(y == 1, 0.5 / 0.2, 0.5 / 0.8)  # the training set, weighted to half fives
    with torch.no_grad():
        before, after = model(x), served(x)
    assert F.binary_cross_entropy_with_logits(after, y, weight) < F.binary_cross_entropy_with_logits(before, y, weight)


def test_the_sigmoid_twin_refuses_what_it_cannot_use():
    model, rates = multilabel()
    with pytest.raises(ValueError, match="source has 3 classes, target_rate has 2"):
        eq.RebalancedSigmoid(model, source=rates, target_rate=[0.1, 0.2])
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        eq.RebalancedSigmoid(model, source=rates, target_rate=1.0)
    with pytest.raises(TypeError, match="target_rate is a Prior"):
        eq.RebalancedSigmoid(model, source=rates, target_rate=rates)
    with pytest.warns(UserWarning, match="are the same"):
        eq.RebalancedSigmoid(model, source=0.25, target_rate=0.25)
    with pytest.raises(ValueError, match=r"the new prior has 3 classes, the model's has 2"):
        eq.RebalancedSigmoid(nn.Linear(2, 2), source=0.1, target_rate=[0.1, 0.2]).target_rate = [0.1, 0.2, 0.3]


# -------------------------------------------------------------------- checkpoints


def test_a_checkpoint_gives_back_weights_priors_names_and_options(digits, plain, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    served = eq.Rebalanced(plain, source=digits.prior, target=TARGET, tau=0.9, scale=1.5)
    served.save(path)
    again = eq.Rebalanced.load(path, network().eval())
    x = digits.test_images[:5]
    assert torch.equal(again(x), served(x))
    assert (again.source, again.target, again.class_names) == (digits.prior, TARGET, tuple("0123456789"))
    assert again.source.counts.tolist() == digits.prior.counts.tolist()
    assert again.metadata == served.metadata
    again.target = None
    assert torch.equal(again(x), eq.adjust_logits(1.5 * plain(x), source=digits.prior, tau=0.9))


def test_a_checkpoint_is_that_of_the_plain_model_with_readable_metadata(digits, plain, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    eq.Rebalanced(plain, source=digits.prior).save(path)
    other = network()
    other.load_state_dict(load_file(path))
    assert torch.equal(other(digits.test_images), plain(digits.test_images))
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert json.loads(metadata["class_names"]) == list("0123456789")
    assert json.loads(metadata["source"])["counts"] == digits.prior.counts.tolist()
    assert json.loads(metadata["target"])["probabilities"] == [0.1] * 10


def test_names_of_any_script_survive(tmp_path: Path):
    names = ['Kauz "der" kleine', "梟", "🦉,\n", ""]
    served = eq.Rebalanced(nn.Linear(2, 4), source=eq.Prior.from_counts([4, 3, 2, 1], class_names=names))
    served.save(tmp_path / "a.safetensors")
    assert eq.Rebalanced.load(tmp_path / "a.safetensors", nn.Linear(2, 4)).class_names == tuple(names)


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path):
    def tied() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    served = eq.Rebalanced(tied(), source=[0.5, 0.3, 0.2])
    served.save(tmp_path / "a.safetensors")
    again = eq.Rebalanced.load(tmp_path / "a.safetensors", tied())
    assert again.model[0].weight is again.model[1].weight
    assert torch.equal(again(torch.ones(1, 3)), served(torch.ones(1, 3)))
    assert again.metadata == served.metadata


@pytest.mark.parametrize("source", ["prior", 0.2, [0.3, 0.2, 0.1]])
@pytest.mark.parametrize("rate", [0.5, [0.1, 0.2, 0.4]])
def test_the_sigmoid_twin_survives_a_checkpoint(digits, source, rate, tmp_path: Path):
    model, rates = multilabel()
    served = eq.RebalancedSigmoid(model, source=rates if source == "prior" else source, target_rate=rate)
    served.save(tmp_path / "a.safetensors")
    again = eq.RebalancedSigmoid.load(tmp_path / "a.safetensors", multilabel()[0])
    assert (again.source, again.target_rate) == (served.source, served.target_rate)
    assert torch.equal(again(digits.test_images[:5]), served(digits.test_images[:5]))


def test_files_that_hold_something_else_are_refused_before_the_model_is_touched(digits, plain, tmp_path: Path):
    path, model = tmp_path / "a.safetensors", network()
    save_file(plain.state_dict(), path)
    with pytest.raises(ValueError, match=r"a\.safetensors holds weights but no priors: .*Rebalanced\(model, source="):
        eq.Rebalanced.load(path, model)
    eq.Rebalanced(plain, source=digits.prior).save(path)
    with pytest.raises(ValueError, match="holds a Rebalanced, not a RebalancedSigmoid"):
        eq.RebalancedSigmoid.load(path, model)
    with pytest.raises(ValueError, match="10 classes, the model's last layer has 3 outputs"):
        eq.Rebalanced.load(path, multilabel()[0])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), network().parameters(), strict=True))
    save_file(plain.state_dict(), tmp_path / "b.safetensors", {"equipoise": "Rebalanced", "source": "{}"})
    with pytest.raises(ValueError, match=r"not a prior: expected an object with 'counts'"):
        eq.Rebalanced.load(tmp_path / "b.safetensors", model)
    save_file(plain.state_dict(), tmp_path / "b.safetensors", {"equipoise": "Rebalanced"})
    with pytest.raises(ValueError, match=r"b\.safetensors lack 'source'"):
        eq.Rebalanced.load(tmp_path / "b.safetensors", model)
    with pytest.raises(ValueError, match="meta device"):
        eq.Rebalanced.load(path, network().to("meta"))


def test_a_state_dict_carries_the_priors_and_loads_without_pickle(digits, plain, tmp_path: Path):
    served = eq.Rebalanced(plain, source=digits.prior, target=TARGET)
    torch.save(served.state_dict(), tmp_path / "a.pt")
    again = eq.Rebalanced(network().eval(), target=[0.91, *[0.01] * 9])
    again.load_state_dict(torch.load(tmp_path / "a.pt", weights_only=True))
    assert (again.source, again.target) == (digits.prior, TARGET)
    assert torch.equal(again(digits.test_images), served(digits.test_images))


@pytest.mark.parametrize(
    ("saved", "fresh"),
    [
        (
            eq.Rebalanced(nn.Linear(2, 3), source=eq.Prior.from_counts({"cat": 90, "owl": 9, "é'\"": 1})),
            eq.Rebalanced(
                nn.Linear(2, 3),
                source=eq.Prior.from_counts({"cat": 1, "owl": 2**52, "é'\"": 1}),
                target=[1 / 3 + 1e-9, 1 / 3 - 1e-9, 1 / 3],
                tau=0.123456789012345,
                scale=1e-7 / 3,
            ),
        ),
        (
            eq.RebalancedSigmoid(nn.Linear(2, 3), source=[0.1, 0.2, 0.3], target_rate=0.5),
            eq.RebalancedSigmoid(nn.Linear(2, 3), source=[1e-9 / 3, 2 / 3, 0.3], target_rate=[0.1, 1 / 7, 1 / 9]),
        ),
    ],
    ids=["softmax", "sigmoid"],
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning:torch")
def test_a_distributed_checkpoint_loads_into_a_model_with_other_priors(saved: Any, fresh: Any, tmp_path: Path):
    from torch.distributed import checkpoint

    for number, (first, second) in enumerate([(saved, fresh), (fresh, saved)]):
        second = copy.deepcopy(second)
        checkpoint.save(first.state_dict(), checkpoint_id=tmp_path / str(number), no_dist=True)
        state = second.state_dict()
        checkpoint.load(state, checkpoint_id=tmp_path / str(number), no_dist=True)
        second.load_state_dict(state)
        assert second.metadata == first.metadata
        assert torch.equal(second(torch.ones(1, 2)), first(torch.ones(1, 2)))


def test_a_served_model_keeps_its_shift_through_to_empty():
    served = eq.Rebalanced(nn.Linear(2, 3), source=[0.7, 0.2, 0.1])
    shift = served.shift.clone()
    assert torch.equal(served.to("meta").to_empty(device="cpu").shift, shift)
    served._buffers["shift"], served._kept = shift.to("meta"), {}
    served.to_empty(device="cpu")
    with pytest.raises(RuntimeError, match="shift of this Rebalanced came from the meta device without values"):
        served(torch.ones(1, 2))
    served.target = [0.2, 0.3, 0.5]
    served(torch.ones(1, 2))


def test_a_state_dict_of_other_classes_is_refused():
    state = eq.Rebalanced(nn.Linear(2, 2), source=eq.Prior.from_counts({"cat": 9, "owl": 1})).state_dict()
    other = eq.Rebalanced(nn.Linear(2, 2), source=eq.Prior.from_counts({"cat": 9, "yak": 1}))
    with pytest.raises(ValueError, match="column 1 is 'owl' in the state dict, 'yak' in this model"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="the new prior has 2 classes, the model's has 3"):
        eq.Rebalanced(nn.Linear(2, 3), source=[0.5, 0.3, 0.2]).load_state_dict(state)
    with pytest.raises(ValueError, match="holds a Rebalanced, not a RebalancedSigmoid"):
        eq.RebalancedSigmoid(nn.Linear(2, 2), source=0.1, target_rate=0.2).load_state_dict(state)


def test_copies_are_independent(digits, plain):
    served = eq.Rebalanced(plain, source=digits.prior)
    other = copy.deepcopy(served)
    other.target = TARGET
    assert served.target != TARGET
    assert not torch.equal(served.shift, other.shift)


def test_without_safetensors_the_error_names_the_extra(plain, digits, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"pip install 'equipoise\[serve\]'"):
        eq.Rebalanced(plain, source=digits.prior).save("nowhere.safetensors")


def test_no_guard_speaks_up_in_ordinary_use(digits, plain):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        served = eq.Rebalanced(plain, source=digits.prior)
        served(digits.test_images)
        served.target = TARGET
        served(digits.test_images)
    assert heard == []


def test_options_may_be_numbers_of_numpy_and_torch_and_survive_a_state_dict(tmp_path: Path):
    calibration = eq.Calibration(2.0)
    served = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1], tau=np.float32(1), scale=1 / calibration.temperature)
    served.save(tmp_path / "model.safetensors")
    again = eq.Rebalanced.load(tmp_path / "model.safetensors", nn.Linear(4, 2))
    again.load_state_dict(served.state_dict())
    assert (again.scale, again.tau) == (0.5, 1.0)
    dense = eq.Rebalanced(nn.Conv2d(3, 2, 1), source=[0.9, 0.1], dim=np.int64(1))
    assert dense.metadata["dim"] == "1"


@pytest.mark.parametrize("option", [{"scale": "30"}, {"tau": "1"}, {"tau": None}, {"dim": [1]}])
def test_an_option_that_is_no_number_is_refused(option):
    (name,) = option
    with pytest.raises(TypeError, match=f"{name} is .*: expected a number"):
        eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1], **option)


def test_tau_can_be_read_and_not_assigned_without_effect():
    served = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1], tau=0.5)
    assert served.tau == 0.5
    with pytest.raises(AttributeError):
        served.tau = 1.0


def test_a_class_without_items_is_warned_of_once_a_correction():
    with pytest.warns(UserWarning, match="classes have no item") as caught:
        eq.Rebalanced(nn.Linear(4, 3), source=eq.Prior.from_counts([5, 5, 0]))
    assert len(caught) == 1


def test_warnings_point_at_the_line_that_called_the_model():
    served = eq.Rebalanced(nn.Tanh(), source=[0.9, 0.1])
    with pytest.warns(UserWarning, match="like cosines") as caught:
        served(torch.randn(200, 2))
    assert caught[0].filename == __file__


def test_vmap_takes_a_served_model_from_its_first_call(digits, plain):
    images = digits.test_images[:4]
    served = eq.Rebalanced(plain, source=digits.prior)
    torch.testing.assert_close(torch.func.vmap(lambda x: served(x[None])[0])(images), served(images))


def test_a_single_logit_leads_to_the_sigmoid_twin():
    with pytest.raises(ValueError, match="has one output: a single logit belongs to a sigmoid, so use Rebalanced"):
        eq.Rebalanced(nn.Linear(4, 1), source=[0.9, 0.1])
    for source in (None, "rare"):
        with pytest.raises(TypeError, match=f"source is {source!r}: expected a rate"):
            eq.RebalancedSigmoid(nn.Linear(4, 1), source=source, target_rate=0.5)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_a_compiled_or_parallel_model_has_the_checkpoint_of_the_plain_one(wrap, tmp_path: Path):
    served = eq.Rebalanced(wrap(nn.Linear(4, 2)), source=[0.9, 0.1])
    served.save(tmp_path / "model.safetensors")
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["bias", "weight"]
    x = torch.randn(3, 4)
    for model in (nn.Linear(4, 2), wrap(nn.Linear(4, 2))):
        torch.testing.assert_close(eq.Rebalanced.load(tmp_path / "model.safetensors", model)(x), served(x))
    with pytest.raises(ValueError, match="last layer has 3 outputs"):
        eq.Rebalanced(wrap(nn.Linear(4, 3)), source=[0.9, 0.1])


def test_what_is_no_prior_leads_to_one():
    served = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1])
    estimate = eq.estimate_prior(torch.tensor([[0.6, 0.4], [0.3, 0.7]]).repeat(50, 1), [0.9, 0.1], resamples=0)
    with pytest.raises(TypeError, match=r"PriorEstimate: pass its \.prior"):
        served.target = estimate
    with pytest.raises(ValueError, match=r"sum to 100, not 1: .*Prior\.from_counts for counts"):
        served.target = {"cat": 90, "owl": 10}
    served.target = {"cat": 0.2, "owl": 0.8}
    assert served.class_names == ("cat", "owl")
    with pytest.raises(ValueError, match=r"in dimension 2, but logits have shape \(3, 2\)"):
        eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1], dim=2)(torch.randn(3, 4))


@pytest.mark.parametrize("content", [b"", b"PK, as torch.save writes it"])
def test_a_file_of_another_format_is_named(content, tmp_path: Path):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.pt is not a safetensors file .*load_state_dict"):
        eq.Rebalanced.load(path, nn.Linear(4, 2))


def test_metadata_that_cannot_be_read_are_named(tmp_path: Path):
    served = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1])
    path = tmp_path / "model.safetensors"
    for damage in ({"source": '{"counts": [3,'}, {"tau": "null"}, {"target": "[0.5, 0.5]"}):
        save_file(served.model.state_dict(), path, served.metadata | damage)
        with pytest.raises(ValueError, match=r"the metadata of .*model\.safetensors cannot be read"):
            eq.Rebalanced.load(path, nn.Linear(4, 2))


def test_a_damaged_checkpoint_is_one_error_that_names_it_and_leaves_the_model_alone(tmp_path: Path):
    served, path = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1]), tmp_path / "model.safetensors"
    served.save(path)
    content, model = path.read_bytes(), nn.Linear(4, 2)
    before = copy.deepcopy(model.state_dict())
    for damaged in [content[:size] for size in (0, 7, 40, len(content) // 2, len(content) - 1)] + [b"x" + content[1:]]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
            eq.Rebalanced.load(path, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_another_model_are_one_error_that_names_the_file(tmp_path: Path):
    served, path = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1]), tmp_path / "model.safetensors"
    served.save(path)
    with pytest.raises(
        ValueError, match=r"(?s)the weights of .*model\.safetensors do not fit this model.*size mismatch"
    ):
        eq.Rebalanced.load(path, nn.Linear(5, 2))


def test_priors_cut_short_in_a_state_dict_are_refused():
    served = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1])
    state = served.state_dict()
    state["_extra_state"] = state["_extra_state"][:40]
    with pytest.raises(ValueError, match="the priors in the state dict cannot be read"):
        served.load_state_dict(state)


def test_saving_that_fails_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch):
    served, path = eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1]), tmp_path / "model.safetensors"
    served.save(path)
    before = path.read_bytes()

    def fill_the_disk(model, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_model", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        served.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
