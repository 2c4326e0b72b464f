"""Figures: each function takes evaluations (or arrays of p(y)) by method name and returns a matplotlib Figure.

A method may come with several evaluations, one a seed: lines are their mean, faint points the single runs. Colours are
Okabe and Ito's, told apart by the colour-blind; markers and dashes tell the methods apart in grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.metrics.evaluation import Evaluation
from equipoise.prior import FloatArray, Prior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Sequence[Evaluation] | Evaluation]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NEIGHBOURS = 9
LETTERS_ON_AN_AXIS = 60  # that fit below it side by side
LONGEST_NAME = 28
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))


def accuracy_against_count(results: Results) -> Figure:
    """Accuracy of each class against its number of training items, on a logarithmic axis."""
    figure, axes = new_figure(1)
    _draw_accuracy(axes[0], by_method(results))
    return finished(figure, axes)


def marginal_likelihood(results: Results) -> Figure:
    """The paper's figure: p(y), the mean predicted probability of each class on the test set, head classes first."""
    figure, axes = new_figure(1)
    _draw_marginal(axes[0], by_method(results))
    return finished(figure, axes)


def comparison(results: Results, title: str = "") -> Figure:
    """Both of the above, side by side."""
    figure, axes = new_figure(2)
    _draw_accuracy(axes[0], by_method(results))
    _draw_marginal(axes[1], by_method(results))
    if title:
        figure.suptitle(title)
    return finished(figure, axes)


def marginals_by_panel(panels: Mapping[str, Mapping[str, FloatArray]]) -> Figure:
    """p(y) of several data sets, a panel each: by panel, by method, arrays [runs, K], the head class first.

    Single classes are faint points, and a line is their mean over nine adjacent ones, so that the slope is seen behind
    the differences between classes. A method without runs (an empty array) is named in its panel.
    """
    figure, axes = new_figure(len(panels), width=4.6)
    present = [runs for panel in panels.values() for runs in panel.values() if len(runs)]
    highest = max((runs.mean(axis=0).max() for runs in present), default=1.0)
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        _draw_panel(axis, panel)
        axis.set(title=title, xlabel="class, most training images first", ylim=(0, 1.25 * highest))  # the legend above
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("p(y): mean predicted probability")
    return figure


def save(figure: Figure, path: str | Path, *, metadata: Mapping[str, str] | None = None) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's ending; folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata=None if metadata is None else dict(metadata))
    return path


def _draw_accuracy(axes: Axes, results: dict[str, list[Evaluation]]) -> None:
    counts = shared_prior(results).counts
    order = np.argsort(-counts, kind="stable")
    seen = np.maximum(counts[order], 1)
    for style, (method, evaluations) in zip(_styles(), results.items(), strict=False):
        each = np.array([[row.accuracy for row in e.per_class] for e in evaluations], dtype=float)[:, order] * 100
        _line(axes, seen, each, plain(method), style)
    axes.set(xscale="log", xlabel="training items of the class", ylabel="accuracy on the test set, %", ylim=(-3, 103))
    axes.invert_xaxis()
    ticks = [n for n in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 100_000) if seen.min() <= n <= seen.max()]
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()


def _draw_marginal(axes: Axes, results: dict[str, list[Evaluation]]) -> None:
    prior = shared_prior(results)
    order = np.argsort(-prior.counts, kind="stable")
    position = np.arange(prior.num_classes)
    axes.axhline(1 / prior.num_classes, color="0.6", linewidth=1, label="uniform")
    for style, (method, evaluations) in zip(_styles(), results.items(), strict=False):
        distance = float(np.mean([e.total_variation for e in evaluations]))
        each = np.array([e.marginal for e in evaluations])[:, order]
        _line(axes, position, each, f"{plain(method)}, {distance:.2f} from uniform", style)
    if prior.num_classes <= 20:
        name_ticks(axes, position, [plain(prior.name(int(j))) for j in order])
    axes.set(xlabel="class, most training items first", ylabel="p(y): mean predicted probability", ylim=(0, None))


