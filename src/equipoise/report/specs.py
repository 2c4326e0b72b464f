"""The charts of the page as Vega-Lite specifications: plain data, filled with rows by `page_files/page.js`.

Colours are CSS variables of the page, so that light and dark need no second chart. Every group has a colour, a shape
and a dash of its own, before and after a colour and a dash: the page can be read in grey and by the colour-blind.
"""

from __future__ import annotations

from typing import Any

from equipoise.prior import Prior

Spec = dict[str, Any]

GROUPS = ["many", "medium", "few"]
ROLES = ["before", "after"]
GROUP_COLOUR: Spec = {"domain": GROUPS, "range": ["var(--many)", "var(--medium)", "var(--few)"]}
# A second name for the group: legends of one field would merge, and draw the dash around the shape.
OWN_LINE = [{"calculate": "datum.group + ' line'", "as": "line"}]
GROUP_SHAPE = {"domain": GROUPS, "range": ["circle", "square", "triangle-up"]}
GROUP_DASH: Spec = {"domain": [f"{name} line" for name in GROUPS], "range": [[1, 0], [6, 3], [2, 2]]}
ROLE_COLOUR = {"domain": ROLES, "range": ["var(--before)", "var(--after)"]}
ROLE_SHAPE = {"domain": [f"{role} point" for role in ROLES], "range": ["square", "circle"]}
ROLE_DASH = {"domain": ROLES, "range": [[5, 3], [1, 0]]}
LINES = {"symbolType": "stroke", "symbolSize": 300, "symbolOpacity": 1}
GROUP_WORDS = "datum.value == 'many' ? 'many, > 100' : datum.value == 'medium' ? 'medium, 20 to 100' : 'few, < 20'"
GROUP_LEGEND = {"labelExpr": GROUP_WORDS, "symbolOpacity": 1, "symbolSize": 90}
PERCENT = {"scale": {"domain": [0, 100]}, "axis": {"values": [0, 25, 50, 75, 100]}}
CROWDED = 150  # classes: beyond this, points are small and intervals faint

CONFIG: Spec = {
    "background": None,
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "gridColor": "var(--line)",
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "titleFontWeight": 500,
        "labelPadding": 6,
        "titlePadding": 8,
        "labelFontSize": 11.5,
        "titleFontSize": 12,
    },
    "axisX": {"grid": False},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": "var(--ink)",
        "labelFontSize": 12,
        "symbolStrokeWidth": 2,
        "columns": 3,
    },
    "text": {"fill": "var(--ink)", "fontSize": 12},
}


def charts(prior: Prior, *, pairs: int, several: bool = True) -> dict[str, Spec]:
    """Every chart of the report by name; `pairs` is the most rows of the chart of swallowed classes."""
    return {
        "counts": class_counts(prior),
        "classes": class_accuracy(prior),
        "marginal": marginal_likelihood(prior, several),
        "slopes": group_slopes(several),
        "flow": group_flow(),
        "swallowed": swallowed(pairs),
        "calibration": calibration(),
        "world": world_sweep(several),
        "tau": tau_sweep(),
    }


def class_counts(prior: Prior) -> Spec:
    """Training items of each class, largest first, on a logarithmic axis."""
    return _spec(
        "Training items of each class, largest first, on a logarithmic axis",
        height=220,
        mark={"type": "bar"},
        encoding={
            "x": {"field": "rank", "type": "ordinal", "axis": {"labels": False, "title": "class, largest first"}},
            "y": {
                "field": "shown",
                "type": "quantitative",
                "scale": {"type": "log", "domainMin": 0.7},
                "axis": {"title": "training items", "format": ",d", "values": ticks(prior, decades=True)},
            },
            "y2": {"datum": 0.7},
            "color": {"field": "group", "scale": GROUP_COLOUR, "legend": GROUP_LEGEND},
            "tooltip": _tooltip(name="class", count="training items", group="group"),
        },
    )


