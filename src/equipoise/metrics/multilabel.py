"""Evaluate a classifier that may give an item several labels: `evaluate_multilabel` and what it returns.

Everything is built from sums and from stored scores, so evaluations of parts (batches, ranks, files) add up with `+` to
that of the whole. Scores are fractions.

    mAP                   mean of average precision over the classes that have positives; also over the head, medium
                          and tail classes (> 100, 20 to 100, < 20 training items). AP ranks the items of one class:
                          adding a constant to a class's logits does not change it, so it cannot see a prior
    micro-AP              average precision over all (item, class) pairs together: sees whether classes are comparable
    F1                    2 · hits / (positives + predicted) at a threshold: mean over classes (macro), over all pairs
                          (micro), mean over items (samples). Also sees a prior
    ranking loss          share of (positive, negative) pairs of an item in the wrong order; ties are wrong
    coverage              share of the labels, best first, that are needed to include all positives of an item
    LRAP                  label ranking average precision: precision at each positive of an item, averaged
    ECE                   expected calibration error per class over 15 bins of the probability, averaged over classes

A missing label (−1 or NaN) is left out of everything. Up to 2²⁵ (item, class) pairs the scores are kept and AP is
exact; beyond that, they become a histogram of 4,096 bins per class, and `map_error` and `micro_ap_error` bound the
error of AP.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import log_odds, sigmoid
from equipoise.metrics.average_precision import BINS as SCORE_BINS
from equipoise.metrics.average_precision import bin_of, binned_average_precision, known_ranking
from equipoise.metrics.checks import warn_of_probabilities
from equipoise.metrics.evaluation import BINS, bins_of, mean_of_known, percent, short
from equipoise.metrics.multilabel_checks import check_multilabel, check_thresholds
from equipoise.metrics.resampling import Resampled, interval_of, resample
from equipoise.prior import FloatArray, IntArray, Prior

if TYPE_CHECKING:
    from torch import Tensor

EXACT_PAIRS = 1 << 25
GROUPS = {"head": "many", "medium": "medium", "tail": "few"}  # this literature's names for those of Prior.groups
RESAMPLES = 200
BLOCK = 1 << 15  # (item, class) pairs


@dataclass(frozen=True)
class LabelResult:
    """One class: its training count (None if the prior was not counted) and its scores (None if undefined)."""

    index: int
    name: str
    count: int | None
    labelled: int
    positives: int
    average_precision: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    ece: float | None


@dataclass(frozen=True, eq=False)
class KeptScores:
    """Every score: arrays [n, K], and 1, 0 or −1 (missing) beside them, in the order of the items.

    Parts are joined once they are as large as the part before them, so that the scores of many small batches are copied
    a few times each, not once per batch.
    """

    parts: tuple[tuple[NDArray[Any], NDArray[np.int8]], ...]

    @property
    def size(self) -> int:
        """How many (item, class) pairs there are."""
        return sum(target.size for _, target in self.parts)

    def joined(self) -> tuple[NDArray[Any], NDArray[np.int8]]:
        """All scores and labels, [N, K] each."""
        return _joined(self.parts)

    def __add__(self, other: KeptScores) -> KeptScores:
        parts = list(self.parts)
        for part in other.parts:
            parts.append(part)
            while len(parts) > 1 and len(parts[-2][0]) <= len(parts[-1][0]):
                parts[-2:] = [_joined(parts[-2:])]
        return KeptScores(tuple(parts))

    def average_precisions(self) -> tuple[FloatArray, FloatArray]:
        """AP per class and, last, over all pairs; each with its error, 0 (NaN without positives)."""
        scores, target = self.joined()
        columns: list[int | slice] = [*range(scores.shape[1]), slice(None)]
        values = np.array([known_ranking(scores[:, c], target[:, c]).average_precision() for c in columns])
        return values, 0 * values


@dataclass(frozen=True, eq=False)
class BinnedScores:
    """Histograms [K, 4096] of the scores of positives and of negatives."""

    positives: IntArray
    negatives: IntArray

    @classmethod
    def of(cls, kept: KeptScores, probabilities: bool) -> BinnedScores:
        values, target = kept.joined()
        scores = log_odds(values.astype(np.float64)) if probabilities else values.astype(np.float64)
        classes = scores.shape[1]
        place = bin_of(scores) + SCORE_BINS * np.arange(classes)
        counts = [np.bincount(place[target == value], minlength=classes * SCORE_BINS) for value in (1, 0)]
        return cls(*(count.reshape(classes, SCORE_BINS) for count in counts))

    def __add__(self, other: BinnedScores) -> BinnedScores:
        return BinnedScores(self.positives + other.positives, self.negatives + other.negatives)

    def average_precisions(self) -> tuple[FloatArray, FloatArray]:
        """AP per class and, last, over all pairs; each with its largest possible error."""
        parts = [np.concatenate([one, one.sum(0, keepdims=True)]) for one in (self.positives, self.negatives)]
        return binned_average_precision(*parts)


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelEvaluation:
    """What `evaluate_multilabel` returns: sums over items, scores, and everything that follows from them.

    >>> prior = Prior.from_counts([500, 5], total=600)
    >>> result = evaluate_multilabel([[2.0, -1.0], [1.0, 0.5]], [[1, 0], [1, 1]], prior)
    >>> result.scores()["map"], result.positives.tolist(), result.hits.tolist()
    (1.0, [2, 1], [2, 1])
    """

    prior: Prior  # of the training set
    thresholds: FloatArray  # [K], on the scale of what was evaluated: logits, or probabilities
    probabilities: bool  # whether probabilities were evaluated rather than logits
    labelled: IntArray  # [K] items whose label of the class is known
    positives: IntArray  # [K] items that have the class
    predicted: IntArray  # [K] items that reach the threshold
    hits: IntArray  # [K] of these, positive items
    bin_items: IntArray  # [K, 15] labelled items by predicted probability
    bin_positives: IntArray  # [K, 15] of these, items that have the class
    bin_probability: FloatArray  # [K, 15] their predicted probability, summed
    rows: FloatArray  # [8] over items: number; labelled, F1; with both kinds, ranking loss; positives, coverage, LRAP
    scores_: KeptScores | BinnedScores  # every score, or histograms of them

    # ---------------------------------------------------------------- numbers

    @property
    def num_items(self) -> int:
        """How many test items were judged."""
        return int(self.rows[0])

    @property
    def binned(self) -> bool:
        """Whether AP comes from histograms: `map_error` bounds its error, and there are no intervals."""
        return isinstance(self.scores_, BinnedScores)

    def scores(self, many: int = 100, few: int = 20) -> dict[str, float]:
        """Every number by name, from 0 to 1; NaN if undefined (an empty group, no positive).

        Classes with more than `many` training items are the head, those with fewer than `few` the tail.
        """
        members = self.members(many, few)
        values, errors = self.scores_.average_precisions()
        found = {"map": mean_of_known(values[:-1]), "map_error": mean_of_known(errors[:-1])}
        found |= {f"map_{name}": mean_of_known(values[:-1][index]) for name, index in members}
        found |= {"micro_ap": float(values[-1]), "micro_ap_error": float(errors[-1])}
        per_class = np.array(
            [_ratio(*pair) for pair in zip(2 * self.hits, self.positives + self.predicted, strict=True)]
        )
        per_class[self.positives == 0] = math.nan
        found["f1_macro"] = mean_of_known(per_class)
        found |= {f"f1_{name}": mean_of_known(per_class[index]) for name, index in members}
        hits, positives, predicted = (int(sums.sum()) for sums in (self.hits, self.positives, self.predicted))
        found["f1_micro"] = _ratio(2 * hits, positives + predicted)
        found["f1_samples"] = _ratio(self.rows[2], self.rows[1])
        found |= {"precision_micro": _ratio(hits, predicted), "recall_micro": _ratio(hits, positives)}
        found["ranking_loss"] = _ratio(self.rows[4], self.rows[3])
        found["coverage"] = _ratio(self.rows[6], self.rows[5])
        found["lrap"] = _ratio(self.rows[7], self.rows[5])
        found["ece"] = mean_of_known(self._calibration_errors())
        return found

    @property
    def per_class(self) -> list[LabelResult]:
        """Every class, in column order."""
        values, _ = self.scores_.average_precisions()
        errors = self._calibration_errors()
        return [self._class(index, values[index], errors[index]) for index in range(self.prior.num_classes)]

    def intervals(self, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, tuple[float, float] | None]:
        """95 % intervals of mAP (all and by group), micro-AP and F1: a seeded bootstrap over items.

        Every value is None once scores are binned, as the items are no longer available.
        """
        names = ["map", *(f"map_{name}" for name, _ in self.members()), "micro_ap", "f1_macro", "f1_micro"]
        drawn = self.resampled(resamples=resamples, seed=seed)
        if drawn is None:
            return dict.fromkeys(names)
        groups = [drawn.mean_precision(members) for _, members in self.members()]
        ends = [drawn.mean_precision(), *groups, drawn.micro_precision, drawn.mean_f1(), drawn.micro_f1]
        return {name: interval_of(values) for name, values in zip(names, ends, strict=True)}

    def resampled(self, *, resamples: int = RESAMPLES, seed: int = 0) -> Resampled | None:
        """The scores of every class over a seeded bootstrap of the items; None once scores are binned."""
        kept = self.scores_
        if isinstance(kept, BinnedScores) or not self.num_items:
            return None
        return resample(*kept.joined(), self.thresholds, resamples=resamples, seed=seed)

    # ---------------------------------------------------------------- adding up

    def __add__(self, other: MultilabelEvaluation) -> MultilabelEvaluation:
        """The evaluation of both sets of items together."""
        if not isinstance(other, MultilabelEvaluation):
            return NotImplemented
        if self.prior != other.prior:
            raise ValueError(
                f"evaluations under different priors do not add: {self.prior} and {other.prior}; use that of one "
                "training set for both"
            )
        if self.probabilities != other.probabilities or not np.array_equal(self.thresholds, other.thresholds):
            raise ValueError(
                "evaluations at different thresholds, or of logits and of probabilities, do not add: make both alike"
            )
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        scores = _together(self.scores_, other.scores_, self.probabilities)
        return MultilabelEvaluation(self.prior, self.thresholds, self.probabilities, **sums, scores_=scores)

    def __radd__(self, other: int) -> MultilabelEvaluation:
        """Lets `sum(evaluations)` work."""
        return self if other == 0 else NotImplemented

    # ---------------------------------------------------------------- printed

    def __repr__(self) -> str:
        scores = self.scores()
        shown = ", ".join(f"{name} {percent(scores[name])}" for name in ("map", "micro_ap", "f1_macro", "f1_micro"))
        return f"MultilabelEvaluation({self.num_items} items, {shown})"

    def __str__(self) -> str:
        """A table, with one row per class for up to 20 classes (`per_class` has them all)."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        scores, intervals = self.scores(), self.intervals()
        yield f"{self.num_items} items, {self.prior.num_classes} classes"
        for name, value in scores.items():
            if name.endswith("_error") and not self.binned:
                continue
            ends = intervals.get(name)
            shown = "" if ends is None else f"  {percent(ends[0])} to {percent(ends[1])}"
            yield f"{name:<16}{percent(value):>7}{shown}"
        if self.binned:
            yield f"no intervals: with more than {EXACT_PAIRS:,} scores, only a histogram is kept"
        if self.prior.num_classes <= 20:
            yield f"{'class':<12}{'trained on':>10}{'positives':>10}{'AP':>7}{'precision':>10}{'recall':>8}{'F1':>7}"
            for row in self.per_class:
                count = "–" if row.count is None else row.count
                numbers = (row.average_precision, row.precision, row.recall, row.f1)
                shown = "".join(f"{percent(v):>{w}}" for v, w in zip(numbers, (7, 10, 8, 7), strict=True))
                yield f"{short(row.name):<12}{count:>10}{row.positives:>10}{shown}"

    # ---------------------------------------------------------------- inside

    def members(self, many: int = 100, few: int = 20) -> list[tuple[str, IntArray]]:
        """The classes of the head, the medium group and the tail; all empty if the prior was not counted."""
        groups = self.prior.groups(many, few) if self.prior.counted else {}
        return [(name, np.asarray(groups.get(group, []), np.int64)) for name, group in GROUPS.items()]

    def _calibration_errors(self) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.abs(self.bin_positives - self.bin_probability).sum(1) / self.labelled)

    def _class(self, index: int, precision: float, error: float) -> LabelResult:
        hits, positives, predicted = (int(sums[index]) for sums in (self.hits, self.positives, self.predicted))
        return LabelResult(
            index=index,
            name=self.prior.name(index),
            count=int(self.prior.counts[index]) if self.prior.counted else None,
            labelled=int(self.labelled[index]),
            positives=positives,
            average_precision=_or_none(precision),
            precision=_or_none(_ratio(hits, predicted)),
            recall=_or_none(_ratio(hits, positives)),
            f1=_or_none(_ratio(2 * hits, positives + predicted)) if positives else None,
            ece=_or_none(error),
        )