def _draw_panel(axes: Axes, panel: Mapping[str, FloatArray]) -> None:
    for style, (method, runs) in zip(_styles(), panel.items(), strict=False):
        if not len(runs):
            continue
        p = runs.mean(axis=0)
        distance = float(np.abs(runs - 1 / len(p)).sum(axis=1).mean() / 2)
        around = np.ones(min(NEIGHBOURS, len(p)))
        line = np.convolve(p, around, "same") / np.convolve(np.ones(len(p)), around, "same")
        faint = style | {"linestyle": "none"}
        axes.plot(p, markersize=2.5, markeredgewidth=0, alpha=0.35, **faint)
        axes.plot(line, linewidth=2.2, label=f"{method}, {distance:.2f}", **style | {"marker": None})
    present = [runs.shape[1] for runs in panel.values() if len(runs)]
    if present:
        axes.axhline(1 / present[0], color="0.35", linewidth=0.8, zorder=0, label="uniform")
        axes.legend(frameon=False, title="total variation from uniform", loc="upper right", alignment="left")
    absent = [method for method, runs in panel.items() if not len(runs)]
    if absent:
        words = "not run yet:\n" + "\n".join(absent)
        axes.text(0.97, 0.5, words, transform=axes.transAxes, ha="right", va="center", color="0.35")


def _line(axes: Axes, x: Any, each: FloatArray, label: str, style: dict[str, Any]) -> None:
    marked = len(x) <= 20
    axes.plot(x, each.mean(axis=0), label=label, **style | ({} if marked else {"marker": None}))
    if len(each) > 1 and marked:
        for run in each:
            axes.plot(x, run, linestyle="none", marker=style["marker"], color=style["color"], markersize=3, alpha=0.35)


def _styles() -> list[dict[str, Any]]:
    return [
        {"color": colour, "marker": marker, "linestyle": dash}
        for colour, marker, dash in zip(COLOURS, MARKERS, DASHES, strict=True)
    ]


def plain(name: str) -> str:
    """A name as matplotlib shows it: on one line, cut where it is long, and a dollar sign starts no formula."""
    words = " ".join(name.split())
    return (words if len(words) <= LONGEST_NAME else words[: LONGEST_NAME - 1] + "…").replace("$", r"\$")


def name_ticks(axes: Axes, places: Any, names: Sequence[str]) -> None:
    """Names below an axis: side by side where they fit, else slanted, each ending at its place."""
    fits = max(map(len, names)) * len(names) <= LETTERS_ON_AN_AXIS
    slanted: dict[str, Any] = {} if fits else {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(places, names, **slanted)


def by_method(results: Results) -> dict[str, list[Evaluation]]:
    """Every method with the list of its runs."""
    return {name: [found] if isinstance(found, Evaluation) else list(found) for name, found in results.items()}


def shared_prior(results: dict[str, list[Evaluation]]) -> Prior:
    """The training prior of all runs, which must be one."""
    evaluations = [evaluation for several in results.values() for evaluation in several]
    if not results or not all(results.values()):
        empty = [name for name, several in results.items() if not several]
        raise ValueError(
            f"there is nothing to draw{f' for {empty[0]!r}' if empty else ''}: give an evaluation a method"
        )
    if len(results) > len(COLOURS):
        raise ValueError(f"{len(results)} methods in one figure: draw at most {len(COLOURS)}")
    prior = evaluations[0].prior
    if any(evaluation.prior != prior for evaluation in evaluations):
        raise ValueError("the evaluations have different training priors: draw them in figures of their own")
    return prior


def new_figure(panels: int, width: float = 6.4) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * panels, 4.4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12)  # type: ignore[union-attr, call-arg]
    return figure, [figure.add_subplot(1, panels, i + 1) for i in range(panels)]


def finished(figure: Figure, axes: list[Axes], *, legend: bool = True) -> Figure:
    """The figure with a legend, a faint grid and no box."""
    for panel in axes:
        if legend:
            panel.legend(frameon=False)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure
