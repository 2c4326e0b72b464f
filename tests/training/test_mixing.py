"""Mixup and CutMix: timm's for the same draw, and draws that depend on seed and iteration alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.training.mixing import WHOLE, Mixing, draw, mixed
from equipoise.training.recipe import Recipe

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 16, 16), np.uint8))
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0)])
def test_it_is_timms(mixup: float, cutmix: float, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm.data.mixup")
    theirs = timm.Mixup(mixup_alpha=mixup, cutmix_alpha=cutmix, label_smoothing=0.0, num_classes=4)
    row = draw(replace(Recipe(), mixup=mixup, cutmix=cutmix), 16, np.random.default_rng(3))
    box = tuple(int(value) for value in row[1:5])
    monkeypatch.setattr(theirs, "_params_per_batch", lambda: (row[5], cutmix > 0))
    monkeypatch.setattr(timm, "cutmix_bbox_and_lam", lambda *_, **__: (box, row[5]))
    images, targets = mixed(IMAGES, LABELS, torch.tensor(row), 4)
    expected, wanted = theirs(IMAGES.float(), LABELS)
    torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(targets, wanted.float(), rtol=1e-5, atol=1e-6)


def test_the_share_of_a_target_is_the_share_of_its_pixels() -> None:
    random = np.random.default_rng(0)
    recipe = replace(Recipe(), cutmix=1.0)
    images = torch.zeros(2, 1, 20, 20)
    images[0] = 1
    for _ in range(50):
        row = torch.tensor(draw(recipe, 20, random))
        pixels, targets = mixed(images, torch.tensor([0, 1]), row, 2)
        assert float(pixels[0].mean()) == pytest.approx(float(targets[0, 0]), abs=1e-6)


def test_a_batch_is_mixed_alike_in_every_chunk_it_may_be_in() -> None:
    recipe = replace(Recipe(), mixup=0.2, cutmix=1.0)
    whole, part = Mixing(recipe, 4, 4, torch.device("cpu")), Mixing(recipe, 1, 4, torch.device("cpu"))
    whole.fill(seed=1, iteration=8, side=16)
    part.fill(seed=1, iteration=10, side=16)
    assert torch.equal(whole.draws[2], part.draws[0])
    assert not torch.equal(whole.draws[1], part.draws[0])
    drawn = [draw(recipe, 16, np.random.default_rng(seed)) for seed in range(40)]
    assert 5 < sum(row[0] == 1.0 for row in drawn) < 35  # both kinds occur


def test_multi_hot_targets_are_mixed_as_they_are() -> None:
    targets = torch.tensor([[1, 0, 1], [0, 1, 1]])
    _, found = mixed(torch.zeros(2, 1, 4, 4), targets, torch.tensor([0.25, 0, 0, 0, 0, 0.25]), 3)
    assert found.tolist() == [[0.25, 0.75, 1.0], [0.75, 0.25, 1.0]]


def test_a_rectangle_has_the_share_that_was_drawn() -> None:
    class Drawn:
        """λ = 3/4, about the middle of 20 pixels."""

        def beta(self, *_: float) -> float:
            return 0.75

        def integers(self, *_: int, size: int) -> list[int]:
            return [10] * size

    row = draw(replace(Recipe(), cutmix=1.0), 20, Drawn())  # type: ignore[arg-type]
    assert row == (1.0, 5, 15, 5, 15, 0.75)


@pytest.mark.parametrize("mixing", [{"mixup": 0.4}, {"cutmix": 1.0}])
def test_a_share_of_the_batches_is_mixed_and_the_others_stay_whole(mixing: dict[str, float]) -> None:
    recipe = replace(Recipe(), **mixing, mix_probability=0.25)  # type: ignore[arg-type]
    rows = [draw(recipe, 16, np.random.default_rng(seed)) for seed in range(200)]
    whole = [row for row in rows if row == WHOLE]
    assert 125 <= len(whole) <= 175  # 150 expected: four standard deviations are 25
    images, targets = mixed(IMAGES, LABELS, torch.tensor(WHOLE), 4)
    assert torch.equal(images, IMAGES.float())
    assert torch.equal(targets, torch.eye(4)[LABELS])


def test_batches_that_are_all_mixed_are_drawn_as_before_there_was_a_share() -> None:
    recipe = replace(Recipe(), cutmix=1.0)
    random = np.random.default_rng(3)
    share = float(random.beta(1.0, 1.0))
    y, x = random.integers(16, size=2)
    half = int(16 * np.sqrt(1 - share)) // 2
    row = draw(recipe, 16, np.random.default_rng(3))
    assert (row[1], row[3]) == (max(y - half, 0), max(x - half, 0))


@pytest.mark.parametrize("distance", [-0.1, float("inf"), float("nan")])
def test_a_distance_uphill_that_is_none_is_refused(distance: float) -> None:
    with pytest.raises(ValueError, match="expected a distance from the weights, 0 or more"):
        Recipe(sam=distance)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="expected a share of the batches, from 0 to 1"):
        Recipe(cutmix=1.0, mix_probability=share)
