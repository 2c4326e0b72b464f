"""Annotations, results and options that `equipoise detect` must refuse, or follow to the letter."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.coco_files import edit, write_lvis
from metrics.test_detection_metrics import found, random_results
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data.reading import read_json
from equipoise.metrics.detection import Detections, GroundTruth
from equipoise.metrics.detection_measures import ap_pool, pool_calibration

pytest.importorskip("hotcoco")
pytestmark = pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "1000"})


def detect(*words: object) -> Any:
    return invoke("detect", *words)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    truth, results = write_lvis(tmp_path, images=4), tmp_path / "results.json"
    results.write_text(json.dumps(random_results(read_json(truth), seed=1, each=20)))
    return truth, results


# -------------------------------------------------------------------- annotations


def without(key: str, images: slice) -> Any:
    return lambda content: [image.pop(key) for image in content["images"][images]]


def with_value(part: str, key: str, value: Any) -> Any:
    return lambda content: content[part][1].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("neg_category_ids", slice(2, 3)), "image 998 has no 'neg_category_ids', but others have"),
        (
            without("not_exhaustive_category_ids", slice(1)),
            "image 1000 has no 'not_exhaustive_category_ids', but others",
        ),
        (with_value("images", "neg_category_ids", "abc"), "image 999 has the neg_category_ids abc: expected a list of"),
        (with_value("images", "not_exhaustive_category_ids", None), "the not_exhaustive_category_ids None: expected"),
        (with_value("images", "neg_category_ids", [[7]]), "image 999 has the neg_category_ids [[7]]: expected a list"),
        (with_value("categories", "frequency", "rare"), "category 7 has the frequency rare: expected r, c or f"),
    ],
)
def test_federated_fields_and_groups_are_checked(files: Any, tmp_path: Path, change: Any, message: str) -> None:
    truth, results = files
    edit(truth, change)
    before = sorted(tmp_path.rglob("*"))
    second = ("--images", tmp_path, "--names", "a", "b", "--out", tmp_path / "out")
    for words in (("eval", results), ("compare", results, results, *second)):
        result = detect(*words, "--annotations", truth)
        assert result.exit_code == 2, (result.output, result.exception)
        assert f"{truth}: " in result.output
        assert message in result.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [1, 1, -4, 4]}, "annotation 2 has the bbox [1, 1, -4, 4]: its width or height is negative"),
        (
            {"segmentation": {"size": [10**6, 10**6], "counts": "0"}},
            "annotation 2 has a mask of [1000000, 1000000] pixels, its image has [64, 64] (height and width)",
        ),
        (
            {"segmentation": {"size": [64, 64], "counts": [10**12]}},
            "annotation 2 has an RLE whose runs do not fill its size exactly",
        ),
    ],
)
def test_masks_and_boxes_of_the_truth_are_checked_by_every_command(
    files: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    truth, results = files
    edit(truth, lambda content: content["annotations"][1].update(change))
    before = sorted(tmp_path.rglob("*"))
    drawn = ("--images", tmp_path, "--names", "a", "b", "--out", tmp_path / "out")
    trained = ("--images", tmp_path, "--device", "cpu", "--results", tmp_path / "none", "--val", truth, "--seeds", 0)
    for words in (
        ("detect", "eval", results, "--annotations", truth),
        ("detect", "compare", results, results, "--annotations", truth, *drawn),
        ("run", "voc2012-lt", "--train", truth, *trained, "--out", tmp_path / "new" / "records.jsonl"),
    ):
        result = invoke(*words)
        assert result.exit_code == 2, (result.output, result.exception)
        assert f"{truth}: {message}" in result.output
    shutil.rmtree(tmp_path / "new")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_federated_field_may_be_left_out_of_the_whole_file(files: Any) -> None:
    """Without the classes that are not exhaustive, all are; without the negative ones, all others are absent."""
    truth, results = files
    detections = Detections.from_file(results)
    numbers = GroundTruth(truth).evaluate(detections, "bbox")  # the file lists every class that is absent
    for key in ("not_exhaustive_category_ids", "neg_category_ids"):
        edit(truth, without(key, slice(None)))
        assert GroundTruth(truth).evaluate(detections, "bbox") == numbers


def test_classes_that_are_not_marked_exhaustively_stay_so_without_negative_ones(files: Any) -> None:
    truth, results = files
    detections = Detections.from_file(results)
    exhaustive = ap_pool(GroundTruth(truth).match(detections, "bbox"))
    edit(truth, lambda content: [image.update(not_exhaustive_category_ids=[7]) for image in content["images"]])
    partial = ap_pool(GroundTruth(truth).match(detections, "bbox"))
    edit(truth, without("neg_category_ids", slice(None)))
    assert ap_pool(GroundTruth(truth).match(detections, "bbox")) == partial != exhaustive


def test_training_annotations_whose_ids_were_assigned_anew_are_refused(files: Any, tmp_path: Path) -> None:
    """Or each class would get the prior of another one."""
    truth, results = files
    train = write_lvis(tmp_path / "train", images=4)

    def assign_anew(content: dict[str, Any]) -> None:
        new = {30: 7, 7: 30}
        for category in content["categories"]:
            category["id"] = new.get(category["id"], category["id"])
        for annotation in content["annotations"]:
            annotation["category_id"] = new.get(annotation["category_id"], annotation["category_id"])

    words = ("eval", results, "--annotations", truth, "--prior", train, "--target-rate", "mean")
    assert detect(*words).exit_code == 0
    edit(train, assign_anew)
    said = detect(*words)
    assert said.exit_code == 2
    assert "the category class 2 has the id 30 in the annotations and 7 in the training annotations" in said.output
    edit(train, lambda content: [category.update(name=f"other {category['id']}") for category in content["categories"]])
    assert detect(*words).exit_code == 0  # other names for the same ids may be a translation


# -------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"size": [64, 63], "counts": [64 * 63]}, "detection 2 has a mask of [64, 63] pixels, its image has [64, 64]"),
        ({"size": [10**6, 10**6], "counts": [10**12]}, "detection 2 has a mask of [1000000, 1000000] pixels"),
        ({"size": [64, 64], "counts": "zzz"}, "detection 2 has an RLE whose runs do not fill its size exactly"),
    ],
)
def test_masks_that_do_not_fit_are_refused_where_only_boxes_are_evaluated(
    tmp_path: Path, mask: dict[str, Any], message: str
) -> None:
    truth = write_lvis(tmp_path, images=4)
    content = found(truth)
    content[2]["segmentation"] = mask
    results = tmp_path / "results.json"
    results.write_text(json.dumps(content))
    before = sorted(tmp_path.rglob("*"))
    names = ("--images", tmp_path, "--names", "a", "b", "--out", tmp_path / "out")
    drawn = detect("compare", results, results, "--annotations", truth, *names)
    edit(truth, lambda content: [annotation.pop("segmentation") for annotation in content["annotations"]])
    for result in (drawn, detect("eval", results, "--annotations", truth)):
        assert result.exit_code == 2, result.output
        assert f"{results}: {message}" in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_boxes_without_masks_are_evaluated_against_boxes_without_masks(tmp_path: Path) -> None:
    truth = write_lvis(tmp_path, images=4)
    edit(truth, lambda content: [annotation.pop("segmentation") for annotation in content["annotations"]])
    boxes = [{key: result[key] for key in ("image_id", "category_id", "score", "bbox")} for result in found(truth)]
    (tmp_path / "results.json").write_text(json.dumps(boxes))
    assert "bbox: AP 100.00" in detect("eval", tmp_path / "results.json", "--annotations", truth).output


@pytest.mark.parametrize(("part", "number"), [("scores", 3), ("boxes", 1)])
def test_numbers_that_are_not_finite_are_refused_in_python_too(tmp_path: Path, part: str, number: int) -> None:
    truth = write_lvis(tmp_path, images=4)
    detections = Detections.from_results(found(truth))
    getattr(detections, part)[number] = np.nan
    for judge in (GroundTruth(truth).evaluate, GroundTruth(truth).match):
        with pytest.raises(ValueError, match=rf"detection {number} has the (score|box) .*nan.*: not finite"):
            judge(detections, "bbox")


def test_scores_that_are_not_probabilities_are_ranked_but_have_no_calibration(files: Any, tmp_path: Path) -> None:
    truth, results = files
    logits = [result | {"score": 10 * result["score"] - 5} for result in read_json(results)]
    (tmp_path / "logits.json").write_text(json.dumps(logits))
    plain, moved = (
        detect("eval", path, "--annotations", truth, "--pool") for path in (results, tmp_path / "logits.json")
    )
    assert [line for line in moved.output.splitlines() if "AP-pool: AP" in line] == [
        line for line in plain.output.splitlines() if "AP-pool: AP" in line
    ]
    assert "bbox, no calibration: scores lie in [-4.9, 4.9]: expected probabilities, in [0, 1]" in moved.output
    assert "scores of all" in plain.output
    assert "scores of all" not in moved.output
    said = detect("eval", tmp_path / "logits.json", "--annotations", truth, "--pool", "--json")
    assert json.loads(said.output)["bbox"]["calibration"] is None


# -------------------------------------------------------------------- what is printed, and options


def test_json_has_the_calibration_and_the_notes_of_the_text(files: Any) -> None:
    truth, results = files
    words = ("eval", results, "--annotations", truth, "--pool", "--softmax", "--prior", truth)
    said, made = detect(*words).output.splitlines(), json.loads(detect(*words, "--json").output)
    assert made["notes"] == said[:2]
    assert (
        "at most 20 detections per image: if it was capped when written, AP-fixed and AP-pool are those of" in said[1]
    )
    adjusted = Detections.from_file(results).adjusted_softmax(eq.Prior.from_coco(truth, by="instances"))
    for kind in ("bbox", "segm"):
        wanted = pool_calibration(GroundTruth(truth).match(adjusted, kind))
        assert set(made[kind]["calibration"]) == set(wanted) == {"all", "r", "c", "f"}
        for group, bins in wanted.items():
            shown = made[kind]["calibration"][group]
            assert shown["number"] == bins.number.tolist()
            assert shown["error"] == bins.error
            assert [value is None for value in shown["observed"]] == (bins.number == 0).tolist()
            assert np.array_equal(np.array(shown["expected"], float), bins.expected, equal_nan=True)
    assert set(json.loads(detect("eval", results, "--annotations", truth, "--json").output)) == {"bbox", "segm"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tau", "0.5"), "--tau 0.5 is the share of a shift: say of which one, with --target-rate or --softmax"),
        (("--tau", "1"), "--tau 1 is the share of a shift"),
        (("--tau", "nan", "--target-rate", "mean"), "--tau nan: expected a finite number"),
        (("--tau", "inf", "--softmax"), "--tau inf: expected a finite number"),
    ],
)
def test_a_share_without_a_shift_is_refused(files: Any, options: tuple[str, ...], message: str) -> None:
    truth, results = files
    said = detect("eval", results, "--annotations", truth, "--prior", truth, *options)
    assert said.exit_code == 2
    assert message in said.output
    assert "bbox" not in said.output


def test_classes_without_items_are_pointed_out_in_one_clean_line(files: Any) -> None:
    truth, results = files
    with warnings.catch_warnings(action="always"):
        said = detect("eval", results, "--annotations", truth, "--prior", truth, "--target-rate", "mean", "--json")
    assert said.stderr == "1 of 4 classes have no item ('class 3'): each is treated as if it had one\n"
    assert set(json.loads(said.stdout)) == {"bbox", "segm"}


@pytest.mark.parametrize("tau", [float("nan"), float("inf")])
def test_a_share_of_the_shift_is_finite_in_python_too(files: Any, tau: float) -> None:
    truth, results = files
    with pytest.raises(ValueError, match=f"tau is {tau}: expected a finite number"):
        Detections.from_file(results).adjusted(eq.Prior.from_coco(truth), tau=tau)
