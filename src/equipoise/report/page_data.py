"""The numbers of a report's page: models with their runs, headline numbers with intervals, and rows for the charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from equipoise.metrics.answers import Answers
from equipoise.metrics.calibration import Bin, equal_mass_bins
from equipoise.metrics.confusions import Confusions
from equipoise.metrics.evaluation import Evaluation, percent
from equipoise.metrics.intervals import mean_interval, wilson_intervals
from equipoise.metrics.judging import Judged
from equipoise.metrics.sweep import TAUS, WORLDS, PriorSweep
from equipoise.prior import FloatArray, Prior
from equipoise.report.groups import GROUPS, USUAL, Cuts

Result = Evaluation | Judged
Results = Mapping[str, Result | Sequence[Result]] | Sequence[Result | Sequence[Result]]

MOST_POINTS = 24_000  # classes × models on the page; of more, evenly spaced ones are drawn
MOST_NAME_BYTES = 600_000
LEFT_TO_RIGHT = "\u200e"  # keeps "a → b" in this order where a is in a script that runs from right to left
DIGITS = 6  # of a share: `percent` makes the same text of it as of the unrounded number
BIN_SUMS = ("bin_items", "bin_correct", "bin_confidence")
PAIRS = 5  # of a group, in the chart of swallowed classes


@dataclass(frozen=True)
class Model:
    """One model of the page: its runs (seeds), and what is known beyond their sums: `answers` of each run."""

    name: str
    runs: list[Evaluation]
    confusions: Confusions | None = None
    sweep: PriorSweep | None = None
    answers: tuple[Answers, ...] = ()
    notes: tuple[str, ...] = ()
    cuts: Cuts = USUAL
    paths: tuple[str, ...] | None = None  # of the images, where they are known

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The classes of each group that has any."""
        return self.cuts.groups(self.runs[0].prior)

    @property
    def correct(self) -> FloatArray:
        """Mean over runs of the correct items of each class."""
        return np.asarray(np.mean([run.correct for run in self.runs], axis=0))

    @property
    def marginal(self) -> FloatArray:
        return np.asarray(np.mean([run.marginal for run in self.runs], axis=0))

    @property
    def total_variation(self) -> float:
        return float(np.mean([run.total_variation for run in self.runs]))

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


def as_models(
    results: Results, names: Sequence[str] | None, notes: Mapping[str, Sequence[str]], cuts: Cuts = USUAL
) -> list[Model]:
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
    models = [_model(name, result, tuple(notes.get(name, ())), cuts) for name, result in found.items()]
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


def _model(name: str, result: Result | Sequence[Result], notes: tuple[str, ...], cuts: Cuts) -> Model:
    parts = list(result) if isinstance(result, Sequence) else [result]
    for part in parts:
        if not isinstance(part, Evaluation | Judged):
            raise TypeError(
                f"{name!r} is a {type(part).__name__}: pass what eq.evaluate or eq.judge returns (for several labels "
                "per item there is eq.MultilabelReport)"
            )
    if not parts:
        raise ValueError(f"there is nothing to report of {name!r}: give at least one evaluation")
    evaluations = [part.evaluation if isinstance(part, Judged) else part for part in parts]
    if any(each.num_items == 0 for each in evaluations):
        raise ValueError(f"{name!r} was judged on no items: there is nothing to report")
    if any(not np.array_equal(each.items, evaluations[0].items) for each in evaluations):
        raise ValueError(
            f"the {len(parts)} runs of {name!r} were judged on different test items: runs are seeds on one test set. "
            "Add up parts of a test set, or folds, with +"
        )
    judged = [part for part in parts if isinstance(part, Judged)]
    if not judged:
        return Model(str(name), evaluations, notes=notes, cuts=cuts)
    if len(judged) < len(parts):
        raise ValueError(f"{name!r} mixes evaluations with judged predictions: judge all of its runs alike")
    whole = sum(judged[1:], judged[0])
    answers = tuple(part.answers for part in judged if part.answers is not None)
    known = answers if len(answers) == len(judged) else ()
    return Model(str(name), evaluations, whole.confusions, whole.sweep, known, notes, cuts)


def run_notes(models: list[Model]) -> list[str]:
    """What is averaged over, how far the runs of a model are apart, and what else is to be known of each model."""
    notes = []
    several = [
        f"{model.name}, {len(model.runs)} runs (± {np.std([100 * run.top1 for run in model.runs], ddof=1):.1f})"
        for model in models
        if len(model.runs) > 1
    ]
    if several:
        means = f"Means over runs, with the standard deviation of top-1: {'; '.join(several)}."
        notes.append(f"{means} Intervals are for the test items, not for the runs.")
    for model in models:
        total = sum(run.num_items for run in model.runs)
        if model.sweep is not None and model.sweep.num_items < total:
            sample = f"a seeded sample of {model.sweep.num_items:,} of {total:,} rows"
            notes.append(f"{model.name}: the prior sweep uses {sample}.")
        notes += [f"{model.name}: {note}" for note in model.notes]
    return notes


