"""The charts of the page and of its figures as Vega-Lite specifications: plain data, without their rows.

`page_data` makes the rows, `page_files/page.js` fills a chart of the page with those of the chosen models, `figures`
one of a file. Charts of classes take columns, a list per quantity, and unfold them. Colours are CSS variables of the
page, so that light and dark need no second chart. Every group has a colour, a shape and a dash of its own, and so has
every line: a chart can be read in grey and by the colour-blind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.prior import Prior

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

GROUPS = ["many", "medium", "few"]
GROUP_COLOUR: Spec = {"domain": GROUPS, "range": ["var(--many)", "var(--medium)", "var(--few)"]}
# A second name for the group: legends of one field would merge, and draw the dash around the shape.
OWN_LINE = [{"calculate": "datum.group + ' line'", "as": "line"}]
GROUP_SHAPE = {"domain": GROUPS, "range": ["circle", "square", "triangle-up"]}
GROUP_DASH: Spec = {"domain": [f"{name} line" for name in GROUPS], "range": [[1, 0], [6, 3], [2, 2]]}
# Of two lines the page's own; of more, the colours of Okabe and Ito.
ROLE_COLOURS = ["var(--before)", "var(--after)"]
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right"]
DASHES = [[1, 0], [6, 3], [7, 2, 2, 2], [2, 2], [9, 2], [5, 1, 1, 1], [1, 1]]
LINES = {"symbolType": "stroke", "symbolSize": 300, "symbolOpacity": 1, "labelLimit": 0}
GROUP_WORDS = "datum.value == 'many' ? 'many, > 100' : datum.value == 'medium' ? 'medium, 20 to 100' : 'few, < 20'"
GROUP_LEGEND = {"labelExpr": GROUP_WORDS, "symbolOpacity": 1, "symbolSize": 90}
PERCENT = {"scale": {"domain": [0, 100]}, "axis": {"values": [0, 25, 50, 75, 100]}}
BY_GROUP: Spec = {"field": "group", "scale": GROUP_COLOUR, "legend": GROUP_LEGEND}
BY_SHAPE: Spec = {"field": "group", "scale": GROUP_SHAPE, "legend": GROUP_LEGEND}
BY_DASH: Spec = {"field": "line", "scale": GROUP_DASH, "legend": None}
CROWDED = 150  # classes: beyond this, points are small and intervals faint
MOST_NAMES = 20  # of classes on an axis

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


def charts(prior: Prior, *, pairs: int, lines: Sequence[str]) -> dict[str, Spec]:
    """Every chart of the report by name; `pairs` is the most rows of the chart of swallowed classes, and `lines` are
    the models of charts that show several."""
    return {
        "counts": class_counts(prior),
        "classes": class_accuracy(prior),
        "marginal": marginal_likelihood(prior, lines),
        "slopes": group_slopes(lines),
        "flow": group_flow(),
        "swallowed": swallowed(pairs),
        "calibration": calibration(),
        "world": world_sweep(lines),
        "tau": tau_sweep(),
    }


def class_counts(prior: Prior, most_names: int = 0) -> Spec:
    """Training items of each class, largest first, on a logarithmic axis; with names where they are few."""
    x: Spec = {"field": "rank", "type": "ordinal", "axis": {"labels": False, "title": "class, largest first"}}
    if prior.class_names is not None and prior.num_classes <= most_names:
        x = {"field": "name", "type": "nominal", "sort": {"field": "rank"}, "title": "largest first"}
        x |= {"axis": {"labelAngle": -40 if prior.num_classes <= MOST_NAMES else -90, "labelLimit": 120}}
    scale = {"type": "log", "domainMin": 0.7}
    values = ticks(prior, decades=True)
    return _spec(
        "Training items of each class, largest first, on a logarithmic axis",
        height=220,
        transform=_columns("name", "rank", "count", "group") + computed(shown="max(datum.count, 0.7)", **COUNTED),
        mark={"type": "bar"},
        encoding={
            "x": x,
            "y": number("shown", "training items", scale=scale, axis={"format": ",d", "values": values}),
            "y2": {"datum": 0.7},
            "color": BY_GROUP,
            "tooltip": _tooltip(name="class", counted="training items", group="group"),
        },
    )


def class_accuracy(prior: Prior) -> Spec:
    """Accuracy of each class against its training items, by group, with intervals; the absent at half an item."""
    crowded, beside = prior.num_classes > CROWDED, neighbours(prior.num_classes)
    scale = {"type": "log", "reverse": True, "nice": False, "padding": 8, "domain": _extent(prior)}
    title = "training items of the class → rarer"
    x = number("shown", title, scale=scale, axis={"format": ",d", "values": ticks(prior)})
    hover = {"param": "hovered", "empty": False, "value": 1}
    unfolded = _columns("name", "rank", "count", "group", "items", "accuracy", "low", "high")
    derived = computed(
        shown="max(datum.count, 0.5)",
        percent="100 * datum.accuracy",
        below="100 * datum.low",
        above="100 * datum.high",
        right="format(100 * datum.accuracy, '.1f') + ' % of ' + format(datum.items, ',')",
        interval="format(100 * datum.low, '.1f') + ' to ' + format(100 * datum.high, '.1f')",
        **COUNTED,
    )
    tooltip = {"name": "class", "counted": "training items", "right": "right", "interval": "accuracy, 95 %"}
    select = {"type": "point", "on": "pointerover", "clear": "pointerout"}
    intervals = {
        "mark": {"type": "rule", "strokeWidth": 1.2},
        "encoding": {"x": x, "y": number("below"), "y2": {"field": "above"}, "color": BY_GROUP}
        | {"opacity": {"condition": hover, "value": 0.03 if crowded else 0.35}},
    }
    line = {
        "transform": [smoothed("percent", beside)],
        "mark": {"type": "line", "color": "var(--ink)", "strokeWidth": 2.5 if crowded else 1.5, "opacity": 0.8},
        "encoding": {"x": x, "y": number("around"), "order": number("rank")},
    }
    points = {
        "params": [{"name": "hovered", "select": select}],
        "mark": {"type": "point", "filled": True, "size": 30 if crowded else 85, "strokeWidth": 0.5},
        "encoding": {"x": x, "y": number("percent", "accuracy, %", **PERCENT), "color": BY_GROUP, "shape": BY_SHAPE}
        | {"opacity": {"condition": hover, "value": 0.6 if crowded else 0.9}}
        | {"tooltip": _tooltip(**tooltip, group="group")},
    }
    return _spec(
        "Accuracy of each class against its number of training items",
        height=300,
        transform=[*unfolded, {"filter": "datum.items > 0"}, *derived],
        layer=[intervals, line, points],
    )


def marginal_likelihood(prior: Prior, lines: Sequence[str]) -> Spec:
    """The paper's figure: the mean predicted probability of each class, largest class first."""
    num_classes, few = prior.num_classes, prior.num_classes <= MOST_NAMES
    scale = {"nice": False, "domain": [1, num_classes]}
    axis = {"tickMinStep": 1, "labelSeparation": 8}
    x = number("rank", "class, most training items first", scale=scale, axis=axis)
    if few and prior.class_names is not None:
        x = {"field": "name", "type": "nominal", "sort": {"field": "rank"}, "title": "most training items first"}
        x |= {"axis": {"labelAngle": -40, "labelLimit": 90}}
    colour, shape, dash = _line_scales(lines)
    shape |= {"field": "point", "legend": None}  # a second name for the line: one legend, that of the dashes
    shape["scale"] |= {"domain": [f"{name} point" for name in lines]}
    title = "p(y), %"
    points = {
        "mark": {"type": "point", "filled": True, "size": 40 if few else 14, "opacity": 0.8 if few else 0.4},
        "encoding": {"x": x, "y": number("percent", title), "color": colour, "shape": shape}
        | {"tooltip": _tooltip(name="class", counted="training items", percent="p(y), %", model="model")},
    }
    means = {
        "transform": [smoothed("percent", 0 if few else max(2, num_classes // 25)) | {"groupby": ["role"]}],
        "mark": {"type": "line", "strokeWidth": 2.5},
        "encoding": {"x": x, "y": number("around", title), "color": colour, "strokeDash": dash},
    }
    uniform = {
        "data": {"values": [{"percent": 100 / num_classes}]},
        "mark": {"type": "rule", "color": "var(--muted)", "strokeWidth": 1},
        "encoding": {"y": number("percent")},
    }
    derived = computed(percent="100 * datum.p", point="datum.role + ' point'", **COUNTED)
    return _spec(
        "Mean predicted probability of each class on the test set",
        height=300,
        transform=_columns("name", "rank", "count", "p") + derived,
        layer=[points, means, uniform],
    )


def group_slopes(lines: Sequence[str]) -> Spec:
    """Many, medium and few, before → after; numbers stand outside of the lines."""
    several = len(lines) > 1
    axis = {"labels": several, "labelAngle": 0, "title": None, "labelFontSize": 13, "labelColor": "var(--ink)"}
    x = {"field": "role", "type": "ordinal", "sort": list(lines), "scale": {"padding": 0.35}, "axis": axis}
    y = number("accuracy", "mean accuracy of the group's classes, %", **PERCENT)
    label = {"type": "text", "baseline": "middle", "fontWeight": 600, "fontSize": 13}
    numbers = {"x": x, "y": number("beside"), "text": number("accuracy", format=".1f")}
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 6, "strokeOpacity": 0.25},
            "encoding": {"x": x, "y": number("low"), "y2": {"field": "high"}, "color": BY_GROUP},
        },
        {
            "transform": OWN_LINE,
            "mark": {"type": "line", "strokeWidth": 3},
            "encoding": {"x": x, "y": y, "color": BY_GROUP, "strokeDash": BY_DASH},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": BY_GROUP, "shape": BY_SHAPE}
            | {"tooltip": _tooltip(group="group", model="model", interval="accuracy, 95 %", classes="classes")},
        },
    ]
    behind = {"stroke": "var(--paper)", "strokeWidth": 5, "strokeJoin": "round"}  # where lines pass
    for halo in (behind, {}) if len(lines) > 2 else ({},):
        right = {"mark": label | {"align": "left", "dx": 14} | halo, "encoding": numbers}
        layers.append(right | {"transform": [{"filter": "datum.place > 0" if several else "true"}]})
    left = {"mark": label | {"align": "right", "dx": -14}, "encoding": numbers}
    layers += [left | {"transform": [{"filter": "datum.place == 0"}]}] * several
    return _spec(
        "Mean accuracy of the classes with many, medium and few training items, before and after",
        height=320,
        layer=layers,
    )


