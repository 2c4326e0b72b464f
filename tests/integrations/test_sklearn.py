"""The scikit-learn estimators: right under their target prior, and good citizens of scikit-learn."""

from __future__ import annotations

import json
import pickle
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer, log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import equipoise as eq
from equipoise.integrations.sklearn import BalancedLogisticRegression, PriorShiftClassifier

Array = NDArray[Any]


def gaussians(counts: list[int], *, seed: int = 0) -> tuple[Array, Array]:
    """Three features, `counts[c]` points around the c-th of a few overlapping centres."""
    random = np.random.RandomState(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    centres = np.array([[0.0, 0, 0], [1.5, 0, 0.5], [0, 1.5, -0.5], [1, 1, 1]])
    return random.normal(size=(len(y), 3)) + centres[y], y


@pytest.mark.filterwarnings("ignore:.* classes have no item")  # one check gives a class no weight at all
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([BalancedLogisticRegression(), PriorShiftClassifier(LogisticRegression())])
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore:.* classes have no item", "ignore:the estimated prior cannot be trusted")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [PriorShiftClassifier(LogisticRegression(), target="estimate")],
    expected_failed_checks=lambda _: {"check_methods_subset_invariance": "the prior is estimated from all of X"},
)
def test_with_an_estimated_prior_all_checks_pass_but_the_one_that_forbids_it(estimator: Any, check: Any) -> None:
    check(estimator)


# -------------------------------------------------------------------- BalancedLogisticRegression


def direct_minimum(X: Array, y: Array, weights: Array, log_prior: Array, C: float) -> tuple[Array, Array]:
    """W [K, features] and b [K] that minimise C · Σ w · balanced softmax loss + |W|² / 2, by L-BFGS in float64.

    With two classes W and b are those of the second, and the logit of the first is 0: scikit-learn's one row.
    """
    rows = 1 if len(log_prior) == 2 else len(log_prior)
    inputs, target, weight = torch.from_numpy(X), torch.from_numpy(y), torch.from_numpy(weights)
    shift = torch.from_numpy(log_prior)

    def loss(flat: Array) -> tuple[float, Array]:
        parameters = torch.from_numpy(flat).view(rows, X.shape[1] + 1).requires_grad_()
        logits = inputs @ parameters[:, :-1].T + parameters[:, -1]
        if rows == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        losses = eq.balanced_softmax_loss(logits, target, shift, reduction="none")
        total = C * (weight * losses).sum() + parameters[:, :-1].square().sum() / 2
        total.backward()
        assert parameters.grad is not None
        return total.item(), parameters.grad.numpy().ravel()

    found = minimize(loss, np.zeros(rows * (X.shape[1] + 1)), jac=True, method="L-BFGS-B", tol=1e-14)
    parameters = found.x.reshape(rows, -1)
    return parameters[:, :-1], parameters[:, -1]


@pytest.mark.parametrize("counts", [[200, 20], [200, 40, 10, 5]], ids=["two classes", "four classes"])
@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_minimum_of_the_balanced_softmax_loss(counts: list[int], tau: float, weighted: bool) -> None:
    X, y = gaussians(counts)
    weights = np.random.RandomState(1).uniform(0.5, 2, len(y)) if weighted else np.ones(len(y))
    sums = np.bincount(y, weights)
    W, b = direct_minimum(X, y, weights, tau * np.log(sums / sums.sum()), C=0.3)
    model = BalancedLogisticRegression(tau=tau, C=0.3, tol=1e-10, max_iter=10_000)
    model.fit(X, y, sample_weight=weights if weighted else None)
    np.testing.assert_allclose(model.coef_, W, atol=2e-5)
    # A softmax does not see a constant in b: compare what it sees.
    same = (lambda v: v - v.mean()) if len(counts) > 2 else (lambda v: v)
    np.testing.assert_allclose(same(model.intercept_), same(b), atol=2e-5)
    logits = X @ W.T + b
    expected = logits.argmax(1) if len(counts) > 2 else (logits[:, 0] > 0).astype(int)
    assert np.array_equal(model.predict(X), expected)