_SUMS = [
    f.name for f in fields(MultilabelEvaluation) if str(f.type) in ("IntArray", "FloatArray") and f.name != "thresholds"
]


def evaluate_multilabel(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    prior: Prior,
    *,
    probabilities: bool = False,
    threshold: float | ArrayLike | Tensor = 0.5,
) -> MultilabelEvaluation:
    """Evaluate predictions [N, K] against labels [N, K] of 0 and 1; −1 or NaN is an unknown label.

    `prior` is that of the training set. The first argument holds logits or, with `probabilities=True`, probabilities;
    if all values are from 0 to 1 without it, a warning says so. `threshold` is the probability from which a class is
    predicted, one for all classes or one per class. 0.5 is logit 0. If every label is missing, as may happen in a
    batch, all scores are NaN.

    threshold   probability from which a class is predicted: one number, or one per class

    >>> prior = Prior.from_counts([500, 5], total=600, class_names=["cat", "owl"])
    >>> result = evaluate_multilabel([[2.0, -1.0], [1.0, 0.5], [-3.0, -2.0]], [[1, 0], [1, 1], [0, -1]], prior)
    >>> result
    MultilabelEvaluation(3 items, map 100.0, micro_ap 100.0, f1_macro 100.0, f1_micro 100.0)
    >>> result.scores()["map_tail"], (result + result).num_items
    (1.0, 6)
    """
    if not isinstance(prior, Prior):
        raise TypeError(f"prior is a {type(prior).__name__}: pass that of the training set, e.g. Prior.from_multilabel")
    scores, truth = check_multilabel(logits, target, probabilities=probabilities, num_classes=prior.num_classes)
    if not probabilities:
        warn_of_probabilities(scores, several=True)
    limits = check_thresholds(threshold, prior.num_classes, probabilities=probabilities)
    known, positive, chosen = truth >= 0, truth == 1, scores >= limits
    chance = scores.astype(np.float64) if probabilities else sigmoid(scores.astype(np.float64))
    bins = bins_of(chance) + BINS * np.arange(prior.num_classes)

    def per_bin(of: NDArray[np.bool_], weight: FloatArray | None = None) -> Any:
        weights = None if weight is None else weight[of]
        return np.bincount(bins[of], weights, minlength=prior.num_classes * BINS).reshape(-1, BINS)

    kept: KeptScores | BinnedScores = KeptScores(((scores, truth),))
    if truth.size > EXACT_PAIRS:
        kept = BinnedScores.of(KeptScores(((scores, truth),)), probabilities)
    return MultilabelEvaluation(
        prior,
        limits,
        probabilities,
        labelled=known.sum(0),
        positives=positive.sum(0),
        predicted=(known & chosen).sum(0),
        hits=(positive & chosen).sum(0),
        bin_items=per_bin(known),
        bin_positives=per_bin(positive),
        bin_probability=per_bin(known, chance),
        rows=_in_blocks(scores, truth, chosen),
        scores_=kept,
    )


