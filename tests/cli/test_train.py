"""`equipoise train` and `predict`: from a folder of images to a served model."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import equipoise
from helpers.image_folders import NETWORK, write_photos, write_splits
from PIL import Image
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.metrics.evaluation import percent
from equipoise.metrics.intervals import mean_interval, wilson_interval
from equipoise.models.classifiers import make_backbone
from equipoise.training.methods import methods
from equipoise.training.recipe import Recipe
from equipoise.training.run_folder import NetworkNote, load_run
from equipoise.training.weights import weights_digest

SMALL = ("--model", NETWORK, "--size", "32", "--epochs", "2", "--batch", "8", "--device", "cpu")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_splits(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four methods."""
    out = tmp_path_factory.mktemp("runs") / "first"
    losses = ("--loss", "softmax", "--loss", "balanced_softmax", "--loss", "lws", "--loss", "ldam")
    result = equipoise("train", photos, "--out", out, *SMALL, *losses)
    assert result.exit_code == 0, result.output
    assert "45 training images, 16 evaluation images (val)" in result.output
    assert "4 classes with 24 down to 3 images: 1 medium, 3 few" in result.output
    assert "5 models: softmax, adjusted (no training), balanced_softmax, lws, ldam, on " in result.output
    assert "equipoise predict" in result.output
    return out


def test_the_folder_holds_what_a_run_leaves(run: Path) -> None:
    each = {"model.safetensors", "model.json", "predictions.npz", "record.json"}
    methods = ("softmax", "adjusted", "balanced_softmax", "lws", "ldam")
    expected = {f"{method}/{name}" for method in methods for name in each}
    kept = {
        name for name in files(run) if not name.startswith("checkpoints/") and not name.startswith("adjusted/model.")
    }
    kept |= {"adjusted/model.safetensors", "adjusted/model.json"}  # which another test may have exported
    assert kept - {"records.jsonl"} == expected | {"run.json", "report.html", "curves.svg"}
    page = (run / "report.html").read_text()
    assert "<html" in page[:200].lower()
    assert "data:image/jpeg;base64," in page  # pictures of the surest mistakes
    assert "<svg" in (run / "curves.svg").read_text()[:200]
    prepared = json.loads((run / "softmax" / "model.json").read_text())["preprocessing"]
    assert (prepared["resize"], prepared["crop"], prepared["inside"]["mean"]) == (32, 32, [0.485, 0.456, 0.406])
    assert NetworkNote("resnet18", 224, 4).preprocessing["resize"] == 256
    record = json.loads((run / "balanced_softmax" / "record.json").read_text())
    assert (record["method"], record["recipe"]["model"], record["counts"]) == (
        "balanced_softmax", NETWORK, [24, 12, 6, 3],
    )  # fmt: skip


def test_the_page_of_the_report_reads_the_predictions(run: Path, photos: Path, tmp_path: Path) -> None:
    paths = [run / name / "predictions.npz" for name in ("softmax", "balanced_softmax")]
    result = equipoise(
        "report", *paths, "--counts", photos / "train", "--out", tmp_path / "page.html", "--name", "a", "--name", "b"
    )
    assert result.exit_code == 0, result.output


def test_the_folder_of_a_run_is_evaluated_as_its_files_are(run: Path, photos: Path, tmp_path: Path) -> None:
    methods = ("softmax", "adjusted", "ldam", "lws", "balanced_softmax")
    paths = [run / name / "predictions.npz" for name in methods]
    names = [word for name in methods for word in ("--name", name)]
    told = [
        equipoise("evaluate", *words, "--json")
        for words in ((run,), (run, "--counts", photos / "train"), (*paths, "--counts", photos / "train", *names))
    ]
    assert [one.exit_code for one in told] == [0, 0, 0], told[0].output
    assert told[0].stdout == told[1].stdout == told[2].stdout
    one = json.loads(equipoise("evaluate", run / "softmax", "--json").stdout)
    assert [model["name"] for model in one["models"]] == ["softmax"]
    page = equipoise(
        "report", run / "lws", run / "softmax", "--out", tmp_path / "page.html", "--images", photos / "val"
    )
    assert page.exit_code == 0, page.output
    assert "data:image/jpeg;base64," in (tmp_path / "page.html").read_text()
    record = equipoise("evaluate", run / "softmax" / "record.json")
    assert record.exit_code == 2
    assert "record.json is not a file of predictions" in record.output


