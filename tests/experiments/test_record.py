"""The record on a CPU: teachers, then the student; what is recorded, reused, refused, exported and shown."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from helpers.cifar_files import write_cifar10
from helpers.run_records import read_jsonl, record
from typer.testing import CliRunner

from equipoise.cli import app, queues
from equipoise.cli import record as record_command
from equipoise.cli.classifiers import check_widths, needed_by
from equipoise.experiments.documents import record as documents
from equipoise.experiments.record import exported as exported_module
from equipoise.experiments.record import published, recipe, report
from equipoise.metrics.intervals import change_interval
from equipoise.prior import Prior
from equipoise.training import classification, classification_runs, distillation
from equipoise.training.classification import Training, train
from equipoise.training.classification_runs import Kernels
from equipoise.training.progress import Status
from equipoise.training.recipe import Cell, Method
from equipoise.training.records import EARLIER, Record, import_records, read_records
from equipoise.training.run_folder import load_run
from equipoise.training.sets import CifarSet

ROOT = Path(__file__).parents[2]
CELL = ("cifar10-lt", 10)
TINY = {"blocks": 1, "batch_size": 4, "iterations": 3, "warmup": 1}
NAMES = [f"cifar10-lt/10/teacher/{seed}" for seed in (1000, 1001)]
LONGER = ("cifar10-lt", 20)  # a tail that leaves images to judge on: teachers serve tries and the test alike


class Command:
    """`equipoise run record` for one cell, with small networks and two teachers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, out: str = "r.jsonl", ok: bool = True) -> str:
        files = ["--out", str(self.folder / out), "--results", str(self.folder / "results")]
        data = ["--data", str(self.folder / "data"), "--device", "cpu"]
        with warnings.catch_warnings(action="ignore"):
            done = CliRunner().invoke(app, ["run", "record", *data, *files, *words])
        assert (done.exit_code == 0) == ok, done.output
        return " ".join(done.output.replace("│", " ").split())

    def records(self, out: str = "r.jsonl") -> dict[str, Record]:
        return {one.key: one for one in read_jsonl(self.folder / out)}

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints" / "record"


def version_with(folder: str = ".", **changed: Any) -> published.Version:
    return published.Version(dict.fromkeys(published.DATA_SETS, changed), folder)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    write_cifar10(tmp_path / "data")
    teacher = Method("teacher", replace(recipe.AVERAGED, **TINY))  # type: ignore[arg-type]
    taught = {"teacher": "teacher", "teachers": 2}
    student = replace(recipe.SECOND, **TINY, **taught, views=2)  # type: ignore[arg-type]
    monkeypatch.setattr(recipe, "SECOND", student)
    monkeypatch.setattr(published, "RECORD", version_with(**taught))
    monkeypatch.setattr(recipe, "plan", lambda: [Cell(*CELL, "distilled", seed) for seed in (0, 1)])
    wide = Method("teacher_wide", replace(teacher.recipe, width=2, ema=0.5))
    monkeypatch.setattr(recipe, "KINDS_OF_TEACHERS", (teacher, wide))
    tried = {"distilled_wide": {"teacher": "teacher_wide", "teachers": 1}, "distilled_three": {"teachers": 3}}
    choices = [Method(name, replace(student, **change)) for name, change in tried.items()]  # type: ignore[arg-type]
    monkeypatch.setattr(recipe, "CHOICES", tuple(choices))
    monkeypatch.setattr(recipe, "choices_plan", lambda: [Cell(*LONGER, name, 0) for name in tried])
    return Command(tmp_path)


# -------------------------------------------------------------------- what is trained and recorded


def test_teachers_are_recorded_apart_and_named_by_their_student(command: Command) -> None:
    said = command("--seeds", "0", "--together", "2")
    assert "training 2 together: cifar10-lt/10/teacher/1000, cifar10-lt/10/teacher/1001" in said
    records = command.records()
    assert list(records) == [*(f"record-teachers/{name}" for name in NAMES), "record/cifar10-lt/10/distilled/0"]
    *teachers, student = records.values()
    assert student.teachers == {name: one.weights for name, one in zip(NAMES, teachers, strict=True)}
    assert student.teachers_top1 is not None
    assert student.teachers_divergence is not None
    assert all((one.teachers, one.teachers_top1, one.teachers_divergence) == (None, None, None) for one in teachers)
    assert len({one.weights for one in records.values()}) == 3
    written = import_records(command.folder / "r.jsonl", command.folder / "results").written
    assert [path.relative_to(command.folder / "results").as_posix() for path in written] == [
        f"{key}.json" for key in records
    ]
    assert [one.key for one in report.read(command.folder / "results").records] == ["record/cifar10-lt/10/distilled/0"]
    assert "nothing left to train" in command("--seeds", "0")


def test_the_ensembles_accuracy_is_that_of_the_mean_probabilities(command: Command) -> None:
    from equipoise.data.cifar import load_cifar
    from equipoise.training.augmentation.cifar import normalise
    from equipoise.training.classification import build_model

    command("--seeds", "0")
    with warnings.catch_warnings(action="ignore"):
        cifar = load_cifar(command.folder / "data", "cifar10")
    images, answers = normalise(torch.from_numpy(cifar.test_images)), []
    for name in NAMES:
        model = build_model(recipe.recipe_of(Cell(*CELL, "teacher", 1000)), 10, 0)
        file = command.checkpoints / f"{name.replace('/', '-')}.weights.pt"
        model.load_state_dict(torch.load(file, weights_only=True))
        with torch.no_grad():
            answers.append(model.eval()(images).softmax(1))
    correct = (answers[0] + answers[1]).argmax(1).numpy() == cifar.test_labels
    *_, student = command.records().values()
    assert student.teachers_top1 == pytest.approx(100 * correct.mean(), abs=1e-3)  # rounded to four digits


def test_teachers_can_be_trained_alone(command: Command) -> None:
    said = command("--only", "cifar10-lt/10/teacher/1000", "--only", "cifar10-lt/10/teacher/2001")
    names = ["cifar10-lt/10/teacher/1000", "cifar10-lt/10/teacher/2001"]
    assert said.startswith("2 runs to train")
    assert list(command.records()) == [f"record-teachers/{name}" for name in names]
    assert "nothing left to train" in command("--only", names[0])
    import_records(command.folder / "r.jsonl", command.folder / "results")
    assert "1 has a record under" in command("--only", names[0], out="other.jsonl")
    command("--seeds", "0")
    assert list(command.records())[2:] == [f"record-teachers/{NAMES[1]}", "record/cifar10-lt/10/distilled/0"]


def test_named_teachers_are_trained_also_beside_a_student_that_is_recorded(command: Command) -> None:
    command("--seeds", "0")
    named = ("--only", "cifar10-lt/10/distilled/0", "--only", "cifar10-lt/10/teacher/2000")
    assert "1 run to train" in command(*named)
    assert list(command.records())[3:] == ["record-teachers/cifar10-lt/10/teacher/2000"]
    assert "nothing left to train" in command(*named)


