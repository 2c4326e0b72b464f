"""Evaluate a classifier whose classes differ in size: `evaluate` and what it returns.

Everything is built from sums over items, so evaluations of parts add up with `+` to that of the whole, and classes can
be grouped in any way afterwards. Accuracies are fractions; tables print percent.

    balanced accuracy     mean over classes of the accuracy within the class
    many, medium, few     mean accuracy of the classes with > 100, 20 to 100, < 20 training items
    p(y)                  mean predicted probability of each class over the test items: the paper's marginal likelihood
    total variation       ½ Σ_j |p(y = j) − 1/K|: how far p(y) is from uniform
    ECE                   Σ_b (n_b/n) · |accuracy_b − confidence_b| over 15 equal bins of the largest probability
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import as_array, is_tensor
from equipoise.metrics.checks import check_distributions, check_labels, warn_of_probabilities
from equipoise.metrics.intervals import wilson_interval
from equipoise.prior import FloatArray, IntArray, Prior

if TYPE_CHECKING:
    from torch import Tensor

BINS = 15
ELEMENTS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class ClassResult:
    """One class: its training count (None if the prior was not counted), test items, accuracy, Wilson's 95 %
    interval."""

    index: int
    name: str
    count: int | None
    items: int
    correct: int
    accuracy: float | None
    low: float
    high: float


@dataclass(frozen=True)
class GroupResult:
    """A group of classes; `accuracy` and `ece` are None if the test set has no item of the group."""

    num_classes: int
    items: int
    accuracy: float | None
    ece: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What `evaluate` returns: sums over test items, and everything that follows from them.

    >>> result = evaluate([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]], [0, 0, 1], Prior.from_counts([500, 5]))
    >>> result.balanced_accuracy, result.few, result.medium
    (0.5, 0.0, None)
    >>> result.per_class[0].accuracy, result.correct.tolist(), result.items.tolist()
    (1.0, [2, 0], [2, 1])
    """

    prior: Prior  # of the training set
    correct: IntArray  # [K] items of the class that were predicted correctly
    items: IntArray  # [K] items of the class
    probability: FloatArray  # [K] predicted probability of the class, summed over all items
    bin_items: IntArray  # [K, 15] items of the class whose confidence falls into the bin
    bin_correct: IntArray  # [K, 15] of these, items predicted correctly
    bin_confidence: FloatArray  # [K, 15] their confidence, summed

    def __post_init__(self) -> None:
        for name in SUMS:
            getattr(self, name).flags.writeable = False

    @property
    def num_items(self) -> int:
        """How many test items were evaluated."""
        return int(self.items.sum())

    @property
    def top1(self) -> float:
        """The share of items predicted correctly; NaN if there are none."""
        return int(self.correct.sum()) / self.num_items if self.num_items else math.nan

    @property
    def balanced_accuracy(self) -> float:
        """Mean accuracy over the classes that occur in the test set; NaN if there are none."""
        accuracy = self._mean_accuracy(range(len(self.items)))
        return math.nan if accuracy is None else accuracy

    @property
    def many(self) -> float | None:
        """Mean accuracy of the classes with more than 100 training items; None if there is no such class."""
        return self.groups()["many"].accuracy

    @property
    def medium(self) -> float | None:
        """Mean accuracy of the classes with 20 to 100 training items; None if there is no such class."""
        return self.groups()["medium"].accuracy

    @property
    def few(self) -> float | None:
        """Mean accuracy of the classes with fewer than 20 training items; None if there is no such class."""
        return self.groups()["few"].accuracy

    def groups(self, many: int = 100, few: int = 20) -> dict[str, GroupResult]:
        """Accuracy and calibration of the classes with many, medium and few training items."""
        members = self.prior.groups(many, few) if self.prior.counted else {}
        return {name: self._group(members.get(name, [])) for name in ("many", "medium", "few")}

    @property
    def per_class(self) -> list[ClassResult]:
        """Every class, in column order."""
        return [self._class(index) for index in range(len(self.items))]

    @property
    def marginal(self) -> FloatArray:
        """p(y): mean predicted probability of each class, [K]; NaN if there are no items."""
        return self.probability / self.num_items if self.num_items else np.full(len(self.items), np.nan)

    @property
    def total_variation(self) -> float:
        """Distance of p(y) from uniform: 0 is uniform, 1 − 1/K puts all on one class."""
        return float(np.abs(self.marginal - 1 / len(self.items)).sum() / 2)

    @property
    def ece(self) -> float:
        """Expected calibration error over all items; NaN if there are none."""
        error = self._calibration_error(range(len(self.items)))
        return math.nan if error is None else error

    def scores(self, many: int = 100, few: int = 20) -> dict[str, float]:
        """Every number by name, as fractions from 0 to 1, for a logger; NaN if undefined (an empty group, no item)."""
        groups = {name: group.accuracy for name, group in self.groups(many, few).items()}
        found = {"top1": self.top1, "balanced": self.balanced_accuracy}
        found |= {name: math.nan if accuracy is None else accuracy for name, accuracy in groups.items()}
        return found | {"ece": self.ece, "total_variation": self.total_variation}

    def __add__(self, other: Evaluation) -> Evaluation:
        """The evaluation of both sets of items together."""
        if not isinstance(other, Evaluation):
            return NotImplemented
        if self.prior != other.prior:
            raise ValueError(
                f"evaluations under different priors do not add: {self.prior} and {other.prior}; use that of one "
                "training set for both"
            )
        sums = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        return Evaluation(self.prior, **sums)

    def __radd__(self, other: int) -> Evaluation:
        """Lets `sum(evaluations)` work."""
        return self if other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in SUMS)
        return same and self.prior == other.prior

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """The sums as plain lists, ready for JSON."""
        return {"prior": self.prior.to_json()} | {name: getattr(self, name).tolist() for name in SUMS}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Evaluation:
        """The evaluation that `to_dict` wrote."""
        sums: dict[str, Any] = {name: np.asarray(content[name], dtype=kind) for name, kind in SUMS.items()}
        return cls(Prior.from_json(content["prior"]), **sums)

    def __repr__(self) -> str:
        groups = ", ".join(f"{name} {percent(group.accuracy)}" for name, group in self.groups().items())
        return f"Evaluation({self.num_items} items, top-1 {percent(self.top1)}, {groups})"

    def __str__(self) -> str:
        """A table, with one row per class for up to 20 classes (`per_class` has them all)."""
        return "\n".join(self._lines())

    # ---------------------------------------------------------------- inside

    def _mean_accuracy(self, classes: Any) -> float | None:
        index = np.asarray(list(classes), np.int64)
        index = index[self.items[index] > 0]
        return float((self.correct[index] / self.items[index]).mean()) if len(index) else None

    def _calibration_error(self, classes: Any) -> float | None:
        index = np.asarray(list(classes), np.int64)
        total = int(self.items[index].sum())
        gap = np.abs(self.bin_correct[index].sum(axis=0) - self.bin_confidence[index].sum(axis=0))
        return float(gap.sum() / total) if total else None

    def _group(self, classes: list[int]) -> GroupResult:
        items = int(self.items[classes].sum())
        return GroupResult(len(classes), items, self._mean_accuracy(classes), self._calibration_error(classes))

    def _class(self, index: int) -> ClassResult:
        items, correct = int(self.items[index]), int(self.correct[index])
        low, high = wilson_interval(correct, items)
        return ClassResult(
            index=index,
            name=self.prior.name(index),
            count=int(self.prior.counts[index]) if self.prior.counted else None,
            items=items,
            correct=correct,
            accuracy=correct / items if items else None,
            low=low,
            high=high,
        )

    def _lines(self) -> Iterator[str]:
        low, high = wilson_interval(int(self.correct.sum()), self.num_items)
        yield f"{'':<12}{'classes':>8}{'items':>9}{'accuracy':>10}{'ECE':>8}"
        whole = GroupResult(len(self.items), self.num_items, self.top1, self.ece)
        for name, group in ({"all": whole} | self.groups()).items():
            numbers = f"{percent(group.accuracy):>10}{percent(group.ece):>8}"
            yield f"{name:<12}{group.num_classes:>8}{group.items:>9}{numbers}"
        if self.num_items:
            yield f"top-1 95 % interval {percent(low)} to {percent(high)}"
            yield f"balanced accuracy {percent(self.balanced_accuracy)}"
            yield f"p(y) differs from uniform by {percent(self.total_variation)} % (total variation)"
        if len(self.items) <= 20:
            yield f"{'class':<12}{'trained on':>10}{'items':>9}{'accuracy':>10}  95 % interval"
            for row in self.per_class:
                count = "–" if row.count is None else row.count
                interval = f"{percent(row.low)} to {percent(row.high)}" if row.items else "–"
                yield f"{short(row.name):<12}{count:>10}{row.items:>9}{percent(row.accuracy):>10}  {interval}"