@pytest.mark.parametrize("target", ["uniform", [0.2, 0.3, 0.5]])
@pytest.mark.parametrize("tau", [1.0, 0.0, 1.5])
def test_the_intercept_moves_by_log_target_minus_tau_log_source(target: Any, tau: float) -> None:
    X, y = gaussians([90, 20, 10])
    plain, moved = LogisticRegression().fit(X, y), BalancedLogisticRegression(target, tau=tau).fit(X, y)
    wanted = np.full(3, 1 / 3) if target == "uniform" else np.array(target)
    move = np.log(wanted) - tau * np.log(np.array([90, 20, 10]) / 120)
    np.testing.assert_allclose(moved.intercept_, plain.intercept_ + move, rtol=1e-12)
    np.testing.assert_array_equal(moved.coef_, plain.coef_)


def test_two_classes_have_one_row_which_moves_by_the_difference() -> None:
    X, y = gaussians([90, 10])
    plain, moved = LogisticRegression().fit(X, y), BalancedLogisticRegression([0.3, 0.7]).fit(X, y)
    assert moved.intercept_.shape == (1,)
    expected = plain.intercept_ + np.log(0.7 / 0.3) - np.log(0.1 / 0.9)
    np.testing.assert_allclose(moved.intercept_, expected, rtol=1e-12)
    shifted = plain.predict_proba(X) * [0.3 / 0.9, 0.7 / 0.1]
    np.testing.assert_allclose(moved.predict_proba(X), shifted / shifted.sum(1, keepdims=True), rtol=1e-10)


@pytest.mark.parametrize("counts", [[30, 30], [30, 30, 30]])
def test_balanced_data_and_a_uniform_target_give_plain_logistic_regression_to_the_bit(counts: list[int]) -> None:
    X, y = gaussians(counts)
    plain, balanced = LogisticRegression().fit(X, y), BalancedLogisticRegression().fit(X, y)
    np.testing.assert_array_equal(balanced.intercept_, plain.intercept_)


def test_the_training_prior_as_target_gives_plain_logistic_regression() -> None:
    X, y = gaussians([90, 20, 10])
    model = BalancedLogisticRegression(eq.Prior.from_labels(y)).fit(X, y)
    np.testing.assert_allclose(model.intercept_, LogisticRegression().fit(X, y).intercept_, atol=1e-14)


def test_weights_count_as_repeated_rows_do() -> None:
    X, y = gaussians([60, 20, 10])
    times = np.random.RandomState(0).randint(0, 4, len(y))
    options: dict[str, Any] = {"tol": 1e-10, "max_iter": 10_000}
    weighted = BalancedLogisticRegression(**options).fit(X, y, sample_weight=times)
    repeated = BalancedLogisticRegression(**options).fit(X.repeat(times, 0), y.repeat(times))
    np.testing.assert_allclose(weighted.source_.probabilities, repeated.source_.probabilities, rtol=1e-12)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("counts", [[90, 10], [90, 20, 10]])
def test_a_class_of_target_probability_zero_gets_probability_zero(counts: list[int]) -> None:
    X, y = gaussians(counts)
    target = [0.0, *[1 / (len(counts) - 1)] * (len(counts) - 1)]
    model = BalancedLogisticRegression(target).fit(X, y)
    assert (model.predict_proba(X)[:, 0] == 0).all()
    assert (model.predict_log_proba(X)[:, 0] == -np.inf).all()
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert 0 not in model.predict(X)


def test_precision_is_that_of_logistic_regression() -> None:
    X, y = gaussians([90, 20, 10])
    for dtype in (np.float32, np.float64):
        plain, balanced = LogisticRegression(), BalancedLogisticRegression()
        assert balanced.fit(X.astype(dtype), y).intercept_.dtype == plain.fit(X.astype(dtype), y).intercept_.dtype


