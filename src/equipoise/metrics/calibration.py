"""Evaluate probabilities: log-loss, Brier score and expected calibration error, with optional item weights.

    log-loss   Σ_i w_i · −log p_i(y_i) / Σ w             Brier   Σ_i w_i · Σ_j (p_ij − [y_i = j])² / Σ w
    ECE        Σ_b |Σ_{i in b} w_i (right_i − confidence_i)| / Σ w     over 15 equal bins of the largest probability

With sigmoids every class is a separate question, and the scores are means over the classes: the log-loss is the binary
one, Brier is (p − y)², and the ECE compares p itself, in bins, with how often the answer is yes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import as_array
from equipoise.metrics.checks import check_labels, check_probabilities
from equipoise.metrics.evaluation import BINS, bins_of
from equipoise.metrics.intervals import wilson_intervals
from equipoise.prior import FloatArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CalibrationScores:
    """Three scores of probabilities; smaller is better for each.

    >>> CalibrationScores(log_loss=0.5697, brier=0.4, ece=0.4).brier
    0.4
    """

    log_loss: float  # mean of −log p for the right answer
    brier: float  # mean squared distance between probabilities and the right answer
    ece: float  # expected calibration error: mean gap between confidence and accuracy, over bins of confidence

    def __str__(self) -> str:
        return f"log-loss {self.log_loss:.4f}, Brier {self.brier:.4f}, ECE {self.ece:.4f}"


def calibration_scores(
    probabilities: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, weights: ArrayLike | Tensor | None = None
) -> CalibrationScores:
    """Scores of softmax probabilities [N, K] against class indices [N]; `weights` [N] if items do not count equally.

    probabilities   [N, K]
    labels          class indices, [N]
    weights         how much each item counts, [N]; None counts all equally

    >>> print(calibration_scores([[0.8, 0.2], [0.6, 0.4]], [0, 1]))
    log-loss 0.5697, Brier 0.4000, ECE 0.4000
    """
    p, index = as_array(probabilities).astype(np.float64), as_array(labels)
    if p.ndim != 2 or index.shape != (len(p),) or index.dtype.kind not in "iu":
        raise ValueError(
            f"probabilities have shape {p.shape}, labels {index.shape} ({index.dtype}): expected [N, K] and indices [N]"
        )
    share = _shares(weights, index.shape)
    check_probabilities(probabilities)  # as given, with a tolerance for rounding in half precision
    check_labels(index, *p.shape)
    own = p[np.arange(len(p)), index]
    confidence, right = p.max(axis=1), p.argmax(axis=1) == index
    with np.errstate(divide="ignore"):
        log_loss = float(-(share * np.log(own)).sum())
    brier = float((share * ((p**2).sum(axis=1) - 2 * own + 1)).sum())
    return CalibrationScores(log_loss, brier, _calibration_error(confidence, right, share))


def sigmoid_calibration_scores(
    probabilities: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, weights: ArrayLike | Tensor | None = None
) -> CalibrationScores:
    """Scores of sigmoid probabilities [N, K] (or [N]) against zeros and ones of the same shape, as are `weights`.

    probabilities   [N, K] or [N]
    labels          zeros and ones of the same shape
    weights         how much each element counts, same shape; None counts all equally

    >>> print(sigmoid_calibration_scores([0.8, 0.2, 0.4], [1, 0, 0]))
    log-loss 0.3190, Brier 0.0800, ECE 0.2667
    """
    p, answer = as_array(probabilities).astype(np.float64), as_array(labels).astype(np.float64)
    if p.ndim not in (1, 2) or answer.shape != p.shape or not np.isin(answer, (0, 1)).all():
        raise ValueError(
            f"probabilities have shape {p.shape}, labels {answer.shape}: expected [N, K] for both, zeros and ones"
        )
    wrong = ~((p >= 0) & (p <= 1))
    if wrong.any():
        raise ValueError(
            f"probabilities hold {p[wrong][0]}: expected values from 0 to 1; if these are logits, pass logits.sigmoid()"
        )
    share = _shares(weights, p.shape).reshape(len(p), -1)
    p, answer = p.reshape(len(p), -1), answer.reshape(len(p), -1)
    with np.errstate(divide="ignore"):
        log_loss = -(share * np.log(np.where(answer == 1, p, 1 - p))).sum(axis=0).mean()
    brier = (share * (p - answer) ** 2).sum(axis=0).mean()
    errors = [_calibration_error(*column) for column in zip(p.T, answer.T, share.T, strict=True)]
    return CalibrationScores(float(log_loss), float(brier), float(np.mean(errors)))


def _shares(weights: ArrayLike | Tensor | None, shape: tuple[int, ...]) -> FloatArray:
    """Weights that sum to 1, in each column."""
    if shape[0] == 0:
        raise ValueError("there is no item to evaluate")
    found = np.ones(shape) if weights is None else as_array(weights).astype(np.float64)
    if found.shape != shape or not (found >= 0).all() or (found.sum(axis=0) == 0).any():
        raise ValueError(f"weights have shape {found.shape}: expected {shape}, not negative, not all zero")
    return np.asarray(found / found.sum(axis=0))


def _calibration_error(confidence: FloatArray, right: NDArray[Any], share: FloatArray) -> float:
    return float(np.abs(np.bincount(bins_of(confidence), share * (right - confidence), minlength=BINS)).sum())


def softmax_scores(logits: Tensor, labels: Tensor, weights: Tensor) -> CalibrationScores:
    """`calibration_scores` of logits, with a log-loss that stays finite if a probability underflows."""
    import torch

    scores = calibration_scores(logits.softmax(1), labels, weights=weights)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    return CalibrationScores(float((losses * weights).sum() / weights.sum()), scores.brier, scores.ece)


# -------------------------------------------------------------------- confidence against accuracy

EQUAL_MASS = 10  # bins
LEAST_ITEMS = 25  # of a bin
NEAREST = 0.01  # of confidence: bins that are closer are merged


@dataclass(frozen=True)
class Bin:
    """Items with about the same confidence: how many, mean confidence, and accuracy with Wilson's 95 % interval."""

    items: int
    confidence: float
    accuracy: float
    low: float
    high: float


