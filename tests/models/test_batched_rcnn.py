"""Detectors on whole batches: the same losses, gradients and detections as image by image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.coco_files import SIDE, write_lvis
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import batched_nms, box_iou

from equipoise.data.coco import CocoImages
from equipoise.models import batched_rcnn
from equipoise.models.batched_rcnn import (
    Batch,
    Batched,
    decode,
    encode,
    match,
    overlaps,
    sample,
    survivors,
)
from equipoise.models.mask_rcnn import SoftmaxClassification, balanced_sigmoid, detector, resnet_fpn
from equipoise.training.resident import FrozenRegions, Resident, fitting_size, normalised

pytestmark = pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")
CPU = torch.device("cpu")


def boxes(number: int, seed: int = 0, side: float = 100.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(number, 2, generator=generator) * side * 0.7
    return torch.cat([corner, corner + 1 + torch.rand(number, 2, generator=generator) * side * 0.3], dim=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> CocoImages:
    file = write_lvis(tmp_path_factory.mktemp("lvis"))
    return CocoImages(file, file.parent)


def a_detector(data: CocoImages, part: Any = None, **options: Any) -> Any:
    torch.manual_seed(0)
    model = detector(
        resnet_fpn("resnet18"),
        data.num_classes,
        balanced_sigmoid(data.prior()) if part is None else part,
        min_size=SIDE,
        max_size=SIDE + 32,
        rpn_post_nms_top_n_train=60,
        rpn_post_nms_top_n_test=60,
        **options,
    )
    for sampler in (model.rpn.fg_bg_sampler, model.roi_heads.fg_bg_sampler):
        sampler.batch_size_per_image = 10**5  # all of them, so that chance plays no part
    return model


def resident(data: CocoImages, **options: Any) -> Resident:
    return Resident(data, CPU, shorter=SIDE, longer=SIDE + 32, **options)


def canvas_of(data: CocoImages) -> list[torch.Tensor]:
    """Images padded to the canvas by hand, for torchvision's way: its own padding is to the largest of a batch."""
    return [torch.nn.functional.pad(data[number][0] / 255, (0, 32)) for number in range(3)]


# -------------------------------------------------------------------- boxes


def test_overlaps_are_torchvisions() -> None:
    torch.testing.assert_close(overlaps(boxes(20), boxes(30, 1)), box_iou(boxes(20), boxes(30, 1)))


def test_box_regression_is_torchvisions() -> None:
    weights = (10.0, 10.0, 5.0, 5.0)
    coder = BoxCoder(weights)
    codes = 3 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(encode(boxes(40, 1), boxes(40), weights), coder.encode_single(boxes(40, 1), boxes(40)))
    torch.testing.assert_close(decode(codes, boxes(40), weights), coder.decode_single(codes, boxes(40)))


@pytest.mark.parametrize("classes", [1, 3])
def test_nms_of_groups_is_that_of_torchvision(classes: int) -> None:
    groups, number = 3, 300
    several = torch.stack([boxes(number, seed) for seed in range(groups)])
    kind = torch.arange(number).repeat(groups, 1) % classes
    there = torch.ones(groups, number, dtype=torch.bool)
    there[1, 5:9] = False
    kept = survivors(several, there, 0.4, kind)
    scores = torch.linspace(1, 0.1, number)
    for group in range(groups):
        some = there[group].nonzero().flatten()
        expected = some[batched_nms(several[group, some], scores[some], kind[group, some], 0.4)]
        assert kept[group].nonzero().flatten().tolist() == sorted(expected.tolist())


@pytest.mark.parametrize("ask", [1, 7, 1000])
def test_nms_follows_chains_of_any_length(monkeypatch: pytest.MonkeyPatch, ask: int) -> None:
    chain = torch.tensor([[[float(i), 0.0, i + 10.0, 10.0] for i in range(0, 600, 3)]])  # each drops the next only
    there = torch.ones(1, 200, dtype=torch.bool)
    monkeypatch.setattr(batched_rcnn, "ASK_AGAIN", {"cpu": ask})
    assert survivors(chain, there, 0.5)[0].tolist() == [True, False] * 100
    monkeypatch.setattr(batched_rcnn, "ELEMENTS", 40_000)  # one group at a time
    there[0, 0] = False
    assert survivors(chain.repeat(2, 1, 1), there.repeat(2, 1), 0.5).tolist() == [[False, True] * 100] * 2