_KINDS = {"FloatArray": np.float64, "IntArray": np.int64}
SUMS = {f.name: _KINDS[str(f.type)] for f in dataclasses.fields(Evaluation) if str(f.type) in _KINDS}  # dtype by name


def evaluate(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    prior: Prior,
    *,
    probabilities: bool = False,
    ignore_index: int | None = None,
) -> Evaluation:
    """Evaluate predictions [N, K] against class indices [N]; `prior` is that of the training set.

    Dense predictions [N, K, H, W] are evaluated pixel by pixel against [N, H, W]; items whose target is `ignore_index`
    do not count. The first argument holds logits or, with `probabilities=True`, probabilities; if all rows are
    distributions without it, a warning says so. Pass them as you would serve them: unchanged after a balanced loss;
    after a plain loss adjusted, if you adjust them.

    >>> prior = Prior.from_counts([500, 5], class_names=["cat", "owl"])
    >>> result = evaluate([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]], [0, 0, 1], prior)
    >>> result
    Evaluation(3 items, top-1 66.7, many 100.0, medium –, few 0.0)
    >>> result + result
    Evaluation(6 items, top-1 66.7, many 100.0, medium –, few 0.0)
    """
    outputs = logits if is_tensor(logits) else np.asarray(logits)
    labels = as_array(target)
    if outputs.ndim > 2:
        outputs, labels = _flattened(outputs, labels)
    if ignore_index is not None:
        kept = np.flatnonzero(labels != ignore_index)
        outputs, labels = outputs[kept], labels[kept]
    _check_inputs(outputs, prior)
    labels = check_labels(labels, len(outputs), prior.num_classes, "target")
    if not probabilities:
        warn_of_probabilities(outputs)
    rows = max(1, ELEMENTS_AT_ONCE // prior.num_classes)
    parts = [
        _evaluate_rows(outputs[start : start + rows], labels[start : start + rows], prior, probabilities, start)
        for start in range(0, max(len(labels), 1), rows)
    ]
    return sum(parts[1:], parts[0])


def _flattened(outputs: Tensor | NDArray[Any], labels: NDArray[Any]) -> tuple[Tensor | NDArray[Any], NDArray[Any]]:
    """Dense predictions [N, K, ...] and their label maps [N, ...] as rows."""
    if labels.shape != (len(outputs), *outputs.shape[2:]):
        raise ValueError(
            f"target has shape {labels.shape}, logits {tuple(outputs.shape)}: expected [N, ...] for [N, K, ...]"
        )
    last = np.moveaxis(outputs, 1, -1) if isinstance(outputs, np.ndarray) else outputs.movedim(1, -1)
    return last.reshape(-1, outputs.shape[1]), labels.reshape(-1)


def _evaluate_rows(
    outputs: Tensor | NDArray[Any], labels: NDArray[Any], prior: Prior, probabilities: bool, first: int
) -> Evaluation:
    import torch

    if isinstance(outputs, np.ndarray):
        outputs = torch.from_numpy(np.array(outputs))  # a copy: the rows may be part of a read-only memory map
    scores = outputs.detach()
    scores = scores.double() if scores.dtype == torch.float64 or not scores.is_floating_point() else scores.float()
    _check_values(scores, first)
    if probabilities:
        check_distributions(scores, outputs.dtype, first, instead="pass logits without probabilities=True")
    chances = scores if probabilities else scores.softmax(1)
    confidence, predicted = (value.cpu().numpy() for value in chances.max(1)) if len(scores) else (labels, labels)
    right = predicted == labels
    cell, shape = labels * BINS + bins_of(confidence.astype(np.float64)), (prior.num_classes, BINS)

    def per_cell(weight: Any = None) -> Any:
        return np.bincount(cell, weight, minlength=prior.num_classes * BINS).reshape(shape)

    bin_items, bin_correct = per_cell(), per_cell(right.astype(np.float64)).astype(np.int64)
    return Evaluation(
        prior=prior,
        correct=bin_correct.sum(axis=1),
        items=bin_items.sum(axis=1),
        probability=chances.sum(0, dtype=torch.float64).cpu().numpy(),
        bin_items=bin_items,
        bin_correct=bin_correct,
        bin_confidence=per_cell(confidence.astype(np.float64)),
    )


def bins_of(shares: FloatArray) -> IntArray:
    """The bin of each share, of 15 equal ones from 0 to 1; a bin holds its upper end.

    >>> bins_of(np.array([0.0, 1 / 15, 0.1, 1.0])).tolist()
    [0, 0, 1, 14]
    """
    return np.clip(np.ceil(shares * BINS).astype(np.int64) - 1, 0, BINS - 1)


def _check_inputs(outputs: Tensor | NDArray[Any], prior: Prior) -> None:
    if not isinstance(prior, Prior):
        raise TypeError(
            f"prior is a {type(prior).__name__}: pass that of the training set, e.g. Prior.from_counts(...)"
        )
    if outputs.ndim != 2:
        raise ValueError(f"logits have shape {tuple(outputs.shape)}, expected [N, K]: one row per item")
    if outputs.shape[1] != prior.num_classes:
        raise ValueError(
            f"prior has {prior.num_classes} classes, logits have {outputs.shape[1]}: "
            f"build it with num_classes={outputs.shape[1]}"
        )


def _check_values(scores: Tensor, first: int) -> None:
    bad = scores.isnan() | (scores == math.inf)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        value = scores[row, column].item()
        raise ValueError(f"row {first + row}, column {column} of the logits is {value}: predictions must be finite")
    nowhere = (scores == -math.inf).all(1)
    if nowhere.any():
        row = int(nowhere.nonzero()[0])
        raise ValueError(f"row {first + row} of the logits is -inf for every class: leave one of them possible")


def mean_of_known(values: FloatArray) -> float:
    """The mean of the values that are not NaN; NaN if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def short(name: str) -> str:
    """A class name on one line, cut to the eleven characters that a printed table has room for.

    >>> short("cat"), short("cardiomegaly")
    ('cat', 'cardiomega…')
    """
    words = " ".join(name.split())
    return words if len(words) <= 11 else words[:10] + "…"


def percent(value: float | None) -> str:
    """A share in percent with one digit, or a dash if there is none.

    Halves are rounded up, from six digits of the share, so that the number does not depend on the order of summation
    and is the same in page.js and the charts.

    >>> percent(0.8325), percent(333 / 400 - 1e-12), percent(None)
    ('83.3', '83.3', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{tenths(value) / 10:.1f}"


def tenths(value: float) -> int:
    """A share in tenths of a percent, as `percent` shows it; halves are rounded away from 0."""
    size = math.floor(1000 * round(abs(value), 6) + 0.500001)
    return size if value >= 0 else -size
