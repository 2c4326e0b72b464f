"""Training a detector: what is drawn, what is frozen, resuming."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.coco_files import SIDE, write_lvis

from equipoise.data.coco import CocoImages
from equipoise.metrics.detection import GroundTruth
from equipoise.models.mask_rcnn import (
    RARE,
    balanced_sigmoid,
    detector_weights,
    equalized_sigmoid,
    equalized_v2_sigmoid,
)
from equipoise.training.detection import (
    DetectionRecipe,
    DetectionTraining,
    drawn_images,
    draws,
    predict,
    train,
)
from equipoise.training.resident import Resident, flipped

pytestmark = pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")
CPU = torch.device("cpu")
TINY = DetectionRecipe(
    backbone="resnet18", epochs=0.5, batch_size=2, lr=0.005, warmup=0, min_sizes=(SIDE,), max_size=SIDE
)
SECOND = replace(TINY, start="rfs", epochs=0.25)
STAGE_2: dict[str, tuple[DetectionRecipe, set[str]]] = {
    "rfs_longer": (SECOND, {"cls_score.weight", "cls_score.bias"}),
    "crt": (replace(SECOND, head="reset", sampler="class_aware"), {"cls_score.weight", "cls_score.bias"}),
    "lws": (replace(SECOND, head="scaled", sampler="class_aware"), {"cls_score.scales"}),
    "eql": (
        replace(SECOND, classification=equalized_sigmoid, options={"threshold": 0.3}),
        {"cls_score.weight", "cls_score.bias"},
    ),
    "balanced_sigmoid": (replace(SECOND, classification=balanced_sigmoid), {"cls_score.weight", "cls_score.bias"}),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> CocoImages:
    file = write_lvis(tmp_path_factory.mktemp("lvis"))
    return CocoImages(file, file.parent)


@pytest.fixture(scope="module")
def first_stage(data: CocoImages) -> dict[str, torch.Tensor]:
    run = quick(TINY, data, 0, CPU)
    assert train(run)
    return {name: value.clone() for name, value in detector_weights(run.model).items()}


def quick(*arguments: Any, **options: Any) -> DetectionTraining:
    """A run that proposes and samples few boxes per image, for a CPU."""
    run = DetectionTraining(*arguments, **options)
    run.model.rpn._post_nms_top_n = {"training": 40, "testing": 40}
    run.model.roi_heads.fg_bg_sampler.batch_size_per_image = 32
    return run


# -------------------------------------------------------------------- what is drawn


def test_an_epoch_is_as_many_images_as_the_training_set_has_whatever_is_repeated(data: CocoImages) -> None:
    assert replace(TINY, epochs=3, repeat_threshold=1.0).iterations(len(data)) == 3 * 8 // 2


def test_images_are_repeated_as_the_formula_says(data: CocoImages) -> None:
    drawn = drawn_images(data, replace(TINY, repeat_threshold=1.0), 0, 4000)
    often = np.bincount(drawn, minlength=8) / 4000
    factors = np.array([math.sqrt(1 / (2 / 8)) if i % 4 == 0 else math.sqrt(2) if i % 2 == 0 else 1 for i in range(8)])
    rounds = 4000 / factors.sum()  # an image is drawn a whole number of times in each: a deviation of 1/2 at most
    np.testing.assert_allclose(often, factors / factors.sum(), rtol=0, atol=4 * 0.5 * math.sqrt(rounds) / 4000)


def test_class_aware_sampling_draws_every_class_equally_often(data: CocoImages) -> None:
    drawn = drawn_images(data, replace(TINY, sampler="class_aware"), 0, 3000)
    often = np.bincount(drawn, minlength=8) / 3000
    assert often[4] == pytest.approx(1 / 24 + 1 / 12 + 1 / 6, abs=0.01)  # all three classes
    assert often[1] == pytest.approx(1 / 24, abs=0.01)  # class 0 only


def test_a_longer_run_draws_the_same_images_first(data: CocoImages) -> None:
    assert drawn_images(data, TINY, 3, 50)[:20].tolist() == drawn_images(data, TINY, 3, 20).tolist()
    assert drawn_images(data, TINY, 4, 20).tolist() != drawn_images(data, TINY, 3, 20).tolist()


def test_half_of_the_draws_are_flipped_with_their_boxes_and_masks(data: CocoImages) -> None:
    image, target = data[0]
    turned = 0
    for drawn, found in zip(*draws(range(64), data, np.zeros(64, np.int64), seed=0, federated=False), strict=True):
        assert "verified" not in found
        turned += not torch.equal(drawn, image)
        for box, mask in zip(found["boxes"].int().tolist(), found["masks"], strict=True):
            assert mask[box[1] : box[3], box[0] : box[2]].all()
            assert mask.sum() == (box[2] - box[0]) * (box[3] - box[1])
    assert 20 <= turned <= 44
    again = flipped(*flipped(image, target))
    assert torch.equal(again[0], image)
    assert torch.equal(again[1]["boxes"], target["boxes"])
    assert "verified" in draws([0], data, np.zeros(1, np.int64), seed=0, federated=True)[1][0]


# -------------------------------------------------------------------- stages


def test_the_first_stage_trains_all_but_the_stem_and_frozen_statistics(
    data: CocoImages, first_stage: dict[str, torch.Tensor]
) -> None:
    untrained = detector_weights(quick(TINY, data, 0, CPU).model)
    same = {name for name, value in first_stage.items() if torch.equal(value, untrained[name])}
    assert {name for name in same if ".bn" not in name and "downsample.1" not in name} == set()
    assert all(name in same for name in first_stage if "running" in name)


@pytest.mark.parametrize("name", STAGE_2)
def test_the_second_stage_changes_the_classifier_and_no_other_tensor(
    data: CocoImages, first_stage: dict[str, torch.Tensor], name: str
) -> None:
    recipe, expected = STAGE_2[name]
    run = quick(recipe, data, 1, CPU, start=first_stage)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    assert train(run)
    changed = {key for key, value in run.model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {f"roi_heads.box_predictor.{part}" for part in expected}
    others = {key for key, value in first_stage.items() if not torch.equal(value, before[key])}
    reset = {"cls_score.weight", "cls_score.bias"} if name == "crt" else set()
    assert others == {f"roi_heads.box_predictor.{part}" for part in reset}
    if name == "crt":
        assert (before["roi_heads.box_predictor.cls_score.bias"] == RARE).all()


def test_the_second_stage_computes_no_loss_that_trains_nothing(
    data: CocoImages, first_stage: dict[str, torch.Tensor]
) -> None:
    run = quick(SECOND, data, 1, CPU, start=first_stage)
    images, targets = next(run.batches())
    losses = run.model.train()(images, targets)
    assert [name for name, loss in losses.items() if loss.requires_grad] == ["loss_classifier"]
    assert "loss_mask" not in losses


def test_the_second_stage_keeps_the_stride_of_the_backbone_and_what_it_found(data: CocoImages, tmp_path: Path) -> None:
    import torchvision

    torch.manual_seed(0)
    torch.save(torchvision.models.resnet50().state_dict(), tmp_path / "msra.pth")
    backbone, first = str(tmp_path / "msra.pth"), replace(TINY, backbone="resnet50")
    start = DetectionTraining(first, data, 0, CPU, backbone=backbone)
    second = DetectionTraining(
        replace(first, start="rfs"), data, 0, CPU, backbone=backbone, start=detector_weights(start.model)
    )
    images = [data[0][0] / 255]
    before, after = (run.model.eval().backbone(torch.stack(images)) for run in (start, second))
    for level, features in before.items():
        torch.testing.assert_close(after[level], features)
    assert second.model.backbone.body.layer2[0].conv1.stride == (2, 2)


@pytest.mark.parametrize(("recipe", "start"), [(TINY, {}), (SECOND, None)])
def test_a_stage_with_the_wrong_start_is_refused(data: CocoImages, recipe: DetectionRecipe, start: Any) -> None:
    with pytest.raises(ValueError, match="starts from the weights of"):
        DetectionTraining(recipe, data, 0, CPU, start=start)


# -------------------------------------------------------------------- images that stay on the device


def resident_of(data: CocoImages) -> Resident:
    return Resident(data, CPU, shorter=SIDE, longer=SIDE)


def test_resident_images_train_what_files_do_where_all_boxes_are_sampled(data: CocoImages) -> None:
    losses = []
    for resident in (None, resident_of(data)):
        run = DetectionTraining(TINY, data, 0, CPU, resident=resident)
        for sampler in (run.model.rpn.fg_bg_sampler, run.model.roi_heads.fg_bg_sampler):
            sampler.batch_size_per_image = 10**5
        run.model.rpn._post_nms_top_n["training"] = 60
        assert train(run)
        losses.append(run.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_resident_run_that_stops_goes_on_as_if_it_had_not(data: CocoImages) -> None:
    resident = resident_of(data)
    whole = quick(TINY, data, 0, CPU, resident=resident)
    assert train(whole)
    part, seen = quick(TINY, data, 0, CPU, resident=resident), []
    assert not train(part, over=lambda: True)
    rest = quick(TINY, data, 0, CPU, resident=resident)
    rest.load_state_dict(part.state_dict())
    assert train(rest, lambda: seen.append((rest.iteration, rest.whole)), every=0)
    assert rest.losses == whole.losses
    assert seen == [(2, True)]


@pytest.mark.parametrize("name", STAGE_2)
def test_a_second_stage_from_features_computed_once_changes_the_classifier_alone_and_resumes(
    data: CocoImages, first_stage: dict[str, torch.Tensor], name: str
) -> None:
    recipe, expected = STAGE_2[name]
    recipe, resident = replace(recipe, epochs=0.75), resident_of(data)
    whole = quick(recipe, data, 1, CPU, start=first_stage, resident=resident)
    before = {key: value.clone() for key, value in whole.model.state_dict().items()}
    frozen = whole.freeze()
    assert train(whole)
    changed = {key for key, value in whole.model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {f"roi_heads.box_predictor.{part}" for part in expected}
    rest = quick(recipe, data, 1, CPU, start=first_stage, resident=resident)
    rest.freeze(frozen)
    assert not train(rest, over=lambda: True)
    assert train(rest)
    assert rest.losses == whole.losses
    assert len(whole.losses) == 3


def test_only_a_second_stage_of_resident_images_can_compute_features_once(data: CocoImages) -> None:
    with pytest.raises(ValueError, match="only a run with a start"):
        quick(TINY, data, 0, CPU, resident=resident_of(data)).freeze()


def test_resident_images_give_the_detections_of_their_files(
    data: CocoImages, first_stage: dict[str, torch.Tensor]
) -> None:
    run = quick(SECOND, data, 0, CPU, start=first_stage)
    run.model.roi_heads.detections_per_img = 20
    expected = predict(run.model, data, CPU, batch_size=3)
    resident, done = Resident(data, CPU, shorter=SIDE, longer=SIDE, training=False), []
    found = predict(run.model, data, CPU, batch_size=3, resident=resident, report=done.append)
    assert done == [3, 6, 8]
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-2)
    assert found.category_ids.tolist() == expected.category_ids.tolist()
    assert found.image_ids.tolist() == expected.image_ids.tolist()
    same = sum(one == two for one, two in zip(found.masks or [], expected.masks or [], strict=True))
    assert same >= 0.95 * len(expected)


def test_an_image_of_another_size_than_its_file_says_is_not_evaluated(
    data: CocoImages, first_stage: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quick(SECOND, data, 0, CPU, start=first_stage)
    monkeypatch.setattr(data, "images", [replace(data.images[0], height=SIDE + 1)])
    with pytest.raises(ValueError, match="for image 1000"):
        predict(run.model, data, CPU)


# -------------------------------------------------------------------- the loop


def test_a_run_that_stops_goes_on_as_if_it_had_not(data: CocoImages, tmp_path: Path) -> None:
    whole = quick(TINY, data, 0, CPU)
    assert train(whole)
    part = quick(TINY, data, 0, CPU)
    assert not train(part, over=lambda: True)  # one iteration
    assert part.iteration == 1
    torch.save(part.state_dict(), tmp_path / "run.pt")
    rest = quick(TINY, data, 0, CPU)
    rest.load_state_dict(torch.load(tmp_path / "run.pt", weights_only=True))
    assert train(rest)
    assert rest.losses == whole.losses
    assert len(whole.losses) == 2
    for name, value in detector_weights(whole.model).items():
        assert torch.equal(detector_weights(rest.model)[name], value), name


def test_a_run_that_stops_remembers_the_gradients_that_eql_v2_has_seen(
    data: CocoImages, first_stage: dict[str, torch.Tensor]
) -> None:
    recipe = replace(TINY, start="rfs", classification=equalized_v2_sigmoid)
    run, rest = (quick(recipe, data, 0, CPU, start=first_stage) for _ in range(2))
    assert train(run)
    rest.load_state_dict(run.state_dict())
    seen, again = (one.model.get_submodule("roi_heads.classification.criterion").negatives for one in (run, rest))
    assert seen.sum() > 0
    assert torch.equal(seen, again)


def test_a_loss_that_is_no_number_stops_the_run(data: CocoImages) -> None:
    run = quick(TINY, data, 0, CPU)
    with torch.no_grad():
        run.model.get_submodule("roi_heads.box_predictor.cls_score").bias.fill_(float("nan"))
    seen: list[int] = []
    assert not train(run, lambda: seen.append(run.iteration), every=0)
    assert (run.iteration, run.finite, seen) == (1, False, [])


def test_losses_are_known_after_every_chunk(data: CocoImages) -> None:
    seen: list[tuple[int, int]] = []
    run = quick(TINY, data, 0, CPU)
    train(run, lambda: seen.append((run.iteration, len(run.losses))), every=0)
    assert seen == [(1, 1), (2, 2)]
    again, rarely = quick(TINY, data, 0, CPU), []
    train(again, lambda: rarely.append(again.iteration))
    assert rarely == [2]


def test_what_is_found_can_be_evaluated(data: CocoImages, first_stage: dict[str, torch.Tensor]) -> None:
    pytest.importorskip("hotcoco")
    run = quick(SECOND, data, 0, CPU, start=first_stage)
    run.model.roi_heads.detections_per_img = 20
    found = predict(run.model, data, CPU, batch_size=3)
    assert set(found.image_ids.tolist()) == {image.id for image in data.images}
    assert set(found.category_ids.tolist()) <= set(data.class_ids)
    assert len(found) == 20 * len(data)
    truth = GroundTruth(data.file)
    for kind in ("bbox", "segm"):
        assert 0 <= truth.evaluate(found, kind)["AP"] <= 100  # type: ignore[arg-type, operator]
