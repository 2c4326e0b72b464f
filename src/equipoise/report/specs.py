"""The charts of the page and of its figures as Vega-Lite specifications: plain data, without their rows.

`page_data` makes the rows; `page_files/page.js` fills a chart of the page with those of the chosen models, `figures`
fills one of a file. Charts of classes take columns, a list per quantity, and unfold them. Colours are CSS variables of
the page, so that light and dark mode need no second chart. Every group has its own colour, shape and dash, and so does
every line, so that a chart can be read in greyscale and by the colour-blind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from equipoise.report.groups import GROUPS, USUAL, Cuts

if TYPE_CHECKING:
    from equipoise.prior import Prior

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

GROUP_COLOURS = ["var(--many)", "var(--medium)", "var(--few)"]
GROUP_DASHES = [[1, 0], [6, 3], [2, 2]]
# For two lines the page's own colours; for more, those of Okabe and Ito.
ROLE_COLOURS = ["var(--before)", "var(--after)"]
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right"]
DASHES = [[1, 0], [6, 3], [7, 2, 2, 2], [2, 2], [9, 2], [5, 1, 1, 1], [1, 1]]
LINES = {"symbolType": "stroke", "symbolSize": 300, "symbolOpacity": 1, "labelLimit": 0}
# A model's name. On the page, where lines are "before" and "after", it comes from the parameter that page.js sets.
CALLED = "names[datum.value] || datum.value"
NAMES: Spec = {"name": "names", "value": {}}
MODELS: Spec = {"labelExpr": CALLED, "aria": False}  # of an axis or a legend, which is not announced: SPOKEN is
SPOKEN: Spec = {"description": {"field": "spoken"}}  # what a screen reader announces for a point or a bar
PERCENT = {"scale": {"domain": [0, 100]}, "axis": {"values": [0, 25, 50, 75, 100]}}
CROWDED = 150  # classes: with more, points are small and intervals faint
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


# -------------------------------------------------------------------- parts of charts


def layer(mark: str, look: Spec, encoding: Spec, **more: Any) -> Spec:
    """One layer; `more` is what else it has: transform, data, params. Screen readers announce points and bars, but not
    the lines and numbers beside them."""
    spoken = {} if mark in ("point", "bar") else {"aria": False}
    return {"mark": {"type": mark} | spoken | look, "encoding": encoding, **more}


def number(field: str, title: str | None = None, **more: Any) -> Spec:
    named = {} if title is None else {"title": title}
    return {"field": field, "type": "quantitative", **named, **more}


def by(field: str, names: Sequence[str], looks: Sequence[Any], legend: Spec | None = None) -> Spec:
    """A channel that shows each name of a field in its own way."""
    return {"field": field, "scale": {"domain": list(names), "range": list(looks)}, "legend": legend}


def computed(**fields: str) -> list[Spec]:
    """Fields that are computed from others."""
    return [{"calculate": expression, "as": name} for name, expression in fields.items()]


def smoothed(field: str, beside: int) -> Spec:
    """The mean of each class and its neighbours on either side."""
    mean = {"op": "mean", "field": field, "as": "around"}
    return {"window": [mean], "frame": [-beside, beside], "sort": [{"field": "rank"}]}


def ticks(prior: Prior, *, decades: bool = False) -> list[int]:
    """Round numbers of items on a logarithmic axis: 1, 10, 100, ... or, if these are few, 1, 3, 10, 30, ...

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
    """How many classes on either side the line through the classes averages; none if there are few classes."""
    return num_classes // 20


def extent(prior: Prior) -> list[float]:
    """Both ends of an axis of training items, with absent classes at 0.5; it has some width even if all classes are
    equal."""
    low, high = max(float(prior.counts.min()), 0.5), float(prior.counts.max())
    return [low, high] if low < high else [low / 2, 2 * high]


def chart(description: str, height: int, **content: Any) -> Spec:
    return {
        "$schema": SCHEMA,
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "rows"},
        "config": CONFIG,
    } | content


