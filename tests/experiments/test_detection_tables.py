"""The tables of detectors: recipes, runs, records, commands."""

from __future__ import annotations

import json
import os
import runpy
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from helpers import run_records
from helpers.coco_files import SIDE, edit, write_lvis
from helpers.small_detectors import use_small_detectors
from torch import Tensor
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.detect_models import Network
from equipoise.cli.detect_models import load as load_for_use
from equipoise.data.coco import CocoImages, read_image
from equipoise.data.reading import read_json
from equipoise.experiments.mosaic_lt import recipe as mosaic_lt
from equipoise.experiments.table2 import recipe as table2
from equipoise.experiments.table2.report import methods_table
from equipoise.experiments.voc2012_lt import recipe as voc2012_lt
from equipoise.metrics.detection import Detections, GroundTruth
from equipoise.models.mask_rcnn import detector, resnet_fpn, stride_of
from equipoise.report.detections import colour, draw_detections
from equipoise.training import records as record_files
from equipoise.training.detection import DetectionRecipe, DetectionTraining
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.kept import note_of
from equipoise.training.recipe import Method

pytest.importorskip("hotcoco")
pytestmark = pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")
read_jsonl = partial(run_records.read_jsonl, kind=DetectionRecord)
read_records = partial(record_files.read_records, kind=DetectionRecord)
import_records = partial(record_files.import_records, kinds=[DetectionRecord])
ROWS = ["rfs", "rfs_longer", "crt", "lws", "eql", "balanced_sigmoid"]


def tiny(method: Method[DetectionRecipe]) -> Method[DetectionRecipe]:
    epochs = 0.25 if method.recipe.start is None else min(method.recipe.epochs, 0.125)
    recipe = replace(
        method.recipe, backbone="resnet18", epochs=epochs, batch_size=1, min_sizes=(SIDE,), max_size=SIDE, warmup=0
    )
    return replace(method, recipe=recipe)


@pytest.fixture
def voc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as VOC2012-LT's, with recipes small enough for a CPU."""
    use_small_detectors(monkeypatch)
    monkeypatch.setattr(voc2012_lt, "METHODS", tuple(map(tiny, voc2012_lt.METHODS)))
    monkeypatch.setattr(voc2012_lt, "CHOICES", tuple(map(tiny, voc2012_lt.CHOICES)))
    monkeypatch.setattr(mosaic_lt, "METHODS", tuple(map(tiny, mosaic_lt.METHODS)))
    for name, images, seed in (("train.json", 12, 0), ("train_lt.json", 8, 0), ("val.json", 3, 1)):
        write_lvis(tmp_path / "voc", images, seed=seed, name=name)
    return tmp_path / "voc"


