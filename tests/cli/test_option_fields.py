"""Commands whose options are the fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from equipoise.cli.option_fields import Without, fields_as_options


@dataclass(frozen=True)
class Where:
    data: Annotated[Path, typer.Option(help="The data.")]
    names: Annotated[list[str], typer.Option("--name")] = field(default_factory=lambda: ["first"])
    seed: int = 3


@dataclass(frozen=True)
class Elsewhere(Where):
    data: Annotated[Path, typer.Option(help="Other data.")] = Path("other")


calls: list[object] = []


def convert(slow: bool = False, *, where: Where, fast: bool = False) -> None:
    """Convert data."""
    calls.append((where, slow, fast))


def convert_rest(
    context: typer.Context, size: int, where: Annotated[Elsewhere, Without("seed", "names")], fast: bool = False
) -> None:
    calls.append((context.info_name, size, where, fast))


def run(command: object, *arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(fields_as_options(command))  # type: ignore[arg-type]
    calls.clear()
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"})
    return result.exit_code, result.output


def test_every_field_is_an_option() -> None:
    assert run(convert, "--data", "here", "--name", "a", "--name", "b", "--seed", "7", "--fast")[0] == 0
    assert calls == [(Where(Path("here"), ["a", "b"], 7), False, True)]


def test_defaults_are_those_of_the_fields_and_required_ones_are_required() -> None:
    assert run(convert, "--data", "here")[0] == 0
    assert calls == [(Where(Path("here"), ["first"], 3), False, False)]
    code, output = run(convert)
    assert (code, calls) == (2, [])
    assert "Missing option '--data'" in output


def test_fields_may_be_left_out_and_changed_in_a_subclass() -> None:
    assert run(convert_rest, "5", "--fast")[0] == 0
    assert [*calls[0]][1:] == [5, Elsewhere(), True]  # type: ignore[misc]
    assert run(convert_rest, "5", "--seed", "1")[0] == 2
    help_of_it = run(convert_rest, "--help")[1]
    assert "Other data." in help_of_it
    assert "--name" not in help_of_it


def test_the_help_is_that_of_the_command_and_of_the_fields() -> None:
    code, output = run(convert, "--help")
    assert code == 0
    shown = [
        output.index(words)
        for words in ("Convert data.", "--slow", "--data", "The data.", "--name", "--seed", "--fast")
    ]
    assert shown == sorted(shown)


def test_a_field_that_does_not_exist_cannot_be_left_out() -> None:
    def wrong(where: Annotated[Where, Without("sede")]) -> None: ...

    with pytest.raises(TypeError, match="Where has no field sede"):
        fields_as_options(wrong)


def test_a_default_belongs_to_a_field() -> None:
    def wrong(where: Where = Where(Path("here"))) -> None: ...

    with pytest.raises(TypeError, match="where of wrong has a default: give one to each field instead"):
        fields_as_options(wrong)


def test_each_call_has_a_default_list_of_its_own() -> None:
    command = fields_as_options(convert)
    calls.clear()
    command(data=Path("here"))
    command(data=Path("here"))
    (first, *_), (second, *_) = calls  # type: ignore[misc]
    assert first == second
    assert first.names is not second.names