def unfold(*fields: str) -> list[Spec]:
    """Unfold columns into rows, one per class."""
    return [{"flatten": list(fields)}]


def _names(title: str, angle: int, longest: int) -> Spec:
    """An axis of class names, in the order of their ranks."""
    axis = {"labelAngle": angle, "labelLimit": longest}
    return {"field": "name", "type": "nominal", "sort": {"field": "rank"}, "title": title, "axis": axis}


def points(size: int, opacity: float) -> Spec:
    return {"filled": True, "size": size, "opacity": opacity}


def line_scales(lines: Sequence[str]) -> tuple[Spec, Spec, Spec]:
    """Colour, shape and dash of the models of a chart; where there are two, the first is dashed."""
    n, legend = len(lines), LINES | MODELS if len(lines) > 1 else None
    looks: tuple[Sequence[Any], ...] = (COLOURS[:n], SHAPES[:n], DASHES[:n])
    if n <= 2:
        looks = (ROLE_COLOURS[-n:], ["square", "circle"][-n:], [[5, 3], [1, 0]][-n:])
    colour, shape, dash = (by("role", lines, look, legend) for look in looks)
    return colour, shape, dash


def tooltip(**fields: str) -> list[Spec]:
    return [{"field": field, "type": "nominal", "title": title} for field, title in fields.items()]


class Looks(NamedTuple):
    """How the three groups are distinguished: by colour and shape, and their lines by dash."""

    colour: Spec
    shape: Spec
    dash: Spec


def looks(names: Sequence[str], legend: Spec) -> Looks:
    """The looks of groups with these names, from the largest classes to the smallest."""
    dash = by("line", [f"{name} line" for name in names], GROUP_DASHES)
    return Looks(by("group", names, GROUP_COLOURS, legend), by("group", names, SHAPES[:3], legend), dash)


def by_count(cuts: Cuts = USUAL) -> Looks:
    """The looks of many, medium and few, with what each means."""
    return looks(GROUPS, group_legend(cuts.words))


def group_legend(words: Mapping[str, str]) -> Spec:
    """A legend of groups in words."""
    *most, last = words.items()
    expression = "".join(f"datum.value == '{name}' ? '{text}' : " for name, text in most) + f"'{last[1]}'"
    return {"labelExpr": expression, "symbolOpacity": 1, "symbolSize": 90}


BY_COUNT = by_count()
# A second name for the group: legends of one field would merge, and draw the dash around the shape.
OWN_LINE = computed(line="datum.group + ' line'")
COUNTED = {"counted": "format(datum.count, ',')"}


# -------------------------------------------------------------------- charts


def charts(prior: Prior, *, pairs: int, lines: Sequence[str], cuts: Cuts = USUAL) -> dict[str, Spec]:
    """Every chart of the report by name; `pairs` is the most rows of the chart of swallowed classes, and `lines` are
    the models of charts that show several."""
    groups = by_count(cuts)
    return {
        "classes": class_accuracy(prior, groups),
        "marginal": marginal_likelihood(prior, lines),
        "slopes": group_slopes(lines, groups=groups),
        "flow": group_flow(),
        "swallowed": swallowed(pairs, groups),
        "calibration": calibration(groups=groups),
    }


def one_digit(share: str) -> str:
    """The expression that writes a share in percent with one digit, as `percent` does."""
    return f"format(floor(1000 * {share} + 0.500001) / 10, '.1f')"


def class_accuracy(prior: Prior, groups: Looks = BY_COUNT) -> Spec:
    """Accuracy of each class against its training items, by group, with intervals; absent classes at half an item."""
    right = f"{one_digit('datum.accuracy')} + ' % of ' + format(datum.items, ',')"
    return class_scores(prior, "accuracy", "accuracy", ("low", "high"), ("right", right), groups)


