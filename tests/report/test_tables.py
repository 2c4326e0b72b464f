"""Tables in the terminal: what names may hold, and what a narrow terminal leaves whole."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.data.reading import visible
from equipoise.report.tables import Table, mean_std

EVIL = "owl\x1b[2J\x07\x9b31m\u202e"


def printed(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    table.print(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_no_control_character_reaches_the_terminal_from_a_table() -> None:
    text = printed(Table(["method", EVIL], [[EVIL, "[red]1.0"], ["plain", EVIL]], title=EVIL), 200)
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert text.count(r"owl\x1b[2J\x07\x9b31m\u202e") == 4
    assert "[red]1.0" in text  # no markup either
    assert visible("猫 — ± τ") == "猫 — ± τ"


def test_no_control_character_reaches_the_terminal_from_the_report(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=np.eye(2), labels=[0, 1], class_names=["a", EVIL])
    np.save(tmp_path / "counts.npy", np.array([200, 5]))
    arguments = [str(tmp_path / "a.npz"), "--counts", str(tmp_path / "counts.npy"), "--name", EVIL]
    result = CliRunner().invoke(app, ["report", *arguments, "--out", str(tmp_path / "a.html")])
    assert result.exit_code == 0, result.output
    assert "owl" in result.output
    assert not set(result.output) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize("width", [20, 40, 200])
def test_no_number_is_cut_or_broken_whatever_the_width(width: int) -> None:
    rows = [["a rather long name of a method", "ours", "12.3 ± 0.4 (3)", "23.4 ± 0.5 (3)"]]
    text = printed(Table(["method", "", "imbalance 100", "imbalance 10"], rows, left=2), width)
    assert "12.3 ± 0.4 (3)" in text
    assert "23.4 ± 0.5 (3)" in text
    assert "…" not in text


def test_values_that_are_not_known_are_left_out_of_the_mean() -> None:
    assert mean_std([None, 2.0, 4.0], digits=2, n=True) == "3.00 ± 1.41 (2)"
    assert mean_std([], n=True) == "–"
    assert mean_std([-1.0, -3.0], sign=True) == "−2.0 ± 1.4"


def test_words_are_aligned_left_and_numbers_right() -> None:
    table = Table(["method", "top-1", "number from"], [["Softmax", "4.0", "here"], ["LDAM", "12.0", "book"]], words=1)
    assert str(table).splitlines()[1] == "|:---|---:|:---|"
    (row,) = (line for line in printed(table, 100).splitlines() if "Softmax" in line)
    assert "  4.0  here" in row
