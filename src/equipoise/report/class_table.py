"""The table of classes: recall, precision and F1 of each, with intervals, sorted and searched by table.js.

    precision    right / predicted, Wilson's interval
    F1           2J/(1 + J) of J = right / (items of the class or called it), and so for Wilson's ends of J

The numbers are sent as they are shown, in tenths of a percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.metrics.evaluation import tenths
from equipoise.metrics.intervals import wilson_intervals
from equipoise.prior import FloatArray, IntArray
from equipoise.report.page_data import Model

LEVELS = ("", "_low", "_high")
SHAPES = {"many": "many", "medium": "medium", "few": "few", "head": "many", "tail": "few"}  # of the groups' marks


def precision_and_f1(model: Model) -> dict[str, FloatArray]:
    """`precision`, `f1` and the ends of their intervals, `_low` and `_high`, [K]; NaN if undefined. Empty if it is not
    known what was predicted."""
    if model.confusions is None:
        return {}
    items, correct = model.runs[0].items, model.correct
    predicted = model.confusions.predicted() / len(model.runs)
    found = with_interval("precision", correct, predicted)
    union = items + predicted - correct
    scores = {name: 2 * shares / (1 + shares) for name, shares in with_interval("f1", correct, union).items()}
    return found | {name: np.where(items > 0, values, np.nan) for name, values in scores.items()}


def with_interval(name: str, part: FloatArray | IntArray, whole: FloatArray | IntArray) -> dict[str, FloatArray]:
    """Shares with the ends of Wilson's interval, [K]; NaN if there are no items."""
    low, high = wilson_intervals(part, whole)
    shares = (part / np.maximum(whole, 1e-9), low, high)
    return {name + level: np.where(whole > 0, values, np.nan) for level, values in zip(LEVELS, shares, strict=True)}


def table_columns(model: Model, drawn: list[int]) -> dict[str, Any]:
    """What the table shows of the drawn classes beyond the charts, in tenths of a percent; None if undefined."""
    return {name: as_tenths(values[drawn]) for name, values in precision_and_f1(model).items()}


def table_scores(models: Sequence[Model]) -> list[dict[str, Any]]:
    """The columns of the table: those that some model has."""
    recall = score("recall", "recall", "accuracy", "low", "high")
    known = any(model.confusions is not None for model in models)
    return [recall, score("precision", "precision"), score("f1", "F1")] if known else [recall]


def score(key: str, title: str, *columns: str) -> dict[str, Any]:
    """A score of the table with its interval: from the `columns` of the charts, as shares, or else from the table's."""
    return {"key": key, "title": title, "columns": columns}


def as_tenths(values: FloatArray) -> list[int | None]:
    return [None if np.isnan(value) else tenths(float(value)) for value in values]
