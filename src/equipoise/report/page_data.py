"""The numbers of a report's page: models with their runs, headline numbers with intervals, and rows for the charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.metrics.confusions import Confusions
from equipoise.metrics.evaluation import Evaluation
from equipoise.metrics.intervals import mean_interval, wilson_intervals
from equipoise.metrics.judging import Judged
from equipoise.metrics.sweep import PriorSweep
from equipoise.prior import FloatArray, Prior
from equipoise.report.specs import GROUPS

Result = Evaluation | Judged
Results = Mapping[str, Result | Sequence[Result]] | Sequence[Result | Sequence[Result]]

MOST_POINTS = 24_000  # classes × models on the page; of more, evenly spaced ones are drawn
MOST_NAME_BYTES = 600_000
DIGITS = 6  # of a share: a percentage with one digit comes out as it does from the unrounded number


@dataclass(frozen=True)
class Model:
    """One model of the page: its runs (seeds), and what is known beyond their sums."""

    name: str
    runs: list[Evaluation]
    confusions: Confusions | None = None
    sweep: PriorSweep | None = None
    notes: tuple[str, ...] = ()

    @property
    def correct(self) -> FloatArray:
        """Mean over runs of the correct items of each class."""
        return np.asarray(np.mean([run.correct for run in self.runs], axis=0))

    @property
    def marginal(self) -> FloatArray:
        return np.asarray(np.mean([run.marginal for run in self.runs], axis=0))

    @property
    def calibrated(self) -> bool:
        """Whether the runs know how sure the model was (records of runs do not)."""
        return all(run.bin_items.any() for run in self.runs)


@dataclass(frozen=True)
class Headline:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def as_models(results: Results, names: Sequence[str] | None, notes: Mapping[str, Sequence[str]]) -> list[Model]:
    if isinstance(results, Evaluation | Judged):
        results = [results]
    if isinstance(results, Mapping):
        if names is not None:
            raise ValueError("results have names already: leave names= out, or pass a list")
        found = dict(results)
    else:
        numbered = [f"model {number + 1}" for number in range(len(results))] if names is None else list(names)
        if len(numbered) != len(results) or len(set(numbered)) < len(numbered):
            raise ValueError(f"names are {numbered} for {len(results)} results: give each a name of its own")
        found = dict(zip(numbered, results, strict=True))
    if not found:
        raise ValueError("there is nothing to report: give at least one evaluation")
    models = [_model(name, result, tuple(notes.get(name, ()))) for name, result in found.items()]
    prior = models[0].runs[0].prior
    if not prior.counted:
        raise ValueError("the prior was stated as probabilities: a report needs counts, Prior.from_counts(...)")
    for model in models:
        if any(run.prior != prior for run in model.runs):
            raise ValueError(
                f"{model.name!r} was judged with another training prior than {models[0].name!r}: "
                "judge all with the prior of one training set"
            )
    return models


def _model(name: str, result: Result | Sequence[Result], notes: tuple[str, ...]) -> Model:
    parts = list(result) if isinstance(result, Sequence) else [result]
    for part in parts:
        if not isinstance(part, Evaluation | Judged):
            raise TypeError(f"{name!r} is a {type(part).__name__}: pass what eq.evaluate or eq.judge returns")
    if not parts:
        raise ValueError(f"there is nothing to report of {name!r}: give at least one evaluation")
    if any((part.evaluation if isinstance(part, Judged) else part).num_items == 0 for part in parts):
        raise ValueError(f"{name!r} was judged on no items: there is nothing to report")
    evaluations = [part.evaluation if isinstance(part, Judged) else part for part in parts]
    if any(not np.array_equal(each.items, evaluations[0].items) for each in evaluations):
        raise ValueError(
            f"the {len(parts)} runs of {name!r} were judged on different test items: runs are seeds on one test set. "
            "Add up parts of a test set, or folds, with +"
        )
    judged = [part for part in parts if isinstance(part, Judged)]
    if not judged:
        return Model(str(name), [part for part in parts if isinstance(part, Evaluation)], notes=notes)
    if len(judged) < len(parts):
        raise ValueError(f"{name!r} mixes evaluations with judged predictions: judge all of its runs alike")
    whole = sum(judged[1:], judged[0])
    return Model(str(name), [part.evaluation for part in judged], whole.confusions, whole.sweep, notes)


def model_notes(model: Model) -> list[str]:
    notes = []
    if model.sweep is not None and model.sweep.num_items < sum(run.num_items for run in model.runs):
        total = sum(run.num_items for run in model.runs)
        notes.append(f"the prior sweep looks at a seeded sample of {model.sweep.num_items:,} of {total:,} rows.")
    return notes


def runs_note(models: list[Model]) -> list[str]:
    """What is averaged over, and how far the runs of a model are apart."""
    several = [model for model in models if len(model.runs) > 1]
    if not several:
        return []
    spreads = [float(np.std([100 * run.top1 for run in model.runs], ddof=1)) for model in several]
    each = ", ".join(
        f"{model.name} {len(model.runs)} runs (± {spread:.1f})" for model, spread in zip(several, spreads, strict=True)
    )
    return [f"Means over runs, with the standard deviation of top-1: {each}. Intervals are those of the test set."]


def headlines(model: Model) -> dict[str, Headline | None]:
    """Top-1, the mean over classes and the groups, each with its 95 % interval; None for an empty group."""
    items, correct = model.runs[0].items, model.correct
    low, high = wilson_intervals([correct.sum()], [items.sum()])
    found: dict[str, Headline | None] = {
        "top1": Headline(float(correct.sum() / items.sum()), float(low[0]), float(high[0])),
        "balanced": _mean(correct, items),
    }
    members = model.runs[0].prior.groups()
    for name in GROUPS:
        found[name] = _mean(correct[members.get(name, [])], items[members.get(name, [])])
    return found


def _mean(correct: FloatArray, items: Any) -> Headline | None:
    seen = items > 0
    if not seen.any():
        return None
    return Headline(float((correct[seen] / items[seen]).mean()), *mean_interval(correct, items))


def class_data(prior: Prior, drawn: list[int]) -> dict[str, Any]:
    group = {index: name for name, members in prior.groups().items() for index in members}
    rank = np.empty(prior.num_classes, np.int64)
    rank[np.argsort(-prior.counts, kind="stable")] = np.arange(1, prior.num_classes + 1)
    names = [prior.name(index) for index in drawn]
    longest = next((most for most in (300, 200, 100, 50, 20) if _bytes(names, most) <= MOST_NAME_BYTES), 8)
    return {
        "name": [cut(name, longest) for name in names],
        "count": prior.counts[drawn].tolist(),
        "rank": rank[drawn].tolist(),
        "group": [group[index] for index in drawn],
    }


def _bytes(names: list[str], longest: int) -> int:
    """What names take on the page, cut to a length: "<", ">" and "&" are escaped, and letters may have four bytes."""
    cuts = [cut(name, longest) for name in names]
    return sum(len(name.encode("utf-8", "replace")) + 5 * sum(map(name.count, "<>&")) for name in cuts)


def model_data(model: Model, drawn: list[int]) -> dict[str, Any]:
    prior, items, correct = model.runs[0].prior, model.runs[0].items, model.correct
    low, high = wilson_intervals(correct, items)
    found: dict[str, Any] = {
        "name": cut(model.name, 200),
        "headline": {key: _rounded(vars(value)) if value else None for key, value in headlines(model).items()},
        "items": items[drawn].tolist(),
        "accuracy": _numbers((correct / np.maximum(items, 1))[drawn]),
        "low": _numbers(low[drawn]),
        "high": _numbers(high[drawn]),
        "p": [float(f"{value:.4g}") for value in model.marginal[drawn]],
        "total_variation": round(float(np.mean([run.total_variation for run in model.runs])), 4),
    }
    if model.calibrated:
        found |= {"calibration": _calibration(model), "ece": {name: _group_ece(model, name) for name in GROUPS}}
    if model.confusions is not None:
        found["flow"] = {name: _rounded(shares) for name, shares in model.confusions.flow(prior).items()}
        found["swallowed"] = _swallowed(model.confusions, prior)
    if model.sweep is not None:
        found["sweep"] = {
            "as_it_is": model.sweep.as_it_is,
            "accuracy": [_numbers(row) for row in model.sweep.accuracy()],
            "groups": {name: _numbers(values) for name, values in model.sweep.groups().items()},
        }
    return found


def _swallowed(confusions: Confusions, prior: Prior) -> list[dict[str, Any]]:
    group = {index: name for name, members in prior.groups().items() for index in members}
    return [
        {
            "name": cut(prior.name(pair.true), 300),
            "other": cut(prior.name(pair.predicted), 300),
            "group": group[pair.true],
            "times": pair.times,
            "items": pair.items,
        }
        | _rounded({"share": pair.share, "low": pair.low, "high": pair.high})
        for pair in confusions.swallowed(prior, most=12)
    ]


def _calibration(model: Model) -> list[dict[str, Any]]:
    rows = []
    for name, members in model.runs[0].prior.groups().items():
        items, correct, confidence = (
            sum(getattr(run, sums)[members].sum(axis=0) for run in model.runs)
            for sums in ("bin_items", "bin_correct", "bin_confidence")
        )
        for b in np.flatnonzero(items):
            shares = {"confidence": confidence[b] / items[b], "accuracy": correct[b] / items[b]}
            rows.append(
                {"group": name, "items": int(items[b])} | _rounded(shares | {"share": items[b] / np.sum(items)})
            )
    return rows


def _group_ece(model: Model, group: str) -> float | None:
    found = [run.groups()[group].ece for run in model.runs]
    return None if found[0] is None else round(float(np.mean([value for value in found if value is not None])), 4)


def drawn_classes(prior: Prior, models: int) -> list[int]:
    """The classes that charts show: all, or evenly spaced ones from head to tail."""
    most = max(200, MOST_POINTS // models)
    order = np.argsort(-prior.counts, kind="stable")
    if len(order) > most:
        order = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(np.int64))]
    return [int(index) for index in order]


def cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _numbers(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), DIGITS) for value in values]


def _rounded(values: Mapping[str, Any]) -> dict[str, float | None]:
    return {key: None if value is None else round(float(value), DIGITS) for key, value in values.items()}
