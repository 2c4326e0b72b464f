"""The figures of the report, each a function that returns a matplotlib Figure; `figures.save` writes PNG, SVG or PDF.

Groups have a colour, a marker and a dash each, models a colour and a dash, so that a figure can be read in grey and by
the colour-blind. Accuracies are in percent. Long class names are cut; dollar signs in them are not mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.metrics.confusions import Confusions
from equipoise.metrics.evaluation import Evaluation
from equipoise.metrics.intervals import mean_interval, wilson_intervals
from equipoise.metrics.sweep import TAUS, WORLDS, PriorSweep
from equipoise.prior import Prior
from equipoise.report.figures import (
    COLOURS,
    DASHES,
    MARKERS,
    Results,
    by_method,
    finished,
    name_ticks,
    new_figure,
    plain,
    shared_prior,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUP_STYLES: dict[str, dict[str, Any]] = {
    "many": {"color": "#0072B2", "marker": "o"},
    "medium": {"color": "#E69F00", "marker": "s"},
    "few": {"color": "#CC79A7", "marker": "^"},
}
GROUP_DASHES = {"many": "-", "medium": "--", "few": ":"}
HATCHES = {"medium": "//", "few": ".."}
GROUP_WORDS = {"many": "many, > 100", "medium": "medium, 20 to 100", "few": "few, < 20"}
LEFT_TO_RIGHT = "\u200e"  # keeps "a → b" in this order where a is in a script that runs from right to left
MOST_NAMES = 60  # class names on one axis


def class_counts(prior: Prior) -> Figure:
    """Training items of each class on a logarithmic axis, largest first, coloured by group; absent classes at 0.5."""
    figure, (axes,) = new_figure(1)
    order = np.argsort(-prior.counts, kind="stable")
    place = np.empty(prior.num_classes, np.int64)
    place[order] = np.arange(prior.num_classes)
    for name, members in prior.groups().items():
        heights = np.maximum(prior.counts[members], 0.5)
        narrow = prior.num_classes > 100
        style: dict[str, Any] = {
            "color": GROUP_STYLES[name]["color"],
            "hatch": HATCHES.get(name),
            "edgecolor": "white",
            "alpha": 0.9,
        }
        axes.bar(place[members], heights, 1.0 if narrow else 0.8, label=GROUP_WORDS[name], linewidth=0, **style)
    axes.set(yscale="log", xlabel="class, most training items first", ylabel="training items", ylim=(0.4, None))
    if prior.num_classes <= MOST_NAMES:
        axes.set_xticks(np.arange(prior.num_classes), [plain(prior.name(int(j))) for j in order], rotation=90)
    return finished(figure, [axes])


def class_accuracy(evaluation: Evaluation | Sequence[Evaluation], title: str = "") -> Figure:
    """Accuracy of each class against its training items, coloured by group, with its 95 % interval.

    Several evaluations are seeds of one model on one test set: their mean is drawn.
    """
    figure, (axes,) = new_figure(1)
    runs = _runs(evaluation)
    items, correct = runs[0].items, np.mean([run.correct for run in runs], axis=0)
    low, high = wilson_intervals(correct, items)
    for name, members in runs[0].prior.groups().items():
        seen = [index for index in members if items[index] > 0]
        if not seen:
            continue
        accuracy = 100 * correct[seen] / items[seen]
        ends = [accuracy - 100 * low[seen], 100 * high[seen] - accuracy]
        counts = np.maximum(runs[0].prior.counts[seen], 0.5)
        faint: dict[str, Any] = {"linestyle": "none", "markersize": 5, "elinewidth": 0.6, "alpha": 0.85}
        axes.errorbar(counts, accuracy, np.maximum(ends, 0), label=GROUP_WORDS[name], **faint | GROUP_STYLES[name])
    axes.set(xscale="log", xlabel="training items of the class", ylabel="accuracy on the test set, %", ylim=(-3, 103))
    axes.invert_xaxis()
    axes.set_title(plain(title))
    return finished(figure, [axes])


def group_slopes(results: Results) -> Figure:
    """Many, medium and few from model to model, before → after, with 95 % intervals."""
    models = by_method(results)
    shared_prior(models)
    figure, (axes,) = new_figure(1)
    numbers: dict[int, list[float]] = {}
    for name in GROUP_STYLES:
        points = [(place, *found) for place, runs in enumerate(models.values()) if (found := group_point(runs, name))]
        if not points:
            continue
        place, accuracy, low, high = (np.array(values) for values in zip(*points, strict=True))
        style = GROUP_STYLES[name] | {"linestyle": GROUP_DASHES[name], "linewidth": 2, "capsize": 3}
        ends = 100 * np.array([accuracy - low, high - accuracy])
        axes.errorbar(place, 100 * accuracy, ends, label=GROUP_WORDS[name], **style)
        for x, y in zip(place.tolist(), (100 * accuracy).tolist(), strict=True):
            numbers.setdefault(x, []).append(y)
    for x, values in numbers.items():
        for y, height in _apart(values):
            axes.annotate(f"{y:.1f}", (x, height), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9)
    name_ticks(axes, range(len(models)), [plain(name) for name in models])
    axes.set(ylabel="mean accuracy of the group's classes, %", ylim=(-3, 103), xlim=(-0.4, len(models) - 0.6))
    return finished(figure, [axes])


def swallowed_classes(confusions: Confusions, prior: Prior, title: str = "", most: int = 15) -> Figure:
    """Which more frequent classes swallow which rarer ones: the share of a class's test items, with its interval."""
    figure, (axes,) = new_figure(1)
    pairs = confusions.swallowed(prior, most)[::-1]
    shares = np.array([100 * pair.share for pair in pairs])
    ends = np.array([[100 * (p.share - p.low) for p in pairs], [100 * (p.high - p.share) for p in pairs]])
    names = [f"{LEFT_TO_RIGHT}{plain(prior.name(pair.true))} → {plain(prior.name(pair.predicted))}" for pair in pairs]
    group = {index: name for name, members in prior.groups().items() for index in members}
    colours = [GROUP_STYLES[group[pair.true]]["color"] for pair in pairs]
    axes.barh(range(len(pairs)), shares, color=colours, alpha=0.9)
    if pairs:
        axes.errorbar(shares, range(len(pairs)), xerr=np.maximum(ends, 0), linestyle="none", color="0.25", elinewidth=1)
    axes.set_yticks(range(len(pairs)), names, fontsize=8)
    axes.set(xlabel="share of the class's test items, %", title=plain(title), xlim=(0, 100))
    axes.set_ylabel("class → more frequent class it is taken for")
    return finished(figure, [axes], legend=False)