def equal_mass_bins(items: ArrayLike, correct: ArrayLike, confidence: ArrayLike, *, runs: int = 1) -> list[Bin]:
    """Ten bins with equally many items, or fewer if a bin would have fewer than 25, in order of confidence.

    The arguments [n] are values of single items, or sums over finer bins. Bins whose confidence differs by less than a
    point are merged, so that the line does not jump up and down at 100 % if a model is sure of nearly everything. Items
    that were evaluated in several `runs` count once in the intervals.

    >>> sure = np.linspace(0.5, 1, 100)
    >>> [(bin.items, round(bin.confidence, 2), bin.accuracy) for bin in equal_mass_bins(np.ones(100), sure > 0.6, sure)]
    [(25, 0.56, 0.2), (25, 0.69, 1.0), (25, 0.81, 1.0), (25, 0.94, 1.0)]
    """
    n, right, sure = (np.asarray(values, np.float64) for values in (items, correct, confidence))
    n, right, sure = (values[n > 0] for values in (n, right, sure))
    if not len(n):
        return []
    order = np.argsort(sure / n, kind="stable")
    n, right, sure = (values[order] for values in (n, right, sure))
    wanted = int(np.clip(n.sum() / runs // LEAST_ITEMS, 1, EQUAL_MASS))
    place = np.minimum((np.cumsum(n) - n / 2) * wanted // n.sum(), wanted - 1).astype(np.int64)
    sums = np.stack([np.bincount(place, values, wanted) for values in (n, right, sure)], axis=1)
    merged: list[FloatArray] = []
    for row in sums[sums[:, 0] > 0]:
        if merged and row[2] / row[0] - merged[-1][2] / merged[-1][0] < NEAREST:
            merged[-1] = merged[-1] + row
        else:
            merged.append(row)
    low, high = wilson_intervals([row[1] / runs for row in merged], [row[0] / runs for row in merged])
    return [
        Bin(round(row[0]), float(row[2] / row[0]), float(row[1] / row[0]), float(low[place]), float(high[place]))
        for place, row in enumerate(merged)
    ]