def test_it_does_not_promise_arrays_of_other_libraries() -> None:
    """LogisticRegression does, but the prior is counted in NumPy; with the promise more of the checks would run."""
    assert not get_tags(BalancedLogisticRegression()).array_api_support


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky", "sag", "saga"])
def test_every_solver_that_leaves_the_intercept_alone_finds_the_same(solver: str) -> None:
    X, y = gaussians([90, 20, 10])
    options: dict[str, Any] = {"tol": 1e-8, "max_iter": 5000, "random_state": 0}
    expected = BalancedLogisticRegression(**options).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(
        BalancedLogisticRegression(solver=solver, **options).fit(X, y).predict_proba(X), expected, atol=1e-4
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fit_intercept": False}, "a model without one cannot hold it"),
        ({"solver": "liblinear"}, "penalises the intercept"),
        ({"tau": np.nan}, "tau is nan"),
        ({"target": "train"}, "target is 'train': expected 'uniform'"),
        ({"target": "estimate"}, "PriorShiftClassifier"),
        ({"target": [0.5, 0.5]}, r"target has 2 classes, the data has 3 \(0, 1, 2\)"),
        ({"target": [3, 2, 1]}, "sum to 6, not 1"),
        ({"target": {0: 0.5, 1: 0.5}}, "target names the classes 0, 1, the data has 0, 1, 2"),
        ({"C": -1}, "C"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options: dict[str, Any], message: str) -> None:
    X, y = gaussians([9, 8, 7])
    with pytest.raises(ValueError, match=message):
        BalancedLogisticRegression(**options).fit(X, y)


# -------------------------------------------------------------------- PriorShiftClassifier


def shifted(p: Array, source: Any, target: Any) -> Array:
    """Bayes' rule, slowly."""
    moved = np.array([[row[j] * target[j] / source[j] for j in range(len(row))] for row in p])
    return moved / moved.sum(1, keepdims=True)


CLASSIFIERS = [
    GaussianNB(),
    LogisticRegression(),
    RandomForestClassifier(20, random_state=0, min_samples_leaf=3),
    KNeighborsClassifier(15),
    make_pipeline(StandardScaler(), LogisticRegression()),
]


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("target", ["uniform", [0.1, 0.2, 0.7], eq.Prior.from_counts([1, 1, 2])], ids=str)
def test_probabilities_are_those_of_bayes_rule_around_any_classifier(classifier: Any, target: Any) -> None:
    X, y = gaussians([90, 20, 10])
    wanted = [1 / 3] * 3 if isinstance(target, str) else getattr(target, "probabilities", target)
    model = PriorShiftClassifier(classifier, target).fit(X, y)
    expected = shifted(clone(classifier).fit(X, y).predict_proba(X), np.array([90, 20, 10]) / 120, wanted)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-12)
    assert not hasattr(classifier, "classes_")  # a clone was fitted
    assert model.n_features_in_ == 3


def test_around_logistic_regression_it_is_balanced_logistic_regression() -> None:
    X, y = gaussians([90, 20, 10])
    for target in ("uniform", [0.1, 0.2, 0.7]):
        np.testing.assert_allclose(
            PriorShiftClassifier(LogisticRegression(), target).fit(X, y).predict_proba(X),
            BalancedLogisticRegression(target).fit(X, y).predict_proba(X),
            rtol=1e-9,
        )


def test_a_fitted_classifier_is_used_as_it_is_once_its_prior_is_said() -> None:
    X, y = gaussians([90, 20, 10])
    fitted = GaussianNB().fit(X, y)
    expected = PriorShiftClassifier(GaussianNB()).fit(X, y).predict_proba(X)
    for source in ([0.75, 1 / 6, 1 / 12], eq.Prior.from_labels(y), {0: 0.75, 1: 1 / 6, 2: 1 / 12}):
        model = PriorShiftClassifier(fitted, source=source)
        np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-12)
        assert model.classes_.tolist() == [0, 1, 2]
    with pytest.raises(NotFittedError, match="GaussianNB is fitted, but its prior is unknown: pass source="):
        PriorShiftClassifier(fitted).predict(X)
    with pytest.raises(NotFittedError, match="call fit first"):
        PriorShiftClassifier(GaussianNB(), source=[0.75, 1 / 6, 1 / 12]).predict(X)


