"""What the queue promises, for classifiers and for detectors alike."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cifar_files import write_cifar10
from helpers.queues import Queue, classifiers, detectors

from equipoise.training import queue as queue_module
from equipoise.training.kept import Kept, claims_held
from equipoise.training.kinds import Run
from equipoise.training.progress import Status


@pytest.fixture(params=["classifiers", "detectors"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    if request.param == "classifiers":
        return classifiers(tmp_path)
    pytest.importorskip("hotcoco")
    return detectors(tmp_path, monkeypatch)


class Killed(BaseException):
    """As if the process had been killed: nobody catches it."""


def press(*numbers: int, once: bool = True) -> Any:
    """A `report` that sends these signals after the first chunk of iterations."""
    seen: list[Status] = []

    def report(status: Status) -> None:
        if not seen or not once:
            seen.append(status)
            for number in numbers:
                signal.raise_signal(number)

    return report


# -------------------------------------------------------------------- Ctrl-C and SIGTERM


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that does nothing unless it is handled."""
    before = signal.signal(request.param, lambda *_: None)
    yield request.param
    signal.signal(request.param, before)


def test_ctrl_c_and_sigterm_save_what_was_trained(number: signal.Signals, queue: Queue) -> None:
    (whole,), _ = queue("two")
    for path in queue.checkpoints.iterdir():
        path.unlink()
    before = signal.getsignal(number)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        queue("two", report=press(number), log=said.append)
    assert signal.getsignal(number) is before
    stopped = f"interrupted at iteration {queue.chunk} of {queue.iterations}; saved, and resumed next time"
    assert any(line.endswith(f"two/0: {stopped}") for line in said)
    assert queue.file("two", "checkpoint.pt").is_file()
    (resumed,), said = queue("two")
    assert any(f"resumed at iteration {queue.chunk} of {queue.iterations}" in line for line in said)
    assert (resumed.weights, resumed.loss_curve) == (whole.weights, whole.loss_curve)


def test_ctrl_c_after_the_last_iteration_leaves_it_to_be_evaluated(queue: Queue) -> None:
    said: list[str] = []

    def report(status: Status) -> None:
        if status.done == status.iterations:
            press(signal.SIGINT)(status)

    with pytest.raises(KeyboardInterrupt):
        queue("two", report=report, log=said.append)
    stopped = "interrupted after its last iteration; saved, and evaluated next time"
    assert any(line.endswith(f"two/0: {stopped}") for line in said)
    (record,), _ = queue("two")
    assert record.iterations == queue.iterations


