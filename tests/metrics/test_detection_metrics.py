"""LVIS's numbers: against the reference evaluator, and by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.coco_files import SIDE, edit, rectangle, write_lvis

import equipoise as eq
from equipoise.data.reading import read_json
from equipoise.metrics.detection import NUMBERS, Detections, GroundTruth

pytest.importorskip("hotcoco")


def found(file: Path, *, shift: int = 0, score: float = 0.9) -> list[dict[str, Any]]:
    """The ground truth as detections, moved to the right by `shift`."""
    results = []
    for annotation in read_json(file)["annotations"]:
        x, y, width, height = annotation["bbox"]
        x = min(x + shift, SIDE - width)
        results.append(
            {
                "image_id": annotation["image_id"],
                "category_id": annotation["category_id"],
                "score": score,
                "bbox": [x, y, width, height],
                "segmentation": rectangle(x, y, width, height),
            }
        )
    return results


def random_results(content: dict[str, Any], seed: int, each: int) -> list[dict[str, Any]]:
    """`each` detections per image: half of them near the truth, of any class; scores have ties."""
    random = np.random.default_rng(seed)
    ids = [category["id"] for category in content["categories"]]
    by_image: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        by_image[annotation["image_id"]].append(annotation)
    results = []
    for image_id, marked in by_image.items():
        for number in range(each):
            width, height = (int(side) for side in random.integers(4, 30, 2))
            x, y = int(random.integers(0, SIDE - width)), int(random.integers(0, SIDE - height))
            category = int(random.choice(ids))
            if number % 2 and marked:
                near = marked[int(random.integers(len(marked)))]
                x, y, width, height = (int(side) for side in near["bbox"])
                x = min(max(0, x + int(random.integers(-4, 5))), SIDE - width)
                category = near["category_id"] if random.random() < 0.7 else category
            results.append(
                {
                    "image_id": image_id,
                    "category_id": category,
                    "score": round(float(random.random()), 2),
                    "bbox": [x, y, width, height],
                    "segmentation": rectangle(x, y, width, height),
                }
            )
    return results


def federate(content: dict[str, Any]) -> None:
    """Leave classes unverified here and there, and some not exhaustively marked."""
    random = np.random.default_rng(5)
    for image in content["images"]:
        image["neg_category_ids"] = [c for c in image["neg_category_ids"] if random.random() < 0.5]
        image["not_exhaustive_category_ids"] = [7] if random.random() < 0.3 else []


@pytest.mark.parametrize("kind", ["bbox", "segm"])
@pytest.mark.parametrize("each", [6, 350])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_13_numbers_are_those_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, each: int
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", ModuleType("cv2"))  # it draws with it, and imports it first of all
    lvis = pytest.importorskip("lvis")
    monkeypatch.setattr(np, "float", float, raising=False)  # it needs what NumPy 1.24 removed
    file = edit(write_lvis(tmp_path, images=12), federate)
    results = random_results(read_json(file), seed=each, each=each)
    ours = GroundTruth(file).evaluate(Detections.from_results(results), kind)
    truth = lvis.LVIS(str(file))
    given = [{k: v for k, v in r.items() if kind == "bbox" or k != "bbox"} for r in results]
    if kind == "segm":
        masks = pytest.importorskip("pycocotools.mask")
        for result in given:
            result["segmentation"] = masks.frPyObjects(result["segmentation"], SIDE, SIDE)
    else:
        given = [{k: v for k, v in r.items() if k != "segmentation"} for r in given]
    theirs = lvis.LVISEval(truth, lvis.LVISResults(truth, given), kind)
    theirs.run()
    expected = {name: 100 * float(theirs.get_results()[name]) for name in NUMBERS}
    assert {name: -100.0 if value is None else value for name, value in ours.items()} == pytest.approx(expected)
    assert 1 < ours["AP"] < 95  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_perfect_detections_get_100_and_empty_groups_nothing(tmp_path: Path, kind: Any) -> None:
    file = write_lvis(tmp_path)
    numbers = GroundTruth(file).evaluate(Detections.from_results(found(file)), kind)
    assert list(numbers) == list(NUMBERS)
    assert {name: numbers[name] for name in ("AP", "APf", "APc", "APr", "AR@300")} == pytest.approx(
        dict.fromkeys(("AP", "APf", "APc", "APr", "AR@300"), 100)
    )
    assert numbers["APl"] is None
    assert numbers["APm"] is None


def test_no_detections_get_0(tmp_path: Path) -> None:
    numbers = GroundTruth(write_lvis(tmp_path)).evaluate(Detections.from_results([]), "bbox")
    assert numbers["AP"] == 0


def test_one_wrong_detection_before_the_right_one_halves_the_precision(tmp_path: Path) -> None:
    file = write_lvis(tmp_path, images=1)
    right = [result for result in found(file) if result["category_id"] == 7]
    wrong = {**right[0], "bbox": [0, 50, 5, 5], "score": 0.95}
    numbers = GroundTruth(file).evaluate(Detections.from_results([*right, wrong]), "bbox")
    assert numbers["APf"] == pytest.approx(50)


def test_detections_of_an_unverified_class_are_not_counted(tmp_path: Path) -> None:
    file = write_lvis(tmp_path, images=2)  # image 999 has class 0 only
    wrong = {"image_id": 999, "category_id": 12, "score": 0.99, "bbox": [0, 0, 9, 9]}
    results = [{k: v for k, v in r.items() if k != "segmentation"} for r in found(file)]
    searched = GroundTruth(file).evaluate(Detections.from_results([*results, wrong]), "bbox")
    edit(file, lambda content: content["images"][1].update(neg_category_ids=[]))
    unverified = GroundTruth(file).evaluate(Detections.from_results([*results, wrong]), "bbox")
    assert searched["APc"] == pytest.approx(50)
    assert unverified["APc"] == pytest.approx(100)


def test_only_the_300_best_of_an_image_count(tmp_path: Path) -> None:
    file = write_lvis(tmp_path, images=1)
    right = [r for r in found(file, score=0.5) if r["category_id"] == 7]
    better = [{**right[0], "category_id": 50, "score": 0.6} for _ in range(300)]
    for number, expected in ((299, 100), (300, 0)):
        numbers = GroundTruth(file).evaluate(Detections.from_results([*right, *better[:number]]), "bbox")
        assert numbers["APf"] == pytest.approx(expected)


def test_coco_files_count_as_searched_for_every_class_and_take_groups_from_the_prior(tmp_path: Path) -> None:
    file = write_lvis(tmp_path)
    lvis = GroundTruth(file).evaluate(Detections.from_results(found(file, shift=3)), "bbox")

    def plain(content: dict[str, Any]) -> None:
        for image in content["images"]:
            del image["neg_category_ids"], image["not_exhaustive_category_ids"]
        for category in content["categories"]:
            del category["frequency"]

    edit(file, plain)
    without = GroundTruth(file).evaluate(Detections.from_results(found(file, shift=3)), "bbox")
    assert (without["APf"], without["APc"], without["APr"]) == (None, None, None)
    assert without["AP"] == lvis["AP"]
    prior = eq.Prior.from_counts([500, 50, 5, 0], total=500)
    assert GroundTruth(file, prior).evaluate(Detections.from_results(found(file, shift=3)), "bbox") == lvis


def test_results_survive_a_file(tmp_path: Path) -> None:
    file = write_lvis(tmp_path)
    detections = Detections.from_results(found(file, shift=2))
    written = json.loads(json.dumps(detections.to_results()))
    assert isinstance(written[0]["segmentation"]["counts"], str)
    truth = GroundTruth(file)
    for kind in ("bbox", "segm"):
        again = truth.evaluate(Detections.from_results(written), kind)  # type: ignore[arg-type]
        assert again == truth.evaluate(detections, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"image_id": 5}, "image id 5"), ({"category_id": 5}, "category id 5"), ({"segmentation": None}, "result 0")],
)
def test_results_of_other_data_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = write_lvis(tmp_path)
    results = found(file)
    results[0].update(change)
    with pytest.raises(ValueError, match=message):
        GroundTruth(file).evaluate(Detections.from_results(results), "bbox")


@pytest.mark.parametrize("same", [True, False])
def test_annotations_without_ids_or_with_the_same_one_are_all_counted(tmp_path: Path, same: bool) -> None:
    file = write_lvis(tmp_path)
    results = found(file)
    change = (lambda annotation: annotation.update(id=7)) if same else (lambda annotation: annotation.pop("id"))
    edit(file, lambda content: [change(annotation) for annotation in content["annotations"]])
    for kind in ("bbox", "segm"):
        assert GroundTruth(file).evaluate(Detections.from_results(results), kind)["AP"] == pytest.approx(100)  # type: ignore[arg-type]


@pytest.mark.parametrize("compressed", [True, False])
def test_results_of_masks_alone_have_the_boxes_around_them(tmp_path: Path, compressed: bool) -> None:
    file = write_lvis(tmp_path)
    results = found(file)
    results = Detections.from_results(results).to_results() if compressed else results
    alone = [{key: value for key, value in result.items() if key != "bbox"} for result in results]
    assert GroundTruth(file).evaluate(Detections.from_results(alone), "bbox")["AP"] == pytest.approx(100)


def test_crowds_and_boxes_without_area_need_no_mask(tmp_path: Path) -> None:
    def add(content: dict[str, Any]) -> None:
        like = {"image_id": 1000, "category_id": 7, "segmentation": []}
        content["annotations"].append(like | {"id": 98, "bbox": [5, 5, 0, 3], "area": 0})
        content["annotations"].append(like | {"id": 99, "bbox": [5, 5, 9, 9], "area": 81, "iscrowd": 1})

    assert GroundTruth(edit(write_lvis(tmp_path), add)).has_masks
    lacking = edit(write_lvis(tmp_path), lambda content: content["annotations"][0].pop("segmentation"))
    assert not GroundTruth(lacking).has_masks


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"annotations": []}, "results are a dict"),
        ([{"image_id": 1000, "category_id": 7, "bbox": [1, 2, 3, 4]}], "result 0 has no 'score'"),
        ([{"image_id": 1000, "category_id": 7, "bbox": [1, 2, 3], "score": 1}], r"bbox \[1, 2, 3\]"),
    ],
)
def test_what_is_no_list_of_results_is_refused(results: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Detections.from_results(results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["annotations"][3].update(image_id=5), "annotation 4 has image_id 5"),
        (lambda content: content["annotations"][3].update(category_id=5), "annotation 4 has category_id 5"),
        (lambda content: content.pop("categories"), "no 'categories'"),
    ],
)
def test_annotations_that_contradict_themselves_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroundTruth(edit(write_lvis(tmp_path), change))
