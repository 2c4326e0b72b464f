"""AP at caps, AP-fixed and AP-pool: against the definition, written slowly, and by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.coco_files import edit, write_lvis
from metrics.test_detection_metrics import federate, found, random_results
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data.masks import decode_mask, encode_images
from equipoise.data.reading import read_json
from equipoise.metrics.detection import Detections, GroundTruth
from equipoise.metrics.detection_best import BestPerClass
from equipoise.metrics.detection_matching import IOUS
from equipoise.metrics.detection_measures import (
    ap_at,
    ap_fixed,
    ap_pool,
    group_shares,
    instance_shares,
    pool_calibration,
    right_at,
    scaled_cap,
)

pytest.importorskip("hotcoco")
pytestmark = pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")

SHORT = {"AP": "AP", "AP_r": "APr", "AP_c": "APc", "AP_f": "APf"}


# -------------------------------------------------------------------- the definition, one detection at a time


def overlap(a: list[float], b: list[float], crowd: bool) -> float:
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / (a[2] * a[3] if crowd else a[2] * a[3] + b[2] * b[3] - shared)


def judged(content: dict[str, Any], results: list[dict[str, Any]], category: int, iou: float) -> list[tuple]:
    """(score, right) of a class's detections, image by image, those that do not count left out."""
    answers = []
    for image in sorted(content["images"], key=lambda image: image["id"]):
        here = [r for r in results if (r["image_id"], r["category_id"]) == (image["id"], category)]
        marked = [a for a in content["annotations"] if (a["image_id"], a["category_id"]) == (image["id"], category)]
        if not marked and category not in image["neg_category_ids"]:
            continue
        crowds, marked = [a for a in marked if a.get("iscrowd")], [a for a in marked if not a.get("iscrowd")]
        taken: set[int] = set()
        for result in sorted(here, key=lambda r: -r["score"]):
            free = [(overlap(result["bbox"], a["bbox"], False), n) for n, a in enumerate(marked) if n not in taken]
            shared, best = max(free, default=(0.0, -1))
            if shared >= iou:
                taken.add(best)
                answers.append((result["score"], True))
            elif category not in image["not_exhaustive_category_ids"]:
                inside = any(overlap(result["bbox"], a["bbox"], True) >= iou for a in crowds)
                answers += [] if inside else [(result["score"], False)]
    return answers


def precision_at_101_recalls(answers: list[tuple], instances: int) -> float:
    ranked = [right for _, right in sorted(answers, key=lambda answer: -answer[0])]
    hits = np.cumsum(ranked)
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / instances
    return float(np.mean([max(precision[recall >= r], default=0.0) for r in np.linspace(0, 1, 101)]))


def by_definition(
    content: dict[str, Any], results: list[dict[str, Any]], *, cap: int | None, best: int | None, pool: bool
) -> dict[str, float | None]:
    ordered = sorted(sorted(results, key=lambda r: r["image_id"]), key=lambda r: -r["score"])
    if cap is not None:
        ordered = [r for n, r in enumerate(ordered) if sum(q["image_id"] == r["image_id"] for q in ordered[:n]) < cap]
    if best is not None:
        same = "category_id"
        ordered = [r for n, r in enumerate(ordered) if sum(q[same] == r[same] for q in ordered[:n]) < best]
    numbers: dict[str, float | None] = {}
    of = {c["id"]: [r for r in ordered if r["category_id"] == c["id"]] for c in content["categories"]}
    for name in SHORT:
        chosen = [c for c in content["categories"] if name == "AP" or c["frequency"] == name[-1]]
        ids = sorted(category["id"] for category in chosen)
        marked = [a["category_id"] for a in content["annotations"] if not a.get("iscrowd")]
        counts = {identity: marked.count(identity) for identity in ids}
        values = []
        for iou in IOUS:
            answers = {i: judged(content, of[i], i, iou) if of[i] else [] for i in ids}
            if pool and sum(counts.values()):
                values.append(precision_at_101_recalls([a for i in ids for a in answers[i]], sum(counts.values())))
            elif not pool:
                values += [precision_at_101_recalls(answers[i], counts[i]) for i in ids if counts[i]]
        numbers[name] = 100 * float(np.mean(values)) if values else None
    return numbers


