"""The shift of softmax detectors, against Bayes' rule written out; torchvision's own detectors, and the commands."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.coco_files import SIDE, write_lvis
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn  # type: ignore[import-untyped]
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.metrics.detection import Detections
from equipoise.models.mask_rcnn import (
    SoftmaxClassification,
    adjust_bias,
    adjusted_softmax,
    detector,
    detector_weights,
    resnet_fpn,
    seesaw,
    sigmoid,
    softmax,
)
from equipoise.models.softmax_detectors import adjust_detector_logits, detector_shift

COUNTS = [600, 300, 90, 10]
PRIOR = eq.Prior.from_counts(COUNTS, class_ids=[7, 12, 30, 50])
pytestmark = pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")


def by_bayes(probabilities: list[float], background: int, tau: float) -> list[float]:
    """p'(j | x) ∝ p(j | x) · (P'(j) / P(j))^tau, one class after the other; P'(background) = P(background)."""
    weights, classes = [], iter(COUNTS)
    for column, p in enumerate(probabilities):
        if column == background:
            weights.append(p)
        else:
            share = next(classes) / sum(COUNTS)
            weights.append(p * ((1 / len(COUNTS)) / share) ** tau)
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("background", [0, -1])
def test_the_shift_is_bayes_rule_with_background_as_frequent_as_before(background: int, tau: float) -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double()
    moved = adjust_detector_logits(logits, PRIOR, tau=tau, background=background).softmax(-1)
    for row, ours in zip(logits.softmax(-1).tolist(), moved.tolist(), strict=True):
        # the shift is rounded to fp32: 2^-24 of logs below 4
        assert ours == pytest.approx(by_bayes(row, background % 5, tau), rel=1e-6)


def test_a_model_that_knows_only_the_prior_finds_all_classes_alike_and_background_stays() -> None:
    shares = torch.tensor(COUNTS) / sum(COUNTS)
    logits = torch.cat([torch.tensor([0.7]), 0.3 * shares]).log()
    expected = torch.tensor([0.7, *[0.3 / 4] * 4])
    torch.testing.assert_close(adjust_detector_logits(logits, PRIOR).softmax(-1), expected)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="logits have 4 columns, the prior has 4 classes: expected one column more"):
        adjust_detector_logits(torch.zeros(2, 4), PRIOR)
    with pytest.raises(ValueError, match="background is 2: expected 0, the first column, or -1, the last"):
        detector_shift(PRIOR, background=2)
    assert torch.equal(detector_shift(PRIOR, background=4), detector_shift(PRIOR, background=-1))
    model = detector(resnet_fpn("resnet18"), 4, sigmoid(4), masks=False)
    with pytest.raises(ValueError, match="the classifier has 4 columns, the shift 5"):
        adjust_bias(model, detector_shift(PRIOR))


def test_the_bias_of_torchvisions_own_detector_is_moved() -> None:
    torch.manual_seed(0)
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5).eval()
    features = torch.randn(3, 1024)
    before = model.roi_heads.box_predictor(features)[0]
    adjust_bias(model, detector_shift(PRIOR, tau=0.5))
    after = model.roi_heads.box_predictor(features)[0]
    torch.testing.assert_close(after, adjust_detector_logits(before, PRIOR, tau=0.5))
    ours = adjusted_softmax(PRIOR, tau=0.5)
    assert ours.moved is not None
    assert torch.equal(ours.moved, detector_shift(PRIOR, tau=0.5))
    assert softmax(PRIOR).moved is None


# -------------------------------------------------------------------- results files


def test_one_score_per_box_is_exact_where_the_rest_is_background() -> None:
    scores, categories = np.array([0.9, 0.2, 0.01, 0.4, 0.0, 1.0]), np.array([7, 50, 30, 12, 50, 7])
    found = Detections(np.ones(6, np.int64), categories, scores, np.zeros((6, 4)))
    moved = found.adjusted_softmax(PRIOR, tau=0.5).scores
    for score, category, ours in zip(scores.tolist(), categories.tolist(), moved.tolist(), strict=True):
        column = [7, 12, 30, 50].index(category)
        box = [1 - score, *(score if j == column else 0.0 for j in range(4))]
        assert ours == pytest.approx(by_bayes(box, 0, 0.5)[1 + column], rel=1e-6, abs=1e-15)