def test_a_frozen_classifier_is_not_fitted_again_and_the_prior_is_that_of_the_labels() -> None:
    X, y = gaussians([90, 20, 10])
    frozen = FrozenEstimator(GaussianNB().fit(X, y))
    few = np.r_[:10, 90:100, 110:114]  # other rows, other frequencies
    model = PriorShiftClassifier(frozen).fit(X[few], y[few])
    assert model.source_.counts.tolist() == [10, 10, 4]
    np.testing.assert_allclose(
        model.predict_proba(X), shifted(frozen.predict_proba(X), [10 / 24, 10 / 24, 4 / 24], [1 / 3] * 3), atol=1e-12
    )


def test_the_target_may_change_after_fit() -> None:
    X, y = gaussians([90, 20, 10])
    model = PriorShiftClassifier(GaussianNB()).fit(X, y)
    plain = model.estimator_.predict_proba(X)
    model = pickle.loads(pickle.dumps(model)).set_params(target=[0.75, 1 / 6, 1 / 12])
    np.testing.assert_allclose(model.predict_proba(X), plain, atol=1e-12)
    with pytest.raises(ValueError, match="target has 2 classes"):
        model.set_params(target=[0.5, 0.5]).predict(X)


def test_weights_go_to_the_classifier_and_into_the_prior() -> None:
    X, y = gaussians([60, 20, 10])
    times = np.random.RandomState(0).randint(1, 4, len(y))
    weighted = PriorShiftClassifier(GaussianNB()).fit(X, y, sample_weight=times)
    repeated = PriorShiftClassifier(GaussianNB()).fit(X.repeat(times, 0), y.repeat(times))
    np.testing.assert_allclose(weighted.source_.probabilities, repeated.source_.probabilities, rtol=1e-12)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-9)
    with pytest.raises(TypeError, match=r"KNeighborsClassifier\.fit takes no sample_weight"):
        PriorShiftClassifier(KNeighborsClassifier()).fit(X, y, sample_weight=times)
    pipeline = make_pipeline(StandardScaler(), GaussianNB())
    with pytest.raises(ValueError, match="gaussiannb__sample_weight would weight the estimator and not its prior"):
        PriorShiftClassifier(pipeline).fit(X, y, gaussiannb__sample_weight=times)
    inside = make_pipeline(StandardScaler(), PriorShiftClassifier(GaussianNB()))
    inside.fit(X, y, priorshiftclassifier__sample_weight=times)
    np.testing.assert_allclose(inside[-1].source_.probabilities, weighted.source_.probabilities)


def test_class_weights_inside_are_noticed_unless_the_source_is_said() -> None:
    X, y = gaussians([90, 20, 10])
    balanced = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))
    with pytest.warns(UserWarning, match="logisticregression__class_weight='balanced', so its probabilities do not"):
        PriorShiftClassifier(balanced).fit(X, y)
    model = PriorShiftClassifier(balanced, source="uniform").fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), balanced.fit(X, y).predict_proba(X), atol=1e-12)


class Boosted(GaussianNB):  # type: ignore[misc]
    """Takes the options by which gradient boosting libraries weigh classes."""

    def __init__(
        self, scale_pos_weight: Any = None, is_unbalance: bool = False, auto_class_weights: str | None = None
    ) -> None:
        super().__init__()
        self.scale_pos_weight, self.is_unbalance = scale_pos_weight, is_unbalance
        self.auto_class_weights = auto_class_weights


