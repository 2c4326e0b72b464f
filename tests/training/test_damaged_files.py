"""A damaged file, or a full disk, is one message that names the file, and never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.coco_files import write_lvis
from helpers.queues import Queue, classifiers, detectors
from helpers.run_records import record
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.training.records import append_record

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "text": lambda content: b"no tensors\n",
    "other": lambda content: b"\x80\x02]q\x00.",  # a pickled list
}


@pytest.fixture(params=["classifiers", "detectors"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    if request.param == "classifiers":
        return classifiers(tmp_path)
    pytest.importorskip("hotcoco")
    return detectors(tmp_path, monkeypatch)


def damage(path: Path, how: str) -> Path:
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    return path


# -------------------------------------------------------------------- what a queue left behind


def test_damaged_checkpoints_are_named_and_the_run_starts_over(queue: Queue) -> None:
    queue("two", budget=0)
    path = queue.file("two", "checkpoint.pt")
    whole = path.read_bytes()
    for how, change in DAMAGE.items():
        path.write_bytes(change(whole))
        _, said = queue("two", budget=0)
        about = [line for line in said if path.name in line]
        assert len(about) == 1, (how, said)
        assert about[0].endswith("starting from the beginning")
        assert not any("resumed at" in line for line in said)


@pytest.mark.parametrize("ending", ["weights.pt", "finished.json"])
def test_a_start_whose_files_are_damaged_is_trained_again(ending: str, queue: Queue) -> None:
    (first,), _ = queue("second")
    path = damage(queue.file("one", ending), "cut")
    queue.file("second", "finished.json").unlink(missing_ok=True)
    (again,), said = queue("second")
    assert sum(path.name in line and "cannot be read" in line for line in said) == 1
    assert any("training" in line and line.endswith("one/0") for line in said)
    assert again.weights == first.weights


def test_a_full_disk_while_files_are_written_is_named_and_what_was_judged_is_recorded(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(content: object, path: Path) -> None:
        save(content, path)
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        records, said = queue("one", "second")
    assert [record.method for record in records] == ["one"]
    path = queue.file("one", "weights.pt")
    assert any(f"{path} could not be written (" in line and "No space left" in line for line in said)
    assert any("second/0: skipped, as it starts from" in line for line in said)
    assert list(queue.checkpoints.iterdir()) == []


# -------------------------------------------------------------------- what a user passes


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def weights_file(folder: Path, name: str) -> Path:
    tensors = {"weight": torch.zeros(100)}
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors.torch").save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder / name


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["resnet.pth", "resnet.safetensors", "detector.weights.pt"])
def test_damaged_weights_are_named(name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hotcoco")
    path = damage(weights_file(tmp_path, name), how)
    annotations = write_lvis(tmp_path)
    picture = tmp_path / "pictures" / "0.png"
    words: tuple[Any, ...] = ("detect", "predict", picture, "--weights", path, "--annotations", annotations)
    if name.startswith("resnet"):
        own = ("--train", annotations, "--val", annotations, "--images", tmp_path)
        words = ("run", "voc2012-lt", *own, "--weights", path, "--out", tmp_path / "new.jsonl", "--seeds", 0)
    assert str(path) in refused(*words, "--device", "cpu")


LINES = {
    "binary": b"\x00\xff\n",
    "text": b"garbage\n",
    "list": b"[]\n",
    "number": b"1\n",
    "another object": b'{"table": 1}\n',
    "broken": record().to_json().encode()[:200] + b"}\n",
}


@pytest.mark.parametrize("how", LINES)
def test_a_damaged_file_of_records_is_named_with_its_line(how: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    append_record(path, record())
    whole = path.read_bytes()
    path.write_bytes(whole + LINES[how])
    for words in (
        ("records", "import", path, "--results", tmp_path / "results"),
        ("run", "table1", "--data", tmp_path, "--out", path, "--device", "cpu", "--results", tmp_path / "results"),
        ("run", "prior-shift", "--out", path, "--results", tmp_path / "results"),
    ):
        assert f"{path}, line 2" in refused(*words)
    assert not (tmp_path / "results").exists()


def test_a_folder_in_the_place_of_records_is_named(tmp_path: Path) -> None:
    assert str(tmp_path) in refused("records", "import", tmp_path, "--results", tmp_path / "results")
