"""The numbers of the page for several labels per item: headline scores with intervals, and rows for the charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import log_odds, sigmoid
from equipoise.metrics.calibration import Bin, equal_mass_bins
from equipoise.metrics.evaluation import percent
from equipoise.metrics.multilabel import KeptScores, LabelResult, MultilabelEvaluation
from equipoise.metrics.multilabel_judging import LOG_ODDS, JudgedMultilabel
from equipoise.metrics.resampling import Resampled, interval_of
from equipoise.prior import FloatArray, IntArray, Prior
from equipoise.report.class_table import as_tenths, with_interval
from equipoise.report.groups import USUAL, Cuts
from equipoise.report.multilabel_specs import GROUPS
from equipoise.report.page_data import apart, calibration_rows, cut, interval, numbers, one_digit, paired, rounded

HEADLINES = (
    ("map", "mAP", ""),
    ("map_head", "mAP head", "many"),
    ("map_medium", "mAP medium", "medium"),
    ("map_tail", "mAP tail", "few"),
    ("micro_ap", "micro-AP", ""),
    ("f1_macro", "mean F1", ""),
    ("f1_micro", "micro-F1", ""),
    ("ece", "ECE", ""),
)
BIN_SUMS = ("items", "positives", "probability")
MOST_RESAMPLED = 1 << 22  # (item, label) pairs: beyond, drawing the items again takes minutes


@dataclass(frozen=True)
class Model:
    """One model of the page: what was evaluated, its scores, and its bootstrap (None if there are too many items)."""

    name: str
    judged: JudgedMultilabel
    scores: dict[str, float]
    rows: list[LabelResult]
    drawn: Resampled | None
    notes: tuple[str, ...] = ()
    cuts: Cuts = USUAL
    paths: tuple[str, ...] | None = None  # of the images, where they are known

    @property
    def evaluation(self) -> MultilabelEvaluation:
        return self.judged.evaluation

    @property
    def members(self) -> list[tuple[str, IntArray]]:
        """The classes of the head, the medium group and the tail."""
        return self.evaluation.members(self.cuts.many, self.cuts.few)


@dataclass(frozen=True)
class Score:
    """A number with its 95 % interval, None if items were not resampled."""

    value: float
    low: float | None
    high: float | None


def as_models(
    results: Mapping[str, JudgedMultilabel], notes: Mapping[str, Sequence[str]], resamples: int, cuts: Cuts = USUAL
) -> list[Model]:
    if not results:
        raise ValueError("there is nothing to report: give at least one model")
    models = []
    for name, judged in results.items():
        if not isinstance(judged, JudgedMultilabel):
            raise TypeError(f"{name!r} is a {type(judged).__name__}: pass what judge_multilabel returns")
        evaluation = judged.evaluation
        if not evaluation.num_items:
            raise ValueError(f"{name!r} was judged on no items: there is nothing to report")
        few = evaluation.num_items * evaluation.prior.num_classes <= MOST_RESAMPLED
        drawn = evaluation.resampled(resamples=resamples) if few else None
        scores, rows = evaluation.scores(cuts.many, cuts.few), evaluation.per_class  # once: both rank all scores
        models.append(Model(str(name), judged, scores, rows, drawn, tuple(notes.get(name, ())), cuts))
    prior = models[0].judged.prior
    if not prior.counted:
        raise ValueError("the prior was stated as probabilities: a report needs counts, Prior.from_counts(...)")
    wrong = next((model for model in models if model.judged.prior != prior), None)
    if wrong is not None:
        raise ValueError(
            f"{wrong.name!r} was judged with another training prior than {models[0].name!r}: "
            "judge all with the prior of one training set"
        )
    return models


def notes_of(models: list[Model], drawn: list[int], num_classes: int) -> list[str]:
    """Notes on the numbers."""
    notes = [f"{model.name}: {note}" for model in models for note in model.notes]
    first = models[0].evaluation
    if any(not np.array_equal(model.evaluation.positives, first.positives) for model in models):
        notes.append("The models were evaluated on different test items, which may explain small differences.")
    empty = int((first.positives == 0).sum())
    if empty:
        notes.append(f"{empty:,} of {num_classes:,} classes have no positive test item, and are left out of means.")
    missing = first.num_items * num_classes - int(first.labelled.sum())
    if missing:
        notes.append(f"{missing:,} unknown labels are left out.")
    if any(model.evaluation.binned for model in models):
        notes.append("Average precision is computed from histograms, as there are too many scores to keep.")
    if any(model.drawn is None for model in models):
        notes.append("There are no intervals, as there are too many scores to resample.")
    if any(model.judged.together is None for model in models):
        notes.append("Misses beside other classes are not shown, as there are too many classes.")
    if len(drawn) < num_classes:
        shown = f"{len(drawn):,} of {num_classes:,}, evenly spaced from head to tail"
        notes.append(f"Charts of classes show {shown}; all numbers cover all classes.")
    return notes


def threshold_in_words(threshold: ArrayLike) -> str:
    """When a label is predicted, for a note: `threshold` is a probability for all classes, or one per class.

    >>> threshold_in_words(0.5), threshold_in_words([0.125, 0.4])
    ('a label is predicted at a probability of 50 % or more.', 'each class has its own threshold, from 12.5 % to 40 %.')
    """
    low, high = (f"{100 * float(end):.3g} %" for end in (np.min(threshold), np.max(threshold)))
    if low == high:
        return f"a label is predicted at a probability of {low} or more."
    return f"each class has its own threshold, from {low} to {high}."


def headlines(model: Model) -> dict[str, Score | None]:
    """mAP, by group, micro-AP and F1, each with its 95 % interval, and ECE; None for an empty group."""
    found: dict[str, Score | None] = {}
    for key, _, _ in HEADLINES:
        draws = draws_of(model, key)
        ends = None if draws is None else interval_of(draws)
        value = model.scores[key]
        found[key] = None if np.isnan(value) else Score(value, *(ends or (None, None)))
    return found


def draws_of(model: Model, key: str) -> FloatArray | None:
    """A headline number in every draw of the items; None if there is none."""
    drawn = model.drawn
    if drawn is None or key == "ece":
        return None
    if key in ("micro_ap", "f1_micro"):
        return drawn.micro_precision if key == "micro_ap" else drawn.micro_f1
    means = drawn.mean_f1 if key == "f1_macro" else drawn.mean_precision
    return means(dict(model.members).get(key.removeprefix("map_")))


def model_data(model: Model, drawn: list[int]) -> dict[str, Any]:
    """A model's headline numbers, `columns` with a value per drawn class, and the `rows` of the other charts."""
    judged, rows = model.judged, model.rows
    precision, f1 = ([getattr(row, name) for row in rows] for name in ("average_precision", "f1"))
    ends = {name: _ends(model, part) for name, part in (("precision", "precision"), ("f1", "f1"))}
    best = judged.f1_at()
    most = np.where(np.isnan(best).all(1), np.nan, LOG_ODDS[np.nan_to_num(best, nan=-1.0).argmax(1)])
    columns = {
        "items": model.evaluation.positives.astype(np.float64),
        "precision": np.array(precision, np.float64),
        "f1": np.array(f1, np.float64),
        **{f"{name}_{end}": ends[name][:, side] for name in ends for side, end in enumerate(("low", "high"))},
        "used": _log_odds(model.evaluation),
        "best": most,
    }
    curve = _curve(model)
    return {
        "name": cut(model.name, 200),
        "headline": {
            key: {name: None if share is None else rounded(share) for name, share in vars(value).items()}
            if value
            else None
            for key, value in headlines(model).items()
        },
        "columns": {name: numbers(values[drawn]) for name, values in columns.items()},
        "table": _table(model.evaluation, drawn),
        "curve": {name: numbers(values) for name, values in curve.items()},
        "ece": {name: _group_ece(model, name) for name in GROUPS.values()},
        "rows": {
            "precision_slopes": _slopes(model, "map"),
            "f1_slopes": _slopes(model, "f1"),
            "missed": _missed(model),
            "curve": _curve_rows(curve),
            "calibration": _calibration(model),
        },
    }