def headlines(model: Model) -> dict[str, Headline | None]:
    """Top-1, the mean over classes and the groups, each with its 95 % interval; None for an empty group."""
    items, correct = model.runs[0].items, model.correct
    low, high = wilson_intervals([correct.sum()], [items.sum()])
    found: dict[str, Headline | None] = {
        "top1": Headline(float(correct.sum() / items.sum()), float(low[0]), float(high[0])),
        "balanced": _mean(correct, items),
    }
    members = model.groups
    for name in GROUPS:
        found[name] = _mean(correct[members.get(name, [])], items[members.get(name, [])])
    return found


def headline_rows(scores: Iterable[tuple[str, Sequence[Any]]]) -> list[list[str]]:
    """For a table in the terminal: a row of numbers for every model, and one with their intervals below it.

    >>> headline_rows([("Softmax", [Headline(0.4, 0.35, 0.452), None])])
    [['Softmax', '40.0', '–'], ['', '35.0–45.2', '']]
    """
    rows = []
    for name, found in scores:
        rows.append([name, *(percent(v.value if v else None) for v in found)])
        known = [v is not None and v.low is not None for v in found]
        ends = [f"{percent(v.low)}–{percent(v.high)}" if k else "" for v, k in zip(found, known, strict=True)]
        rows.append(["", *ends])
    return rows


def _mean(correct: FloatArray, items: Any) -> Headline | None:
    seen = items > 0
    if not seen.any():
        return None
    return Headline(float((correct[seen] / items[seen]).mean()), *mean_interval(correct, items))


def class_data(
    prior: Prior, drawn: list[int], called: Mapping[str, str] | None = None, cuts: Cuts = USUAL
) -> dict[str, Any]:
    """Columns of the drawn classes; `called` gives the groups other names."""
    group = _group_of(cuts.groups(prior), called)
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
    """Of a model: its headline numbers, `columns` with a value per drawn class, and the `rows` of the other charts."""
    items, correct = model.runs[0].items, model.correct
    low, high = wilson_intervals(correct, items)
    found: dict[str, Any] = {
        "name": cut(model.name, 200),
        "headline": {
            key: {name: rounded(share) for name, share in vars(value).items()} if value else None
            for key, value in headlines(model).items()
        },
        "total_variation": round(model.total_variation, DIGITS),
        "columns": {
            "items": items[drawn].tolist(),
            "accuracy": numbers((correct / np.maximum(items, 1))[drawn]),
            "low": numbers(low[drawn]),
            "high": numbers(high[drawn]),
            "p": [float(f"{value:.4g}") for value in model.marginal[drawn]],
        },
        "rows": {"slopes": _slopes(model)},
    }
    if model.calibrated:
        found["ece"] = {name: _group_ece(model, name) for name in GROUPS}
        found["rows"]["calibration"] = _calibration(model)
    if model.confusions is not None:
        found["rows"] |= {"flow": _flow(model, model.confusions), "swallowed": _swallowed(model, model.confusions)}
    if model.sweep is not None:
        found["sweep"] = {
            "as_it_is": model.sweep.as_it_is,
            "accuracy": [numbers(row) for row in model.sweep.accuracy()],
            "groups": {name: numbers(values) for name, values in model.sweep.groups(model.groups).items()},
        }
        found["rows"] |= {"world": _worlds(model.sweep), "tau": _taus(model.sweep, model.groups)}
    return found


# -------------------------------------------------------------------- the rows of charts, in percent


def rows_of(kind: str, models: Mapping[str, dict[str, Any]], classes: dict[str, Any]) -> list[dict[str, Any]]:
    """What a chart shows of some models, by what they are called there; page.js has the same function."""
    if kind == "counts":
        return [classes]
    found = []
    for place, (role, model) in enumerate(models.items()):
        rows = [classes | model["columns"]] if kind in ("classes", "marginal") else model["rows"].get(kind, [])
        found += [row | {"role": role, "model": model["name"], "place": place} for row in rows]
    return found


def _slopes(model: Model) -> list[dict[str, Any]]:
    members = model.groups
    found = {name: value for name, value in headlines(model).items() if name in GROUPS and value is not None}
    beside = apart({name: 100 * value.value for name, value in found.items()})
    return [
        {
            "group": name,
            "accuracy": 100 * value.value,
            "shown": percent(value.value),
            "low": 100 * value.low,
            "high": 100 * value.high,
            "beside": beside[name],
            "interval": interval(value.value, value.low, value.high),
            "classes": len(members[name]),
        }
        for name, value in found.items()
    ]


def apart(values: dict[str, float], room: float = 5.5, most: float = 100) -> dict[str, float]:
    """The height of each number, so far from the next that both can be read, and not above `most`.

    >>> apart({"many": 66.0, "medium": 20.0, "few": 65.5}), apart({"many": 100.0, "few": 98.0})
    ({'medium': 20.0, 'few': 65.5, 'many': 71.0}, {'few': 94.5, 'many': 100})
    """
    heights: dict[str, float] = {}
    last = -room
    for name in sorted(values, key=values.__getitem__):
        heights[name] = last = max(values[name], last + room)
    for name in reversed(heights):
        heights[name] = min(heights[name], most)
        most = heights[name] - room
    return heights