def test_runs_on_other_training_sets_are_not_compared(run: Path, tmp_path: Path) -> None:
    record = json.loads((run / "softmax" / "record.json").read_text())
    for name, text in {"a": json.dumps(record | {"counts": [24, 12, 6, 4]}), "b": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "predictions.npz").write_bytes((run / "softmax" / "predictions.npz").read_bytes())
        (tmp_path / name / "record.json").write_text(text)
    other = equipoise("evaluate", run / "softmax", tmp_path / "a")
    assert "have different counts" in other.output
    damaged = equipoise("evaluate", tmp_path / "b")
    assert "record.json is not the record of an image classifier" in damaged.output
    (tmp_path / "b" / "record.json").unlink()
    assert "or the folder of training images" in equipoise("evaluate", tmp_path / "b").output


def as_seen(photos: Path, run: Path, method: str, number: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """The first photos that a method was judged on as its network sees them, and what it said of them."""
    with np.load(run / method / "predictions.npz") as found:
        logits, paths = found["logits"], found["paths"]
    pictures = [Image.open(photos / "val" / path).convert("RGB") for path in paths[:number]]
    box = (4, 0, 44, 40)  # the middle of 48 × 40
    resized = [picture.resize((32, 32), Image.Resampling.BILINEAR, box=box) for picture in pictures]
    images = torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in resized]).float() / 255
    return images, torch.from_numpy(logits[:number]).float().softmax(1)


@pytest.mark.parametrize("method", ["softmax", "adjusted", "balanced_softmax", "lws", "ldam"])
def test_the_saved_model_says_what_was_judged(run: Path, photos: Path, method: str) -> None:
    served, _ = load_run(run / method)
    images, shares = as_seen(photos, run, method)
    with torch.no_grad():
        torch.testing.assert_close(served(images).softmax(1), shares, rtol=1e-3, atol=1e-4)
    assert served.class_names == ("class0", "class1", "class2", "class3")


def test_a_finished_run_can_be_exported_later(run: Path, photos: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    result = equipoise("train", photos, "--out", run, *SMALL, "--loss", "adjusted", "--export")
    assert result.exit_code == 0, result.output
    images, shares = as_seen(photos, run, "adjusted")
    session = onnxruntime.InferenceSession(run / "adjusted" / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits).softmax(1), shares, rtol=1e-3, atol=1e-4)
    program = torch.export.load(run / "adjusted" / "model.pt2").module()
    torch.testing.assert_close(program(images).softmax(1), shares, rtol=1e-3, atol=1e-4)


def test_a_run_that_is_done_is_shown_again_and_trains_nothing(run: Path, photos: Path) -> None:
    before = (run / "records.jsonl").read_bytes()
    again = equipoise("train", photos, "--out", run, *SMALL, "--loss", "softmax", "--loss", "balanced_softmax")
    assert again.exit_code == 0, again.output
    assert "nothing left to train" in again.output
    assert "(pass --out with another folder to train them again)" in again.output
    assert "balanced_softmax" in again.output
    assert (run / "records.jsonl").read_bytes() == before


