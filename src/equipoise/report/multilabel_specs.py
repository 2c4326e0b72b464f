"""The charts of the multi-label page that the page for one label does not have; see `specs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.report.groups import USUAL, Cuts
from equipoise.report.specs import (
    GROUP_COLOURS,
    GROUP_DASHES,
    LINES,
    PERCENT,
    SPOKEN,
    Looks,
    Spec,
    by,
    calibration,
    chart,
    class_scores,
    computed,
    extent,
    group_legend,
    group_slopes,
    layer,
    looks,
    number,
    one_digit,
    points,
    ticks,
    tooltip,
    unfold,
)
from equipoise.report.sweep_specs import swept

if TYPE_CHECKING:
    from equipoise.prior import Prior

GROUPS = {"many": "head", "medium": "medium", "few": "tail"}  # what this literature calls them
# An axis of log odds that is read as probabilities.
ODDS = {
    "values": [-6.906755, -4.59512, -2.197225, 0, 2.197225, 4.59512, 6.906755],
    "labelExpr": "format(100 / (1 + exp(-datum.value)), '.3~r') + ' %'",
}


def by_place(cuts: Cuts) -> Looks:
    """The looks of head, medium and tail, with what each means."""
    words = {name: cuts.words[group].replace(group, name) for group, name in GROUPS.items()}
    return looks(list(words), group_legend(words))


def charts(prior: Prior, *, pairs: int, lines: Sequence[str], cuts: Cuts = USUAL) -> dict[str, Spec]:
    """Every chart of the page by name; `pairs` is the most rows of the chart of missed classes, and `lines` are the
    models of charts that show several."""
    groups = by_place(cuts)
    return {
        "precision": class_precision(prior, groups),
        "f1": class_f1(prior, groups),
        "precision_slopes": group_slopes(lines, "average precision", groups),
        "f1_slopes": group_slopes(lines, "F1", groups),
        "missed": missed(pairs, groups),
        "curve": threshold_curve(),
        "chosen": chosen_thresholds(prior, groups),
        "calibration": calibration("probability", "observed frequency", groups),
    }


def class_precision(prior: Prior, groups: Looks) -> Spec:
    """Average precision of each class against its training items."""
    words = f"{one_digit('datum.precision')} + ' %, ' + format(datum.items, ',') + ' positives'"
    ends = ("precision_low", "precision_high")
    return class_scores(prior, "precision", "average precision", ends, ("average precision", words), groups)


def class_f1(prior: Prior, groups: Looks) -> Spec:
    """F1 of each class against its training items."""
    words = f"{one_digit('datum.f1')} + ' %, ' + format(datum.items, ',') + ' positives'"
    return class_scores(prior, "f1", "F1", ("f1_low", "f1_high"), ("F1", words), groups)


def missed(pairs: int, groups: Looks) -> Spec:
    """Which classes are missed where which others are present: a bar with its interval, a tick for everywhere else."""
    y = {"field": "rank", "type": "ordinal", "axis": None, "scale": {"domain": list(range(max(pairs, 1)))}}
    words = {"name": "class", "other": "beside", "times": "missed", "interval": "share, 95 %", "without": "without it"}
    shown = tooltip(**words)
    x = number("share", "missed, % of items with both classes", **PERCENT)
    bar = {"y": y, "x": x, "tooltip": shown, "color": groups.colour} | SPOKEN
    interval = {"y": y, "x": number("low"), "x2": {"field": "high"}}
    tick = {"y": y, "x": number("elsewhere"), "tooltip": shown}
    names = {"y": y, "x": {"value": 2}, "text": {"field": "pair"}, "tooltip": shown}
    text = {"align": "left", "baseline": "middle", "dy": -5, "limit": {"expr": "max(width - 8, 60)"}}
    return chart(
        "Classes missed beside another, as a share of the items with both",
        38 * max(pairs, 1),
        transform=computed(spoken="datum.name + ' missed beside ' + datum.other + ': ' + datum.interval + ' %'"),
        layer=[
            layer("bar", {"height": 9, "yOffset": 9, "cornerRadiusEnd": 3}, bar),
            layer("rule", {"yOffset": 15, "color": "var(--ink)", "strokeWidth": 1.2}, interval),
            layer("tick", {"yOffset": 9, "color": "var(--muted)", "thickness": 3, "size": 15}, tick),
            layer("text", text, names),
        ],
    )


def threshold_curve() -> Spec:
    """Mean F1 of each group at one threshold for all classes; the parameter `odds` marks what the slider chose."""
    names, legend = ["all", *GROUPS.values()], LINES | {"columns": 4}
    colour = by("group", names, ["var(--ink)", *GROUP_COLOURS], legend)
    dash = by("group", names, [[1, 0], *GROUP_DASHES], legend)
    x = number("odds", "threshold, the same for all classes", scale={"domain": [-8, 8], "nice": False}, axis=ODDS)
    y = number("f1", "mean F1 of the classes, %", **PERCENT)
    shown = tooltip(group="group", f1="F1, %", threshold="threshold, %")
    words = "datum.group + ': F1 ' + datum.f1 + ' % at a threshold of ' + datum.threshold + ' %'"
    layers = swept("odds", {"x": x, "y": y, "color": colour}, dash, {"tooltip": shown}, 2.2, 70, words)
    description = "Mean F1 of each group against one threshold for all classes"
    return chart(description, 300, params=[{"name": "odds", "value": 0}], layer=layers)


def chosen_thresholds(prior: Prior, groups: Looks) -> Spec:
    """The threshold of each class, a tick, and the best one on these items, a point, against its training items."""
    scale = {"type": "log", "reverse": True, "nice": False, "padding": 8, "domain": extent(prior)}
    axis = {"format": ",d", "values": ticks(prior)}
    x = number("shown", "training items of the class (rarer →)", scale=scale, axis=axis)
    derived = computed(
        shown="max(datum.count, 0.5)",
        used_at="format(100 / (1 + exp(-datum.used)), '.3~r') + ' %'",
        best_at="format(100 / (1 + exp(-datum.best)), '.3~r') + ' %'",
        counted="format(datum.count, ',')",
    ) + computed(spoken="datum.name + ': threshold ' + datum.used_at + ', best F1 here at ' + datum.best_at")
    words = {"name": "class", "counted": "training items", "used_at": "threshold", "best_at": "best F1 here at"}
    shown = tooltip(**words, items="positives", group="group")
    y = number("best", "threshold", scale={"domain": [-8, 8], "nice": False, "clamp": True}, axis=ODDS)
    rule = {"x": x, "y": number("used"), "y2": {"field": "best"}}
    best = {"x": x, "y": y, "color": groups.colour, "shape": groups.shape, "tooltip": shown} | SPOKEN
    used = {"x": x, "y": number("used"), "tooltip": shown}
    unfolded = unfold("name", "rank", "count", "group", "items", "used", "best")
    return chart(
        "The threshold of each class and the one with the best F1 on these items",
        300,
        transform=[*unfolded, {"filter": "datum.best !== null"}, *derived],
        layer=[
            layer("rule", {"color": "var(--line)", "strokeWidth": 1.2}, rule),
            layer("tick", {"color": "var(--ink)", "thickness": 2, "size": 14, "orient": "horizontal"}, used),
            layer("point", points(70, 0.9), best),
        ],
    )