def test_teachers_of_data_that_is_not_there_are_left_out_with_their_student(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [Cell(*CELL, "distilled", 0), Cell("cifar100-lt", 10, "distilled", 0)]
    monkeypatch.setattr(recipe, "plan", lambda: cells)
    assert "cifar-100-python: skipping 1 run" in command()
    assert list(command.records()) == [*(f"record-teachers/{name}" for name in NAMES), f"record/{cells[0]}"]


def test_no_teacher_of_a_recorded_student_is_trained(command: Command) -> None:
    command("--seeds", "0")
    lines = (command.folder / "r.jsonl").read_text().splitlines(keepends=True)
    (command.folder / "student.jsonl").write_text(lines[-1])
    import_records(command.folder / "student.jsonl", command.folder / "results")
    command(out="other.jsonl")
    names = [f"record-teachers/cifar10-lt/10/teacher/{seed}" for seed in (2000, 2001)]
    assert list(command.records("other.jsonl")) == [*names, "record/cifar10-lt/10/distilled/1"]


def test_two_seeds_share_no_teacher(command: Command) -> None:
    command("--together", "4")
    students = [one for one in command.records().values() if one.table == "record"]
    named = [set(one.teachers or {}) for one in students]
    assert [len(names) for names in named] == [2, 2]
    assert not named[0] & named[1]
    weights = [digest for one in students for digest in (one.teachers or {}).values()]
    assert len(set(weights)) == 4


def test_as_many_students_as_are_trained_together_follow_their_teachers(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "plan", lambda: [Cell(*CELL, "distilled", seed) for seed in (0, 1, 2)])
    alone = "cifar10-lt/10/teacher/1000"
    command("--only", alone, out="first.jsonl")
    (command.folder / "checkpoints").rename(command.folder / "elsewhere")
    import_records(command.folder / "first.jsonl", command.folder / "results")
    said = command("--together", "2")
    order = [f"{one.method[0]}{one.seed}" for one in command.records().values()]
    assert order == ["t1001", "t2000", "t2001", "d0", "d1", "t3000", "t3001", "d2"]
    assert f"and 1 run whose weights are needed and missing: {alone} " in said
    trained = [part.split(" ")[0] for part in said.split("training 2 together: ")[1:]]
    assert trained[0] == f"{alone},"  # which is trained again with the others


def test_students_that_are_shown_the_same_share_one_pool_and_are_not_changed_by_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    change: dict[str, dict[str, Any]] = {"slow": {}, "fast": {"lr": 0.5}, "warm": {"temperature": 3.0}}
    choices = tuple(Method(name, replace(recipe.student_on(CELL[0]), **one)) for name, one in change.items())
    monkeypatch.setattr(recipe, "CHOICES", choices)
    monkeypatch.setattr(
        recipe, "choices_plan", lambda: [Cell(*LONGER, name, seed) for name in change for seed in (0, 1)]
    )
    made: list[int] = []

    def counted(data: Any, order: Any, one: Any, seed: int, *more: Any) -> Any:
        made.append(seed)
        return distillation.make_pool(data, order, one, seed, *more)

    monkeypatch.setattr(classification, "make_pool", counted)
    command("--validate", "--together", "6")
    assert sorted(made) == [0, 0, 1, 1]
    command("--validate", "--together", "1", out="alone.jsonl")
    assert sorted(made[4:]) == [0, 0, 0, 1, 1, 1]  # nothing is kept for runs that come later
    together, alone = command.records(), command.records("alone.jsonl")
    assert {key: one.weights for key, one in together.items()} == {key: one.weights for key, one in alone.items()}
    assert len({one.weights for one in together.values()}) == 6


def test_a_rerun_gives_the_same_weights(command: Command) -> None:
    command("--seeds", "0")
    shutil.rmtree(command.folder / "checkpoints")
    command("--seeds", "0", out="again.jsonl")
    first, again = command.records(), command.records("again.jsonl")
    assert {key: one.weights for key, one in first.items()} == {key: one.weights for key, one in again.items()}


def test_finished_teachers_are_taken_up_and_not_trained_again(command: Command) -> None:
    command("--seeds", "0")
    lines = (command.folder / "r.jsonl").read_text().splitlines()
    (command.folder / "r.jsonl").write_text("\n".join(lines[:2]) + "\n")  # the student's record is lost
    said = command("--seeds", "0")
    assert "teacher/1000" not in said.partition("training")[2]
    assert (command.folder / "r.jsonl").read_text().splitlines()[:2] == lines[:2]
    assert command.records()["record/cifar10-lt/10/distilled/0"].weights == json.loads(lines[2])["weights"]


def test_a_teacher_with_a_record_and_no_weights_is_trained_again_without_a_second_record(command: Command) -> None:
    command("--seeds", "0")
    lines = (command.folder / "r.jsonl").read_text().splitlines()
    (command.folder / "r.jsonl").write_text("\n".join(lines[:2]) + "\n")
    shutil.rmtree(command.folder / "checkpoints")
    assert "training: cifar10-lt/10/teacher/1000" in command("--seeds", "0")
    assert len((command.folder / "r.jsonl").read_text().splitlines()) == 3
    assert command.records()["record/cifar10-lt/10/distilled/0"].weights == json.loads(lines[2])["weights"]


def test_a_smoke_test_is_marked_as_one(command: Command) -> None:
    command("--seeds", "0", "--iterations", "2")
    assert {(one.complete, one.iterations) for one in command.records().values()} == {(False, 2)}


def test_choices_are_judged_on_training_images_that_were_not_trained_on(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Cell(*CELL, "distilled", 0)
    monkeypatch.setattr(recipe, "choices_plan", lambda: [tried])
    command("--seeds", "0")
    whole = command.records()["record/cifar10-lt/10/distilled/0"]
    command("--validate", out="tries.jsonl")
    *teachers, one = command.records("tries.jsonl").values()
    assert [teacher.key for teacher in teachers] == [f"choices/record-teachers/{name}" for name in NAMES]
    assert {each.evaluated_on for each in (*teachers, one)} == {"held_out"}
    assert one.key == "choices/record/cifar10-lt/10/distilled/0"
    assert [count + held for count, held in zip(one.counts, one.total, strict=True)] == whole.counts
    assert sum(one.total) > 0
    assert set((one.teachers or {}).values()).isdisjoint((whole.teachers or {}).values())  # theirs saw those images
    assert one.draw != whole.draw


def test_tried_teachers_are_trained_with_their_student_and_recorded_apart(command: Command) -> None:
    said = command("--validate", "--only", "cifar10-lt/20/distilled_wide")
    assert "training: cifar10-lt/20/teacher_wide/1000" in said
    teacher, student = command.records().values()
    assert teacher.key == "choices/record-teachers/cifar10-lt/20/teacher_wide/1000"
    assert student.key == "choices/record/cifar10-lt/20/distilled_wide/0"
    assert student.teachers == {"cifar10-lt/20/teacher_wide/1000": teacher.weights}
    assert {one.evaluated_on for one in (teacher, student)} == {"held_out"}
    assert [one.recipe["width"] for one in (teacher, student)] == [2, 1]
    written = import_records(command.folder / "r.jsonl", command.folder / "results").written
    assert [path.relative_to(command.folder / "results").parts[1] for path in written] == ["record-teachers", "record"]
    assert "nothing left to train" in command("--validate", "--only", "cifar10-lt/20/distilled_wide", out="again.jsonl")
    assert "nothing left to train" in command("--validate", "--only", "cifar10-lt/20/teacher_wide", out="again.jsonl")


def test_a_tried_teacher_that_is_chosen_is_judged_on_the_test_set_and_not_trained_again(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("--validate", "--only", "cifar10-lt/20/teacher_wide")
    (tried,) = command.records().values()
    monkeypatch.setattr(published, "RECORD", version_with(teacher="teacher_wide", teachers=1))
    monkeypatch.setattr(recipe, "plan", lambda: [Cell(*LONGER, "distilled", 0)])
    said = command()
    assert "cifar10-lt/20/teacher_wide/1000: resumed at iteration 3 of 3" in said
    _, teacher, student = command.records().values()
    assert teacher.key == "record-teachers/cifar10-lt/20/teacher_wide/1000"
    assert (teacher.weights, teacher.evaluated_on, tried.evaluated_on) == (tried.weights, "test", "held_out")
    assert student.teachers == {"cifar10-lt/20/teacher_wide/1000": tried.weights}


@pytest.fixture
def with_next(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with a next recipe of one teacher."""
    monkeypatch.setattr(published, "NEXT", version_with("next", teacher="teacher", teachers=1))
    return command


def test_the_next_recipe_has_records_of_its_own(with_next: Command) -> None:
    results, seed = with_next.folder / "results", ("--seeds", "0")
    of_next = ("--next", *seed, "--results", str(results / "next"))
    with_next(*seed)
    import_records(with_next.folder / "r.jsonl", results)
    other = "there is a record of record/cifar10-lt/10/distilled/0 that is of another recipe (teachers 2, not 1)"
    assert f"{other}: pass --out with another file" in with_next(*of_next, ok=False)
    said = with_next(*of_next, out="next.jsonl")
    folder = str(with_next.folder)
    kept = f"equipoise records import {folder}/next.jsonl --results {folder}/results/next"
    assert said.replace(" ", "").endswith(f"to keep them: {kept}".replace(" ", ""))
    teacher, student = with_next.records("next.jsonl").values()
    assert student.teachers == {NAMES[0]: teacher.weights}
    import_records(with_next.folder / "next.jsonl", results / "next")
    assert "nothing left to train" in with_next(*of_next, out="other.jsonl")
    assert "nothing left to train" in with_next(*seed, out="other.jsonl")
    shown = report.read(results)
    assert [len(one.teachers or {}) for one in (*shown.records, *shown.of_next)] == [2, 1]
    mistaken = with_next("--seeds", "1", "--results", str(results / "next"), out="other.jsonl", ok=False)
    assert "is of another recipe (teachers 1, not 2): pass --results with another folder" in mistaken
    assert "leave --next out" in with_next("--next", "--validate", ok=False)


def test_the_next_recipe_has_files_of_its_own_by_default(
    with_next: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "record", "--data", str(with_next.folder / "data"), "--device", "cpu", "--seeds", "0"]
    with warnings.catch_warnings(action="ignore"):
        for more in ([], ["--next"]):
            done = CliRunner().invoke(app, [*words, *more])
            assert done.exit_code == 0, done.output
    assert [len(read_jsonl(tmp_path / name)) for name in ("records.jsonl", "next.jsonl")] == [3, 2]
    assert "equipoise records import next.jsonl --results results/next" in " ".join(done.output.split())


def test_smoke_tests_are_of_no_recipe(with_next: Command) -> None:
    with_next("--seeds", "0", "--iterations", "2")
    with_next("--next", "--seeds", "0")
    assert {one.key: one.complete for one in with_next.records().values()} == {
        f"record-teachers/{NAMES[0]}": True,
        f"record-teachers/{NAMES[1]}": False,
        "record/cifar10-lt/10/distilled/0": True,
    }
    assert "3 runs of 1 iteration" in with_next("--seeds", "0", "--iterations", "1")


def test_students_of_another_recipe_that_another_command_appends_are_refused(
    with_next: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_next("--next", "--seeds", "0", out="next.jsonl")
    student = (with_next.folder / "next.jsonl").read_text().splitlines(keepends=True)[-1]
    usual = record_command.train_cells

    def train_beside_another(*words: Any, **options: Any) -> None:
        (with_next.folder / "r.jsonl").write_text(student)  # after the check at the start
        usual(*words, **options)

    monkeypatch.setattr(record_command, "train_cells", train_beside_another)
    assert "is of another recipe (teachers 1, not 2): pass --out" in with_next("--seeds", "0", ok=False)


def test_students_of_two_recipes_share_teachers_and_no_other_files(
    with_next: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(recipe, "SECOND", replace(recipe.SECOND, iterations=25))
    exported, seed = with_next.folder / "exported", ("--seeds", "0")
    with_next("--only", "cifar10-lt/10/teacher", "--seeds", "1000", "1001", out="teachers.jsonl")
    import_records(with_next.folder / "teachers.jsonl", with_next.folder / "results")
    assert "out of time at iteration 20 of 25" in with_next(*seed, "--budget", "0")
    said = with_next("--next", *seed, "--export", str(exported), out="next.jsonl")
    assert "1 run to train" in said
    assert "teacher/1000" not in said
    assert "another run" not in said
    assert "distilled/0: resumed at iteration 20 of 25" in with_next(*seed, "--export", str(exported))
    found = [path.parent.relative_to(exported).as_posix() for path in exported.rglob("model.safetensors")]
    assert sorted(found) == ["cifar10-lt/10/distilled/0", "next/cifar10-lt/10/distilled/0"]


def test_teachers_of_the_final_kind_may_have_other_weights_in_a_try(command: Command) -> None:
    command("--seeds", "0", out="whole.jsonl")
    teacher, *_ = command.records("whole.jsonl").values()
    by_other_kernels = replace(teacher, imbalance=LONGER[1], weights="0" * 16)
    path = by_other_kernels.path_under(command.folder / "results")
    path.parent.mkdir(parents=True)
    path.write_text(by_other_kernels.to_json(indent=1))
    command("--validate", "--only", "cifar10-lt/20/distilled_three")
    (student,) = command.records().values()
    assert by_other_kernels.key == "record-teachers/cifar10-lt/20/teacher/1000"
    assert (student.teachers or {})["cifar10-lt/20/teacher/1000"] != by_other_kernels.weights


def test_more_teachers_begin_with_those_that_are_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "plan", lambda: [Cell(*LONGER, "distilled", 0)])
    command(out="whole.jsonl")
    first = list(command.records("whole.jsonl").values())[-1]
    for note in command.checkpoints.glob("*.finished.json"):  # as files have it from before a network had a width
        content = json.loads(note.read_text())
        assert content["made_from"].pop("width") == 1
        note.write_text(json.dumps(content))
    said = command("--validate", "--only", "cifar10-lt/20/distilled_three")
    assert "training: cifar10-lt/20/teacher/1002" in said
    assert "teacher/1000" not in said
    (student,) = command.records().values()  # teachers of the final recipe are judged on the test set alone
    assert dict(list((student.teachers or {}).items())[:2]) == first.teachers
    assert len(student.teachers or {}) == 3


def test_fused_kernels_are_refused_for_a_network_that_is_too_wide(command: Command) -> None:
    pytest.importorskip("triton")
    cells = [Cell(*CELL, method, 0) for method in ("distilled", "teacher_wide")]
    for kernels in (Kernels(fused=True), Kernels()):
        check_widths(cells, recipe.recipe_of, kernels)
    with pytest.raises(typer.BadParameter, match="no kernels for cifar10-lt/10/distilled/0, of width 4"):
        check_widths(cells, lambda cell: replace(recipe.recipe_of(cell), width=4), Kernels(fused=True))


OWN = """
from dataclasses import replace
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.training.recipe import Cell, Recipe
NAME = "own"
BASE = Recipe(BalancedSoftmaxLoss, blocks=1, batch_size=4, iterations=2, warmup=0)
RECIPES = {"plain": replace(BASE, blocks=2), "student": replace(BASE, teacher="TEACHER", teachers=2, views=1)}
def plan():
    return [Cell("cifar10-lt", 10, "student", 0)]
def recipe_of(cell):
    return RECIPES[cell.method]
"""


def test_any_recipe_can_have_teachers_also_of_a_larger_network(command: Command) -> None:
    file = command.folder / "own.py"
    file.write_text(OWN.replace('"own"', '"mine"').replace("TEACHER", "plain"))
    words = ["run", str(file), "--data", str(command.folder / "data"), "--device", "cpu"]
    words += ["--out", str(command.folder / "r.jsonl"), "--results", str(command.folder / "results")]
    with warnings.catch_warnings(action="ignore"):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (one,) = command.records().values()
    assert one.key == "mine/cifar10-lt/10/student/0"
    assert list(one.teachers or {}) == ["cifar10-lt/10/plain/1000", "cifar10-lt/10/plain/1001"]
    file.write_text(OWN.replace('"own"', '"other"').replace("TEACHER", "nobody"))
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert "recipe_of does not know 'nobody'" in done.output
    file.write_text(OWN.replace('"own"', '"another"').replace("TEACHER", "student"))
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert "student needs student: a method cannot need itself" in done.output


def test_teachers_of_teachers_are_needed_too_and_may_not_need_their_student() -> None:
    recipes = {
        "first": replace(recipe.SECOND, teacher="second", teachers=1),
        "second": replace(recipe.SECOND, teacher="third", teachers=2),
        "third": recipe.AVERAGED,
    }
    found = needed_by([Cell(*CELL, "first", 0)], lambda cell: recipes[cell.method])
    assert [cell.method for cell in found] == ["second", "third", "third"]
    recipes["third"] = replace(recipe.SECOND, teacher="first", teachers=1)
    with pytest.raises(typer.BadParameter, match="first needs second needs third needs first"):
        needed_by([Cell(*CELL, "first", 0)], lambda cell: recipes[cell.method])


def test_a_teacher_can_have_teachers_of_its_own(command: Command) -> None:
    file = command.folder / "own.py"
    second = 'RECIPES["second"] = replace(RECIPES["student"], teacher="student", teachers=1)\n'
    code = OWN.replace('"own"', '"mine"').replace("TEACHER", "plain").replace("def plan", second + "def plan", 1)
    file.write_text(code.replace('10, "student", 0)', '10, "second", 0)'))
    words = ["run", str(file), "--data", str(command.folder / "data"), "--device", "cpu", "--together", "2"]
    with warnings.catch_warnings(action="ignore"):
        files = ["--out", str(command.folder / "r.jsonl"), "--results", str(command.folder / "results")]
        done = CliRunner().invoke(app, [*words, *files])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    first = [f"cifar10-lt/10/{name}" for name in ("student/1000", "plain/1001000", "plain/1001001")]
    assert f"and 3 runs whose weights are needed and missing: {', '.join(first)} training 2 together" in said
    (one,) = command.records().values()
    assert list(one.teachers or {}) == [first[0]]
    file.write_text(file.read_text().replace("replace(BASE, blocks=2)", "replace(BASE, blocks=2, lr=0.05)"))
    files[1] = str(command.folder / "again.jsonl")
    with warnings.catch_warnings(action="ignore"):
        done = CliRunner().invoke(app, [*words, *files])
    assert f"and 3 runs whose weights are needed and missing: {', '.join(first)} " in " ".join(done.output.split())
    (again,) = command.records("again.jsonl").values()
    assert again.teachers != one.teachers


# -------------------------------------------------------------------- teachers that are refused


def given_teachers(command: Command) -> Path:
    command("--seeds", "0")
    (command.folder / "r.jsonl").unlink()
    return command.checkpoints.rename(command.folder / "teachers")


def test_given_teachers_are_used_and_none_is_trained(command: Command) -> None:
    command("--seeds", "0", out="whole.jsonl")
    whole = list(command.records("whole.jsonl").values())[-1]
    teachers = given_teachers(command)
    said = command("--seeds", "0", "--teachers", str(teachers))
    assert "teacher/" not in said
    (student,) = command.records().values()
    assert (student.weights, student.teachers) == (whole.weights, whole.teachers)


def test_a_student_is_taken_up_to_the_bit_but_not_with_other_teachers(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "SECOND", replace(recipe.SECOND, iterations=25))
    teachers = given_teachers(command)
    given = ("--seeds", "0", "--teachers", str(teachers))
    command(*given, out="whole.jsonl")
    (whole,) = command.records("whole.jsonl").values()
    assert "out of time at iteration 20 of 25; saved" in command(*given, "--budget", "0")
    saved = next(command.checkpoints.glob("*.checkpoint.pt")).read_bytes()
    assert "resumed at iteration 20 of 25" in command(*given)
    (resumed,) = command.records().values()
    assert (resumed.weights, resumed.loss_curve) == (whole.weights, whole.loss_curve)

    (command.checkpoints / "cifar10-lt-10-distilled-0.checkpoint.pt").write_bytes(saved)
    path = teachers / "cifar10-lt-10-teacher-1001.weights.pt"
    weights = torch.load(path, weights_only=True)
    torch.save(weights | {"head.bias": weights["head.bias"] + 1}, path)
    said = command(*given, out="other.jsonl")
    assert "cifar10-lt-10-distilled-0.checkpoint.pt belongs to another run (taught_by" in said
    assert "resumed" not in said


def test_a_missing_teacher_is_refused_by_name(command: Command) -> None:
    teachers = given_teachers(command)
    (teachers / "cifar10-lt-10-teacher-1001.weights.pt").unlink()
    said = command("--seeds", "0", "--teachers", str(teachers), ok=False)
    assert "its teacher cifar10-lt/10/teacher/1001 is missing" in said
    assert not (command.folder / "r.jsonl").exists()


@pytest.mark.parametrize(("key", "value"), [("draw", "another"), ("pixels", "another"), ("seed", 7), ("width", 2)])
def test_a_teacher_of_other_data_is_refused_by_name(key: str, value: Any, command: Command) -> None:
    teachers = given_teachers(command)
    path = teachers / "cifar10-lt-10-teacher-1001.finished.json"
    note = json.loads(path.read_text())
    note["made_from"][key] = value
    path.write_text(json.dumps(note))
    said = command("--seeds", "0", "--teachers", str(teachers), ok=False)
    assert "is not its teacher cifar10-lt/10/teacher/1001" in said
    assert f"{key} {value}, now" in said


def test_a_teacher_with_other_classes_is_refused_by_name(command: Command) -> None:
    teachers = given_teachers(command)
    path = teachers / "cifar10-lt-10-teacher-1001.weights.pt"
    weights = torch.load(path, weights_only=True)
    weights["head.weight"], weights["head.bias"] = torch.zeros(100, 64), torch.zeros(100)
    torch.save(weights, path)
    said = command("--seeds", "0", "--teachers", str(teachers), ok=False)
    assert "the weights of its teacher cifar10-lt/10/teacher/1001 are for another network" in said
    assert "100" in said


def test_a_teacher_whose_logits_mean_other_frequencies_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = replace(recipe.AVERAGED, loss=torch.nn.CrossEntropyLoss, options={}, **TINY)  # type: ignore[arg-type]
    monkeypatch.setattr(recipe, "KINDS_OF_TEACHERS", (Method("teacher", plain),))
    said = command("--seeds", "0", ok=False)
    assert (
        "the logits of its teacher cifar10-lt/10/teacher/1000 mean other class frequencies (train) than its own" in said
    )


def test_a_student_of_a_teacher_whose_record_names_other_weights_is_left_out(command: Command) -> None:
    command("--seeds", "0")
    lines = (command.folder / "r.jsonl").read_text().splitlines()
    teachers, trained = [json.loads(line) for line in lines[:2]], json.loads(lines[1])["weights"]
    teachers[1]["weights"] = "0" * 16
    files = [command.folder / name for name in ("r.jsonl", "elsewhere.jsonl")]
    for file in files:
        file.write_text("".join(json.dumps(one) + "\n" for one in teachers))
    refused = f"its weights are {trained}, but its record names {'0' * 16}"
    left_out = f"cifar10-lt/10/distilled/0: skipped, as it is taught by {NAMES[1]}"
    said = command()  # appended
    assert f"{NAMES[1]}: {refused}" in said
    assert left_out in said
    assert "record/cifar10-lt/10/distilled/1" in command.records()
    assert "record/cifar10-lt/10/distilled/0" not in command.records()
    assert "skipped" not in command("--seeds", "0", "--iterations", "2")  # whose teachers differ anyway
    import_records(files[1], command.folder / "results")
    said = command("--seeds", "0", out="other.jsonl")  # committed
    assert left_out in said
    assert "0 runs recorded" in said
    given = ("--seeds", "0", "--teachers", str(command.checkpoints))
    assert f"teacher {NAMES[1]} is refused: {refused}" in command(*given, out="other.jsonl", ok=False)
    again = ("--seeds", "0", "--results", str(command.folder / "again"))
    assert "3 runs recorded" in command(*again, out="other.jsonl")


def test_a_student_of_a_teacher_that_came_out_with_other_weights_is_left_out(command: Command) -> None:
    command("--seeds", "0")
    teacher, *_ = command.records().values()
    path = teacher.path_under(command.folder / "results")
    path.parent.mkdir(parents=True)
    path.write_text(replace(teacher, weights="0" * 16).to_json(indent=1))
    shutil.rmtree(command.checkpoints)
    said = command(out="other.jsonl")  # trains it again
    assert f"distilled/0: skipped, as it is taught by {NAMES[0]}" in said
    assert "record/cifar10-lt/10/distilled/1" in command.records("other.jsonl")
    assert said.endswith("1 to go")


def test_teachers_of_a_student_that_is_left_out_are_not_trained(command: Command) -> None:
    command("--seeds", "0")
    lines = [json.loads(line) for line in (command.folder / "r.jsonl").read_text().splitlines()]
    lines[0]["weights"] = "0" * 16
    (command.folder / "r.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines[:2]))
    shutil.rmtree(command.checkpoints)
    said = command("--seeds", "0")
    assert f"training: {NAMES[0]}" in said
    assert f"skipped, as it is taught by {NAMES[0]}" in said
    assert f"training: {NAMES[1]}" not in said


UNFIT: dict[str, tuple[str, str]] = {
    "adjusted": ("adjusted=True", "is adjusted when it predicts"),
    "a frozen backbone": ('backbone="base"', "keeps the backbone of base"),
    "sigmoids": ("loss=eq.BalancedSigmoidLoss", "BalancedSigmoidLoss of cifar10-lt/10/plain/1000 reads the logits"),
    "a scale": ("loss=eq.LDAMLoss, head='normalized'", "mean other class frequencies (train)"),
    "plain": ("loss=torch.nn.CrossEntropyLoss", "mean other class frequencies (train)"),
    "photographs": (
        "augmentation='resized'",
        "plain/1000: augmentation is 'resized': on CIFAR, expected 'paper' or 'crop'",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_cannot_teach_is_refused_before_anything_is_trained(name: str, command: Command) -> None:
    change, refused = UNFIT[name]
    file = command.folder / "own.py"
    code = OWN.replace('"own"', '"mine"').replace("TEACHER", "plain").replace("replace(BASE, blocks=2)", "TAUGHT")
    more = f'import torch\nimport equipoise as eq\nTAUGHT = replace(BASE, {change})\nRECIPES = {{"base": BASE, '
    file.write_text(code.replace("RECIPES = {", more))
    words = ["run", str(file), "--data", str(command.folder / "data"), "--device", "cpu"]
    words += ["--out", str(command.folder / "r.jsonl"), "--results", str(command.folder / "results")]
    with warnings.catch_warnings(action="ignore"):
        done = CliRunner().invoke(app, words)
    said = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2
    assert refused in said
    assert "training" not in said.partition("Invalid value")[0]


def test_a_scaled_student_of_a_scaled_teacher_is_refused_too(command: Command) -> None:
    file = command.folder / "own.py"
    code = OWN.replace('"own"', '"mine"').replace("TEACHER", "plain").replace("BalancedSoftmaxLoss", "LDAMLoss")
    code = code.replace("losses.balanced_softmax", "losses.ldam").replace("blocks=1", "blocks=1, head='normalized'")
    file.write_text(code)
    words = ["run", str(file), "--data", str(command.folder / "data"), "--device", "cpu"]
    with warnings.catch_warnings(action="ignore"):
        done = CliRunner().invoke(app, [*words, "--out", str(command.folder / "r.jsonl")])
    assert done.exit_code == 2
    assert "LDAMLoss of cifar10-lt/10/student/0 reads the logits" in " ".join(done.output.replace("│", " ").split())


def test_a_long_student_is_timed_on_a_cpu(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification_runs, "LONG", 2)
    said = command(*(word for name in NAMES for word in ("--only", name)))
    assert "On this CPU an iteration takes" in said
    assert "2 runs recorded" in said
    said = command("--seeds", "0")  # the student alone, whose teachers are finished
    assert "On this CPU an iteration takes" in said
    assert "1 run recorded" in said


def test_the_time_that_is_announced_for_a_cpu_includes_labelling(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classification_runs, "LONG", 2)
    monkeypatch.setattr(classification_runs, "timed", lambda *options: 300.0)
    student = recipe.recipe_of(Cell(*CELL, "distilled", 0))
    teacher = recipe.recipe_of(Cell(*CELL, "teacher", 1000))
    trained = 2 * teacher.iterations + student.iterations
    views = student.iterations * student.batch_size  # all of them new
    labelled = 2 * views / student.batch_size / 3  # evaluating a network is a third of training it
    said = command("--seeds", "0")
    assert f"about {300 * (trained + labelled) / 60:.0f} min for all runs" in said
    import_records(command.folder / "r.jsonl", command.folder / "results")
    shutil.rmtree(command.checkpoints)
    (command.folder / "results" / "record/cifar10-lt/10/distilled/0.json").unlink()
    said = command("--seeds", "0", out="other.jsonl")  # the teachers have records, but must be trained again
    assert f"about {300 * (trained + labelled) / 60:.0f} min for all runs" in said


def test_students_that_share_a_pool_announce_its_labelling_once(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classification_runs, "LONG", 2)
    monkeypatch.setattr(classification_runs, "timed", lambda *options: 300.0)
    change: dict[str, dict[str, Any]] = {"slow": {}, "fast": {"lr": 0.5}, "warm": {"temperature": 3.0}}
    choices = tuple(Method(name, replace(recipe.student_on(CELL[0]), **one)) for name, one in change.items())
    monkeypatch.setattr(recipe, "CHOICES", choices)
    monkeypatch.setattr(recipe, "choices_plan", lambda: [Cell(*LONGER, name, 0) for name in change])
    student, teacher = choices[0].recipe, recipe.recipe_of(Cell(*LONGER, "teacher", 1000))
    labelled = 2 * student.iterations / 3
    total = 3 * student.iterations + 2 * teacher.iterations + 2 * labelled  # slow and fast share one
    assert f"about {300 * total / 60:.0f} min for all runs" in command("--validate")


def test_labelling_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Status] = []

    @contextmanager
    def shown() -> Iterator[Any]:
        yield typer.echo, reported.append

    monkeypatch.setattr(queues, "progress", shown)
    longer = replace(recipe.SECOND, iterations=43)
    monkeypatch.setattr(recipe, "SECOND", longer)
    said = command("--seeds", "0")
    labelling = [status for status in reported if status.what == "views labelled by teachers"]
    views = {status.iterations for status in labelling}
    assert len(views) == 1
    assert views <= set(range(1, longer.iterations * longer.batch_size + 1))
    assert [status.done for status in labelling] == sorted({status.done for status in labelling})
    assert len(labelling) > 1
    assert labelling[-1].done == views.pop()
    assert said.count(f"distilled/0: its teachers labelled {labelling[-1].done:,} views in") == 1


def test_weights_that_are_no_weights_are_not_used(command: Command) -> None:
    teachers = given_teachers(command)
    path = teachers / "cifar10-lt-10-teacher-1001.weights.pt"
    torch.save([1, 2], path)
    assert "not hold the weights of a network" in command("--seeds", "0", "--teachers", str(teachers), ok=False)
    teachers.rename(command.checkpoints)
    said = command("--seeds", "0")
    assert "does not hold the weights of a network: starting from the beginning" in said
    assert "3 runs recorded" in said


# -------------------------------------------------------------------- files


def test_an_exported_student_is_judged_again_from_its_files(command: Command) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    exported = command.folder / "exported"
    command("--seeds", "0", "--export", str(exported))
    folder = exported / "cifar10-lt/10/distilled/0"
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors", "model.json", "model.onnx", "model.pt2", "record.json"
    }  # fmt: skip
    top1 = list(command.records().values())[-1].top1
    said = command("--judge", str(exported))
    for name in ("model.safetensors", "model.onnx"):
        assert f"record/cifar10-lt/10/distilled/0: top-1 {top1:.2f} from {name}, as in its record" in said
    one = Record.from_json((folder / "record.json").read_text())
    other = replace(one, top1=50.0, correct=[20] + [0] * 9)
    (folder / "record.json").write_text(other.to_json(indent=1))
    assert f"top-1 {top1:.2f} from model.onnx, its record has 50.00" in command("--judge", str(exported))
    assert "holds no exported student" in command("--judge", str(command.folder / "data"), ok=False)
    (folder / "record.json").write_text(replace(one, evaluated_on="held_out").to_json(indent=1))
    assert "from model.onnx, its record is of held_out images" in command("--judge", str(exported))
    (folder / "model.onnx").write_bytes(b"no network")
    assert f"{folder}/model.onnx is damaged".replace(" ", "") in command("--judge", str(exported), ok=False).replace(
        " ", ""
    )


def test_exports_are_checked_before_anything_is_trained_and_smoke_tests_apart(command: Command) -> None:
    pytest.importorskip("onnxscript")
    (command.folder / "file").write_text("")
    assert "cannot be written" in command("--seeds", "0", "--export", str(command.folder / "file"), ok=False)
    assert not (command.folder / "r.jsonl").exists()
    exported = command.folder / "exported"
    command("--seeds", "0", "--iterations", "2", "--export", str(exported))
    found = [path.parent.relative_to(exported).as_posix() for path in exported.rglob("model.safetensors")]
    assert found == ["smoke-test-2/cifar10-lt/10/distilled/0"]
    command("--seeds", "0")
    assert "when they have been trained: there are none" in command("--seeds", "0", "--export", str(exported))


@pytest.mark.parametrize("width", [1, 2])
def test_exported_weights_are_those_that_were_trained(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported_module, "export_run", lambda folder: [])
    labels = np.repeat(np.arange(3), [20, 8, 3])
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    data = CifarSet.of(images, labels, Prior.from_labels(labels), torch.device("cpu"))
    change: dict[str, Any] = TINY | {"iterations": 12, "width": width}
    run = Training(replace(recipe.AVERAGED, **change), data, 0)
    train([run])
    made = record(table="record", method="distilled")
    folder = exported_module.export_student(tmp_path, run, made)
    assert folder == tmp_path / "cifar10-lt/100/distilled/0"
    served, note = load_run(folder)
    assert (note.model, note.num_classes, note.blocks, note.width) == ("resnet32", 3, 1, width)
    with torch.no_grad():
        found = served(torch.from_numpy(images).float() / 255)
    expected = run.predict(torch.from_numpy(images))
    assert float(expected.std()) > 0.01  # they do say something
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert Record.from_json((folder / "record.json").read_text()) == made


# -------------------------------------------------------------------- what limits a student

GAPS = runpy.run_path(str(ROOT / "benchmarks" / "record_students.py"))


def test_a_network_is_no_distance_from_itself_and_the_divergence_from_others() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
    assert GAPS["apart"](logits, [logits], 2.0) == pytest.approx(
        {"divergence": 0, "error": 0, "agreement": 1}, abs=1e-6
    )
    sure, unsure = torch.tensor([[4.0, 0.0]] * 2), torch.zeros(2, 2)  # at T = 2: p = 1 / (1 + e^-2) and 1/2
    p = (1 / (1 + np.exp(-2)) + 0.5) / 2
    found = GAPS["apart"](unsure, [sure, unsure], 2.0)
    assert found["divergence"] == pytest.approx(4 * (p * np.log(2 * p) + (1 - p) * np.log(2 * (1 - p))), rel=1e-5)
    assert GAPS["apart"](-sure, [sure, unsure], 2.0)["agreement"] == 0.0


@pytest.fixture
def measured(command: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two exported students, and the words to measure them by."""
    monkeypatch.setattr(exported_module, "export_run", lambda folder: [])
    monkeypatch.setattr(recipe, "plan", lambda: [Cell(*column, "distilled", 0) for column in (CELL, LONGER)])
    monkeypatch.setattr(recipe, "SECOND", replace(recipe.SECOND, views=64, batch_size=16))
    students, file = command.folder / "exported", command.folder / "gaps.json"
    command("--export", str(students))
    words = ["--data", command.folder / "data", "--students", students, "--teachers", command.checkpoints]
    monkeypatch.setattr("sys.argv", ["record_students.py", *map(str, words), "--images", "24", "--out", str(file)])
    return file


@pytest.mark.filterwarnings("ignore:in .* the MD5 of:UserWarning")
def test_a_students_gap_is_measured_on_five_kinds_of_images(command: Command, measured: Path) -> None:
    GAPS["main"]()
    content = json.loads(measured.read_text())
    ten, twenty = content["students"]
    assert [one["student"] for one in (ten, twenty)] == [f"record/cifar10-lt/{i}/distilled/0" for i in (10, 20)]
    assert "held_out" not in ten  # every image of that draw was trained on
    assert len(twenty["held_out"]) == 2
    kinds = [ten[kind][who] for kind in documents.GAP_KINDS for who in ("student", "teacher")]
    assert all(one["divergence"] > 0 and 0 <= one["agreement"] <= 1 for one in kinds)
    assert len({one["divergence"] for one in kinds}) == 10
    row, _ = documents.gap_table(content).rows
    divergences = [ten[kind]["student"] for kind in documents.GAP_KINDS]
    other = f"{ten['test']['teacher']['divergence']:.2f}"
    agreements = [f"{100 * ten['test'][who]['agreement']:.0f} %" for who in ("student", "teacher")]
    distances = [f"{one['divergence']:.3f} ± {one['error']:.3f}" for one in divergences]
    assert row == ["CIFAR-10-LT, 10, seed 0", *distances, other, *agreements]
    ensembles = documents.ensemble_table(content)
    assert ensembles.header == ["teachers together", "1", "2"]
    assert ensembles.rows == [["CIFAR-10-LT, 20, seed 0", *(f"{accuracy:.1f}" for accuracy in twenty["held_out"])]]


@pytest.mark.filterwarnings("ignore:in .* the MD5 of:UserWarning")
def test_views_that_a_student_was_trained_on_are_those_of_its_pool(command: Command, measured: Path) -> None:
    from equipoise.training.classification import features, sample_order
    from equipoise.training.classification_runs import Store
    from equipoise.training.distillation import Teacher, make_pool

    store, cell = Store(command.folder / "data", torch.device("cpu")), Cell(*CELL, "distilled", 0)
    found = GAPS["kinds_of_images"](cell, recipe.recipe_of(cell), store, 24)
    drawn, data = store.get(*CELL)
    few = replace(recipe.recipe_of(cell), iterations=6, teachers=1)
    order = sample_order(few, drawn.labels, cell.seed).reshape(-1, few.batch_size)
    teacher = recipe.recipe_of(Cell(*CELL, "teacher", 1000))
    one = Teacher("any", Training(teacher, data, 0).model.eval())
    pool = make_pool(data, order, few, cell.seed, [one], features)
    assert torch.equal(found["trained"], pool.items[pool.rows.reshape(-1)[::4]])
    assert {kind: len(images) for kind, images in found.items()} == dict.fromkeys(documents.GAP_KINDS, 24)
    known, never = (
        {image.tobytes() for image in images} for images in (drawn.images, store.read("cifar10-lt").test_images)
    )
    assert {image.numpy().tobytes() for image in found["training"]} <= known
    assert {image.numpy().tobytes() for image in found["test"]} <= never
    for kind in ("trained", "new", "unseen"):
        assert not {image.numpy().tobytes() for image in found[kind]} & (known | never)
    assert not torch.equal(found["trained"], found["new"])


@pytest.mark.filterwarnings("ignore:in .* the MD5 of:UserWarning")
def test_a_student_is_not_measured_beside_other_teachers_weights_or_recipes(command: Command, measured: Path) -> None:
    folder = command.folder / "exported/cifar10-lt/10/distilled/0"
    one = Record.from_json((folder / "record.json").read_text())
    named = {**(one.teachers or {}), "cifar10-lt/10/teacher/1000": "0" * 16}
    changes: dict[str, dict[str, Any]] = {
        "does not hold the teachers of record/cifar10-lt/10/distilled/0": {"teachers": named},
        "does not hold the weights of its record": {"weights": "0" * 16},
        "was trained with another recipe": {"recipe": one.recipe | {"temperature": 3.0}},
    }
    for message, change in changes.items():
        (folder / "record.json").write_text(replace(one, **change).to_json(indent=1))
        with pytest.raises(SystemExit, match=message):
            GAPS["main"]()
    assert not measured.exists()


# -------------------------------------------------------------------- kinds of teachers

KINDS = runpy.run_path(str(ROOT / "benchmarks" / "record_teachers.py"))


@pytest.mark.filterwarnings("ignore:in .* the MD5 of:UserWarning")
def test_teachers_are_judged_alone_and_with_those_of_other_kinds(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "plan", lambda: [Cell(*LONGER, "distilled", 0)])
    command()
    command("--validate", "--only", "cifar10-lt/20/teacher_wide")
    import_records(command.folder / "r.jsonl", command.folder / "results")
    file, data = command.folder / "kinds.json", command.folder / "data"
    words = ["--data", data, "--teachers", command.checkpoints, "--results", command.folder / "results"]
    monkeypatch.setattr("sys.argv", ["_", *map(str, words), "--cell", "cifar10-lt/20", "--out", str(file)])
    KINDS["main"]()
    found = json.loads(file.read_text())
    assert {kind: list(every) for kind, every in found["alone"].items()} == {
        "teacher": ["1000", "1001"],
        "teacher_wide": ["1000"],
    }
    assert [(one["kinds"], one["networks"]) for one in found["together"]] == [
        (["teacher"], 2),
        (["teacher_wide"], 1),
        (["teacher", "teacher_wide"], 3),
    ]
    alone = found["alone"]["teacher_wide"]["1000"]
    assert found["together"][1].items() >= {key: alone[key] for key in documents.SCORES}.items()
    tried = command.records()["choices/record-teachers/cifar10-lt/20/teacher_wide/1000"]
    assert alone == {"weights": tried.weights, "top1": tried.top1, "balanced_accuracy": tried.balanced_accuracy}
    weights = command.checkpoints / "cifar10-lt-20-teacher-1000.weights.pt"
    weights.write_bytes((command.checkpoints / "cifar10-lt-20-teacher-1001.weights.pt").read_bytes())
    with pytest.raises(SystemExit, match="does not hold the weights of the record of cifar10-lt/20/teacher/1000"):
        KINDS["main"]()
    monkeypatch.setattr("sys.argv", ["_", *map(str, words), "--cell", "cifar10-lt/10"])
    with pytest.raises(SystemExit, match="2"):
        KINDS["main"]()
    monkeypatch.setattr("sys.argv", ["_", *map(str, words), "--cell", "cifar10-lt/200"])
    with pytest.raises(SystemExit, match="holds no weights of cifar10-lt/200 that have a record"):
        KINDS["main"]()


def test_the_mean_of_some_networks_is_judged() -> None:
    sure, unsure = torch.tensor([[0.9, 0.1]] * 3), torch.tensor([[0.4, 0.6]] * 3)
    labels, prior = np.array([0, 0, 1]), Prior.from_counts([3, 1])
    assert KINDS["judged"]([unsure], labels, prior) == {"top1": 33.3333, "balanced_accuracy": 50.0}
    found = KINDS["judged"]([sure, unsure, unsure], labels, prior)  # neither their majority nor the last
    assert found == {"top1": 66.6667, "balanced_accuracy": 50.0}


def test_kinds_of_teachers_are_shown_alone_and_together() -> None:
    alone = {"top1": 80.0, "balanced_accuracy": 70.0}
    other = {"top1": 82.0, "balanced_accuracy": 74.0}
    record = {
        "cell": "cifar10-lt/200",
        "images": 9228,
        "alone": {"teacher_ema": {"1000": alone, "1001": other}, "teacher_sam": {"1000": other}},
        "together": [
            {"kinds": ["teacher_ema"], "networks": 2, **other},
            {"kinds": ["teacher_ema", "teacher_sam"], "networks": 3, **alone},
        ],
    }
    said = documents.teachers_part(record)
    assert said.startswith("CIFAR-10-LT, 200, 9,228 held-out training images.")
    assert "| without mixing | 81.0 ± 1.4 | 72.0 ± 2.8 | 2 | 82.0 | 74.0 |" in said
    assert "| without mixing + SAM, within 0.1 | – | – | 3 | 80.0 | 70.0 |" in said


# -------------------------------------------------------------------- what is shown


def student(column: tuple[str, int], seed: int, top1: float, **change: Any) -> Record:
    correct = round(top1 * 100)
    usual = {
        "table": "record", "data_set": column[0], "imbalance": column[1], "method": "distilled", "seed": seed,
        "iterations": 18_500, "top1": top1, "correct": [correct, 0], "total": [10_000, 0],
        "teachers": {"a": "0"}, "teachers_top1": 57.8,
    }  # fmt: skip
    return record(**(usual | change))


def test_published_numbers_are_linked_to_their_sources_in_documents_only() -> None:
    students = report.Students([])
    for tables, rows in ((report.leaderboards, (students,)), (report.others, ())):
        plain, linked = ("\n".join(map(str, tables(*rows, linked=one))) for one in (False, True))  # type: ignore[operator]
        assert "https://" not in plain
        assert re.sub(r"\[([^]]+)\]\(https://[^)]+\)", r"\1", linked) == plain != linked
    assert "[GALA's README](https://github.com/" in str(report.leaderboards(students, linked=True)[0])
    unknown = {row.source for row in (*published.SINGLE, *published.OTHERS) if not row.address}
    assert unknown == {"a third party's summary", "collected, page not noted"}


def test_the_bests_to_beat_are_those_of_the_standard_network() -> None:
    found = published.best()
    hundred = {200: 48.5, 100: 54.2, 50: 58.1, 10: 67.0}
    ten = {200: 81.5, 100: 85.9, 50: 88.2, 10: 91.9}
    expected = {("cifar100-lt", i): top1 for i, top1 in hundred.items()} | {
        ("cifar10-lt", i): top1 for i, top1 in ten.items()
    }
    assert {column: number for column, (number, _) in found.items()} == expected
    assert {row.network for row in published.SINGLE} == {"16-32-64"}
    assert "16-32-64" not in {row.network for row in published.OTHERS}


def test_only_three_seeds_are_called_above_the_best() -> None:
    high, low, few = ("cifar100-lt", 100), ("cifar100-lt", 200), ("cifar10-lt", 100)
    records = [
        *(student(high, seed, 54.3 + seed / 10) for seed in range(3)),
        *(student(low, seed, 48.0) for seed in range(3)),
        *(student(few, seed, 90.0) for seed in range(2)),
    ]
    said = report.verdict(records)
    assert "Above the best published: CIFAR-100-LT, 100: +0.20." in said
    assert "Not above the best published: CIFAR-100-LT, 200: −0.50." in said
    assert "Higher, but with fewer than three seeds: CIFAR-10-LT, 100: +4.10 (2)." in said
    assert "Not run yet: CIFAR-100-LT, 50;" in said
    level = [student(high, seed, 54.2) for seed in range(3)]
    assert "Above" not in report.verdict(level)
    assert "Not above the best published: CIFAR-100-LT, 100: −0.20 (1)." in report.verdict([student(high, 0, 54.0)])


def test_ours_is_the_last_row_with_its_seeds() -> None:
    records = [student(("cifar100-lt", 100), seed, 54.0 + seed) for seed in range(2)]
    first, second = report.leaderboards(report.Students(records))
    both = report.Students(records[1:], records[:1])
    assert len(both) == 2
    assert (
        "With the next recipe. Not above the best published: CIFAR-100-LT, 100: −0.20 (1)."
        in documents.leaderboard_part(both)
    )
    hundred, ten = report.leaderboards(both)
    *_, ours, of_next = hundred.rows
    assert [row[0] for row in (ours, of_next, ten.rows[-1])] == ["ours", "ours, next recipe", "ours"]
    assert [row[2] for row in (ours, of_next)] == ["55.00 (1)", "54.00 (1)"]
    assert [row[-1] for row in (ours, of_next)] == ["results/record", "results/next/record"]
    *_, best, ours = first.rows
    assert best[2] == "54.2"
    assert (ours[2], ours[1]) == ("54.50 ± 0.71 (2)", "–")
    assert ours[5] == "18,500 × 512, after 1 teacher"
    *others, best, ours = second.rows
    assert best[1:5] == ["81.5", "85.9", "88.2", "91.9"]
    assert ours[1:6] == ["–"] * 5
    assert "GALA" not in {row[0] for row in others}  # which has no number there


def test_teachers_are_shown_alone_and_together_with_the_time_of_all() -> None:
    named = {f"cifar100-lt/100/teacher/{seed}": "0" for seed in (1000, 1001)}
    run = student(("cifar100-lt", 100), 0, 54.0, teachers=named, seconds=120.0, together=2)
    teachers = [
        student(("cifar100-lt", 100), 1000 + i, 51.0 + i, table="record-teachers", method="teacher", teachers=None,
                seconds=60.0, together=1)
        for i in range(2)
    ]  # fmt: skip
    (row,) = documents.cells_table([run], teachers).rows
    assert row == ["CIFAR-100-LT, 100", "54.00 (1)", "54.2, ProCo, longer", "51.5 ± 0.7 (2)", "57.8 (1)", "3.0"]
    (row,) = documents.cells_table([run], teachers[:1]).rows
    assert row[-1] == "–"  # a teacher without a record
    (row,) = documents.cells_table([], teachers).rows
    assert row == ["CIFAR-100-LT, 100", "–", "54.2, ProCo, longer", "51.5 ± 0.7 (2)", "–", "–"]
    others = [student(column, 0, 54.0) for column in (("cifar10-lt", 50), ("cifar100-lt", 50), ("cifar100-lt", 200))]
    rows = documents.cells_table([*others, run], []).rows
    assert [row[0] for row in rows] == ["CIFAR-100-LT, 200", "CIFAR-100-LT, 100", "CIFAR-100-LT, 50", "CIFAR-10-LT, 50"]


def test_a_record_that_is_no_student_is_refused(tmp_path: Path) -> None:
    for change in ({"method": "teacher"}, {"teachers": None}):
        one = student(("cifar100-lt", 100), 0, 54.0, **change)
        path = one.path_under(tmp_path)
        path.parent.mkdir(parents=True)
        path.write_text(one.to_json(indent=1))
        with pytest.raises(ValueError, match="is not a student"):
            report.read(tmp_path)
        path.unlink()


def test_records_of_another_recipe_are_refused(tmp_path: Path) -> None:
    for version in (published.RECORD, published.NEXT):
        results = tmp_path / version.folder
        for data_set, changed in version.students.items():
            usual = student((data_set, 100), 0, 54.0)
            one = replace(usual, recipe=usual.recipe | dict(changed))
            path = one.path_under(results)
            path.parent.mkdir(parents=True)
            path.write_text(one.to_json(indent=1))
            read = report.read(tmp_path)
            assert one in (read.records if version == published.RECORD else read.of_next)
            path.write_text(replace(one, recipe=one.recipe | {"teachers": 7}).to_json(indent=1))
            other = f"{one.key} under {results} is of another recipe (teachers 7, not {changed['teachers']})"
            with pytest.raises(ValueError, match=re.escape(other)):
                report.read(tmp_path)
            path.unlink()


def test_options_that_older_records_lack_are_what_they_were(tmp_path: Path) -> None:
    usual = student(("cifar100-lt", 100), 0, 54.0)
    now = published.RECORD.students["cifar100-lt"]
    older = {name: value for name, value in now.items() if name != "mix_probability"}
    one = replace(usual, recipe=older)
    assert not report.of_another_recipe(one, published.RECORD)
    assert "mix_probability 1.0, not 0.5" in report.of_another_recipe(one, published.NEXT)


def test_the_ablation_shows_a_row_per_ingredient_that_was_tried() -> None:
    assert documents.ablation([]) == "Not run yet."
    tries = [
        student(("cifar100-lt", 100), 0, 50.0, table="choices/record", method=method, balanced_accuracy=48.4 + i)
        for i, method in enumerate(("balanced_softmax", "distilled_18500"))
    ]
    said = documents.ablation(tries)
    assert "| Balanced Softmax as in Table 1 | 18,500 | 48.40 (1) |" in said
    assert (
        "| six teachers without averaging, 18,500 iterations (the first recipe's student) | 18,500 | 49.40 (1) | 57.8 |"
        in said
    )
    assert "Not run yet: + weight decay 1e-3;" in said
    tried = {"table": "choices/record", "method": "distilled_wide", "balanced_accuracy": 49.0}
    wide = student(("cifar100-lt", 100), 0, 51.0, **tried, teachers={"cifar100-lt/100/teacher_wide/1000": "0"})
    teacher = student(("cifar100-lt", 100), 1000, 54.0, table="choices/record-teachers", method="teacher_wide")
    said = documents.ablation([wide], [teacher])
    assert "three averaged teachers of twice the width | 18,500 | 49.00 (1) | 57.8 | 54.0 |" in said


def test_factors_are_compared_between_students_that_differ_in_one_of_them() -> None:
    assert documents.factors_part([]) == "Not run yet."
    column = ("cifar10-lt", 200)
    first, second = ("ema", 1.0, 0.1), ("cutmix", 1.0, 0.1)
    crops = ("cutmix", 1.0, 0.2, 18_500, "crop")
    accuracies = {first: 60.0, second: 60.5, ("cutmix", 1.0, 0.2): 61.5, crops: 63.5}
    tries = [
        student(
            column,
            0,
            60.0,
            table="choices/record",
            method=published.Factors(*factors).name,  # type: ignore[arg-type]
            balanced_accuracy=accuracy,
            teachers={f"cifar10-lt/200/teacher_{factors[0]}/1000": "0"},
            teachers_top1=66.0 + (factors[0] == "cutmix"),
            teachers_divergence=0.25,
        )
        for factors, accuracy in accuracies.items()
    ]
    teacher = student(column, 1000, 64.0, table="choices/record-teachers", method="teacher_cutmix")
    said = documents.factors_part(tries, [teacher])
    assert said.startswith("CIFAR-10-LT, 200, evaluated on 10,000 held-out training images.")
    for row in (
        "| without mixing | all | 0.1 | 18,500 | the paper's | 60.00 (0.250) |",
        "| CutMix in half of their batches | all | 0.2 | 18,500 | the paper's | 61.50 (0.250) |",
        "| CutMix in half of their batches | all | 0.2 | 18,500 | crops and flips | 63.50 (0.250) |",
        "| teachers: CutMix in half of their batches | +0.50 |",
        "| student: CutMix in half of its batches, not in all | – |",
        "| student: learning rate 0.2, not 0.1 | +1.00 |",
        "| student: 37,000 iterations, not 18,500 | – |",
        "| student: crops and flips, without AutoAugment and Cutout | +2.00 |",
        "| without mixing | 66.0 |",
        "| CutMix in half of their batches | 67.0 (64.0) |",
        "| chance alone, if students erred independently (95 %) | ± 1.4 |",
    ):
        assert row in said
    assert "Not run yet, by the name for `--only`: cifar10-lt/200/three_ema_100_lr_0.2, " in said


def test_factors_change_what_they_name() -> None:
    named = {one.name: one for every in published.FACTORS.values() for one in every}
    assert [method.name for method in recipe.VARIED] == list(named)
    assert {one.teachers for one in named.values()} == set(documents.KINDS)
    assert {one.mixed for one in named.values()} == set(documents.SHARES)
    assert {one.augmentation for one in named.values()} == set(documents.AUGMENTATIONS)
    changed = ("teacher", "teachers", "mix_probability", "lr", "iterations", "augmentation")
    for method in recipe.VARIED:
        factors, made = named[method.name], method.recipe
        found = (made.mix_probability, made.lr, made.teachers, made.iterations, made.augmentation)
        assert found == (factors.mixed, factors.lr, 3, factors.iterations, factors.augmentation)
        taught = recipe.recipe_of(made.teacher_cells(Cell("cifar100-lt", 10, method.name, 0))[0])
        kind = {(0.0, 0.0): "ema", (0.5, 0.0): "cutmix", (0.0, 0.1): "sam"}
        assert kind[taught.mix_probability * (taught.cutmix > 0), taught.sam] == factors.teachers
        usual = {name: getattr(recipe.SECOND, name) for name in changed}
        assert replace(made, **usual) == recipe.SECOND
    tried = [cell for cell in recipe.choices_plan() if cell.method in named]
    assert [(cell.data_set, cell.imbalance) for cell in tried] == [
        c for c, every in published.FACTORS.items() for _ in every
    ]


def test_the_first_recipe_is_shown_with_its_teachers() -> None:
    assert documents.first_part([]) == "Not run."
    said = documents.first_part([student(("cifar100-lt", 100), seed, 53.0 + seed) for seed in range(2)])
    assert said.endswith("reached: CIFAR-100-LT, 100: 53.50 ± 0.71 (2), its teachers together 57.80 ± 0.00.")


def test_the_committed_documents_are_what_the_committed_records_give() -> None:
    rendered = documents.documents(ROOT, ROOT / "results")
    assert {path.relative_to(ROOT).as_posix() for path in rendered} == {"docs/record.md", "docs/lab-notes.md"}
    stale = [path.name for path, text in rendered.items() if path.read_text() != text]
    assert stale == [], "run: equipoise table record --write"


VERSIONS = (published.RECORD, published.NEXT)


@pytest.mark.parametrize("version", VERSIONS, ids=("record", "next"))
def test_the_committed_students_name_teachers_that_are_recorded(version: published.Version) -> None:
    results = ROOT / "results" / version.folder
    teachers = {
        one.key.removeprefix("record-teachers/"): one.weights for one in read_records(results, published.TEACHERS)
    }
    students = read_records(results, published.NAME)
    assert students
    for one in students:
        assert one.teachers is not None
        assert len(one.teachers) == version.students[one.data_set]["teachers"]
        assert {name: teachers[name] for name in one.teachers} == one.teachers


def test_what_the_text_says_of_the_record_is_in_its_records() -> None:
    runs = report.by_column(report.read(ROOT / "results").records)
    best = published.best()
    students = {column: np.mean([run.top1 for run in found]) for column, found in runs.items()}
    below_teachers = {
        column: np.mean([run.teachers_top1 or np.nan for run in found]) - students[column]
        for column, found in runs.items()
    }
    above_best = {column: top1 - best[column][0] for column, top1 in students.items()}
    furthest = ("cifar100-lt", 10)
    assert max(below_teachers, key=lambda column: float(below_teachers[column])) == furthest
    assert min(above_best, key=lambda column: float(above_best[column])) == furthest
    assert [column for column, above in above_best.items() if above <= 0] == [("cifar10-lt", 200), furthest]
    assert set(runs) == set(published.COLUMNS)


def test_what_the_notes_say_limits_a_student_is_in_the_measurements() -> None:
    measured = {one["student"]: one for one in json.loads((ROOT / documents.GAPS).read_text())["students"]}

    def distances(cell: str) -> list[float]:
        one = measured[f"record/{cell}/distilled/0"]
        return [one[kind]["student"]["divergence"] for kind in documents.GAP_KINDS]

    trained, new, unseen, training, test = distances("cifar100-lt/10")
    assert trained < new < 1.05 * trained  # nearly as far
    assert unseen < new  # and no further
    for cell in ("cifar10-lt/10", "cifar10-lt/50"):
        trained, new, unseen, *_ = distances(cell)
        assert new > 1.1 * trained
        assert unseen < 1.1 * new
    for cell in ("cifar100-lt/10", "cifar100-lt/50"):
        *others, training, test = distances(cell)
        assert training > 1.3 * max(*others, test)
        assert measured[f"record/{cell}/distilled/0"]["training"]["student"]["agreement"] < 0.9
    for cell, gain in (("cifar100-lt/50", 1.0), ("cifar10-lt/50", 0.0)):
        together = measured[f"record/{cell}/distilled/0"]["held_out"]
        assert together[5] - together[2] > gain
        assert together[5] - together[4] < 0.1


def test_what_the_notes_say_of_teachers_with_cutmix_is_in_the_records() -> None:
    tries = {one.key: one for one in read_records(ROOT / "results", published.TRIES)}

    def judged(cell: str, kind: str, share: int) -> Record:
        return tries[f"{published.TRIES}/{cell}/three_{kind}_{share}_lr_0.2/0"]

    changes = {"cifar10-lt/200": (3.8, 5.3), "cifar100-lt/100": (-2, -1.6), "cifar100-lt/10": (-3.5, -2)}
    for share in (100, 50):
        for cell, (least, most) in changes.items():
            without, mixed = (judged(cell, kind, share) for kind in ("ema", "cutmix"))
            assert least < mixed.balanced_accuracy - without.balanced_accuracy < most
            distances = [one.teachers_divergence or np.nan for one in (mixed, without)]
            assert distances[0] < 0.55 * distances[1]
        without, mixed = (judged("cifar100-lt/100", kind, share) for kind in ("ema", "cutmix"))
        few = np.array(without.counts) < 20
        lost = [(np.array(one.correct)[few] / np.array(one.total)[few]).mean() for one in (without, mixed)]
        assert lost[0] - lost[1] > 0.05
        assert abs((without.teachers_top1 or 0) - (mixed.teachers_top1 or 0)) < 0.5
    for kind in ("ema", "cutmix"):
        every, half = (judged("cifar10-lt/200", kind, share).balanced_accuracy for share in (100, 50))
        assert every > half + 1
    faster = [
        one.balanced_accuracy - tries[key.replace("lr_0.2", "lr_0.1")].balanced_accuracy
        for key, one in tries.items()
        if "lr_0.2/" in key and key.replace("lr_0.2", "lr_0.1") in tries
    ]
    assert len(faster) == 6
    assert min(faster) > 0
    right = [
        np.mean([one.correct[0] for one in found if (one.data_set, one.imbalance) == ("cifar10-lt", 200)])
        for version in VERSIONS
        if (found := read_records(ROOT / "results" / version.folder, published.TEACHERS))
    ]
    assert 25 < right[0] - right[1] < 35  # of 1,000


def test_what_the_notes_say_of_crops_and_of_sam_is_in_the_records() -> None:
    tries = {one.key: one for one in read_records(ROOT / "results", published.TRIES)}
    students = {key.split("/")[-2]: one for key, one in tries.items() if "cifar100-lt/10/three" in key}
    crops, usual = students["three_sam_100_lr_0.2_crop"], students["three_sam_100_lr_0.2"]
    assert crops.balanced_accuracy - usual.balanced_accuracy > 3
    assert max(students.values(), key=lambda one: one.balanced_accuracy) == crops
    few = np.array(crops.counts) < 100
    rare = [(np.array(one.correct)[few] / np.array(one.total)[few]).mean() for one in (crops, usual)]
    assert rare[0] - rare[1] > 0.05
    changes = []
    for share in (100, 50):
        sam, without = (students[f"three_{kind}_{share}_lr_0.2"] for kind in ("sam", "ema"))
        changes.append(round(sam.balanced_accuracy - without.balanced_accuracy, 1))
        assert 0.6 < (sam.teachers_divergence or 0) / (without.teachers_divergence or 1) < 0.7
        assert abs((sam.teachers_top1 or 0) - (without.teachers_top1 or 0)) < 0.5
    assert changes == [-0.9, -1.6]
    low, high = change_interval(usual.correct, crops.correct, crops.total)
    assert low < 0 < 0.8 * (high - low) / 2 < (crops.balanced_accuracy - usual.balanced_accuracy) / 100  # nearly
    alone = {
        kind: [one.top1 for one in read_records(ROOT / "results", published.TRIED_TEACHERS) if one.method == kind
               and (one.data_set, one.imbalance) == ("cifar100-lt", 10)]
        for kind in ("teacher_sam", "teacher_cutmix")
    }  # fmt: skip
    assert min(alone["teacher_sam"]) > max(alone["teacher_cutmix"])


@pytest.mark.parametrize(
    ("version", "table"),
    [
        *((version, name) for version in VERSIONS for name in (published.NAME, published.TEACHERS)),
        *((published.RECORD, name) for name in (published.TRIES, published.TRIED_TEACHERS)),
    ],
)
def test_committed_runs_were_trained_with_the_recipes_that_stand_in_the_file(
    version: published.Version, table: str
) -> None:
    runs = read_records(ROOT / "results" / version.folder, table)
    assert runs
    for one in runs:
        cell = Cell(one.data_set, one.imbalance, one.method, one.seed)
        now = recipe.recipe_of(cell, version).as_dict()
        assert {**EARLIER, **one.recipe} == json.loads(json.dumps(now)), one.key


def test_the_record_is_the_row_of_the_notes_that_is_called_so() -> None:
    assert [recipe.student_on(data_set) for data_set in published.DATA_SETS] == [recipe.SECOND] * 2
    assert published.CHOICES["combined_cutmix"].endswith("(the second recipe's student)")


def test_teachers_are_averages_wide_or_deep_or_trained_with_cutmix_or_sam() -> None:
    recipes = {method.name: method.recipe for method in (*recipe.KINDS_OF_TEACHERS, *recipe.CHOICES, *recipe.VARIED)}
    tried = {name: one for name, one in recipes.items() if name.startswith("teacher")}
    assert {name: (one.blocks, one.width, one.ema, one.cutmix, one.sam) for name, one in tried.items()} == {
        "teacher": (5, 1, 0.0, 0.0, 0.0),
        "teacher_ema": (5, 1, 0.999, 0.0, 0.0),
        "teacher_wide": (5, 2, 0.999, 0.0, 0.0),
        "teacher_deep": (9, 1, 0.999, 0.0, 0.0),
        "teacher_cutmix": (5, 1, 0.999, 1.0, 0.0),
        "teacher_sam": (5, 1, 0.999, 0.0, 0.1),
    }
    assert {one.iterations * one.batch_size for one in tried.values()} == {13_000 * 512}
    assert {name: one.mix_probability for name, one in tried.items() if one.cutmix} == {"teacher_cutmix": 0.5}
    taught = {name: one.teacher_cells(Cell("cifar100-lt", 100, name, 0)) for name, one in recipes.items()}
    assert [len(taught[f"distilled_{name}"]) for name in ("ema", "wide", "deep", "twelve")] == [6, 3, 4, 12]
    assert taught["distilled_twelve"][:6] == taught["distilled_18500"]
    assert {cell.method for cells in taught.values() for cell in cells} == set(tried) == recipe.teacher_methods()
    assert {one.width for name, one in recipes.items() if one.teacher} == {recipe.SECOND.width} == {1}


def test_the_next_students_of_the_two_data_sets_differ_in_cutmix_alone() -> None:
    found = {data_set: recipe.student_on(data_set, published.NEXT) for data_set in published.DATA_SETS}
    assert {name: (one.teacher, one.teachers, one.mix_probability) for name, one in found.items()} == {
        "cifar10-lt": ("teacher_cutmix", 5, 1.0),
        "cifar100-lt": ("teacher_ema", 5, 0.5),
    }
    same = {"teacher": None, "mix_probability": 1.0}
    assert len({json.dumps(replace(one, **same).as_dict()) for one in found.values()}) == 1  # type: ignore[arg-type]
    for data_set, one in found.items():
        assert recipe.recipe_of(Cell(data_set, 100, published.METHOD, 0), published.NEXT) == one
        assert recipe.teachers_table(Cell(data_set, 100, published.METHOD, 0)) is None


def test_a_teachers_record_belongs_to_the_table_of_its_data_sets_student() -> None:
    def taught_by(
        students: list[Cell], table: str, *, validate: bool = False, version: published.Version = published.RECORD
    ) -> set[tuple[str, int, str]]:
        return {
            (one.data_set, one.imbalance, one.method)
            for one in needed_by(students, partial(recipe.recipe_of, version=version))
            if recipe.teachers_table(one, version, validate=validate) == table
        }

    for version, on_cifar10 in zip(VERSIONS, ("teacher_ema", "teacher_cutmix"), strict=True):
        final = {"cifar10-lt": on_cifar10, "cifar100-lt": "teacher_ema"}
        every = {(*column, final[column[0]]) for column in published.COLUMNS}
        assert taught_by(recipe.plan(), recipe.TEACHERS, version=version) == every
        assert taught_by(recipe.plan(), recipe.TRIED_TEACHERS, version=version) == set()
    varied = [cell for cell in recipe.choices_plan() if cell.method.startswith("three")]
    assert taught_by(varied, recipe.TRIED_TEACHERS, validate=True) == {
        ("cifar10-lt", 200, "teacher_cutmix"),
        ("cifar10-lt", 200, "teacher_sam"),
        ("cifar100-lt", 10, "teacher_cutmix"),
        ("cifar100-lt", 10, "teacher_ema"),  # of the final kind, but some of its images are held out
        ("cifar100-lt", 10, "teacher_sam"),
        ("cifar100-lt", 100, "teacher_cutmix"),
        ("cifar100-lt", 100, "teacher_sam"),
    }


def test_every_choice_has_a_title_and_every_title_a_choice() -> None:
    assert [method.name for method in recipe.CHOICES] == list(published.CHOICES)
    planned = recipe.plan()
    assert len(planned) == len(set(planned)) == 24
    assert {cell.method for cell in planned} == {published.METHOD}