def test_boxes_are_matched_with_instances_that_exist() -> None:
    instances = torch.zeros(1, 3, 4)
    instances[0, 0] = torch.tensor([0.0, 0.0, 10.0, 10.0])
    candidates = torch.tensor([[[0.0, 0.0, 10.0, 9.0], [0.0, 0.0, 10.0, 4.0], [20.0, 20.0, 30.0, 30.0]]])
    index, shared, best = match(candidates, instances, torch.tensor([[2, 0, 0]]))
    assert index.tolist() == [[0, 0, 0]]
    assert shared[0].tolist() == pytest.approx([0.9, 0.4, 0.0])
    assert best.tolist() == [[True, False, False]]
    assert match(candidates, instances, torch.zeros(1, 3, dtype=torch.int64))[1].max() == -1


def test_a_sample_has_at_most_its_share_of_positives_and_is_uniform() -> None:
    labels = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0, 0, 0, -1, -1]]).repeat(2000, 1)
    places, taken = sample(labels, 6, 0.5, torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)))
    assert taken.all()
    chosen = labels.gather(1, places)
    assert (chosen == torch.tensor([1, 1, 1, 0, 0, 0])).all()
    often = torch.bincount(places.flatten(), minlength=12) / 2000
    # 0.04 is four standard deviations of a share of 2000, and more
    torch.testing.assert_close(often[:4], torch.full((4,), 3 / 4), atol=0.04, rtol=0)
    torch.testing.assert_close(often[4:10], torch.full((6,), 1 / 2), atol=0.04, rtol=0)
    few = torch.tensor([[3, 0, -1, -1]])
    places, taken = sample(few, 4, 0.5, torch.rand(1, 4))
    assert taken.tolist() == [[True, True, False, False]]
    assert places[0, :2].tolist() == [0, 1]


# -------------------------------------------------------------------- losses