def group_flow() -> Spec:
    """Where the items of each group go: right, or to a wrong class of each group."""
    scale = {"domain": ["right", *GROUPS], "range": ["var(--right)", *GROUP_COLOUR["range"]]}
    words = "datum.value == 'right' ? 'right' : 'wrong, a class with ' + datum.value"
    legend = {"labelExpr": words, "columns": 2, "labelLimit": 0}
    y = {"field": "group", "type": "nominal", "sort": GROUPS, "axis": {"title": None, "labelFontSize": 13}}
    x = number("from", "share of the group's test items, %", **PERCENT)
    bars = {
        "mark": {"type": "bar", "stroke": "var(--paper)", "height": {"band": 0.8}},
        "encoding": {"y": y, "x": x, "x2": {"field": "to"}}
        | {"color": {"field": "end", "scale": scale, "legend": legend}}
        | {"tooltip": _tooltip(group="test items with", words="predicted as", share="share, %")},
    }
    ink = [
        {"test": "datum.end == 'right'", "value": "var(--ink)"},
        {"test": "datum.end == 'medium'", "value": "var(--on-medium)"},
    ]
    labels = {
        "transform": [{"filter": "datum.to - datum.from > 9"}],
        "mark": {"type": "text", "fontWeight": 600, "fontSize": 12},
        "encoding": {"y": y, "x": number("middle"), "text": {"field": "label"}}
        | {"color": {"condition": ink, "value": "var(--on-colour)"}},
    }
    derived = computed(
        middle="(datum.from + datum.to) / 2",
        label="round(datum.to - datum.from) + ' %'",
        share="format(datum.to - datum.from, '.1f')",
        words="datum.end == 'right' ? 'what they are' : 'another class with ' + datum.end",
    )
    description = "Where the test items of each group go"
    return _spec(description, height=150, transform=derived, layer=[bars, labels])