def crowded(content: dict[str, Any]) -> None:
    for annotation in content["annotations"][::5]:
        annotation["iscrowd"] = 1


def boxes_only(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in result.items() if key != "segmentation"} for result in results]


@pytest.fixture(params=["exhaustive", "federated", "with crowds"])
def case(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[GroundTruth, dict[str, Any], list[dict[str, Any]]]:
    file = write_lvis(tmp_path, images=8)
    if request.param != "exhaustive":
        edit(file, federate)
    if request.param == "with crowds":
        edit(file, crowded)
    content = read_json(file)
    return GroundTruth(file), content, boxes_only(random_results(content, seed=3, each=24))


@pytest.mark.parametrize("cap", [1, 5, 20])
def test_ap_at_a_cap_is_the_definition(case: Any, cap: int) -> None:
    truth, content, results = case
    ours = ap_at(truth.match(Detections.from_results(results), "bbox"), cap)
    assert ours == pytest.approx(by_definition(content, results, cap=cap, best=None, pool=False), abs=1e-9)
    assert ours["AP"] > 1  # type: ignore[operator]


@pytest.mark.parametrize("best", [5, 30, 10_000])
def test_ap_fixed_and_ap_pool_are_the_definition(case: Any, best: int) -> None:
    truth, content, results = case
    matches = truth.match(Detections.from_results(results), "bbox")
    for measure, pool in ((ap_fixed, False), (ap_pool, True)):
        expected = by_definition(content, results, cap=None, best=best, pool=pool)
        assert measure(matches, best) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
@pytest.mark.parametrize("each", [40, 350])
def test_ap_at_300_is_that_of_the_13_numbers(tmp_path: Path, kind: Any, each: int) -> None:
    file = edit(edit(write_lvis(tmp_path, images=12), federate), crowded)
    results = Detections.from_results(random_results(read_json(file), seed=each, each=each))
    truth = GroundTruth(file)
    theirs, ours = truth.evaluate(results, kind), ap_at(truth.match(results, kind), 300)
    assert ours == pytest.approx({name: theirs[short] for name, short in SHORT.items()}, abs=1e-9)
    assert ap_at(truth.match(results, kind)) == pytest.approx(ours, abs=1e-9) or each > 300


def test_many_pairs_are_looked_at_in_parts(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    truth, _, results = case
    whole = truth.match(Detections.from_results(results), "bbox")
    monkeypatch.setattr("equipoise.metrics.detection_matching.PAIRS", 7)
    parts = truth.match(Detections.from_results(results), "bbox")
    assert len(whole.hits) > 7
    np.testing.assert_array_equal(parts.hits, whole.hits)


# -------------------------------------------------------------------- what each can see


def shifted(results: list[dict[str, Any]], category: int, by: float) -> list[dict[str, Any]]:
    return [r | {"score": r["score"] + by * (r["category_id"] == category)} for r in results]


def test_a_constant_on_one_class_is_seen_by_the_pool_and_at_a_cap_alone(case: Any) -> None:
    truth, _, results = case
    before, after = (
        truth.match(Detections.from_results(given), "bbox") for given in (results, shifted(results, 12, -0.9))
    )
    assert ap_fixed(before) == ap_fixed(after)
    assert ap_at(before) == ap_at(after)
    assert ap_pool(before)["AP"] != ap_pool(after)["AP"]
    assert ap_pool(before)["AP_c"] == ap_pool(after)["AP_c"]
    assert ap_at(before, 5)["AP"] != ap_at(after, 5)["AP"]


def test_perfect_detections_get_100_in_every_measure_and_none_get_0(tmp_path: Path) -> None:
    file = write_lvis(tmp_path)
    truth = GroundTruth(file)
    right = truth.match(Detections.from_results(found(file)), "segm")
    nothing = truth.match(Detections.from_results([]), "bbox")
    for measure in (ap_at, ap_fixed, ap_pool):
        assert measure(right) == pytest.approx(dict.fromkeys(SHORT, 100.0))
        assert measure(nothing) == dict.fromkeys(SHORT, 0.0)


def test_groups_that_the_file_does_not_tell_are_none(tmp_path: Path) -> None:
    file = write_lvis(tmp_path)
    results = Detections.from_results(found(file))
    edit(file, lambda content: [category.pop("frequency") for category in content["categories"]])
    numbers = ap_pool(GroundTruth(file).match(results, "bbox"))
    assert numbers == {"AP": pytest.approx(100), "AP_r": None, "AP_c": None, "AP_f": None}


def test_wrong_detections_of_a_class_without_instances_count_in_the_pool(tmp_path: Path) -> None:
    file = write_lvis(tmp_path)
    wrong = [{"image_id": 1000, "category_id": 50, "score": 0.99, "bbox": [0, 0, 9, 9]}] * 40
    matches = GroundTruth(file).match(Detections.from_results(boxes_only(found(file)) + wrong), "bbox")
    assert ap_fixed(matches)["AP"] == pytest.approx(100)
    assert ap_pool(matches)["AP"] < 60  # type: ignore[operator]


def test_a_cap_below_1_is_refused(case: Any) -> None:
    truth, _, results = case
    with pytest.raises(ValueError, match="cap is 0"):
        ap_at(truth.match(Detections.from_results(results), "bbox"), 0)


def test_the_cap_is_scaled_to_the_vocabulary() -> None:
    assert [scaled_cap(number) for number in (1203, 365, 200, 80, 20, 2)] == [300, 91, 50, 20, 5, 1]


# -------------------------------------------------------------------- calibration


def test_calibration_is_of_the_pool_by_score_and_group(tmp_path: Path) -> None:
    file = write_lvis(tmp_path, images=4)
    right = boxes_only(found(file, score=0.75))
    wrong = [r | {"bbox": [0, 58, 5, 5], "score": 0.75} for r in right if r["category_id"] == 7]
    bins = pool_calibration(
        GroundTruth(file).match(Detections.from_results(right + wrong), "bbox"), edges=(0.0, 0.5, 1.0)
    )
    assert set(bins) == {"all", "r", "c", "f"}
    assert bins["f"].number.tolist() == [0, len(wrong) * 2]
    assert bins["f"].expected[1] == pytest.approx(0.75)
    assert (bins["f"].observed[1], bins["c"].observed[1]) == (0.5, 1.0)
    assert np.isnan(bins["f"].observed[0])
    assert (bins["f"].error, bins["c"].error) == pytest.approx((0.25, 0.25))
    with pytest.raises(ValueError, match=r"iou is 0.52"):
        pool_calibration(GroundTruth(file).match(Detections.from_results(right), "bbox"), iou=0.52)


# -------------------------------------------------------------------- the best per class, a batch at a time


def test_shares_of_the_groups_are_counted_image_by_image(case: Any) -> None:
    truth, content, results = case
    matches = truth.match(Detections.from_results(results), "bbox")
    group = {category["id"]: category["frequency"] for category in content["categories"]}
    images = {image["id"]: [one for one in results if one["image_id"] == image["id"]] for image in content["images"]}
    images[1000] = []  # an image with fewer than the others
    some = [one for found in images.values() for one in found]
    shares = group_shares(truth.match(Detections.from_results(some), "bbox"), 20)
    for k in (1, 7, 20):
        # equal scores, of which there are some, in the order they were given
        ranked = [sorted(found, key=lambda one: -one["score"])[:k] for found in images.values()]
        counted = [group[one["category_id"]] for found in ranked for one in found]
        for name, share in shares.items():
            assert share[k - 1] == pytest.approx(counted.count(name) / len(counted), abs=1e-12)
    assert {name: len(share) for name, share in shares.items()} == {"r": 20, "c": 20, "f": 20}
    assert len(group_shares(matches)["r"]) == 24  # no image has more
    marked = [group[one["category_id"]] for one in content["annotations"] if not one.get("iscrowd")]
    assert instance_shares(matches) == pytest.approx({name: marked.count(name) / len(marked) for name in "rcf"})


def test_the_right_detections_are_those_on_an_instance_of_their_class(tmp_path: Path) -> None:
    file = write_lvis(tmp_path)
    given = boxes_only(found(file))
    wrong = [given[0] | {"category_id": 50}, given[0] | {"score": 0.01}, given[0] | {"bbox": [0, 0, 1, 1]}]
    right = right_at(GroundTruth(file).match(Detections.from_results([*wrong, *given]), "bbox"))
    assert right.tolist() == [False, False, False, *[True] * len(given)]
    with pytest.raises(ValueError, match=r"iou is 0.33"):
        right_at(GroundTruth(file).match(Detections.from_results(given), "bbox"), 0.33)


@pytest.mark.parametrize("masks", [True, False])
def test_the_best_per_class_of_batches_are_those_of_all(tmp_path: Path, masks: bool) -> None:
    file = write_lvis(tmp_path, images=8)
    given = random_results(read_json(file), seed=1, each=60)
    whole = Detections.from_results(given if masks else boxes_only(given))
    kept, largest = BestPerClass(20), 0
    for start in range(0, len(whole), 30):
        kept.add(whole[start : start + 30])
        largest = max(largest, len(kept))
    truth, some = GroundTruth(file), kept.detections()
    for kind in ("bbox", "segm") if masks else ("bbox",):
        all_of_it, best = truth.match(whole, kind), truth.match(some, kind)  # type: ignore[arg-type]
        assert ap_fixed(best, 20) == ap_fixed(all_of_it, 20)
        assert ap_pool(best, 20) == ap_pool(all_of_it, 20)
    assert largest <= 4 * 2 * 20 + 4 * 30
    assert len(some) < len(whole) / 3
    thresholds = kept.thresholds([7, 12, 30, 50], floor=0.001)
    assert thresholds.min() > 0.5
    assert BestPerClass(20).thresholds([7], floor=0.001).tolist() == [0.001]


# -------------------------------------------------------------------- from results files


def evaluated(*words: object) -> str:
    result = CliRunner().invoke(app, ["detect", "eval", *map(str, words)], env={"COLUMNS": "400"})
    return result.output


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, list[dict[str, Any]]]:
    file = edit(write_lvis(tmp_path, images=8), federate)
    results = boxes_only(random_results(read_json(file), seed=3, each=24))
    (tmp_path / "results.json").write_text(json.dumps(results))
    return file, tmp_path / "results.json", results


def test_the_command_prints_the_measures(files: Any) -> None:
    file, results, given = files
    said = evaluated(results, "--annotations", file, "--caps", 20, 5, "--fixed", "--pool").splitlines()
    matches = GroundTruth(file).match(Detections.from_results(given), "bbox")

    def numbers(found: dict[str, float | None]) -> str:
        return ", ".join(f"{name} {value:.2f}" for name, value in found.items())

    assert "has at most 24 detections per image" in said[0]
    assert said[1].startswith("bbox: AP ")
    assert said[2:7] == [
        f"bbox, 20 per image: {numbers(ap_at(matches, 20))}",
        f"bbox, 5 per image: {numbers(ap_at(matches, 5))}",
        f"bbox, 1 per image, LVIS's scaled to the classes: {numbers(ap_at(matches, 1))}",
        f"bbox, AP-fixed: {numbers(ap_fixed(matches))}",
        f"bbox, AP-pool: {numbers(ap_pool(matches))}",
    ]
    assert [line.split(",")[1] for line in said[7:]] == [f" scores of {group}" for group in ("all", "r", "c", "f")]


def test_scores_are_moved_to_the_rate_of_a_class_that_is_as_frequent_as_the_others(files: Any) -> None:
    file, results, given = files
    prior = eq.Prior.from_coco(file)
    moved = Detections.from_results(given).adjusted(prior, tau=0.5)
    shift = {i: float(s) for i, s in zip(prior.class_ids, eq.prior.sigmoid_shift(prior), strict=True)}
    for result, score in zip(given, moved.scores, strict=True):
        odds = result["score"] / (1 - result["score"]) * np.exp(-0.5 * shift[result["category_id"]])
        assert score == pytest.approx(odds / (1 + odds), rel=1e-5)
    said = evaluated(results, "--annotations", file, "--prior", file, "--pool", "--target-rate", "mean", "--tau", 0.5)
    pooled = ap_pool(GroundTruth(file).match(moved, "bbox"))
    assert f"AP-pool: AP {pooled['AP']:.2f}" in said
    assert pooled["AP"] != ap_pool(GroundTruth(file).match(Detections.from_results(given), "bbox"))["AP"]


def test_scores_of_0_and_1_stay_and_others_are_refused() -> None:
    prior = eq.Prior.from_counts([9, 1], total=10, class_ids=[3, 8])

    def scored(*scores: float, category: int = 8) -> Detections:
        number = len(scores)
        ids = np.ones(number, np.int64), np.full(number, category)
        return Detections(*ids, np.array(scores), np.zeros((number, 4)))

    assert scored(0.0, 1.0).adjusted(prior).scores.tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match=r"scores lie in \[-1, 0.5\]"):
        scored(-1.0, 0.5).adjusted(prior)
    with pytest.raises(ValueError, match="category id 4"):
        scored(0.5, category=4).adjusted(prior)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target-rate", "mean"), "--target-rate needs to know how often"),
        (("--target-rate", "much", "--prior"), "--target-rate much: expected a rate"),
        (("--target-rate", "2", "--prior"), "target_rate"),
        (("--caps", "0"), "Invalid value for '--caps'"),
    ],
)
def test_options_that_cannot_be_followed_are_one_message(files: Any, options: tuple[str, ...], message: str) -> None:
    file, results, _ = files
    more = (*options, file) if options[-1] == "--prior" else options
    said = evaluated(results, "--annotations", file, *more)
    assert message in said
    assert "bbox" not in said