def _table(evaluation: MultilabelEvaluation, drawn: list[int]) -> dict[str, Any]:
    """What the table of classes shows beyond the charts, in tenths of a percent."""
    found = with_interval("recall", evaluation.hits, evaluation.positives)
    found |= with_interval("precision", evaluation.hits, evaluation.predicted)
    return {name: as_tenths(values[drawn]) for name, values in found.items()}


# -------------------------------------------------------------------- the rows of charts, in percent


def rows_of(kind: str, models: Mapping[str, dict[str, Any]], classes: dict[str, Any]) -> list[dict[str, Any]]:
    """What a chart shows of some models, by their names there; page.js has the same function."""
    if kind == "counts":
        return [classes]
    found = []
    for place, (role, model) in enumerate(models.items()):
        rows = [classes | model["columns"]] if kind in ("precision", "f1", "chosen") else model["rows"][kind]
        found += [row | {"role": role, "model": model["name"], "place": place} for row in rows]
    return found


def _ends(model: Model, part: str) -> FloatArray:
    """The 95 % interval of each class, [K, 2]; NaN if there is none."""
    classes = model.judged.prior.num_classes
    if model.drawn is None:
        return np.full((classes, 2), np.nan)
    values = getattr(model.drawn, part)
    return np.array([interval_of(values[:, index]) or (np.nan, np.nan) for index in range(classes)])


