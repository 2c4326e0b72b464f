"""The charts that a slider moves: accuracy as the prior in use, or the correction for it, changes; see `specs`."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.report.groups import GROUPS
from equipoise.report.specs import (
    GROUP_COLOURS,
    GROUP_DASHES,
    LINES,
    MODELS,
    NAMES,
    PERCENT,
    SPOKEN,
    Spec,
    by,
    chart,
    computed,
    layer,
    line_scales,
    number,
    points,
    tooltip,
)


def sweeps(lines: Sequence[str]) -> dict[str, Spec]:
    """The charts by name; `lines` are the models of the one that shows several."""
    return {"world": world_sweep(lines), "tau": tau_sweep()}


def world_sweep(lines: Sequence[str]) -> Spec:
    """Accuracy as the deployed prior moves; the parameter `alpha` marks the world that the slider chose."""
    worlds = "datum.value == 1 ? 'as in training' : datum.value == 0 ? 'uniform' : 'reversed'"
    scale = {"reverse": True, "nice": False, "domain": [-1, 1]}
    x = number("alpha", "deployed prior", scale=scale)
    x |= {"axis": {"values": [1, 0, -1], "labelExpr": worlds, "labelBound": False}}
    y = number("accuracy", "accuracy at that prior, %", scale={"zero": False})
    muted = LINES | {"symbolStrokeColor": "var(--muted)"}
    dash = by("how", ["given the prior", "as it is"], [[1, 0], [2, 3]], muted)
    shown = tooltip(model="model", how="how", accuracy="accuracy, %", alpha="alpha")
    colour, shape, _ = line_scales(lines)
    if len(lines) > 1:
        legend = {"symbolSize": 90, "symbolOpacity": 1, "labelLimit": 0, "padding": 4}
        colour["legend"] = shape["legend"] = legend | MODELS
    words = "datum.model + ', ' + datum.how + ': ' + datum.accuracy + ' %'"
    layers = swept("alpha", {"x": x, "y": y, "color": colour}, dash, {"tooltip": shown, "shape": shape}, 2.5, 90, words)
    description = "Accuracy against the deployed prior, from long-tailed through uniform to reversed"
    return chart(description, 300, params=[{"name": "alpha", "value": 0}, NAMES], layer=layers)


def tau_sweep(tau: float = 1) -> Spec:
    """Accuracy of each group as tau moves; the parameter `tau` marks what the slider chose."""
    names, legend = ["all", *GROUPS], LINES | {"columns": 4}
    colour = by("group", names, ["var(--ink)", *GROUP_COLOURS], legend)
    dash = by("group", names, [[1, 0], *GROUP_DASHES], legend)
    axis = {"values": [0, 0.5, 1, 1.5, 2], "format": ".1f"}
    x = number("tau", "tau", scale={"domain": [0, 2], "nice": False}, axis=axis)
    y = number("accuracy", "mean accuracy of the classes, %", **PERCENT)
    shown = tooltip(group="group", accuracy="accuracy, %", tau="tau")
    words = "datum.group + ': ' + datum.accuracy + ' %'"
    layers = swept("tau", {"x": x, "y": y, "color": colour}, dash, {"tooltip": shown}, 2.2, 70, words)
    return chart(
        "Accuracy of each group against tau, from 0 to 2", 300, params=[{"name": "tau", "value": tau}], layer=layers
    )


def swept(field: str, encoding: Spec, dash: Spec, marked: Spec, width: float, size: int, spoken: str) -> list[Spec]:
    """Lines over `field`, a rule at what the slider chose (the parameter of that name), and points where they cross,
    which are `spoken`."""
    rule = {"color": "var(--muted)", "strokeWidth": 1, "strokeDash": [3, 3]}
    chosen = {"data": {"values": [{}]}, "transform": computed(**{field: field})}
    crossed = [{"filter": f"abs(datum.{field} - {field}) < 0.01"}, *computed(spoken=spoken)]
    return [
        layer("rule", rule, {"x": number(field)}, **chosen),
        layer("line", {"strokeWidth": width}, encoding | {"strokeDash": dash}),
        layer("point", points(size, 1), encoding | marked | SPOKEN, transform=crossed),
    ]
