"""The commands as a user meets them: help with examples, completion, stdin, JSON, and words for what does not exist."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.coco_files import write_lvis
from typer.main import get_command
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.shared import given

ROOT = Path(__file__).parents[2]


def run(*arguments: object, code: int = 0, stdin: bytes | None = None) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"}, input=stdin)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else " ".join(result.output.replace("│", "").split())


@pytest.mark.parametrize("kind", [OSError, ValueError, TypeError])
def test_errors_about_stdin_call_it_stdin(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1, 2]")))
    with pytest.raises(ValueError, match=r"^stdin is wrong$"), given([Path("-")]) as (path,):
        raise kind(f"{path} is wrong")


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command and group of commands."""
    command = get_command(app) if command is None else command
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_help_is_two_letters_away_and_has_an_example(path: tuple[str, ...]) -> None:
    if "FILE.py" in path:
        path = ("run", "table1")  # the same function
    text = run(*path, "-h")
    assert text == run(*path, "--help")
    assert not re.search("bool", text, re.IGNORECASE), text  # flags take no value
    examples = re.findall(r"^ (?:\S.* \| )?(?:torchrun .*)?equipoise ([\w -]+)", text, re.MULTILINE)
    assert examples, text
    if path and path[0] != "run":
        assert any(example.split()[: len(path)] == list(path) for example in examples), examples


def test_what_is_missing_is_named() -> None:
    assert "Missing option '--data'" in run("run", "voc-mlt", code=2)
    assert "Missing argument" in run("inspect", code=2)


def test_commands_for_users_come_first_and_the_papers_have_a_group_of_their_own() -> None:
    text = run("--help")
    users, paper = text.partition("The paper's experiments")[::2]
    names = re.findall(r"^│ ([a-z]+) ", users.partition("Your data and models")[2], re.MULTILINE)
    assert names == ["inspect", "train", "predict", "evaluate", "report", "adapt", "demo", "detect"]
    assert re.findall(r"^│ ([a-z]+) ", paper, re.MULTILINE) == ["run", "table", "records"]


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        given = {"_EQUIPOISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        command = [sys.executable, "-m", "equipoise"]
        return subprocess.run(
            command, env=os.environ | given, capture_output=True, text=True, check=True
        ).stdout.split()

    assert completed("equipoise in") == ["inspect"]
    assert "--json" in completed("equipoise adapt --j")
    assert "--install-completion" in run("--help")


# -------------------------------------------------------------------- stdin and JSON


@pytest.mark.parametrize(
    ("content", "counts"),
    [
        ("cat\ncat\nowl\n", {"cat": 2, "owl": 1}),
        ("id,label\n1,cat\n2,owl\n", {"cat": 1, "owl": 1}),
        ("id\tlabel\n1\tcat\n", {"cat": 1}),
        ("label\ncat\ncat\nowl\n", {"cat": 2, "owl": 1}),
        ('{"cat": 5, "owl": 3}', {"cat": 5, "owl": 3}),
    ],
)
def test_inspect_reads_stdin(content: str, counts: dict[str, int]) -> None:
    found = json.loads(run("inspect", "-", "--json", stdin=content.encode()))
    assert dict(zip(found["class_names"], found["counts"], strict=True)) == counts
    assert found["source"] == "-"
    assert found["advice"][0]["code"] == "prior = eq.Prior.from_file('FILE')"


def test_what_is_wrong_with_stdin_is_said_of_stdin() -> None:
    message = run("inspect", "-", stdin=b"id,label\n1,cat\n2\n", code=2)
    assert "stdin, line 3 has 1 cells, the header 2" in message
    assert "/tmp" not in message


@pytest.mark.parametrize("command", ["--version", "inspect -", "inspect - --json", "detect eval", "detect eval --json"])
def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word(command: str, tmp_path: Path) -> None:
    words = command.split()
    if words[0] == "detect":
        pytest.importorskip("hotcoco")
        (tmp_path / "results.json").write_text("[]")
        words += [str(tmp_path / "results.json"), "--annotations", str(write_lvis(tmp_path, images=2))]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "equipoise", *words], input=b"[5, 3]", stdout=writing, stderr=subprocess.PIPE
        )
    finally:
        os.close(writing)
    assert (ended.stderr, ended.returncode) == (b"", 1)