def class_accuracy(prior: Prior) -> Spec:
    """Accuracy of each class against its training items, by group, with intervals."""
    num_classes, crowded = prior.num_classes, prior.num_classes > CROWDED
    x = {
        "field": "shown",
        "type": "quantitative",
        "scale": {"type": "log", "reverse": True, "nice": False, "padding": 8, "domain": _extent(prior)},
        "axis": {"title": "training items of the class → rarer", "format": ",d", "values": ticks(prior)},
    }
    colour = {"field": "group", "scale": GROUP_COLOUR, "legend": GROUP_LEGEND}
    shape = {"field": "group", "scale": GROUP_SHAPE, "legend": GROUP_LEGEND}
    hover = {"param": "hovered", "empty": False}
    faint = 0.03 if crowded else 0.35
    beside = neighbours(num_classes)
    return _spec(
        "Accuracy of each class against its number of training items",
        height=300,
        layer=[
            {
                "mark": {"type": "rule", "strokeWidth": 1.2},
                "encoding": {
                    "x": x,
                    "y": {"field": "low", "type": "quantitative"},
                    "y2": {"field": "high"},
                    "color": colour,
                    "opacity": {"condition": hover | {"value": 1}, "value": faint},
                },
            },
            {
                "transform": [
                    {
                        "window": [{"op": "mean", "field": "accuracy", "as": "around"}],
                        "frame": [-beside, beside],
                        "sort": [{"field": "rank"}],
                    }
                ],
                "mark": {"type": "line", "color": "var(--ink)", "strokeWidth": 2.5 if crowded else 1.5, "opacity": 0.8},
                "encoding": {
                    "x": x,
                    "y": {"field": "around", "type": "quantitative"},
                    "order": {"field": "rank", "type": "quantitative"},
                },
            },
            {
                "params": [
                    {"name": "hovered", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}
                ],
                "mark": {"type": "point", "filled": True, "size": 30 if crowded else 85, "strokeWidth": 0.5},
                "encoding": {
                    "x": x,
                    "y": {"field": "accuracy", "type": "quantitative", "title": "accuracy, %"} | PERCENT,
                    "color": colour,
                    "shape": shape,
                    "opacity": {"condition": hover | {"value": 1}, "value": 0.6 if crowded else 0.9},
                    "tooltip": _tooltip(
                        name="class",
                        count="training items",
                        right="right",
                        interval="accuracy, 95 %",
                        group="group",
                    ),
                },
            },
        ],
    )


