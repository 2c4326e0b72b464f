"""What changed from one model of a page to another, for which classes, and whether it is more than chance.

Both models usually saw the same items. The interval of a change is then that of paired proportions
(`metrics.intervals.change_interval`), which is narrower than two intervals side by side suggest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from equipoise.metrics.answers import both_right
from equipoise.metrics.evaluation import percent, tenths
from equipoise.metrics.intervals import change_interval
from equipoise.prior import FloatArray
from equipoise.report.class_table import as_tenths
from equipoise.report.page_data import Headline, Model, cut, headlines

MOST_CLASSES = 24_000  # pairs of models × classes with an interval each; of more, only those of the first model
Verbs = tuple[str, str, str]  # for more, less and the same
CALLED = {name: f"“{name}”" for name in ("few", "medium", "many")}
MOST_MODELS = 8  # of more, only pairs with the first or the last


@dataclass(frozen=True)
class Changes:
    """The changes from one model to another: of each headline number, and of each class with its interval [K];
    `paired` if both saw the same items."""

    paired: bool
    headline: dict[str, Headline | None]
    low: FloatArray
    high: FloatArray


def changes(before: Model, after: Model, classes: Sequence[int]) -> Changes:
    """What changed; with intervals for these `classes`, in their order."""
    prior, both = before.runs[0].prior, both_right(before.answers, after.answers, before.runs[0].prior.num_classes)
    counts = (before.correct, before.runs[0].items, after.correct, after.runs[0].items, both)
    members = {"balanced": list(range(prior.num_classes))} | before.groups
    old, new = headlines(before), headlines(after)
    found: dict[str, Headline | None] = {}
    for key, was in old.items():
        now = new[key]
        if was is None or now is None:
            found[key] = None
        elif key == "top1":
            whole = [None if part is None else part.sum(keepdims=True) for part in counts]
            found[key] = Headline(difference(was.value, now.value), *_ends(whole, [0]))
        else:
            found[key] = Headline(difference(was.value, now.value), *_ends(counts, members[key]))
    ends = np.array([_ends(counts, [index]) for index in classes]).reshape(-1, 2)
    return Changes(both is not None, found, ends[:, 0], ends[:, 1])


def difference(was: float, now: float) -> float:
    """The difference of two shares as they are shown, so that a reader who subtracts them finds the same."""
    return (tenths(now) - tenths(was)) / 1000


def unrounded(found: Changes, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The changes from the first to the last of these `models` as plain data: differences of the numbers themselves."""
    was, now = models[0]["headline"], models[-1]["headline"]
    return {
        key: change and vars(change) | {"value": now[key]["value"] - was[key]["value"]}
        for key, change in found.headline.items()
    }


def _ends(counts: Sequence[Any], classes: Sequence[int]) -> tuple[float, float]:
    k1, n1, k2, n2, both = ([] if part is None else part[list(classes)] for part in counts)
    return change_interval(k1, k2, n2, both if len(both) else None, items_before=n1)


# -------------------------------------------------------------------- in words


def conclusion(before: Model, after: Model, found: Changes) -> str:
    """What changed, for which classes, and whether it is more than chance."""
    overall = found.headline["balanced"]
    old, new = headlines(before)["balanced"], headlines(after)["balanced"]
    if overall is None or old is None or new is None:
        return f"{called(before)} and {called(after)} were evaluated on different classes and cannot be compared."
    parts = [opening("accuracy per class", called(before), called(after), old.value, new.value, overall)]
    top1 = found.headline["top1"]
    if top1 is not None and tenths(top1.value) != tenths(overall.value):
        parts.append(f"Top-1 {moved(top1)}{chance(top1)}.")
    groups = {words: found.headline[name] for name, words in CALLED.items()}
    return " ".join([*parts, by_group("By number of training items", groups)]).strip()


def opening(what: str, one: str, other: str, was: float, now: float, change: Headline) -> str:
    """The first sentence: how the mean of something moved from one model to another.

    >>> opening("F1", "A", "B", 0.4, 0.5, Headline(0.1, -0.05, 0.25))[25:]
    'rises by 10.0 points (95 %: −5.0 to +25.0), from 40.0 to 50.0 %, which may be chance.'
    """
    ends = f"from {percent(was)} to {percent(now)} %" if tenths(change.value) else f"at {percent(now)} %"
    return f"From {one} to {other}, the mean {what} {moved(change, '95 %: ')}, {ends}{chance(change)}."


def by_group(what: str, groups: Mapping[str, Headline | None]) -> str:
    """How `what` moved in each group, if there are several."""
    known = {name: change for name, change in groups.items() if change is not None}
    if len(known) < 2:
        return ""
    verbs = ("gains", "loses", "is the same")
    words = [f"{name} {moved(change, verbs=verbs)}{_doubt(change)}" for name, change in known.items()]
    return f"{what}: {'; '.join(words)}."


