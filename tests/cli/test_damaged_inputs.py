"""Damaged inputs: one message that names the file, status 2, no traceback, and nothing written."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from helpers.coco_files import edit, rectangle, write_lvis
from typer.testing import CliRunner

from equipoise.cli import app

LOGITS = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0]], np.float32)
LABELS = np.array([0, 1])


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """The start of an .npy file that claims a shape it does not hold."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


def coco(change: Callable[[dict[str, Any]], Any] = lambda content: None) -> bytes:
    content: dict[str, Any] = {
        "images": [{"id": i, "height": 64, "width": 64, "file_name": f"{i}.png"} for i in (1, 2)],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "owl"}],
        "annotations": [
            {"id": i, "image_id": i, "category_id": i, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0} for i in (1, 2)
        ],
    }
    change(content)
    return json.dumps(content).encode()


GOOD = npz(logits=LOGITS, labels=LABELS)
TABLE = parquet(label=[0, 1] * 200, a=np.arange(400.0), b=np.ones(400), c=np.ones(400))
DEEP = b"[" * 100_000

PREDICTIONS: dict[str, tuple[str, bytes | None]] = {
    "empty npz": ("a.npz", b""),
    "npz cut off": ("a.npz", GOOD[: len(GOOD) // 2]),
    "npz with a byte changed": ("a.npz", flipped(GOOD, 140)),
    "npz without its end": ("a.npz", GOOD[:-10]),
    "deflated stream damaged": ("a.npz", flipped(archive(logits=npy(LOGITS), labels=npy(LABELS)), 60)),
    "npz of no arrays": ("a.npz", archive(logits=b"hello", labels=b"")),
    "npz that holds less than it says": ("a.npz", archive(logits=header((10**9, 1000)), labels=header((10**9,)))),
    "npz with a negative shape": ("a.npz", archive(logits=header((-1, 3)), labels=npy(LABELS))),
    "npz of objects": ("a.npz", npz(logits=np.array([[{}, 1]], object), labels=LABELS)),
    "npz of structures": ("a.npz", archive(logits=header((2, 3), "V8") + bytes(48), labels=npy(LABELS))),
    "npz with no rows": ("a.npz", npz(logits=LOGITS[:0], labels=LABELS[:0])),
    "an array in place of an npz": ("a.npz", npy(LOGITS)),
    "empty csv": ("a.csv", b""),
    "csv with no rows": ("a.csv", b"label,a,b,c\n"),
    "csv cut off": ("a.csv", b"label,a,b,c\n0,1,2,3\n1,1"),
    "csv with an open quote": ("a.csv", b'label,a,b,c\n0,1,2,3\n"1,1,2,3\n1,1,2,3\n'),
    "csv that is not UTF-8": ("a.csv", "label,é,b,c\n0,1,2,3\n".encode("latin-1")),
    "csv of bytes": ("a.csv", bytes(range(256)) * 9),
    "csv with a huge label": ("a.csv", b"label,a,b,c\n99999999999999999999999,1,2,3\n"),
    "empty parquet": ("a.parquet", b""),
    "parquet cut off": ("a.parquet", TABLE[: len(TABLE) // 2]),
    "parquet with its pages damaged": ("a.parquet", TABLE[:40] + b"\xff" * 200 + TABLE[240:]),
    "parquet of lists": ("a.parquet", parquet(label=[[0], [1]], a=[1.0, 2.0], b=[1.0, 2.0])),
    "a folder": ("a.npz", None),
}

SOURCES: dict[str, tuple[str, bytes | None]] = {
    "empty json": ("a.json", b""),
    "json cut off": ("a.json", b'{"cat": 5, "ow'),
    "deep json": ("a.json", DEEP),
    "json deep enough to print badly": ("a.json", b"[" * 900 + b"]" * 900),
    "json that is not UTF-8": ("a.json", b'{"caf\xe9": 5, "owl": 3}'),
    "json with half a character": ("a.json", b'{"\\ud800": 5, "owl": 3}'),
    "json with a key twice": ("a.json", b'{"cat": 5, "owl": 3, "cat": 7}'),
    "json with a class twice": ("a.json", b'{"0": 5, "1": 3, "01": 7}'),
    "json of NaN": ("a.json", b"[NaN, 1, 2]"),
    "json of text": ("a.json", b'["5", "3", "2"]'),
    "json of true and false": ("a.json", b"[true, false, true]"),
    "json of more classes than memory": ("a.json", b'{"0": 5, "999999999": 3}'),
    "json of negative counts": ("a.json", b"[5, -3, 2]"),
    "json of huge counts": ("a.json", b"[1" + b"0" * 30 + b", 3, 2]"),
    "json of nothing": ("a.json", b"{}"),
    "prior with names that do not fit": ("a.json", b'{"counts": [5, 3, 2], "class_names": 7}'),
    "empty npy": ("a.npy", b""),
    "npy cut off": ("a.npy", npy(np.arange(1000))[:500]),
    "npy of objects": ("a.npy", npy(np.array([{}, 1], object))),
    "npy of an archive": ("a.npy", GOOD),
    "npy of fractions": ("a.npy", npy(np.array([0.0, 1.5, 2.0, 1.0]))),
    "npy of negative labels": ("a.npy", npy(np.array([0, -1, 2, 1]))),
    "npy that holds less than it says": ("a.npy", header((10**12,), "<i8")),
    "txt that is not UTF-8": ("a.txt", b"caf\xe9\nowl\n"),
    "txt of fractions": ("a.txt", b"0\n1.5\n1\n"),
    "csv of labels with an open quote": ("a.csv", b'label\ncat\n"owl\ncat\n'),
    "csv of fractional labels": ("a.csv", b"label\n0\n0.5\n"),
    "csv of ids": ("a.csv", b"label\n0\n99999999999\n"),
    "parquet of ids": ("a.parquet", parquet(label=[0, 10**15])),
    "parquet of fractions": ("a.parquet", parquet(label=[0.0, 0.5])),
    "parquet of lists of nothing": ("a.parquet", parquet(label=[[], []])),
    "csv of a broken list": ("a.csv", b'tags\n"[1, ]"\n'),
    "csv of lists of nothing": ("a.csv", b"tags\n;\n"),
    "parquet of labels cut off": ("a.parquet", TABLE[:-3]),
    "a folder of nothing": ("folder", None),
}

ANNOTATIONS: dict[str, bytes] = {
    "cut off": coco()[:-20],
    "a list": b'["cat"]',
    "categories are no list": coco(lambda c: c.update(categories={"1": "cat"})),
    "categories without ids": coco(lambda c: c["categories"][0].pop("id")),
    "a category id of text": coco(lambda c: c["categories"][0].update(id="1")),
    "a fractional category id": coco(lambda c: c["categories"][0].update(id=1.5)),
    "categories of numbers": coco(lambda c: c.update(categories=[1, 2])),
    "annotations without categories": coco(lambda c: c["annotations"][0].pop("category_id")),
    "an unknown category": coco(lambda c: c["annotations"][0].update(category_id=9)),
    "a category that is a list": coco(lambda c: c["annotations"][0].update(category_id=[1])),
    "a fractional category": coco(lambda c: c["annotations"][0].update(category_id=1.5)),
    "an unknown image": coco(lambda c: c["annotations"][0].update(image_id=9)),
    "an image that is a list": coco(lambda c: c["annotations"][0].update(image_id=[1])),
    "an image twice": coco(lambda c: c["images"].append(c["images"][0])),
    "images without ids": coco(lambda c: c["images"][0].pop("id")),
    "annotations are an object": coco(lambda c: c.update(annotations={"1": {}})),
    "annotations of text": coco(lambda c: c.update(annotations=["cat"])),
    "a box of text": coco(lambda c: c["annotations"][0].update(bbox="box")),
    "a box of three": coco(lambda c: c["annotations"][0].update(bbox=[1, 2, 3])),
    "a box of negative width": coco(lambda c: c["annotations"][0].update(bbox=[1, 1, -4, 4])),
    "a segmentation of numbers": coco(lambda c: c["annotations"][0].update(segmentation=[1, 2, 3])),
    "only crowds": coco(lambda c: [annotation.update(iscrowd=1) for annotation in c["annotations"]]),
    "no annotations": coco(lambda c: c.update(annotations=[])),
}

RESULT = {"image_id": 1000, "category_id": 7, "score": 0.5, "bbox": [1, 1, 9, 9]}


def masked(*, alone: bool = False, **mask: Any) -> bytes:
    """A good result, and one with this mask; without boxes if they are to be taken from the masks."""
    both = [RESULT | {"segmentation": one} for one in (rectangle(1, 1, 9, 9), mask)]
    return json.dumps(
        [{key: value for key, value in one.items() if key != "bbox" or not alone} for one in both]
    ).encode()


RESULTS: dict[str, bytes] = {
    "empty": b"",
    "cut off": json.dumps([RESULT]).encode()[:-4],
    "deep": DEEP,
    "an object": b"{}",
    "of numbers": b"[1, 2]",
    "without a score": json.dumps([{k: v for k, v in RESULT.items() if k != "score"}]).encode(),
    "a score of text": json.dumps([RESULT | {"score": "high"}]).encode(),
    "a fractional image": json.dumps([RESULT | {"image_id": 1000.5}]).encode(),
    "a category of text": json.dumps([RESULT | {"category_id": "cat"}]).encode(),
    "a box of text": json.dumps([RESULT | {"bbox": "1 1 9 9"}]).encode(),
    "a box of NaN": json.dumps([RESULT | {"bbox": [1, 1, float("nan"), 9]}]).encode(),
    "a mask without its runs": json.dumps([RESULT | {"segmentation": {"size": [64, 64]}}]).encode(),
    "a mask of another kind": json.dumps([RESULT | {"segmentation": 7}]).encode(),
    "an unknown image": json.dumps([RESULT | {"image_id": 5}]).encode(),
    "another category": json.dumps([RESULT | {"category_id": 5}]).encode(),
    "a score of NaN": json.dumps([RESULT | {"score": float("nan")}]).encode(),
    "an infinite score": json.dumps([RESULT]).replace("0.5", "1e999").encode(),
    "a box of negative width": json.dumps([RESULT | {"bbox": [1, 1, -9, 9]}]).encode(),
    "a polygon of one point": json.dumps([RESULT | {"segmentation": [[1, 1]]}]).encode(),
    "a polygon of seven numbers": json.dumps([RESULT | {"segmentation": [[1, 1, 9, 1, 9, 9, 1]]}]).encode(),
    "a mask of another size": masked(size=[63, 64], counts=[63 * 64]),
    "a mask of 10^12 pixels": masked(size=[10**6, 10**6], counts=[10**12]),
    "a mask of 10^12 pixels, compressed": masked(size=[10**6, 10**6], counts="PPPPPPPPPP1"),
    "runs of 10^12 pixels": masked(size=[64, 64], counts=[0, 10**12]),
    "runs of 10^12 pixels, compressed": masked(size=[64, 64], counts="0PPPPPPPPPP1"),
    "runs that are too short": masked(size=[64, 64], counts=[10, 20]),
    "runs that are too short, compressed": masked(size=[64, 64], counts="Z1"),
    "runs that are too long": masked(size=[64, 64], counts=[10, 5000]),
    "negative runs": masked(size=[64, 64], counts=[-10, 4106]),
    "runs of other characters": masked(size=[64, 64], counts="!!~~"),
    "runs that are left open": masked(size=[64, 64], counts="PPP"),
    "a mask of 10^12 pixels alone": masked(size=[10**6, 10**6], counts=[10**12], alone=True),
    "masks alone, of short runs": masked(size=[64, 64], counts="Z1", alone=True),
    "masks alone, of wrong runs": json.dumps(
        [{k: v for k, v in RESULT.items() if k != "bbox"} | {"segmentation": {"size": [64, 64], "counts": [2**62] * 4}}]
    ).encode(),
}


def put(folder: Path, name: str, content: bytes | None) -> Path:
    path = folder / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    return path


def refused(tmp_path: Path, culprit: Path, *arguments: object) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(app, [str(word) for word in arguments], env={"COLUMNS": "1000"})
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception  # click's way to exit, and not a traceback
    assert str(culprit) in result.output
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", PREDICTIONS)
def test_predictions_are_refused_by_report_and_adapt(tmp_path: Path, case: str) -> None:
    path = put(tmp_path, *PREDICTIONS[case])
    counts = put(tmp_path, "counts.json", b"[50, 20, 5]")
    refused(tmp_path, path, "adapt", path, "--source", counts, "--target", "uniform", "--out", tmp_path / "out.npz")
    if not path.is_dir():  # which report takes for a folder of run records
        refused(tmp_path, path, "report", path, "--counts", counts, "--out", tmp_path / "out.html")


@pytest.mark.parametrize("case", SOURCES)
def test_priors_are_refused_by_inspect_report_and_adapt(tmp_path: Path, case: str) -> None:
    path = put(tmp_path, *SOURCES[case])
    good = put(tmp_path, "good.npz", GOOD)
    refused(tmp_path, path, "inspect", path, "--html", tmp_path / "out.html")
    refused(tmp_path, path, "report", good, "--counts", path, "--out", tmp_path / "out.html")
    for option, other in (("--source", "--target"), ("--target", "--source")):
        refused(tmp_path, path, "adapt", good, option, path, other, "uniform", "--out", tmp_path / "out.npz")


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_annotations_are_refused_by_inspect_and_detect_eval(tmp_path: Path, case: str) -> None:
    pytest.importorskip("hotcoco")
    path = put(tmp_path, "train.json", ANNOTATIONS[case])
    results, good = put(tmp_path, "results.json", b"[]"), put(tmp_path, "val.json", coco())
    refused(tmp_path, path, "inspect", path)
    refused(tmp_path, path, "detect", "eval", results, "--annotations", good, "--prior", path)
    if case != "only crowds":  # which can be evaluated, if not trained on
        refused(tmp_path, path, "detect", "eval", results, "--annotations", path)


@pytest.mark.parametrize("case", RESULTS)
def test_results_are_refused_by_detect_eval(tmp_path: Path, case: str) -> None:
    pytest.importorskip("hotcoco")
    truth = write_lvis(tmp_path, images=2)
    path = put(tmp_path, "results.json", RESULTS[case])
    refused(tmp_path, path, "detect", "eval", path, "--annotations", truth)


def test_training_annotations_of_other_categories_are_refused_by_detect_eval(tmp_path: Path) -> None:
    pytest.importorskip("hotcoco")
    truth, train = write_lvis(tmp_path, images=2), write_lvis(tmp_path / "train", images=2)
    results = put(tmp_path, "results.json", json.dumps([RESULT]).encode())

    def renumber(content: dict[str, Any]) -> None:
        for entry in (*content["categories"], *content["annotations"]):
            key = "category_id" if "category_id" in entry else "id"
            entry[key] = 51 if entry[key] == 50 else entry[key]

    edit(train, renumber)
    edit(truth, lambda content: [category.pop("frequency") for category in content["categories"]])
    words = ["detect", "eval", results, "--annotations", truth, "--prior", train]
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "1000"})
    assert result.exit_code == 2, result.output
    assert "have the category id 50, not in the training annotations" in result.output
    assert "bbox" not in result.output


def test_results_that_can_be_judged_in_part_only_print_nothing(tmp_path: Path) -> None:
    """The boxes are good, a mask is not: no numbers before the message."""
    pytest.importorskip("hotcoco")
    truth = write_lvis(tmp_path, images=2)
    path = put(tmp_path, "results.json", RESULTS["runs that are too short"])
    words = ["detect", "eval", path, "--annotations", truth, "--pool"]
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "1000"})
    assert "detection 1 has an RLE whose runs do not fill its size exactly" in result.output
    assert "AP" not in result.output


