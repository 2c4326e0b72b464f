"""The scripts of examples/ run as they are, and do what they say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.experiments.demo import digits_cnn

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str | Path) -> str:
    """What it prints in a process of its own, as a user starts it."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_prior_goes_from_counting_labels_to_serving_a_model(tmp_path: Path) -> None:
    text = run("count_train_judge_serve.py", "--steps", "5", "--out", tmp_path)
    assert text.startswith("Prior(10 classes, total 420, imbalance 49.33, head '0': 148, tail '9': 3)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.safetensors", "report.html"]
    served = eq.Rebalanced.load(tmp_path / "model.safetensors", digits_cnn().eval())
    assert (served.target.probabilities[7], served.target.class_names) == (0.5, tuple("0123456789"))
    assert served.source == eq.Prior.uniform(10, class_names=tuple("0123456789"))


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def here(*arguments: str) -> str:
        """In this process: to start another takes longer than the script."""
        words = ["resume_distributed.py", "--checkpoint", str(tmp_path / "checkpoint.pt"), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(EXAMPLES / words[0]), run_name="__main__")
        return capsys.readouterr().out

    whole = here()
    assert "balanced accuracy" in whole
    with pytest.raises(SystemExit):
        here("--stop-after", "17")
    assert capsys.readouterr().out == ""
    assert here() == f"resumed in epoch 1\n{whole}"