def class_scores(
    prior: Prior, field: str, title: str, ends: tuple[str, str], words: tuple[str, str], groups: Looks
) -> Spec:
    """A score of each class against its training items. `ends` are the fields of its interval, or None; `words` are the
    score's name in the tooltip, and how it is written."""
    crowded, beside = prior.num_classes > CROWDED, neighbours(prior.num_classes)
    scale = {"type": "log", "reverse": True, "nice": False, "padding": 8, "domain": extent(prior)}
    low, high = ends
    x = number(
        "shown", "training items of the class (rarer →)", scale=scale, axis={"format": ",d", "values": ticks(prior)}
    )
    hover = {"param": "hovered", "empty": False, "value": 1}
    derived = computed(
        shown="max(datum.count, 0.5)",
        percent=f"100 * datum.{field}",
        below=f"100 * datum.{low}",
        above=f"100 * datum.{high}",
        words=words[1],
        interval=f"datum.{low} === null ? '–' : {one_digit(f'datum.{low}')} + ' to ' + {one_digit(f'datum.{high}')}",
        spoken=f"datum.name + ': {title} ' + {one_digit(f'datum.{field}')} + ' %, ' + format(datum.count, ',') + "
        "' training items'",
        **COUNTED,
    )
    fields = {"name": "class", "counted": "training items", "words": words[0], "interval": f"{title}, 95 %"}
    interval = {"x": x, "y": number("below"), "y2": {"field": "above"}, "color": groups.colour}
    interval |= {"opacity": {"condition": hover, "value": 0.03 if crowded else 0.35}}
    line = {"color": "var(--ink)", "strokeWidth": 2.5 if crowded else 1.5, "opacity": 0.8}
    around = {"x": x, "y": number("around"), "order": number("rank")}
    y = number("percent", f"{title}, %", **PERCENT)
    point: Spec = {"x": x, "y": y, "color": groups.colour, "shape": groups.shape}
    point |= {"opacity": {"condition": hover, "value": 0.6 if crowded else 0.9}}
    point |= {"tooltip": tooltip(**fields, group="group")} | SPOKEN
    select = {"type": "point", "on": "pointerover", "clear": "pointerout"}
    look = {"filled": True, "size": 30 if crowded else 85, "strokeWidth": 0.5}
    unfolded = unfold("name", "rank", "count", "group", "items", field, low, high)
    return chart(
        f"{title[0].upper()}{title[1:]} of each class against its number of training items",
        300,
        transform=[*unfolded, {"filter": "datum.items > 0"}, *derived],
        layer=[
            layer("rule", {"strokeWidth": 1.2}, interval, transform=[{"filter": f"datum.{low} !== null"}]),
            layer("line", line, around, transform=[smoothed("percent", beside)]),
            layer("point", look, point, params=[{"name": "hovered", "select": select}]),
        ],
    )


