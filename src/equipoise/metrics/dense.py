"""Evaluate segmentation: `evaluate_dense` and what it returns.

Everything is built from three sums per class, so evaluations of batches, ranks and files add up with `+`, and only the
sums are kept. Scores are fractions, over all pixels of all images together.

    IoU                   hits / (labelled + predicted − hits)
    Dice                  2 · hits / (labelled + predicted), which is F1 over pixels
    accuracy              hits / labelled: the recall of the class
    miou, dice, balanced  their means over the classes that are labelled or predicted (balanced: labelled) somewhere
    many, medium, few     means of IoU over the classes with more than an equal share of the training pixels (1/K), in
                          between, and with less than a tenth of an equal share. The usual limits of 100 and 20 items
                          make no sense for pixels: every class would have many
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import as_array, is_tensor
from equipoise.metrics.evaluation import mean_of_known, percent
from equipoise.prior import FloatArray, IntArray, Prior

if TYPE_CHECKING:
    from torch import Tensor

SUMS = ("hits", "labelled", "predicted")
RARE = 0.1  # of an equal share of the pixels


@dataclass(frozen=True)
class RegionResult:
    """One class: its share of the training pixels, its labelled test pixels, and its scores (None if it never
    occurs)."""

    index: int
    name: str
    share: float
    pixels: int
    iou: float | None
    dice: float | None
    accuracy: float | None


@dataclass(frozen=True, eq=False, repr=False)
class DenseEvaluation:
    """What `evaluate_dense` returns: three sums over pixels, and everything that follows from them.

    >>> result = evaluate_dense([[[0, 0], [1, 1]]], [[[0, 0], [0, 1]]], Prior.from_counts([900, 100]))
    >>> result.iou.round(2).tolist(), result.dice.round(2).tolist()
    ([0.67, 0.5], [0.8, 0.67])
    """

    prior: Prior  # of the training pixels
    hits: IntArray  # [K] pixels of the class that were predicted as it
    labelled: IntArray  # [K] pixels of the class
    predicted: IntArray  # [K] pixels predicted as the class

    def __post_init__(self) -> None:
        for name in SUMS:
            getattr(self, name).flags.writeable = False

    @property
    def iou(self) -> FloatArray:
        """Intersection over union per class, [K]; NaN for a class that is neither labelled nor predicted."""
        return _ratios(self.hits, self.labelled + self.predicted - self.hits)

    @property
    def dice(self) -> FloatArray:
        """Dice per class, [K]; NaN for a class that is neither labelled nor predicted."""
        return _ratios(2 * self.hits, self.labelled + self.predicted)

    @property
    def accuracy(self) -> FloatArray:
        """Share of the pixels of each class that were predicted as it, [K]; NaN for a class without pixels."""
        return _ratios(self.hits, self.labelled)

    def groups(self) -> dict[str, list[int]]:
        """The classes with more than an equal share of the training pixels, with less than a tenth of it, and in
        between."""
        shares = self.prior.probabilities * self.prior.num_classes
        masks = {"many": shares > 1, "medium": (shares <= 1) & (shares >= RARE), "few": shares < RARE}
        return {name: np.flatnonzero(mask).tolist() for name, mask in masks.items()}

    def scores(self, without: Sequence[int] = ()) -> dict[str, float]:
        """Every number by name, as fractions from 0 to 1; NaN if undefined (an empty group, no pixel).

        Classes in `without` are left out of the means, e.g. [0] for a background.
        """
        kept = np.setdiff1d(np.arange(self.prior.num_classes), np.asarray(without, np.int64))
        found = {"pixel_accuracy": float(_ratios(self.hits.sum(), self.labelled.sum()))}
        for name, values in {"balanced": self.accuracy, "miou": self.iou, "dice": self.dice}.items():
            found[name] = mean_of_known(values[kept])
        for group, members in self.groups().items():
            found[group] = mean_of_known(self.iou[np.intersect1d(members, kept).astype(np.int64)])
            found[f"dice_{group}"] = mean_of_known(self.dice[np.intersect1d(members, kept).astype(np.int64)])
        return found

    @property
    def per_class(self) -> list[RegionResult]:
        """Every class, in column order."""
        columns = zip(self.iou, self.dice, self.accuracy, strict=True)
        return [
            RegionResult(
                index,
                self.prior.name(index),
                float(self.prior.probabilities[index]),
                int(self.labelled[index]),
                *(None if math.isnan(value) else float(value) for value in values),
            )
            for index, values in enumerate(columns)
        ]

    def __add__(self, other: DenseEvaluation) -> DenseEvaluation:
        """The evaluation of both sets of images together."""
        if not isinstance(other, DenseEvaluation):
            return NotImplemented
        if self.prior != other.prior:
            raise ValueError(
                f"evaluations under different priors do not add: {self.prior} and {other.prior}; use that of one "
                "training set for both"
            )
        return DenseEvaluation(self.prior, *(getattr(self, name) + getattr(other, name) for name in SUMS))

    def __radd__(self, other: int) -> DenseEvaluation:
        """Lets `sum(evaluations)` work."""
        return self if other == 0 else NotImplemented

    def __repr__(self) -> str:
        scores = self.scores()
        shown = ", ".join(f"{name} {percent(scores[name])}" for name in ("miou", "dice", "many", "medium", "few"))
        return f"DenseEvaluation({int(self.labelled.sum()):,} pixels, {shown})"

    def __str__(self) -> str:
        """A table, one row per class."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'class':<16}{'training':>10}{'pixels':>12}{'IoU':>8}{'Dice':>8}{'accuracy':>10}"
        for row in self.per_class:
            numbers = f"{percent(row.iou):>8}{percent(row.dice):>8}{percent(row.accuracy):>10}"
            yield f"{' '.join(row.name.split())[:15]:<16}{100 * row.share:>9.2f}%{row.pixels:>12}{numbers}"


