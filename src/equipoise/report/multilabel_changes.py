"""What changed from one multi-label model to another, by a paired bootstrap of the test items.

Items are resampled in the same way for every model (`metrics.resampling`). If both models saw the same items, the
interval of a change is that of the differences, draw by draw: the paired bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from equipoise.metrics.evaluation import percent
from equipoise.metrics.multilabel import KeptScores
from equipoise.metrics.resampling import interval_of
from equipoise.prior import FloatArray
from equipoise.report.changes import Changes, by_group, called, chance, difference, moved, opening
from equipoise.report.changes import change_data as between_models
from equipoise.report.multilabel_data import HEADLINES, Model, draws_of
from equipoise.report.page_data import Headline

UNKNOWN = (float("nan"), float("nan"))
CALLED = {"tail": "the tail", "medium": "the medium group", "head": "the head"}


def changes(before: Model, after: Model, classes: Sequence[int]) -> Changes:
    """What changed in the headline numbers and in the average precision of some classes."""
    paired = _same_items(before, after)
    found: dict[str, Headline | None] = {}
    for key, _, _ in HEADLINES:
        was, now = before.scores[key], after.scores[key]
        draws = draws_of(before, key), draws_of(after, key)
        value = difference(was, now) if not np.isnan([was, now]).any() else None
        found[key] = None if value is None else Headline(value, *_ends(*draws, paired))
    ends = np.array([_class_ends(before, after, index, paired) for index in classes]).reshape(-1, 2)
    return Changes(paired, found, ends[:, 0], ends[:, 1])


def _same_items(one: Model, other: Model) -> bool:
    kept, others = one.evaluation.scores_, other.evaluation.scores_
    if one.drawn is None or other.drawn is None:
        return False
    if not isinstance(kept, KeptScores) or not isinstance(others, KeptScores):
        return False
    return np.array_equal(kept.joined()[1], others.joined()[1])


def _ends(was: FloatArray | None, now: FloatArray | None, paired: bool) -> tuple[float, float]:
    if was is None or now is None or not paired:
        return UNKNOWN
    return interval_of(now - was) or UNKNOWN


def _class_ends(before: Model, after: Model, index: int, paired: bool) -> tuple[float, float]:
    if before.drawn is None or after.drawn is None:
        return UNKNOWN
    return _ends(before.drawn.precision[:, index], after.drawn.precision[:, index], paired)


def conclusion(before: Model, after: Model, found: Changes) -> str:
    """What changed, for which classes, and whether it is more than chance."""
    overall, f1 = found.headline["map"], found.headline["f1_macro"]
    if overall is None:
        return f"{called(before)} and {called(after)} cannot be compared, as one has no class with positives."
    was, now = before.scores["map"], after.scores["map"]
    parts = [opening("average precision", called(before), called(after), was, now, overall)]
    if f1 is not None:
        parts.append(f"Mean F1 at their thresholds {moved(f1)}{chance(f1)}.")
    groups = {CALLED[name]: found.headline[f"map_{name}"] for name in ("tail", "medium", "head")}
    return " ".join([*parts, by_group("Average precision by group", groups)]).strip()


def alone(model: Model) -> str:
    """The same for a single model."""
    scores = model.scores
    if np.isnan(scores["map"]):
        return f"{called(model)} has no average precision and no F1, as no test item is positive for any class."
    groups = [
        f"{percent(scores[f'map_{name}'])} % in {words}"
        for name, words in CALLED.items()
        if not np.isnan(scores[f"map_{name}"])
    ]
    by = f": {', '.join(groups)}" if len(groups) > 1 else ""
    return (
        f"{called(model)} has a mean average precision of {percent(scores['map'])} %{by}. Its mean F1 at "
        f"its thresholds is {percent(scores['f1_macro'])} %."
    )


change_data = partial(between_models, between=changes, said=conclusion)  # of models with several labels