def test_the_undamaged_inputs_are_used(tmp_path: Path) -> None:
    """What the tables above change is all that is wrong with them."""
    pytest.importorskip("hotcoco")
    good, counts = put(tmp_path, "good.npz", GOOD), put(tmp_path, "counts.json", b"[50, 20, 5]")
    table, truth = put(tmp_path, "table.parquet", TABLE), put(tmp_path, "val.json", coco())
    results = put(tmp_path, "results.json", b"[]")
    lvis = write_lvis(tmp_path, images=2)
    mask = rectangle(1, 1, 9, 9)
    masked = put(tmp_path, "masked.json", json.dumps([RESULT | {"segmentation": mask}]).encode())
    for words in (
        ["adapt", good, "--source", counts, "--target", "uniform", "--out", tmp_path / "a.npz"],
        ["adapt", table, "--source", counts, "--target", "uniform", "--out", tmp_path / "b.npz"],
        ["report", good, "--counts", counts, "--out", tmp_path / "a.html"],
        ["inspect", counts],
        ["inspect", truth],
        ["detect", "eval", results, "--annotations", truth, "--prior", truth],
        ["detect", "eval", masked, "--annotations", lvis],
    ):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, (words, result.output, result.exception)


def test_what_an_error_quotes_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    name = "\x1b[31mX"
    for words in (
        ["table", "table1", "--results", name],
        ["run", f"{name}.py", "--data", "x"],
        ["run", "table1", "--data", name, "--results", str(tmp_path)],
        ["run", "table1", "--data", str(tmp_path), "--device", name],
    ):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        assert result.exit_code == 2, result.output
        assert "\x1b" not in result.output
        assert r"\x1b[31mX" in result.output


@pytest.mark.parametrize("text", ["def (", "import no_such_module"], ids=["syntax", "import"])
def test_a_recipe_file_that_cannot_be_run_is_one_message(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(text)
    words = ["run", str(tmp_path / "recipe.py"), "--data", str(tmp_path)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert "recipe.py cannot be run: " in result.output
