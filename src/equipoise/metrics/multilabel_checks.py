"""Check multi-label predictions, labels and thresholds before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import as_array, log_odds
from equipoise.prior import FloatArray

if TYPE_CHECKING:
    from torch import Tensor


def check_multilabel(
    logits: ArrayLike | Tensor, target: ArrayLike | Tensor, *, probabilities: bool, num_classes: int | None = None
) -> tuple[NDArray[Any], NDArray[np.int8]]:
    """Scores [N, K] as floats and labels [N, K] as 1, 0 and −1 (missing), or an error that shows what is wrong."""
    scores, truth = as_array(logits), as_array(target)
    if scores.ndim != 2:
        raise ValueError(f"logits have shape {scores.shape}: expected [N, K], one row per item, one column per class")
    if num_classes is not None and scores.shape[1] != num_classes:
        raise ValueError(f"logits have shape {scores.shape}, prior {num_classes} classes: expected [N, K]")
    if truth.shape != scores.shape:
        raise ValueError(f"target has shape {truth.shape}, logits {scores.shape}: expected a label for every class")
    if scores.dtype.kind not in "iuf" or truth.dtype.kind not in "biuf":
        raise TypeError(f"logits are {scores.dtype}, target {truth.dtype}: expected numbers")
    scores = scores.astype(np.float32 if scores.dtype in (np.float16, np.float32) else np.float64)
    missing = np.isnan(truth) if truth.dtype.kind == "f" else np.zeros(truth.shape, bool)
    wrong = ~(missing | (truth == 0) | (truth == 1) | (truth == -1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"target[{row}, {column}] is {truth[row, column]}: expected 0 or 1, or −1 or NaN where it is not known"
        )
    bad = np.isnan(scores) | (((scores < 0) | (scores > 1)) if probabilities else np.zeros(scores.shape, bool))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        what = "a probability from 0 to 1; are these logits?" if probabilities else "a number"
        raise ValueError(f"row {row}, column {column} of the predictions is {scores[row, column]}: expected {what}")
    return scores, np.where(missing, -1, truth).astype(np.int8)


def check_thresholds(
    threshold: float | ArrayLike | Tensor, num_classes: int, *, probabilities: bool = False
) -> FloatArray:
    """One limit per class, on the scale of what is evaluated: logits, or probabilities."""
    given = as_array(threshold)
    given = given.astype(np.float64) if given.dtype.kind in "iuf" else np.full(given.shape, np.nan)
    if given.shape not in ((), (num_classes,)) or not ((given > 0) & (given < 1)).all():
        raise ValueError(
            f"threshold is {threshold!r}: expected a probability between 0 and 1, or one per class, {num_classes}"
        )
    limits = np.broadcast_to(given, num_classes)
    return np.array(limits if probabilities else log_odds(limits))