def equipoise(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


# -------------------------------------------------------------------- recipes


@pytest.mark.parametrize("table", [table2, voc2012_lt])
def test_every_second_stage_starts_from_the_plain_sigmoid_and_lasts_10_epochs(table: object) -> None:
    methods = table.METHODS  # type: ignore[attr-defined]
    assert [method.name for method in methods][:6] == ROWS
    first, *second = (method.recipe for method in methods if method.name != "rfs_adjusted")
    assert (first.start, first.epochs, first.classification.__name__) == (None, 25, "plain_sigmoid")
    assert {(recipe.start, recipe.epochs) for recipe in second} == {("rfs", 10)}
    adjusted = [method.recipe for method in methods if method.name == "rfs_adjusted"]
    assert [(recipe.start, recipe.epochs) for recipe in adjusted] == [("rfs", 0)] * (table is voc2012_lt)
    samplers = {method.name: method.recipe.sampler for method in methods}
    assert {name for name, sampler in samplers.items() if sampler == "class_aware"} == {"crt", "lws"}


def test_the_iterations_of_lvis_are_those_of_25_epochs_of_16_images() -> None:
    assert table2.BASE.iterations(99_388) == 155_294
    assert table2.SECOND_STAGE.iterations(99_388) == 62_118


def test_what_is_chosen_does_not_change_the_runs_that_it_was_chosen_from(tmp_path: Path) -> None:
    """Else their records would no longer be of the recipe that stands in the file."""
    text, chosen = Path(voc2012_lt.__file__).read_text(), "\nBASE = replace(TRIED, repeat_threshold=0.05)\n"
    assert chosen in text
    (changed := tmp_path / "changed.py").write_text(text.replace(chosen, chosen.replace("0.05", "0.1, lr=0.01")))
    found, choices = runpy.run_path(str(changed)), voc2012_lt.BASE_CHOICES
    assert {method.recipe.repeat_threshold for method in found["METHODS"]} == {0.1}
    assert [method.recipe.as_dict() for method in found["BASE_CHOICES"]] == [
        method.recipe.as_dict() for method in choices
    ]
    names = [method.name for method in voc2012_lt.CHOICES]
    assert len(set(names)) == len(names)
    assert {method.recipe.start for method in choices} == {None, names[0]}
    second = [method.recipe for method in choices if method.recipe.start]
    assert {recipe.repeat_threshold for recipe in second} == {choices[0].recipe.repeat_threshold}  # as their start


def test_tau_is_chosen_among_detectors_that_are_the_first_stage_of_the_table() -> None:
    for table in (voc2012_lt, mosaic_lt):
        first, *others = table.CHOICES[-5:]
        assert (first.name, first.recipe) == ("rfs", table.BASE)
        assert [(one.recipe.start, one.recipe.epochs, one.recipe.options["tau"]) for one in others] == [
            ("rfs", 0, tau) for tau in (0.25, 0.5, 0.75, 1.0)
        ]


def test_held_out_annotations_are_replaced_at_once(voc: Path, tmp_path: Path) -> None:
    """Two commands that share a folder may write them while the other reads."""
    path = voc2012_lt.held_out(voc, tmp_path / "kept" / "held_out.json")
    with path.open() as reading:
        voc2012_lt.held_out(voc, path)
        assert path.stat().st_ino != os.fstat(reading.fileno()).st_ino
    assert [file.name for file in path.parent.iterdir()] == ["held_out.json"]


# -------------------------------------------------------------------- runs


def test_a_table_trains_within_its_budget_resumes_and_is_recorded(voc: Path, tmp_path: Path) -> None:
    out, results = tmp_path / "new" / "records.jsonl", tmp_path / "results"
    command = ("run", "voc2012-lt", "--data", voc, "--out", out, "--results", results, "--device", "cpu")
    said = equipoise(*command, "--only", "lws", "--only", "balanced_sigmoid", "--seeds", 3, "--budget", 0)
    assert "out of time at iteration 1 of 2" in said  # of the first stage, which was not asked for but is needed
    said = equipoise(*command, "--only", "lws", "--only", "balanced_sigmoid", "--seeds", 3)
    assert "rfs/3: resumed at iteration 1 of 2" in said
    records = list(read_jsonl(out))
    assert [(record.method, record.seed) for record in records] == [("lws", 3), ("balanced_sigmoid", 3)]
    assert all(record.complete and record.iterations == 1 for record in records)
    assert all(0 <= (record.AP_mask or 0) <= 100 for record in records)
    assert records[0].mask is not None
    assert records[0].AP_r == records[0].mask["APr"]
    assert records[0].counts == [8, 4, 2, 0]
    assert records[0].weights != records[1].weights
    assert "1 run to train" in equipoise(*command, "--only", "lws", "--seeds", 3, 4, "--budget", 0)
    assert equipoise("records", "import", out, "--results", results).startswith("2 new records")
    assert sorted(path.relative_to(results).as_posix() for path in results.rglob("*.json")) == [
        "voc2012-lt/balanced_sigmoid/3.json",
        "voc2012-lt/lws/3.json",
    ]
    table = equipoise("detect", "table", "voc2012-lt", "--results", results).splitlines()
    assert [line.split("|")[1].strip() for line in table[2:4]] == ["LWS", "Balanced Sigmoid"]
    assert [line for line in table if "AP_pool" in line or "AP_r@1 " in line] == [table[5], table[10]]


def test_resident_images_train_a_table_and_share_the_features_of_a_first_stage(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "records.jsonl"
    load, places = torch.load, []
    monkeypatch.setattr(
        torch, "load", lambda *file, **how: places.append(how.get("map_location")) or load(*file, **how)
    )
    said = equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", out, "--device", "cpu", "--resident", "--results", tmp_path,
        "--only", "eql", "--only", "crt", "--seeds", 0,
    )  # fmt: skip
    assert places == ["cpu"]  # weights of a first stage, wherever that was trained
    assert said.count("features of all boxes computed") == 1
    assert said.count("kept on the device") == 2  # to train on, and to evaluate on
    records = list(read_jsonl(out))
    assert [record.method for record in records] == ["crt", "eql"]
    assert {record.engine["features"] for record in records} == {"computed once"}
    assert records[0].engine["features_seconds"] == records[1].engine["features_seconds"] > 0
    for key in ("AP_mask", "AP_f", "AP_c", "AP_r", "AP_box", "commit", "versions", "hardware", "seconds"):
        assert key in json.loads(out.read_text().splitlines()[0])


def test_features_that_do_not_fit_are_computed_anew(voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.training.detection_runs.Images._free", lambda images: 1e6)
    out = tmp_path / "records.jsonl"
    said = equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", out, "--device", "cpu", "--resident", "--results", tmp_path,
        "--only", "eql", "--seeds", 0,
    )  # fmt: skip
    assert "would take 0 GB: computed again in every step" in said
    assert [record.engine["features"] for record in read_jsonl(out)] == ["computed anew"]


def test_smoke_tests_never_enter_the_table_and_choices_are_made_on_held_out_images(voc: Path, tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", out, "--device", "cpu", "--validate", "--only", "rfs_0.05",
        "--iterations", 1, "--results", tmp_path / "results", "--weights", resnet18(tmp_path),
    )  # fmt: skip
    (record,) = read_jsonl(out)
    assert (record.table, record.evaluated_on, record.evaluated_images) == ("choices/voc2012-lt", "held_out", 4)
    assert not record.complete
    assert record.backbone == "msra.pth"
    assert import_records(out, tmp_path / "results").written == []
    held_out = read_json(tmp_path / "checkpoints" / "held_out.json")
    assert [image["id"] for image in held_out["images"]] == [992, 991, 990, 989]


@pytest.mark.parametrize(
    ("table", "missing", "beside"),
    [("mosaic-lt", "heldout.json", "train.json"), ("voc2012-lt", "train.json", "train_lt.json")],
)
def test_choices_without_held_out_images_say_what_to_put_where(
    voc: Path, tmp_path: Path, table: str, missing: str, beside: str
) -> None:
    (voc / missing).unlink(missing_ok=True)
    words = ("run", table, "--data", voc, "--out", tmp_path / "new.jsonl", "--device", "cpu", "--validate")
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "1000"})
    assert result.exit_code == 2, result.output
    assert f"{voc} holds no {missing}: for --validate, put the annotations of " in result.output
    assert f" images there, beside {beside}" in result.output


