"""Turn what users pass in into checked arrays, without importing torch; find the line that a warning should point
to."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

MOST_CLASSES = 10**7  # a larger class index is more likely an id


def as_array(values: ArrayLike | Tensor) -> NDArray[Any]:
    """A NumPy array of anything array-like; tensors come off their device and graph."""
    if is_tensor(values):
        values = values.detach().cpu()
        return np.asarray((values.double() if values.is_floating_point() else values).numpy())
    return np.asarray(values)


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a tensor; always False if torch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number of any kind (int, NumPy, a one-element tensor), but not a bool.

    >>> is_whole(3), is_whole(3.0), is_whole(3.5), is_whole("3"), is_whole(True)
    (True, True, False, False, False)
    """
    try:
        return not isinstance(value, bool | np.bool_) and int(value) == value
    except (TypeError, ValueError, OverflowError):
        return False


def whole_counts(values: ArrayLike | Tensor) -> NDArray[np.int64]:
    """Counts [K] as int64; an error unless they are whole, not negative and not all zero."""
    counts = as_array(values)
    if counts.ndim != 1 or counts.size == 0:
        raise ValueError(f"counts have shape {counts.shape}: give one whole number per class, [K]")
    if counts.dtype.kind not in "iuf":
        raise TypeError(f"counts are {counts.dtype}, starting {counts[:3].tolist()}: give whole numbers")
    bad = (counts < 0) | (counts > 2**62)
    if counts.dtype.kind == "f":
        bad |= ~np.isfinite(counts) | (counts != np.floor(counts))
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"the count of class {where} is {counts[where].item()}: counts are whole numbers ≥ 0 "
            "(for probabilities use Prior.from_probabilities)"
        )
    if not counts.any():
        raise ValueError(f"all {counts.size} counts are zero: there is nothing to learn a prior from")
    if counts.sum(dtype=np.float64) >= 2**63:
        raise ValueError(f"counts sum to {counts.sum(dtype=np.float64):.3g}, more than 64 bits hold: divide them first")
    return counts.astype(np.int64)


def stated_probabilities(values: ArrayLike | Tensor) -> NDArray[np.float64]:
    """Probabilities [K] as float64, unchanged; an error unless they are in [0, 1] and sum to 1."""
    try:
        probabilities = as_array(values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"probabilities are {values!r}: expected numbers, one per class, or a Prior") from error
    if probabilities.ndim != 1 or probabilities.size == 0:
        raise ValueError(f"probabilities have shape {probabilities.shape}: give one per class, [K]")
    bad = ~np.isfinite(probabilities) | (probabilities < 0)
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"the probability of class {where} is {probabilities[where]}: it must be in [0, 1]; "
            "logs of probabilities are not taken: pass a Prior"
        )
    if abs(probabilities.sum() - 1) > 1e-4:
        raise ValueError(
            f"probabilities sum to {probabilities.sum():.6g}, not 1: divide them by their sum, "
            "or use Prior.from_counts for counts"
        )
    return probabilities


def rate_logits(rate: Any, what: str) -> NDArray[np.float64]:
    """log r − log(1 − r) of one rate [] or one per class [K], strictly between 0 and 1."""
    given = as_array(rate)
    if given.dtype.kind not in "biuf":
        raise TypeError(f"{what} is {given.tolist()!r}: expected a rate, or one per class, strictly between 0 and 1")
    rates = given.astype(np.float64)
    if rates.ndim > 1 or not ((rates > 0) & (rates < 1)).all():
        shown = rates if rates.size <= 10 else f"in [{rates.min()}, {rates.max()}]"
        raise ValueError(f"{what} is {shown}: a rate, or one per class, strictly between 0 and 1")
    return log_odds(rates)