def _flow(model: Model, confusions: Confusions) -> list[dict[str, Any]]:
    rows = []
    for group, shares in confusions.flow(model.runs[0].prior, model.groups).items():
        start = 0.0
        for end in ("right", *GROUPS):
            share = shares[end]
            if share is not None:
                rows.append({"group": group, "end": end, "from": start, "to": start + 100 * share})
                start += 100 * share
    return rows


def _swallowed(model: Model, confusions: Confusions) -> list[dict[str, Any]]:
    """The surest pairs of each group, the rarest classes first."""
    prior = model.runs[0].prior
    rows: list[dict[str, Any]] = []
    for group in reversed(GROUPS):
        for pair in confusions.swallowed(prior, PAIRS, model.groups.get(group, [])):
            name, other = (cut(prior.name(index), 300) for index in (pair.true, pair.predicted))
            row = {"rank": len(rows), "name": name, "other": other, "pair": paired(name, other), "group": group}
            numbers = {"share": 100 * pair.share, "low": 100 * pair.low, "high": 100 * pair.high}
            words = {
                "times": f"{pair.times:,} of {pair.items:,}",
                "interval": interval(pair.share, pair.low, pair.high),
            }
            rows.append(row | numbers | words)
    return rows


def paired(name: str, other: str, room: int = 44, between: str = "→") -> str:
    """Both names in one line of a narrow chart: of long ones the beginnings; from left to right in every script."""
    left, right = (max(room // 2, room - len(beside)) for beside in (other, name))
    return f"{LEFT_TO_RIGHT}{cut(name, left)} {between} {cut(other, right)}"


def _calibration(model: Model) -> list[dict[str, Any]]:
    return [row for name, members in model.groups.items() for row in calibration_rows(name, _bins(model, members))]


def calibration_rows(group: str, bins: Sequence[Bin]) -> list[dict[str, Any]]:
    """The rows of a group in the chart of calibration."""
    total, rows = sum(each.items for each in bins), []
    for each in bins:
        row = {"group": group, "items": each.items, "share": round(each.items / total, DIGITS)}
        shares = {part: one_digit(getattr(each, part)) for part in ("confidence", "accuracy", "low", "high")}
        rows.append(row | shares)
    return rows


def _bins(model: Model, members: Sequence[int]) -> list[Bin]:
    """Bins of equal mass, from the answers to single items where they are known, else from finer bins."""
    if model.answers:
        inside = np.isin(model.answers[0].target, members)
        right, sure = (
            np.concatenate([getattr(answers, part)[inside] for answers in model.answers])
            for part in ("right", "confidence")
        )
        return equal_mass_bins(np.ones(len(right)), right, sure, runs=len(model.runs))
    sums = (sum(getattr(run, part)[members].sum(axis=0) for run in model.runs) for part in BIN_SUMS)
    return equal_mass_bins(*sums, runs=len(model.runs))


def _group_ece(model: Model, group: str) -> float | None:
    found = [ece for run in model.runs if (ece := run.groups(model.cuts.many, model.cuts.few)[group].ece) is not None]
    return rounded(float(np.mean(found))) if found else None


def _worlds(sweep: PriorSweep) -> list[dict[str, Any]]:
    accuracy = sweep.accuracy()
    return [
        {"how": how, "alpha": alpha, "accuracy": one_digit(accuracy[i, tau])}
        for i, alpha in enumerate(WORLDS.tolist())
        for how, tau in (("given the prior", i), ("as it is", sweep.as_it_is))
    ]


def _taus(sweep: PriorSweep, groups: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    return [
        {"group": group, "tau": tau, "accuracy": one_digit(value)}
        for group, values in sweep.groups(groups).items()
        for tau, value in zip(TAUS.tolist(), values, strict=True)
    ]


def interval(value: float, low: float, high: float) -> str:
    """In percent."""
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def one_digit(share: float) -> float | None:
    """In percent, as `percent` shows it."""
    return None if np.isnan(share) else float(percent(share))


def drawn_classes(prior: Prior, models: int) -> list[int]:
    """The classes that charts show: all, or evenly spaced ones from head to tail."""
    most = max(200, MOST_POINTS // models)
    order = np.argsort(-prior.counts, kind="stable")
    if len(order) > most:
        order = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(np.int64))]
    return [int(index) for index in order]


def cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def numbers(values: FloatArray) -> list[float | None]:
    """Rounded; None for NaN."""
    return [rounded(value) for value in values]


def rounded(value: float, digits: int = DIGITS) -> float | None:
    """None for NaN, which JSON has not."""
    return None if np.isnan(value) else round(float(value), digits)


def _group_of(groups: Mapping[str, Sequence[int]], called: Mapping[str, str] | None = None) -> dict[int, str]:
    return {index: (called or {}).get(name, name) for name, members in groups.items() for index in members}
