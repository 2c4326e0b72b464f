"""scikit-learn estimators that predict for another class prior than the one they were trained under.

    p_target(y|x)  ∝  p_source(y|x) · π_target(y) / π_source(y)

`BalancedLogisticRegression` is scikit-learn's LogisticRegression with its intercept moved by
log π_target − tau · log π_source. The intercept is not penalised, so moving it after the fit is the same as shifting
the logits during the fit: with a uniform target this *is* Balanced Softmax regression, the minimum over W and b of
Σ cross_entropy(x W + b + tau · log π_source, y) + penalty(W).

`PriorShiftClassifier` does the same to the probabilities of any classifier, fitted or not; `RateShiftClassifier` in
`sklearn_multilabel.py` does it for several labels per item.

Classes are in the order of `classes_`. With sample weights the prior is that of the weighted data.

Reference: Ren, Yu, Cai, Zhao, "Balanced Activation for Long-tailed Visual Recognition", 2020, arXiv 2008.11037.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import outside
from equipoise.prior import FloatArray, Prior, PriorLike, as_prior, log_ratio
from equipoise.serving.estimate import PriorEstimate, estimate_prior

try:
    from scipy.special import log_softmax
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.exceptions import NotFittedError
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils import assert_all_finite, get_tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

    from equipoise.integrations.sklearn_multilabel import RateShiftClassifier
except ImportError as error:
    raise ImportError(
        f"equipoise.integrations.sklearn needs scikit-learn: pip install 'equipoise[sklearn]' ({error})"
    ) from error

__all__ = ["BalancedLogisticRegression", "PriorShiftClassifier", "RateShiftClassifier"]

Target: TypeAlias = "str | PriorLike | Mapping[Any, float]"

SMALLEST = float(np.finfo(np.float64).tiny)  # replaces a probability of 0: a classifier's 0 is never certain
RULED_OUT = -1000.0  # the score of a class that the target rules out: finite, and below the log of any float64


class BalancedLogisticRegression(LogisticRegression):
    """scikit-learn's LogisticRegression, right for the prior `target` instead of the prior of its training set.

    Parameters
    ----------
    target : "uniform" (every class equally likely), probabilities in the order of `classes_`, a mapping (or a pandas
        Series) from label to probability, or a `Prior`. A class of probability 0 is never predicted.
    tau : how much of the prior of the training data is removed; 1 is Bayes' rule.
    C, l1_ratio, tol, fit_intercept, random_state, solver, max_iter, verbose : as in LogisticRegression. There is no
        `class_weight`: the prior takes its place. The solver "liblinear" and `fit_intercept=False` are refused, because
        a penalised or missing intercept cannot hold the prior.

    Attributes
    ----------
    source_ : the `Prior` of the training labels, weighted by `sample_weight` if it was given.
    intercept_ : LogisticRegression's, plus log π_target − tau · log π_source. With two classes scikit-learn keeps one
        row, the logit of the second class against the first: it moves by the difference between the two.
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
        _check_tau(self.tau)
        super().fit(X, y, sample_weight)
        self.source_ = _prior_of_labels(y, self.classes_, sample_weight)
        move = _move(self.source_, _stated_prior(self.target, self.classes_, "target"), self.tau)
        if len(self.classes_) == 2:
            move = move[1:] - move[:1]
        self.intercept_ = (self.intercept_ + move).astype(self.intercept_.dtype)
        return self

    def predict_log_proba(self, X: Any) -> FloatArray:
        """log p_target(y|x): [N, K], −inf for a class with target probability 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(super().predict_log_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.array_api_support = False  # the prior is counted and moved in NumPy
        return tags


class PriorShiftClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Any classifier with `predict_proba`, right for the prior `target` instead of the one it was trained under.

    Parameters
    ----------
    estimator : a classifier. `fit` fits a clone of it (one in scikit-learn's `FrozenEstimator` is not changed). One
        that is already fitted can be used without calling `fit`, if `source` is the prior it was trained under.
    target : "uniform" (every class equally likely); probabilities in the order of `classes_`, a mapping (or a pandas
        Series) from label to probability, or a `Prior`; or "estimate": the prior of the X to predict, found by EM
        (`eq.estimate_prior`), so that predictions depend on all of X: pass many rows at a time. It is read at every
        prediction, and may be changed after `fit` with `set_params`. A class with probability 0 is never predicted.
    source : the prior that the estimator's probabilities mean. None: that of the labels passed to `fit`, weighted by
        `sample_weight`. Pass it ("uniform", probabilities, a mapping or a `Prior`) if the estimator balances by itself,
        by class weights or resampling.
    tau : how much of the source is removed; 1 is Bayes' rule.

    Attributes
    ----------
    estimator_ : the fitted classifier, after `fit`.
    source_ : the `Prior` that its probabilities mean.
    classes_ : its labels.
    n_features_in_, feature_names_in_ : if the fitted classifier has them.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X = np.concatenate([np.linspace(-3, 1, 90), np.linspace(-1, 3, 10)])[:, None]
    >>> y = np.repeat(["common", "rare"], [90, 10])
    >>> plain = GaussianNB().fit(X, y)
    >>> plain.predict_proba([[0.5]]).round(2)
    array([[0.82, 0.18]])
    >>> model = eq.sklearn.PriorShiftClassifier(plain, target={"common": 0.5, "rare": 0.5}, source=[0.9, 0.1])
    >>> model.predict_proba([[0.5]]).round(2)
    array([[0.34, 0.66]])
    >>> model.set_params(target=[0.9, 0.1]).predict_proba([[0.5]]).round(2)
    array([[0.82, 0.18]])
    """

    def __init__(
        self, estimator: Any, target: Target = "uniform", *, source: Target | None = None, tau: float = 1.0
    ) -> None:
        self.estimator = estimator
        self.target = target
        self.source = source
        self.tau = tau

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> PriorShiftClassifier:
        """Fit a clone of the estimator to X and labels y [N] of any type, and count the prior of y.

        `sample_weight` [N] goes to the estimator and into the prior; `fit_params` go to the estimator.
        """
        if y is None:
            raise ValueError("PriorShiftClassifier requires y to be passed, but the target y is None")
        if not hasattr(self.estimator, "predict_proba"):
            raise TypeError(
                f"{self.estimator!r} has no predict_proba: wrap it first, "
                "e.g. in sklearn.calibration.CalibratedClassifierCV, which gives it one"
            )
        _check_tau(self.tau)
        shape: Any = y.shape if hasattr(y, "shape") else np.asarray(y).shape
        if len(shape) == 2 and shape[1] > 1:
            raise ValueError(
                f"y should be a 1d array, got an array of shape {shape} instead: an item with several labels has "
                "a rate per label and no prior over them, so use eq.sklearn.RateShiftClassifier"
            )
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self._check_weights(sample_weight, fit_params)
        if sample_weight is not None:
            check_consistent_length(y, sample_weight)
            fit_params = {**fit_params, "sample_weight": sample_weight}
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        if self.source is None:
            self.source_ = _prior_of_labels(y, self.classes_, sample_weight)
        else:
            self.source_ = _stated_prior(self.source, self.classes_, "source")
        if not self._estimates():
            _stated_prior(self.target, self.classes_, "target")  # wrong targets fail here, not in production
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in the order of the columns."""
        return np.asarray(self._fitted().classes_)

    def estimate_prior(self, X: Any) -> PriorEstimate:
        """The prior of unlabelled X by EM, with intervals and doubts: `eq.estimate_prior` of the estimator's output.

        For a service that predicts one item at a time: estimate on many, then
        `set_params(target=model.estimate_prior(X).prior)`.
        """
        return estimate_prior(self._plain_probabilities(X), self._source(), method="em")

    def predict_log_proba(self, X: Any) -> FloatArray:
        """log p_target(y|x): [N, K], −inf for a class with target probability 0."""
        p, source = self._plain_probabilities(X), self._source()
        if self._estimates():
            target = estimate_prior(p, source, method="em", resamples=0).prior  # without its slow intervals
        else:
            target = _stated_prior(self.target, self.classes_, "target")
        return np.asarray(log_softmax(np.log(np.maximum(p, SMALLEST)) + _move(source, target, self.tau), axis=1))

    def predict_proba(self, X: Any) -> FloatArray:
        """p_target(y|x): [N, K]."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The label of the largest p_target(y|x): [N]."""
        return np.asarray(self.classes_[self.predict_log_proba(X).argmax(1)])

    def decision_function(self, X: Any) -> FloatArray:
        """log p_target [N, K]; with two classes the logit of the second [N]. Always finite."""
        scores = np.maximum(self.predict_log_proba(X), RULED_OUT)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimator_") or (self.source is not None and _is_fitted(self.estimator))

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.no_validation = inner.no_validation
        if inner.classifier_tags is not None:
            tags.classifier_tags = inner.classifier_tags
        return tags

    # ---------------------------------------------------------------- inside

    def _fitted(self) -> Any:
        """The classifier that predicts."""
        if hasattr(self, "estimator_"):
            return self.estimator_
        if not _is_fitted(self.estimator):
            raise NotFittedError("this PriorShiftClassifier and its estimator are not fitted yet: call fit first")
        if self.source is None:
            raise NotFittedError(
                f"{type(self.estimator).__name__} is fitted, but its prior is unknown: pass source=, the "
                "probabilities of the classes in its training data, or call fit, which trains a copy"
            )
        return self.estimator

    def _source(self) -> Prior:
        if hasattr(self, "source_"):
            return self.source_
        return _stated_prior(self.source, self.classes_, "source")  # type: ignore[arg-type]  # _fitted saw that it is

    def _estimates(self) -> bool:
        return isinstance(self.target, str) and self.target == "estimate"

    def _plain_probabilities(self, X: Any) -> FloatArray:
        """p_source(y|x), as the estimator returns it."""
        p = self._fitted().predict_proba(X)
        shapes = [np.shape(part) for part in p] if isinstance(p, list) else np.shape(p)
        if isinstance(p, list) or len(shapes) != 2 or shapes[1] != len(self.classes_):
            raise ValueError(
                f"predict_proba gave shape {shapes} for {len(self.classes_)} classes: expected one column per class; "
                "several outputs need one PriorShiftClassifier each"
            )
        return np.asarray(p, dtype=np.float64)

    def _check_weights(self, sample_weight: Any, fit_params: dict[str, Any]) -> None:
        """Refuse weights that the estimator would not see, and warn about those that the prior would not see."""
        parameters = inspect.signature(self.estimator.fit).parameters
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if sample_weight is not None and "sample_weight" not in parameters and not open_ended:
            raise TypeError(f"{type(self.estimator).__name__}.fit takes no sample_weight: fit without, or resample X")
        if self.source is not None:
            return
        inside = [name for name in fit_params if name.endswith("__sample_weight")]
        if inside:
            raise ValueError(
                f"{inside[0]} would weight the estimator and not its prior: pass source=, the weighted prior, or put "
                "the PriorShiftClassifier around the last step of the pipeline, and pass it the weights"
            )
        options = self.estimator.get_params() if hasattr(self.estimator, "get_params") else {}
        weighted = [name for name in options if _weighs(name.split("__")[-1], options[name])]
        if weighted:
            warnings.warn(
                f"the estimator has {weighted[0]}={options[weighted[0]]!r}, so its probabilities do not mean the "
                "prior of y: leave class weights out, or pass source= (class_weight='balanced', is_unbalance=True and "
                "auto_class_weights='Balanced' mean 'uniform')",
                stacklevel=outside(),
            )