def group_flow(confusions: Confusions, prior: Prior, title: str = "") -> Figure:
    """Where the items of each group go: right, or to a wrong class of each group; every bar is 100 %."""
    figure, (axes,) = new_figure(1)
    flow = {name: shares for name, shares in confusions.flow(prior).items() if shares["right"] is not None}
    left = np.zeros(len(flow))
    for part in ("right", *GROUP_STYLES):
        colour = "0.75" if part == "right" else GROUP_STYLES[part]["color"]
        widths = np.array([100 * (shares[part] or 0) for shares in flow.values()])
        label = "right" if part == "right" else f"a wrong class with {part}"
        style: dict[str, Any] = {"color": colour, "hatch": HATCHES.get(part), "edgecolor": "white"}
        axes.barh(list(flow), widths, left=left, label=label, **style)
        left += widths
    axes.invert_yaxis()
    axes.set(xlabel="share of the group's test items, classes counted equally, %", xlim=(0, 100), title=plain(title))
    figure = finished(figure, [axes], legend=False)
    axes.legend(
        frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0 if not title else 1.08), fontsize=8
    )
    return figure


def calibration(evaluation: Evaluation | Sequence[Evaluation], title: str = "") -> Figure:
    """Accuracy against confidence for each group; on the diagonal the model is as sure as it is right.

    Several evaluations are seeds of one model: items of all are drawn, and the mean of their ECE is given.
    """
    figure, (axes,) = new_figure(1)
    runs = _runs(evaluation)
    evaluation = sum(runs[1:], runs[0])
    axes.plot([0, 100], [0, 100], color="0.6", linewidth=1, label="as sure as right")
    for name, members in evaluation.prior.groups().items():
        items = evaluation.bin_items[members].sum(axis=0)
        used = items > 0
        if not used.any():
            continue
        x = 100 * evaluation.bin_confidence[members].sum(axis=0)[used] / items[used]
        y = 100 * evaluation.bin_correct[members].sum(axis=0)[used] / items[used]
        error = 100 * float(np.mean([run.groups()[name].ece or 0 for run in runs]))
        axes.plot(x, y, linestyle=GROUP_DASHES[name], label=f"{name}, ECE {error:.1f}", **GROUP_STYLES[name])
        axes.scatter(x, y, s=8 + 120 * items[used] / items.sum(), color=GROUP_STYLES[name]["color"], alpha=0.4)
    axes.set(xlabel="confidence, %", ylabel="accuracy, %", xlim=(0, 101), ylim=(-1, 101), title=plain(title))
    return finished(figure, [axes])


