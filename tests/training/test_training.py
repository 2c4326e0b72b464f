"""The training loop on a CPU: schedule, sampling, SGD, determinism, resuming, frozen backbones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.losses.balanced_sigmoid import BalancedSigmoidLoss
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.equalization import EqualizationLoss
from equipoise.losses.ldam import LDAMLoss
from equipoise.models.heads import NormalizedLinear
from equipoise.prior import Prior
from equipoise.training import classification
from equipoise.training.augmentation.cifar import AUGMENTATIONS, draw
from equipoise.training.classification import Training, build_model, sample_order, train
from equipoise.training.optimizers import sgd_
from equipoise.training.recipe import Recipe
from equipoise.training.sets import AUGMENTATION, CHUNK, CifarSet, stream_of
from equipoise.training.weights import weights_digest

CPU = torch.device("cpu")
TINY = Recipe(blocks=1, batch_size=4, iterations=2 * CHUNK + 3, warmup=5)


@pytest.fixture(scope="module")
def data() -> CifarSet:
    labels = np.repeat(np.arange(3), [20, 8, 3])
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    return CifarSet.of(images, labels, Prior.from_labels(labels), CPU)


def finished(recipe: Recipe, data: CifarSet, seed: int = 0) -> Training:
    run = Training(recipe, data, seed)
    assert train([run])
    return run


# -------------------------------------------------------------------- schedule, order, SGD


def test_the_rate_warms_up_from_005_to_01_and_ends_at_0() -> None:
    recipe = Recipe()
    rates = [recipe.learning_rate(i) for i in range(recipe.iterations)]
    assert rates[0] == 0.05
    assert rates[1] - rates[0] == pytest.approx(0.05 / 800)
    assert rates[800] == max(rates) == 0.1
    assert rates[(800 + 13_000) // 2] == pytest.approx(0.05)
    assert 0 < rates[-1] < 1e-8
    assert recipe.learning_rate(13_000) == 0
    without_warmup = replace(recipe, warmup=0, iterations=2_000)
    assert without_warmup.learning_rate(0) == 0.1


def test_every_image_comes_once_an_epoch_and_none_is_left_out() -> None:
    labels = np.zeros(10, np.int64)
    order = sample_order(replace(TINY, iterations=10, batch_size=3), labels, seed=0)
    assert len(order) == 30
    assert all(sorted(order[start : start + 10]) == list(range(10)) for start in (0, 10, 20))
    assert order[:10].tolist() != order[10:20].tolist()
    assert sample_order(replace(TINY, iterations=4, batch_size=3), labels, seed=0).tolist() == order[:12].tolist()


def test_class_balanced_order_gives_every_class_its_turn_and_every_item_of_a_class_its_own() -> None:
    labels = np.repeat(np.arange(3), [6, 3, 1])
    order = sample_order(replace(TINY, sampler="class_balanced", iterations=4, batch_size=9), labels, seed=0)
    turns = labels[order].reshape(12, 3)
    assert all(sorted(turn) == [0, 1, 2] for turn in turns.tolist())
    assert len({tuple(turn) for turn in turns.tolist()}) > 1
    assert np.bincount(order, minlength=10).tolist() == [2] * 6 + [4] * 3 + [12]


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_equals_torchs(nesterov: bool) -> None:
    torch.manual_seed(0)
    recipe = replace(TINY, nesterov=nesterov)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4, nesterov=nesterov)
    parameters = list(ours.parameters())
    velocity = [torch.zeros_like(parameter) for parameter in parameters]
    for rate in (0.1, 0.05, 0.2, 0.0):
        x = torch.randn(4, 5)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        theirs(x).pow(2).sum().backward()
        optimizer.step()
        gradients = torch.autograd.grad(ours(x).pow(2).sum(), parameters)
        sgd_(list(parameters), gradients, velocity, torch.tensor([rate]), recipe)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------- a run


def test_a_run_equals_a_plain_loop_over_the_same_batches(data: CifarSet) -> None:
    recipe = replace(TINY, iterations=6, loss=BalancedSoftmaxLoss, options={"tau": 1.0})
    run = Training(recipe, data, seed=3)
    model, loss_function = build_model(recipe, 3, seed=3), recipe.make_loss(data.prior)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4)
    run.advance()
    losses = []
    for i in range(6):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate(i)
        loss = loss_function(model(classification.normalise(run._images[i])), run._labels[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(run.losses, torch.tensor(losses), rtol=1e-4, atol=1e-5)
    for (name, mine), other in zip(run.model.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4, msg=name)


def test_sam_steps_with_the_gradient_uphill_and_keeps_the_statistics_from_the_weights(
    data: CifarSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(TINY, iterations=3, sam=0.5)
    run = Training(recipe, data, seed=3)
    expected = [parameter.detach().double() for parameter in run.parameters]
    running, batches = run.model.bn.running_mean.clone(), []

    def bowl(*batch: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The gradients of 3/2 · ‖weights‖², which no rounding can flip; every pass adds 1 to a statistic."""
        batches.append([value.clone() for value in batch])
        run.model.bn.running_mean.add_(1.0)
        return torch.zeros(()), tuple(3 * parameter.detach() for parameter in run.parameters)

    monkeypatch.setattr(run, "_gradients", bowl)
    run.advance()
    velocity = [torch.zeros_like(value) for value in expected]
    for i in range(3):
        norm = torch.sqrt(sum(((3 * value).square().sum() for value in expected), torch.zeros(())))
        uphill = [3 * (value + 0.5 * 3 * value / norm) for value in expected]
        velocity = [0.9 * v + g + 5e-4 * p for v, g, p in zip(velocity, uphill, expected, strict=True)]
        expected = [p - recipe.learning_rate(i) * v for p, v in zip(expected, velocity, strict=True)]
    for own, other in zip(run.parameters, expected, strict=True):  # fp32: some twenty roundings of 6e-8
        torch.testing.assert_close(own.detach(), other.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run.model.bn.running_mean, running + 3)
    for first, second in zip(batches[::2], batches[1::2], strict=True):  # both passes are of one batch
        assert all(torch.equal(value, other) for value, other in zip(first, second, strict=True))
    assert not torch.equal(batches[0][0], batches[2][0])


