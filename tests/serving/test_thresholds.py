"""Thresholds per class: the best by brute force, for the rates of use, and the same wherever the model is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from torch import nn

import equipoise as eq

Arrays = tuple[Any, Any]
CHOOSERS: list[Any] = [
    eq.f1_thresholds,
    lambda *args, **options: eq.precision_thresholds(*args, 0.3, **options),
    lambda *args, **options: eq.cost_thresholds(*args, false_negative=3, **options),
]


def case(seed: int = 0, items: int = 150, classes: int = 4) -> Arrays:
    random = np.random.default_rng(seed)
    target = (random.random((items, classes)) < np.linspace(0.5, 0.06, classes)).astype(np.int64)
    target[:classes] |= np.eye(classes, dtype=np.int64)
    logits = random.normal(size=(items, classes)) + 2 * target - 1
    return np.round(logits, 1), target  # with ties


def every_decision(logits: Any) -> list[Any]:
    """What each threshold that makes a difference would predict of a class: nothing, ..., everything."""
    return [logits > logits.max(), *(logits >= value for value in np.unique(logits)[::-1])]


def weights(target: Any, rate: float | None) -> Any:
    """Weights of a class's items that give it the rate."""
    share = target.mean()
    return np.ones(len(target)) if rate is None else np.where(target == 1, rate / share, (1 - rate) / (1 - share))


@pytest.mark.parametrize("choose", CHOOSERS)
def test_probabilities_that_are_passed_as_logits_are_warned_of(choose: Any) -> None:
    logits, target = case()
    chances = 1 / (1 + np.exp(-logits))
    with pytest.warns(
        UserWarning, match=r"look like probabilities .* makes .*thresholds.* wrong: pass probabilities=T"
    ):
        choose(chances, target)
    choose(chances, target, probabilities=True)


@pytest.mark.parametrize("rate", [None, 0.02, [0.5, 0.1, 0.3, 0.01]])
@pytest.mark.parametrize("seed", range(3))
def test_f1_is_the_best_of_all_thresholds(seed: int, rate: Any) -> None:
    logits, target = case(seed)
    chosen = logits >= torch.logit(eq.f1_thresholds(logits, target, target_rate=rate)).numpy()
    for column, own in enumerate(np.broadcast_to(np.asarray(rate, dtype=object), 4)):
        weight = weights(target[:, column], own)

        def score(decided: Any, column: int = column, weight: Any = weight) -> float:
            return float(reference.f1_score(target[:, column], decided, sample_weight=weight, zero_division=0))

        best = max(map(score, every_decision(logits[:, column])))
        assert best < 1
        assert score(chosen[:, column]) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("rate", [None, 0.3])
def test_cost_is_the_least_of_all_thresholds(rate: float | None) -> None:
    logits, target = case()
    wrong, missed = 2.0, [1.0, 5.0, 0.5, 20.0]
    found = eq.cost_thresholds(logits, target, false_positive=wrong, false_negative=missed, target_rate=rate)
    chosen = logits >= torch.logit(found).numpy()
    for column in range(4):
        truth, weight = target[:, column], weights(target[:, column], rate)

        def cost(decided: Any, column: int = column, truth: Any = truth, weight: Any = weight) -> float:
            each = np.where(truth == 1, missed[column] * ~decided, wrong * decided)
            return float((weight * each).sum())

        assert cost(chosen[:, column]) == pytest.approx(min(map(cost, every_decision(logits[:, column]))), rel=1e-12)
    assert len(set(chosen.mean(0))) == 4


@pytest.mark.parametrize("rate", [None, 0.3])
def test_precision_is_reached_with_the_most_positives_found(rate: float | None) -> None:
    logits, target = case()
    wanted = [0.9, 0.75, 0.5, 0.2]
    chosen = logits >= torch.logit(eq.precision_thresholds(logits, target, wanted, target_rate=rate)).numpy()
    for column in range(4):
        truth, weight = target[:, column], weights(target[:, column], rate)

        def scores(decided: Any, truth: Any = truth, weight: Any = weight) -> tuple[float, float]:
            options = {"sample_weight": weight, "zero_division": 0}
            return reference.precision_score(truth, decided, **options), reference.recall_score(truth, decided)

        reached = [scores(one)[1] for one in every_decision(logits[:, column]) if scores(one)[0] >= wanted[column]]
        assert scores(chosen[:, column])[0] >= wanted[column]
        assert scores(chosen[:, column])[1] == max(reached) > 0


def test_a_precision_of_three_in_four_is_three_in_four() -> None:
    logits = [[4.0], [3.0], [2.0], [1.0], [0.0]]
    found = eq.precision_thresholds(logits, [[1], [1], [0], [1], [0]], 0.75)
    assert float(found.logit()) == pytest.approx(0.5)


