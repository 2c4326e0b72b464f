"""Everything that a report shows about one multi-label model, as sums over its test items."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.intervals import wilson_interval, wilson_intervals
from equipoise.metrics.multilabel import MultilabelEvaluation, evaluate_multilabel
from equipoise.metrics.multilabel_checks import check_multilabel
from equipoise.prior import FloatArray, IntArray, Prior

if TYPE_CHECKING:
    from torch import Tensor

LOG_ODDS = np.linspace(-8, 8, 41)  # the thresholds that a report sweeps
MOST_PAIRED = 1500  # classes: with more, a matrix of pairs is too large to keep


@dataclass(frozen=True)
class Missed:
    """How often the class `index` is missed when `other` is present too, and (`elsewhere`) when it is not."""

    index: int
    other: int
    times: int
    items: int
    share: float
    low: float
    high: float
    elsewhere: float


@dataclass(frozen=True, eq=False)
class JudgedMultilabel:
    """What `judge_multilabel` returns: F1 at 41 thresholds, and which classes are missed beside which. Adds up with
    `+`.

    >>> prior = Prior.from_counts([500, 5], total=600)
    >>> found = judge_multilabel([[2.0, -1.0], [1.0, 0.5], [-3.0, 1.0]], [[1, 1], [1, 1], [0, 1]], prior)
    >>> found.f1_at().shape, (found + found).evaluation.num_items
    ((2, 41), 6)
    """

    evaluation: MultilabelEvaluation  # what `evaluate_multilabel` returns
    hits_at: IntArray  # [K, 41] positives that reach each threshold
    predicted_at: IntArray  # [K, 41] items that reach each threshold
    together: FloatArray | None  # [K, K] items with both classes; None if there are too many classes
    missed: FloatArray | None  # [K, K] of these, items where the first is not predicted

    @property
    def prior(self) -> Prior:
        """The class prior of the training set."""
        return self.evaluation.prior

    def f1_at(self) -> FloatArray:
        """F1 of each class at each threshold, [K, 41]; NaN for a class without positives."""
        positives = self.evaluation.positives[:, None]
        scores = 2 * self.hits_at / np.maximum(positives + self.predicted_at, 1)
        return np.where(positives > 0, scores, np.nan)

    def misses(self, most: int = 12) -> list[Missed]:
        """Pairs in which a class is significantly more often missed beside another than without it, the most certain
        first.

        That is, the intervals of its miss rate beside the other and without it do not overlap, at a level that allows
        for the number of pairs compared (Bonferroni): among very many pairs, some stand out by chance alone. `low` and
        `high` are the plain 95 % interval. A class that never occurs without the other is left out, as there is nothing
        to compare.
        """
        if self.together is None or self.missed is None:
            return []
        positives, lost = self.evaluation.positives, np.diag(self.missed)
        apart = positives[:, None] - self.together
        with np.errstate(invalid="ignore", divide="ignore"):
            elsewhere = np.where(apart > 0, (lost[:, None] - self.missed) / apart, np.nan)
        compared = (self.together > 0) & (apart > 0)
        np.fill_diagonal(compared, False)
        z = NormalDist().inv_cdf(1 - 0.025 / max(int(compared.sum()), 1))
        least, _ = _intervals(self.missed, self.together, z)
        _, most_elsewhere = _intervals(lost[:, None] - self.missed, apart, z)
        gap = np.where(compared, least - most_elsewhere, -np.inf)
        order = np.argsort(-gap, axis=None, kind="stable")[:most]
        found = []
        for i, k in zip(*np.unravel_index(order[gap.ravel()[order] > 0], gap.shape), strict=True):
            times, items = int(self.missed[i, k]), int(self.together[i, k])
            ends = wilson_interval(times, items)
            found.append(Missed(int(i), int(k), times, items, times / items, *ends, float(elsewhere[i, k])))
        return found

    def __add__(self, other: JudgedMultilabel) -> JudgedMultilabel:
        if not isinstance(other, JudgedMultilabel):
            return NotImplemented
        pairs = [
            None if one is None or two is None else one + two
            for one, two in ((self.together, other.together), (self.missed, other.missed))
        ]
        sums = self.hits_at + other.hits_at, self.predicted_at + other.predicted_at
        return JudgedMultilabel(self.evaluation + other.evaluation, *sums, *pairs)

    def __radd__(self, other: int) -> JudgedMultilabel:
        """Lets `sum(parts)` work."""
        return self if other == 0 else NotImplemented


def _intervals(times: FloatArray, items: FloatArray, z: float) -> tuple[FloatArray, FloatArray]:
    low, high = wilson_intervals(times.ravel(), items.ravel(), z)
    return low.reshape(times.shape), high.reshape(times.shape)


def judge_multilabel(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    prior: Prior,
    *,
    probabilities: bool = False,
    threshold: float | ArrayLike | Tensor = 0.5,
) -> JudgedMultilabel:
    """Evaluate as `evaluate_multilabel` does, and keep what else a report shows.

    threshold   probability from which a class is predicted: one number, or one per class

    >>> prior = Prior.from_counts([500, 5], total=600)
    >>> found = judge_multilabel([[2.0, -1.0], [1.0, 0.5], [-3.0, 1.0]], [[1, 1], [1, 1], [0, 1]], prior)
    >>> found.evaluation.scores()["f1_macro"], found.misses()
    (0.9, [])
    """
    evaluation = evaluate_multilabel(logits, target, prior, probabilities=probabilities, threshold=threshold)
    scores, truth = check_multilabel(logits, target, probabilities=probabilities)
    limits = 1 / (1 + np.exp(-LOG_ODDS)) if probabilities else LOG_ODDS
    classes, steps = prior.num_classes, len(limits) + 1
    place = np.searchsorted(limits, scores, side="right") + steps * np.arange(classes)  # how many limits it reaches

    def reached(of: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> IntArray:
        counts = np.bincount(place[of], minlength=classes * steps).reshape(classes, steps)
        return np.asarray(np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][:, 1:])

    together = missed = None
    if classes <= MOST_PAIRED:
        present = (truth == 1).astype(np.float64)
        together, missed = present.T @ present, (present * (scores < evaluation.thresholds)).T @ present
    return JudgedMultilabel(evaluation, reached(truth == 1), reached(truth >= 0), together, missed)