def resnet18(folder: Path) -> Path:
    torch.save(torchvision.models.resnet18().state_dict(), folder / "msra.pth")
    return folder / "msra.pth"


@pytest.mark.parametrize("masks_to_test_on", [False, True])
def test_a_users_own_boxes_train_faster_rcnn_and_can_be_submitted(
    voc: Path, tmp_path: Path, masks_to_test_on: bool
) -> None:
    def boxes_only(content: dict[str, list[dict[str, object]]]) -> None:
        for annotation in content["annotations"]:
            del annotation["segmentation"]

    train = edit(voc / "train_lt.json", boxes_only)
    val = voc / "val.json" if masks_to_test_on else edit(voc / "val.json", boxes_only)
    out = tmp_path / "records.jsonl"
    equipoise(
        "run", "voc2012-lt", "--train", train, "--val", val, "--images", voc, "--out", out, "--device", "cpu",
        "--only", "rfs", "--seeds", 0, "--results", tmp_path / "results",
    )  # fmt: skip
    (record,) = read_jsonl(out)
    assert record.table == "own/train_lt/voc2012-lt"
    assert (record.AP_mask, record.mask) == (None, None)
    assert record.AP_f == record.box["APf"]
    (weights,) = (tmp_path / "checkpoints").glob("*.weights.pt")
    submitted = tmp_path / "results.json"
    said = equipoise(
        "detect", "submit", weights, "--annotations", val, "--images", voc, "--out", submitted, "--size", SIDE,
        "--backbone", "resnet18",
    )  # fmt: skip
    assert "in 3 images" in said
    results = json.loads(submitted.read_text())
    assert set(results[0]) == {"image_id", "category_id", "score", "bbox"}
    said = equipoise(
        "detect", "predict", voc / "pictures" / "0.png", voc / "pictures" / "1.png", "--weights", weights, "--size",
        SIDE, "--annotations", val, "--out", tmp_path / "drawn", "--backbone", "resnet18", "--threshold", 0,
    )  # fmt: skip
    assert said.count("objects") == 2
    assert read_image(tmp_path / "drawn" / "1.png").shape == (3, SIDE, SIDE)
    shown = equipoise("detect", "eval", submitted, "--annotations", val)
    assert shown.startswith("bbox: AP ")

    def predict(*arguments: object) -> Any:
        words = ["detect", "predict", *arguments, "--out", tmp_path / "drawn", "--device", "cpu"]
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})

    picture, options = voc / "pictures" / "0.png", ("--weights", weights, "--annotations", val)
    assert "there is no image nope.png" in predict("nope.png", *options).output
    (empty := tmp_path / "empty").mkdir()
    assert f"{empty} holds no images" in predict(empty, *options).output
    assert predict(picture.parent, *options).output.count(" objects") == len(list(picture.parent.iterdir()))
    assert "objects; the best score is 0." in predict(picture, *options, "--threshold", 1).output
    for wrong in (1.5, "nan"):
        assert "Invalid value for '--threshold'" in predict(picture, *options, "--threshold", wrong).output
    alone = weights.rename(tmp_path / "alone.weights.pt")
    refused = predict(picture, "--weights", alone, "--annotations", val).output  # it is a ResNet-18
    assert "there is no alone.finished.json beside the weights: assuming a resnet50" in refused
    assert "these weights are of another detector: backbone.body.layer1.0.conv1.weight has shape" in refused
    edit(val, lambda content: content["categories"].append({"id": 99, "name": "another"}))
    assert "has 4 classes, the annotations have 5" in predict(picture, "--weights", alone, "--annotations", val).output