def marginal_likelihood(prior: Prior, several: bool) -> Spec:
    """The paper's figure: the mean predicted probability of each class, largest class first."""
    num_classes, few = prior.num_classes, prior.num_classes <= 20
    x: Spec = {"field": "rank", "type": "quantitative", "title": "class, most training items first"}
    x |= {"scale": {"nice": False, "domain": [1, num_classes]}, "axis": {"tickMinStep": 1, "labelSeparation": 8}}
    if few and prior.class_names is not None:
        x = {"field": "name", "type": "nominal", "sort": {"field": "rank"}, "title": "most training items first"}
        x |= {"axis": {"labelAngle": -40, "labelLimit": 90}}
    y = {"type": "quantitative", "title": "p(y), %", "scale": {"zero": True}}
    legend = LINES if several else None
    colour = {"field": "role", "scale": ROLE_COLOUR, "legend": legend}
    frame = 0 if few else max(2, num_classes // 25)
    smooth = [
        {
            "window": [{"op": "mean", "field": "p", "as": "around"}],
            "frame": [-frame, frame],
            "sort": [{"field": "rank"}],
            "groupby": ["role"],
        }
    ]
    return _spec(
        "Mean predicted probability of each class on the test set",
        height=300,
        layer=[
            {
                "transform": [{"calculate": "datum.role + ' point'", "as": "point"}],
                "mark": {"type": "point", "filled": True, "size": 40 if few else 14, "opacity": 0.8 if few else 0.4},
                "encoding": {
                    "x": x,
                    "y": y | {"field": "p"},
                    "color": colour,
                    "shape": {"field": "point", "scale": ROLE_SHAPE, "legend": None},
                    "tooltip": _tooltip(name="class", count="training items", p="p(y), %", model="model"),
                },
            },
            {
                "transform": smooth,
                "mark": {"type": "line", "strokeWidth": 2.5},
                "encoding": {
                    "x": x,
                    "y": y | {"field": "around"},
                    "color": colour,
                    "strokeDash": {"field": "role", "scale": ROLE_DASH, "legend": legend},
                },
            },
            {
                "data": {"values": [{"p": 100 / num_classes}]},
                "mark": {"type": "rule", "color": "var(--muted)", "strokeWidth": 1},
                "encoding": {"y": {"field": "p", "type": "quantitative"}},
            },
        ],
    )


def group_slopes(several: bool) -> Spec:
    """Many, medium and few, before → after."""
    x = {
        "field": "role",
        "type": "ordinal",
        "sort": ROLES,
        "scale": {"padding": 0.35},
        "axis": {"labels": several, "labelAngle": 0, "title": None, "labelFontSize": 13, "labelColor": "var(--ink)"},
    }
    colour = {"field": "group", "scale": GROUP_COLOUR, "legend": GROUP_LEGEND}
    dash = {"field": "line", "scale": GROUP_DASH, "legend": None}
    y = {"field": "accuracy", "type": "quantitative", "title": "mean accuracy of the group's classes, %"} | PERCENT
    label = {"type": "text", "baseline": "middle", "fontWeight": 600, "fontSize": 13}
    beside = {"field": "beside", "type": "quantitative"}  # where there is room for the number
    number = {"field": "accuracy", "type": "quantitative", "format": ".1f"}
    return _spec(
        "Mean accuracy of the classes with many, medium and few training items, before and after",
        height=320,
        layer=[
            {
                "mark": {"type": "rule", "strokeWidth": 6, "strokeOpacity": 0.25},
                "encoding": {
                    "x": x,
                    "y": {"field": "low", "type": "quantitative"},
                    "y2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "transform": OWN_LINE,
                "mark": {"type": "line", "strokeWidth": 3},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "strokeDash": dash,
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "shape": {"field": "group", "scale": GROUP_SHAPE, "legend": GROUP_LEGEND},
                    "tooltip": _tooltip(group="group", model="model", interval="accuracy, 95 %", classes="classes"),
                },
            },
            {
                "transform": [{"filter": "datum.role == 'before'"}],
                "mark": label | {"align": "right", "dx": -14},
                "encoding": {"x": x, "y": beside, "text": number},
            },
            {
                "transform": [{"filter": "datum.role == 'after'"}],
                "mark": label | {"align": "left", "dx": 14},
                "encoding": {"x": x, "y": beside, "text": number},
            },
        ],
    )


def group_flow() -> Spec:
    """Where the items of each group go: right, or to a wrong class of each group."""
    places = ["right", *GROUPS]
    colours = ["var(--right)", "var(--many)", "var(--medium)", "var(--few)"]
    words = "datum.value == 'right' ? 'right' : 'wrong, a class with ' + datum.value"
    common = {
        "y": {"field": "group", "type": "nominal", "sort": GROUPS, "axis": {"title": None, "labelFontSize": 13}},
        "x": {"field": "from", "type": "quantitative", "title": "share of the group's test items, %"} | PERCENT,
        "x2": {"field": "to"},
    }
    return _spec(
        "Where the test items of each group go",
        height=150,
        layer=[
            {
                "mark": {"type": "bar", "stroke": "var(--paper)", "height": {"band": 0.8}},
                "encoding": common
                | {
                    "color": {
                        "field": "place",
                        "scale": {"domain": places, "range": colours},
                        "legend": {"labelExpr": words, "columns": 2, "labelLimit": 0},
                    },
                    "tooltip": _tooltip(group="test items with", words="predicted as", share="share, %"),
                },
            },
            {
                "transform": [{"filter": "datum.to - datum.from > 9"}],
                "mark": {"type": "text", "fontWeight": 600, "fontSize": 12},
                "encoding": {
                    "y": common["y"],
                    "x": {"field": "middle", "type": "quantitative"},
                    "text": {"field": "label"},
                    "color": {
                        "condition": [
                            {"test": "datum.place == 'right'", "value": "var(--ink)"},
                            {"test": "datum.place == 'medium'", "value": "var(--on-medium)"},
                        ],
                        "value": "var(--on-colour)",
                    },
                },
            },
        ],
    )


def swallowed(pairs: int) -> Spec:
    """Which frequent classes swallow which rare ones: a bar with its interval, the names above it."""
    y = {"field": "place", "type": "ordinal", "axis": None, "scale": {"domain": list(range(max(pairs, 1)))}}
    tooltip = _tooltip(name="class", other="taken for", times="times", interval="share, 95 %")
    return _spec(
        "Classes that are taken for more frequent ones, as a share of their test items",
        height=38 * max(pairs, 1),
        layer=[
            {
                "mark": {"type": "bar", "height": 9, "yOffset": 9, "cornerRadiusEnd": 3},
                "encoding": {
                    "y": y,
                    "x": {"field": "share", "type": "quantitative", "title": "share of the class's test items, %"}
                    | PERCENT,
                    "color": {"field": "group", "scale": GROUP_COLOUR, "legend": None},
                    "tooltip": tooltip,
                },
            },
            {
                "mark": {"type": "rule", "yOffset": 9, "color": "var(--ink)", "strokeWidth": 1.2},
                "encoding": {"y": y, "x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}},
            },
            {
                "mark": {
                    "type": "text",
                    "align": "left",
                    "baseline": "middle",
                    "dy": -5,
                    "limit": {"expr": "max(width - 8, 60)"},
                },
                "encoding": {"y": y, "x": {"value": 2}, "text": {"field": "pair"}, "tooltip": tooltip},
            },
        ],
    )


def calibration() -> Spec:
    """Accuracy against confidence, by group."""
    x = {"field": "confidence", "type": "quantitative", "title": "confidence, %"} | PERCENT
    y = {"field": "accuracy", "type": "quantitative", "title": "accuracy, %"} | PERCENT
    colour = {"field": "group", "scale": GROUP_COLOUR, "legend": GROUP_LEGEND}
    dash = {"field": "line", "scale": GROUP_DASH, "legend": None}
    return _spec(
        "Accuracy against confidence for the classes with many, medium and few training items",
        height=300,
        layer=[
            {
                "data": {"values": [{"at": 0}, {"at": 100}]},
                "mark": {"type": "line", "color": "var(--muted)", "strokeWidth": 1},
                "encoding": {
                    "x": {"field": "at", "type": "quantitative"},
                    "y": {"field": "at", "type": "quantitative"},
                },
            },
            {
                "transform": OWN_LINE,
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "strokeDash": dash,
                },
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.9},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "shape": {"field": "group", "scale": GROUP_SHAPE, "legend": GROUP_LEGEND},
                    "size": {"field": "share", "type": "quantitative", "scale": {"range": [25, 260]}, "legend": None},
                    "tooltip": _tooltip(
                        group="group", items="test items", confidence="confidence, %", accuracy="accuracy, %"
                    ),
                },
            },
        ],
    )