def test_detections_are_evaluated_as_json(tmp_path: Path) -> None:
    pytest.importorskip("hotcoco")
    truth = write_lvis(tmp_path)
    boxes = json.loads(truth.read_text())["annotations"]
    results = [{key: box[key] for key in ("image_id", "category_id", "bbox")} | {"score": 0.9} for box in boxes]
    (tmp_path / "results.json").write_text(json.dumps(results))
    arguments = ("detect", "eval", tmp_path / "results.json", "--annotations", truth)
    plain = run(*arguments)
    found = json.loads(run(*arguments, "--json", "--caps", 300, "--fixed", "--pool"))
    assert set(found["bbox"]) == {"lvis", "at 300", "fixed", "pool", "calibration"}
    assert found["bbox"]["lvis"]["AP"] == pytest.approx(100)
    assert f"AP {found['bbox']['lvis']['AP']:.2f}" in plain


# -------------------------------------------------------------------- what does not exist, and what needs a checkout


def test_an_experiment_that_does_not_exist_is_answered_with_those_that_do() -> None:
    message = run("run", "nope", code=2)
    assert "no table is named 'nope': expected table1, causes, record, table2, voc2012-lt" in message
    assert "Did you mean" not in message
    assert "or the path of a .py file. Did you mean voc2012-lt?" in run("run", "voc2012", code=2)
    assert "Did you mean prior-shift?" in run("table", "priorshift", code=2)


def test_options_may_come_before_the_table_and_their_values_are_no_tables() -> None:
    words = ["run", "--data", "record", "--out", "x.py", "--results", "table2", "table1", "--seeds", "0", "9"]
    assert "--seeds [0, 9]: the plan has seeds 0, 1, 2" in run(*words, code=2)
    words = ["run", "--out=x.py", "table1", "--data", "record", "--seeds", "0", "9"]
    assert "--seeds [0, 9]: the plan has seeds 0, 1, 2" in run(*words, code=2)
    assert "run table1 [OPTIONS]" in run("run", "--only", "causes", "table1", "--nothing", code=2)


def test_a_table_outside_of_a_checkout_says_where_the_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = run("table", "prior-shift", code=2)
    assert "results holds no record of prior-shift: the records are in a checkout of the repository" in message
    shutil.copytree(ROOT / "results" / "prior-shift", tmp_path / "results" / "prior-shift")
    run("table", "prior-shift")
    message = run("table", "prior-shift", "--write", code=2)
    assert "--write renders the documents of a checkout of the repository" in message
    assert str(tmp_path) in message


def test_a_package_without_what_renders_documents_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "equipoise.experiments.documents.prior_shift", None)  # as in a wheel
    message = run("table", "prior-shift", "--results", ROOT / "results", "--write", code=2)
    assert "--write renders this project's own documents, which the installed package cannot do" in message
    assert "pip install -e '.[cli,report]'" in message


@pytest.mark.parametrize(("words", "code"), [(["table", "--help"], 0), (["table", "nothing"], 2)])
def test_under_torchrun_a_process_ends_without_shutting_python_down(words: list[str], code: int) -> None:
    """Threads of a process group that let go of a tensor meanwhile would abort it."""
    program = (
        f"import atexit, sys; atexit.register(print, 'shut down'); sys.argv[1:] = {words}\n"
        "from equipoise.__main__ import main; main()"
    )
    for several, number in ((False, ""), (False, "1"), (True, "2")):
        environment = {"WORLD_SIZE": number, "RANK": "0"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code
        assert ("shut down" in done.stdout) != several
        assert "Usage" in done.stdout + done.stderr