def evaluate_dense(
    predictions: ArrayLike | Tensor, target: ArrayLike | Tensor, prior: Prior, *, ignore_index: int | None = None
) -> DenseEvaluation:
    """Evaluate predictions of a batch against its label maps; `prior` is that of the training pixels.

    predictions   logits or probabilities [N, K, ...], or predicted classes [N, ...] or [N, 1, ...]
    target        class indices [N, ...] or [N, 1, ...], or one-hot [N, K, ...]
    ignore_index  pixels with this target do not count

    >>> prior = Prior.from_counts([900, 90, 10])
    >>> result = evaluate_dense([[[0, 0], [1, 1]]], [[[0, 0], [0, 1]]], prior)
    >>> result
    DenseEvaluation(4 pixels, miou 58.3, dice 73.3, many 66.7, medium 50.0, few –)
    >>> result + result
    DenseEvaluation(8 pixels, miou 58.3, dice 73.3, many 66.7, medium 50.0, few –)
    """
    if not isinstance(prior, Prior):
        raise TypeError(f"prior is a {type(prior).__name__}: pass that of the training set, e.g. Prior.from_masks(...)")
    classes, outputs, given = prior.num_classes, _array(predictions), _array(target)
    of_outputs, of_target = _channels(outputs, given, classes)
    labels, chosen = (
        _indices(given, of_target, classes, "target"),
        _indices(outputs, of_outputs, classes, "predictions"),
    )
    if labels.shape != chosen.shape:
        raise ValueError(
            f"predictions of shape {tuple(outputs.shape)} do not fit a target of shape {tuple(given.shape)} with "
            f"{classes} classes: expected [N, {classes}, ...] or [N, ...] for [N, ...]"
        )
    if ignore_index is not None:
        kept = labels != ignore_index
        labels, chosen = labels[kept], chosen[kept]
    for values, what in ((labels, "target"), (chosen, "predictions")):
        wrong = values[(values < 0) | (values >= classes)]
        if len(wrong):
            raise ValueError(f"the {what} hold class {wrong[0]}: expected 0 to {classes - 1}, or pass ignore_index")
    sums = (np.bincount(values.reshape(-1), minlength=classes) for values in (labels[labels == chosen], labels, chosen))
    return DenseEvaluation(prior, *sums)


def _array(values: ArrayLike | Tensor) -> Any:
    """Tensors stay on their device: logits are turned into classes before they leave it."""
    return values.detach() if is_tensor(values) else np.asarray(values)


def _channels(outputs: Any, given: Any, classes: int) -> tuple[bool, bool]:
    """Whether dimension 1 of the predictions and of the target holds one value per class, or is a channel of class
    indices."""
    if outputs.ndim != given.ndim:
        return outputs.ndim > given.ndim, given.ndim > outputs.ndim
    if outputs.ndim < 3 or {outputs.shape[1], given.shape[1]} - {1, classes}:
        return False, False
    if outputs.shape == given.shape and outputs.shape[1] == classes > 1:  # or a label map with as many rows
        one_hot = bool((given.sum(1) == 1).all() and ((given == 0) | (given == 1)).all())
        return one_hot, one_hot
    return True, True


def _indices(values: Any, channels: bool, classes: int, what: str) -> NDArray[np.int64]:
    """Class indices [N, ...]."""
    if channels and values.shape[1] == classes > 1:
        return as_array(values.argmax(1)).astype(np.int64)
    array = as_array(values[:, 0] if channels and values.shape[1] == 1 else values)
    if array.dtype.kind not in "iub" and not (array == np.floor(array)).all():
        raise TypeError(f"the {what} of shape {tuple(values.shape)} are not whole: expected class indices [N, ...]")
    return array.astype(np.int64)


def _ratios(numerator: Any, denominator: Any) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(numerator / denominator, np.float64)
