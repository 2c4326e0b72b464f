"""scikit-learn estimators that predict for another class prior than they were trained under.

    p_target(y|x)  ∝  p_source(y|x) · π_target(y) / π_source(y)

`BalancedLogisticRegression` is scikit-learn's LogisticRegression with its intercept moved by
log π_target − tau · log π_source. The intercept is not penalised, so that moving it after the fit and shifting the
logits during the fit are the same: with a uniform target this *is* Balanced Softmax regression, the minimum over W and
b of Σ cross_entropy(x W + b + tau · log π_source, y) + penalty(W).

`PriorShiftClassifier` does the same to the probabilities of any classifier, fitted or not.

Classes are in the order of `classes_`. With sample weights the prior is that of the weighted data.

Reference: Ren, Yu, Cai, Zhao, "Balanced Activation for Long-tailed Visual Recognition", 2020, arXiv 2008.11037.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.prior import FloatArray, Prior, PriorLike, _exact_zeros, as_prior

try:
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils.validation import column_or_1d
except ImportError as error:
    raise ImportError(f"equipoise.sklearn needs scikit-learn: pip install 'equipoise[sklearn]' ({error})") from error

__all__ = ["BalancedLogisticRegression"]

Target: TypeAlias = "str | PriorLike | Mapping[Any, float]"


class BalancedLogisticRegression(LogisticRegression):
    """scikit-learn's LogisticRegression, right for the prior `target` instead of the prior of its training set.

    Parameters
    ----------
    target : "uniform" (every class equally likely), probabilities in the order of `classes_`, a mapping from label to
        probability, or a `Prior`. A class of probability 0 is never predicted.
    tau : how much of the prior of the training data is taken out; 1 is what Bayes' rule asks for.
    C, l1_ratio, tol, fit_intercept, random_state, solver, max_iter, verbose : as in LogisticRegression. There is no
        `class_weight`: the prior takes its place. The solver "liblinear" and `fit_intercept=False` are refused, because
        a penalised or missing intercept cannot hold the prior.

    Attributes
    ----------
    source_ : the `Prior` of the training labels, weighted by `sample_weight` where there is one.
    intercept_ : LogisticRegression's, plus log π_target − tau · log π_source. With two classes scikit-learn keeps one
        row, the logit of the second class against the first: it moves by the difference of the two.
    coef_, classes_, n_iter_, n_features_in_, feature_names_in_ : as LogisticRegression's.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.concatenate([np.linspace(-3, 1, 90), np.linspace(-1, 3, 10)])[:, None]
    >>> y = np.repeat(["common", "rare"], [90, 10])
    >>> balanced = eq.sklearn.BalancedLogisticRegression().fit(X, y)
    >>> balanced.source_.probabilities.tolist()
    [0.9, 0.1]
    >>> LogisticRegression().fit(X, y).predict([[0.5]]).tolist(), balanced.predict([[0.5]]).tolist()
    (['common'], ['rare'])
    """

    intercept_: FloatArray

    def __init__(
        self,
        target: Target = "uniform",
        *,
        tau: float = 1.0,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        random_state: Any = None,
        solver: str = "lbfgs",
        max_iter: int = 100,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            C=C,
            l1_ratio=l1_ratio,
            tol=tol,
            fit_intercept=fit_intercept,
            random_state=random_state,
            solver=solver,
            max_iter=max_iter,
            verbose=verbose,
        )
        self.target = target
        self.tau = tau

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BalancedLogisticRegression:
        """Fit to X [N, features] and labels y [N] of any type, and move the intercept."""
        if not self.fit_intercept:
            raise ValueError(
                "fit_intercept=False: the prior is moved in the intercept, and a model without one cannot hold it; "
                "leave fit_intercept=True, or use PriorShiftClassifier, which moves the probabilities"
            )
        if self.solver == "liblinear":
            raise ValueError(
                "solver='liblinear' penalises the intercept, so that moving it is not Balanced Softmax regression: "
                "use 'lbfgs', 'newton-cg', 'newton-cholesky', 'sag' or 'saga'"
            )
        if isinstance(self.target, str) and self.target == "estimate":
            raise ValueError(
                "target='estimate': the prior is estimated where the model is used, after the intercept is set; "
                "use PriorShiftClassifier(LogisticRegression(), target='estimate')"
            )
        if not math.isfinite(self.tau):
            raise ValueError(f"tau is {self.tau}: expected a finite number, 1 for what Bayes' rule asks for")
        super().fit(X, y, sample_weight)
        self.source_ = _prior_of_labels(y, self.classes_, sample_weight)
        move = _move(self.source_, _stated_prior(self.target, self.classes_, "target"), self.tau)
        if len(self.classes_) == 2:
            move = move[1:] - move[:1]
        self.intercept_ = (self.intercept_ + move).astype(self.intercept_.dtype)
        return self

    def predict_log_proba(self, X: Any) -> FloatArray:
        """log p_target(y|x): [N, K], −inf for a class of target probability 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(super().predict_log_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.array_api_support = False  # the prior is counted and moved in NumPy
        return tags


# -------------------------------------------------------------------- priors in the order of classes_


def _prior_of_labels(y: Any, classes: NDArray[Any], sample_weight: Any = None) -> Prior:
    """How often each of `classes` occurs in `y`, each item counted `sample_weight` times."""
    labels, index = np.unique(column_or_1d(y), return_inverse=True)
    columns = {label: column for column, label in enumerate(classes.tolist())}
    unknown = [label for label in labels.tolist() if label not in columns]
    if unknown:
        raise ValueError(f"y holds {unknown[0]!r}, which is none of the classes {_shown(classes)}")
    column = np.array([columns[label] for label in labels.tolist()])[index]
    names = [str(label) for label in classes]
    if sample_weight is None:
        return Prior.from_counts(np.bincount(column, minlength=len(classes)), class_names=names)
    weights = np.broadcast_to(np.asarray(sample_weight, dtype=np.float64), column.shape)
    sums = np.bincount(column, weights=weights, minlength=len(classes))
    return Prior.from_probabilities(sums / sums.sum(), class_names=names)


def _stated_prior(value: Target, classes: NDArray[Any], what: str) -> Prior:
    """ "uniform", probabilities, a mapping from label to probability or a `Prior`, as a `Prior` over `classes`."""
    if isinstance(value, str):
        if value == "uniform":
            return Prior.uniform(len(classes))
        raise ValueError(f"{what} is {value!r}: expected 'uniform', probabilities, a mapping from label or a Prior")
    if isinstance(value, Mapping):
        if set(value) != set(classes.tolist()):
            raise ValueError(f"{what} names the classes {_shown(value)}, the data has {_shown(classes)}: name the same")
        value = [float(value[label]) for label in classes.tolist()]
    prior = as_prior(value)
    if prior.num_classes != len(classes):
        raise ValueError(
            f"{what} has {prior.num_classes} classes, the data has {len(classes)} ({_shown(classes)}): "
            "give one probability a class, in this order"
        )
    labels_are_names = all(isinstance(label, str) for label in classes.tolist())
    if labels_are_names and prior.class_names is not None and prior.class_names != tuple(classes.tolist()):
        raise ValueError(
            f"{what} is a prior of the classes {_shown(prior.class_names)}, the data has {_shown(classes)}: "
            "give the same names in the same order"
        )
    return prior


def _move(source: Prior, target: Prior, tau: float = 1.0) -> FloatArray:
    """log π_target − tau · log π_source: float64 [K], −inf for a class that `target` rules out."""
    return _exact_zeros(target._log(ruled_out=-np.inf) - tau * source._log())


def _shown(labels: Any) -> str:
    shown = [str(label) for label in labels]
    return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")
