"""Every figure of the report shows its numbers, with class names, and is written as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.metrics.judging import Judged, judge
from equipoise.metrics.sweep import TAUS, WORLDS
from equipoise.report import tail_figures
from equipoise.report.figures import accuracy_against_count, marginal_likelihood, save

ODD = "a $\\frac$ b"
PRIOR = eq.Prior.from_counts({"cat": 900, "dog $5$": 200, "owl": 60, "x" * 300: 5, "<b>gone</b>": 0})


@pytest.fixture(scope="module")
def judged() -> Judged:
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(200) % 4
    logits = torch.randn(200, 5, generator=generator) + torch.nn.functional.one_hot(target, 5)
    return judge(logits + torch.tensor(PRIOR.counts) / 300, target, PRIOR, logits_mean="train")


def drawn(judged: Judged) -> dict[str, Any]:
    assert judged.sweep is not None
    return {
        "class_counts": tail_figures.class_counts(PRIOR),
        "class_accuracy": tail_figures.class_accuracy(judged.evaluation, "Soft$max$"),
        "group_slopes": tail_figures.group_slopes({"before": judged.evaluation, "after": [judged.evaluation] * 2}),
        "swallowed_classes": tail_figures.swallowed_classes(judged.confusions, PRIOR, "Softmax"),
        "group_flow": tail_figures.group_flow(judged.confusions, PRIOR, "Softmax"),
        "calibration": tail_figures.calibration(judged.evaluation, "Softmax"),
        "world_sweep": tail_figures.world_sweep({"Softmax": judged.sweep}),
        "tau_sweep": tail_figures.tau_sweep(judged.sweep, "Softmax"),
    }


def test_every_figure_is_written_as_png_and_svg(judged: Judged, tmp_path: Path) -> None:
    figures = drawn(judged)
    assert sorted(figures) == sorted(tail_figures.__all__)
    for name, figure in figures.items():
        assert save(figure, tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in save(figure, tmp_path / f"{name}.svg").read_bytes()


def test_counts_are_drawn_largest_first_with_their_names() -> None:
    axes = tail_figures.class_counts(PRIOR).axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["cat", r"dog \$5\$", "owl", "x" * 27 + "…", "<b>gone</b>"]
    assert [patch.get_height() for patch in axes.patches] == [900, 200, 60, 5, 0.5]
    assert axes.get_yscale() == "log"


def test_accuracies_are_drawn_by_group_with_intervals(judged: Judged) -> None:
    axes = tail_figures.class_accuracy(judged.evaluation).axes[0]
    points = {container.get_label(): container for container in axes.containers}
    assert list(points) == ["many, > 100", "medium, 20 to 100", "few, < 20"]
    few = points["few, < 20"][0]
    row = judged.evaluation.per_class[3]
    assert np.asarray(few.get_xdata()).tolist() == [5]  # the absent class has no test items: it is not drawn
    assert np.asarray(few.get_ydata()) == pytest.approx([100 * row.correct / row.items])
    ends = points["few, < 20"][2][0].get_segments()[0][:, 1]
    assert ends == pytest.approx([100 * row.low, 100 * row.high])


def test_seeds_of_a_model_are_drawn_as_their_mean(judged: Judged) -> None:
    right = torch.eye(5)[torch.from_numpy(np.repeat(np.arange(5), judged.evaluation.items))]
    perfect = eq.evaluate(30 * right, right.argmax(1), PRIOR)
    runs = [judged.evaluation, perfect]
    points = {c.get_label(): c[0] for c in tail_figures.class_accuracy(runs).axes[0].containers}
    row = judged.evaluation.per_class[3]
    expected = [50 + 50 * row.correct / row.items]
    assert np.asarray(points["few, < 20"].get_ydata()) == pytest.approx(expected)
    words = [text.get_text() for text in tail_figures.calibration(runs).axes[0].get_legend().get_texts()]
    error = judged.evaluation.groups()["few"].ece
    assert error is not None
    assert f"few, ECE {50 * error:.1f}" in words


def test_slopes_lead_from_before_to_after(judged: Judged) -> None:
    other = eq.evaluate(torch.eye(5)[torch.arange(200) % 4], torch.arange(200) % 4, PRIOR)
    axes = tail_figures.group_slopes({"before": judged.evaluation, "after": other}).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["before", "after"]
    lines = {container.get_label(): container[0].get_ydata() for container in axes.containers}
    assert lines["few, < 20"] == pytest.approx([100 * (judged.evaluation.few or 0), 100])
    assert {line.get_marker() for line in axes.lines if line.get_marker() in "os^"} == {"o", "s", "^"}


def test_no_number_and_no_name_lies_on_another(judged: Judged) -> None:
    names = ["plain loss, 200 epochs, seed 1", "balanced loss, 200 epochs, 1", "balanced loss, 200 epochs, 2"]
    slopes = tail_figures.group_slopes(dict.fromkeys(names, eq.evaluate(torch.eye(5)[[0, 2, 3]], [0, 2, 3], PRIOR)))
    long = eq.Prior.from_counts(PRIOR.counts, class_names=[letter * 40 for letter in "abcde"])
    evaluation = eq.evaluate(torch.eye(5), torch.arange(5), long)
    for figure in (slopes, marginal_likelihood({"m": evaluation})):
        figure.canvas.draw()
        axes = figure.axes[0]
        assert {label.get_rotation() for label in axes.get_xticklabels()} == {40}
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    short = marginal_likelihood({"m": eq.evaluate(torch.eye(2), [0, 1], eq.Prior.from_counts([3, 1]))})
    assert {label.get_rotation() for label in short.axes[0].get_xticklabels()} == {0}


def test_swallowed_pairs_lead_from_left_to_right_in_every_script() -> None:
    prior = eq.Prior.from_counts([900, 5], class_names=["cat", "שלום"])
    axes = tail_figures.swallowed_classes(eq.judge([[1.0, 0.0]] * 2, [0, 1], prior).confusions, prior).axes[0]
    assert axes.get_yticklabels()[0].get_text() == "\u200eשלום → cat"


def test_swallowed_pairs_are_named(judged: Judged) -> None:
    axes = tail_figures.swallowed_classes(judged.confusions, PRIOR).axes[0]
    pair = judged.confusions.swallowed(PRIOR)[0]
    assert axes.get_yticklabels()[-1].get_text().lstrip("\u200e").startswith(PRIOR.name(pair.true)[:10])
    assert axes.patches[-1].get_width() == pytest.approx(100 * pair.share)


def test_the_bars_of_the_flow_are_whole(judged: Judged) -> None:
    axes = tail_figures.group_flow(judged.confusions, PRIOR).axes[0]
    for row in range(3):
        assert sum(container[row].get_width() for container in axes.containers) == pytest.approx(100)


def test_calibration_names_the_error_of_each_group(judged: Judged) -> None:
    words = [text.get_text() for text in tail_figures.calibration(judged.evaluation).axes[0].get_legend().get_texts()]
    error = judged.evaluation.groups()["few"].ece
    assert error is not None
    assert f"few, ECE {100 * error:.1f}" in words


def test_sweeps_show_the_world_and_tau(judged: Judged) -> None:
    assert judged.sweep is not None
    axes = tail_figures.world_sweep({"Softmax": judged.sweep}).axes[0]
    accuracy = 100 * judged.sweep.accuracy()
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == WORLDS.tolist()
    assert np.asarray(axes.lines[0].get_ydata()) == pytest.approx(accuracy.diagonal())
    assert np.asarray(axes.lines[1].get_ydata()) == pytest.approx(accuracy[:, 0])
    tau = tail_figures.tau_sweep(judged.sweep).axes[0]
    assert np.asarray(tau.lines[0].get_xdata()).tolist() == TAUS.tolist()
    assert np.asarray(tau.lines[0].get_ydata()) == pytest.approx(100 * judged.sweep.groups()["all"])
    with pytest.raises(ValueError, match="0 sweeps to draw"):
        tail_figures.world_sweep({})


def test_dollar_signs_in_names_are_no_formulas(judged: Judged, tmp_path: Path) -> None:
    prior = eq.Prior.from_counts({ODD: 900, "b": 5})
    evaluation = eq.evaluate(torch.eye(2), [0, 1], prior)
    for number, figure in enumerate(
        [accuracy_against_count({ODD: evaluation}), marginal_likelihood({ODD: evaluation})]
    ):
        save(figure, tmp_path / f"{number}.svg")
        assert any(text.get_text().startswith(r"a \$\frac\$ b") for text in figure.axes[0].get_legend().get_texts())
    assert marginal_likelihood({"m": evaluation}).axes[0].get_xticklabels()[0].get_text() == r"a \$\frac\$ b"
