"""Classifiers of several labels in the engine: what is frozen stays, what is clipped is, and runs are taken up to the
bit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tagged_photos import write_tagged
from torch import nn

from equipoise.data.tagged_images import read_tagged_images
from equipoise.losses.distribution_balanced import DistributionBalancedLoss
from equipoise.models.classifiers import make_backbone
from equipoise.prior import sigmoid_shift
from equipoise.training.classification import Training, sample_order, train
from equipoise.training.images import ImageData, training_set
from equipoise.training.kinds import Context, Settings
from equipoise.training.multilabel import MultilabelClassification
from equipoise.training.optimizers import clipped
from equipoise.training.recipe import MethodCell, Recipe
from equipoise.training.weights import weights_digest

CPU = torch.device("cpu")
RECIPE = Recipe(
    loss=DistributionBalancedLoss, model="resnet18", size=32, full_stem=True, neck=16, dropout=0.5, frozen_stages=1,
    augmentation="distorted", batch_size=8, iterations=4, warmup=2, first_lr=0.01, lr=0.05, steps=(3,), clip=0.5,
    sampler="class_balanced",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    table = write_tagged(tmp_path_factory.mktemp("tagged")) / "labels.csv"
    images = read_tagged_images(table, part="train")
    test = read_tagged_images(table, part="test", class_names=images.class_names)
    return ImageData(images, test, 32, resize="square")


def test_a_run_taken_up_at_any_iteration_ends_with_the_same_weights(data: ImageData) -> None:
    images = training_set(data, CPU)
    whole = Training(RECIPE, images, 0)
    train([whole])
    first = Training(RECIPE, images, 0)
    for _ in range(2):
        first.advance()
    torch.rand(3)  # which dropout must not depend on
    rest = Training(RECIPE, images, 0)
    rest.load_state_dict(first.state_dict())
    train([rest])
    assert weights_digest(rest.model) == weights_digest(whole.model)
    streamed = Training(RECIPE, training_set(replace(data, resident=False), CPU), 0)
    train([streamed])
    assert weights_digest(streamed.model) == weights_digest(whole.model)


def test_what_is_frozen_stays_and_the_rest_learns(data: ImageData) -> None:
    network, _ = make_backbone("resnet18", 32, full_stem=True)
    start = {f"backbone.{name}": value.clone() for name, value in network.state_dict().items()}
    run = Training(RECIPE, training_set(data, CPU), 0, start=start)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    assert torch.equal(before["backbone.layer2.0.conv1.weight"], start["backbone.layer2.0.conv1.weight"])
    assert float(before["head.weight"].std()) == pytest.approx(0.01, rel=0.3)
    assert not before["head.bias"].any()
    train([run])
    changed = {name for name, value in run.model.state_dict().items() if not torch.equal(value, before[name])}
    stays = ("backbone.conv1", "backbone.bn1", "backbone.layer1")
    assert not [name for name in changed if name.startswith(stays)]
    assert not [name for name in changed if "running" in name and not name.startswith("backbone.fc")]
    assert {
        "backbone.fc.1.running_mean",
        "backbone.fc.0.weight",
        "backbone.layer2.0.bn1.weight",
        "head.weight",
    } <= changed


def test_clipped_gradients_are_torchs() -> None:
    torch.manual_seed(0)
    values = [torch.randn(4, 3), torch.randn(7)]
    for most in (0.5, 100.0):
        parameters = [nn.Parameter(torch.zeros_like(value)) for value in values]
        for parameter, value in zip(parameters, values, strict=True):
            parameter.grad = value.clone()
        nn.utils.clip_grad_norm_(parameters, most)
        for own, parameter in zip(clipped(tuple(values), most), parameters, strict=True):
            torch.testing.assert_close(own, parameter.grad)


def test_a_step_moves_weights_by_the_clipped_gradient(data: ImageData) -> None:
    plain = replace(RECIPE, iterations=1, warmup=0, steps=(), momentum=0.0, weight_decay=0.0, lr=1.0)
    images = training_set(data, CPU)
    for clip, longest in ((0.01, 0.01), (0.0, None)):
        run = Training(replace(plain, clip=clip), images, 0)
        before = [value.detach().clone() for value in run.parameters]
        train([run])
        moved = torch.cat([(new - old).flatten() for new, old in zip(run.parameters, before, strict=True)]).norm()
        if longest is None:
            assert moved > 0.02
        else:
            assert moved.item() == pytest.approx(longest, rel=1e-2)


def test_class_aware_sampling_draws_every_class_equally_often(data: ImageData) -> None:
    labels = data.train.labels
    order = sample_order(replace(RECIPE, iterations=300), labels, seed=0)
    drawn = labels[order].mean(0)
    natural = labels.mean(0)
    assert drawn[2] > 1 / 3 > natural[2]  # at least as often as it is drawn for its own sake
    assert np.array_equal(order[:80], sample_order(replace(RECIPE, iterations=10), labels, seed=0))
    assert (order != sample_order(replace(RECIPE, iterations=300, sampler="instance"), labels, seed=0)).any()


def test_adjusting_afterwards_takes_the_shift_off_the_logits(data: ImageData) -> None:
    base = replace(RECIPE, loss=nn.BCEWithLogitsLoss, sampler="instance")
    images = training_set(data, CPU)
    plain = Training(base, images, 0)
    train([plain])
    adjusted = replace(base, backbone="bce", head="kept", adjusted=True, iterations=0, warmup=0, steps=())
    after = Training(adjusted, images, 0, backbone=plain.state_dict()["model"])
    items = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    expected = plain.predict(items) - sigmoid_shift(data.train.prior)
    torch.testing.assert_close(after.predict(items), expected, rtol=0, atol=1e-5)


def test_logits_that_look_like_probabilities_are_evaluated_without_a_warning(
    data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = MethodCell("db", 0)
    kind = MultilabelClassification("t", {"db": RECIPE}, data, Settings(CPU, tmp_path, tmp_path))
    run = kind.prepare(cell, None)
    shown = data.train.prior.num_classes
    monkeypatch.setattr(run, "predict", lambda items: torch.linspace(0, 1, len(items) * shown).view(len(items), shown))
    with warnings.catch_warnings(action="error"):
        record = kind.judge(cell, run, Context(1.0, 1, None))
    assert record.predicted == [record.items] * shown  # logits of at least 0


def test_shortened_recipes_keep_warm_up_and_steps_in_proportion() -> None:
    recipe = replace(Recipe(), iterations=1000, warmup=500, steps=(600, 800))
    short = recipe.shortened(10)
    assert (short.iterations, short.warmup, short.steps) == (10, 5, (6, 8))
    assert recipe.as_dict()["steps"] == [600, 800]
