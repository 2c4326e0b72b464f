"""The detector: its classification parts, masks, boxes, backbones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.coco_files import write_lvis
from torch import Tensor
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import fastrcnn_loss
from torchvision.ops import FrozenBatchNorm2d, batched_nms

import equipoise as eq
from equipoise.data.coco import CocoImages
from equipoise.models import mask_rcnn
from equipoise.models.mask_rcnn import (
    RARE,
    BoxPredictor,
    FrozenBatchNorm,
    MaskPredictor,
    ScaledLinear,
    SigmoidClassification,
    SoftmaxClassification,
    balanced_sigmoid,
    best_boxes,
    box_loss,
    detector,
    detector_weights,
    equalized_sigmoid,
    load_detector_weights,
    paste_masks,
    resnet_fpn,
    sigmoid,
    verified_weight,
)

K = 5
PRIOR = eq.Prior.from_counts([60, 30, 9, 2, 1], total=100)
PRIOR_OF_FOUR = eq.Prior.from_counts([60, 30, 9, 1], total=100)
PARTS: dict[str, Callable[[], Any]] = {
    "softmax": SoftmaxClassification,
    "sigmoid": lambda: sigmoid(K),
    "eql": lambda: equalized_sigmoid(PRIOR, 0.05),
    "balanced": lambda: balanced_sigmoid(PRIOR),
    "balanced_half": lambda: balanced_sigmoid(PRIOR, 0.5),
}


def small(classification: Any, num_classes: int = 4, **options: Any) -> MaskRCNN:
    torch.manual_seed(0)
    options = {"detections": 30, "min_size": 64, "max_size": 64} | options
    return detector(resnet_fpn("resnet18"), num_classes, classification, **options)


def slow_loss(name: str, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    """Written from the papers, in float64, a number at a time."""
    total = 0.0
    frequencies = (PRIOR.counts / PRIOR.total).tolist()
    mean_rate = sum(frequencies) / K
    for n, row in enumerate(logits.double().tolist()):
        label = int(labels[n])
        if name == "softmax":
            total += math.log(sum(math.exp(z) for z in row)) - row[label]
            continue
        for j, z in enumerate(row):
            hot, foreground = label == j + 1, label > 0
            factor = 1.0 if weight is None else float(weight[n, j])
            if name.startswith("balanced") and foreground:
                rate = mean_rate if name == "balanced" else 0.5
                z -= math.log((1 - frequencies[j]) / frequencies[j]) - math.log((1 - rate) / rate)
            if name == "eql" and foreground and not hot and frequencies[j] < 0.05:
                factor = 0.0
            probability = 1 / (1 + math.exp(-z))
            total -= factor * math.log(probability if hot else 1 - probability)
    return total / len(logits)


# -------------------------------------------------------------------- classification parts


@pytest.mark.parametrize("name", PARTS)
def test_each_part_has_the_loss_of_its_paper(name: str) -> None:
    torch.manual_seed(0)
    part = PARTS[name]()
    labels = torch.tensor([0, 1, 5, 0, 3, 4, 0])
    logits = torch.randn(7, K + part.background_columns)
    assert part.loss(logits, labels).item() == pytest.approx(slow_loss(name, logits, labels), rel=1e-5)


@pytest.mark.parametrize("name", [name for name in PARTS if name != "softmax"])
def test_unverified_classes_cost_nothing(name: str) -> None:
    torch.manual_seed(0)
    labels = torch.tensor([0, 1, 5, 0])
    logits = torch.randn(4, K, requires_grad=True)
    weight = (torch.rand(4, K) < 0.5).float()
    loss = PARTS[name]().loss(logits, labels, weight)
    assert loss.item() == pytest.approx(slow_loss(name, logits.detach(), labels, weight), rel=1e-5)
    loss.backward()
    assert logits.grad is not None
    assert (logits.grad[weight == 0] == 0).all()
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("name", PARTS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    torch.manual_seed(0)
    part = PARTS[name]()
    logits = torch.randn(4, K + part.background_columns).double().requires_grad_()
    labels = torch.tensor([0, 1, 5, 2])
    (gradient,) = torch.autograd.grad(part.loss(logits, labels), logits)
    step = 1e-3
    for n, j in ((0, 0), (1, 0), (1, 3), (2, 4), (3, 1)):
        bump = torch.zeros_like(logits)
        bump[n, j] = step
        numeric = (slow_loss(name, logits + bump, labels) - slow_loss(name, logits - bump, labels)) / (2 * step)
        assert gradient[n, j].item() == pytest.approx(numeric, abs=2e-5)


def test_a_head_whose_class_rates_are_all_the_target_rate_is_the_plain_sigmoid() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, K), torch.tensor([0, 1, 2, 3, 0, 5])
    level = eq.Prior.from_counts([25] * K, total=100)
    plain = sigmoid(K).loss(logits, labels)
    assert torch.equal(balanced_sigmoid(level, 0.25).loss(logits, labels), plain)
    assert torch.equal(balanced_sigmoid(level).loss(logits, labels), plain)
    hot = F.one_hot(labels, K + 1)[:, 1:].float()
    torch.testing.assert_close(plain, F.binary_cross_entropy_with_logits(logits, hot, reduction="sum") / 6)


def test_one_class_is_enough() -> None:
    assert sigmoid(1).loss(torch.zeros(2, 1), torch.tensor([0, 1])).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", PARTS)
def test_scores_are_plain_whatever_the_loss(name: str) -> None:
    logits = torch.randn(3, K + (name == "softmax"))
    expected = logits.softmax(1)[:, 1:] if name == "softmax" else logits.sigmoid()
    torch.testing.assert_close(PARTS[name]().scores(logits), expected)


def test_a_loss_that_is_not_summed_over_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="batchmean"):
        SigmoidClassification(eq.BalancedSigmoidLoss(PRIOR))


def test_a_sigmoid_head_starts_at_a_score_of_one_in_a_thousand() -> None:
    torch.manual_seed(0)
    scores = sigmoid(K).scores(BoxPredictor(16, K, sigmoid(K))(torch.zeros(1, 16))[0])
    torch.testing.assert_close(scores, torch.full((1, K), 0.001))
    assert pytest.approx(math.log(0.001 / 0.999)) == RARE


def test_a_box_is_verified_for_its_own_class_and_for_what_its_image_was_searched_for() -> None:
    labels = [torch.tensor([0, 2]), torch.tensor([3])]
    searched = [torch.tensor([True, False, False]), torch.tensor([False, True, False])]
    weight = verified_weight(labels, [{"verified": mask} for mask in searched], 3)
    assert weight is not None
    assert weight.tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert verified_weight(labels, [{"verified": searched[0]}, {}], 3) is None


# -------------------------------------------------------------------- boxes and masks


def test_the_box_loss_is_torchvisions() -> None:
    torch.manual_seed(0)
    labels, wanted = torch.tensor([0, 1, 3, 2, 0]), torch.randn(5, 4)
    regression = torch.randn(5, 4 * 4)  # with background, as torchvision has it
    _, expected = fastrcnn_loss(torch.randn(5, 4), regression, [labels], [wanted])
    torch.testing.assert_close(box_loss(regression[:, 4:], labels, wanted), expected)


def test_gathering_rows_gives_the_masks_and_gradients_of_torchvisions_predictor() -> None:
    torch.manual_seed(0)
    ours, theirs = MaskPredictor(8, 8, K), MaskRCNNPredictor(8, 8, K)
    theirs.load_state_dict(ours.state_dict())
    features, classes = torch.randn(7, 8, 4, 4), torch.tensor([0, 4, 4, 1, 0, 2, 4])
    mine, all_of_them = ours(features, classes), theirs(features)[torch.arange(7), classes]
    torch.testing.assert_close(mine, all_of_them)
    mine.square().mean().backward()
    all_of_them.square().mean().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_pasted_mask_fills_its_box_and_nothing_else() -> None:
    boxes = torch.tensor([[2.0, 1.0, 7.0, 4.0], [0.0, 0.0, 10.0, 8.0], [-4.0, -4.0, 3.0, 2.0]])
    masks = paste_masks(torch.ones(3, 28, 28), boxes, (8, 10))
    expected = torch.zeros(3, 8, 10, dtype=torch.bool)
    expected[0, 1:4, 2:7], expected[1], expected[2, :2, :3] = True, True, True
    assert torch.equal(masks, expected)


def test_a_pasted_mask_keeps_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.zeros(5, 28, 28)
    half[:, :, :14] = 1  # the left half
    boxes = torch.tensor([[4.0, 2.0, 24.0, 12.0]]).repeat(5, 1)
    whole = paste_masks(half, boxes, (20, 30))
    assert whole[0, 2:12, 4:14].all()
    assert whole[0].sum() == 100
    monkeypatch.setattr(mask_rcnn, "PASTED_PIXELS", 1200)  # two masks at a time
    assert torch.equal(paste_masks(half, boxes, (20, 30)), whole)


@pytest.mark.parametrize("first", [4, 64, 4096])
def test_looking_at_the_best_candidates_first_changes_nothing(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr(mask_rcnn, "FIRST_CANDIDATES", first)
    torch.manual_seed(0)
    corner = torch.rand(60, 3, 2) * 40
    boxes = torch.cat([corner, corner + 5 + torch.rand(60, 3, 2) * 20], dim=2)
    scores = torch.rand(60, 3) ** 4
    found = best_boxes(boxes, scores, threshold=0.01, overlap=0.5, most=25)
    row, column = torch.where(scores > 0.01)
    kept = batched_nms(boxes[row, column], scores[row, column], column, 0.5)[:25]
    torch.testing.assert_close(found["scores"], scores[row, column][kept])
    torch.testing.assert_close(found["boxes"], boxes[row, column][kept])
    assert torch.equal(found["labels"], column[kept] + 1)


def test_no_candidate_gives_no_box() -> None:
    found = best_boxes(torch.zeros(3, 2, 4), torch.zeros(3, 2), threshold=1e-4, overlap=0.5, most=300)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "boxes": (0, 4),
        "labels": (0,),
        "scores": (0,),
    }


# -------------------------------------------------------------------- whole detectors


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> CocoImages:
    file = write_lvis(tmp_path_factory.mktemp("lvis"))
    return CocoImages(file, file.parent)


def batch(data: CocoImages, *indices: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    images, targets = zip(*(data[index] for index in indices), strict=True)
    return list(images), list(targets)


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_a_detector_trains_and_predicts(data: CocoImages, name: str, masks: bool) -> None:
    model = small(SoftmaxClassification() if name == "softmax" else sigmoid(4), masks=masks)
    images, targets = batch(data, 0, 1)
    for target in targets:
        del target["verified"]
    losses = model(images, targets)
    expected = {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    assert set(losses) == expected | ({"loss_mask"} if masks else set())
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    for part in ("cls_score", "bbox_pred"):
        assert getattr(model.roi_heads.box_predictor, part).weight.grad.abs().sum() > 0
    with torch.no_grad():
        found = model.eval()([torch.zeros(3, 40, 60), images[0]])[0]
    assert set(found) == {"boxes", "labels", "scores"} | ({"masks"} if masks else set())
    assert 0 < len(found["boxes"]) <= 30
    assert found["labels"].min() >= 1
    assert found["labels"].max() <= 4
    if masks:
        assert found["masks"].shape == (len(found["boxes"]), 40, 60)


def test_an_image_without_objects_trains(data: CocoImages) -> None:
    model = small(sigmoid(4))
    target = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "masks": torch.zeros(0, 64, 64, dtype=torch.uint8),
    }
    losses = model([torch.zeros(3, 64, 64, dtype=torch.uint8)], [target])
    assert losses["loss_mask"] == 0
    assert losses["loss_box_reg"] == 0
    sum(losses.values()).backward()


def test_unverified_classes_reach_the_loss_of_the_detector(data: CocoImages) -> None:
    model = small(sigmoid(4))
    images, targets = batch(data, 0)
    targets[0]["verified"] = torch.tensor([True, True, True, False])  # class 3 is not in this image either
    model(images, targets)["loss_classifier"].backward()
    gradient = model.roi_heads.box_predictor.cls_score.bias.grad
    assert gradient[3] == 0
    assert (gradient[:3] != 0).all()


def test_bytes_and_floats_are_the_same_picture(data: CocoImages) -> None:
    model = small(sigmoid(4), detections=5)
    image = data[0][0]
    with torch.no_grad():
        a, b = model.eval()([image])[0], model([image / 255])[0]
    torch.testing.assert_close(a["boxes"], b["boxes"])
    assert len(a["boxes"]) == 5


def test_boxes_and_logits_stay_fp32_under_autocast(data: CocoImages) -> None:
    model = small(sigmoid(4))
    seen: dict[str, list[torch.dtype]] = {}
    model.rpn.register_forward_hook(lambda m, i, output: seen.update(rpn=[boxes.dtype for boxes in output[0]]))
    model.roi_heads.box_predictor.register_forward_hook(lambda m, i, o: seen.update(box=[part.dtype for part in o]))
    model.backbone.register_forward_hook(lambda m, i, output: seen.update(fpn=[f.dtype for f in output.values()]))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.eval()([data[0][0]])[0]
    assert set(seen["fpn"]) == {torch.bfloat16}
    assert set(seen["rpn"] + seen["box"]) == {torch.float32}
    assert {found["boxes"].dtype, found["scores"].dtype} == {torch.float32}


def test_weights_hold_no_prior_and_start_another_loss() -> None:
    first, second = small(sigmoid(4)), small(balanced_sigmoid(PRIOR_OF_FOUR), scaled=True)
    shift = second.roi_heads.classification.criterion.shift.clone()
    with torch.no_grad():
        first.roi_heads.box_predictor.cls_score.weight.fill_(0.5)
    weights = detector_weights(first)
    assert not any("classification" in name for name in weights)
    load_detector_weights(second, weights)
    assert torch.equal(second.roi_heads.classification.criterion.shift, shift)
    assert (second.roi_heads.box_predictor.cls_score.weight == 0.5).all()
    assert (second.roi_heads.box_predictor.cls_score.scales == 1).all()
    with pytest.raises(ValueError, match="another detector"):
        load_detector_weights(small(sigmoid(4), masks=False), weights)


def test_scales_of_one_change_nothing_and_the_bias_is_not_scaled() -> None:
    torch.manual_seed(0)
    layer = ScaledLinear(6, 3)
    features = torch.randn(2, 6)
    torch.testing.assert_close(layer(features), F.linear(features, layer.weight, layer.bias))
    with torch.no_grad():
        layer.scales[1] = 0
    torch.testing.assert_close(layer(features)[:, 1], layer.bias[1].expand(2))


# -------------------------------------------------------------------- backbones


def strides(backbone: torch.nn.Module) -> list[tuple[int, int]]:
    body = backbone.body
    return [(body[name][0].conv1.stride[0], body[name][0].conv2.stride[0]) for name in ("layer2", "layer3", "layer4")]


@pytest.fixture(scope="module")
def resnet50() -> dict[str, Tensor]:
    import torchvision

    torch.manual_seed(1)
    state = torchvision.models.resnet50().state_dict()
    return {name: value.half() if value.ndim == 4 else value for name, value in state.items()}


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("resnet50_msra.pth", None, (2, 1)),
        ("resnet50.pth", None, (1, 2)),
        ("resnet50.pth", "1x1", (2, 1)),
        ("msra.safetensors", "3x3", (1, 2)),
    ],
)
def test_a_backbone_comes_from_a_file_with_its_stride_where_it_belongs(
    tmp_path: Path, resnet50: dict[str, Tensor], name: str, given: Any, expected: tuple[int, int]
) -> None:
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors.torch").save_file(resnet50, tmp_path / name)
    else:
        torch.save(resnet50, tmp_path / name)
    backbone = resnet_fpn("resnet50", tmp_path / name, stride=given)
    assert strides(backbone) == [expected] * 3
    assert backbone.body.layer3[1].conv2.weight.dtype == torch.float32
    assert torch.equal(backbone.body.layer3[1].conv2.weight, resnet50["layer3.1.conv2.weight"].float())
    assert {name for name, p in backbone.body.named_parameters() if not p.requires_grad} == {
        name for name, _ in backbone.body.named_parameters() if name.startswith(("conv1", "layer1"))
    }


def test_weights_of_another_network_are_refused(tmp_path: Path, resnet50: dict[str, Tensor]) -> None:
    torch.save({name: value for name, value in resnet50.items() if "layer3" not in name}, tmp_path / "part.pth")
    with pytest.raises(ValueError, match=r"lacks \d+ tensors.*layer3\.0"):
        resnet_fpn("resnet50", tmp_path / "part.pth")
    torch.save(resnet50, tmp_path / "whole.pth")
    with pytest.raises(ValueError, match="has shape"):
        resnet_fpn("resnet18", tmp_path / "whole.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="state_dict"):
        resnet_fpn("resnet18", tmp_path / "list.pth")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        resnet_fpn("resnet18", tmp_path / "nowhere.pth")


def test_frozen_batch_norm_is_torchvisions_and_keeps_the_dtype() -> None:
    torch.manual_seed(0)
    ours, theirs = FrozenBatchNorm(6), FrozenBatchNorm2d(6)
    state = {name: torch.rand(6) + 0.5 for name in ours.state_dict()}
    ours.load_state_dict(state)
    theirs.load_state_dict(state)
    x = torch.randn(2, 6, 4, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    assert ours(x.bfloat16()).dtype == torch.bfloat16
    assert list(ours.parameters()) == []
    assert np.isclose(ours.eps, 1e-5)


def test_no_proposal_gives_no_detection() -> None:
    model = detector(resnet_fpn("resnet18"), 3, sigmoid(3), min_size=64, max_size=64).eval()
    model.rpn.score_thresh = 2.0
    with torch.no_grad():
        (found,) = model([torch.rand(3, 64, 64)])
    assert {name: len(values) for name, values in found.items()} == {"boxes": 0, "labels": 0, "scores": 0, "masks": 0}