def test_one_score_per_box_is_too_low_for_a_rare_class_that_competes_with_a_frequent_one() -> None:
    """As docs/detection.md says."""
    box = [0.1, 0.6, 0.0, 0.0, 0.3]
    found = Detections(np.ones(2, np.int64), np.array([7, 50]), np.array([0.6, 0.3]), np.zeros((2, 4)))
    frequent, rare = found.adjusted_softmax(PRIOR).scores
    right = by_bayes(box, 0, 1.0)
    assert rare < right[4]
    assert frequent > right[1]


# -------------------------------------------------------------------- commands


def equipoise(*words: object) -> str:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "1000"}).output


def saved(path: Path, part: Any, name: str) -> Path:
    torch.manual_seed(0)
    model = detector(resnet_fpn("resnet18"), 4, part, masks=False, min_size=SIDE, max_size=SIDE)
    torch.save(detector_weights(model), path)
    note = {"detector": {"backbone": "resnet18", "size": SIDE, "longest": SIDE, "classification": name}}
    path.with_name(path.name.replace(".weights.pt", ".finished.json")).write_text(json.dumps(note))
    return path


def test_the_commands_move_a_softmax_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = partial(detector, detections=10, rpn_post_nms_top_n_test=50)
    monkeypatch.setattr("equipoise.models.mask_rcnn.detector", fewer)
    truth = write_lvis(tmp_path, images=2)
    train = write_lvis(tmp_path / "train", images=8)
    weights = saved(tmp_path / "a.weights.pt", SoftmaxClassification(), "SoftmaxClassification")
    common = ("--annotations", truth, "--images", tmp_path, "--device", "cpu")
    results = []
    for name, more in (("plain", ()), ("moved", ("--softmax", "--prior", train, "--tau", 0.5))):
        said = equipoise("detect", "submit", weights, *common, "--out", tmp_path / f"{name}.json", *more)
        assert "detections in 2 images" in said
        results.append(json.loads((tmp_path / f"{name}.json").read_text()))
    rare = [sum(one["category_id"] == 50 for one in found) for found in results]
    assert rare[0] < rare[1] == 20  # random weights find all classes alike, and the rarest moves up most
    other = saved(tmp_path / "b.weights.pt", seesaw(PRIOR), "SeesawClassification")
    said = equipoise("detect", "submit", other, *common, "--softmax", "--prior", truth, "--out", tmp_path / "c.json")
    assert "--softmax moves the scores of a softmax with background: this detector has a softmax without" in said
    said = equipoise("detect", "submit", weights, *common, "--target-rate", "mean", "--prior", truth)
    assert "--target-rate moves the scores of sigmoids: this detector has a softmax" in said
    third = saved(tmp_path / "c.weights.pt", sigmoid(4), "SigmoidClassification")
    said = equipoise("detect", "submit", third, *common, "--softmax", "--prior", truth, "--out", tmp_path / "c.json")
    assert "this detector has sigmoids" in said
    for alone, message in ((("--prior", truth), "--prior is for --target-rate"), (("--tau", 0.5), "--tau 0.5 is the")):
        said = equipoise("detect", "submit", third, *common, *alone, "--out", tmp_path / "c.json")
        assert message in said  # or nothing would be adjusted, without a word
    assert not (tmp_path / "c.json").exists()
    moved = tmp_path / "plain.json"
    said = equipoise("detect", "eval", moved, "--annotations", truth, "--softmax", "--prior", truth, "--tau", 0.5)
    assert "has one score per box: shifted as if the rest of the probability were background" in said
    assert "bbox: AP" in said


def test_softmax_needs_the_training_annotations_and_goes_without_a_rate(tmp_path: Path) -> None:
    truth = write_lvis(tmp_path, images=2)
    (tmp_path / "results.json").write_text("[]")
    evaluate = ("detect", "eval", tmp_path / "results.json", "--annotations", truth, "--softmax")
    assert "--softmax needs to know the share" in equipoise(*evaluate)
    said = equipoise(*evaluate, "--prior", truth, "--target-rate", "mean")
    assert "--target-rate is for sigmoids, --softmax for a softmax" in said