def test_weights_are_used_only_for_the_categories_that_they_were_trained_on(voc: Path, tmp_path: Path) -> None:
    equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", tmp_path / "records.jsonl", "--device", "cpu", "--only", "rfs",
        "--seeds", 0, "--results", tmp_path,
    )  # fmt: skip
    (weights,) = (tmp_path / "checkpoints").glob("*.weights.pt")
    note, before = next(weights.parent.glob("*.finished.json")), (voc / "val.json").read_text()
    drawn = ("predict", voc / "pictures" / "0.png", "--weights", weights, "--out", tmp_path / "drawn")
    written = ("submit", weights, "--images", voc, "--out", tmp_path / "results.json")
    adjusted = (*written, "--prior", voc / "train_lt.json", "--target-rate", "mean")

    def detect(*words: object) -> Any:
        words = ("detect", *words, "--annotations", voc / "val.json", "--device", "cpu")
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "1000"})

    def refused(*words: object) -> str:
        result = detect(*words)
        assert result.exit_code == 2, result.output
        assert not (tmp_path / "drawn").exists()
        assert not (tmp_path / "results.json").exists()
        return result.output

    def renamed(content: dict[str, Any]) -> None:
        content["categories"][1]["name"] = "other"

    def turned(content: dict[str, Any]) -> None:
        first, second, *_ = content["categories"]
        first["id"], second["id"] = second["id"], first["id"]

    def renumbered(content: dict[str, Any]) -> None:
        content["categories"][3]["id"] = 51
        for image in content["images"]:
            image["neg_category_ids"] = []

    changes = {
        renamed: "other (id 7) in the first is class 0 (id 7) in the second",
        turned: "class 2 (id 7) in the first is class 0 (id 7) in the second",
        renumbered: "class 3 (id 51) in the first is class 3 (id 50) in the second",
    }
    for change, message in changes.items():
        edit(voc / "val.json", change)
        for command in (drawn, written):
            assert f"{voc / 'val.json'} and {note} have different categories: {message}; use" in refused(*command)
        (voc / "val.json").write_text(before)
    edit(note, lambda content: content["detector"].pop("categories"))  # as notes were before
    edit(voc / "val.json", renamed)
    assert f"{voc / 'train_lt.json'} have different categories: other (id 7) in the first" in refused(*adjusted)
    assert detect(*written).exit_code == 0


def test_boxes_train_mosaic_lt_and_its_measures_see_what_is_adjusted(voc: Path, tmp_path: Path) -> None:
    out, chosen = tmp_path / "records.jsonl", ("rfs", "rfs_adjusted", "seesaw")
    equipoise(
        "run", "mosaic-lt", "--data", voc, "--out", out, "--device", "cpu", "--seeds", 0, "--results",
        tmp_path / "results", *(word for name in chosen for word in ("--only", name)),
    )  # fmt: skip
    records = {record.method: record for record in read_jsonl(out)}
    assert records.keys() == {"rfs", "rfs_adjusted", "seesaw"}
    assert records["rfs_adjusted"].iterations == 0
    assert records["rfs_adjusted"].complete
    assert records["rfs_adjusted"].weights != records["rfs"].weights  # its bias
    for record in records.values():
        assert list(record.AP_at or {}) == ["300", "50", "20", "10", "1"]
        assert record.AP_fixed is not None
        assert record.AP_pool is not None
    assert records["rfs_adjusted"].AP_fixed == records["rfs"].AP_fixed
    (weights,) = (tmp_path / "checkpoints").glob("*-seesaw-*.weights.pt")
    val = voc / "val.json"
    options = ("--annotations", val, "--images", voc, "--out", tmp_path / "found.json")
    assert "in 3 images" in equipoise("detect", "submit", weights, *options)
    moved = ("detect", "submit", weights, *options, "--prior", val, "--target-rate", "mean")
    refused = CliRunner().invoke(app, [str(word) for word in moved], env={"COLUMNS": "200"})
    assert "this detector has a softmax" in refused.output