def test_the_table_has_intervals_and_fits_80_columns(run: Path, photos: Path) -> None:
    """The numbers and intervals are those of the page, which are those of the predictions."""
    words = ["train", str(photos), "--out", str(run), *SMALL, "--loss", "softmax", "--loss", "balanced_softmax"]
    lines = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).stdout.splitlines()
    start = next(place for place, line in enumerate(lines) if "Accuracy on val, %, with 95 % intervals" in line)
    assert lines[start + 2].split() == ["method", "top-1", "balanced", "many", "medium", "few"]
    assert max(map(len, lines[start : start + 10])) <= 80
    record = json.loads((run / "balanced_softmax" / "record.json").read_text())
    correct, total = record["correct"], record["total"]
    ends = [*wilson_interval(sum(correct), sum(total)), *mean_interval(correct, total)]
    ends += [*mean_interval(correct[:1], total[:1]), *mean_interval(correct[1:], total[1:])]  # medium and few
    row = next(place for place, line in enumerate(lines) if line.split()[:1] == ["balanced_softmax"])
    low, high = ([percent(end) for end in ends[part::2]] for part in (0, 1))
    assert lines[row + 1].split() == [f"{one}–{other}" for one, other in zip(low, high, strict=True)]
    assert lines[row].split()[3] == "–"  # there is no class with many images
    as_json = equipoise(*words, "--json").stdout.splitlines()[-1]
    found = json.loads(as_json)
    assert (found["method"], found["balanced_accuracy"]) == ("balanced_softmax", record["balanced_accuracy"])
    assert found["intervals"]["top1"] == pytest.approx([100 * end for end in ends[:2]], abs=1e-3)
    assert found["intervals"]["balanced_accuracy"] == pytest.approx([100 * end for end in ends[2:4]], abs=1e-3)
    assert "many" not in found["intervals"]


def test_the_help_lists_every_loss_in_panels_of_options(run: Path) -> None:
    text = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "100"}).output
    titles = re.findall(r"^╭─ (\w+) ─", text, re.MULTILINE)
    assert sorted(titles) == ["Arguments", "Data", "Model", "Options", "Output", "Training"]
    plain = " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())
    assert f"Any of {', '.join(methods(Recipe()))}, or all." in plain
    panels = dict(zip(titles, re.split(r"^╭.*$", text, flags=re.MULTILINE)[1:], strict=True))
    assert set(re.findall(r"--[a-z-]+", panels["Model"])) >= {"--loss", "--model", "--weights", "--stride", "--freeze"}
    assert set(re.findall(r"--[a-z-]+", panels["Options"])) == {
        "--compile", "--budget", "--iterations", "--device", "--help",
    }  # fmt: skip