def marginal_likelihood(prior: Prior, lines: Sequence[str]) -> Spec:
    """The paper's figure: the mean predicted probability of each class, largest class first."""
    num_classes, few = prior.num_classes, prior.num_classes <= MOST_NAMES
    scale, axis = {"nice": False, "domain": [1, num_classes]}, {"tickMinStep": 1, "labelSeparation": 8}
    x = number("rank", "class, most training items first", scale=scale, axis=axis)
    if few and prior.class_names is not None:
        x = _names("most training items first", -40, 90)
    colour, shape, dash = line_scales(lines)
    # a second name for the line: one legend, that of the dashes
    shape = by("point", [f"{name} point" for name in lines], shape["scale"]["range"])
    title = "p(y), %"
    shown = tooltip(name="class", counted="training items", percent="p(y), %", model="model")
    single = {"x": x, "y": number("percent", title), "color": colour, "shape": shape, "tooltip": shown} | SPOKEN
    line = {"x": x, "y": number("around", title), "color": colour, "strokeDash": dash}
    means = smoothed("percent", 0 if few else max(2, num_classes // 25)) | {"groupby": ["role"]}
    uniform = {"values": [{"percent": 100 / num_classes}]}
    derived = computed(percent="100 * datum.p", point="datum.role + ' point'", **COUNTED)
    derived += computed(spoken="datum.name + ', ' + datum.model + ': p(y) ' + format(datum.percent, '.3~r') + ' %'")
    return chart(
        "Mean predicted probability of each class on the test set",
        300,
        params=[NAMES],
        transform=unfold("name", "rank", "count", "p") + derived,
        layer=[
            layer("point", points(40, 0.8) if few else points(14, 0.4), single),
            layer("line", {"strokeWidth": 2.5}, line, transform=[means]),
            layer("rule", {"color": "var(--muted)", "strokeWidth": 1}, {"y": number("percent")}, data=uniform),
        ],
    )


def group_slopes(lines: Sequence[str], title: str = "accuracy", groups: Looks = BY_COUNT) -> Spec:
    """Many, medium and few, before → after; the numbers are outside of the lines."""
    several = len(lines) > 1
    axis = {"labels": several, "labelAngle": 0, "title": None, "labelFontSize": 13, "labelColor": "var(--ink)"}
    axis |= MODELS | {"labelLimit": {"expr": f"width / {len(lines)} - 12"}}
    x = {"field": "role", "type": "ordinal", "sort": list(lines), "scale": {"padding": 0.35}, "axis": axis}
    mean = {"x": x, "y": number("accuracy", f"mean {title} of the classes, %", **PERCENT)}
    mean |= {"color": groups.colour}
    interval = {"x": x, "y": number("low"), "y2": {"field": "high"}, "color": groups.colour}
    shown = tooltip(group="group", model="model", interval=f"{title}, 95 %", classes="classes")
    layers = [
        layer("rule", {"strokeWidth": 6, "strokeOpacity": 0.25}, interval),
        layer("line", {"strokeWidth": 3}, mean | {"strokeDash": groups.dash}, transform=OWN_LINE),
        layer("point", points(110, 1), mean | {"shape": groups.shape, "tooltip": shown} | SPOKEN),
    ]
    label = {"baseline": "middle", "fontWeight": 600, "fontSize": 13}
    numbers = {"x": x, "y": number("beside"), "text": {"field": "shown"}}
    behind = {"stroke": "var(--paper)", "strokeWidth": 5, "strokeJoin": "round"}  # where lines pass
    later = [{"filter": "datum.place > 0" if several else "true"}]
    for halo in (behind, {}) if len(lines) > 2 else ({},):
        layers.append(layer("text", label | {"align": "left", "dx": 14} | halo, numbers, transform=later))
    if several:
        first = [{"filter": "datum.place == 0"}]
        layers.append(layer("text", label | {"align": "right", "dx": -14}, numbers, transform=first))
    description = f"Mean {title} of the classes with many, medium and few training items, before and after"
    spoken = computed(spoken="datum.group + ', ' + datum.model + ': ' + datum.interval + ' %'")
    return chart(description, 320, params=[NAMES], transform=spoken, layer=layers)


def group_flow() -> Spec:
    """How the items of each group are classified: right, or as a wrong class of each group."""
    words = "datum.value == 'right' ? 'right' : 'wrong, in group ' + datum.value"
    legend = {"labelExpr": words, "columns": 2, "labelLimit": 0}
    colour = by("end", ["right", *GROUPS], ["var(--right)", *GROUP_COLOURS], legend)
    y = {"field": "group", "type": "nominal", "sort": GROUPS, "axis": {"title": None, "labelFontSize": 13}}
    x = number("from", "share of the group's test items, %", **PERCENT)
    shown = tooltip(group="true group", words="predicted", share="share, %")
    bar = {"y": y, "x": x, "x2": {"field": "to"}, "color": colour, "tooltip": shown} | SPOKEN
    ink = [
        {"test": "datum.end == 'right'", "value": "var(--ink)"},
        {"test": "datum.end == 'medium'", "value": "var(--on-medium)"},
    ]
    label = {"y": y, "x": number("middle"), "text": {"field": "label"}}
    label |= {"color": {"condition": ink, "value": "var(--on-colour)"}}
    wide = [{"filter": "datum.to - datum.from > 9"}]
    derived = computed(
        middle="(datum.from + datum.to) / 2",
        label="round(datum.to - datum.from) + ' %'",
        share="format(datum.to - datum.from, '.1f')",
        words="datum.end == 'right' ? 'the right class' : 'a wrong class in group ' + datum.end",
    ) + computed(spoken="'test items of group ' + datum.group + ': ' + datum.share + ' % predicted as ' + datum.words")
    layers = [
        layer("bar", {"stroke": "var(--paper)", "height": {"band": 0.8}}, bar),
        layer("text", {"fontWeight": 600, "fontSize": 12}, label, transform=wide),
    ]
    return chart("How the test items of each group are classified", 150, transform=derived, layer=layers)


def swallowed(pairs: int, groups: Looks = BY_COUNT) -> Spec:
    """Which classes swallow which with fewer training items, by group: a bar with its interval, and the names above
    it."""
    y = {"field": "rank", "type": "ordinal", "axis": None, "scale": {"domain": list(range(max(pairs, 1)))}}
    shown = tooltip(name="class", other="mistaken for", times="times", interval="share, 95 %")
    x = number("share", "share of the class's test items, %", **PERCENT)
    spoken = computed(spoken="datum.name + ' mistaken for ' + datum.other + ': ' + datum.interval + ' %'")
    bar = {"y": y, "x": x, "tooltip": shown, "color": groups.colour} | SPOKEN
    interval = {"y": y, "x": number("low"), "x2": {"field": "high"}}
    names = {"y": y, "x": {"value": 2}, "text": {"field": "pair"}, "tooltip": shown}
    words = {"align": "left", "baseline": "middle", "dy": -5, "limit": {"expr": "max(width - 8, 60)"}}
    return chart(
        "Classes mistaken for more frequent ones, as a share of their test items",
        38 * max(pairs, 1),
        transform=spoken,
        layer=[
            layer("bar", {"height": 9, "yOffset": 9, "cornerRadiusEnd": 3}, bar),
            layer("rule", {"yOffset": 15, "color": "var(--ink)", "strokeWidth": 1.2}, interval),
            layer("text", words, names),
        ],
    )


def calibration(said: str = "confidence", seen: str = "accuracy", groups: Looks = BY_COUNT) -> Spec:
    """Accuracy against confidence, by group, with a 95 % band; or what else is compared, as `seen` against `said`."""
    x, y = number("confidence", f"{said}, %", **PERCENT), number("accuracy", f"{seen}, %", **PERCENT)
    group = {"x": x, "y": y, "color": groups.colour}
    titles = {"group": "group", "items": "test items", "confidence": f"{said}, %", "accuracy": f"{seen}, %"}
    size = number("share", scale={"domain": [0, 1], "range": [30, 260]}, legend=None)
    titles |= {"range": f"{seen}, 95 %"}
    point = group | {"shape": groups.shape, "size": size, "tooltip": tooltip(**titles)} | SPOKEN
    band = {"x": x, "y": number("low"), "y2": {"field": "high"}, "color": groups.colour}
    derived = computed(
        range="format(datum.low, '.1f') + ' to ' + format(datum.high, '.1f')",
        spoken=f"datum.group + ': {said} ' + datum.confidence + ' %, {seen} ' + datum.accuracy + ' %, ' + "
        "format(datum.items, ',') + ' items'",
    )
    diagonal, ends = {"x": number("at"), "y": number("at")}, {"values": [{"at": 0}, {"at": 100}]}
    return chart(
        f"{seen[0].upper()}{seen[1:]} against {said} for the classes with many, medium and few training items",
        300,
        transform=derived,
        layer=[
            layer("line", {"color": "var(--muted)", "strokeWidth": 1}, diagonal, data=ends),
            layer("area", {"opacity": 0.16}, band),
            layer("rule", {"strokeWidth": 1, "opacity": 0.5}, band),
            layer("line", {"strokeWidth": 2}, group | {"strokeDash": groups.dash}, transform=OWN_LINE),
            layer("point", {"filled": True, "opacity": 0.9}, point),
        ],
    )
