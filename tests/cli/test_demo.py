"""The demonstration's data and runs, and the figures drawn from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data.digits import load_digits_lt
from equipoise.experiments.demo import METHODS, Settings, runs, shifted, summary, train
from equipoise.report.figures import accuracy_against_count, comparison, marginal_likelihood, save

QUICK = Settings(iterations=2, seeds=2)


def test_the_digits_are_long_tailed_in_training_and_balanced_in_test() -> None:
    digits = load_digits_lt(imbalance=50)
    assert digits.prior.imbalance == pytest.approx(50, rel=0.05)
    assert (np.diff(digits.prior.counts) < 0).all()
    assert torch.bincount(digits.test_labels).tolist() == [30] * 10
    images = {image.numpy().tobytes() for image in digits.train_images}
    overlap = [image for image in digits.test_images if image.numpy().tobytes() in images]
    assert overlap == []


def test_a_seed_gives_the_same_run_to_the_bit_and_leaves_the_global_generator_alone() -> None:
    digits = load_digits_lt()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = train(METHODS["Softmax"](digits.prior), digits, QUICK, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert train(METHODS["Softmax"](digits.prior), digits, QUICK, seed=1) == first
    assert train(METHODS["Softmax"](digits.prior), digits, QUICK, seed=2) != first


def test_every_method_runs_with_every_seed() -> None:
    results: dict[str, list[eq.Judged]] = {}
    for method, _, judged in runs(QUICK, load_digits_lt()):
        results.setdefault(method, []).append(judged)
    assert {method: len(e) for method, e in results.items()} == dict.fromkeys(METHODS, 2)
    assert [row[0] for row in summary(results)] == list(METHODS)


def test_shifting_moves_by_at_most_a_pixel() -> None:
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 4, 4] = 1
    found = set()
    for seed in range(60):
        moved = shifted(image, torch.Generator().manual_seed(seed))
        assert moved.shape == image.shape
        assert moved.sum() == 1
        found.add(tuple((moved[0, 0] == 1).nonzero()[0].tolist()))
    assert found == {(y, x) for y in (3, 4, 5) for x in (3, 4, 5)}
    corner = torch.zeros(1, 1, 8, 8)
    corner[0, 0, 0, 0] = 1
    assert {shifted(corner, torch.Generator().manual_seed(s)).sum().item() for s in range(60)} == {0.0, 1.0}


PRIOR = eq.Prior.from_counts({"b": 5, "a": 500, "c": 60})


def result(logits: list[list[float]]) -> eq.Evaluation:
    return eq.evaluate(torch.tensor(logits), [0, 1, 2], PRIOR)


def test_figures_show_the_numbers_head_classes_first(tmp_path: Path) -> None:
    results = {"one": result([[9, 0, 0], [0, 9, 0], [0, 9, 0]]), "two": [result([[0, 9, 0]] * 3)] * 2}
    figure = accuracy_against_count(results)
    line = figure.axes[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [500, 60, 5]
    assert np.asarray(line.get_ydata()).tolist() == [100, 0, 100]
    assert figure.axes[0].get_xscale() == "log"
    marginal = marginal_likelihood(results).axes[0]
    assert [label.get_text() for label in marginal.get_xticklabels()] == ["a", "c", "b"]
    assert np.asarray(marginal.lines[1].get_ydata()) == pytest.approx([2 / 3, 0, 1 / 3], abs=1e-3)
    assert [text.get_text() for text in marginal.get_legend().get_texts()][1] == "one, 0.33 from uniform"
    for ending in ("png", "svg"):
        assert save(comparison(results, "title"), tmp_path / f"a.{ending}").stat().st_size > 1000


def test_figures_refuse_what_they_cannot_show() -> None:
    other = eq.evaluate(torch.eye(3), [0, 1, 2], eq.Prior.from_counts([1, 2, 3]))
    with pytest.raises(ValueError, match="different training priors"):
        comparison({"one": [result([[9, 0, 0]] * 3)], "two": [other]})
    with pytest.raises(ValueError, match="nothing to draw"):
        comparison({})
    with pytest.raises(ValueError, match="nothing to draw for 'one'"):
        comparison({"one": []})
    with pytest.raises(ValueError, match="at most 7"):
        comparison({str(i): [result([[9, 0, 0]] * 3)] for i in range(8)})