def world_sweep(several: bool) -> Spec:
    """Accuracy as the deployed prior moves; the parameter `alpha` marks the world that the slider chose."""
    words = "datum.value == 1 ? 'as in training' : datum.value == 0 ? 'uniform' : 'reversed'"
    x = {
        "field": "alpha",
        "type": "quantitative",
        "scale": {"reverse": True, "nice": False, "domain": [-1, 1]},
        "axis": {"values": [1, 0, -1], "labelExpr": words, "title": "deployed prior", "labelBound": False},
    }
    y = {"field": "accuracy", "type": "quantitative", "title": "accuracy in that world, %", "scale": {"zero": False}}
    colour = {"field": "role", "scale": ROLE_COLOUR, "legend": LINES if several else None}
    dash = {
        "field": "how",
        "scale": {"domain": ["told the prior", "as it is"], "range": [[1, 0], [2, 3]]},
        "legend": LINES | {"symbolStrokeColor": "var(--muted)"},
    }
    tooltip = _tooltip(model="model", how="how", accuracy="accuracy, %", alpha="alpha")
    return _spec(
        "Accuracy as the deployed prior moves from long-tailed through uniform to reversed",
        height=300,
        params=[{"name": "alpha", "value": 0}],
        layer=_swept("alpha", {"x": x, "y": y, "color": colour}, dash, tooltip, width=2.5, size=90),
    )