@pytest.mark.parametrize(("part", "rows"), [("balanced_sigmoid", 1), ("balanced_sigmoid", 64), ("softmax", 1)])
def test_losses_and_gradients_of_a_batch_are_those_of_its_images(
    data: CocoImages, part: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(batched_rcnn.ROWS, "cpu", rows)  # masks that only fill up cost nothing
    monkeypatch.setattr("torch.nn.functional.relu", torch.nn.functional.silu)  # no rounding switches a gradient off
    model = a_detector(data, SoftmaxClassification() if part == "softmax" else None).train()
    images, targets = canvas_of(data), [data[number][1] for number in range(3)]
    for target in targets:
        target["masks"] = torch.nn.functional.pad(target["masks"], (0, 32))
        if part == "softmax":
            del target["verified"]
    expected = model(images, targets)
    sum(expected.values()).backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    store = resident(data)
    batch = store.batch(0, 2 * torch.arange(3).numpy(), model.transform, federated=part != "softmax")
    batch.sizes[:, 1] = SIDE + 32  # as padded by hand above
    padding = normalised(torch.zeros(3, 3, SIDE, 32, dtype=torch.uint8), torch.full((3, 2), 1e3),
                         model.transform.image_mean, model.transform.image_std)  # fmt: skip
    batch.pixels[..., SIDE:] = padding
    pixels = model.transform(images)[0].tensors
    torch.testing.assert_close(batch.pixels, pixels)
    batch.pixels.copy_(pixels)  # to the bit, so that no maximum is another pixel's
    found = Batched(model)(batch)
    assert found.keys() == expected.keys()
    for name, loss in expected.items():
        torch.testing.assert_close(found[name], loss, msg=lambda text, name=name: f"{name}: {text}")
    sum(found.values()).backward()
    for name, value in model.named_parameters():
        if name in gradients:
            # sums of up to n = 256 * 7 * 7 terms in two orders: sqrt(n) = 112 eps, on the way there and on the way back
            atol = 224 * torch.finfo(torch.float32).eps * float(gradients[name].abs().max())
            torch.testing.assert_close(value.grad, gradients[name], rtol=0, atol=atol)


def test_an_image_without_instances_trains_the_background_only(data: CocoImages) -> None:
    model = a_detector(data).train()
    batch = Batch(
        torch.rand(1, 3, 64, 64), torch.full((1, 2), 64.0), torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64),
        torch.zeros(0, 64, 64, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip
    losses = Batched(model)(batch)
    assert losses["loss_mask"] == losses["loss_box_reg"] == losses["loss_rpn_box_reg"] == 0
    assert losses["loss_classifier"] > 0
    sum(losses.values()).backward()
    assert all(torch.isfinite(value.grad).all() for value in model.parameters() if value.grad is not None)


def test_half_precision_runs_through_and_stays_near(data: CocoImages) -> None:
    """On a CPU: what autocast refuses to mix would fail here as on a GPU."""
    model = a_detector(data, rpn_nms_thresh=1.0).train()
    model.rpn._post_nms_top_n["training"] = 10**4  # all of them: near ties, another precision would choose other boxes
    batch = resident(data).batch(0, torch.arange(1).numpy(), model.transform)
    exact = Batched(model)(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = Batched(model)(batch)
    sum(rounded.values()).backward()
    for name in ("loss_objectness", "loss_classifier"):
        # A corner is off by up to 96 * 2**-9 = 0.2 pixels: of 1500 boxes some change sides at the overlap of a half.
        assert rounded[name].item() == pytest.approx(exact[name].item(), rel=0.05)


@pytest.mark.parametrize("what", ["box", "mask"])
def test_boxes_of_every_size_are_pooled_from_the_level_that_torchvision_takes(data: CocoImages, what: str) -> None:
    model, height, width = a_detector(data), 320, 480
    generator = torch.Generator().manual_seed(1)
    features = {
        str(level): torch.randn(2, 3, height >> 2 + level, width >> 2 + level, generator=generator)
        for level in range(4)
    }
    side = 2 ** (3 + 5 * torch.rand(2, 200, 2, generator=generator))  # 8 to 256 and more: all four levels
    side = torch.minimum(side * torch.tensor([1.6, 1.2]), torch.tensor([width, height]))
    corner = torch.rand(2, 200, 2, generator=generator) * (torch.tensor([width, height]) - side)
    some = torch.cat([corner, corner + side], dim=2)
    some[:, 0] = torch.tensor([0.0, 0.0, width, height])
    expected = getattr(model.roi_heads, f"{what}_roi_pool")(features, list(some), [(height, width)] * 2)
    batched = Batched(model)
    picture = batched.picture(features)
    found = batched.pool(picture, some.flatten(0, 1), torch.arange(2).repeat_interleave(200), what)
    # A point in a picture of 184 columns is off by a rounding of eps / 2 * 184 = 1.1e-5 in either direction, and the
    # values of neighbours differ by up to twice the largest (here 9): 1e-4 for one rounding each. A value is the mean
    # of four points, whose roundings are independent; more than one each is allowed for.
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


# -------------------------------------------------------------------- use


def test_detections_of_a_batch_are_those_of_its_images(data: CocoImages) -> None:
    model = a_detector(data, detections=15, box_nms_thresh=0.3).eval()
    model.roi_heads.box_predictor.cls_score.bias.data.zero_()
    model.roi_heads.box_predictor.cls_score.weight.data.mul_(20)
    images = [data[number][0] / 255 for number in range(3)]
    with torch.no_grad():
        expected = model([torch.nn.functional.pad(image, (0, 32)) for image in images])
        batch = resident(data, training=False).batch(0, torch.arange(3).numpy(), model.transform)
        pixels, sizes = batch.pixels.clone(), batch.sizes.clone()
        sizes[:, 1] = SIDE + 32
        black = torch.zeros(3, 3, SIDE, 32, dtype=torch.uint8)
        pixels[..., SIDE:] = normalised(
            black, torch.full((3, 2), 1e3), model.transform.image_mean, model.transform.image_std
        )
        found = Batched(model).detect(pixels, sizes)
    for number, image in enumerate(expected):
        assert len(image["scores"]) == 15
        torch.testing.assert_close(found["boxes"][number], image["boxes"], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(found["scores"][number], image["scores"])
        assert torch.equal(found["labels"][number], image["labels"])
        assert found["masks"].shape == (3, 15, 28, 28)


def test_where_the_best_candidates_are_too_alike_all_of_them_are_looked_at(
    data: CocoImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_detector(data, detections=15, masks=False).eval()
    batch = resident(data).batch(0, torch.arange(2).numpy(), model.transform)
    with torch.no_grad():
        model.roi_heads.box_predictor.cls_score.weight.mul_(20)
        expected = Batched(model).detect(batch.pixels, batch.sizes)
        monkeypatch.setattr(batched_rcnn, "FIRST_CANDIDATES", 20)
        found = Batched(model).detect(batch.pixels, batch.sizes)
    assert (found["scores"] > 0).sum() == (expected["scores"] > 0).sum()
    for name in ("labels", "scores", "boxes"):
        torch.testing.assert_close(found[name], expected[name][:, : found[name].shape[1]])


# -------------------------------------------------------------------- data that stay on the device


def test_a_resident_image_is_the_one_in_the_file_and_its_mirror_image_follows(data: CocoImages) -> None:
    store = resident(data)
    canvas, row = store.place[5]
    assert (canvas, row) == (0, 10)
    held = store.canvases[0]
    assert held is not None
    image, target = data[5]
    number = len(target["labels"])
    assert torch.equal(held.pixels[row, :, :, :SIDE], image)
    assert torch.equal(held.pixels[row + 1, :, :, :SIDE], image.flip(-1))
    assert not held.pixels[row, :, :, SIDE:].any()
    assert torch.equal(held.boxes[row, :number], target["boxes"])
    assert torch.equal(held.labels[row, :number], target["labels"])
    assert not held.labels[row, number:].any()
    for here, masks in ((row, target["masks"]), (row + 1, target["masks"].flip(-1))):
        mine = slice(int(held.first[here]), int(held.first[here + 1]))
        assert torch.equal(held.masks[mine, :, :SIDE], masks)  # type: ignore[index]
    mirrored = held.boxes[row + 1, 0].tolist()
    box = target["boxes"][0].tolist()
    assert mirrored == [SIDE - box[2], box[1], SIDE - box[0], box[3]]
    assert Resident.bytes(data, SIDE, SIDE + 32) >= held.pixels.numel() + held.masks.numel()  # type: ignore[union-attr]


def test_images_of_another_size_are_resized_with_their_boxes_and_masks(data: CocoImages) -> None:
    store = Resident(data, CPU, shorter=2 * SIDE, longer=3 * SIDE)
    held = store.canvases[0]
    assert held is not None
    _, target = data[0]
    assert held.sizes[0].tolist() == [2 * SIDE, 2 * SIDE]
    torch.testing.assert_close(held.boxes[0, : len(target["boxes"])], 2 * target["boxes"])
    x0, y0, x1, y1 = (2 * target["boxes"][0]).int().tolist()
    assert held.masks is not None
    assert held.masks[0, y0:y1, x0:x1].all()
    assert held.masks[0].sum() == (x1 - x0) * (y1 - y0)
    assert fitting_size(500, 200, 320, 480) == (480, 192)


def test_batches_are_of_one_canvas_and_in_the_order_in_which_they_fill(data: CocoImages) -> None:
    store = resident(data)
    store.place = [(number % 2, 2 * (number // 2)) for number in range(8)]
    drawn = torch.arange(8).numpy()
    flips = (drawn == 3) | (drawn == 4)
    found = [(canvas, rows.tolist()) for canvas, rows in store.grouped(drawn, flips, 2)]
    assert found == [(0, [0, 2]), (1, [0, 3]), (0, [5, 6]), (1, [4, 6])]


def test_features_computed_once_give_the_loss_of_the_whole_detector(data: CocoImages) -> None:
    model = a_detector(data).train()
    model.requires_grad_(False)
    model.roi_heads.box_predictor.cls_score.requires_grad_(True)
    batched, store = Batched(model), resident(data)
    rows = torch.tensor([3, 0, 6, 9]).numpy()
    for federated in (False, True):
        batch = store.batch(0, rows, model.transform, federated=federated)
        expected = batched(batch)["loss_classifier"]
        frozen = FrozenRegions(batched, store, torch.autocast("cpu", enabled=False), batch_size=5)
        loss = batched(frozen.batch(rows, federated=federated))["loss_classifier"]
        torch.testing.assert_close(loss, expected)
        loss.backward()
        assert model.roi_heads.box_predictor.cls_score.weight.grad.abs().sum() > 0