@pytest.mark.parametrize(
    "option", [{"scale_pos_weight": 9.0}, {"is_unbalance": True}, {"auto_class_weights": "Balanced"}]
)
def test_options_of_boosting_libraries_that_weigh_classes_are_noticed(option: dict[str, Any]) -> None:
    X, y = gaussians([90, 10])
    (name, value) = next(iter(option.items()))
    with pytest.warns(UserWarning, match=f"the estimator has {name}={value!r}"):
        PriorShiftClassifier(Boosted(**option)).fit(X, y)
    PriorShiftClassifier(Boosted(scale_pos_weight=1), source="uniform").fit(X, y)
    PriorShiftClassifier(Boosted(scale_pos_weight=1, auto_class_weights="None")).fit(X, y)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.5])
def test_tau_takes_out_as_much_of_the_source_as_in_the_regression(tau: float) -> None:
    X, y = gaussians([90, 20, 10])
    shifted = PriorShiftClassifier(LogisticRegression(), tau=tau).fit(X, y)
    regression = BalancedLogisticRegression(tau=tau).fit(X, y)
    np.testing.assert_allclose(shifted.predict_proba(X), regression.predict_proba(X), atol=1e-9)
    assert np.allclose(shifted.predict_proba(X), LogisticRegression().fit(X, y).predict_proba(X)) == (tau == 0)
    assert shifted.get_params()["tau"] == tau
    with pytest.raises(ValueError, match="tau is nan"):
        PriorShiftClassifier(LogisticRegression(), tau=float("nan")).fit(X, y)


@pytest.mark.parametrize("counts", [[90, 10], [90, 20, 10]])
def test_no_class_that_the_target_rules_out_is_predicted_and_scores_stay_finite(counts: list[int]) -> None:
    """Also where the classifier is certain of a class that is ruled out, as a tree is."""
    X, y = gaussians(counts)
    target = [0.0, *[1 / (len(counts) - 1)] * (len(counts) - 1)]
    model = PriorShiftClassifier(DecisionTreeClassifier(random_state=0), target).fit(X, y)
    assert (model.estimator_.predict_proba(X)[:90, 0] == 1).all()
    assert (model.predict_proba(X)[:, 0] == 0).all()
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert 0 not in model.predict(X)
    assert np.isfinite(model.decision_function(X)).all()
    if len(counts) == 3:  # nothing left but the priors: 1/2 · 120/20 against 1/2 · 120/10
        np.testing.assert_allclose(model.predict_proba(X[:1]), [[0, 1 / 3, 2 / 3]], atol=1e-12)


def test_a_certain_classifier_can_be_scored() -> None:
    X, y = gaussians([90, 10])
    model = PriorShiftClassifier(DecisionTreeClassifier(random_state=0)).fit(X, y)
    assert get_scorer("roc_auc")(model, X, y) == 1
    assert get_scorer("neg_log_loss")(model, X, y) > -1e-12


def test_an_estimated_prior_is_that_of_the_rows_and_beats_a_wrong_one() -> None:
    X, y = gaussians([900, 200, 100])
    model = PriorShiftClassifier(LogisticRegression(), target="estimate").fit(X, y)
    deployed, labels = gaussians([100, 200, 900], seed=1)
    estimate = model.estimate_prior(deployed)
    assert np.abs(estimate.probabilities - np.array([1, 2, 9]) / 12).max() < 0.05
    p = model.predict_proba(deployed)
    np.testing.assert_allclose(p, model.set_params(target=estimate.prior).predict_proba(deployed), rtol=1e-9)
    known = model.set_params(target=np.array([1, 2, 9]) / 12).predict_proba(deployed)
    assert np.abs(p - known).mean() < 0.02
    losses = [log_loss(labels, q) for q in (known, p, model.set_params(target="uniform").predict_proba(deployed))]
    assert losses[0] < losses[1] + 0.01 < losses[2]


def test_an_estimate_from_few_rows_says_so() -> None:
    X, y = gaussians([90, 20, 10])
    model = PriorShiftClassifier(LogisticRegression(), target="estimate").fit(X, y)
    with pytest.warns(UserWarning, match="2 items are few for 3 classes"):
        model.predict(X[:2])