def test_an_augmentation_of_photographs_is_refused_on_cifar(data: CifarSet) -> None:
    with pytest.raises(ValueError, match="augmentation is 'resized': on CIFAR, expected 'paper' or 'crop'"):
        Training(replace(TINY, augmentation="resized"), data, seed=0)


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_batches_hold_the_labels_of_their_images_and_every_chunk_is_drawn_anew(
    chunk: int, kind: str, data: CifarSet
) -> None:
    run = Training(replace(TINY, augmentation=kind), data, seed=0)
    run.iteration = chunk * CHUNK
    run._fill()
    drawn = draw(CHUNK * 4, stream_of(0, AUGMENTATION, chunk))
    index = run.order[chunk * CHUNK : (chunk + 1) * CHUNK].reshape(-1).astype(np.int64)
    assert torch.equal(run._images.flatten(0, 1), data.augmentation(index, drawn, kind))
    assert run._labels.flatten().tolist() == data.labels[index].tolist()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"loss": EqualizationLoss, "options": {"gamma": 0.5, "threshold": 0.3}},
        {"loss": LDAMLoss, "head": "normalized", "sampler": "class_balanced"},
        {"loss": BalancedSigmoidLoss, "rare_bias": True, "nesterov": True},
        {"sam": 0.1},
    ],
    ids=["softmax", "eql", "ldam", "sigmoid", "sam"],
)
def test_a_seed_gives_the_same_weights_to_the_bit_alone_and_beside_others(change: dict, data: CifarSet) -> None:
    recipe = replace(TINY, **change)
    alone = weights_digest(finished(recipe, data).model)
    torch.manual_seed(99)  # the global generator must not matter
    beside = [Training(recipe, data, 0), Training(replace(TINY, loss=nn.CrossEntropyLoss), data, 1)]
    assert train(beside)
    assert weights_digest(beside[0].model) == alone
    assert weights_digest(finished(recipe, data, seed=1).model) != alone


def test_a_run_taken_up_again_ends_with_the_same_weights(data: CifarSet, tmp_path: Path) -> None:
    recipe = replace(TINY, loss=EqualizationLoss, options={"gamma": 0.5, "threshold": 0.3})
    whole = finished(recipe, data)
    half = Training(recipe, data, 0)
    half.advance()
    torch.save(half.state_dict(), tmp_path / "half.pt")
    rest = Training(recipe, data, 0)
    rest.load_state_dict(torch.load(tmp_path / "half.pt", weights_only=True))
    assert rest.iteration == CHUNK
    assert train([rest])
    assert weights_digest(rest.model) == weights_digest(whole.model)
    assert torch.equal(rest.losses, whole.losses)


