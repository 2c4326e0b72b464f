"""A model's prediction for every test item, kept so that two models that saw the same items can be compared item by
item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.prior import FloatArray


@dataclass(frozen=True, eq=False)
class Answers:
    """The true and the predicted class of each item [N], in order, and the model's confidence [N]."""

    target: NDArray[np.int32]
    predicted: NDArray[np.int32]
    confidence: NDArray[np.float32]

    @property
    def right(self) -> NDArray[np.bool_]:
        return np.asarray(self.target == self.predicted)

    def __add__(self, other: Answers) -> Answers:
        if not isinstance(other, Answers):
            return NotImplemented
        parts: Any = ([getattr(each, name) for each in (self, other)] for name in _FIELDS)
        return Answers(*map(np.concatenate, parts))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Answers):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]


_FIELDS = ("target", "predicted", "confidence")


def both_right(one: Sequence[Answers], other: Sequence[Answers], num_classes: int) -> FloatArray | None:
    """How many items of each class two models both got right, [K]; None if they did not see the same items.

    Each model may have several runs; an item then counts as right by the share of runs that got it right. The items are
    assumed to be the same if their true classes are, in the same order.

    >>> target, sure = np.array([0, 0, 1], np.int32), np.ones(3, np.float32)
    >>> a, b = (Answers(target, np.array(said, np.int32), sure) for said in ([0, 0, 0], [0, 1, 1]))
    >>> both_right([a], [b], 2).tolist(), both_right([a, b], [b], 2).tolist()
    ([1.0, 0.0], [1.0, 0.5])
    """
    if not one or not other:
        return None
    target = one[0].target
    if any(not np.array_equal(target, each.target) for each in (*one, *other)):
        return None
    shares = [np.mean([each.right for each in runs], axis=0) for runs in (one, other)]
    return np.asarray(np.bincount(target, shares[0] * shares[1], num_classes), np.float64)