class WithoutProbabilities(BaseEstimator):
    def fit(self, X: Any, y: Any) -> Any:
        return self


@pytest.mark.parametrize(
    ("model", "labels", "error", "message"),
    [
        (PriorShiftClassifier(WithoutProbabilities()), [0, 1], TypeError, "has no predict_proba: wrap it first"),
        (PriorShiftClassifier(GaussianNB(), "train"), [0, 1], ValueError, "target is 'train': expected 'uniform'"),
        (PriorShiftClassifier(GaussianNB(), source=[1.0]), [0, 1], ValueError, "source has 1 classes, the data has 2"),
        (
            PriorShiftClassifier(GaussianNB(), {"a": 1.0}),
            ["a", "b"],
            ValueError,
            "target names the classes a, the data",
        ),
        (PriorShiftClassifier(DecisionTreeClassifier()), [[0, 1], [1, 0]], ValueError, "should be a 1d array"),
        (PriorShiftClassifier(GaussianNB()), [0.5, 1.5], ValueError, "Unknown label type"),
    ],
)
def test_what_cannot_be_shifted_is_refused(model: Any, labels: Any, error: type[Exception], message: str) -> None:
    X = np.arange(20.0).reshape(10, 2)
    with pytest.raises(error, match=message):
        model.fit(X, np.repeat(np.array(labels), 5, axis=0))


def test_a_classifier_with_several_outputs_or_unknown_labels_is_refused() -> None:
    X, y = gaussians([9, 8])
    several = DecisionTreeClassifier().fit(X, np.stack([y, 1 - y], 1))
    several.classes_ = np.array([0, 1])
    with pytest.raises(ValueError, match="several outputs need one PriorShiftClassifier each"):
        PriorShiftClassifier(several, source=[0.5, 0.5]).predict(X)
    frozen = FrozenEstimator(GaussianNB().fit(X, y))
    with pytest.raises(ValueError, match="y holds 2, which is not one of the classes 0, 1"):
        PriorShiftClassifier(frozen).fit(X, y + 1)


def test_classes_that_a_frozen_classifier_knows_and_the_labels_lack_count_zero() -> None:
    X, y = gaussians([30, 20, 10])
    few = np.r_[:30, 50:60]
    model = PriorShiftClassifier(FrozenEstimator(GaussianNB().fit(X, y))).fit(X[few], y[few])
    assert model.source_.counts.tolist() == [30, 0, 10]
    with pytest.warns(UserWarning, match="1 of 3 classes have no item"):
        assert np.isfinite(model.predict_log_proba(X)).all()


# -------------------------------------------------------------------- labels, frames, pipelines


