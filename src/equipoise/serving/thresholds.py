"""One threshold per class, chosen on a validation set for the rates in use.

    F1           max over t of  2 · TP / (TP + FP + positives)
    precision    most positives found with  TP / (TP + FP) >= precision
    cost         min over t of  c_fp · FP + c_fn · FN

TP and FP are sums over the validation items whose probability reaches t. If the validation items have other class rates
than those in use, `target_rate` weights the positive items of a class by rate / positives and the negative ones by
(1 − rate) / negatives. Pass the logits of the model as it is served (after `RebalancedSigmoid` or
`adjust_sigmoid_logits`). For a given share of predicted items there is `rate_thresholds`, which needs no labels.

Thresholds are probabilities, float64 [K], halfway (in log odds) between the two scores that they separate, in the form
that `evaluate_multilabel(threshold=...)` and `RebalancedSigmoid(threshold=...)` take. A missing label (−1 or NaN) is
left out. A class without a known positive or without a known negative gets the threshold that would be right for
calibrated probabilities (F1: 0.5, precision p: p, cost: c_fp / (c_fp + c_fn)), and one warning names these classes.

Reference: Lipton, Elkan, Naryanaswamy, "Optimal thresholding of classifiers to maximize F1 measure", 2014, arXiv
1402.1892. With few positives the best threshold of a validation set is uncertain: evaluate it on other items.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.arrays import as_array, log_odds, outside, rate_logits
from equipoise.losses.balanced_sigmoid import Rate
from equipoise.metrics.average_precision import Ranking
from equipoise.metrics.checks import warn_of_probabilities
from equipoise.metrics.multilabel_checks import check_multilabel
from equipoise.prior import FloatArray

BEYOND = 0.5  # log odds between the outermost score and a threshold beyond it
LEAST, MOST = -700.0, 36.0  # log odds: beyond, a probability rounds to 0 or 1


def f1_thresholds(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    *,
    target_rate: Rate | None = None,
    probabilities: bool = False,
) -> Tensor:
    """The threshold with the best F1 per class, [K], from logits (or probabilities) and labels [N, K].

    >>> f1_thresholds([[2.0], [1.0], [-1.0], [-2.0]], [[1], [1], [0], [1]])      # 3 of 3 and one wrong: 6/7
    tensor([0.0759], dtype=torch.float64)
    >>> f1_thresholds([[2.0], [1.0], [-1.0], [-2.0]], [[1], [1], [0], [1]], target_rate=0.01)   # negatives are many
    tensor([0.5000], dtype=torch.float64)
    """

    def best(cuts: _Cuts, column: int) -> int:
        return int((2 * cuts.true / (cuts.true + cuts.false + cuts.positives)).argmax())

    return _chosen(logits, target, target_rate, probabilities, best, np.asarray(0.5))


def precision_thresholds(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    precision: float | Sequence[float] | FloatArray | Tensor,
    *,
    target_rate: Rate | None = None,
    probabilities: bool = False,
) -> Tensor:
    """The threshold per class, [K], that finds the most positives with at least this precision (one, or one per class).

    If no threshold reaches it, none of the validation items is predicted, and a warning names the class. (Items of
    probability 1 always are, since a threshold is below 1; the warning says so.)

    precision   the precision to reach: one number, or one per class

    >>> precision_thresholds([[3.0], [2.0], [1.0], [0.0]], [[1], [0], [1], [0]], 0.6).logit()
    tensor([0.5000], dtype=torch.float64)
    """
    wanted = _numbers(precision, logits, "precision")
    if not ((wanted > 0) & (wanted < 1)).all():
        raise ValueError(f"precision is {precision!r}: expected a share strictly between 0 and 1, or one per class")
    short: list[int] = []
    sure: list[int] = []

    def best(cuts: _Cuts, column: int) -> int:
        enough = cuts.true >= wanted[column] * (cuts.true + cuts.false) * (1 - 1e-12)  # three roundings, of 1e-16 each
        found = np.where(enough, cuts.true, 0.0)
        if found.max() == 0:
            short.append(column)
            sure.extend([column] if cuts.true[0] + cuts.false[0] > 0 else [])
        return int(found.argmax())

    thresholds = _chosen(logits, target, target_rate, probabilities, best, wanted)
    if short:
        still = f", except that items of probability 1 still are ({_first(sure)})" if sure else ""
        warnings.warn(
            f"no threshold reaches the precision for {len(short)} classes ({_first(short)}): they are not predicted"
            f"{still}",
            stacklevel=outside(),
        )
    return thresholds


def cost_thresholds(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    *,
    false_positive: float | Sequence[float] | FloatArray | Tensor = 1.0,
    false_negative: float | Sequence[float] | FloatArray | Tensor = 1.0,
    target_rate: Rate | None = None,
    probabilities: bool = False,
) -> Tensor:
    """The threshold with the lowest cost per class, [K]; the cost of each kind of error is one number, or one per
    class.

    false_positive   cost of predicting a class that is absent: one number, or one per class
    false_negative   cost of missing a class that is present: one number, or one per class

    >>> scores, labels = [[2.0], [1.0], [0.0], [-1.0]], [[1], [0], [1], [0]]
    >>> cost_thresholds(scores, labels, false_negative=10).logit()
    tensor([-0.5000], dtype=torch.float64)
    >>> cost_thresholds(scores, labels, false_positive=10).logit()
    tensor([1.5000], dtype=torch.float64)
    """
    of_false = _numbers(false_positive, logits, "false_positive")
    of_missed = _numbers(false_negative, logits, "false_negative")
    if not all(((cost > 0) & np.isfinite(cost)).all() for cost in (of_false, of_missed)):
        raise ValueError(f"errors cost {false_positive!r} and {false_negative!r}: expected finite numbers above 0")

    def best(cuts: _Cuts, column: int) -> int:
        missed = cuts.positives - cuts.true
        return int((of_false[column] * cuts.false + of_missed[column] * missed).argmin())

    return _chosen(logits, target, target_rate, probabilities, best, of_false / (of_false + of_missed))


# -------------------------------------------------------------------- inside


@dataclass(frozen=True)
class _Cuts:
    """Every place where a threshold can split a class's scores, best first: before the first, after each distinct one.

    Left out are places that no threshold of float64 hits: in front of a probability of 1, say.
    """

    thresholds: FloatArray
    true: FloatArray  # weighted positives above
    false: FloatArray  # weighted negatives above
    positives: float  # all of them, weighted


def _chosen(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    target_rate: Rate | None,
    probabilities: bool,
    best: Callable[[_Cuts, int], int],
    otherwise: FloatArray,
) -> Tensor:
    """The cut that `best` chooses for each class, as a probability; `otherwise` if one kind of item is missing."""
    scores, truth = check_multilabel(logits, target, probabilities=probabilities)
    if not probabilities:
        warn_of_probabilities(scores, several=True)
    num_classes = scores.shape[1]
    if scores.size and (truth < 0).all():
        raise ValueError("every label is missing: there is nothing to choose thresholds by")
    if target_rate is not None:
        rates = 1 / (1 + np.exp(-rate_logits(target_rate, "target_rate")))
        rates = _per_class(rates, num_classes, "target_rate")
    found = np.array(np.broadcast_to(otherwise, num_classes), np.float64)
    one_sided = []
    for column in range(num_classes):
        known = truth[:, column] >= 0
        positive = truth[known, column] == 1
        if positive.all() or not positive.any():
            one_sided.append(column)
            continue
        rate = None if target_rate is None else float(rates[column])
        own = scores[known, column].astype(np.float64)
        cuts = _cuts(log_odds(own) if probabilities else own, positive, rate)
        found[column] = cuts.thresholds[best(cuts, column)]
    if one_sided:
        warnings.warn(
            f"{len(one_sided)} of {num_classes} classes have no positive or no negative item ({_first(one_sided)}): "
            "there is nothing to choose from, and their threshold is that of calibrated probabilities",
            stacklevel=outside(),
        )
    return torch.from_numpy(found)


def _cuts(scores: FloatArray, positive: NDArray[np.bool_], rate: float | None) -> _Cuts:
    ranking = Ranking.of(scores, positive)
    hits = np.append(0, np.cumsum(ranking.positive)[ranking.ends])
    misses = np.append(0, ranking.ends + 1) - hits
    steps = scores[ranking.order[ranking.ends]]
    above, below = np.append(np.inf, steps), np.append(steps, -np.inf)  # neighbours of each place
    beyond = np.concatenate([[steps[0] + 2 * BEYOND], steps, [steps[-1] - 2 * BEYOND]])
    thresholds = _probabilities(beyond[:-1], beyond[1:])
    limits = log_odds(thresholds)  # as `check_thresholds` makes them
    kept = (limits <= above) & (limits > below)
    weights = (1.0, 1.0) if rate is None else (rate / hits[-1], (1 - rate) / misses[-1])
    return _Cuts(thresholds[kept], weights[0] * hits[kept], weights[1] * misses[kept], weights[0] * float(hits[-1]))


def _probabilities(above: FloatArray, below: FloatArray) -> FloatArray:
    """Halfway between log odds, infinite ones included, as probabilities strictly between 0 and 1."""
    with np.errstate(invalid="ignore"):
        halfway = np.clip((above + below) / 2, LEAST, MOST)
    return np.asarray(1 / (1 + np.exp(-np.nan_to_num(halfway, nan=0.0))))


def _numbers(value: Any, logits: ArrayLike | Tensor, what: str) -> FloatArray:
    """One number per class, [K]."""
    numbers, shape = as_array(value), as_array(logits).shape
    if numbers.dtype.kind not in "iuf":
        raise TypeError(f"{what} is {value!r}: expected a number, or one per class")
    return _per_class(numbers.astype(np.float64), shape[-1] if shape else 0, what)


def _per_class(values: FloatArray, num_classes: int, what: str) -> FloatArray:
    if values.shape not in ((), (num_classes,)):
        raise ValueError(
            f"{what} has shape {values.shape}, logits have {num_classes} classes: give one, or one per class"
        )
    return np.broadcast_to(values, num_classes)


def _first(columns: list[int]) -> str:
    return ", ".join(map(str, columns[:10])) + (", ..." if len(columns) > 10 else "")