def test_a_precision_out_of_reach_predicts_nothing_and_names_the_class() -> None:
    logits, target = [[1.0, 1.0], [0.0, 2.0], [-1.0, 0.0]], [[1, 1], [0, 0], [0, 0]]
    with pytest.warns(UserWarning, match=r"no threshold reaches the precision for 1 classes \(1\)"):
        found = eq.precision_thresholds(logits, target, 0.9)
    assert (np.array(logits) >= found.logit().numpy()).tolist() == [[True, False], [False, False], [False, False]]


def test_a_precision_out_of_reach_beside_a_probability_of_1_does_not_claim_to_predict_nothing() -> None:
    chances, target = [[1.0], [0.9], [0.5], [0.1]], [[0], [1], [0], [0]]
    with pytest.warns(UserWarning, match=r"are not predicted, except that items of probability 1 still are \(0\)"):
        found = eq.precision_thresholds(chances, target, 0.9, probabilities=True)
    assert (np.array(chances) >= found.numpy()).ravel().tolist() == [True, False, False, False]


@pytest.mark.parametrize("choose", CHOOSERS)
@pytest.mark.parametrize("logits", [[-40.0, -41.0, -45.0], [35.0, 34.0, 30.0], [50.0, -50.0, -60.0], [1e3, -1e3, -1e4]])
def test_extreme_logits_are_parted_where_a_threshold_can(choose: Any, logits: list[float]) -> None:
    scores, target = np.array(logits)[:, None], [[1], [0], [0]]
    threshold = choose(scores, target)
    found = eq.evaluate_multilabel(scores, target, eq.Prior.from_counts([1], total=3), threshold=threshold)
    assert (found.hits.tolist(), found.predicted.tolist()) == ([1], [1])


def test_evaluate_multilabel_takes_them_and_f1_is_no_worse() -> None:
    logits, target = case()
    prior = eq.Prior.from_multilabel(target)
    chosen = eq.evaluate_multilabel(logits, target, prior, threshold=eq.f1_thresholds(logits, target))
    plain = eq.evaluate_multilabel(logits, target, prior)
    assert chosen.scores()["f1_macro"] > plain.scores()["f1_macro"]
    for one, other in zip(chosen.per_class, plain.per_class, strict=True):
        assert one.f1 is not None
        assert one.f1 >= (other.f1 or 0)


@pytest.mark.parametrize("choose", CHOOSERS)
def test_probabilities_give_the_thresholds_of_their_logits(choose: Any) -> None:
    logits, target = case()
    by_chance = choose(1 / (1 + np.exp(-logits)), target, probabilities=True)
    torch.testing.assert_close(by_chance, choose(torch.from_numpy(logits), torch.from_numpy(target)), rtol=1e-9, atol=0)


@pytest.mark.parametrize("missing", [-1, np.nan])
@pytest.mark.parametrize("choose", CHOOSERS)
def test_missing_labels_are_left_out(choose: Any, missing: float) -> None:
    logits, target = case()
    hidden = np.random.default_rng(1).random(len(target)) < 0.3
    masked = target.astype(float)
    masked[hidden] = missing
    assert torch.equal(choose(logits, masked), choose(logits[~hidden], target[~hidden]))


@pytest.mark.parametrize(("choose", "expected"), list(zip(CHOOSERS, (0.5, 0.3, 0.25), strict=True)))
def test_a_class_of_one_kind_gets_the_threshold_of_calibrated_probabilities(choose: Any, expected: float) -> None:
    logits, target = case()
    target[:, 1], target[:, 2] = 0, 1
    with pytest.warns(UserWarning, match=r"2 of 4 classes have no positive or no negative item \(1, 2\)"):
        found = choose(logits, target)
    assert found[1:3].tolist() == [expected] * 2
    assert expected not in (found[0], found[3])


def test_infinite_logits_have_finite_thresholds() -> None:
    found = eq.f1_thresholds([[np.inf], [np.inf], [-np.inf]], [[1], [1], [0]])
    assert 0 < float(found) < 1
    with np.errstate(all="raise"):
        assert 0 < float(eq.cost_thresholds([[np.inf], [-np.inf]], [[0], [1]])) < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, y: eq.f1_thresholds(z[:, 0], y[:, 0]), r"logits have shape \(150,\): expected \[N, K\]"),
        (lambda z, y: eq.f1_thresholds(z, y[:, :3]), r"target has shape \(150, 3\)"),
        (lambda z, y: eq.f1_thresholds(z, y + 1), r"target\[\d+, \d+\] is 2: expected 0 or 1"),
        (lambda z, y: eq.f1_thresholds(z, -np.ones_like(y)), "every label is missing"),
        (lambda z, y: eq.f1_thresholds(z, y, probabilities=True), "are these logits"),
        (lambda z, y: eq.f1_thresholds(z, y, target_rate=[0.1, 0.2]), r"target_rate has shape \(2,\), logits have 4"),
        (lambda z, y: eq.f1_thresholds(z, y, target_rate=2), "target_rate is 2.0"),
        (lambda z, y: eq.precision_thresholds(z, y, 1.5), "precision is 1.5: expected a share"),
        (lambda z, y: eq.precision_thresholds(z, y, [0.5] * 3), r"precision has shape \(3,\), logits have 4 classes"),
        (lambda z, y: eq.cost_thresholds(z, y, false_negative=0), "cost 1.0 and 0: expected finite numbers above 0"),
    ],
)
def test_bad_input_is_one_message(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*case())