def test_hidden_files_of_a_folder_are_not_classified(run: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copy(photos / "val" / "class1" / "0.jpg", tmp_path / "0.jpg")
    (tmp_path / "._0.jpg").write_bytes(b"what macOS leaves beside a file")
    result = equipoise("predict", run, "--method", "balanced_softmax", tmp_path)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2


def test_photos_are_classified_and_bad_ones_named(run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    result = equipoise("predict", run, "--method", "balanced_softmax", photos / "val" / "class1", tmp_path / "bad.jpg")
    assert result.exit_code == 1
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert [Path(row["path"]).parent.name for row in rows] == ["class1"] * 4 + [tmp_path.name]
    assert all(row["label"].startswith("class") for row in rows[:4])
    assert [row["error"] for row in rows] == [""] * 4 + ["not an image that Pillow can read"]
    assert (rows[4]["label"], rows[4]["probability"]) == ("", "")
    assert "1 of 5 photos could not be read" in result.stderr
    photo = photos / "val" / "class1" / "0.jpg"
    absent = equipoise("predict", run, "--method", "balanced_softmax", tmp_path / "none.jpg", photo)
    assert absent.exit_code == 1
    named = list(csv.DictReader(absent.stdout.splitlines()))
    assert [(row["path"], row["error"]) for row in named] == [
        (str(tmp_path / "none.jpg"), "no such file"),
        (str(photo), ""),
    ]
    assert named[1] == rows[0]
    two = equipoise("predict", run / "softmax", tmp_path / "bad.jpg", photos / "val" / "class1" / "0.jpg", "--top", "2")
    columns = ["path", "label_1", "probability_1", "label_2", "probability_2", "error"]
    assert [line.split(",")[1:] for line in two.stdout.splitlines()[:2]] == [
        columns[1:],
        ["", "", "", "", "not an image that Pillow can read"],
    ]
    lines = equipoise("predict", run / "softmax", tmp_path / "bad.jpg", "--json").stdout.splitlines()
    assert [json.loads(line)["error"] for line in lines] == ["not an image that Pillow can read"]


def test_a_list_of_photos_may_have_labels_as_in_training(run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "0 1").mkdir()
    shutil.copy(photos / "val" / "class1" / "0.jpg", tmp_path / "0 1" / "a b.jpg")
    (tmp_path / "list.txt").write_text(f"0 1/a b.jpg\n0 1/a b.jpg 3\n{photos}/val/class1/0.jpg\t3\n0 1/none.jpg 3\n")
    rows = list(csv.DictReader(equipoise("predict", run / "softmax", tmp_path / "list.txt").stdout.splitlines()))
    assert [row["error"] for row in rows] == ["", "", "", "no such file"]
    assert len({(row["label"], row["probability"]) for row in rows[:3]}) == 1
    (tmp_path / "list.csv").write_text("path,label\n0 1/a b.jpg,3\n")
    table = equipoise("predict", run / "softmax", tmp_path / "list.csv")
    assert (table.exit_code, table.stdout) == (2, "")
    assert "a .txt with one path per line" in " ".join(table.stderr.replace("│", " ").split())


def test_another_target_moves_the_predictions(run: Path, photos: Path, tmp_path: Path) -> None:
    counts = tmp_path / "there.json"
    counts.write_text(json.dumps({"class3": 97, "class0": 1, "class1": 1, "class2": 1}))
    out = tmp_path / "found.jsonl"
    words = ("predict", run / "softmax", photos / "val", "--target", counts, "--top", "2", "--out", out)
    assert equipoise(*words).exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 16
    with np.load(run / "softmax" / "predictions.npz") as found:
        logits, keys = torch.from_numpy(found["logits"]), [str(photos / "val" / path) for path in found["paths"]]
    shares = torch.tensor([1, 1, 1, 97]) / 100 / torch.tensor([24, 12, 6, 3]) * 45
    expected = dict(zip(keys, (logits + shares.log()).softmax(1).max(1).values.tolist(), strict=True))
    for row in rows:
        assert row["predictions"][0]["probability"] == pytest.approx(expected[row["path"]], abs=1e-4)
        assert row["predictions"][0]["probability"] >= row["predictions"][1]["probability"]


def test_equal_frequencies_can_be_asked_for_by_name(run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "equal.json").write_text(json.dumps({f"class{index}": 5 for index in range(4)}))
    words = ("predict", run / "softmax", photos / "val", "--json", "--target")
    named, counted = equipoise(*words, "uniform"), equipoise(*words, tmp_path / "equal.json")
    assert named.exit_code == 0, named.output
    assert named.stdout == counted.stdout
    assert named.stdout != equipoise(*words[:-1]).stdout


def test_a_target_that_changes_nothing_is_noted_in_words(run: Path, photos: Path) -> None:
    result = equipoise("predict", run / "softmax", photos / "val" / "class1", "--target", photos / "train")
    assert result.exit_code == 0, result.output
    assert result.stderr == "note: source and target are the same, so the model's outputs do not change\n"


def test_methods_of_a_run_are_listed_where_none_is_chosen(run: Path, photos: Path) -> None:
    for words, message in (
        ((), "holds several methods: choose one with --method, adjusted, balanced_softmax, ldam, lws, softmax"),
        (
            ("--method", "nope"),
            "holds no method 'nope': expected one of adjusted, balanced_softmax, ldam, lws, softmax",
        ),
    ):
        result = equipoise("predict", run, photos / "val", *words)
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_target_of_other_classes_is_refused(run: Path, photos: Path, tmp_path: Path) -> None:
    counts = tmp_path / "there.json"
    for content, message in (
        ({f"class{index}": 1 for index in range(4)} | {"zebra": 2}, "zebra"),
        ({"class0": 1, "class1": 2}, "class2"),
        ([1, 2], "2"),
    ):
        counts.write_text(json.dumps(content))
        result = equipoise("predict", run / "softmax", photos / "val", "--target", counts)
        assert result.exit_code == 2
        assert message in result.stderr


def test_a_renamed_folder_is_still_the_same_run(photos: Path, tmp_path: Path) -> None:
    words = (*SMALL, "--loss", "softmax", "--iterations", "1", "--batch", "9", "--accumulate", "2")
    first = equipoise("train", photos, "--out", tmp_path / "first", *words)
    assert "batches of 8 images instead of 9" in first.output
    (tmp_path / "first").rename(tmp_path / "better")
    again = equipoise("train", photos, "--out", tmp_path / "better", *words)
    assert again.exit_code == 0, again.output
    assert "training:" not in again.output
    assert "training:" in first.output


def test_what_could_not_be_saved_is_not_trained(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, module = {"safetensors": (), "onnxscript": ("--export",)}, sys.modules["equipoise.cli.train"]
    for library, words in missing.items():
        monkeypatch.setattr(module, "find_spec", lambda name, absent=library: None if name == absent else object())
        result = equipoise("train", photos, "--out", tmp_path / "run", *SMALL, *words)
        assert result.exit_code == 2
        assert f"{library} is not installed: pip install 'equipoise[train]'" in result.stderr
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    every = equipoise("train", "list.parquet", "--model", "timm/vit_tiny", "--export", "--out", tmp_path / "run")
    packages = "torchvision, pillow, safetensors, vl-convert-python, onnx, onnxscript, timm, pyarrow"
    assert f"{packages} are not installed: pip install 'equipoise[train,timm,parquet]'" in every.stderr
    assert not (tmp_path / "run").exists()


def test_without_a_validation_set_some_of_each_class_is_held_out(photos: Path, tmp_path: Path) -> None:
    result = equipoise("train", photos / "train", "--out", tmp_path / "run", *SMALL, "--iterations", "1", "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert any("iteration" in line and "images_per_second" in line for line in lines)
    record = json.loads((tmp_path / "run" / "balanced_softmax" / "record.json").read_text())
    assert (record["evaluated_on"], record["total"], record["complete"]) == ("held_out", [5, 2, 1, 1], False)


def test_torchrun_trains_one_model(photos: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "equipoise", "train", str(photos), "--out", str(tmp_path / "run"), *SMALL, "--iterations", "2"]
    result = subprocess.run(launcher + words, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("page: ") == 1
    assert (tmp_path / "run" / "report.html").is_file()
    record = json.loads((tmp_path / "run" / "balanced_softmax" / "record.json").read_text())
    assert record["engine"]["processes"] == 2


def test_torchrun_trains_heads_on_the_features_of_one_process(photos: Path, tmp_path: Path) -> None:
    backbone, _ = make_backbone(NETWORK, 32)
    pixels = [np.asarray(Image.open(path).resize((32, 32))) for path in sorted(photos.glob("train/*/*"))]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 128 - 1
    with torch.no_grad():
        for _ in range(50):  # for features that differ between images: those of a new network are nearly zero
            backbone.train()(images)
        assert backbone.eval()(images).std(0).mean() > 0.1
    torch.save(backbone.state_dict(), tmp_path / "weights.pth")
    words = ["train", str(photos), *SMALL, "--iterations", "2", "--weights", str(tmp_path / "weights.pth"), "--freeze"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = [*launcher, "-m", "equipoise", *words, "--out", str(tmp_path / "two")]
    result = subprocess.run(out, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert equipoise(*words, "--out", tmp_path / "one").exit_code == 0
    one, two = (load_run(tmp_path / name / "balanced_softmax")[0] for name in ("one", "two"))
    for name, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], value, msg=name)


def test_a_backbone_from_a_file_can_be_kept_frozen(photos: Path, tmp_path: Path) -> None:
    backbone, _ = make_backbone(NETWORK, 32)
    torch.save(backbone.state_dict(), tmp_path / "weights.pth")
    words = ("train", photos, "--out", tmp_path / "run", *SMALL, "--weights", tmp_path / "weights.pth", "--freeze")
    result = equipoise(*words, "--loss", "all", "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    computed = [line for line in lines if "features" in line]
    assert [(line["features"], line["of"]) for line in computed] == [(16, 61), (61, 61)]
    served, _ = load_run(tmp_path / "run" / "balanced_softmax")
    network: Any = served.model
    kept = network.classifier.backbone.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in backbone.state_dict().items())
    record = json.loads((tmp_path / "run" / "balanced_softmax" / "record.json").read_text())
    assert (record["recipe"]["augmentation"], record["start_weights"]) == ("none", weights_digest(backbone))
    methods = {path.parent.name for path in (tmp_path / "run").glob("*/model.safetensors")}
    assert {"softmax", "cbw", "focal", "ldam", "eql", "balanced_sigmoid", "crt", "lws", "adjusted"} <= methods


def test_images_that_cannot_be_read_are_left_out_or_refused(photos: Path, tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos")
    (folder / "class0" / "0.jpg").write_bytes(b"")
    (folder / "class1" / "1.jpg").write_bytes((folder / "class1" / "1.jpg").read_bytes()[:500])
    words = ("train", folder, "--val", photos / "val", *SMALL, "--iterations", "1", "--out")
    refused = equipoise(*words, tmp_path / "no", "--on-bad-image", "refuse")
    assert refused.exit_code == 2
    assert "2 images cannot be read" in " ".join(refused.stderr.replace("│", " ").split())  # however long the path is
    assert not (tmp_path / "no").exists()
    skipped = equipoise(*words, tmp_path / "run")
    assert skipped.exit_code == 0, skipped.output
    assert "2 images cannot be read" in skipped.output
    record = json.loads((tmp_path / "run" / "balanced_softmax" / "record.json").read_text())
    assert record["counts"] == [23, 11, 6, 3]


def test_classes_of_one_or_two_images_are_trained_and_named_as_not_judged(tmp_path: Path) -> None:
    """So is one whose images to judge on cannot be read; one with no image at all is no class."""
    folder = write_photos(tmp_path / "photos", (10, 3, 2, 1))
    (folder / "empty").mkdir()
    held = equipoise("train", folder, "--out", tmp_path / "run", *SMALL, "--iterations", "1")
    assert held.exit_code == 0, held.output
    assert "left out 1 folder without an image: empty" in held.stderr
    assert "2 classes without an evaluation image, trained but not evaluated: class2, class3" in held.output
    record = json.loads((tmp_path / "run" / "balanced_softmax" / "record.json").read_text())
    assert (record["counts"], record["total"]) == ([8, 2, 2, 1], [2, 1, 0, 0])
    with np.load(tmp_path / "run" / "balanced_softmax" / "predictions.npz") as file:
        (judged,) = (path for path in file["paths"].tolist() if path.startswith("class1"))
    (folder / judged).write_bytes(b"")
    damaged = equipoise("train", folder, "--out", tmp_path / "again", *SMALL, "--iterations", "1")
    assert damaged.exit_code == 0, damaged.output
    assert "3 classes without an evaluation image, trained but not evaluated: class1, class2, class3" in damaged.output


def test_a_class_without_a_readable_image_to_train_on_is_refused_and_not_called_skipped(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", (6, 1))
    (folder / "class1" / "0.jpg").write_bytes(b"")
    refused = equipoise("train", folder, "--out", tmp_path / "run", *SMALL, "--iterations", "1")
    assert refused.exit_code == 2
    said = " ".join(refused.output.replace("│", " ").split())
    assert "has no readable image of class class1: 1 image cannot be read (1 an empty file): class1/0.jpg" in said
    assert "skipped" not in said


BAD: dict[str, tuple[list[str], str]] = {
    "one or two images per class": (["{tiny}"], "too few images of every class to hold some out: give --val, or more"),
    "no source": ([], "which images?"),
    "nothing there": (["{empty}"], "has no folders: expected one folder per class"),
    "one class": (["{one}"], "images of one class only"),
    "unknown classes": (["{photos}/train", "--val", "{other}"], "that the training set lacks"),
    "a list without files": (["{list}"], "none of them exists"),
    "gaps": (["{gaps}", "--images", "{photos}/train"], "without gaps"),
    "no such model": (["{photos}", "--model", "resnet19"], "did you mean resnet18"),
    "no such loss": (["{photos}", "--loss", "balanced"], "--loss balanced: expected softmax"),
    "a loss mistyped": (["{photos}", "--loss", "balanced_sofmax"], "or all. Did you mean balanced_softmax?"),
    "no such word": (["{photos}", "--augment", "strong"], "--augment strong: expected crop"),
    "a word mistyped": (["{photos}", "--augment", "randaug"], "or none. Did you mean randaugment?"),
    "a sampler mistyped": (["{photos}", "--sampler", "balanced"], "Did you mean class_balanced?"),
    "an optimizer mistyped": (["{photos}", "--optimizer", "adam"], "expected sgd or adamw. Did you mean adamw?"),
    "decoding without a GPU": (["{photos}", "--decode", "gpu"], "there is no GPU to decode on"),
    "frozen noise": (["{photos}", "--freeze"], "--freeze would keep random weights"),
    "balanced twice": (["{photos}", "--sampler", "class_balanced"], "would balance them twice"),
    "no weights": (["{photos}", "--weights", "nothing.pth"], "there is no weights file"),
    "other weights": (["{photos}", "--weights", "{weights}"], "lacks"),
    "weights mistyped": (["{photos}", "--weights", "pretraned"], "pretraned. Did you mean pretrained?"),
    "one image per batch": (["{photos}", "--batch", "1"], "which takes at least 2 images per process and part, not 1"),
    "augmented features": (["{photos}", "--freeze", "--weights", "{weights}", "--augment", "crop"], "leave --augment"),
    "mixed labels": (["{photos}", "--loss", "ldam", "--mixup", "0.2"], "ldam takes one class per image"),
    "too small a picture": (["{photos}", "--model", "alexnet", "--size", "16"], "cannot take images of 16"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message_and_nothing_is_written(name: str, photos: Path, tmp_path: Path) -> None:
    places = {word: tmp_path / word for word in ("empty", "one", "other", "list", "gaps", "weights", "tiny")}
    places["empty"].mkdir()
    write_photos(places["one"], (3,))
    write_photos(places["tiny"], (2, 1))
    (write_photos(places["other"], (2, 2)) / "class1").rename(places["other"] / "zebra")
    places["list"] = tmp_path / "list.txt"
    places["list"].write_text("a.jpg 0\nb.jpg 1\n")
    places["gaps"] = tmp_path / "gaps.txt"
    places["gaps"].write_text("class0/0.jpg 0\nclass1/0.jpg 2\n")
    torch.save({"fc.weight": torch.zeros(2, 2)}, places["weights"])
    words, message = BAD[name]
    given = [word.format(photos=photos, **places) for word in words]
    usual = [] if "--model" in given else ["--model", NETWORK]
    usual += [] if "--size" in given else ["--size", "32"]
    out = tmp_path / "run"
    result = equipoise("train", *given, *usual, "--out", out, "--device", "cpu")
    assert result.exit_code == 2, result.output
    said = " ".join(result.stderr.replace("│", " ").split())
    assert message in said
    assert "Traceback" not in said
    assert not out.exists()


def test_the_folder_of_another_run_or_of_anything_else_is_refused(run: Path, photos: Path, tmp_path: Path) -> None:
    other = equipoise("train", photos, "--out", run, *SMALL, "--lr", "0.5")
    assert other.exit_code == 2
    assert "holds another run (lr None, now 0.5)" in " ".join(other.stderr.replace("│", " ").split())
    (tmp_path / "notes.txt").write_text("mine")
    full = equipoise("train", photos, "--out", tmp_path, *SMALL)
    assert "holds other files" in full.stderr
    assert files(tmp_path) == {"notes.txt"}


def test_a_folder_that_cannot_be_made_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = equipoise("train", photos, "--out", tmp_path / "file" / "run", *SMALL)
    assert result.exit_code == 2
    assert f"cannot be made, as {tmp_path / 'file'} is a file" in " ".join(result.stderr.replace("│", " ").split())


def test_images_that_are_judged_on_and_trained_on_are_counted(photos: Path, tmp_path: Path) -> None:
    list_of_two = tmp_path / "val.txt"
    list_of_two.write_text("class0/0.jpg class0\nclass1/../class1/1.jpg class1\n")
    words = ("train", photos / "train", "--val", list_of_two, "--images", photos / "train", *SMALL, "--iterations", "1")
    assert "WARNING: 2 evaluation images are also training images" in equipoise(*words, "--out", tmp_path / "a").output
    apart = equipoise("train", photos, *SMALL, "--iterations", "1", "--out", tmp_path / "b")
    assert apart.exit_code == 0
    assert "are also training images" not in apart.output


def test_a_diverged_run_names_the_learning_rate(photos: Path, tmp_path: Path) -> None:
    result = equipoise("train", photos, *SMALL, "--lr", "1e5", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert (
        "no model was trained for balanced_softmax. If the loss became infinite, try an --lr below 100000"
        in result.output
    )


KILLED = """
import sys
from equipoise.training import queue
queue.SAVE_EVERY = 0.0
from equipoise.__main__ import main
sys.argv = sys.argv[1:]
main()
"""


def test_a_run_that_is_killed_twice_ends_with_the_same_weights(photos: Path, tmp_path: Path) -> None:
    words = ["equipoise", "train", str(photos), "--out", str(tmp_path / "run"), *SMALL, "--epochs", "6"]
    command = [sys.executable, "-c", KILLED, *words]
    for moment in (0.05, 0.6):
        with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE) as started:
            assert started.stdout is not None
            for line in started.stdout:
                said = json.loads(line) if line.startswith(b"{") else {}
                if said.get("iteration", 0) >= moment * said.get("of", 1e9):
                    break
            started.kill()
        assert not list((tmp_path / "run").glob("*/model.safetensors"))
    resumed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "resumed at iteration" in resumed.stdout
    place = command.index(str(tmp_path / "run"))
    subprocess.run([*command[:place], str(tmp_path / "whole"), *command[place + 1 :]], capture_output=True, check=True)
    records = [tmp_path / name / "balanced_softmax" / "record.json" for name in ("run", "whole")]
    digests = {json.loads(path.read_text())["weights"] for path in records}
    assert len(digests) == 1
    assert not [name for name in files(tmp_path / "run") if "tmp" in name or name.endswith("~")]


@pytest.mark.parametrize("freeze", [(), ("--freeze",)], ids=["trained", "frozen"])
def test_a_resnet_from_a_file_keeps_its_stem_and_its_stride(
    freeze: tuple[str, ...], photos: Path, tmp_path: Path
) -> None:
    backbone, _ = make_backbone("resnet50", 32, full_stem=True)
    torch.save(backbone.state_dict(), tmp_path / "msra.pth")
    words = ("train", photos, "--out", tmp_path / "run", "--model", "resnet50", "--size", "32", "--batch", "8")
    result = equipoise(*words, "--weights", tmp_path / "msra.pth", "--iterations", "1", "--device", "cpu", *freeze)
    assert result.exit_code == 0, result.output
    served, note = load_run(tmp_path / "run" / "balanced_softmax")
    assert (note.stride, note.full_stem) == ("1x1", True)
    network: Any = served.model
    assert network.classifier.backbone.layer2[0].conv1.stride == (2, 2)
    with np.load(tmp_path / "run" / "balanced_softmax" / "predictions.npz") as found:
        logits, path = torch.from_numpy(found["logits"][:1]), photos / "val" / str(found["paths"][0])
    picture = Image.open(path).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR, box=(4, 0, 44, 40))
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        torch.testing.assert_close(served(image).softmax(1), logits.float().softmax(1), rtol=1e-3, atol=1e-3)


def test_a_smoke_test_another_size_or_other_images_do_not_touch_a_run(run: Path, photos: Path, tmp_path: Path) -> None:
    for change in (("--iterations", "1"), ("--val", photos / "train")):
        result = equipoise("train", photos, "--out", run, *SMALL, *change)
        assert result.exit_code == 2
        assert "holds another run" in " ".join(result.stderr.replace("│", " ").split())


def test_every_line_of_json_is_json(photos: Path, tmp_path: Path) -> None:
    result = equipoise("train", photos, "--out", tmp_path / "run", *SMALL, "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[-1]["method"] == "balanced_softmax"
    assert any("message" in line for line in lines)


def test_dropout_is_drawn_from_the_seed(photos: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        words = ("--model", "mobilenet_v3_small", "--size", "32", "--epochs", "1", "--batch", "8", "--device", "cpu")
        assert equipoise("train", photos, "--out", tmp_path / name, *words).exit_code == 0
        torch.manual_seed(len(digests) + 77)  # whatever else draws
        digests.append(json.loads((tmp_path / name / "balanced_softmax" / "record.json").read_text())["weights"])
    assert digests[0] == digests[1]
