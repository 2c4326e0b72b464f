"""Two results files beside each other: the command, its picture and its figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.coco_files import edit, write_lvis
from metrics.test_detection_metrics import random_results
from PIL import Image
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.data.reading import read_json
from equipoise.report.compared import GROUPS, SIDE, Seen, panels, shares_figure

pytest.importorskip("hotcoco")
RESULT = {"image_id": 1000, "category_id": 7, "score": 0.9, "bbox": [1, 2, 30, 40]}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    truth = write_lvis(tmp_path, images=4)
    for number, name in enumerate(("a.json", "b.json")):
        results = random_results(read_json(truth), seed=number, each=30)
        (tmp_path / name).write_text(json.dumps(results))
    return truth, tmp_path / "a.json", tmp_path / "b.json"


def compare(*words: object) -> Any:
    return CliRunner().invoke(app, ["detect", "compare", *map(str, words)], env={"COLUMNS": "1000"})


def test_two_results_are_drawn_beside_each_other(files: Any, tmp_path: Path) -> None:
    truth, a, b = files
    words = (a, b, "--annotations", truth, "--images", tmp_path)
    result = compare(*words, "--out", tmp_path / "out", "--names", "RFS", "balanced")
    assert result.exit_code == 0, result.output
    # every fourth image has the rare class: the first and no other of four
    assert "best-20.png: image 1000, the one with the most rare classes (1)" in result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["best-20.png", "shares.png"]
    with Image.open(tmp_path / "out" / "best-20.png") as picture:
        assert picture.width > 3 * SIDE
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}
    assert {colour for _, colour in GROUPS.values()} <= colours
    other = compare(*words, "--image", 998, "--out", tmp_path / "other")
    assert "best-20.png: image 998\n" in other.output
    assert (tmp_path / "other" / "best-20.png").read_bytes() != (tmp_path / "out" / "best-20.png").read_bytes()


def test_no_more_than_the_20_best_are_drawn(files: Any, tmp_path: Path) -> None:
    truth, a, b = files
    words = ("--annotations", truth, "--images", tmp_path, "--names", "a", "b", "--image", 999)
    compare(a, b, *words, "--out", tmp_path / "all")
    for file in (a, b):
        found = sorted(json.loads(file.read_text()), key=lambda one: -one["score"])
        (tmp_path / f"best-{file.name}").write_text(json.dumps([one for one in found if one["image_id"] == 999][:20]))
    compare(tmp_path / "best-a.json", tmp_path / "best-b.json", *words, "--out", tmp_path / "best")
    drawn = [(tmp_path / folder / "best-20.png").read_bytes() for folder in ("all", "best")]
    assert drawn[0] == drawn[1]


def test_the_image_with_most_rare_classes_and_fewest_instances_is_taken(files: Any, tmp_path: Path) -> None:
    truth, a, b = files

    def more(content: dict[str, Any]) -> None:
        like = {"bbox": [1, 1, 9, 9], "area": 81, "segmentation": content["annotations"][0]["segmentation"]}
        for image, category in ((999, 50), (998, 30), (998, 50), (997, 30), (997, 50)):
            content["annotations"].append(like | {"id": 0, "image_id": image, "category_id": category})

    edit(truth, more)
    edit(truth, lambda content: [one.update(id=n) for n, one in enumerate(content["annotations"], 1)])
    result = compare(a, b, "--annotations", truth, "--images", tmp_path, "--out", tmp_path / "out")
    # both of the rare classes are in 998 and in 997, which holds one instance less
    assert "image 997, the one with the most rare classes (2)" in result.output, result.output


def test_without_rare_classes_common_or_frequent_ones_choose_an_image_with_instances(
    files: Any, tmp_path: Path
) -> None:
    truth, a, b = files

    def empty_first(content: dict[str, Any]) -> None:
        first = content["images"][0]["id"]
        content["annotations"] = [one for one in content["annotations"] if one["image_id"] != first]

    edit(truth, empty_first)  # it alone had a rare class; every second image has the common one, 998 is left of them
    words = (a, b, "--annotations", truth, "--images", tmp_path, "--out", tmp_path / "out")
    most = "the one with the most {} classes (1) and the fewest instances; no image has a {} class\n"
    assert f"image 998, {most.format('common', 'rare')}" in compare(*words).output
    edit(truth, lambda content: [one.update(category_id=7) for one in content["annotations"]])
    assert f"image 999, {most.format('frequent', 'rare or common')}" in compare(*words).output
    edit(truth, lambda content: [one.update(iscrowd=1) for one in content["annotations"]])
    for more in ((), ("--image", 999)):
        assert "all of its 'annotations' are crowds or have no area" in compare(*words, *more).output


def test_right_and_wrong_are_told_apart_and_long_lists_are_cut() -> None:
    image = Image.new("RGB", (100, 100), (128, 128, 128))
    box = (10.0, 10.0, 60.0, 60.0)
    right, wrong = (panels(image, {"a": [Seen(box, "owl", "r", 0.5, right=state)]}) for state in (True, False))
    pink = [int((np.array(drawn) == GROUPS["r"][1]).all(axis=2).sum()) for drawn in (right, wrong)]
    assert pink[1] < 0.8 * pink[0]
    short, long = (panels(image, {"a": [Seen(box, "owl", "r")] * number}) for number in (20, 30))
    assert long.height > short.height
    assert panels(image, {"a": [], "b": []}).width == 2 * SIDE + 3 * 28
    empty, blank = (np.array(panels(image, {"a": found})) for found in ([], [Seen(box, "", "r")]))
    below = slice(SIDE + 60, SIDE + 90)
    assert (empty[below, 28:150] < 200).sum() > (blank[below, 80:200] < 200).sum() == 0  # it says that there is none
    names = [panels(image, {"a": [Seen(box, name, "f", 0.5)]}).tobytes() for name in ("emu", "emu n02018207", "owl")]
    assert names[0] == names[1] != names[2]


def test_the_figure_shows_the_shares_and_the_truth() -> None:
    shares = {name: {group: np.array([low, 0.5]) for group in "rcf"} for name, low in (("A", 0.25), ("B", 0.75))}
    spec = shares_figure(shares, {"r": 0.1, "c": 0.2, "f": 0.7})
    assert [panel["title"]["text"] for panel in spec["hconcat"]] == ["rare", "common", "frequent"]
    rows = spec["hconcat"][0]["data"]["values"]
    assert [(row["detector"], row["k"], row["share"]) for row in rows] == [
        ("A", 1, 25.0), ("A", 2, 50.0), ("B", 1, 75.0), ("B", 2, 50.0), ("the instances", 1, 10.0),
        ("the instances", 2, 10.0),
    ]  # fmt: skip
    assert spec["hconcat"][0]["encoding"]["x"]["scale"]["type"] == "log"
    assert not spec["hconcat"][0]["mark"]["point"]
    single = shares_figure({"A": dict.fromkeys("rcf", np.array([0.3]))}, {"r": 0.1, "c": 0.2, "f": 0.7})["hconcat"][0]
    assert single["mark"]["point"]  # a line of one point would not be seen
    assert [row["k"] for row in single["data"]["values"]] == [1, 1, 2]


def test_names_in_other_letters_are_the_ids_of_their_categories(files: Any, tmp_path: Path) -> None:
    truth, a, b = files
    drawn = []
    for names in (["кошка", "狗", "ツル", "גמל"], [f"category {i}" for i in (30, 7, 12, 50)]):
        edit(
            truth,
            lambda content, names=names: [c.update(name=n) for c, n in zip(content["categories"], names, strict=True)],
        )
        words = (a, b, "--annotations", truth, "--images", tmp_path, "--out", tmp_path / "out")
        assert compare(*words).exit_code == 0
        drawn.append((tmp_path / "out" / "best-20.png").read_bytes())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 5}, "image id 5"),
        ({"category_id": 5}, "category id 5"),
        ({"bbox": [1, 1, -2, 3]}, "width or height is negative"),
        ({"score": None}, "has the score None"),
    ],
)
def test_results_that_cannot_be_drawn_are_one_message_with_their_file(
    files: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    truth, a, b = files
    b.write_text(json.dumps([RESULT | change]))
    before = sorted(tmp_path.rglob("*"))
    result = compare(a, b, "--annotations", truth, "--images", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert str(b) in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_options_that_cannot_be_followed_are_one_message(files: Any, tmp_path: Path) -> None:
    truth, a, b = files
    words = ("--annotations", truth, "--images", tmp_path, "--out", tmp_path / "out")
    assert "both results are called a: tell them apart with --names" in compare(a, a, *words).output
    assert "--image 5: " in compare(a, b, *words, "--image", 5).output
    edit(truth, lambda content: [category.pop("frequency") for category in content["categories"]])
    assert "does not show which classes are rare" in compare(a, b, *words).output
    assert "best-20.png" in compare(a, b, *words, "--prior", truth).output
    (tmp_path / "pictures" / "0.png").unlink()
    assert "0.png does not exist" in compare(a, b, *words, "--prior", truth, "--image", 1000).output
