"""Images, boxes and masks from COCO and LVIS files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.coco_files import SIDE, edit, rectangle, write_lvis
from PIL import Image

import equipoise as eq
from equipoise.data.coco import CocoImages, read_image
from equipoise.data.masks import compress, decode_mask, encode_images, first_wrong_runs, run_lengths


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_lvis(tmp_path)


def load(file: Path) -> CocoImages:
    return CocoImages(file, file.parent)


# -------------------------------------------------------------------- masks


def random_masks(seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    masks = random.random((40, 13, 17)) < random.random((40, 1, 1))
    masks[0], masks[1] = False, True
    masks[2:20] = np.repeat(np.repeat(masks[2:20, :4, :5], 4, 1), 4, 2)[:, :13, :17]  # long runs
    return torch.from_numpy(masks)


def runs(mask: Any) -> dict[str, Any]:
    """The uncompressed RLE of a mask [H, W]."""
    flat = np.asarray(mask).T.ravel()
    ends = np.flatnonzero(np.diff(flat, prepend=False))
    return {"size": list(mask.shape), "counts": np.diff(ends, prepend=0, append=flat.size).tolist()}


def test_masks_survive_encoding_and_decoding_compressed_or_not() -> None:
    mask_tools = pytest.importorskip("pycocotools.mask")
    masks = random_masks()
    for mask in masks.numpy():
        rle = runs(mask)
        reference = mask_tools.encode(np.asfortranarray(mask.astype(np.uint8)))
        assert compress(rle)["counts"] == reference["counts"].decode()
        assert run_lengths(reference["counts"]).tolist() == rle["counts"]
        for form in (rle, compress(rle), reference):
            np.testing.assert_array_equal(decode_mask(form, 13, 17), mask)


def test_runs_of_many_masks_are_checked_together_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings with one character changed: most are wrong, and some happen to be another mask."""
    masks = torch.rand(20, 6, 7, generator=torch.Generator().manual_seed(0)).repeat_interleave(9, 1) > 0.5
    (good,) = encode_images([masks])
    random, seen = np.random.default_rng(0), {True: 0, False: 0}
    assert first_wrong_runs(good) is None
    assert first_wrong_runs([]) is None
    for turn in range(600):
        text = bytearray(good[turn % 20]["counts"].encode())
        text[random.integers(len(text))] = random.integers(46, 114)
        changed = {"size": [54, 7], "counts": text.decode("ascii")}
        try:
            decode_mask(changed, 54, 7)
            fits = True
        except ValueError:
            fits = False
        seen[fits] += 1
        monkeypatch.setattr("equipoise.data.masks.CHECKED_AT_ONCE", 50 if turn % 2 else 1 << 18)
        assert first_wrong_runs([*good[:7], changed, *good[7:]]) == (None if fits else 7), changed
    assert min(seen.values()) > 5


def test_large_masks_with_long_runs_decode_as_pycocotools_does() -> None:
    mask_tools = pytest.importorskip("pycocotools.mask")
    mask = np.zeros((700, 900), np.uint8)
    mask[100:600, 50:800] = 1
    mask[300, 400] = 0
    rle = mask_tools.encode(np.asfortranarray(mask))
    np.testing.assert_array_equal(decode_mask(rle, 700, 900), mask)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_polygons_are_drawn_as_pycocotools_does() -> None:
    mask_tools = pytest.importorskip("pycocotools.mask")
    polygons = [[1.0, 1.0, 9.5, 2.0, 6.0, 11.0], [12.0, 3.0, 16.0, 3.0, 16.0, 9.0, 12.0, 9.0]]
    reference = mask_tools.decode(mask_tools.merge(mask_tools.frPyObjects(polygons, 13, 17)))
    np.testing.assert_array_equal(decode_mask(polygons, 13, 17), reference)
    assert reference.sum() > 40


@pytest.mark.parametrize(
    ("rle", "message"),
    [
        ({"size": [10, 10], "counts": [2**62] * 4 + [100]}, "expected run lengths"),  # sums to 100 in 64 bits
        ({"size": [10, 10], "counts": [2**64, 100]}, "expected run lengths"),
        ({"size": [10, 10], "counts": [-5, 105]}, r"covers 100 pixels \(least run -5\)"),
        ({"size": [10, 10], "counts": [120, -20]}, "covers 100 pixels"),
        ({"size": [10, 10], "counts": [50, 51]}, "covers 101 pixels"),
        ({"size": [10, 10], "counts": [50.5, 49.5]}, "whole numbers of pixels"),
        ({"size": [10, 10], "counts": ["100"]}, "whole numbers of pixels"),
        ({"size": [10, 10], "counts": [[100]]}, "whole numbers of pixels"),
        ({"size": [10, 10], "counts": []}, "whole numbers of pixels"),
        ({"size": [10, 10], "counts": "o" * 12 + "0"}, "longer than any image"),
        ({"size": [10, 10], "counts": "T3T3T3"}, "covers"),
        ({"size": [10, 10], "counts": "~"}, "not a compressed RLE"),
        ({"size": [10, 10], "counts": ""}, "not a compressed RLE"),
        ({"size": [10.5, 10], "counts": [100]}, "has the size"),
        ({"size": "10", "counts": [100]}, "has the size '10'"),
        ({"counts": [100]}, "has the size None"),
        ([[0, 0, "5", 5, 5, 0]], "expected lists of numbers"),
        ([[0, 0, float("inf"), 5, 5, 0]], "expected lists of numbers"),
        ("100", "is a str: expected"),
    ],
)
def test_masks_that_do_not_fill_their_image_are_refused(rle: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_mask(rle, 10, 10)


def test_a_mask_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="masks have 1 to"):
        decode_mask({"size": [10**6, 10**6], "counts": [10**12]}, 10**6, 10**6)


