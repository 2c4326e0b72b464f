"""A seeded bootstrap of multi-label scores: how far they move when the test items are resampled with replacement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.average_precision import known_ranking
from equipoise.prior import FloatArray, IntArray


@dataclass(frozen=True)
class Resampled:
    """Scores of bootstrap draws of the items; NaN if a draw has no positive."""

    precision: FloatArray  # [draws, K] average precision of each class
    f1: FloatArray  # [draws, K]
    micro_precision: FloatArray  # [draws]
    micro_f1: FloatArray  # [draws]

    def mean_precision(self, members: IntArray | None = None) -> FloatArray:
        """mAP of each draw, over all classes or some."""
        return _means(self.precision if members is None else self.precision[:, members])

    def mean_f1(self, members: IntArray | None = None) -> FloatArray:
        """Macro F1 of each draw, over all classes or some."""
        return _means(self.f1 if members is None else self.f1[:, members])


def resample(
    scores: NDArray[Any], target: NDArray[np.int8], limits: FloatArray, *, resamples: int, seed: int
) -> Resampled:
    """Resample the items of scores and labels [n, K] repeatedly; scores that reach `limits` [K] are predicted."""
    random = np.random.default_rng(seed)
    items, classes = scores.shape
    rankings = [(known_ranking(scores[:, j], target[:, j]), target[:, j] >= 0) for j in range(classes)]
    pooled, known = known_ranking(scores, target), target >= 0
    chosen = known & (scores >= limits)
    positive = target == 1
    hit = positive & chosen
    drawn = []
    for _ in range(resamples):
        times = np.bincount(random.integers(items, size=items), minlength=items).astype(np.float64)
        precision = [ranking.average_precision(times[of]) for ranking, of in rankings]
        every = np.broadcast_to(times[:, None], known.shape)[known]
        hits, positives, predicted = times @ hit, times @ positive, times @ chosen
        either = float(positives.sum() + predicted.sum())
        micro = 2 * hits.sum() / either if either else math.nan
        f1 = np.where(positives > 0, 2 * hits / np.maximum(positives + predicted, 1), math.nan)
        drawn.append((precision, f1, pooled.average_precision(every), micro))
    return Resampled(*(np.array([one[part] for one in drawn]) for part in range(4)))


def interval_of(values: FloatArray) -> tuple[float, float] | None:
    """The middle 95 % of the draws that have a value; None if none has."""
    known = values[~np.isnan(values)]
    return (float(np.quantile(known, 0.025)), float(np.quantile(known, 0.975))) if len(known) else None


def _means(values: FloatArray) -> FloatArray:
    """Means over the classes that have a value; NaN if none has."""
    known = ~np.isnan(values)
    sums = np.where(known, values, 0.0).sum(1)
    return np.where(known.any(1), sums / np.maximum(known.sum(1), 1), math.nan)
