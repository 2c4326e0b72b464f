"""The anchors' loss, and Ultralytics' trainers with it where Ultralytics (AGPL, no dependency) is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.integrations.anchors import AnchorLoss, prior_of_objects

PRIOR = eq.Prior.from_counts([90, 9, 1], total=100)


def test_anchors_with_an_object_are_shifted_and_the_others_are_not() -> None:
    torch.manual_seed(0)
    scores, target = torch.randn(2, 5, 3), torch.zeros(2, 5, 3)
    target[0, 1, 2], target[1, 4, 0] = 0.7, 1e-4  # the assigner's targets are soft
    found = AnchorLoss(PRIOR)(scores, target)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(scores, target, reduction="none")
    shifted = torch.nn.functional.binary_cross_entropy_with_logits(
        scores + eq.sigmoid_shift(PRIOR), target, reduction="none"
    )
    objects = torch.zeros(2, 5, dtype=torch.bool)
    objects[0, 1] = objects[1, 4] = True
    torch.testing.assert_close(found[objects], shifted[objects])
    torch.testing.assert_close(found[~objects], plain[~objects])
    assert AnchorLoss(PRIOR).state_dict() == {}


def test_images_that_hold_a_class_are_counted() -> None:
    prior = prior_of_objects(
        [np.array([[0.0], [0.0], [2.0]]), np.zeros((0, 1)), np.array([[0.0]])], ["cat", "dog", "owl"]
    )
    assert prior == eq.Prior.from_counts([2, 0, 1], total=2, class_names=["cat", "dog", "owl"])


@pytest.fixture
def trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("ultralytics")
    return pytest.importorskip("equipoise.integrations.ultralytics")


def images(folder: Path, count: int) -> None:
    from PIL import Image

    folder.mkdir(parents=True)
    for number in range(count):
        pixels = np.random.RandomState(number).randint(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


OPTIONS: dict[str, Any] = {"epochs": 1, "imgsz": 32, "batch": 4, "workers": 0, "device": "cpu", "plots": False}
OPTIONS |= {"verbose": False, "pretrained": False, "amp": False, "save": True, "exist_ok": True}


@pytest.mark.filterwarnings("ignore")
def test_a_classifier_is_trained_with_balanced_softmax(trainers: Any, tmp_path: Path) -> None:
    from ultralytics import YOLO

    for name, count in (("cat", 6), ("owl", 2)):
        images(tmp_path / "data" / "train" / name, count)
        images(tmp_path / "data" / "val" / name, 2)
    seen: list[Any] = []

    class Watched(trainers.BalancedClassificationTrainer):  # type: ignore[misc,name-defined]
        def balance(self) -> None:
            super().balance()
            seen.append(self)

    options = OPTIONS | {"data": str(tmp_path / "data"), "project": str(tmp_path / "run")}
    YOLO("yolo11n-cls.yaml").train(trainer=Watched, **options)
    assert seen[0].prior == eq.Prior.from_counts({"cat": 6, "owl": 2})
    assert isinstance(seen[0].model.criterion, trainers.ClassificationCriterion)
    logits, target = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    value, items = seen[0].criterion(None, seen[0].prior)((None, logits), {"cls": target})
    torch.testing.assert_close(value, eq.BalancedSoftmaxLoss(seen[0].prior)(logits, target))
    assert items["loss"] == value
    assert b"equipoise" not in Path(seen[0].last).read_bytes()  # the checkpoint needs Ultralytics only


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["yolo11n.yaml", "yolo26n.yaml"])  # the second has two heads
def test_a_detector_is_trained_with_balanced_sigmoid(trainers: Any, tmp_path: Path, model: str) -> None:
    from ultralytics import YOLO

    images(tmp_path / "data" / "images" / "train", 4)
    (tmp_path / "data" / "labels" / "train").mkdir(parents=True)
    for number in range(3):
        lines = "0 .5 .5 .6 .6\n0 .4 .4 .5 .5\n" + ("1 .3 .3 .4 .4\n" if number == 0 else "")
        (tmp_path / "data" / "labels" / "train" / f"{number}.txt").write_text(lines)
    described = tmp_path / "data" / "data.yaml"
    folder = tmp_path / "data"
    described.write_text(f"path: {folder}\ntrain: images/train\nval: images/train\nnames: {{0: cat, 1: owl}}\n")
    seen: list[Any] = []

    class Watched(trainers.BalancedDetectionTrainer):  # type: ignore[misc,name-defined]
        def criterion(self, *given: Any) -> Any:
            seen.extend([self, super().criterion(*given)])
            return seen[1]

    YOLO(model).train(trainer=Watched, **OPTIONS, data=str(described), project=str(tmp_path / "run"))
    trainer, criterion = seen
    assert trainer.prior == eq.Prior.from_counts([3, 1], total=3, class_names=["cat", "owl"])
    assert trainer.prior == eq.Prior.from_yolo(described)
    parts = [criterion] if model.startswith("yolo11") else [criterion.one2many, criterion.one2one]
    assert all(isinstance(part.bce, AnchorLoss) for part in parts)
    assert trainer.model.criterion is criterion
    assert b"equipoise" not in Path(trainer.last).read_bytes()