def _weighs(option: str, value: Any) -> bool:
    """Whether an option of an estimator weights classes: scikit-learn's, XGBoost's, LightGBM's, CatBoost's."""
    if option in ("class_weight", "class_weights", "auto_class_weights"):
        return value is not None and not (isinstance(value, str) and value == "None")
    return (option == "scale_pos_weight" and value not in (None, 1)) or (option == "is_unbalance" and bool(value))


def _check_tau(tau: float) -> None:
    if not math.isfinite(tau):
        raise ValueError(f"tau is {tau}: expected a finite number, 1 for Bayes' rule")


def _is_fitted(estimator: Any) -> bool:
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):  # TypeError: a class, or nothing with a fit
        return False
    return True


# -------------------------------------------------------------------- priors in the order of classes_


def _prior_of_labels(y: Any, classes: NDArray[Any], sample_weight: Any = None) -> Prior:
    """How often each of `classes` occurs in `y`, each item counted `sample_weight` times."""
    labels, index = np.unique(column_or_1d(y), return_inverse=True)
    columns = {label: column for column, label in enumerate(classes.tolist())}
    unknown = [label for label in labels.tolist() if label not in columns]
    if unknown:
        raise ValueError(f"y holds {unknown[0]!r}, which is not one of the classes {_shown(classes)}")
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
    value = getattr(value, "to_dict", lambda: value)()  # of a pandas Series: its index holds the labels, in any order
    if isinstance(value, Mapping):
        if set(value) != set(classes.tolist()):
            raise ValueError(f"{what} names the classes {_shown(value)}, the data has {_shown(classes)}: name the same")
        value = [float(value[label]) for label in classes.tolist()]
    prior = as_prior(value)
    if prior.num_classes != len(classes):
        raise ValueError(
            f"{what} has {prior.num_classes} classes, the data has {len(classes)} ({_shown(classes)}): "
            "give one probability per class, in this order"
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
    return (tau - 1) * math.log(source.num_classes) - log_ratio(source, target, tau=tau)


def _shown(labels: Any) -> str:
    shown = [str(label) for label in labels]
    return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")