def test_smaller_images_and_federated_labels_are_an_option_and_recorded_under_another_name(
    voc: Path, tmp_path: Path
) -> None:
    out = tmp_path / "records.jsonl"
    equipoise(
        "run", "voc2012-lt", "--train", voc / "train_lt.json", "--val", voc / "val.json", "--images", voc, "--out", out,
        "--device", "cpu", "--only", "rfs", "--seeds", 0, "--results", tmp_path, "--size", 48, "--size", 32,
        "--federated",
    )  # fmt: skip
    (record,) = read_jsonl(out)
    assert record.table == "own/train_lt/voc2012-lt-48px-federated"
    assert [record.recipe[key] for key in ("min_sizes", "max_size", "federated")] == [[32, 48], 80, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("voc2012-lt", "--train", "a", "--val", "b", "--images", "c", "--longest", "9"), "needs --size"),
        (("voc2012-lt",), "which data"),
        (("table2", "--data", "."), "lvis_v1_train.json"),
        (("voc2012-lt", "--train", "a.json"), "your own data needs"),
        (("voc2012-lt", "--data", ".", "--train", "a", "--val", "b", "--images", "c"), "--images, not both"),
        (("voc2012-lt", "--data", ".", "--only", "best"), "train_lt.json"),
        (("table3", "--data", "."), "no table is named"),
        (
            ("voc2012-lt", "--train", "a", "--val", "b", "--images", "c", "--out", "table1.jsonl"),
            "--out table1.jsonl cannot be added to",
        ),
    ],
)
def test_what_cannot_be_run_is_said(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "table1.jsonl").write_text('{"table": "table1", "top1": 0.1}\n')
    result = CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_table_2_runs_on_lvis_in_its_official_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2, "METHODS", tuple(map(tiny, table2.METHODS)))
    monkeypatch.setattr(table2, "BACKBONES", ("resnet18",))
    use_small_detectors(monkeypatch)
    for name, images in (("lvis_v1_train.json", 8), ("lvis_v1_val.json", 2)):
        write_lvis(tmp_path / "lvis", images, name=name)
        (tmp_path / "lvis" / "annotations").mkdir(exist_ok=True)
        (tmp_path / "lvis" / name).rename(tmp_path / "lvis" / "annotations" / name)
    out = tmp_path / "records.jsonl"
    equipoise(
        "run", "table2", "--data", tmp_path / "lvis", "--out", out, "--device", "cpu", "--backbone", "resnet18",
        "--only", "eql", "--seeds", 0, "--results", tmp_path / "results",
    )  # fmt: skip
    (found,) = read_jsonl(out)
    assert (found.key, found.evaluated_images) == ("table2/resnet18/eql/0", 2)