# -------------------------------------------------------------------- served


def served(**options: Any) -> eq.RebalancedSigmoid:
    torch.manual_seed(0)
    return eq.RebalancedSigmoid(nn.Linear(5, 3), source=[0.5, 0.1, 0.02], target_rate=0.1, **options)


X = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
THRESHOLDS = [0.2, 0.05, 0.4]


def test_decisions_are_what_reaches_the_threshold() -> None:
    model = served(threshold=torch.tensor(THRESHOLDS, dtype=torch.float64))
    assert torch.equal(model.decide(X), model(X).sigmoid() >= torch.tensor(THRESHOLDS))
    assert 0 < model.decide(X).float().mean() < 1
    assert torch.equal(served().decide(X), served()(X) >= 0)
    maps = eq.RebalancedSigmoid(nn.Conv2d(5, 3, 1), source=0.2, target_rate=0.1, dim=1, threshold=THRESHOLDS)
    images = torch.randn(2, 5, 4, 4)
    assert torch.equal(maps.decide(images), maps(images).sigmoid() >= torch.tensor(THRESHOLDS)[:, None, None])


def test_thresholds_are_saved_in_every_way(tmp_path: Path) -> None:
    model = served(threshold=THRESHOLDS)
    model.save(tmp_path / "model.safetensors")
    again = eq.RebalancedSigmoid.load(tmp_path / "model.safetensors", nn.Linear(5, 3))
    other = served()
    other.load_state_dict(model.state_dict())
    for found in (again, other):
        assert found.threshold == tuple(THRESHOLDS)
        assert torch.equal(found.decide(X), model.decide(X))


def test_a_file_from_before_there_were_thresholds_has_one_half() -> None:
    state = served(threshold=0.3).state_dict()
    content = json.loads(bytes(state["_extra_state"].tolist()))
    del content["threshold"]
    state["_extra_state"] = torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)
    model = served(threshold=0.2)
    model.load_state_dict(state)
    assert model.threshold == 0.5
    assert torch.equal(model.decide(X), model(X) >= 0)


def test_another_rate_asks_for_other_thresholds_and_another_threshold_keeps_the_rate() -> None:
    model = served(threshold=THRESHOLDS)
    with pytest.warns(UserWarning, match="choose them again"):
        model.target_rate = 0.3
    before = model(X)
    model.threshold = 0.7
    assert torch.equal(model(X), before)
    assert torch.equal(model.decide(X), before.sigmoid() >= 0.7)
    model.target_rate = 0.2  # one threshold for all was chosen for nothing


def test_thresholds_move_with_the_model_and_stay_exact_in_half_precision() -> None:
    model = served(threshold=[0.1000001, 0.5, 0.9])
    limit = model.limit.clone()
    model.half()
    assert model.limit.dtype == torch.float32
    assert torch.equal(model.limit, limit)
    assert model.to("meta").limit.is_meta


@pytest.mark.parametrize("threshold", [0.0, 1.0, [0.5, 2.0, 0.5], "high", [0.5, 0.5]])
def test_what_is_no_threshold_is_refused(threshold: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="threshold"):
        served(threshold=threshold)


# -------------------------------------------------------------------- exported


@pytest.mark.parametrize(("probabilities", "folds"), [(False, True), (True, False)])
def test_exported_decisions_are_those_of_the_module(tmp_path: Path, probabilities: bool, folds: bool) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = served(threshold=THRESHOLDS, scale=None if folds else 2.0)
    expected = model(X).sigmoid() if probabilities else model(X)
    options: Any = {"probabilities": probabilities, "decisions": True}
    program = eq.export_program(model, X[:2], **options)
    eq.export_onnx(model, X[:2], tmp_path / "model.onnx", **options)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    names = ["probabilities" if probabilities else "logits", "decisions"]
    from_onnx = session.run(names, {session.get_inputs()[0].name: X.numpy()})
    for scores, decided in (program.module()(X), map(torch.from_numpy, from_onnx)):
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
        assert decided.dtype == torch.bool
        assert torch.equal(decided, model.decide(X))
    kept = session.get_modelmeta().custom_metadata_map
    assert json.loads(kept["threshold"]) == THRESHOLDS


def test_a_softmax_has_no_decisions_to_export() -> None:
    with pytest.raises(TypeError, match="take the argmax"):
        eq.export_program(eq.Rebalanced(nn.Linear(5, 2), source=[0.9, 0.1]), X, decisions=True)
