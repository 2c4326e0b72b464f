"""Check probabilities and labels before anything is computed from them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import are_probabilities, as_array, is_tensor, outside, sum_tolerance
from equipoise.prior import IntArray

if TYPE_CHECKING:
    from torch import Tensor

LOOKED_AT = 1024  # rows that show whether predictions are probabilities


def check_probabilities(values: ArrayLike | Tensor, what: str = "probabilities") -> Tensor:
    """Rows of probabilities as float64 [N, K], on their device; a row that is not a distribution is refused."""
    import torch

    given = values.detach() if is_tensor(values) else torch.from_numpy(np.array(values))
    if given.device.type == "mps":  # it has no float64
        given = given.cpu()
    if given.ndim != 2:
        raise ValueError(f"{what} have shape {tuple(given.shape)}, expected [N, K]: one row per item")
    scores = given.double()
    check_distributions(scores, given.dtype, of=f" of {what}", instead="if these are logits, pass logits.softmax(1)")
    return scores / scores.sum(1, keepdim=True)


def check_distributions(scores: Tensor, given: Any, first: int = 0, *, of: str = "", instead: str) -> None:
    """Refuse rows that are not >= 0 with a sum of 1, up to the precision of `given`; the first row has number
    `first`."""
    sums, tolerance = scores.sum(1), sum_tolerance(given.itemsize == 2)
    wrong = ~((scores >= 0).all(1) & ((sums - 1).abs() <= tolerance))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        total, least = float(sums[row]), float(scores[row].min())
        raise ValueError(f"row {first + row}{of} is not a distribution (sum {total:.4g}, least {least:.4g}): {instead}")


def warn_of_probabilities(
    outputs: Tensor | NDArray[Any], *, several: bool = False, wrong: str = "", instead: str = ""
) -> None:
    """Warn if predictions [N, K] that are taken for logits are probabilities, which makes something `wrong`, and say
    what to pass `instead`; the first rows are looked at."""
    rows, half = as_array(outputs[:LOOKED_AT]), outputs.dtype.itemsize == 2
    if not are_probabilities(rows, half=half, several=several):
        return
    what, usually = "every row is ≥ 0 with a sum of 1", "p(y) and calibration (not the accuracies)"
    if several:
        what, usually = "every value is from 0 to 1", "predicted labels, thresholds, F1 and calibration"
    warnings.warn(
        f"these look like probabilities ({what}), but are taken for logits, which makes {wrong or usually} wrong: pass "
        + (instead or "probabilities=True, or logits" + ("" if several else ", e.g. np.log(p)")),
        stacklevel=outside(),
    )


def check_labels(labels: ArrayLike | Tensor, num_items: int, num_classes: int, what: str = "labels") -> IntArray:
    """Class indices [N] as int64; errors call them `what`, a plural or "target"."""
    found: NDArray[Any] = as_array(labels)
    have, are = ("has", "is") if what == "target" else ("have", "are")
    if found.shape != (num_items,):
        raise ValueError(f"{what} {have} shape {found.shape}, expected one class index for each of {num_items} rows")
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"{what} {are} {found.dtype}: expected class indices (integers)")
    bad = (found < 0) | (found >= num_classes)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{what}[{row}] is {found[row]}: expected a class from 0 to {num_classes - 1}")
    return found.astype(np.int64)