def test_a_run_of_the_choices_need_not_be_trained_again_but_a_changed_recipe_must(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor may changed training data go on from it."""
    out = tmp_path / "records.jsonl"
    every = ("run", "voc2012-lt", "--data", voc, "--out", out, "--device", "cpu", "--seeds", 0, "--results", tmp_path)
    command = (*every, "--only", "rfs")
    name = f"rfs_{voc2012_lt.BASE.repeat_threshold}"
    assert "resumed" not in equipoise(*every, "--only", name, "--validate")
    assert "rfs/0: resumed at iteration 2 of 2" in equipoise(*command)
    chosen, final = read_jsonl(out)
    assert (chosen.table, final.table) == ("choices/voc2012-lt", "voc2012-lt")
    assert (chosen.weights, chosen.loss_curve, chosen.seconds) == (final.weights, final.loss_curve, final.seconds)
    assert (chosen.evaluated_images, final.evaluated_images) == (4, 3)
    out.unlink()
    (first, *others) = voc2012_lt.METHODS
    changed = replace(first, recipe=replace(first.recipe, lr=0.01))
    monkeypatch.setattr(voc2012_lt, "METHODS", (changed, *others))
    assert "resumed" not in equipoise(*command)
    out.unlink()
    edit(voc / "train_lt.json", lambda content: content["annotations"].pop())
    assert "resumed" not in equipoise(*command)


def test_workers_leave_ctrl_c_to_the_main_process(voc: Path) -> None:
    data = CocoImages(voc / "train_lt.json", voc)
    run = DetectionTraining(voc2012_lt.METHODS[0].recipe, data, 0, torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patched:
        made: list[dict[str, Any]] = []
        patched.setattr("equipoise.training.detection.DataLoader", lambda *_, **options: made.append(options) or [])
        list(run.batches(workers=1))
    before = signal.getsignal(signal.SIGINT)
    try:
        made[0]["worker_init_fn"](0)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_wrong_with_a_run_is_one_message(voc: Path, tmp_path: Path) -> None:
    def refused(*more: object) -> str:
        command = ["run", "voc2012-lt", "--data", voc, "--out", tmp_path / "new.jsonl", "--device", "cpu", "--seeds", 0]
        command += ["--only", "rfs", "--results", tmp_path / "none", *more]
        result = CliRunner().invoke(app, [str(argument) for argument in command], env={"COLUMNS": "300"})
        assert result.exit_code == 2
        assert "Traceback" not in result.output
        return " ".join(result.output.split())

    assert "there is no weights file nope.pth" in refused("--weights", "nope.pth")
    edit(voc / "val.json", lambda content: content["categories"].append({"id": 99, "name": "another"}))
    assert "have different categories: another (id 99) in the first is none in the second" in refused()


def test_a_run_says_what_its_backbone_starts_from(voc: Path, tmp_path: Path) -> None:
    command = ["run", "voc2012-lt", "--data", voc, "--device", "cpu", "--only", "rfs", "--seeds", 0, "--iterations", 1]
    command += ["--results", tmp_path / "none"]
    said = equipoise(*command, "--out", tmp_path / "a.jsonl")
    assert "no --weights: the backbone starts from random weights" in said
    said = equipoise(*command, "--out", tmp_path / "b.jsonl", "--weights", resnet18(tmp_path))
    assert "msra.pth, its stride in the 1x1 convolutions" in said
    assert "nothing left to train" in equipoise(
        *command, "--out", tmp_path / "b.jsonl"
    )  # nor is a smoke test made twice
    said = equipoise(*command, "--out", tmp_path / "c.jsonl", "--weights", tmp_path / "msra.pth", "--stride", "3x3")
    assert "its stride in the 3x3 convolutions" in said
    assert len(list((tmp_path / "checkpoints").glob("*.weights.pt"))) == 3  # none goes on from another
    bad = CliRunner().invoke(app, [str(word) for word in (*command, "--stride", "2x2")], env={"COLUMNS": "300"})
    assert "--stride 2x2: expected 1x1 or 3x3" in bad.output
    bad = CliRunner().invoke(app, [str(word) for word in (*command, "--backbone", "resnet101")], env={"COLUMNS": "300"})
    assert "--backbone is for table2: the recipes of voc2012-lt have a ResNet-50" in bad.output
    with pytest.raises(ValueError, match="no backbone is named 'resnet34'"):
        resnet_fpn("resnet34")  # type: ignore[arg-type]


def test_weights_that_cannot_be_fetched_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no route")

    monkeypatch.setattr("torchvision.models.resnet50", offline)
    with pytest.raises(OSError, match=r"weights of resnet50 cannot be downloaded .*no route.*: pass a file"):
        resnet_fpn("resnet50", "torchvision")


def test_progress_says_how_long_it_will_take(voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.cli.shared.SECONDS_BETWEEN_LINES", -1)
    monkeypatch.setattr("equipoise.training.detection_runs.REPORT_EVERY", 0)
    said = equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", tmp_path / "new.jsonl", "--device", "cpu", "--only", "rfs",
        "--seeds", 0, "--results", tmp_path,
    )  # fmt: skip
    lines = [line for line in said.splitlines() if line.endswith("to go") and "img/s" in line]
    assert [line.split(",")[0].strip() for line in lines] == [
        "1 of 2 iterations", "2 of 2 iterations", "3 of 3 images evaluated",
        "3 of 6 images evaluated without a cap", "6 of 6 images evaluated without a cap",
    ]  # fmt: skip


def test_weights_are_used_at_the_size_and_with_the_stride_that_they_were_trained_with(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = voc2012_lt.METHODS
    larger = replace(first, recipe=replace(first.recipe, backbone="resnet50", epochs=0.125, max_size=90))
    monkeypatch.setattr(voc2012_lt, "METHODS", (larger,))
    backbone = tmp_path / "resnet50_msra.pth"
    torch.save(torchvision.models.resnet50().state_dict(), backbone)
    equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", tmp_path / "records.jsonl", "--device", "cpu", "--seeds", 0,
        "--results", tmp_path, "--weights", backbone,
    )  # fmt: skip
    (weights,) = (tmp_path / "checkpoints").glob("*.weights.pt")
    with_categories = (voc / "val.json", CocoImages(voc / "val.json", voc).categories)
    model = load_for_use(weights, *with_categories, Network())
    assert (stride_of(model), model.transform.min_size, model.transform.max_size) == ("1x1", (SIDE,), 90)
    model = load_for_use(weights, *with_categories, Network(stride="3x3", size=2 * SIDE))
    assert (stride_of(model), model.transform.min_size, model.transform.max_size) == ("3x3", (2 * SIDE,), 180)
    whole = note_of(weights).read_text()
    for damaged in ("[]", whole[:20]):
        note_of(weights).write_text(damaged)
        with pytest.raises(ValueError, match=f"{note_of(weights).name} is not"):
            load_for_use(weights, *with_categories, Network())
    alone = weights.rename(tmp_path / "alone.pt")
    model = load_for_use(alone, *with_categories, Network())
    assert (stride_of(model), model.transform.min_size, model.transform.max_size) == ("3x3", (800,), 1333)


def test_a_run_whose_loss_is_no_number_is_left_out_with_what_starts_from_it(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = DetectionTraining.step

    def diverges(run: DetectionTraining, *parts: Any) -> Tensor:
        return step(run, *parts) * (float("nan") if run.seed == 0 else 1)

    monkeypatch.setattr(DetectionTraining, "step", diverges)
    out = tmp_path / "records.jsonl"
    said = equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", out, "--device", "cpu", "--only", "lws", "--only", "rfs/0",
        "--only", "rfs/1", "--seeds", 0, 1, "--results", tmp_path,
    )  # fmt: skip
    assert "rfs/0: its loss or a weight became infinite or NaN; no record is written" in said
    assert "lws/0: skipped, as it starts from rfs/0" in said
    assert "2 runs recorded" in said
    records = list(read_jsonl(out))
    assert [(record.method, record.seed) for record in records] == [("rfs", 1), ("lws", 1)]
    assert {record.engine["together"] for record in records} == {1}


def test_a_run_that_is_evaluated_later_says_that_its_features_were_computed_once(
    voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "records.jsonl"
    command = (
        "run", "voc2012-lt", "--data", voc, "--out", out, "--device", "cpu", "--resident", "--results", tmp_path,
        "--only", "eql", "--seeds", 0,
    )  # fmt: skip

    def ended(*given: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("equipoise.training.detection_runs.Detection.judge", ended)
        assert CliRunner().invoke(app, [str(word) for word in command]).exit_code == 1
    said = equipoise(*command)
    assert "eql/0: resumed at iteration 1 of 1" in said
    assert "features of all boxes" not in said
    assert [record.engine["features"] for record in read_jsonl(out)] == ["computed once"]


def test_no_run_begins_when_the_time_is_over(voc: Path, tmp_path: Path) -> None:
    """Its features alone could take longer than what is left."""
    command = (
        "run", "voc2012-lt", "--data", voc, "--out", tmp_path / "records.jsonl", "--device", "cpu", "--only", "lws",
        "--seeds", 0, "--results", tmp_path, "--budget", 0,
    )  # fmt: skip
    assert "rfs/0: out of time at iteration 1 of 2" in equipoise(*command)
    said = equipoise(*command)
    assert "rfs/0: resumed at iteration 1 of 2" in said
    assert "0 s are left, not enough for lws/0: stopping with 1 run to go" in said
    assert "training: lws/0" not in said
    said = equipoise(*command)
    assert "lws/0: trained, but not enough time is left to evaluate it; saved" in said
    assert "lws/0: AP_mask" in equipoise(*command)  # the first thing that a command does is always begun


def test_time_is_kept_to_evaluate_every_image(voc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.training.detection_runs.EVALUATION", {"cpu": 100.0})
    said = equipoise(
        "run", "voc2012-lt", "--data", voc, "--out", tmp_path / "records.jsonl", "--device", "cpu", "--only", "rfs",
        "--seeds", 0, "--results", tmp_path, "--budget", 250,
    )  # fmt: skip
    assert "out of time at iteration 1 of 2" in said  # 3 images would take 300 s


# -------------------------------------------------------------------- real LVIS images

LVIS = Path(os.environ.get("EQUIPOISE_LVIS") or Path(__file__).resolve().parents[3] / "shared/data/lvis")


@pytest.mark.skipif(not (LVIS / "sample_val.json").is_file(), reason="EQUIPOISE_LVIS names no folder of LVIS images")
@pytest.mark.filterwarnings("ignore:.* classes have no item")
def test_real_lvis_images_train_predict_evaluate_and_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EQUIPOISE_LVIS is a folder with a sample_val.json in LVIS's format and the images it names."""
    small = {"backbone": "resnet18", "batch_size": 2, "min_sizes": (160,), "max_size": 240, "federated": True}
    released = table2.METHODS[-1]
    recipe = replace(released.recipe, start=None, **small)
    monkeypatch.setattr(table2, "METHODS", (replace(released, recipe=recipe),))
    monkeypatch.setattr(table2, "BACKBONES", ("resnet18",))
    few = partial(detector, detections=5, rpn_post_nms_top_n_test=50, box_batch_size_per_image=32)
    monkeypatch.setattr("equipoise.training.detection.detector", few)
    content = read_json(LVIS / "sample_val.json")
    assert len(content["images"]) == 88
    content["images"] = content["images"][:4]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] in kept]
    few_images, out = tmp_path / "few.json", tmp_path / "records.jsonl"
    few_images.write_text(json.dumps(content))
    said = equipoise(
        "run", "table2", "--train", LVIS / "sample_val.json", "--val", few_images, "--images", LVIS, "--out", out,
        "--iterations", 3, "--backbone", "resnet18", "--device", "cpu", "--only", released.name, "--results", tmp_path,
    )  # fmt: skip
    assert "1 run recorded" in said
    (found,) = read_jsonl(out)
    assert (found.iterations, found.evaluated_images, len(found.counts)) == (3, 4, 1203)
    assert found.mask is not None
    assert found.measures is not None
    for kind in ("bbox", "segm"):
        assert list(found.measures[kind]["AP_at"]) == ["300", "50", "20", "10"]  # 300 is scaled to 1,203 classes, too
    assert {found.measures["bbox"][name]["AP"] is None for name in ("AP_fixed", "AP_pool")} == {False}
    assert found.measures["bbox"]["detections"] > 1203  # without a cap per image
    assert found.measures["segm"]["AP_pool"] is None  # of four images, 10,000 per class are too many masks
    (weights,) = (tmp_path / "checkpoints").glob("*.weights.pt")
    monkeypatch.setattr("equipoise.models.mask_rcnn.detector", few)
    picture = CocoImages(few_images, LVIS).images[0].path
    for_all = ("--annotations", few_images, "--backbone", "resnet18", "--size", 160)
    said = equipoise("detect", "predict", picture, "--weights", weights, *for_all, "--out", tmp_path, "--threshold", 0)
    assert "5 objects" in said
    submitted = tmp_path / "results.json"
    equipoise("detect", "submit", weights, *for_all, "--images", LVIS, "--out", submitted)
    results = json.loads(submitted.read_text())
    assert set(results[0]) == {"image_id", "category_id", "score", "bbox", "segmentation"}
    assert {result["image_id"] for result in results} == kept
    said = equipoise("detect", "eval", submitted, "--annotations", few_images)
    assert [line.split(":")[0] for line in said.splitlines()] == ["bbox", "segm"]
    adjusted = ("--prior", LVIS / "sample_val.json", "--target-rate", "mean", "--pool")
    assert "segm, AP-pool: AP " in equipoise("detect", "eval", submitted, "--annotations", few_images, *adjusted)
    again = GroundTruth(few_images).evaluate(Detections.from_results(results), "segm")
    # submitted masks and scores are rounded, and a detection that changes places with its neighbour moves AP a little
    assert again["AP"] == pytest.approx(found.mask["AP"], abs=0.5)