def test_ctrl_c_while_a_run_is_saved_lets_it_be_saved(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Kept.save

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return save(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Kept, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue("one")
    reported: list[Status] = []
    (record,), _ = queue("one", report=reported.append)
    assert record.iterations == queue.iterations
    assert [status for status in reported if status.what == "iterations"] == []


def test_ctrl_c_while_a_finished_run_is_saved_says_what_becomes_of_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, said = Kept.save, list[str]()

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return save(*given)

    monkeypatch.setattr(Kept, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue("one", log=said.append)
    stopped = "interrupted after its last iteration; saved, and evaluated next time"
    assert said[-1].endswith(f"one/0: {stopped}")


def test_a_second_ctrl_c_stops_at_once(queue: Queue) -> None:
    with pytest.raises(KeyboardInterrupt):
        queue("two", report=press(signal.SIGINT, signal.SIGINT))
    assert not list(queue.checkpoints.iterdir())


def test_an_ignored_ctrl_c_stays_ignored(queue: Queue) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        records, _ = queue("two", report=press(signal.SIGINT, once=False))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(records) == 1


@pytest.mark.parametrize("method", ["one", "two"])
def test_ctrl_c_while_a_run_is_judged_stops_at_once_and_it_is_judged_next_time(
    method: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    kind = type(queue.make(queue.settings(log=said.append)))
    judge, after = kind.judge, []

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        after.append("went on")
        return judge(*given)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "judge", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue(method, log=said.append)
    assert after == []
    assert said[-1].endswith(f"{method}/0: interrupted while it was evaluated; saved, and evaluated next time")
    reported: list[Status] = []
    (record,), said = queue(method, report=reported.append)
    stepped = [status.done for status in reported if status.what == "iterations"]
    assert any(f"resumed at iteration {queue.iterations} of {queue.iterations}" in line for line in said)
    assert (stepped, record.iterations) == ([], queue.iterations)


# -------------------------------------------------------------------- time


def test_only_the_first_run_is_begun_where_the_time_is_over_and_it_is_saved(queue: Queue) -> None:
    records, said = queue("one", "two", budget=0)
    assert records == []
    stopped = f"out of time at iteration {queue.chunk} of {queue.iterations}; saved, and resumed next time"
    assert any(line.endswith(f"one/0: {stopped}") for line in said)
    assert not any("training" in line and "two" in line for line in said)
    for _ in range(2):
        queue("one", budget=0)
    records, said = queue("one", "two", budget=1e-3)  # the first is trained by now: only judged, and always
    assert [record.method for record in records] == ["one"]
    assert "0 s are left, not enough for" in said[-1]


def test_a_later_run_is_begun_if_its_estimate_fits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module.Timing, "estimate", lambda *_: 1000.0)
    records, said = queue("one", "two", budget=999)
    assert [record.method for record in records] == ["one"]
    assert "not enough for" in said[-1]
    assert said[-1].endswith("two/0: stopping with 1 run to go")
    records, _ = queue("two", "one", budget=9999, recorded=lambda: [str(queue.cell("one"))])
    assert [record.method for record in records] == ["two"]


def test_a_killed_process_loses_no_more_than_since_the_last_save(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,), _ = queue("two")
    for path in queue.checkpoints.iterdir():
        path.unlink()

    def kill(status: Status) -> None:
        if status.done > queue.chunk:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(queue_module, "SAVE_EVERY", 0)
        with pytest.raises(Killed):
            queue("two", report=kill)
    (resumed,), said = queue("two")
    assert any(f"resumed at iteration {queue.chunk} of" in line for line in said)
    assert resumed.weights == whole.weights
    with pytest.raises(Killed):
        queue("one", report=kill)  # within two minutes of its start
    assert not queue.file("one", "checkpoint.pt").exists()


# -------------------------------------------------------------------- divergence


class Given(Run):
    """A run that has lost what it is given, of which the last places are still to come."""

    whole = True

    def __init__(self, losses: list[float], to_come: int = 0) -> None:
        self.losses = torch.tensor([*losses, *[0.0] * to_come])
        self.iteration, self.iterations = len(losses), len(losses) + to_come

    def state_dict(self) -> dict[str, Any]:
        return {"model": {}}

    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("losses", "risen"),
    [
        ([2.0] * 10 + [5.5] * 6 + [1.0] * 4, (2.0, 5.5)),
        ([2.0] * 10 + [4.5] * 10, None),  # not far above
        ([2.0] * 16 + [100.0] * 4, None),  # a few bad batches
        ([0.01] + [0.5] * 19, None),  # a second stage that starts from a good model
        ([2.0] + [100.0] * 8, None),  # too early to tell
    ],
)
def test_a_loss_far_above_its_start_is_noticed(losses: list[float], risen: tuple[float, float] | None) -> None:
    assert Given(losses).risen == risen
    assert Given(losses, to_come=99).risen == risen


@pytest.mark.parametrize(("every", "seen_at"), [(0.0, 20), (9999.0, 43)])
def test_divergence_is_logged_once_per_run_and_early(
    every: float, seen_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "LOOK_EVERY", every)
    monkeypatch.setattr(Run, "risen", property(lambda run: (2.0, 9.0) if run.iteration else None))
    _, said = classifiers(tmp_path)("one", "two")
    assert [line for line in said if line.startswith("WARNING")] == [
        f"WARNING: cifar10-lt/20/{method}/0: the loss rose from 2 to 9 by iteration {seen_at} of 43: "
        "training diverges; try a lower learning rate"
        for method in ("one", "two")
    ]


def test_weights_that_are_not_finite_at_the_end_give_no_record(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(queue.make(queue.settings(log=lambda line: None)))
    train = kind.train

    def broken(self: Any, runs: Any, *given: Any) -> None:
        train(self, runs, *given)
        with torch.no_grad():
            next(iter(runs[0].model.parameters())).fill_(torch.nan)

    monkeypatch.setattr(kind, "train", broken)
    records, said = queue("one")
    assert records == []
    assert any(
        line.endswith("one/0: its loss or a weight became infinite or NaN; no record is written") for line in said
    )
    assert not list(queue.checkpoints.iterdir())


# -------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(("key", "value"), [("torch", "1.0"), ("threads", 99), ("precision", "fp8")])
def test_a_checkpoint_that_was_made_from_something_else_is_named_and_not_taken_up(
    key: str, value: object, queue: Queue
) -> None:
    queue("two", budget=0)
    path = queue.file("two", "checkpoint.pt")
    content = torch.load(path, weights_only=True)
    assert key in content["made_from"]
    torch.save(content | {"made_from": content["made_from"] | {key: value}}, path)
    _, said = queue("two", budget=0)
    assert any(f"{path.name} belongs to another run ({key} {value}, now " in line for line in said)
    assert not any("resumed at" in line for line in said)


def test_a_second_stage_starts_from_kept_weights_whatever_engine_made_them(queue: Queue) -> None:
    (record,), _ = queue("second")
    note = queue.file("one", "finished.json")
    content = json.loads(note.read_text())
    note.write_text(json.dumps(content | {"made_from": content["made_from"] | {"precision": "fp8"}}))
    queue.file("second", "finished.json").unlink(missing_ok=True)
    (again,), said = queue("second")
    assert not any("one/0" in line for line in said)
    assert again.weights == record.weights
    _, said = queue("one", budget=0)  # but what is recorded was made by the engine that the record names
    assert any("belongs to another run (precision fp8, now fp32)" in line for line in said)


# -------------------------------------------------------------------- claims


def test_a_run_that_another_process_trains_is_left_to_it(queue: Queue) -> None:
    settings = queue.settings(log=lambda line: None)
    with Kept(queue.make(settings), settings).claimed(queue.cell("one")) as claimed:
        assert claimed
        assert claims_held(queue.folder / "claims") == 1
        records, said = queue("one", "two", "second")
    assert [record.method for record in records] == ["two"]
    assert said[-1].endswith("or what it needs: 2 runs to go")
    assert claims_held(queue.folder / "claims") == 0
    records, _ = queue("second")
    assert [record.method for record in records] == ["second"]
    assert not (queue.folder / "claims").exists()


def test_a_run_whose_files_another_command_writes_is_left_to_it_wherever_its_records_are(queue: Queue) -> None:
    theirs = replace(queue.settings(log=lambda line: None), claims=queue.folder / "their claims")
    with Kept(queue.make(theirs), theirs).claimed(queue.cell("one")) as claimed:
        assert claimed
        records, said = queue("one", "second")
    assert (records, said[-1].endswith("or what it needs: 2 runs to go")) == ([], True)
    assert not list(queue.checkpoints.iterdir())
    records, _ = queue("second")
    assert [record.method for record in records] == ["second"]


def test_no_record_is_claimed_for_a_run_whose_files_another_command_writes(tmp_path: Path) -> None:
    queue = classifiers(tmp_path)
    theirs = replace(queue.settings(log=lambda line: None), claims=tmp_path / "their claims")
    third = replace(queue.settings(log=lambda line: None), checkpoints=tmp_path / "others")
    seen = []

    def report(status: Status) -> None:
        with Kept(queue.make(third), third).claimed(queue.cell("one")) as free:
            seen.append((free, claims_held(tmp_path / "claims")))  # its own, and that of "two"

    with Kept(queue.make(theirs), theirs).claimed(queue.cell("one")):
        records, _ = queue("one", "two", report=report)
    assert [record.method for record in records] == ["two"]
    assert set(seen) == {(True, 2)}


def test_a_run_is_claimed_under_all_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hotcoco")
    queue = detectors(tmp_path, monkeypatch)
    mine = queue.settings(log=lambda line: None)
    theirs = replace(mine, claims=tmp_path / "their claims")
    kind, other = queue.make(mine), queue.make(theirs)
    other.table = "choices/own"
    with Kept(kind, mine).claimed(queue.cell("one")) as first, Kept(other, theirs).claimed(queue.cell("one")) as second:
        assert (first, second) == (True, False)


def test_checkpoints_may_be_where_no_file_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    queue, lock = classifiers(tmp_path), fcntl.flock

    def refusing(file: Any, how: int) -> None:
        if Path(file.name).parent == queue.checkpoints:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", refusing)
    records, said = queue("one", "two")
    assert [record.method for record in records] == ["one", "two"]
    assert sum("cannot lock files" in line and "one command at a time" in line for line in said) == 1


def test_a_recorded_run_whose_weights_are_elsewhere_is_trained_again_for_what_needs_it(queue: Queue) -> None:
    records, said = queue("one", "second", recorded=lambda: [str(queue.cell("one"))])
    assert [record.method for record in records] == ["second"]
    assert any("training" in line and "one/0" in line for line in said)


def test_a_run_that_another_process_has_recorded_meanwhile_is_not_trained_again(queue: Queue) -> None:
    records, said = queue("one", "two", recorded=lambda: [str(queue.cell("one"))])
    assert [record.method for record in records] == ["two"]
    assert not any("training" in line and "one/0" in line for line in said)


def test_what_needs_a_run_that_another_process_has_finished_meanwhile_is_trained(queue: Queue) -> None:
    queue("one")
    records, said = queue("one", "second", recorded=lambda: [str(queue.cell("one"))])
    assert [record.method for record in records] == ["second"]
    assert not any("other processes" in line for line in said)


def hold(folder: str, name: str, held: Any) -> None:
    """In another process: hold the lock of a claim file until killed."""
    from equipoise.training.records import locked

    with open(Path(folder) / name, "ab") as file:
        held.put(locked(file, wait=False))
        signal.pause()


def test_the_claim_of_a_dead_process_is_free(tmp_path: Path) -> None:
    queue = classifiers(tmp_path)
    path = tmp_path / "claims" / "table1-cifar10-lt-20-two-0.claim"
    path.parent.mkdir()
    context = multiprocessing.get_context("spawn")
    held = context.Queue()
    process = context.Process(target=hold, args=(str(path.parent), path.name, held))
    process.start()
    assert held.get(timeout=60)
    records, said = queue("two")
    assert records == []
    assert "other processes are training" in said[-1]
    process.kill()
    process.join()
    records, _ = queue("two")
    assert len(records) == 1


def test_two_commands_on_one_file_train_every_run_once_wherever_their_checkpoints_are(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data")
    (tmp_path / "own.py").write_text(
        "from dataclasses import replace\n"
        "from equipoise.training.recipe import Cell, Recipe\n"
        "NAME = 'own'[::-1]\n"
        "BASE = Recipe(blocks=1, batch_size=4, iterations=200, warmup=1)\n"
        "def plan():\n    return [Cell('cifar10-lt', 20, 'softmax', seed) for seed in range(4)]\n"
        "def recipe_of(cell):\n    return BASE\n"
    )
    command = [sys.executable, "-m", "equipoise", "run", "own.py", "--data", "data", "--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, "--checkpoints", folder],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for folder in ("here", "there")
    ]
    said = [process.communicate(timeout=300)[0].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["seed"] for line in lines) == {0: 1, 1: 1, 2: 1, 3: 1}, said
    assert not (tmp_path / "records.jsonl.claims").exists()