def swallowed(pairs: int) -> Spec:
    """Which frequent classes swallow which rare ones: a bar with its interval, the names above it."""
    y = {"field": "rank", "type": "ordinal", "axis": None, "scale": {"domain": list(range(max(pairs, 1)))}}
    tooltip = _tooltip(name="class", other="taken for", times="times", interval="share, 95 %")
    title = "share of the class's test items, %"
    words = {"type": "text", "align": "left", "baseline": "middle", "dy": -5}
    return _spec(
        "Classes that are taken for more frequent ones, as a share of their test items",
        height=38 * max(pairs, 1),
        layer=[
            {
                "mark": {"type": "bar", "height": 9, "yOffset": 9, "cornerRadiusEnd": 3},
                "encoding": {"y": y, "x": number("share", title, **PERCENT), "tooltip": tooltip}
                | {"color": {"field": "group", "scale": GROUP_COLOUR, "legend": None}},
            },
            {
                "mark": {"type": "rule", "yOffset": 9, "color": "var(--ink)", "strokeWidth": 1.2},
                "encoding": {"y": y, "x": number("low"), "x2": {"field": "high"}},
            },
            {
                "mark": words | {"limit": {"expr": "max(width - 8, 60)"}},
                "encoding": {"y": y, "x": {"value": 2}, "text": {"field": "pair"}, "tooltip": tooltip},
            },
        ],
    )