def alone(model: Model) -> str:
    """The same for a single model: how the tail compares with the head."""
    found = headlines(model)
    whole, head, tail = found["top1"], found["many"], found["few"]
    if whole is None:
        return f"{called(model)} was evaluated on no items."
    text = f"{called(model)} is right on {percent(whole.value)} % of the test items (95 %: {_range(whole)})"
    if head is None or tail is None:
        return f"{text}."
    low = head.value - tail.value - float(np.hypot(head.value - head.low, tail.high - tail.value))
    high = head.value - tail.value + float(np.hypot(head.high - head.value, tail.value - tail.low))
    gap = Headline((tenths(head.value) - tenths(tail.value)) / 1000, low, high)
    size = f"{percent(abs(gap.value))} points {'below' if gap.value >= 0 else 'above'}"
    return (
        f"{text}. On classes with few training items it is right on {percent(tail.value)} % ({_range(tail)}), {size} "
        f"the {percent(head.value)} % ({_range(head)}) of those with many{chance(gap)}."
    )


def called(model: Any) -> str:
    """The name of a model in a sentence."""
    return cut(model.name, 60)


def sure(change: Headline) -> bool:
    """Whether the interval excludes 0; False if there is no interval (NaN)."""
    return change.low > 0 or change.high < 0


def signed(value: float) -> str:
    """Points with their sign.

    >>> signed(0.123), signed(-0.0123), signed(0.0001)
    ('+12.3', '−1.2', '±0.0')
    """
    size = tenths(value)
    return f"{'+' if size > 0 else '−' if size < 0 else '±'}{abs(size) / 10:.1f}"


def moved(change: Headline, level: str = "", verbs: Verbs = ("rises by", "falls by", "is the same")) -> str:
    """How far something moved, with the interval and its `level`.

    >>> moved(Headline(0.0, -0.3, 0.3)), moved(Headline(0.0, 0.0, 0.0))
    ('may have changed either way (−30.0 to +30.0)', 'is the same')
    """
    size = tenths(change.value)
    known = not np.isnan(change.low)
    ends = f" ({level}{signed(change.low)} to {signed(change.high)})" if known else ""
    rises, falls, stays = verbs
    if not size:
        return f"may have changed either way{ends}" if known and (tenths(change.low) or tenths(change.high)) else stays
    return f"{rises if size > 0 else falls} {abs(size) / 10:.1f} points{ends}"


def chance(change: Headline) -> str:
    """Whether the change is more than chance, as the end of a sentence; empty if nothing changed."""
    if not tenths(change.value):
        return ""
    if np.isnan(change.low):
        return "; without an interval, this may be chance"
    return ", which is more than chance" if sure(change) else ", which may be chance"


def _doubt(change: Headline) -> str:
    known = tenths(change.value) and not np.isnan(change.low)
    return ", which may be chance" if known and not sure(change) else ""


def _range(value: Headline) -> str:
    return f"{percent(value.low)} to {percent(value.high)}"


# -------------------------------------------------------------------- for the page


def change_data(
    models: Sequence[Any],
    drawn: Sequence[int],
    between: Callable[[Any, Any, Sequence[int]], Changes] = changes,
    said: Callable[[Any, Any, Changes], str] = conclusion,
) -> dict[str, Any]:
    """The changes between models by their places, "0-1" from the first to the second; page.js turns them around.

    The ends of the classes' intervals are in tenths of a percent, as they are shown; they are left out if there would
    be too many.
    """
    found: dict[str, Any] = {}
    for i, j, classes in pairs_of(len(models), drawn):
        there, back = between(models[i], models[j], classes), between(models[j], models[i], [])
        words = [said(models[i], models[j], there), said(models[j], models[i], back)]
        found[f"{i}-{j}"] = shown(there) | {"words": words}
    return found


def pairs_of(models: int, drawn: Sequence[int]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """The pairs of models that a page compares, and the classes for which it has intervals."""
    last = models - 1
    pairs = [p for p in combinations(range(models), 2) if last < MOST_MODELS or p[0] == 0 or p[1] == last]
    every = len(pairs) * len(drawn) <= MOST_CLASSES
    for i, j in pairs:
        yield i, j, drawn if every or i == 0 else []


def shown(found: Changes) -> dict[str, Any]:
    """Changes as page.js shows them, in tenths of a percent; None if there is no interval."""
    return {
        "paired": found.paired,
        "headline": {
            key: None
            if change is None
            else dict(zip(vars(change), as_tenths(np.array([*vars(change).values()])), strict=True))
            for key, change in found.headline.items()
        },
        "low": as_tenths(found.low),
        "high": as_tenths(found.high),
    }
