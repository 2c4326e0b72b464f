"""The scikit-learn estimator of several labels per item: right under its rates, and a good citizen of scikit-learn."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

import equipoise as eq
from equipoise.integrations.sklearn import PriorShiftClassifier, RateShiftClassifier

ESTIMATORS = [
    OneVsRestClassifier(LogisticRegression()),
    MultiOutputClassifier(LogisticRegression()),
    RandomForestClassifier(20, min_samples_leaf=10, random_state=0),
    KNeighborsClassifier(30),
]


def sample(items: int = 600, rates: tuple[float, ...] = (0.5, 0.2, 0.05)) -> tuple[Any, Any]:
    random = np.random.RandomState(0)
    y = (random.rand(items, 3) < rates).astype(int)
    return random.normal(size=(items, 3)) + 1.5 * y, y


def positive(estimator: Any, X: Any) -> Any:
    p = estimator.predict_proba(X)
    return np.stack([part[:, 1] for part in p], axis=1) if isinstance(p, list) else p


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("rate", [0.3, [0.1, 0.5, 0.2], None])
def test_probabilities_are_those_of_adjusted_logits(estimator: Any, rate: Any) -> None:
    X, y = sample()
    model = RateShiftClassifier(estimator, rate).fit(X, y)
    p = torch.from_numpy(positive(model.estimator_, X)).clamp(1e-12, 1 - 1e-12)
    prior = eq.Prior.from_multilabel(y)
    expected = (torch.logit(p) - eq.sigmoid_shift(prior, rate)).sigmoid().numpy()
    assert model.source_ == prior
    assert model.predict_proba(X) == pytest.approx(expected, abs=1e-6)
    assert model.predict(X).tolist() == (model.predict_proba(X) >= 0.5).astype(int).tolist()


def test_in_a_world_of_other_rates_it_is_right_more_often() -> None:
    X, y = sample(4000)
    world_X, world_y = sample(4000, (0.05, 0.5, 0.5))
    plain = OneVsRestClassifier(LogisticRegression()).fit(X, y)
    moved = RateShiftClassifier(OneVsRestClassifier(LogisticRegression()), [0.05, 0.5, 0.5]).fit(X, y)
    right = [float((model.predict(world_X) == world_y).mean()) for model in (plain, moved)]
    assert right[1] > right[0] + 0.03


def test_the_rate_and_thresholds_may_change_after_the_fit() -> None:
    X, y = sample()
    model = RateShiftClassifier(ESTIMATORS[0], 0.2).fit(X, y)
    before = model.predict_proba(X)
    assert (model.set_params(target_rate=0.4).predict_proba(X) > before).all()
    thresholds = eq.f1_thresholds(model.predict_proba(X), y, probabilities=True)
    chosen = model.set_params(threshold=thresholds).predict(X)
    assert chosen.tolist() == (model.predict_proba(X) >= thresholds.numpy()).astype(int).tolist()


def test_sample_weights_are_in_the_rates() -> None:
    X, y = sample()
    weight = np.where(y[:, 2] == 1, 5.0, 1.0)
    model = RateShiftClassifier(ESTIMATORS[1], 0.2).fit(X, y, sample_weight=weight)
    assert model.source_ == pytest.approx(np.average(y, axis=0, weights=weight))


def test_a_label_that_never_occurs_is_not_certain() -> None:
    X, y = sample()
    y[:, 1] = 0
    forest = RateShiftClassifier(RandomForestClassifier(5, random_state=0), 0.5)
    with pytest.warns(UserWarning, match="1 of 3 classes have no item"):
        forest.fit(X, y)
    with pytest.warns(UserWarning, match="1 of 3 classes have no item"):
        assert np.isfinite(forest.decision_function(X)).all()


def test_it_is_a_good_citizen_of_scikit_learn() -> None:
    X, y = sample()
    model = RateShiftClassifier(OneVsRestClassifier(LogisticRegression()), 0.3, threshold=0.4)
    fitted = clone(model).fit(X, csr_array(y))
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert get_tags(model).classifier_tags.multi_label
    pipe = make_pipeline(StandardScaler(), model)
    assert cross_val_score(pipe, X, y, cv=2, scoring="f1_macro").min() > 0.2
    search = GridSearchCV(model, {"target_rate": [0.1, 0.5]}, cv=2, scoring="f1_macro").fit(X, y)
    assert search.best_params_["target_rate"] in (0.1, 0.5)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda X, y: RateShiftClassifier(ESTIMATORS[0]).fit(X, y[:, 0]), "there is PriorShiftClassifier"),
        (lambda X, y: RateShiftClassifier(ESTIMATORS[0]).fit(X, y + 1), "other than 0 and 1"),
        (lambda X, y: RateShiftClassifier(ESTIMATORS[0], [0.1, 0.2]).fit(X, y), "target_rate has 2"),
        (lambda X, y: RateShiftClassifier(ESTIMATORS[0], 0.1, source=[0.1, 0.2]).fit(X, y), "y has 3"),
        (lambda X, y: RateShiftClassifier(ESTIMATORS[0], threshold=2).fit(X, y), "threshold is 2"),
        (lambda X, y: RateShiftClassifier(LogisticRegression()).fit(X, y), r"wrap it, OneVsRestClassifier\(Logistic"),
        (lambda X, y: PriorShiftClassifier(ESTIMATORS[0]).fit(X, y), r"use eq\.sklearn\.RateShiftClassifier"),
        (lambda X, y: PriorShiftClassifier(ESTIMATORS[0]).fit(X, y.tolist()), r"use eq\.sklearn\.RateShiftClassifier"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(fit: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(*sample())


def test_a_classifier_without_probabilities_is_refused() -> None:
    with pytest.raises(TypeError, match="CalibratedClassifierCV"):
        RateShiftClassifier(RidgeClassifier()).fit(*sample())
