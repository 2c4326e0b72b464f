"""The tutorial, from its first block to its last: Python as it stands, and every `equipoise` command."""

from __future__ import annotations

import ast
import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.data.image_files import decode
from equipoise.data.images import ImageList
from equipoise.training.images import middle, stored_side

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"


def test_it_leads_from_a_folder_of_images_to_an_onnx_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    said: list[str] = []
    for kind, block in re.findall(r"^```(python|sh)\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL):
        if kind == "python":
            exec(compile(block, TUTORIAL.name, "exec"), namespace)
            continue
        for line in block.splitlines():
            words = shlex.split(line)
            assert words[0] == "equipoise"
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, result.output
            said.append(result.output)
    with np.load(tmp_path / "runs" / "first" / "balanced_softmax" / "predictions.npz") as found:
        said_before = dict(zip(found["paths"].tolist(), found["class_names"][found["logits"].argmax(1)], strict=True))
    sevens = sorted(path for path in said_before if path.startswith("digit-7/"))[:3]
    assert capsys.readouterr().out.split()[-6::2] == [said_before[path] for path in sevens]  # whether right or not
    served_alike(namespace["classified"], tmp_path)
    accuracy = {name: few(tmp_path / "runs" / "first" / name) for name in ("softmax", "balanced_softmax")}
    assert accuracy["balanced_softmax"] > accuracy["softmax"]
    assert any("Accuracy on val" in text for text in said)
    with open("found.csv") as file:
        assert len(list(csv.DictReader(file))) == 30


def served_alike(classified: Any, folder: Path) -> None:
    """The code for ONNX gives the probabilities of `equipoise predict`, on photos of any shape."""
    photos = [odd_photo(folder / name, *sides) for name, sides in (("a.jpg", (301, 187)), ("b.png", (9, 31)))]
    run = str(folder / "runs" / "first" / "balanced_softmax")
    printed = CliRunner().invoke(app, ["predict", run, *map(str, photos), "--json"])
    expected = [json.loads(line)["predictions"][0] for line in printed.stdout.splitlines()]
    found = classified(photos)
    assert [name for name, _ in found] == [one["label"] for one in expected]
    assert [share for _, share in found] == pytest.approx([one["probability"] for one in expected], abs=1e-4)


def odd_photo(path: Path, width: int, height: int) -> Path:
    """A photo that is not square, and turned upright by its EXIF data."""
    random = np.random.default_rng(width)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize(("size", "side"), [(16, 16), (160, 183), (224, 256)])
def test_its_photos_are_prepared_as_predict_does(tmp_path: Path, size: int, side: int) -> None:
    """At 160 pixels the middle lies between pixels; JPEG files are decoded at a reduced scale where that is enough."""
    blocks = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "def prepared" in block)
    (function,) = (
        part for part in ast.parse(block).body if isinstance(part, ast.FunctionDef) and part.name == "prepared"
    )
    namespace: dict[str, Any] = {}
    exec("import numpy as np\nfrom PIL import Image, ImageOps\n" + ast.unparse(function), namespace)
    assert stored_side(size) == side
    shapes = {"a.jpg": (1203, 731), "b.png": (301, 517), "c.jpg": (97, 40)}
    photos = [odd_photo(tmp_path / name, *sides) for name, sides in shapes.items()]
    expected = middle(torch.from_numpy(decode(ImageList.of_files(photos), side).pixels), size)
    for photo, one in zip(photos, expected, strict=True):
        found = 255 * namespace["prepared"](photo, side, size)
        assert found.shape == (3, size, size)
        np.testing.assert_allclose(found, one.numpy(), atol=1.001, rtol=0)  # halves may be rounded either way
        assert abs(found - one.numpy()).mean() < (0.1 if (side - size) % 2 else 1e-3)


def few(folder: Path) -> float:
    """The accuracy on the four rarest digits."""
    with np.load(folder / "predictions.npz") as found:
        rare = found["labels"] >= 6
        return float((found["logits"].argmax(1) == found["labels"])[rare].mean())