def test_boxes_of_negative_size_are_refused() -> None:
    with pytest.raises(ValueError, match="width or height is negative"):
        Detections.from_results([{"image_id": 1, "category_id": 1, "score": 0.5, "bbox": [1, 1, -2, 3]}])


@pytest.mark.parametrize("size", [[64, 63], [1_000_000, 1_000_000]])
def test_masks_of_another_size_than_their_image_are_refused(tmp_path: Path, size: list[int]) -> None:
    file = write_lvis(tmp_path)
    results = found(file)
    results[2]["segmentation"] = {"size": size, "counts": [size[0] * size[1]]}
    truth, detections = GroundTruth(file), Detections.from_results(results)
    for judge in (truth.evaluate, truth.match):
        with pytest.raises(ValueError, match=rf"detection 2 has a mask of \[{size[0]}, {size[1]}\] pixels"):
            judge(detections, "segm")
    assert truth.evaluate(detections, "bbox")["AP"] == pytest.approx(100)


# -------------------------------------------------------------------- real LVIS annotations, all 1,203 categories

LVIS = Path(os.environ.get("EQUIPOISE_LVIS") or Path(__file__).resolve().parents[3] / "shared/data/lvis")


def near_the_truth(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Moved boxes with the masks of the truth, some of another class, and boxes of any class; scores have ties."""
    random = np.random.default_rng(0)
    ids = [category["id"] for category in content["categories"]]
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    results = []
    for annotation in content["annotations"]:
        height, width = sizes[annotation["image_id"]]
        mask = torch.from_numpy(decode_mask(annotation["segmentation"], height, width)).bool()
        ((rle,),) = encode_images([mask[None]])
        for turn in range(3):
            moved = (np.array(annotation["bbox"]) + random.normal(0, 1 + 3 * turn, 4)).round(1)
            category = annotation["category_id"] if random.random() < 0.7 else int(random.choice(ids))
            results.append(
                {
                    "image_id": annotation["image_id"],
                    "category_id": category,
                    "score": round(float(random.random()), 2),
                    "bbox": [*moved[:2].tolist(), *np.maximum(moved[2:], 1).tolist()],
                    "segmentation": rle,
                }
            )
    return results


@pytest.fixture(scope="module")
def lvis(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[dict[str, Any]]]:
    """Five real images with their federated annotations, and results."""
    if not (LVIS / "sample_val.json").is_file():
        pytest.skip("EQUIPOISE_LVIS names no folder of LVIS images")
    content = read_json(LVIS / "sample_val.json")
    marked = [one["image_id"] for one in content["annotations"]]
    order = sorted((image["id"] for image in content["images"]), key=marked.count)
    kept = {*order[40:44], order[-1]}  # with a few instances, and with most
    content["images"] = [image for image in content["images"] if image["id"] in kept]
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] in kept]
    folder = tmp_path_factory.mktemp("lvis")
    results = near_the_truth(content)
    (folder / "val.json").write_text(json.dumps(content))
    (folder / "results.json").write_text(json.dumps(results))
    return folder / "val.json", folder / "results.json", results


def test_every_measure_of_1203_federated_categories_is_the_definition(lvis: Any) -> None:
    file, _, results = lvis
    content, truth = read_json(file), GroundTruth(file)
    matches = truth.match(Detections.from_results(results), "bbox")
    assert len(matches.instances) == 1203
    assert any(image["not_exhaustive_category_ids"] for image in content["images"])
    for cap in (300, 10):
        assert ap_at(matches, cap) == pytest.approx(by_definition(content, results, cap=cap, best=None, pool=False))
    for best in (2, 10_000):
        ours = ap_fixed(matches, best), ap_pool(matches, best)
        for numbers, pool in zip(ours, (False, True), strict=True):
            assert numbers == pytest.approx(by_definition(content, results, cap=None, best=best, pool=pool))
            assert {name for name, value in numbers.items() if value is None} <= {"AP_r"}  # no rare one is marked
            assert numbers["AP"] > 5  # type: ignore[operator]


def test_masks_of_1203_federated_categories_are_judged_by_every_measure(lvis: Any) -> None:
    file, results, given = lvis
    truth = GroundTruth(file)
    detections = Detections.from_results(given)
    matches = truth.match(detections, "segm")
    theirs = truth.evaluate(detections, "segm")
    assert ap_at(matches, 300) == pytest.approx({name: theirs[short] for name, short in SHORT.items()}, abs=1e-9)
    said = evaluated(results, "--annotations", file, "--caps", 50, "--fixed", "--pool").splitlines()
    kinds = [line.split(":")[0] for line in said[1:]]
    for kind in ("bbox", "segm"):
        assert f"{kind}, 300 per image, LVIS's scaled to the classes" in kinds
        assert {f"{kind}, 50 per image", f"{kind}, AP-fixed", f"{kind}, AP-pool"} <= set(kinds)
    pooled = ap_pool(matches)
    assert f"segm, AP-pool: AP {pooled['AP']:.2f}, AP_r –, AP_c {pooled['AP_c']:.2f}" in "\n".join(said)
    assert {"all", "c", "f"} <= set(pool_calibration(matches))