def tau_sweep() -> Spec:
    """Accuracy of each group as tau moves; the parameter `tau` marks what the slider chose."""
    names = ["all", *GROUPS]
    colour = {
        "field": "group",
        "scale": {"domain": names, "range": ["var(--ink)", *GROUP_COLOUR["range"]]},
        "legend": LINES | {"columns": 4},
    }
    dash = {
        "field": "group",
        "scale": {"domain": names, "range": [[1, 0], *GROUP_DASH["range"]]},
        "legend": LINES | {"columns": 4},
    }
    x = {"field": "tau", "type": "quantitative", "scale": {"domain": [0, 2], "nice": False}, "title": "tau"}
    x |= {"axis": {"values": [0, 0.5, 1, 1.5, 2], "format": ".1f"}}
    y = {"field": "accuracy", "type": "quantitative", "title": "mean accuracy of classes, %"} | PERCENT
    tooltip = _tooltip(group="group", accuracy="accuracy, %", tau="tau")
    return _spec(
        "Accuracy of each group as tau moves from 0 to 2",
        height=300,
        params=[{"name": "tau", "value": 1}],
        layer=_swept("tau", {"x": x, "y": y, "color": colour}, dash, tooltip, width=2.2, size=70),
    )


def _swept(field: str, encoding: Spec, dash: Spec, tooltip: list[Spec], *, width: float, size: int) -> list[Spec]:
    """Lines over `field`, a rule at what the slider chose (the parameter of that name), and points where they cross."""
    return [
        _marker(field, field),
        {"mark": {"type": "line", "strokeWidth": width}, "encoding": encoding | {"strokeDash": dash}},
        {
            "transform": [{"filter": f"abs(datum.{field} - {field}) < 0.01"}],
            "mark": {"type": "point", "filled": True, "size": size, "opacity": 1},
            "encoding": encoding | {"tooltip": tooltip},
        },
    ]


# -------------------------------------------------------------------- shared


def ticks(prior: Prior, *, decades: bool = False) -> list[int]:
    """Round numbers of items on a logarithmic axis: 1, 10, 100, ... or, where these are few, 1, 3, 10, 30, ...

    >>> ticks(Prior.from_counts([500, 5])), ticks(Prior.from_counts([500_000, 5]))
    ([10, 30, 100, 300], [10, 100, 1000, 10000, 100000])
    """
    low, high = int(prior.counts.min()), int(prior.counts.max())
    powers = [10**power for power in range(len(str(high)))]
    every = powers if decades else [number for power in powers for number in (power, 3 * power)]
    found = [number for number in every if low <= number <= high]
    if len(found) > 6:
        found = [number for number in found if number in powers]
    return found or [high]


def neighbours(num_classes: int) -> int:
    """How many classes on either side the line through the classes averages; none where there are few of them."""
    return num_classes // 20


def _extent(prior: Prior) -> list[float]:
    """Both ends of an axis of training items, absent classes at 0.5; of some width where all classes are equal."""
    low, high = max(float(prior.counts.min()), 0.5), float(prior.counts.max())
    return [low, high] if low < high else [low / 2, 2 * high]


def _spec(description: str, *, height: int, **content: Any) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "rows"},
        "config": CONFIG,
    } | content


def _tooltip(**fields: str) -> list[Spec]:
    return [{"field": field, "type": "nominal", "title": title} for field, title in fields.items()]


def _marker(field: str, parameter: str) -> Spec:
    """A vertical line at the value of a parameter."""
    return {
        "data": {"values": [{}]},
        "transform": [{"calculate": parameter, "as": field}],
        "mark": {"type": "rule", "color": "var(--muted)", "strokeWidth": 1, "strokeDash": [3, 3]},
        "encoding": {"x": {"field": field, "type": "quantitative"}},
    }
