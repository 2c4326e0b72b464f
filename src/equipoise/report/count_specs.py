"""The chart of training items per class: named rows for few classes, columns with some names for many; see `specs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from equipoise.prior import Prior
from equipoise.report.specs import (
    BY_COUNT,
    COUNTED,
    CROWDED,
    SPOKEN,
    Looks,
    Spec,
    chart,
    computed,
    layer,
    number,
    ticks,
    tooltip,
    unfold,
)

MOST_ROWS = 40  # classes: with more, the chart has columns
ROW = 16  # pixels: with as many rows as there may be, the chart and what is above it fit on one printed page
NAMED = 9  # of the columns, if there is room; of which every other one can be left out, but never the first or the last
BASE = 0.7  # where bars begin on the logarithmic axis, so that a class with one item has one
CALLED = "called[datum.value]"


def class_counts(classes: Mapping[str, Any], prior: Prior, groups: Looks = BY_COUNT) -> Spec:
    """Training items per class, largest first, on a logarithmic axis; `classes` are the columns of those drawn.

    >>> prior = Prior.from_counts({"cat": 900, "owl": 5})
    >>> rows = {"name": ["cat", "owl"], "rank": [1, 2], "count": [900, 5], "group": ["many", "few"]}
    >>> class_counts(rows, prior)["params"]
    [{'name': 'called', 'value': {'1': 'cat', '2': 'owl'}}]
    """
    names, ranks = classes["name"], classes["rank"]
    in_rows = len(names) <= MOST_ROWS
    places = range(len(names)) if in_rows else _evenly_spaced(len(names))
    axis = {"format": ",d", "values": ticks(prior, decades=True), "grid": True}
    size = number("shown", "training items", scale={"type": "log", "domainMin": BASE}, axis=axis)
    which: Spec = {"field": "rank", "type": "ordinal", "title": "class, largest first"}
    which["axis"] = _row_names() if in_rows else _column_names([ranks[place] for place in places])
    along, across = ("x", "y") if in_rows else ("y", "x")
    encoding: Spec = {across: which, along: size, f"{along}2": {"datum": BASE}, "color": groups.colour} | SPOKEN
    encoding["tooltip"] = tooltip(name="class", counted="training items", group="group")
    if len(names) > CROWDED:  # no gaps, which would look like stripes
        which["scale"] = {"padding": 0}
        encoding["stroke"] = groups.colour | {"legend": None}
    derived = computed(shown=f"max(datum.count, {BASE})", **COUNTED)
    derived += computed(spoken="datum.name + ': ' + datum.counted + ' training items'")
    return chart(
        "Training items per class, largest first, on a logarithmic axis",
        ROW * len(names) if in_rows else 220,
        params=[{"name": "called", "value": {str(ranks[place]): names[place] for place in places}}],
        transform=unfold("name", "rank", "count", "group") + derived,
        **layer("bar", {"strokeWidth": 0.7}, encoding),
    )


def _evenly_spaced(number_of_classes: int) -> list[int]:
    return [int(place) for place in np.linspace(0, number_of_classes - 1, NAMED).round()]


def _row_names() -> Spec:
    limit = {"expr": "containerSize()[0] > 700 ? 260 : 130"}  # a figure in a file has no container: 130
    return {"labelExpr": CALLED, "labelLimit": limit, "maxExtent": 300}


def _column_names(ranks: list[int]) -> Spec:
    look = {"labelAngle": 0, "labelLimit": 120, "labelFlush": True, "labelOverlap": "parity", "labelSeparation": 8}
    return {"labelExpr": CALLED, "values": ranks, "ticks": True, "tickColor": "var(--muted)"} | look
