"""A YOLO data set is counted from its text files, wherever its YAML file says they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import equipoise as eq

pytest.importorskip("yaml")
LABELS = {"a": "0 .5 .5 .1 .1\n0 .2 .2 .1 .1\n2 .5 .5 .1 .1\n", "b": "0 .5 .5 .1 .1\n", "c": "", "d": None}


def data_set(folder: Path, train: str = "images/train", names: str = "{0: cat, 1: dog, 2: owl}") -> Path:
    for kind in ("images", "labels"):
        (folder / kind / "train").mkdir(parents=True)
    for name, text in LABELS.items():
        (folder / "images" / "train" / f"{name}.jpg").write_bytes(b"")
        if text is not None:
            (folder / "labels" / "train" / f"{name}.txt").write_text(text)
    (folder / "train.txt").write_text("./images/train/a.jpg\nimages/train/d.jpg\n\n")
    (folder / "data.yaml").write_text(f"train: {train}\nval: images/val\nnames: {names}\n")
    return folder / "data.yaml"


def test_images_or_objects_are_counted_with_the_names(tmp_path: Path) -> None:
    path = data_set(tmp_path)
    names = ["cat", "dog", "owl"]
    assert eq.Prior.from_yolo(path) == eq.Prior.from_counts([2, 0, 1], total=2, class_names=names)
    assert eq.Prior.from_yolo(path, "instances") == eq.Prior.from_counts([3, 0, 1], class_names=names)


@pytest.mark.parametrize("train", ["train.txt", "[train.txt]", "[train.txt, train.txt]"])
def test_a_list_of_images_is_followed_and_each_counts_once(tmp_path: Path, train: str) -> None:
    prior = eq.Prior.from_yolo(data_set(tmp_path, train, "[cat, dog, owl]"))
    assert (prior.counts.tolist(), prior.total) == ([1, 0, 1], 1)


def test_a_folder_called_images_above_the_data_set_is_left_alone(tmp_path: Path) -> None:
    prior = eq.Prior.from_yolo(data_set(tmp_path / "images" / "mine"))
    assert prior.total == 2


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = data_set(tmp_path)
    with pytest.raises(ValueError, match="by='boxes'"):
        eq.Prior.from_yolo(path, "boxes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no 'test'"):
        eq.Prior.from_yolo(path, split="test")
    with pytest.raises(ValueError, match="neither a folder of images nor a list"):
        eq.Prior.from_yolo(path, split="val")
    (tmp_path / "labels" / "train" / "b.txt").write_text("3 .5 .5 .1 .1\n")
    with pytest.raises(ValueError, match=r"b\.txt holds the class '3': expected 0 to 2"):
        eq.Prior.from_yolo(path)
    for label in (tmp_path / "labels" / "train").iterdir():
        label.write_text("")
    with pytest.raises(ValueError, match="have no object"):
        eq.Prior.from_yolo(path)
    (tmp_path / "data.yaml").write_text("names: {1: cat, 2: dog}\ntrain: x")
    with pytest.raises(ValueError, match=r"numbers its classes \[1, 2\]"):
        eq.Prior.from_yolo(path)
    (tmp_path / "data.yaml").write_text("[1]")
    with pytest.raises(ValueError, match="does not describe a YOLO data set"):
        eq.Prior.from_yolo(path)
    (tmp_path / "data.yaml").write_text("{")
    with pytest.raises(ValueError, match=r"data\.yaml"):
        eq.Prior.from_yolo(path)