def calibration() -> Spec:
    """Accuracy against confidence, by group."""
    x, y = (number(name, f"{name}, %", **PERCENT) for name in ("confidence", "accuracy"))
    size = number("share", scale={"range": [25, 260]}, legend=None)
    titles = {"group": "group", "items": "test items", "confidence": "confidence, %", "accuracy": "accuracy, %"}
    return _spec(
        "Accuracy against confidence for the classes with many, medium and few training items",
        height=300,
        layer=[
            {
                "data": {"values": [{"at": 0}, {"at": 100}]},
                "mark": {"type": "line", "color": "var(--muted)", "strokeWidth": 1},
                "encoding": {"x": number("at"), "y": number("at")},
            },
            {
                "transform": OWN_LINE,
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": BY_GROUP, "strokeDash": BY_DASH},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.9},
                "encoding": {"x": x, "y": y, "color": BY_GROUP, "shape": BY_SHAPE}
                | {"size": size, "tooltip": _tooltip(**titles)},
            },
        ],
    )


def world_sweep(lines: Sequence[str]) -> Spec:
    """Accuracy as the deployed prior moves; the parameter `alpha` marks the world that the slider chose."""
    words = "datum.value == 1 ? 'as in training' : datum.value == 0 ? 'uniform' : 'reversed'"
    scale = {"reverse": True, "nice": False, "domain": [-1, 1]}
    axis = {"values": [1, 0, -1], "labelExpr": words, "labelBound": False}
    x = number("alpha", "deployed prior", scale=scale, axis=axis)
    y = number("accuracy", "accuracy in that world, %", scale={"zero": False})
    dash = {
        "field": "how",
        "scale": {"domain": ["told the prior", "as it is"], "range": [[1, 0], [2, 3]]},
        "legend": LINES | {"symbolStrokeColor": "var(--muted)"},
    }
    tooltip = _tooltip(model="model", how="how", accuracy="accuracy, %", alpha="alpha")
    colour, shape, _ = _line_scales(lines)
    if len(lines) > 1:
        colour["legend"] = shape["legend"] = {"symbolSize": 90, "symbolOpacity": 1, "labelLimit": 0, "padding": 4}
    return _spec(
        "Accuracy as the deployed prior moves from long-tailed through uniform to reversed",
        height=300,
        params=[{"name": "alpha", "value": 0}],
        layer=_swept("alpha", {"x": x, "y": y, "color": colour}, dash, {"tooltip": tooltip, "shape": shape}, 2.5, 90),
    )


