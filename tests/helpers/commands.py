"""Commands of `equipoise`, called within the tests' own process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from equipoise.cli import app


def equipoise(*words: str | Path) -> Result:
    """The result of a command, on lines wide enough for long paths."""
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