def test_a_checkpoint_of_another_run_is_refused(data: CifarSet) -> None:
    with pytest.raises(ValueError, match=r"has seed 0 .* this run seed 1"):
        Training(TINY, data, 1).load_state_dict(Training(TINY, data, 0).state_dict())


def test_a_run_whose_last_step_breaks_its_weights_has_diverged(data: CifarSet) -> None:
    run = finished(replace(TINY, iterations=3), data)
    assert run.finite
    with torch.no_grad():
        next(run.model.parameters()).view(-1)[0] = torch.nan
    assert torch.isfinite(run.losses).all()
    assert not run.finite


def test_the_equalization_loss_drops_rare_classes_as_often_as_gamma_says(data: CifarSet) -> None:
    recipe = replace(TINY, batch_size=64, loss=EqualizationLoss, options={"gamma": 0.3, "threshold": 0.3})
    run = Training(recipe, data, 0)
    run._fill()
    share = run._drawn.float().mean((0, 1)).tolist()  # of 31 images the classes have 65, 26 and 10 %
    assert share[0] == 0
    assert share[1:] == [pytest.approx(0.3, abs=0.06)] * 2


def test_the_last_iterate_is_judged_with_running_statistics(data: CifarSet) -> None:
    run = finished(TINY, data)
    images = torch.randint(0, 256, (1003, 3, 32, 32), dtype=torch.uint8)
    logits = run.predict(images)
    assert logits.shape == (1003, 3)
    torch.testing.assert_close(run.predict(images[:1]), logits[:1], rtol=1e-4, atol=1e-4)


# -------------------------------------------------------------------- frozen backbones


def second_stage(**change: object) -> Recipe:
    return replace(TINY, backbone="softmax", **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["linear", "scaled"])
def test_a_frozen_backbone_does_not_move_not_even_its_statistics(head: str, data: CifarSet) -> None:
    backbone = finished(TINY, data).model.state_dict()
    run = Training(second_stage(head=head), data, 0, backbone=backbone)
    first = {name: value.clone() for name, value in run.model.state_dict().items()}
    assert train([run])
    after = run.model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], first[name])}
    assert moved == ({"head.scales"} if head == "scaled" else {"head.weight", "head.bias"})
    assert all(torch.equal(after[name], backbone[name]) for name in after if not name.startswith("head."))


def test_a_retrained_head_starts_anew_and_a_scaled_one_from_the_trained(data: CifarSet) -> None:
    backbone = finished(TINY, data).model.state_dict()
    anew = build_model(second_stage(), 3, 0, backbone).state_dict()
    scaled = build_model(second_stage(head="scaled"), 3, 0, backbone).state_dict()
    assert not torch.equal(anew["head.weight"], backbone["head.weight"])
    assert torch.equal(scaled["head.head.weight"], backbone["head.weight"])


def test_adjusting_afterwards_takes_the_log_prior_off_the_trained_logits(data: CifarSet) -> None:
    trained = finished(TINY, data)
    adjusted = Training(
        second_stage(head="kept", iterations=0, adjusted=True), data, 0, backbone=trained.model.state_dict()
    )
    assert adjusted.done
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    difference = trained.predict(images) - adjusted.predict(images)
    expected = data.prior.log() - np.log(1 / 3)
    torch.testing.assert_close(difference, expected.float().expand(5, 3), rtol=1e-4, atol=1e-4)


def test_heads_start_as_their_recipe_says() -> None:
    normalized = build_model(replace(TINY, head="normalized"), 100, 0)
    assert isinstance(normalized.head, NormalizedLinear)
    rare = build_model(replace(TINY, rare_bias=True), 100, 0).head.bias
    torch.testing.assert_close(rare, torch.full((100,), -float(np.log(99))))


def test_a_backbone_that_is_needed_must_be_given(data: CifarSet) -> None:
    with pytest.raises(ValueError, match="keeps the backbone of 'softmax': pass its weights"):
        Training(second_stage(), data, 0)
