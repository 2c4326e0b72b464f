"""The tutorial, from its first block to its last: Python as it stands, and every `equipoise` command."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli import app

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
    photo = min(path for path in said_before if path.startswith("digit-7/"))
    assert capsys.readouterr().out.splitlines()[-1] == said_before[photo]  # whether it is right or not
    accuracy = {name: few(tmp_path / "runs" / "first" / name) for name in ("softmax", "balanced_softmax")}
    assert accuracy["balanced_softmax"] > accuracy["softmax"]
    assert any("Accuracy on val" in text for text in said)
    with open("found.csv") as file:
        assert len(list(csv.DictReader(file))) == 30


def few(folder: Path) -> float:
    """The accuracy on the four rarest digits."""
    with np.load(folder / "predictions.npz") as found:
        rare = found["labels"] >= 6
        return float((found["logits"].argmax(1) == found["labels"])[rare].mean())