LABELS = {
    "strings": ["common", "middling", "rare"],
    "negative numbers": [-7, 0, 12],
    "floats": [1.0, 2.0, 3.0],
    "objects": np.array(["a", "b", "c"], dtype=object),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("kind", [BalancedLogisticRegression, partial(PriorShiftClassifier, LogisticRegression())])
def test_labels_may_be_of_any_type(labels: Any, kind: Any) -> None:
    X, y = gaussians([90, 20, 10])
    named = np.asarray(labels)[y]
    expected = kind([0.2, 0.3, 0.5]).fit(X, y)
    by_label = dict(zip(reversed(list(labels)), [0.5, 0.3, 0.2], strict=True))  # in any order
    model = kind(by_label).fit(X, named)
    assert model.classes_.tolist() == list(labels)
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    assert np.array_equal(model.predict(X), np.asarray(labels)[expected.predict(X)])
    assert model.source_.class_names == tuple(str(label) for label in labels)


def test_names_of_a_prior_must_be_those_of_the_labels() -> None:
    X, y = gaussians([9, 8])
    names = np.array(["cat", "owl"])[y]
    fine = eq.Prior.from_counts([1, 3], class_names=["cat", "owl"])
    assert BalancedLogisticRegression(fine).fit(X, names).predict(X).dtype.kind == "U"
    swapped = eq.Prior.from_counts([3, 1], class_names=["owl", "cat"])
    with pytest.raises(ValueError, match="prior of the classes owl, cat, the data has cat, owl"):
        BalancedLogisticRegression(swapped).fit(X, names)
    BalancedLogisticRegression(swapped).fit(X, y)  # numbers have no names to disagree with


def test_frames_and_series_keep_their_names() -> None:
    X, y = gaussians([90, 20, 10])
    frame, series = pd.DataFrame(X, columns=["x", "y", "z"]), pd.Series(np.array(["a", "b", "c"])[y])
    model = BalancedLogisticRegression().fit(frame, series)
    assert model.feature_names_in_.tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(model.predict_proba(frame), BalancedLogisticRegression().fit(X, y).predict_proba(X))


def test_a_series_of_shares_is_read_by_label_whatever_its_order() -> None:
    X, y = np.arange(10.0)[:, None], np.array(["a"] * 2 + ["z"] * 8)
    shares = pd.Series(y).value_counts(normalize=True)  # z comes first, a is the first class
    plain = LogisticRegression().fit(X, y)
    served = [PriorShiftClassifier(plain, source=source).predict_proba(X) for source in (shares, [0.2, 0.8])]
    np.testing.assert_array_equal(*served)
    moved = [BalancedLogisticRegression(target).fit(X, y).intercept_ for target in (shares, [0.2, 0.8])]
    np.testing.assert_array_equal(*moved)


def test_sparse_features_give_what_dense_ones_give() -> None:
    X, y = gaussians([90, 20, 10])
    dense, sparse = BalancedLogisticRegression().fit(X, y), BalancedLogisticRegression().fit(csr_array(X), y)
    np.testing.assert_allclose(sparse.predict_proba(csr_array(X)), dense.predict_proba(X), atol=1e-5)


def estimators() -> list[Any]:
    target = [0.2, 0.3, 0.5]
    return [
        BalancedLogisticRegression(target),
        PriorShiftClassifier(LogisticRegression(), target),
        PriorShiftClassifier(RandomForestClassifier(10, random_state=0), target),
        PriorShiftClassifier(make_pipeline(StandardScaler(), GaussianNB()), target),
    ]


@pytest.mark.parametrize("estimator", estimators(), ids=lambda e: type(getattr(e, "estimator", e)).__name__)
def test_it_survives_pickling_and_cloning(estimator: Any) -> None:
    X, y = gaussians([90, 20, 10])
    fitted = clone(estimator).fit(X, y)
    expected = fitted.predict_proba(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), expected)
    np.testing.assert_array_equal(clone(fitted).fit(X, y).predict_proba(X), expected)


@pytest.mark.parametrize("estimator", estimators(), ids=lambda e: type(getattr(e, "estimator", e)).__name__)
def test_scores_probabilities_and_predictions_agree(estimator: Any) -> None:
    for counts in ([90, 20, 10], [90, 10]):
        X, y = gaussians(counts)
        target = [0.2, 0.3, 0.5] if len(counts) == 3 else [0.4, 0.6]
        model = clone(estimator).set_params(target=target).fit(X, y)
        p, log_p, scores = model.predict_proba(X), model.predict_log_proba(X), model.decision_function(X)
        np.testing.assert_allclose(p.sum(1), 1)
        np.testing.assert_allclose(np.exp(log_p), p)
        assert np.array_equal(model.predict(X), model.classes_[p.argmax(1)])
        if len(counts) == 2:
            np.testing.assert_allclose(scores, log_p[:, 1] - log_p[:, 0], rtol=1e-6, atol=1e-9)
        else:
            np.testing.assert_allclose(scores - scores[:, :1], log_p - log_p[:, :1], rtol=1e-6, atol=1e-9)
        assert np.isfinite(scores).all()


