"""What `equipoise train` tells while it works, and how it shares a machine."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.image_folders import NETWORK, write_splits
from rich.console import Console
from typer.testing import CliRunner

from equipoise import __main__ as program
from equipoise.cli import app, image_sources
from equipoise.cli.shared import counting_bar
from equipoise.training import images
from equipoise.training.images import ImageClassification
from equipoise.training.progress import Pace


def test_threads_wait_without_spinning_unless_the_user_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "granted_cores", lambda: float("inf"))
    settings: dict[str, str] = {}
    program.share_the_machine(settings)
    assert settings == {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
    for own in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7", "KMP_BLOCKTIME": "9"}):
        given = dict(own)
        program.share_the_machine(given)
        assert given == own


def test_torch_takes_no_more_threads_than_a_container_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "granted_cores", lambda: 1.5)
    monkeypatch.setattr(program, "usable_cores", lambda: 2)
    settings: dict[str, str] = {}
    program.share_the_machine(settings)
    assert settings["OMP_NUM_THREADS"] == "2"
    settings = {"OMP_NUM_THREADS": "5"}
    program.share_the_machine(settings)
    assert settings["OMP_NUM_THREADS"] == "5"


def test_the_settings_are_there_before_torch_is() -> None:
    code = (
        "import os, sys\nfrom equipoise import __main__ as program\nassert 'torch' not in sys.modules\n"
        "program.share_the_machine(os.environ)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_decoding_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sources, "usable_cores", lambda: 24)
    assert image_sources.usual_workers() == 24
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert image_sources.usual_workers() == 3
    monkeypatch.setattr(image_sources, "usable_cores", lambda: 4)
    assert image_sources.usual_workers() == 1


def test_images_are_counted_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sources, "SECONDS_BETWEEN_COUNTS", -1)
    photos = write_splits(tmp_path / "photos")
    words = ["train", str(photos), "--out", str(tmp_path / "run"), "--model", NETWORK, "--iterations", "1"]
    result = CliRunner().invoke(app, [*words, "--size", "32", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "decoding 45 training and 16 evaluation images" in result.output
    assert re.search(r"decoding training images: 32 of 45, \d+ s to go", result.output)


class Clock:
    """Time that passes only when it is told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def foretold(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], iterations: int, planned: int, together: int = 1
) -> list[str]:
    """What is logged of runs whose first iterations take these times."""
    clock, said = Clock(), list[str]()
    monkeypatch.setattr(images, "time", clock)
    kind: Any = ImageClassification.__new__(ImageClassification)
    kind.settings = SimpleNamespace(log=said.append)
    kind._foretold, kind._planned = False, planned
    run: Any = SimpleNamespace(iteration=0, iterations=iterations, batch_size=64)
    pace = Pace(0, clock.monotonic())
    for step in seconds:
        clock.now += step
        run.iteration += 1
        kind._foretell([run] * together, pace)
    return said


def test_the_time_is_told_once_and_the_first_step_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    said = foretold(monkeypatch, [60.0, 2.0, 2.0, 2.0, 9.0], iterations=904, planned=904)
    assert said == ["32 images per second: about 30 min to go for this run of 904 iterations"]
    several = foretold(monkeypatch, [60.0, 16.0, 16.0], iterations=103, planned=203)
    assert several == [
        "4.0 images per second: about 27 min to go for this run of 103 iterations, 53 min for all of them"
    ]


def test_runs_that_were_finished_before_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed after its last iteration is only evaluated: nothing of it is left to train."""
    kind: Any = ImageClassification.__new__(ImageClassification)
    kind._planned = 903 + 904
    monkeypatch.setattr(images, "train", lambda runs, after: None)
    kind.train([SimpleNamespace(iteration=903, iterations=903)], lambda: False, lambda: False)
    assert kind._planned == 904


def test_runs_that_share_the_device_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    said = foretold(monkeypatch, [60.0, 2.0, 2.0, 2.0], iterations=904, planned=4 * 904, together=2)
    words = "64 images per second: about 30 min to go for these 2 runs of 904 iterations"
    assert said == [f"{words}, 60 min for all of them"]
    assert foretold(monkeypatch, [60.0, 2.0, 2.0, 2.0], iterations=904, planned=2 * 904, together=2) == [words]


def test_nothing_is_told_of_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert foretold(monkeypatch, [60.0, 9.0, 9.0], iterations=50, planned=50) == []
    assert foretold(monkeypatch, [60.0, 1.0, 1.0], iterations=500, planned=500) == []  # not long enough to tell


def test_a_counting_bar_says_which_time_has_elapsed_and_which_is_left() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, no_color=True)
    with counting_bar(console) as bar:
        bar.update(bar.add_task("judging a.npz", total=10), completed=4)
    assert re.search(r"4/10 \d:\d\d:\d\d elapsed, (\d:\d\d:\d\d|-:--:--) to go", screen.getvalue())