def test_a_mask_is_drawn_in_the_colour_of_its_class_and_weak_detections_are_not() -> None:
    masks = torch.zeros(2, 100, 100, dtype=torch.bool)
    masks[0, 62:98, 62:98], masks[1, :3, :3] = True, True
    found = {
        "boxes": torch.tensor([[62.0, 62.0, 98.0, 98.0], [0.0, 0.0, 3.0, 3.0]]),
        "labels": torch.tensor([2, 1]),
        "scores": torch.tensor([0.9, 0.1]),
        "masks": masks,
    }
    drawn = draw_detections(torch.zeros(3, 100, 100, dtype=torch.uint8), found, ["a", "b"], threshold=0.5)
    assert drawn.getpixel((80, 85)) == tuple(part // 2 for part in colour(2))
    assert drawn.getpixel((1, 1)) == (0, 0, 0)


# -------------------------------------------------------------------- records


def record(method: str, seed: int, average: float | None) -> DetectionRecord:
    return DetectionRecord(
        table="voc2012-lt", method=method, seed=seed, AP_mask=average, AP_f=1.0, AP_c=2.0, AP_r=None, AP_box=4.0,
        mask={}, box={}, evaluated_on="val", evaluated_images=1, iterations=1, complete=True, recipe={}, trained_on="",
        backbone=None, counts=[], class_names=[], loss_curve=[], weights="", seconds=1.0, images_per_second=1.0,
        evaluation_seconds=1.0, engine={}, commit=None, versions={}, hardware={},
    )  # fmt: skip


def test_a_table_shows_mean_deviation_and_n_and_a_dash_for_an_empty_group() -> None:
    rows = methods_table([record("rfs", 0, 20.0), record("rfs", 1, 22.0)], {"rfs": "RFS", "crt": "cRT"}).rows
    assert rows == [["RFS", "21.0 ± 1.4", "1.0 ± 0.0", "2.0 ± 0.0", "–", "4.0 ± 0.0", "2"]]


def test_records_are_never_overwritten_by_different_ones(tmp_path: Path) -> None:
    lines, results = tmp_path / "records.jsonl", tmp_path / "results"
    lines.write_text(record("rfs", 0, 20.0).to_json() + "\n" + '{"table": "cut')
    arguments = ["records", "import", str(lines), "--results", str(results)]
    said = CliRunner().invoke(app, arguments).output
    assert said == f"1 new record under {results}; 1 half-written line left out\n"
    assert import_records(lines, results).known == 1
    assert read_records(results, "voc2012-lt") == [record("rfs", 0, 20.0)]
    lines.write_text(record("rfs", 0, 21.0).to_json() + "\n")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "append-only" in result.output
    assert read_records(results, "voc2012-lt") == [record("rfs", 0, 20.0)]
    lines.write_text('{"table": 1}\n')
    with pytest.raises(ValueError, match="line 1: not the record of a detector"):
        import_records(lines, results)


def test_a_half_written_line_does_not_swallow_the_next_record(tmp_path: Path) -> None:
    lines = tmp_path / "new.jsonl"
    lines.write_text(record("rfs", 0, 20.0).to_json()[:40])
    record_files.append_record(lines, record("rfs", 1, 21.0))
    assert list(read_jsonl(lines)) == [record("rfs", 1, 21.0)]