def test_a_pipeline_and_a_grid_search_take_it() -> None:
    X, y = gaussians([90, 20, 10])
    pipeline = make_pipeline(StandardScaler(), BalancedLogisticRegression())
    grid = {"balancedlogisticregression__tau": [0.0, 1.0], "balancedlogisticregression__C": [0.1, 10.0]}
    search = GridSearchCV(pipeline, grid, scoring="balanced_accuracy", cv=3).fit(X, y)
    assert search.best_params_["balancedlogisticregression__tau"] == 1.0
    assert set(search.predict(X)) == {0, 1, 2}
    wrapped = PriorShiftClassifier(make_pipeline(StandardScaler(), LogisticRegression()))
    uniform, training = "uniform", [0.75, 1 / 6, 1 / 12]
    search = GridSearchCV(
        wrapped, {"target": [training, uniform], "estimator__logisticregression__C": [0.1, 10.0]}, cv=3
    ).set_params(scoring="balanced_accuracy")
    assert search.fit(X, y).best_params_["target"] == uniform
    assert search.set_params(scoring="accuracy").fit(X, y).best_params_["target"] == training


# -------------------------------------------------------------------- the extra


def test_the_package_does_not_need_scikit_learn_and_says_what_does() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None; import equipoise as eq; print(eq.Prior.uniform(2).num_classes)\n"
        "eq.sklearn"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "2"
    assert "equipoise.integrations.sklearn needs scikit-learn: pip install 'equipoise[sklearn]'" in result.stderr


def test_the_name_is_there_without_an_import_of_its_own() -> None:
    code = "import equipoise as eq; print(eq.sklearn.BalancedLogisticRegression())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "BalancedLogisticRegression()", result.stderr
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        eq.nothing  # type: ignore[attr-defined]  # noqa: B018


# -------------------------------------------------------------------- the benchmark

ROOT = Path(__file__).parents[2]


def test_the_benchmark_thins_the_training_half_only_and_judges_every_way() -> None:
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "sklearn_imbalanced.py"))
    wine = benchmark["shipped_sets"]()[2]
    _, y, _, y_test = wine.halves(0)
    assert np.bincount(y).tolist() == [29, 11, 3]
    assert np.bincount(y_test).tolist() == [30, 35, 24]
    result = benchmark["compare"](wine, 1)["results"]
    assert [(r["classifier"], r["way"]) for r in result] == [
        (c, w) for c, ways in benchmark["WAYS"].items() for w in ways
    ]
    assert all(0.8 < r["balanced_accuracy"][0] <= 1 and r["log_loss"][0] < 1 for r in result)


def test_the_words_under_the_table_are_true_of_its_record() -> None:
    content = json.loads((ROOT / "results" / "benchmarks" / "sklearn-imbalanced-cpu.json").read_text())
    assert [data["set"].split(",")[0] for data in content["sets"]] == ["digits", "breast cancer", "wine"]

    def means(data: Any, classifier: str, measure: str) -> list[float]:
        """Plain, weights, over, under, ours; ours calibrated."""
        return [np.mean(r[measure]) for r in data["results"] if r["classifier"] == classifier]

    for data in content["sets"][:2]:
        for classifier in ("logistic regression", "random forest"):
            assert np.argmax(means(data, classifier, "balanced_accuracy")[:5]) == 4
        assert np.argmin(means(data, "logistic regression", "log_loss")) == 4
    digits, cancer, wine = content["sets"]
    losses = means(cancer, "random forest", "log_loss")
    assert np.argmin(losses) == 3
    assert losses[5] < 0.5 * losses[4]
    losses = means(wine, "random forest", "log_loss")
    assert losses[5] > losses[4]
    assert len(means(digits, "random forest", "log_loss")) == 5
    for classifier in ("logistic regression", "random forest"):
        accuracies = means(wine, classifier, "balanced_accuracy")
        assert np.argmax(accuracies) == 1
        ours = [r for r in wine["results"] if r["classifier"] == classifier][4]
        assert accuracies[1] - accuracies[4] < np.std(ours["balanced_accuracy"])
