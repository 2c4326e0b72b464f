"""Segmentation: IoU and Dice from three sums per class, whatever way a library lays its predictions out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import equipoise as eq

PRIOR = eq.Prior.from_counts([9000, 700, 250, 50, 0], class_names=["road", "car", "sign", "dog", "fox"])


def batch(seed: int = 0, images: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, K, 4, 6] and label maps [N, 4, 6] in which fox never occurs and 255 is ignored."""
    random = torch.Generator().manual_seed(seed)
    maps = torch.randint(4, (images, 4, 6), generator=random)
    logits = torch.randn(images, 5, 4, 6, generator=random) + 2 * F.one_hot(maps, 5).movedim(-1, 1)
    logits[:, 4] = -9.0
    maps[:, 0, 0] = 255
    return logits, maps


def slow(logits: torch.Tensor, maps: torch.Tensor) -> dict[str, list[float]]:
    """IoU, Dice and accuracy per class, pixel set by pixel set."""
    found: dict[str, list[float]] = {"iou": [], "dice": [], "accuracy": []}
    kept = (maps != 255).reshape(-1)
    chosen, labels = logits.argmax(1).reshape(-1)[kept], maps.reshape(-1)[kept]
    for index in range(5):
        said, true = set((chosen == index).nonzero()[:, 0].tolist()), set((labels == index).nonzero()[:, 0].tolist())
        both = len(said & true)
        found["iou"].append(both / len(said | true) if said | true else math.nan)
        found["dice"].append(2 * both / (len(said) + len(true)) if said or true else math.nan)
        found["accuracy"].append(both / len(true) if true else math.nan)
    return found


def test_scores_per_class_are_those_of_the_sets_of_pixels() -> None:
    logits, maps = batch()
    result, expected = eq.evaluate_dense(logits, maps, PRIOR, ignore_index=255), slow(*batch())
    for name in expected:
        np.testing.assert_allclose(getattr(result, name), expected[name])
    rows = result.per_class
    assert [row.name for row in rows] == ["road", "car", "sign", "dog", "fox"]
    assert (rows[4].iou, rows[4].pixels, rows[0].share) == (None, 0, 0.9)
    assert rows[1].dice == pytest.approx(expected["dice"][1])


def test_means_are_over_classes_that_occur_and_groups_are_by_share_of_pixels() -> None:
    result, per_class = eq.evaluate_dense(*batch(), PRIOR, ignore_index=255), slow(*batch())
    assert result.groups() == {"many": [0], "medium": [1, 2], "few": [3, 4]}
    scores = result.scores()
    assert scores["miou"] == pytest.approx(np.mean(per_class["iou"][:4]))
    assert scores["dice_medium"] == pytest.approx(np.mean(per_class["dice"][1:3]))
    assert scores["few"] == pytest.approx(per_class["iou"][3])
    assert scores["balanced"] == pytest.approx(np.mean(per_class["accuracy"][:4]))
    assert scores["pixel_accuracy"] == pytest.approx(result.hits.sum() / 69)
    assert result.scores(without=[0])["miou"] == pytest.approx(np.mean(per_class["iou"][1:4]))
    assert math.isnan(result.scores(without=[0])["many"])


def test_batches_add_up_to_the_whole() -> None:
    parts = [batch(seed) for seed in range(3)]
    whole = eq.evaluate_dense(
        torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]), PRIOR, ignore_index=255
    )
    streamed = sum(eq.evaluate_dense(*part, PRIOR, ignore_index=255) for part in parts)
    assert isinstance(streamed, eq.DenseEvaluation)
    assert streamed.scores() == whole.scores()
    assert str(streamed).splitlines()[1].startswith("road")
    with pytest.raises(ValueError, match="different priors do not add"):
        whole + eq.evaluate_dense([[[0]]], [[[0]]], eq.Prior.uniform(5))


def layouts(logits: torch.Tensor, maps: torch.Tensor) -> dict[str, tuple[Any, Any]]:
    classes, hot = logits.argmax(1), F.one_hot(maps, 5).movedim(-1, 1)
    return {
        "classes": (classes, maps),
        "probabilities": (logits.softmax(1), maps),
        "half": (logits.half(), maps.byte()),
        "NumPy": (logits.numpy(), maps.numpy()),
        "MONAI one-hot": (logits, hot.float()),
        "MONAI decided": (F.one_hot(classes, 5).movedim(-1, 1).float(), hot.float()),
        "MONAI channel": (logits, maps[:, None].float()),
        "MONAI channels": (classes[:, None].float(), maps[:, None].float()),
        "one-hot target only": (classes, hot),
        "volumes": (logits[:, :, None], maps[:, None, None]),
    }


@pytest.mark.parametrize("name", list(layouts(*[torch.zeros(1, 5, 1, 1), torch.zeros(1, 1, 1, dtype=torch.long)])))
def test_every_layout_gives_the_same(name: str) -> None:
    logits, maps = batch()
    maps[maps == 255] = 0
    expected = eq.evaluate_dense(logits, maps, PRIOR)
    assert eq.evaluate_dense(*layouts(logits, maps)[name], PRIOR).scores() == pytest.approx(
        expected.scores(), nan_ok=True
    )


def test_a_label_map_with_as_many_rows_as_classes_is_a_label_map() -> None:
    maps = torch.arange(10).reshape(1, 5, 2) % 5
    assert eq.evaluate_dense(maps, maps, PRIOR).labelled.tolist() == [2, 2, 2, 2, 2]


def test_wrong_input_is_refused() -> None:
    logits, maps = batch()
    with pytest.raises(ValueError, match="hold class 255: expected 0 to 4, or pass ignore_index"):
        eq.evaluate_dense(logits, maps, PRIOR)
    with pytest.raises(ValueError, match=r"\(3, 4, 4, 6\) do not fit a target of shape \(3, 4, 6\)"):
        eq.evaluate_dense(logits[:, :4].long(), maps, PRIOR, ignore_index=255)
    with pytest.raises(TypeError, match="not whole"):
        eq.evaluate_dense(logits[:, 0], maps, PRIOR, ignore_index=255)
    with pytest.raises(TypeError, match="prior is a list"):
        eq.evaluate_dense(logits, maps, [0.5, 0.5])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
def test_monai_and_smp_give_the_same_numbers() -> None:
    logits, maps = batch()
    maps[maps == 255] = 0
    result = eq.evaluate_dense(logits, maps, PRIOR)
    monai = pytest.importorskip("monai.metrics")
    smp = pytest.importorskip("segmentation_models_pytorch")
    chosen, hot = F.one_hot(logits.argmax(1), 5).movedim(-1, 1), F.one_hot(maps, 5).movedim(-1, 1)
    # MONAI scores each image; all images side by side are one
    aside = [torch.cat(list(values), dim=-1)[None] for values in (chosen, hot)]
    dice = monai.compute_dice(*aside, include_background=True)[0].numpy()
    np.testing.assert_allclose(dice[:4], result.dice[:4], rtol=1e-6)
    tp, fp, fn, tn = smp.metrics.get_stats(logits.argmax(1), maps, mode="multiclass", num_classes=5)
    iou = smp.metrics.iou_score(*(values.sum(0, keepdim=True) for values in (tp, fp, fn, tn)), reduction="none")[0]
    np.testing.assert_allclose(iou[:4].numpy(), result.iou[:4], rtol=1e-6)
