"""`equipoise train` from the model of another run, on other draws and in several processes, and what it advises."""

from __future__ import annotations

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
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from equipoise.cli import app
from equipoise.cli.image_sources import ImageSource, read_lists, readable
from equipoise.models.classifiers import make_backbone
from equipoise.training.images import ImageData
from equipoise.training.run_folder import load_run, weights_file
from equipoise.training.weights import weights_digest

SMALL = ("--model", NETWORK, "--size", "32", "--batch", "8", "--device", "cpu", "--iterations", "1")
STEM = ("--model", "resnet18", "--batch", "8", "--device", "cpu", "--iterations", "1")


def said(result: Result) -> str:
    return " ".join(result.output.replace("│", " ").split())


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_splits(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def first(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a small stem."""
    out = tmp_path_factory.mktemp("runs") / "first"
    result = equipoise("train", photos, "--out", out, *STEM, "--size", "32")
    assert result.exit_code == 0, result.output
    assert f"to use it: equipoise predict {out} PHOTO" in result.output
    return out


@pytest.fixture(scope="module")
def both(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two methods."""
    out = tmp_path_factory.mktemp("runs") / "both"
    assert equipoise("train", photos, "--out", out, *SMALL, "--loss", "softmax").exit_code == 0
    return out


@pytest.mark.parametrize("place", ["", "balanced_softmax", "balanced_softmax/model.safetensors"])
def test_a_run_keeps_the_backbone_of_another_and_its_stem(place: str, first: Path, tmp_path: Path) -> None:
    """Other images of other classes, at another size: the head is new."""
    others = write_photos(tmp_path / "others", (12, 6, 5))
    words = ("train", others, "--out", tmp_path / "run", *STEM, "--size", "40", "--weights", first / place, "--freeze")
    result = equipoise(*words)
    assert result.exit_code == 0, result.output
    file = first / "balanced_softmax" / "model.safetensors"
    assert f"{file}: took the backbone of this run, without its head" in result.output
    served, note = load_run(tmp_path / "run" / "balanced_softmax")
    assert (note.num_classes, note.full_stem) == (3, False)
    network: Any = served.model
    before = load_file(file)
    kept = network.classifier.backbone.state_dict()
    assert kept["conv1.weight"].shape == (64, 3, 3, 3)
    assert len(kept) > 100
    for name, value in kept.items():
        if value.is_floating_point():
            assert torch.equal(value, before[f"classifier.backbone.{name}"])
    record = json.loads((tmp_path / "run" / "balanced_softmax" / "record.json").read_text())
    assert record["starts_from"] == "first/balanced_softmax/model.safetensors"


@pytest.mark.parametrize("freeze", [(), ("--freeze",)])
def test_other_weights_at_the_same_path_are_another_run(
    freeze: tuple[str, ...], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train", photos, "--out", "run", *SMALL, *freeze, "--weights")
    digests = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        backbone, _ = make_backbone(NETWORK, 32)
        torch.save(backbone.state_dict(), f"{seed}.pth")
        digests.append(weights_digest(backbone))
    shutil.copy("0.pth", "w.pth")
    assert equipoise(*words, "w.pth", "--loss", "softmax").exit_code == 0
    again = equipoise(*words, tmp_path / "w.pth", "--loss", "softmax")
    assert "nothing left to train" in said(again)
    shutil.copy("1.pth", "w.pth")
    for loss in ("softmax", "ldam", "lws"):
        refused = equipoise(*words, "w.pth", "--loss", loss)
        assert refused.exit_code == 2
        assert f"holds another run (start_weights {digests[0]}, now {digests[1]})" in said(refused)


def test_frozen_runs_with_and_without_augment_none_are_one(photos: Path, tmp_path: Path) -> None:
    torch.save(make_backbone(NETWORK, 32)[0].state_dict(), tmp_path / "w.pth")
    words = ("train", photos, "--out", tmp_path / "run", *SMALL, "--freeze", "--weights", tmp_path / "w.pth")
    assert equipoise(*words).exit_code == 0
    assert "nothing left to train" in said(equipoise(*words, "--augment", "none"))


def test_a_smoke_test_of_a_second_stage_is_not_repeated(photos: Path, tmp_path: Path) -> None:
    words = ("train", photos, "--out", tmp_path / "run", *SMALL[:-1], "4", "--epochs", "1", "--loss", "crt")
    assert "nothing left to train" not in said(equipoise(*words))
    records = (tmp_path / "run" / "records.jsonl").read_text()
    assert "nothing left to train" in said(equipoise(*words))
    assert (tmp_path / "run" / "records.jsonl").read_text() == records


def test_a_run_goes_on_whether_or_not_its_images_fit_in_memory_by_then(photos: Path, tmp_path: Path) -> None:
    words = ("train", photos, "--out", tmp_path / "run", "--model", NETWORK, "--size", "32", "--device", "cpu")
    equipoise(*words, "--resident", "--budget", "0")
    text = said(equipoise(*words, "--no-resident", "--budget", "0"))
    assert "resumed at iteration" in text
    assert "belongs to another run" not in text


def test_whether_images_fit_in_memory_is_decided_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test, where = read_lists(ImageSource(photos))
    for free in (1e12, 0.0):
        monkeypatch.setattr("equipoise.training.images.free_memory", lambda device, free=free: free)
        data = readable(ImageSource(photos), ImageData(train, test, 32, where), torch.device("cpu"), print)
        monkeypatch.setattr("equipoise.training.images.free_memory", lambda device, free=free: 1e12 - free)
        assert data.fits(torch.device("cpu")) == (free > 0) == bool(data.pixels)


def test_a_backbone_of_another_run_is_trained_on(first: Path, tmp_path: Path) -> None:
    others = write_photos(tmp_path / "others", (12, 6, 5))
    words = ("train", others, *STEM, "--size", "32", "--weights", first, "--lr", "1e-12", "--out", tmp_path / "run")
    assert equipoise(*words).exit_code == 0
    before, after = (load_file(next(run.glob("*/model.safetensors"))) for run in (first, tmp_path / "run"))
    weights = [name for name in before if name.startswith("classifier.backbone.") and "conv" in name]
    assert len(weights) > 15
    for name in weights:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-6)
    assert equipoise("predict", tmp_path / "run", others / "class0" / "0.jpg").exit_code == 0
    large = equipoise("train", others, *STEM, "--size", "112", "--weights", first, "--out", tmp_path / "large")
    assert large.exit_code == 2
    assert "has the small stem of a run at 96 pixels or less, not 112: pass --size 96 or less" in said(large)


def test_a_folder_of_weights_must_hold_one_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no trained model"):
        weights_file(str(tmp_path))
    for number, name in enumerate(("softmax", "crt", "balanced_softmax")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
        if number == 0:
            assert weights_file(str(tmp_path)) == str(tmp_path / "softmax" / "model.safetensors")
    several = f"pass the folder of one, {tmp_path / 'balanced_softmax'}, {tmp_path / 'crt'}, {tmp_path / 'softmax'}"
    with pytest.raises(ValueError, match=several):
        weights_file(str(tmp_path))
    assert weights_file("pretrained") == "pretrained"


def test_the_same_images_are_held_out_whatever_the_seed(photos: Path, tmp_path: Path) -> None:
    """Methods and seeds are compared on the same images."""
    held, digests = [], []
    for seed in ("0", "1"):
        out = tmp_path / seed
        assert equipoise("train", photos / "train", "--out", out, *SMALL, "--seed", seed).exit_code == 0
        with np.load(out / "balanced_softmax" / "predictions.npz") as found:
            held.append(found["paths"].tolist())
        digests.append(json.loads((out / "balanced_softmax" / "record.json").read_text())["weights"])
    assert held[0] == held[1]
    assert digests[0] != digests[1]


def answered(run: Path, method: str, right: int) -> None:
    """Let a method be sure and right of the first `right` images, and wrong of the others."""
    path = run / method / "predictions.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    labels, classes = arrays["labels"], len(arrays["class_names"])
    predicted = np.where(np.arange(len(labels)) < right, labels, (labels + 1) % classes)
    np.savez(path, **arrays | {"logits": 9.0 * np.eye(classes)[predicted]})


@pytest.mark.parametrize(
    ("right", "which"),
    [
        ((16, 0), "softmax, the best on val by balanced accuracy"),
        ((0, 16), "adjusted, the best on val by balanced accuracy"),
        ((15, 16), "adjusted, the best on val by balanced accuracy, which may be chance"),
        ((12, 12), "softmax (tied with adjusted on val by balanced accuracy)"),
    ],
)
def test_the_advice_names_the_best_model_and_whether_it_may_be_chance(
    right: tuple[int, int], which: str, both: Path, photos: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(both, run)
    for method, number in zip(("softmax", "adjusted"), right, strict=True):
        answered(run, method, number)
    told = equipoise("train", photos, "--out", run, *SMALL, "--loss", "softmax")
    assert f"to use {which}: equipoise predict {run} --method {re.split(',| ', which)[0]} PHOTO" in told.output
    assert "WARNING: no method beats" not in told.output


def test_what_is_no_better_than_one_answer_is_shown_with_both_numbers(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", photos / "train", "--out", run, *SMALL[:-2], "--epochs", "1")
    started = equipoise(*words)
    assert started.exit_code == 0, started.output
    few = "36 images are few for a network that starts from random weights: consider --weights pretrained, and --freeze"
    assert few in started.output
    assert "36 training images, 9 evaluation images (held-out); " in started.output
    assert "Accuracy on held-out images, %" in started.output
    answered(run, "balanced_softmax", 0)
    bad = equipoise(*words)
    lines = bad.output.splitlines()
    one = "WARNING: no method beats always answering class0: 55.6 % of the held-out images are class0, "
    assert one + "the best top-1 is 0.0 %" in lines
    chance = "WARNING: no balanced accuracy is above chance: 0.0 % at best (95 %: 0.0 to "
    assert any(line.startswith(chance) and line.endswith("guessing gives 25.0 %") for line in lines)
    assert any(line.startswith("try --weights pretrained, ") and line.endswith("(these were 1)") for line in lines)
    assert "recorded in" not in started.output
    as_json = [json.loads(line) for line in equipoise(*words, "--json").stdout.splitlines()]
    assert one + "the best top-1 is 0.0 %" in [line.get("message") for line in as_json]
    answered(run, "balanced_softmax", 9)
    assert "WARNING" not in equipoise(*words).output


def test_paths_of_a_list_are_relative_to_images(first: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("class1/0.jpg\nclass1/1.jpg 1\n")
    words = ("predict", first, tmp_path / "list.txt", "--json")
    found = equipoise(*words, "--images", photos / "val")
    assert found.exit_code == 0, found.output
    paths = [json.loads(line)["path"] for line in found.stdout.splitlines()]
    assert paths == [str(photos / "val" / "class1" / name) for name in ("0.jpg", "1.jpg")]
    assert equipoise(*words).exit_code == 1
    nowhere = equipoise(*words, "--images", tmp_path / "nowhere")
    assert nowhere.exit_code == 2
    assert "nowhere is not a folder" in said(nowhere)


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "a rate": (("--lr", "1000000"), "--lr 1e+06: expected a number above 0 and below 1,000,000"),
    "no rate": (("--lr", "0"), "--lr 0: expected a number above 0 and below 1,000,000"),
    "a decay": (("--weight-decay", "-1"), "--weight-decay -1: expected a number of at least 0 and below 1,000,000"),
}


@pytest.mark.parametrize("name", BAD)
def test_numbers_out_of_range_are_refused_with_the_range(name: str, photos: Path, tmp_path: Path) -> None:
    words, message = BAD[name]
    result = equipoise("train", photos, "--out", tmp_path / "run", *SMALL, *words)
    assert result.exit_code == 2
    assert message in said(result)


def test_messages_offer_only_what_the_command_can_do(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "gaps.txt").write_text("class0/0.jpg 0\nclass1/0.jpg 2\n")
    gaps = said(equipoise("train", tmp_path / "gaps.txt", "--images", photos / "train", "--out", tmp_path / "run"))
    assert "no image of class 1: number the classes without gaps, or label images with names" in gaps
    (tmp_path / "empty").mkdir()
    empty = said(equipoise("train", tmp_path / "empty", "--out", tmp_path / "run"))
    assert "has no folders: expected one folder per class, or Parquet files" in empty
    assert "CIFAR" not in empty


def test_under_torchrun_an_error_is_shown_once(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "equipoise", "train", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run"), "--device", "cpu"]
    result = subprocess.run(launcher + words, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode != 0
    assert " ".join(result.stderr.replace("│", " ").split()).count("does not exist: give a folder of images") == 1
    assert not (tmp_path / "run").exists()


def test_an_error_of_one_process_only_is_shown_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.cli.SECONDS_FOR_THE_FIRST", 0)
    environment = {"RANK": "1", "WORLD_SIZE": "2", "COLUMNS": "300"}
    words = ["train", str(tmp_path), "--lr", "0", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, words, env=environment)
    assert result.exit_code == 2
    assert "--lr 0: expected a number above 0" in result.output
