"""LongTailMetrics gives what `evaluate` gives of all items at once: over batches, ranks, copies and collections."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor

import equipoise as eq

torchmetrics = pytest.importorskip("torchmetrics")
from equipoise.integrations.torchmetrics import LongTailMetrics  # noqa: E402

PRIOR = eq.Prior.from_counts([500, 300, 50, 3, 2])


def predictions(seed: int = 0, items: int = 60) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    target = torch.randint(5, (items,), generator=random)
    logits = torch.randn(items, 5, generator=random) + 2 * torch.eye(5)[target]
    return logits, target


def same(found: dict[str, Tensor], scores: dict[str, float]) -> None:
    assert list(found) == list(scores)
    torch.testing.assert_close(torch.stack(list(found.values())), torch.tensor(list(scores.values())), equal_nan=True)


def test_scores_are_flat_fractions_and_nan_for_an_empty_group() -> None:
    result = eq.evaluate([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]], [0, 0, 1], eq.Prior.from_counts([500, 5]))
    scores = result.scores()
    assert list(scores) == ["top1", "balanced", "many", "medium", "few", "ece", "total_variation"]
    assert (scores["top1"], scores["balanced"], scores["many"], scores["few"]) == (2 / 3, 0.5, 1.0, 0.0)
    assert math.isnan(scores["medium"])
    assert {type(value) for value in scores.values()} == {float}
    assert result.scores(many=600)["medium"] == 1.0


def test_batches_add_up_to_the_whole_and_reset_forgets() -> None:
    logits, target = predictions()
    metric = LongTailMetrics(PRIOR)
    metric.update(*predictions(seed=9))
    metric.reset()
    for part in range(0, 60, 7):
        metric.update(logits[part : part + 7], target[part : part + 7])
    whole = eq.evaluate(logits, target, PRIOR)
    same(metric.compute(), whole.scores())
    assert metric.evaluation.items.tolist() == whole.items.tolist()
    metric.reset()
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert math.isnan(metric.compute()["top1"])


def test_forward_gives_the_batch_and_keeps_the_sum() -> None:
    logits, target = predictions()
    metric = LongTailMetrics(PRIOR)
    metric(logits[:20], target[:20])
    same(metric(logits[20:], target[20:]), eq.evaluate(logits[20:], target[20:], PRIOR).scores())
    same(metric.compute(), eq.evaluate(logits, target, PRIOR).scores())


def test_options_are_those_of_evaluate() -> None:
    logits, target = predictions()
    dense, maps = logits.reshape(4, 15, 5).movedim(-1, 1), target.reshape(4, 15).clone()
    maps[0, :3] = -100
    metric = LongTailMetrics(PRIOR, probabilities=True, ignore_index=-100, many=400, few=3)
    metric.update(dense.softmax(1), maps)
    kept = maps.reshape(-1) != -100
    same(metric.compute(), eq.evaluate(logits[kept], target[kept], PRIOR).scores(many=400, few=3))


def test_it_works_in_a_collection_and_survives_copies() -> None:
    logits, target = predictions()
    other = eq.Prior.from_counts([1, 2, 50, 300, 500])
    f1 = torchmetrics.F1Score("multiclass", num_classes=5)
    metrics = {"a": LongTailMetrics(PRIOR), "b": LongTailMetrics(other), "f1": f1}
    both = torchmetrics.MetricCollection(metrics, prefix="val_")
    for part in (slice(0, 30), slice(30, 60)):  # after the first batch, metrics of equal states share them
        both.update(logits[part], target[part])
    found = both.compute()
    expected = {"a": eq.evaluate(logits, target, PRIOR).scores(), "b": eq.evaluate(logits, target, other).scores()}
    assert found["val_a_few"].item() == pytest.approx(expected["a"]["few"])
    assert found["val_b_few"].item() == pytest.approx(expected["b"]["few"])
    assert expected["a"]["few"] != expected["b"]["few"]
    assert "val_f1" in found
    copy = pickle.loads(pickle.dumps(both["a"].clone()))
    same(copy.compute(), expected["a"])


def test_ranks_add_up_to_the_whole() -> None:
    logits, target = predictions()
    other = LongTailMetrics(PRIOR)
    other.update(logits[45:], target[45:])
    theirs = iter([getattr(other, name) for name in other.metric_state])

    def gathered(state: Tensor, group: object = None) -> list[Tensor]:
        return [state, next(theirs)]

    mine = LongTailMetrics(PRIOR, dist_sync_fn=gathered, distributed_available_fn=lambda: True)
    mine.update(logits[:45], target[:45])
    same(mine.compute(), eq.evaluate(logits, target, PRIOR).scores())
    assert mine.evaluation.num_items == 45  # its own again
