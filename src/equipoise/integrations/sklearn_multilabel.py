"""A scikit-learn multi-label classifier that predicts for other class rates than those it was trained under.

    logit p_t(y_j|x)  =  logit p(y_j|x) − (logit π_j − logit t_j)

`eq.sklearn.RateShiftClassifier` does for yes-or-no questions what `PriorShiftClassifier` does for one of K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from equipoise.arrays import log_odds, sigmoid
from equipoise.metrics.multilabel_checks import check_thresholds
from equipoise.prior import FloatArray, Prior, PriorLike, sigmoid_shift

FARTHEST = 700.0  # log odds of a probability that a classifier states as 0 or 1: finite, and beyond any other


class RateShiftClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Any multi-label classifier with `predict_proba`, corrected for the rates `target_rate`.

    Parameters
    ----------
    estimator : a classifier that takes y [N, K] of zeros and ones: a forest, neighbours, or any other in scikit-learn's
        `OneVsRestClassifier` or `MultiOutputClassifier`. `fit` fits a clone of it.
    target_rate : the share of items that have each label where the model is used: one for all classes, or one per
        class. None: the mean rate of the training set, at which no label is favoured. It is read at every prediction,
        and may be changed after `fit` with `set_params`.
    source : the rates that the estimator's probabilities mean. None: those of y, weighted by `sample_weight`. State
        them (a number, one per class, or a `Prior`) if the estimator balances by itself.
    threshold : the probability from which `predict` assigns a label, one for all classes or one per class, e.g. from
        `eq.f1_thresholds`.

    Attributes
    ----------
    estimator_ : the fitted classifier.
    source_ : the rates that its probabilities mean: a `Prior`, or the value of `source`.
    classes_ : the columns of y, 0 to K − 1.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multiclass import OneVsRestClassifier
    >>> X = np.linspace(-3, 3, 100)[:, None]
    >>> y = np.stack([X[:, 0] > 0, X[:, 0] > 2.5], axis=1).astype(int)
    >>> model = eq.sklearn.RateShiftClassifier(OneVsRestClassifier(LogisticRegression())).fit(X, y)
    >>> model.source_.probabilities.round(2).tolist()
    [0.5, 0.09]
    >>> model.predict([[2.3]]).tolist(), model.set_params(target_rate=[0.5, 0.01]).predict([[2.3]]).tolist()
    ([[1, 1]], [[1, 0]])
    """

    def __init__(
        self,
        estimator: Any,
        target_rate: float | Sequence[float] | None = None,
        *,
        source: PriorLike | float | None = None,
        threshold: float | ArrayLike = 0.5,
    ) -> None:
        self.estimator = estimator
        self.target_rate = target_rate
        self.source = source
        self.threshold = threshold

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RateShiftClassifier:
        """Fit a clone of the estimator to X and labels y [N, K] of zeros and ones, and count their rates."""
        labels = _check_labels(y)
        if not hasattr(self.estimator, "predict_proba"):
            raise TypeError(f"{self.estimator!r} has no predict_proba: wrap it in CalibratedClassifierCV first")
        tags = get_tags(self.estimator).classifier_tags
        if tags is not None and not tags.multi_label and not get_tags(self.estimator).target_tags.multi_output:
            raise ValueError(
                f"{self.estimator!r} gives one label per item: wrap it, OneVsRestClassifier({self.estimator!r})"
            )
        options = {}
        if sample_weight is not None:
            check_consistent_length(labels, sample_weight)
            options["sample_weight"] = sample_weight
        self.classes_ = np.arange(labels.shape[1])
        self.source_ = _rates(labels, sample_weight) if self.source is None else self.source
        self._shift()  # wrong rates and thresholds fail here, not in production
        check_thresholds(self.threshold, len(self.classes_))
        self.estimator_ = clone(self.estimator).fit(X, labels, **options)
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """logit p_t(y_j|x): [N, K], finite."""
        check_is_fitted(self)
        p = _probabilities(self.estimator_, X, len(self.classes_))
        return np.asarray(np.clip(log_odds(p), -FARTHEST, FARTHEST) - self._shift())

    def predict_proba(self, X: Any) -> FloatArray:
        """p_t(y_j|x): [N, K], the probability of every label."""
        return sigmoid(self.decision_function(X))

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 where the probability reaches the threshold, else 0: [N, K]."""
        return (self.decision_function(X) >= check_thresholds(self.threshold, len(self.classes_))).astype(np.int64)

    def _shift(self) -> FloatArray:
        shift = sigmoid_shift(self.source_, self.target_rate).double().numpy()
        if shift.shape not in ((), (len(self.classes_),)):
            raise ValueError(f"the rates have {shift.size} classes, y has {len(self.classes_)}: give one per class")
        return np.asarray(shift)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.classifier_tags.multi_label, tags.classifier_tags.multi_class = True, False
        return tags


def _check_labels(y: Any) -> NDArray[np.int64]:
    dense = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    if dense.ndim != 2:
        raise ValueError(
            f"y has shape {dense.shape}, expected zeros and ones [N, K]: for one label per item there is "
            "PriorShiftClassifier"
        )
    if dense.dtype.kind not in "biuf" or not ((dense == 0) | (dense == 1)).all():
        raise ValueError(
            "y holds values other than 0 and 1: expected whether each item has each label, "
            "e.g. from MultiLabelBinarizer"
        )
    return np.asarray(dense.astype(np.int64))


def _rates(labels: NDArray[np.int64], sample_weight: Any) -> Prior | tuple[float, ...]:
    """The rates of the labels; weighted ones stay away from 0 and 1 by one item."""
    if sample_weight is None:
        return Prior.from_multilabel(labels)
    rates = np.average(labels, axis=0, weights=np.asarray(sample_weight, np.float64))
    edge = 1 / len(labels)
    return tuple(np.clip(rates, edge, 1 - edge).tolist())


def _probabilities(estimator: Any, X: Any, num_labels: int) -> FloatArray:
    """p(y_j = 1|x) [N, K], from classifiers that return one matrix, or one [N, 2] per label."""
    found = estimator.predict_proba(X)
    if isinstance(found, list):
        columns = [
            part[:, list(classes).index(1)] if 1 in classes else np.zeros(len(part))
            for part, classes in zip(found, estimator.classes_, strict=True)
        ]
        found = np.stack(columns, axis=1)
    p = np.asarray(found, np.float64)
    if p.ndim != 2 or p.shape[1] != num_labels or math.isnan(p.sum()):
        raise ValueError(f"predict_proba gave shape {p.shape} for {num_labels} labels: expected one column per label")
    return p