# -------------------------------------------------------------------- the data set


def test_images_boxes_labels_and_masks_belong_together(file: Path) -> None:
    data = load(file)
    assert len(data) == 8
    assert data.class_ids == (7, 12, 30, 50)
    assert data.class_names == ("class 0", "class 1", "class 2", "class 3")
    for index in range(len(data)):
        image, target = data[index]
        assert image.shape == (3, SIDE, SIDE)
        assert target["labels"].tolist() == [c + 1 for c in range(3) if index % 2**c == 0]
        for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
            x0, y0, x1, y1 = (int(side) for side in box)
            assert mask.sum() == mask[y0:y1, x0:x1].sum() == (x1 - x0) * (y1 - y0)
            last = label == target["labels"][-1]  # later rectangles may cover earlier ones
            if last:
                assert image[:, y0:y1, x0:x1].float().mean((1, 2)).argmax() == label - 1


def test_federated_labels_say_for_which_classes_a_place_is_known_to_be_free(file: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["images"][1]["neg_category_ids"] = [50]
        content["images"][0]["not_exhaustive_category_ids"] = [7]

    data = load(edit(file, change))
    assert data[1][1]["verified"].tolist() == [True, False, False, True]
    assert data[0][1]["verified"].tolist() == [False, True, True, True]


def test_plain_coco_files_have_nothing_to_verify(file: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        for image in content["images"]:
            del image["neg_category_ids"], image["not_exhaustive_category_ids"]

    assert "verified" not in load(edit(file, change))[0][1]


def test_its_prior_is_that_of_the_file(file: Path) -> None:
    data = load(file)
    assert data.prior() == eq.Prior.from_coco(file)
    assert data.prior("instances") == eq.Prior.from_coco(file, by="instances")
    offsets, classes = data.classes_per_item
    assert np.bincount(classes, minlength=4).tolist() == [8, 4, 2, 0]
    assert len(offsets) == 9


def test_boxes_only_files_give_no_masks(file: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        for annotation in content["annotations"]:
            annotation["segmentation"] = []

    data = load(edit(file, change))
    assert not data.has_masks
    assert sorted(data[0][1]) == ["boxes", "labels", "verified"]


def test_crowds_and_what_has_no_area_are_left_out_and_named(file: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["annotations"][0]["iscrowd"] = 1
        content["annotations"][1]["bbox"][2] = 0
        content["annotations"][2]["segmentation"] = [[1, 1, 5, 5]]
        content["annotations"][3]["bbox"] = [70, 10, 5, 5]  # outside of the image

    data = load(edit(file, change))
    assert data.left_out == {"crowd": [1], "no area": [2, 3, 4]}
    image, target = data[0]
    assert image.shape == (3, SIDE, SIDE)
    assert target["boxes"].shape == (0, 4)
    assert target["masks"].shape == (0, SIDE, SIDE)


def test_what_training_leaves_out_is_not_counted_either(file: Path) -> None:
    """Or rare, common and frequent classes are not the same in `equipoise run` and `equipoise detect eval`."""

    def change(content: dict[str, Any]) -> None:
        first, second, third, fourth, *_ = content["annotations"]
        first["iscrowd"] = 1
        second["bbox"][2] = 0
        third["segmentation"] = [[1, 1, 5, 5]]
        fourth["bbox"] = [70, 10, 5, 5]  # outside of the image

    whole, rest = eq.Prior.from_coco(file), eq.Prior.from_coco(edit(file, change))
    assert rest.counts.tolist() == [6, 3, 1, 0]
    assert (whole.total, rest.total) == (8, 6)
    for by in ("images", "instances"):
        assert load(file).prior(by) == eq.Prior.from_coco(file, by=by)  # type: ignore[arg-type]


def test_boxes_are_clipped_to_the_image(file: Path) -> None:
    data = load(edit(file, lambda content: content["annotations"][0].update(bbox=[-3, -2, 10, 100])))
    assert data[0][1]["boxes"][0].tolist() == [0, 0, 7, SIDE]


def test_lvis_files_without_names_take_the_end_of_the_address(file: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        for image in content["images"]:
            image["coco_url"] = "http://images.cocodataset.org/" + image.pop("file_name")

    assert load(edit(file, change))[3][0].shape == (3, SIDE, SIDE)


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA", "1"])
def test_every_kind_of_image_becomes_rgb(tmp_path: Path, mode: str) -> None:
    picture = Image.new("RGB", (5, 4), (200, 200, 200)).convert(mode)
    path = tmp_path / ("picture.tiff" if mode == "CMYK" else "picture.png")
    picture.save(path)
    pixels = read_image(path)
    assert pixels.shape == (3, 4, 5)
    assert pixels.dtype == torch.uint8
    assert mode == "1" or (pixels.int() - 200).abs().max() <= (5 if mode == "P" else 1)  # P: the nearest of 216 colours


def test_grey_images_of_16_bits_are_not_all_white(tmp_path: Path) -> None:
    values = np.array([[0, 256, 25_600], [51_200, 65_280, 65_535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png")[0].tolist() == [[0, 1, 100], [200, 255, 255]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("categories"), "no 'categories'"),
        (lambda c: c["annotations"][2].update(category_id=99), "annotation 3 has category_id 99"),
        (lambda c: c["annotations"][2].update(image_id=5), "annotation 3 has image_id 5"),
        (lambda c: c["annotations"][2].update(bbox=[1, 2, 3]), "annotation 3 has the bbox"),
        (lambda c: c["annotations"][2].pop("bbox"), "annotation 3 has the bbox None"),
        (lambda c: c["annotations"][2].update(bbox=["1", 2, 3, 4]), "annotation 3 has the bbox"),
        (lambda c: c["annotations"][2].update(bbox=[9, 9, 4, -4]), r"annotation 3 has the bbox \[9, 9, 4, -4\]: its"),
        (lambda c: c["annotations"][2].update(segmentation=[1, 1, 9, 1, 9, 9]), "annotation 3 has a segmentation that"),
        (lambda c: c["annotations"][2].pop("segmentation"), "annotation 3 has no segmentation"),
        (lambda c: c["images"].append(c["images"][0]), "two of its 'images' have the id 1000"),
        (lambda c: c["categories"].append(c["categories"][0]), "two of its 'categories' have the id 30"),
        (lambda c: c["images"][0].pop("height"), "image 1000 has no 'height'"),
        (lambda c: c["images"][0].pop("file_name"), "image 1000 has neither"),
        (lambda c: c["images"][0].update(neg_category_ids=[8]), "image 1000, neg_category_ids has category_id 8"),
    ],
    ids=[
        "categories", "category", "image", "short box", "no box", "text", "turned", "no list", "mask", "image twice",
        "category twice", "height", "name", "negative",
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_the_id(file: Path, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(edit(file, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["annotations"][0].update(segmentation=rectangle(1, 1, 3, 3, 32)), r"has a mask of \[32, 32\]"),
        (lambda c: c["annotations"][0]["segmentation"].update(counts=[5, 5]), "has an RLE whose runs do not fill"),
        (lambda c: c["annotations"][0]["segmentation"].update(counts="~~"), "has an RLE whose runs do not fill"),
        (lambda c: c["images"][0].update(height=63, width=64), r"has a mask of .*, its image has \[63, 64\]"),
        (lambda c: c["annotations"][0].update(segmentation=[["1", 1, 5, 1, 5, 5]]), "cannot be used: its segmentation"),
    ],
    ids=["size", "length", "string", "image size", "polygon"],
)
def test_bad_masks_are_refused_with_the_id(file: Path, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"annotation 1 {message}"):
        load(edit(file, change))[0]


def test_a_missing_or_broken_image_is_named(file: Path) -> None:
    (file.parent / "pictures" / "0.png").write_bytes(b"no image")
    (file.parent / "pictures" / "1.png").unlink()
    with pytest.raises(ValueError, match=r"0\.png cannot be read"):
        load(file)[0]
    with pytest.raises(FileNotFoundError, match=r"1\.png does not exist"):
        load(file)[1]


def test_masks_compressed_on_their_device_are_hotcocos() -> None:
    pytest.importorskip("hotcoco")
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(9, 70, 90, generator=generator) < torch.linspace(0, 1, 9)[:, None, None]
    masks[5, :30], masks[6, 3:60, 4:80] = True, True
    large = torch.zeros(2, 1500, 1400, dtype=torch.bool)
    large[0, -1, -1] = True
    large[1, 0] = True
    for some in (masks, large):
        assert encode_images([some]) == [[compress(runs(mask)) for mask in some.numpy()]]
    assert encode_images([masks[:0]]) == [[]]
    several = [masks, masks[:0], large, masks[5:6, :1], masks[:0]]
    assert encode_images(several) == [encode_images([some])[0] for some in several]
    assert encode_images([masks[:0]]) == [[]]
