"""Before and after from records: accuracy by group of classes, for the plain loss and for Balanced Softmax."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import mean

from equipoise.report.figures import digest, finished
from equipoise.report.specs import Spec, by, layer, number
from equipoise.report.tables import grouped
from equipoise.training.image_records import ImageRecord

METHODS = {"softmax": "cross-entropy", "balanced_softmax": "Balanced Softmax"}
GROUPS = {
    "many": "many: over 100 images",
    "medium": "medium: 20 to 100",
    "few": "few: under 20",
    "top1": "all classes",
}

Bars = Mapping[str, Mapping[str, Sequence[float]]]  # by group, by method: a number per seed


def bars(records: Sequence[ImageRecord]) -> Bars:
    """The accuracies of the seeds, by group and method, in percent."""
    runs = grouped(records, lambda record: record.method)
    return {
        title: {name: [float(getattr(run, group)) for run in runs.get(method, ())] for method, name in METHODS.items()}
        for group, title in GROUPS.items()
    }


def bars_digest(found: Bars) -> str:
    """Names what the figure shows, so that a picture can be compared with the records."""
    return digest(json.dumps(found))


def figure(found: Bars) -> Spec:
    """A pair of bars per group, the mean over seeds above each."""
    rows = [
        {"group": group, "method": method, "accuracy": mean(values), "shown": f"{mean(values):.1f}"}
        for group, methods in found.items()
        for method, values in methods.items()
        if values
    ]
    names = list(METHODS.values())
    axis = {"labelAngle": 0, "title": None, "labelFontSize": 13, "labelLimit": 200}
    x = {"field": "group", "type": "nominal", "sort": list(found), "axis": axis}
    offset = {"field": "method", "sort": names}
    y = number("accuracy", "accuracy on the balanced test set, %", scale={"domain": [0, 65]}, axis={"tickCount": 4})
    legend = {"title": None, "orient": "top-right", "columns": 1, "labelFontSize": 13, "symbolOpacity": 1}
    colour = by("method", names, ["#9aa1ab", "#0072B2"], legend)
    bar = {"cornerRadiusEnd": 2, "width": {"band": 0.92}}
    words = {"dy": -8, "fontSize": 13, "fontWeight": 500}
    layers = [
        layer("bar", bar, {"x": x, "xOffset": offset, "y": y, "color": colour}),
        layer("text", words, {"x": x, "xOffset": offset, "y": y, "text": {"field": "shown"}}),
    ]
    return finished({"width": 700, "height": 230, "data": {"values": rows}, "layer": layers})
