"""The paper's figure from records: p(y), the mean predicted probability of each class, at every imbalance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np

from equipoise.experiments.table1 import published as table1
from equipoise.experiments.table1.published import title_of
from equipoise.prior import FloatArray
from equipoise.report.figures import digest, finished, heading
from equipoise.report.specs import COLOURS, DASHES, LINES, SHAPES, Spec, by, layer, number, smoothed
from equipoise.report.tables import grouped
from equipoise.training.records import Record

DRAWN = ("softmax", "eql", "balanced_softmax")  # the methods of the figure
DRAWN_ON = "cifar100-lt"
NEIGHBOURS = 9  # classes that a line of the figure averages


def marginals(records: Iterable[Record]) -> dict[str, dict[str, FloatArray]]:
    """For the figure: by imbalance, by method, p(y) of each run [n, K], head class first; n may be 0."""
    runs = grouped(records, lambda run: (run.data_set, run.imbalance, run.method))
    return {
        f"imbalance {imbalance}": {
            title_of(method): np.array([head_first(run) for run in runs.get((DRAWN_ON, imbalance, method), [])])
            for method in DRAWN
        }
        for imbalance in sorted(table1.IMBALANCES)
    }


def head_first(record: Record) -> FloatArray:
    """p(y), the class with most training images first."""
    order = np.argsort(-np.asarray(record.counts), kind="stable")
    return np.asarray(record.marginal, np.float64)[order]


def marginals_digest(panels: Mapping[str, Mapping[str, FloatArray]]) -> str:
    """Names what the figure shows, so that a picture can be compared with the records."""
    content = {title: {method: p.tolist() for method, p in panel.items()} for title, panel in panels.items()}
    return digest(json.dumps(content))


def figure(panels: Mapping[str, Mapping[str, FloatArray]]) -> Spec:
    """p(y) by panel and method, [runs, K] with the head class first; a method without runs is named in its panel.

    Single classes are faint points, and a line is their mean over nine adjacent ones, so that the slope is seen behind
    the differences between classes.
    """
    every = [runs for panel in panels.values() for runs in panel.values() if len(runs)]
    highest = max((float(runs.mean(axis=0).max()) for runs in every), default=1.0)
    own = dict.fromkeys(("color", "shape", "strokeDash"), "independent")  # a legend in every panel
    parts = [_panel(title, panel, 1.25 * highest) for title, panel in panels.items()]
    return finished({"hconcat": parts, "resolve": {"scale": own, "legend": own}})


def _panel(title: str, panel: Mapping[str, FloatArray], highest: float) -> Spec:
    """One data set; methods keep their colours, shapes and dashes, whatever is missing."""
    styles = dict(zip(panel, zip(COLOURS, SHAPES, DASHES, strict=True), strict=False))
    present = {method: runs for method, runs in panel.items() if len(runs)}
    labels = {method: f"{method}, {np.abs(p - 1 / p.shape[1]).sum(1).mean() / 2:.2f}" for method, p in present.items()}
    rows = [
        {"method": labels[method], "rank": rank, "p": p, "shape": styles[method][1]}
        for method, runs in present.items()
        for rank, p in enumerate(runs.mean(axis=0).tolist(), start=1)
    ]
    domain = [*labels.values(), "uniform"]
    legend = LINES | {"orient": "top-right", "columns": 1, "title": "total variation from uniform", "labelFontSize": 13}
    shown = legend if present else None
    colour = by("method", domain, [*(styles[method][0] for method in present), "#5b636e"], shown)
    dash = by("method", domain, [*(styles[method][2] for method in present), [1, 0]], shown)
    shape = {"field": "shape", "type": "nominal", "scale": None, "legend": None}
    x = number("rank", "class, most training images first", scale={"nice": False, "zero": False})
    axis = {"format": ".2f", "tickMinStep": 0.01}
    y = number("p", "p(y): mean predicted probability", scale={"domain": [0, highest]}, axis=axis)
    uniform = {"values": [{"method": "uniform", "p": 1 / runs.shape[1]} for runs in [*present.values()][:1]]}
    line = {"x": x, "y": number("around"), "color": colour, "strokeDash": dash}
    means = smoothed("p", NEIGHBOURS // 2) | {"groupby": ["method"]}
    single = {"x": x, "y": y, "color": colour, "shape": shape}
    layers = [
        layer("point", {"filled": True, "size": 16, "opacity": 0.4}, single),
        layer("rule", {"strokeWidth": 1}, {"y": number("p"), "color": colour}, data=uniform),
        layer("line", {"strokeWidth": 3}, line, transform=[means]),
    ]
    absent = [method for method in panel if method not in present]
    if absent:
        words = {"align": "right", "text": ["not run yet:", *absent], "color": "#5b636e", "fontSize": 14}
        layers.append(layer("text", words, {"x": {"value": 390}, "y": {"value": 170}}, data={"values": [{}]}))
    return {"title": heading(title), "width": 400, "height": 340, "data": {"values": rows}, "layer": layers}
