"""The paper's figure from records: p(y), the mean predicted probability of each class, at every imbalance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

import numpy as np

from equipoise.experiments.table1 import published as table1
from equipoise.experiments.table1.published import title_of
from equipoise.prior import FloatArray
from equipoise.report.figures import finished
from equipoise.report.specs import COLOURS, DASHES, LINES, SHAPES, Spec, number, smoothed
from equipoise.training.records import Record

DRAWN = ("softmax", "eql", "balanced_softmax")  # the methods of the figure
DRAWN_ON = "cifar100-lt"
NEIGHBOURS = 9  # classes that a line of the figure averages


def marginals(records: Iterable[Record]) -> dict[str, dict[str, FloatArray]]:
    """For the figure: by imbalance, by method, p(y) of each run [n, K], head class first; n may be 0."""
    records = list(records)
    panels: dict[str, dict[str, FloatArray]] = {}
    for imbalance in sorted(table1.IMBALANCES):
        panel = panels.setdefault(f"imbalance {imbalance}", {})
        for method in DRAWN:
            cell = (DRAWN_ON, imbalance, method)
            runs = [run for run in records if (run.data_set, run.imbalance, run.method) == cell]
            panel[title_of(method)] = np.array([head_first(run) for run in runs])
    return panels


def head_first(record: Record) -> FloatArray:
    """p(y), the class with most training images first."""
    order = np.argsort(-np.asarray(record.counts), kind="stable")
    p: FloatArray = np.asarray(record.marginal)[order]
    return p


def marginals_digest(panels: Mapping[str, Mapping[str, FloatArray]]) -> str:
    """Names what the figure shows, so that a picture can be compared with the records."""
    content = {title: {method: p.tolist() for method, p in panel.items()} for title, panel in panels.items()}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


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
    colours = {"domain": domain, "range": [*(styles[method][0] for method in present), "#5b636e"]}
    dashes = {"domain": domain, "range": [*(styles[method][2] for method in present), [1, 0]]}
    legend = LINES | {"orient": "top-right", "columns": 1, "title": "total variation from uniform", "labelFontSize": 13}
    colour = {"field": "method", "scale": colours, "legend": legend if present else None}
    dash = {"field": "method", "scale": dashes, "legend": legend if present else None}
    x = number("rank", "class, most training images first", scale={"nice": False, "zero": False})
    y = number(
        "p",
        "p(y): mean predicted probability",
        scale={"domain": [0, highest]},
        axis={"format": ".2f", "tickMinStep": 0.01},
    )
    uniform = [{"method": "uniform", "p": 1 / runs.shape[1]} for runs in [*present.values()][:1]]
    absent = [method for method in panel if method not in present]
    words = {"type": "text", "align": "right", "text": ["not run yet:", *absent], "color": "#5b636e", "fontSize": 14}
    layers: list[Spec] = [
        {
            "mark": {"type": "point", "filled": True, "size": 16, "opacity": 0.4},
            "encoding": {"x": x, "y": y, "color": colour}
            | {"shape": {"field": "shape", "type": "nominal", "scale": None, "legend": None}},
        },
        {
            "data": {"values": uniform},
            "mark": {"type": "rule", "strokeWidth": 1},
            "encoding": {"y": number("p"), "color": colour},
        },
        {
            "transform": [smoothed("p", NEIGHBOURS // 2) | {"groupby": ["method"]}],
            "mark": {"type": "line", "strokeWidth": 3},
            "encoding": {"x": x, "y": number("around"), "color": colour, "strokeDash": dash},
        },
    ]
    if absent:
        layers.append({"data": {"values": [{}]}, "mark": words, "encoding": {"x": {"value": 390}, "y": {"value": 170}}})
    heading = {"text": title, "fontSize": 16, "fontWeight": 500}
    return {"title": heading, "width": 400, "height": 340, "data": {"values": rows}, "layer": layers}
