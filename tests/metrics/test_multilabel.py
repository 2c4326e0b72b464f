"""Multi-label evaluation: exact against scikit-learn, additive, and honest about what it cannot know."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import Prior, evaluate
from equipoise.metrics import multilabel
from equipoise.metrics.average_precision import binned_average_precision
from equipoise.metrics.multilabel import MultilabelEvaluation, evaluate_multilabel

Case = tuple[Any, Any, Prior]


def case(seed: int = 0, items: int = 400, classes: int = 9, *, ties: bool = False) -> Case:
    """Labels from frequent to rare, and logits that know something of them."""
    random = np.random.default_rng(seed)
    target = (random.random((items, classes)) < np.linspace(0.5, 0.03, classes)).astype(np.int64)
    target[:classes] |= np.eye(classes, dtype=np.int64)  # every class has a positive
    logits = random.normal(size=(items, classes)) + 1.5 * target - 1
    return (np.round(logits, 1) if ties else logits), target, Prior.from_multilabel(target)


@pytest.mark.parametrize("ties", [False, True])
def test_every_score_is_that_of_scikit_learn(ties: bool) -> None:
    logits, target, prior = case(ties=ties)
    found = evaluate_multilabel(logits, target, prior).scores()
    chosen = (logits >= 0).astype(int)
    some = target.sum(1) > 0
    both = some & (target.sum(1) < target.shape[1])
    expected = {
        "map": reference.average_precision_score(target, logits, average="macro"),
        "micro_ap": reference.average_precision_score(target, logits, average="micro"),
        "f1_macro": reference.f1_score(target, chosen, average="macro"),
        "f1_micro": reference.f1_score(target, chosen, average="micro"),
        "f1_samples": reference.f1_score(target, chosen, average="samples", zero_division=0),
        "precision_micro": reference.precision_score(target, chosen, average="micro"),
        "recall_micro": reference.recall_score(target, chosen, average="micro"),
        "ranking_loss": reference.label_ranking_loss(target[both], logits[both]),
        "coverage": reference.coverage_error(target[some], logits[some]) / target.shape[1],
        "lrap": reference.label_ranking_average_precision_score(target[some], logits[some]),
    }
    # sums of at most 3,600 terms in another order: 3,600 roundings of float64
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=3600 * 2**-53)


def test_every_class_is_judged_as_scikit_learn_judges_it() -> None:
    logits, target, prior = case()
    rows = evaluate_multilabel(logits, target, prior).per_class
    chosen = (logits >= 0).astype(int)
    expected = [
        reference.average_precision_score(target, logits, average=None),
        reference.precision_score(target, chosen, average=None),
        reference.recall_score(target, chosen, average=None),
        reference.f1_score(target, chosen, average=None),
    ]
    found = [[row.average_precision, row.precision, row.recall, row.f1] for row in rows]
    np.testing.assert_allclose(np.array(found).T, expected, rtol=400 * 2**-53)


def test_groups_are_the_means_of_their_classes() -> None:
    logits, target, _ = case()
    prior = Prior.from_counts([500, 400, 300, 90, 80, 70, 9, 8, 7], total=1000)
    result = evaluate_multilabel(logits, target, prior)
    precision = np.array([row.average_precision for row in result.per_class])
    scores = result.scores()
    assert scores["map_head"] == precision[:3].mean()
    assert scores["map_medium"] == precision[3:6].mean()
    assert scores["map_tail"] == precision[6:].mean()
    none = evaluate_multilabel(logits, target, Prior.from_counts([500] * 9, total=1000)).scores()
    assert math.isnan(none["map_tail"])
    stated = evaluate_multilabel(logits, target, Prior.uniform(9)).scores()
    assert math.isnan(stated["map_head"])


@pytest.mark.parametrize("missing", [-1, math.nan])
def test_a_missing_label_is_as_if_the_pair_were_not_there(missing: float) -> None:
    logits, target, prior = case(classes=3)
    masked = target.astype(float)
    hidden = np.random.default_rng(1).random(target.shape) < 0.3
    masked[hidden] = missing
    found = evaluate_multilabel(logits, masked, prior)
    for index, row in enumerate(found.per_class):
        known = ~hidden[:, index]
        expected = reference.average_precision_score(target[known, index], logits[known, index])
        assert row.average_precision == pytest.approx(expected, rel=400 * 2**-53)
        assert row.labelled == known.sum()
        assert row.positives == target[known, index].sum()
    pairs = reference.average_precision_score(target[~hidden], logits[~hidden])
    assert found.scores()["micro_ap"] == pytest.approx(pairs, rel=1200 * 2**-53)


def test_an_item_without_a_known_label_changes_no_score() -> None:
    logits, target, prior = case(items=60)
    empty = np.full_like(target, -1)
    whole = evaluate_multilabel(np.concatenate([logits, logits]), np.concatenate([target, empty]), prior)
    known, nothing = evaluate_multilabel(logits, target, prior), evaluate_multilabel(logits, empty, prior)
    for both in (whole, nothing + known):  # the mean over items sums 60 terms in another order
        assert both.scores() == pytest.approx(known.scores(), rel=60 * 2**-53, nan_ok=True)
    assert set(map(math.isnan, nothing.scores().values())) == {True}
    assert set(nothing.intervals().values()) == {None}
    assert (nothing + known).num_items == 120
    assert "map                   –\n" in str(nothing)


def test_adding_a_batch_does_not_copy_all_that_came_before() -> None:
    logits, target, prior = case(items=256)
    parts = [evaluate_multilabel(logits[i : i + 1], target[i : i + 1], prior) for i in range(256)]
    sums = list(itertools.accumulate(parts))
    kept = [part for one in sums for part in one.scores_.parts]  # type: ignore[union-attr]
    copied = sum(len(scores) for scores, _ in {id(part): part for part in kept}.values())
    assert copied <= 256 * (1 + math.log2(256))  # all of them every time would be 256 · 257 / 2
    scores, labels = sums[-1].scores_.joined()  # type: ignore[union-attr]
    assert (scores == logits).all()
    assert (labels == target).all()


@settings(max_examples=30, deadline=None)
@given(cut=st.lists(st.integers(0, 60), max_size=3), seed=st.integers(0, 100))
def test_parts_add_up_to_the_whole(cut: list[int], seed: int) -> None:
    logits, target, prior = case(seed, items=60, classes=4, ties=True)
    edges = [0, *sorted(cut), 60]
    parts = [evaluate_multilabel(logits[a:b], target[a:b], prior) for a, b in itertools.pairwise(edges)]
    whole = evaluate_multilabel(logits, target, prior)
    assert sum(parts[1:], parts[0]).scores() == pytest.approx(whole.scores(), rel=1e-12, nan_ok=True)


def binned(
    logits: Any, target: Any, prior: Prior, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> MultilabelEvaluation:
    monkeypatch.setattr(multilabel, "EXACT_PAIRS", 100)
    return evaluate_multilabel(logits, target, prior, **options)


def test_a_histogram_says_how_far_it_can_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target, prior = case(items=3000)
    exact = evaluate_multilabel(logits, target, prior).scores()
    rough = binned(logits, target, prior, monkeypatch)
    scores = rough.scores()
    assert rough.binned
    assert 0 < abs(scores["map"] - exact["map"]) <= scores["map_error"] < 0.01
    assert abs(scores["micro_ap"] - exact["micro_ap"]) <= scores["micro_ap_error"] < 0.01
    assert {name: scores[name] for name in ("f1_macro", "lrap", "ece")} == {
        name: exact[name] for name in ("f1_macro", "lrap", "ece")
    }
    assert set(rough.intervals().values()) == {None}
    assert "no intervals: with more than" in str(rough)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_error_of_a_histogram_holds_for_any_order_within_its_bins(seed: int) -> None:
    random = np.random.default_rng(seed)
    bins, positive = random.integers(0, 5, 40), random.random(40) < 0.4
    positive[0] = True
    counts = [np.bincount(bins[positive == kind], minlength=5) for kind in (True, False)]
    value, error = binned_average_precision(*counts)
    scores = bins + 0.9 * random.integers(0, 4, 40) / 4  # any order within a bin, also ties
    assert abs(reference.average_precision_score(positive, scores) - value) <= error + 1e-12


def test_kept_and_binned_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target, prior = case(items=300)
    first = evaluate_multilabel(logits[:10], target[:10], prior)
    second = binned(logits[10:], target[10:], prior, monkeypatch)
    whole = binned(logits, target, prior, monkeypatch)
    assert (first + second).scores() == pytest.approx(whole.scores(), rel=1e-12)


def test_a_constant_per_class_changes_micro_ap_and_f1_but_not_map() -> None:
    logits, target, prior = case()
    moved = logits + np.linspace(-2, 2, 9)
    before, after = (evaluate_multilabel(z, target, prior).scores() for z in (logits, moved))
    assert before["map"] == pytest.approx(after["map"], rel=1e-12)
    assert abs(before["micro_ap"] - after["micro_ap"]) > 0.01
    assert abs(before["f1_micro"] - after["f1_micro"]) > 0.01


def test_probabilities_are_judged_as_their_logits() -> None:
    logits, target, prior = case()
    chance = 1 / (1 + np.exp(-logits))
    by_logit = evaluate_multilabel(logits, target, prior, threshold=0.3).scores()
    by_chance = evaluate_multilabel(chance, target, prior, probabilities=True, threshold=0.3).scores()
    assert by_chance == pytest.approx(by_logit, rel=1e-9)


def test_thresholds_may_differ_by_class() -> None:
    logits, target, prior = case(classes=2)
    found = evaluate_multilabel(logits, target, prior, threshold=[0.2, 0.9]).per_class
    chosen = (1 / (1 + np.exp(-logits)) >= [0.2, 0.9]).astype(int)
    assert [row.recall for row in found] == reference.recall_score(target, chosen, average=None).tolist()


def test_intervals_are_seeded_hold_the_value_and_narrow_with_more_items() -> None:
    logits, target, prior = case(items=200)
    result = evaluate_multilabel(logits, target, prior)
    ends, scores = result.intervals(), result.scores()
    assert ends == result.intervals()
    for name, interval in ends.items():
        if interval is not None:
            assert interval[0] <= scores[name] <= interval[1]
    more = evaluate_multilabel(*case(items=3200)).intervals()
    assert ends["map"] is not None
    assert more["map"] is not None
    assert more["map"][1] - more["map"][0] < 0.5 * (ends["map"][1] - ends["map"][0])


def test_tensors_of_any_precision_are_taken() -> None:
    logits, target, prior = case()
    half = torch.from_numpy(logits).to(torch.bfloat16)
    found = evaluate_multilabel(half, torch.from_numpy(target).bool(), prior).scores()
    expected = reference.average_precision_score(target, half.float().numpy(), average="macro")
    assert found["map"] == pytest.approx(expected, rel=1e-12)


def test_calibration_is_the_gap_between_stated_and_observed() -> None:
    target = np.array([[1], [1], [0], [0]])
    found = evaluate_multilabel([[0.8]] * 4, target, Prior.from_counts([2], total=4), probabilities=True)
    assert found.scores()["ece"] == pytest.approx(0.3)


def test_a_class_without_positives_has_no_score_and_is_left_out_of_the_means() -> None:
    logits, target, _ = case(classes=3)
    target[:, 2] = 0
    result = evaluate_multilabel(logits, target, Prior.from_counts([200, 200, 1], total=500))
    assert result.per_class[2].average_precision is None
    assert result.per_class[2].f1 is None
    assert result.scores()["map"] == pytest.approx(
        reference.average_precision_score(target[:, :2], logits[:, :2], average="macro"), rel=1e-12
    )
    assert "–" in str(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": [[0, 2]]}, r"target\[0, 1\] is 2: expected 0 or 1"),
        ({"target": [[0.5, 0]]}, r"target\[0, 0\] is 0\.5: expected 0 or 1"),
        ({"target": [[0, 1, 0]]}, r"target has shape \(1, 3\), logits \(1, 2\)"),
        ({"logits": [[0.0, 1.0, 2.0]], "target": [[0, 1, 0]]}, r"logits have shape \(1, 3\), prior 2 classes"),
        ({"logits": [[math.nan, 0.0]]}, "row 0, column 0 of the predictions is nan"),
        ({"logits": [[2.0, 0.0]], "probabilities": True}, "expected a probability from 0 to 1; are these logits"),
        ({"threshold": 1.0}, "threshold is 1.0: expected a probability between 0 and 1"),
        ({"threshold": [0.5]}, "or one per class"),
        ({"threshold": "half"}, "threshold is 'half': expected a probability"),
    ],
)
def test_what_cannot_be_judged_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"logits": [[1.0, -1.0]], "target": [[1, 0]], "prior": Prior.from_counts([3, 1], total=4)}
    with pytest.raises(ValueError, match=message):
        evaluate_multilabel(**given | change)


def test_evaluations_that_do_not_belong_together_do_not_add() -> None:
    logits, target, prior = case()
    one = evaluate_multilabel(logits, target, prior)
    with pytest.raises(ValueError, match="different thresholds"):
        one + evaluate_multilabel(logits, target, prior, threshold=0.4)
    with pytest.raises(ValueError, match="different priors"):
        one + evaluate_multilabel(logits, target, Prior.uniform(9))


@pytest.mark.parametrize("ties", [False, True])
def test_scores_are_those_of_torchmetrics(ties: bool) -> None:
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    logits, target, prior = case(ties=ties)
    scores, truth = torch.from_numpy(logits).double(), torch.from_numpy(target)
    options = {"num_labels": 9, "validate_args": True}
    expected = {
        "map": torchmetrics.multilabel_average_precision(scores, truth, average="macro", **options),
        "micro_ap": torchmetrics.multilabel_average_precision(scores, truth, average="micro", **options),
        "f1_macro": torchmetrics.multilabel_f1_score(scores, truth, average="macro", **options),
        "f1_micro": torchmetrics.multilabel_f1_score(scores, truth, average="micro", **options),
        "precision_micro": torchmetrics.multilabel_precision(scores, truth, average="micro", **options),
        "recall_micro": torchmetrics.multilabel_recall(scores, truth, average="micro", **options),
    }
    found = evaluate_multilabel(logits, target, prior, threshold=0.5 + 1e-12).scores()  # torchmetrics: p > 0.5
    # torchmetrics sums 400 terms per class, and 3,600 of all, in single precision
    assert {name: found[name] for name in expected} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=3600 * 2**-24
    )
    per_class = torchmetrics.multilabel_average_precision(scores, truth, average=None, **options)
    rows = evaluate_multilabel(logits, target, prior).per_class
    assert [row.average_precision for row in rows] == pytest.approx(per_class.tolist(), rel=400 * 2**-24)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_of_rows_give_the_sums_of_all(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target, prior = case(items=50)
    whole = evaluate_multilabel(logits, target, prior).scores()
    monkeypatch.setattr(multilabel, "BLOCK", block)
    assert evaluate_multilabel(logits, target, prior).scores() == pytest.approx(whole, rel=1e-12, nan_ok=True)
    assert evaluate_multilabel(logits[:0], target[:0], prior).num_items == 0


def test_a_long_class_name_is_cut_visibly_in_both_printed_tables() -> None:
    prior = Prior.from_counts({"cardiomegaly": 3, "pneumonia": 1}, total=4)
    several = evaluate_multilabel([[1.0, -1.0]], [[1, 0]], prior)
    one = evaluate([[1.0, -1.0]], [0], Prior.from_counts({"cardiomegaly": 3, "pneumonia": 1}))
    for result in (several, one):
        assert "\ncardiomega… " in str(result)
        assert "\npneumonia " in str(result)