def world_sweep(sweeps: Mapping[str, PriorSweep]) -> Figure:
    """Accuracy as the deployed prior moves from long-tailed through uniform to reversed, told of it and as it is."""
    figure, (axes,) = new_figure(1)
    for number, (name, sweep) in enumerate(_few(sweeps).items()):
        accuracy = 100 * sweep.accuracy()
        style: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number], "markevery": 10}
        axes.plot(WORLDS, accuracy.diagonal(), "-", label=f"{plain(name)}, told the prior", **style)
        axes.plot(WORLDS, accuracy[:, sweep.as_it_is], ":", label=f"{plain(name)}, as it is", **style)
    axes.axvline(0, color="0.8", linewidth=1, zorder=0)
    axes.invert_xaxis()
    axes.set_xticks([1, 0.5, 0, -0.5, -1], ["as training", "", "uniform", "", "reversed"])
    axes.set(xlabel="deployed prior ∝ (training prior)$^\\alpha$", ylabel="accuracy in that world, %")
    return finished(figure, [axes])


def tau_sweep(sweep: PriorSweep, title: str = "") -> Figure:
    """Accuracy of each group as tau moves from 0, a plain loss as it is, through 1, equal classes, to 2."""
    figure, (axes,) = new_figure(1)
    for name, accuracy in sweep.groups().items():
        everything = {"color": "0.2", "marker": None, "linestyle": DASHES[0]}
        style = everything if name == "all" else GROUP_STYLES[name] | {"linestyle": GROUP_DASHES[name], "markevery": 10}
        axes.plot(TAUS, 100 * accuracy, label=GROUP_WORDS.get(name, "all classes"), linewidth=2, **style)
    axes.axvline(TAUS[sweep.as_it_is], color="0.6", linewidth=1, linestyle="-.", label="as it is")
    axes.set(xlabel="tau", ylabel="mean accuracy of the group's classes, %", ylim=(-3, 103), title=plain(title))
    return finished(figure, [axes])


# -------------------------------------------------------------------- shared


def group_point(runs: list[Evaluation], group: str) -> tuple[float, float, float] | None:
    """Mean accuracy of a group over runs, with the 95 % interval that the test set allows; None for an empty group."""
    members = runs[0].prior.groups().get(group, [])
    items = runs[0].items[members]
    if not items.any():
        return None
    correct = np.mean([run.correct[members] for run in runs], axis=0)
    seen = items > 0
    return (float((correct[seen] / items[seen]).mean()), *mean_interval(correct, items))


def _apart(values: list[float], room: float = 6.5, most: float = 100) -> list[tuple[float, float]]:
    """Each value with the height of its number, so far from the next that both can be read, and not above `most`.

    >>> _apart([66.0, 20.0, 65.5]), _apart([100.0, 98.0])
    ([(20.0, 20.0), (65.5, 65.5), (66.0, 72.0)], [(98.0, 93.5), (100.0, 100)])
    """
    heights: list[float] = []
    for value in sorted(values):
        heights.append(max(value, heights[-1] + room) if heights else value)
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], most)
        most = heights[place] - room
    return list(zip(sorted(values), heights, strict=True))


def _runs(evaluation: Evaluation | Sequence[Evaluation]) -> list[Evaluation]:
    return [evaluation] if isinstance(evaluation, Evaluation) else list(evaluation)


def _few(sweeps: Mapping[str, PriorSweep]) -> Mapping[str, PriorSweep]:
    if not sweeps or len(sweeps) > len(COLOURS):
        raise ValueError(f"{len(sweeps)} sweeps to draw: give one to {len(COLOURS)}")
    return sweeps


__all__ = [
    "calibration",
    "class_accuracy",
    "class_counts",
    "group_flow",
    "group_slopes",
    "swallowed_classes",
    "tau_sweep",
    "world_sweep",
]