def tau_sweep(tau: float = 1) -> Spec:
    """Accuracy of each group as tau moves; the parameter `tau` marks what the slider chose."""
    names, legend = ["all", *GROUPS], LINES | {"columns": 4}
    colours, dashes = ["var(--ink)", *GROUP_COLOUR["range"]], [[1, 0], *GROUP_DASH["range"]]
    colour = {"field": "group", "scale": {"domain": names, "range": colours}, "legend": legend}
    dash = {"field": "group", "scale": {"domain": names, "range": dashes}, "legend": legend}
    axis = {"values": [0, 0.5, 1, 1.5, 2], "format": ".1f"}
    x = number("tau", "tau", scale={"domain": [0, 2], "nice": False}, axis=axis)
    y = number("accuracy", "mean accuracy of classes, %", **PERCENT)
    tooltip = _tooltip(group="group", accuracy="accuracy, %", tau="tau")
    return _spec(
        "Accuracy of each group as tau moves from 0 to 2",
        height=300,
        params=[{"name": "tau", "value": tau}],
        layer=_swept("tau", {"x": x, "y": y, "color": colour}, dash, {"tooltip": tooltip}, 2.2, 70),
    )


def _swept(field: str, encoding: Spec, dash: Spec, points: Spec, width: float, size: int) -> list[Spec]:
    """Lines over `field`, a rule at what the slider chose (the parameter of that name), and points where they cross."""
    return [
        {
            "data": {"values": [{}]},
            "transform": computed(**{field: field}),
            "mark": {"type": "rule", "color": "var(--muted)", "strokeWidth": 1, "strokeDash": [3, 3]},
            "encoding": {"x": number(field)},
        },
        {"mark": {"type": "line", "strokeWidth": width}, "encoding": encoding | {"strokeDash": dash}},
        {
            "transform": [{"filter": f"abs(datum.{field} - {field}) < 0.01"}],
            "mark": {"type": "point", "filled": True, "size": size, "opacity": 1},
            "encoding": encoding | points,
        },
    ]


# -------------------------------------------------------------------- shared


def ticks(prior: Prior, *, decades: bool = False) -> list[int]:
    """Round numbers of items on a logarithmic axis: 1, 10, 100, ... or, where these are few, 1, 3, 10, 30, ...

    >>> from equipoise.prior import Prior
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
        "$schema": SCHEMA,
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "rows"},
        "config": CONFIG,
    } | content


def number(field: str, title: str | None = None, **more: Any) -> Spec:
    named = {} if title is None else {"title": title}
    return {"field": field, "type": "quantitative", **named, **more}


def _columns(*fields: str) -> list[Spec]:
    """Unfold columns into rows, a row per class."""
    return [{"flatten": list(fields)}]


def computed(**fields: str) -> list[Spec]:
    """Fields that are computed from others."""
    return [{"calculate": expression, "as": name} for name, expression in fields.items()]


COUNTED = {"counted": "format(datum.count, ',')"}


def smoothed(field: str, beside: int) -> Spec:
    """The mean of each class and of so many on either side."""
    mean = {"op": "mean", "field": field, "as": "around"}
    return {"window": [mean], "frame": [-beside, beside], "sort": [{"field": "rank"}]}


def _line_scales(lines: Sequence[str]) -> tuple[Spec, Spec, Spec]:
    """Colour, shape and dash of the models of a chart; where there are two, the first is dashed."""
    pair, legend = len(lines) <= 2, LINES if len(lines) > 1 else None
    colours = ROLE_COLOURS[-len(lines) :] if pair else COLOURS[: len(lines)]
    dashes = [[5, 3], [1, 0]][-len(lines) :] if pair else DASHES[: len(lines)]
    shapes = ["square", "circle"][-len(lines) :] if pair else SHAPES[: len(lines)]
    colour, shape, dash = (
        {"field": "role", "scale": {"domain": list(lines), "range": found}, "legend": legend}
        for found in (colours, shapes, dashes)
    )
    return colour, shape, dash


def _tooltip(**fields: str) -> list[Spec]:
    return [{"field": field, "type": "nominal", "title": title} for field, title in fields.items()]