def _in_blocks(scores: NDArray[Any], truth: NDArray[np.int8], chosen: NDArray[np.bool_]) -> FloatArray:
    """`_row_sums` over blocks of rows that are small enough for the cache."""
    step = max(1, BLOCK // max(truth.shape[1], 1))
    starts = range(0, max(len(truth), 1), step)
    blocks = [slice(start, start + step) for start in starts]
    parts = [_row_sums(scores[rows], truth[rows], chosen[rows]) for rows in blocks]
    return np.asarray(np.sum(parts, axis=0))


def _row_sums(scores: NDArray[Any], truth: NDArray[np.int8], chosen: NDArray[np.bool_]) -> FloatArray:
    """The sums over items that `MultilabelEvaluation.rows` holds."""
    known, positive = truth >= 0, truth == 1
    number = positive.sum(1)
    both = number + (known & chosen).sum(1)
    f1 = np.where(both > 0, 2 * (positive & chosen).sum(1) / np.maximum(both, 1), 0.0)
    ranked = np.where(known, scores, -np.inf)  # unknown labels come last and are neither kind
    order = np.argsort(-ranked, axis=1, kind="stable")
    value, yes, no = (np.take_along_axis(part, order, 1) for part in (ranked, positive, known & ~positive))
    place = np.arange(value.shape[1])
    last = np.concatenate([value[:, 1:] != value[:, :-1], np.ones((len(value), 1), bool)], axis=1)
    end = np.minimum.accumulate(np.where(last, place, value.shape[1])[:, ::-1], axis=1)[:, ::-1]  # for a run of ties
    hits, misses = (np.take_along_axis(np.cumsum(part, 1), end, 1) for part in (yes, no))
    negatives = no.sum(1)
    rank = hits + misses
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = np.where(yes, misses, 0).sum(1) / (number * negatives)
        lrap = np.where(yes, hits / rank, 0.0).sum(1) / number
        cover = np.where(yes, rank, 0).max(1, initial=0) / known.sum(1)
    some, pairs, labelled = number > 0, (number > 0) & (negatives > 0), known.any(1)
    counted = [len(truth), labelled.sum(), f1.sum(), pairs.sum(), loss[pairs].sum()]
    return np.array([*counted, some.sum(), cover[some].sum(), lrap[some].sum()], np.float64)


def _joined(parts: Sequence[tuple[NDArray[Any], NDArray[np.int8]]]) -> tuple[NDArray[Any], NDArray[np.int8]]:
    """Scores and labels of all parts; one part is not copied."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([scores for scores, _ in parts]), np.concatenate([target for _, target in parts])


def _together(
    one: KeptScores | BinnedScores, other: KeptScores | BinnedScores, probabilities: bool
) -> KeptScores | BinnedScores:
    kept = [part for part in (one, other) if isinstance(part, KeptScores)]
    if len(kept) == 2 and kept[0].size + kept[1].size <= EXACT_PAIRS:
        return kept[0] + kept[1]
    one, other = (p if isinstance(p, BinnedScores) else BinnedScores.of(p, probabilities) for p in (one, other))
    return one + other


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
