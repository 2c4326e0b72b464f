"""Evaluation: every number against a slow one, sums that merge, tables that read well."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import equipoise as eq
from equipoise.metrics.intervals import wilson_interval

PRIOR = eq.Prior.from_counts([500, 150, 60, 20, 5], class_names=["cat", "dog", "owl", "eel", "yak"])


def data(rows: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 5, (rows,), generator=generator)
    logits = 1.5 * torch.randn(rows, 5, generator=generator) + 2 * torch.nn.functional.one_hot(target, 5)
    return logits, target


def test_accuracies_are_those_of_plain_loops() -> None:
    logits, target = data()
    result = eq.evaluate(logits, target, PRIOR)
    hits = (logits.argmax(1) == target).tolist()
    assert result.top1 == sum(hits) / 400
    each = [np.mean([hit for hit, y in zip(hits, target.tolist(), strict=True) if y == j]) for j in range(5)]
    assert [row.accuracy for row in result.per_class] == pytest.approx(each)
    assert result.balanced_accuracy == pytest.approx(np.mean(each))
    assert result.many == pytest.approx(np.mean(each[:2]))
    assert result.medium == pytest.approx(np.mean(each[2:4]))
    assert result.few == pytest.approx(each[4])
    assert [row.count for row in result.per_class] == [500, 150, 60, 20, 5]
    assert [row.name for row in result.per_class] == ["cat", "dog", "owl", "eel", "yak"]
    assert [row.items for row in result.per_class] == torch.bincount(target).tolist()


def test_marginal_likelihood_and_its_distance_from_uniform() -> None:
    logits, target = data()
    result = eq.evaluate(logits, target, PRIOR)
    p = logits.softmax(1).double().mean(0).numpy()
    assert result.marginal == pytest.approx(p, rel=1e-6)
    assert result.total_variation == pytest.approx(np.abs(p - 0.2).sum() / 2, rel=1e-6)
    flat = eq.evaluate(torch.zeros(3, 5), torch.tensor([0, 1, 2]), PRIOR)
    assert flat.total_variation == pytest.approx(0, abs=1e-7)
    sure = eq.evaluate(torch.eye(5)[[0, 0]] * 1e4, torch.tensor([0, 1]), PRIOR)
    assert sure.total_variation == pytest.approx(0.8)


def slow_ece(logits: torch.Tensor, target: torch.Tensor) -> float:
    confidence, predicted = logits.softmax(1).max(1)
    error = 0.0
    for b in range(15):
        inside = [i for i in range(len(target)) if b / 15 < confidence[i].item() <= (b + 1) / 15]
        if inside:
            accuracy = np.mean([float(predicted[i] == target[i]) for i in inside])
            error += len(inside) / len(target) * abs(accuracy - np.mean([confidence[i].item() for i in inside]))
    return error


def test_calibration_error_overall_and_by_group() -> None:
    logits, target = data()
    result = eq.evaluate(logits, target, PRIOR)
    assert result.ece == pytest.approx(slow_ece(logits, target), abs=1e-6)
    groups = result.groups()
    for name, classes in PRIOR.groups().items():
        inside = torch.isin(target, torch.tensor(classes))
        assert groups[name].ece == pytest.approx(slow_ece(logits[inside], target[inside]), abs=1e-6)
        assert groups[name].items == int(inside.sum())
        assert groups[name].num_classes == len(classes)


def test_confidence_on_the_edge_of_a_bin_falls_below_it() -> None:
    p = [[0.6, 0.4, 0, 0, 0], [1.0, 0, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2]]
    result = eq.evaluate(np.array(p), [0, 0, 0], PRIOR, probabilities=True)
    assert np.flatnonzero(result.bin_items[0]).tolist() == [2, 8, 14]


@pytest.mark.parametrize("correct", [0, 1, 37, 40])
def test_wilson_interval_is_that_of_scipy(correct: int) -> None:
    expected = binomtest(correct, 40).proportion_ci(method="wilson")
    assert wilson_interval(correct, 40) == pytest.approx((expected.low, expected.high), abs=1e-12)
    row = eq.evaluate(torch.eye(2)[[0] * correct + [1] * (40 - correct)], [0] * 40, eq.Prior.uniform(2)).per_class[0]
    assert (row.low, row.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nothing_to_go_by_is_every_proportion() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 correct of 2"):
        wilson_interval(3, 2)


def test_parts_merge_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = data()
    whole = eq.evaluate(logits, target, PRIOR)
    merged = sum(eq.evaluate(logits[i::7], target[i::7], PRIOR) for i in range(7))
    assert (merged.correct == whole.correct).all()
    assert (merged.bin_items == whole.bin_items).all()
    assert merged.marginal == pytest.approx(whole.marginal, rel=1e-6)
    assert merged.ece == pytest.approx(whole.ece, rel=1e-6)
    monkeypatch.setattr("equipoise.metrics.evaluation.ELEMENTS_AT_ONCE", 5 * 33)
    streamed = eq.evaluate(logits, target, PRIOR)
    assert (streamed.bin_items == whole.bin_items).all()
    assert streamed.marginal == pytest.approx(whole.marginal, rel=1e-6)
    with pytest.raises(ValueError, match="different priors do not add"):
        whole + eq.evaluate(logits, target, eq.Prior.uniform(5))


def test_arrays_tensors_half_precision_and_probabilities_agree() -> None:
    logits, target = data()
    whole = eq.evaluate(logits, target, PRIOR)
    assert eq.evaluate(logits.numpy(), target.numpy(), PRIOR) == whole
    assert eq.evaluate(logits.tolist(), target.tolist(), PRIOR).top1 == whole.top1
    from_probabilities = eq.evaluate(logits.softmax(1), target, PRIOR, probabilities=True)
    assert from_probabilities == whole
    half = eq.evaluate(logits.bfloat16(), target, PRIOR)
    assert half == eq.evaluate(logits.bfloat16().float(), target, PRIOR)
    assert eq.evaluate(logits.requires_grad_(), target, PRIOR).top1 == whole.top1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint64, np.int64])
def test_targets_of_every_integer_type_count_alike(dtype: type) -> None:
    prior = eq.Prior.from_counts([5] * 100)
    result = eq.evaluate(np.eye(100) * 9, np.arange(100).astype(dtype), prior)
    assert result.items.tolist() == [1] * 100
    assert result.balanced_accuracy == 1


def test_half_precision_probabilities_are_taken_for_what_they_are() -> None:
    logits, target = data()
    rounded = logits.softmax(1).bfloat16()
    found = eq.evaluate(rounded, target, PRIOR, probabilities=True)
    assert found.top1 == (rounded.float().argmax(1) == target).double().mean().item()


def test_label_maps_are_judged_by_pixel_and_ignored_items_do_not_count() -> None:
    logits, target = data(24)
    flat = eq.evaluate(logits, target, PRIOR)
    dense = logits.reshape(2, 3, 4, 5).movedim(-1, 1)
    assert eq.evaluate(dense, target.reshape(2, 3, 4), PRIOR) == flat
    assert eq.evaluate(dense.numpy(), target.reshape(2, 3, 4).numpy(), PRIOR) == flat
    ignored = torch.where(torch.arange(24) < 9, 255, target)
    assert eq.evaluate(logits, ignored, PRIOR, ignore_index=255) == eq.evaluate(logits[9:], target[9:], PRIOR)
    with pytest.raises(ValueError, match=r"expected \[N, \.\.\.\] for \[N, K, \.\.\.\]"):
        eq.evaluate(dense, target, PRIOR)


def test_an_evaluation_is_frozen() -> None:
    result = eq.evaluate(*data(), PRIOR)
    with pytest.raises(ValueError, match="read-only"):
        result.correct[0] = 99


def test_no_rows_as_lists_and_read_only_arrays_are_fine() -> None:
    assert eq.evaluate(np.zeros((0, 5)), [], PRIOR).num_items == 0
    frozen = np.eye(5)
    frozen.flags.writeable = False
    assert eq.evaluate(frozen, range(5), PRIOR).top1 == 1


def test_it_is_plain_data() -> None:
    logits, target = data()
    whole = eq.evaluate(logits, target, PRIOR)
    assert eq.Evaluation.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


def test_an_empty_group_prints_a_dash_and_an_empty_class_too() -> None:
    prior = eq.Prior.from_counts([500, 400, 3])
    result = eq.evaluate(torch.eye(3)[[0, 1]], torch.tensor([0, 1]), prior)
    assert result.medium is None
    assert result.few is None
    assert result.balanced_accuracy == 1
    assert repr(result) == "Evaluation(2 items, top-1 100.0, many 100.0, medium –, few –)"
    lines = str(result).splitlines()
    assert lines[3].split() == ["medium", "0", "0", "–", "–"]
    assert lines[-1].split() == ["2", "3", "0", "–", "–"]


def test_the_table_reads_as_documented() -> None:
    logits = torch.tensor([[2.0, 0, 0, 0, 0]] * 3 + [[0, 0, 0, 0, 2.0]])
    lines = str(eq.evaluate(logits, [0, 0, 1, 4], PRIOR)).splitlines()
    assert lines[0].split() == ["classes", "items", "accuracy", "ECE"]
    assert lines[1].split() == ["all", "5", "4", "75.0", "10.1"]
    assert lines[4].split()[:4] == ["few", "1", "1", "100.0"]
    assert lines[-5].split() == ["cat", "500", "2", "100.0", "34.2", "to", "100.0"]


def test_a_stated_prior_has_no_groups_but_everything_else() -> None:
    logits, target = data()
    result = eq.evaluate(logits, target, eq.Prior.uniform(5))
    assert result.many is None
    assert result.per_class[0].count is None
    assert "–" in str(result)


def test_no_items_give_no_numbers_and_merge() -> None:
    logits, target = data()
    empty = eq.evaluate(torch.empty(0, 5), torch.empty(0, dtype=torch.long), PRIOR)
    assert math.isnan(empty.top1)
    assert math.isnan(empty.ece)
    assert math.isnan(empty.balanced_accuracy)
    assert "top-1 –" in repr(empty)
    assert str(empty)
    assert empty + eq.evaluate(logits, target, PRIOR) == eq.evaluate(logits, target, PRIOR)


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(3), [0, 1, 2], r"shape \(3,\), expected \[N, K\]"),
        (torch.zeros(3, 4), [0, 1, 2], "prior has 5 classes, logits have 4: build it with num_classes=4"),
        (torch.zeros(3, 5), [0, 1], r"target has shape \(2,\)"),
        (torch.zeros(2, 5), [0, 5], r"target\[1\] is 5: expected a class from 0 to 4"),
        (torch.zeros(2, 5), [0, -1], r"target\[1\] is -1"),
        (torch.zeros(2, 5), [0.0, 1.0], "expected class indices"),
        (torch.tensor([[0.0] * 5, [0, 0, 0, math.nan, 0]]), [0, 0], "row 1, column 3 of the logits is nan"),
        (torch.tensor([[0.0] * 5, [-math.inf] * 5]), [0, 0], "row 1 of the logits is -inf for every class"),
        (torch.tensor([[0.0] * 5, [math.inf, 0, 0, 0, 0]]), [0, 0], "row 1, column 0 of the logits is inf"),
    ],
)
def test_bad_input_gets_one_clear_error(logits: torch.Tensor, target: list[int], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        eq.evaluate(logits, target, PRIOR)


def test_something_else_than_a_prior_is_refused() -> None:
    with pytest.raises(TypeError, match="prior is a list"):
        eq.evaluate(torch.zeros(1, 2), [0], [5, 3])  # type: ignore[arg-type]


def test_logits_passed_as_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="row 0 is not a distribution"):
        eq.evaluate(torch.ones(2, 5), [0, 1], PRIOR, probabilities=True)
    with pytest.raises(ValueError, match="row 1 is not a distribution"):
        eq.evaluate([[1.0, 0, 0, 0, 0], [1.5, -0.5, 0, 0, 0]], [0, 1], PRIOR, probabilities=True)
