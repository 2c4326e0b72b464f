"""Average precision: exact from sorted scores, or within bounds from a histogram of them.

    AP = Σ_n (R_n − R_{n−1}) · P_n      over the distinct scores, best first; R_n and P_n are recall and precision of
                                        everything that scores at least the n-th

Equal scores are one step, as in scikit-learn. A histogram does not know the order within a bin: its AP takes each bin
as one step, and the true value lies between the AP with the negatives of every bin first and the AP with them last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.prior import FloatArray, IntArray

BINS = 4096
EDGE = 20.0  # logits beyond ± this share the outermost bins: probabilities of 2e-9


@dataclass(frozen=True)
class Ranking:
    """Scores [n] of one class (or of all classes together) in descending order, ready for any weights of the items.

    >>> Ranking.of(np.array([0.9, 0.8, 0.1]), np.array([True, False, True])).average_precision()
    0.8333333333333333
    """

    order: IntArray  # [n] items, best first
    positive: NDArray[np.bool_]  # [n] in that order
    ends: IntArray  # the last place of each run of equal scores

    @classmethod
    def of(cls, scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> Ranking:
        order = np.argsort(-scores)  # ties in any order: they are one step
        ranked = scores[order]
        last = np.append(ranked[1:] != ranked[:-1], True) if len(ranked) else np.zeros(0, bool)
        return cls(order, positive[order], np.flatnonzero(last))

    def average_precision(self, weights: FloatArray | None = None) -> float:
        """AP of the items, each counted `weights` times; NaN if no positive is left."""
        hits: NDArray[Any]
        found: NDArray[Any]
        if weights is None:
            hits, found = np.cumsum(self.positive, dtype=np.int64)[self.ends], self.ends + 1
        else:
            weight = weights[self.order]
            hits, found = np.cumsum(weight * self.positive)[self.ends], np.cumsum(weight)[self.ends]
        if len(hits) == 0 or hits[-1] == 0:
            return float("nan")
        step = np.diff(hits, prepend=0)
        seen = np.flatnonzero(step)  # recall rises only here, where a positive was found
        return float((step[seen] * (hits[seen] / found[seen])).sum() / hits[-1])


def known_ranking(scores: NDArray[Any], target: NDArray[np.int8]) -> Ranking:
    """Scores of any shape, taken together, whose labels are 1 or 0; −1 is left out."""
    known = target >= 0
    return Ranking.of(scores[known], target[known] == 1)


def bin_of(logits: FloatArray) -> IntArray:
    """The bin of each logit, the lowest first."""
    place = np.floor((np.clip(logits, -EDGE, EDGE) + EDGE) * (BINS / (2 * EDGE)))
    return np.minimum(place.astype(np.int64), BINS - 1)


def binned_average_precision(positives: IntArray, negatives: IntArray) -> tuple[FloatArray, FloatArray]:
    """AP from histograms [..., bins], lowest bin first, and the largest possible error; NaN without positives.

    >>> value, error = binned_average_precision(np.array([1, 0, 1]), np.array([0, 1, 0]))
    >>> round(float(value), 4), float(error)
    (0.8333, 0.0)
    """
    own, other = positives[..., ::-1].astype(np.float64), negatives[..., ::-1].astype(np.float64)
    hits, false = np.cumsum(own, axis=-1), np.cumsum(other, axis=-1)
    before, false_before = hits - own, false - other
    total = hits[..., -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(own > 0, own * hits / (hits + false), 0.0).sum(-1) / total[..., 0]
        most = np.where(own > 0, own * hits / (hits + false_before), 0.0).sum(-1) / total[..., 0]
        # all negatives of the bin first: Σ_i (t + i)/(t + i + f), i = 1..p  =  p − f · (H(t + p + f) − H(t + f))
        least = np.where(own > 0, own - false * (_harmonic(hits + false) - _harmonic(before + false)), 0.0)
        low = least.sum(-1) / total[..., 0]
    return value, np.maximum(np.maximum(most - value, value - low), 0.0)


def _harmonic(n: FloatArray) -> FloatArray:
    """1 + 1/2 + ... + 1/n, up to a constant."""
    import torch

    return np.asarray(torch.digamma(torch.from_numpy(n + 1)).numpy())
