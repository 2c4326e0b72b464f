"""The best detections of each class without a cap per image, and what a record holds of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.coco_files import SIDE, write_lvis

import equipoise as eq
from equipoise.data.coco import CocoImages
from equipoise.metrics.detection import GroundTruth
from equipoise.models.batched_rcnn import Batched
from equipoise.models.mask_rcnn import adjust_bias, adjusted_sigmoid, detector, resnet_fpn
from equipoise.training.detection import predict
from equipoise.training.detection_judging import FLOOR, fields_of, measures_of, predict_best
from equipoise.training.resident import Resident

pytest.importorskip("hotcoco")
pytestmark = pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")
CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path) -> CocoImages:
    return CocoImages(write_lvis(tmp_path, 4), tmp_path)


def a_detector(data: CocoImages, **options: Any) -> Any:
    torch.manual_seed(0)
    size = {"min_size": SIDE, "max_size": SIDE, "rpn_post_nms_top_n_test": 40}
    part = adjusted_sigmoid(data.prior())
    return detector(resnet_fpn("resnet18"), data.num_classes, part, **size, **options).eval()


@pytest.mark.parametrize(("masks", "kept_on_device"), [(True, True), (False, False)])
def test_the_best_of_each_class_are_found_whatever_else_an_image_holds(
    data: CocoImages, masks: bool, kept_on_device: bool
) -> None:
    model = a_detector(data, masks=masks, score_threshold=FLOOR, detections=10_000)
    resident = Resident(data, CPU, shorter=SIDE, longer=SIDE, training=False) if kept_on_device else None
    every = predict(model, data, CPU, resident=resident)
    best = predict_best(model, data, CPU, most=15, batch_size=1, resident=resident)
    assert model.roi_heads.least is None
    assert (best.masks is not None) == masks
    assert len(every) > 200
    for category in data.class_ids:
        expected = np.sort(every.scores[every.category_ids == category])[-15:]
        np.testing.assert_allclose(np.sort(best.scores[best.category_ids == category]), expected, rtol=1e-6)


def test_a_batch_finds_every_box_that_image_after_image_would(data: CocoImages) -> None:
    model = a_detector(data, masks=False)
    boxes = torch.rand(3, 40, 4) * SIDE / 2
    boxes[..., 2:] += boxes[..., :2]
    codes, scores = torch.randn(3, 40, 4, 4) * 0.1, torch.rand(3, 40, 4)
    scores[1, :, 2] = 0.01  # a class below its least score in one image
    model.roi_heads.least = torch.tensor([0.1, 0.5, 0.2, 0.9])
    sizes, batched = torch.tensor([[SIDE, SIDE], [SIDE, SIDE / 2], [SIDE, SIDE]]), Batched(model)
    found = batched._best_of_classes(scores, codes, boxes, sizes)
    for image in range(3):
        alone, kept = batched._best_of_image(image, scores, codes, boxes, sizes), found["scores"][image] > 0
        assert 0 < kept.sum() < (scores[image] >= model.roi_heads.least).sum()  # NMS dropped some
        for name, values in alone.items():
            torch.testing.assert_close(found[name][image][kept], values)


def test_a_record_holds_the_measures_of_both(data: CocoImages, tmp_path: Path) -> None:
    model, truth = a_detector(data, detections=20), GroundTruth(tmp_path / "annotations.json")
    found, best = predict(model, data, CPU), predict_best(model, data, CPU)
    measures = measures_of(truth, found, best, "segm", data.num_classes)
    fields = fields_of(measures)
    assert list(fields) == ["AP_fixed", "AP_pool", "AP_pool_r", "AP_pool_c", "AP_pool_f", "AP_at"]
    assert list(fields["AP_at"]) == ["300", "50", "20", "10", "1"]
    whole = truth.evaluate(found, "segm")
    assert fields["AP_at"]["300"] == pytest.approx({"AP": whole["AP"], "AP_r": whole["APr"]}, abs=1e-4)
    assert measures["detections"] == len(best) > len(found)


def test_an_adjusted_detector_loses_the_shift_of_the_prior(data: CocoImages) -> None:
    model, features = a_detector(data), torch.randn(5, 1024)
    before = model.roi_heads.box_predictor.classify(features)
    prior = eq.Prior.from_counts([90, 30, 9, 3], total=100)
    adjust_bias(model, adjusted_sigmoid(prior, tau=0.5).moved)
    rates = torch.tensor([0.9, 0.3, 0.09, 0.03])
    shift = 0.5 * (rates.logit() - rates.mean().logit())
    moved = before - model.roi_heads.box_predictor.classify(features)
    torch.testing.assert_close(moved, shift.expand(5, -1), atol=1e-5, rtol=1e-5)


def test_too_many_masks_to_draw_are_not_drawn(
    data: CocoImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.training.detection_judging.MASKS", 10)
    model, truth = a_detector(data, detections=20), GroundTruth(tmp_path / "annotations.json")
    found, best = predict(model, data, CPU), predict_best(model, data, CPU)
    assert best.masks is None
    fields = fields_of(measures_of(truth, found, best, "segm", data.num_classes))
    assert (fields["AP_fixed"], fields["AP_pool"], fields["AP_pool_r"]) == (None, None, None)
    assert fields["AP_at"]["300"]["AP"] is not None
    assert fields_of(measures_of(truth, found, best, "bbox", data.num_classes))["AP_fixed"] is not None