def _log_odds(evaluation: MultilabelEvaluation) -> FloatArray:
    limits = evaluation.thresholds
    return log_odds(limits) if evaluation.probabilities else limits


def _slopes(model: Model, score: str) -> list[dict[str, Any]]:
    """The mean of each group with its interval."""
    scores, rows = model.scores, []
    values = {name: scores[f"{score}_{name}"] for name, _ in model.members}
    beside = apart({name: 100 * value for name, value in values.items() if not np.isnan(value)})
    for name, members in model.members:
        if name not in beside:
            continue
        ends = None
        if model.drawn is not None:
            means = model.drawn.mean_precision if score == "map" else model.drawn.mean_f1
            ends = interval_of(means(members))
        low, high = ends or (values[name], values[name])
        words = interval(values[name], low, high) if ends else percent(values[name])
        row = {"group": name, "accuracy": 100 * values[name], "beside": beside[name], "classes": len(members)}
        row["shown"] = percent(values[name])
        rows.append(row | {"low": 100 * low, "high": 100 * high, "interval": words})
    return rows


def _missed(model: Model) -> list[dict[str, Any]]:
    prior, rows = model.judged.prior, []
    group = {int(index): name for name, members in model.members for index in members}
    for rank, pair in enumerate(model.judged.misses()):
        name, other = (cut(prior.name(index), 300) for index in (pair.index, pair.other))
        row = {"rank": rank, "name": name, "other": other, "pair": paired(name, other, between="beside")}
        shares = {key: 100 * getattr(pair, key) for key in ("share", "low", "high", "elsewhere")}
        words = {"times": f"{pair.times} of {pair.items}", "interval": interval(pair.share, pair.low, pair.high)}
        rows.append(row | shares | words | {"without": percent(pair.elsewhere), "group": group[pair.index]})
    return rows


def _curve(model: Model) -> dict[str, FloatArray]:
    """Mean F1 over the classes of each group that have positives, at each threshold."""
    scores, members = model.judged.f1_at(), model.members
    found = {}
    for name, index in [("all", np.arange(len(scores))), *members]:
        known = scores[index][~np.isnan(scores[index]).any(1)]
        if len(known):
            found[name] = known.mean(0)
    return found


def _curve_rows(curve: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
    chance = 1 / (1 + np.exp(-LOG_ODDS))
    return [
        {"group": name, "odds": float(odds), "f1": one_digit(value), "threshold": float(f"{100 * at:.3g}")}
        for name, values in curve.items()
        for odds, at, value in zip(LOG_ODDS, chance, values, strict=True)
    ]


def _calibration(model: Model) -> list[dict[str, Any]]:
    return [row for name, members in model.members for row in calibration_rows(name, _bins(model, members))]


def _bins(model: Model, members: IntArray) -> list[Bin]:
    """Bins of equal mass, from single scores where they are kept, else from finer bins."""
    kept, evaluation = model.evaluation.scores_, model.evaluation
    if isinstance(kept, KeptScores):
        given, target = (part[:, members] for part in kept.joined())
        known = target >= 0
        scores, truth = (part[known].astype(np.float64) for part in (given, target))
        chance = scores if evaluation.probabilities else sigmoid(scores)
        return equal_mass_bins(np.ones(len(truth)), truth, chance)
    return equal_mass_bins(*(getattr(evaluation, f"bin_{part}")[members].sum(0) for part in BIN_SUMS))


def _group_ece(model: Model, group: str) -> float | None:
    members = dict(model.members)[group]
    errors = [model.rows[index].ece for index in members]
    known = [error for error in errors if error is not None]
    return rounded(float(np.mean(known))) if known else None


def how_many(prior: Prior, evaluation: MultilabelEvaluation) -> str:
    """Labels per test item, in words."""
    each = evaluation.positives.sum() / evaluation.num_items
    return f"with {each:.1f} of {prior.num_classes:,} labels each on average"