def log_odds(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """log p − log(1 − p) of shares from 0 to 1, whose ends become −inf and inf."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares) - np.log1p(-shares))


def sigmoid(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + e^−x), which does not overflow.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.exp(-np.logaddexp(0.0, -log_odds))


def by_column(values: Any, class_names: Sequence[str] | None = None) -> tuple[Any, tuple[str, ...] | None]:
    """The values of a mapping or a pandas Series in column order, and `class_names` or else the keys that are names.

    Anything else is returned as it is. Classes missing from a mapping of indices are 0. Keys that are names come in the
    order of `class_names`, and those missing are 0; if none is among them, `class_names` replace the keys.

    >>> by_column({2: 5, 0: 7}), by_column({"cat": 90, "owl": 10})
    (([7, 0, 5], None), ([90, 10], ('cat', 'owl')))
    """
    names = as_names(class_names)
    if hasattr(values, "to_dict"):  # a pandas Series: its index holds the classes
        values = values.to_dict()
    if not isinstance(values, Mapping):
        return values, names
    keys = list(values)
    if not keys or all(isinstance(key, str) for key in keys):
        return _in_order(values, names), tuple(keys) if names is None else names
    if not all(is_whole(key) and key >= 0 for key in keys):
        raise TypeError(f"the keys are {keys[:3]}, ...: expected class names, or class indices from 0")
    if max(keys) >= MOST_CLASSES:
        raise ValueError(
            f"the class index {max(keys)} is not below {MOST_CLASSES:,}: expected indices 0, 1, 2, ..., not ids"
        )
    columns = [0] * (int(max(keys)) + 1)
    for key, value in values.items():
        columns[int(key)] = value
    return columns, names


def _in_order(values: Mapping[str, Any], names: Sequence[str] | None) -> list[Any]:
    """The values in the order of `names`; in their own if no key is one of these, which then rename the classes."""
    known = set(names or ())
    if names is None or known.isdisjoint(values):
        return list(values.values())
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        raise ValueError(f"the key {unknown!r} is not one of the class_names: name the same classes in both")
    return [values.get(name, 0) for name in names]


def as_names(names: Sequence[str] | Mapping[int, str] | None) -> tuple[str, ...] | None:
    """Class names in column order; a mapping has the keys 0 to K − 1, in any order."""
    if isinstance(names, Mapping):
        if sorted(names) != list(range(len(names))):
            raise ValueError(f"class_names has the keys {list(names)[:3]}, ...: expected 0 to {len(names) - 1}")
        names = [names[index] for index in range(len(names))]
    return None if names is None else tuple(str(name) for name in names)


def as_ids(ids: Sequence[int] | None) -> tuple[int, ...] | None:
    """Class ids in column order; an error unless they are whole numbers."""
    if ids is None:
        return None
    wrong = [value for value in ids if not is_whole(value)]
    if wrong:
        raise ValueError(f"class_ids hold {wrong[0]!r}: expected whole numbers, one per class")
    return tuple(int(value) for value in ids)


def exact_zeros(shift: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove float64 rounding errors: a uniform prior must give a shift of exactly 0."""
    return np.where(np.abs(shift) < 1e-12, 0.0, shift)


def fp32(values: NDArray[np.float64]) -> Tensor:
    """Float64 values as an fp32 tensor."""
    import torch

    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def distributions(outputs: NDArray[Any], *, half: bool = False) -> NDArray[np.bool_]:
    """Which rows [N, K] are probability distributions: ≥ 0 with a sum of 1, up to the rounding of files, or of `half`
    precision."""
    near: NDArray[np.bool_] = np.abs(outputs.sum(axis=1, dtype=np.float64) - 1) <= sum_tolerance(half)
    return near & (outputs >= 0).all(axis=1)


def sum_tolerance(half: bool) -> float:
    """How far the sum of a row of probabilities may be from 1, rounded to a few digits, or to `half` precision."""
    return 0.03 if half else 1e-3


def are_probabilities(outputs: NDArray[Any], *, half: bool = False, several: bool = False) -> bool:
    """Whether predictions [N, K] are probabilities rather than logits: every row is a distribution or, with `several`
    labels per item, every value is from 0 to 1. False where logits may look so: very few values, a constant, one-hot
    rows.

    >>> are_probabilities(np.array([[0.3, 0.7], [0.9, 0.1]])), are_probabilities(np.array([[0.3, 0.7], [0.9, 0.2]]))
    (True, False)
    """
    if several:
        return outputs.size >= 32 and bool(((outputs >= 0) & (outputs <= 1)).all() and (outputs != outputs[0, 0]).any())
    if len(outputs) < (4 if half else 2) or outputs.shape[1] < 2 or not distributions(outputs, half=half).all():
        return False
    return bool(((outputs != 0) & (outputs != 1)).any())


def outside() -> int:
    """The stack level, for a warning, of the first caller outside this package and torch (which calls modules)."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("equipoise", "torch"):
        level, frame = level + 1, frame.f_back
    return level
