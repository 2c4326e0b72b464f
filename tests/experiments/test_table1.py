"""Table 1: its plan, its recipes, its command."""

from __future__ import annotations

import io
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from helpers.cifar_files import write_cifar10
from helpers.run_records import read_jsonl
from rich.console import Console
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli import shared as commands
from equipoise.cli.classifiers import kernels_of, present_cells
from equipoise.cli.options import KernelOptions, RunOptions, repeated
from equipoise.cli.queues import asked_cells, missing_cells
from equipoise.data.cifar import held_out, load_cifar, long_tailed_cifar
from equipoise.data.longtail import long_tailed_counts
from equipoise.experiments.table1 import causes
from equipoise.experiments.table1 import recipe as table1
from equipoise.experiments.table1.recipe import BASE
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.equalization import EqualizationLoss
from equipoise.losses.ldam import LDAMLoss
from equipoise.training.progress import Status
from equipoise.training.recipe import Cell, Method, Recipe
from equipoise.training.records import Record, append_record, import_records, read_records

TABLE = ["softmax", "cbw", "cbs", "focal", "class_balanced", "ldam", "eql", "balanced_softmax"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's methods, small enough for a CPU."""

    def shrunk(method: Method[Recipe]) -> Method[Recipe]:
        iterations = min(method.recipe.iterations, 3)
        return replace(method, recipe=replace(method.recipe, blocks=1, batch_size=4, iterations=iterations, warmup=1))

    monkeypatch.setattr(table1, "METHODS", tuple(shrunk(method) for method in table1.METHODS))
    monkeypatch.setattr(table1, "BELOW", tuple(shrunk(method) for method in table1.BELOW))


def a_record(**change: Any) -> Record:
    """The record of a run of Table 1, as if it had been trained."""
    usual = Record(
        table="table1", data_set="cifar10-lt", imbalance=10, method="softmax", seed=0, top1=75.0,
        balanced_accuracy=75.0, evaluated_on="test", iterations=13_000, complete=True, recipe={}, draw="0" * 16,
        pixels="1" * 16, counts=[3, 1], correct=[2, 1], total=[2, 2], marginal=[0.5, 0.5], loss_curve=[2.0],
        weights="2" * 16, seconds=55.5, together=4, engine={}, commit=None, versions={}, hardware={},
    )  # fmt: skip
    return replace(usual, **change)


# -------------------------------------------------------------------- the plan


def test_the_plan_holds_every_run_once_and_seed_0_of_all_48_cells_first() -> None:
    plan = table1.plan()
    assert len(plan) == len(set(plan)) == 8 * 6 * 3 + 9 * 3 + 2 * 2 * 3
    first = plan[:48]
    assert {(cell.data_set, cell.imbalance, cell.method) for cell in first} == {
        (data_set, imbalance, method)
        for data_set in ("cifar10-lt", "cifar100-lt")
        for imbalance in (200, 100, 10)
        for method in TABLE
    }
    assert {cell.seed for cell in first} == {0}
    second = plan[48:72]
    assert {cell.method for cell in second} == {"softmax", "balanced_softmax"}
    assert {cell.seed for cell in second} == {1, 2}
    third = plan[72:81]
    assert {(cell.data_set, cell.imbalance, cell.seed) for cell in third} == {("cifar100-lt", 100, 0)}


def test_imbalance_50_comes_last_and_is_asked_for_by_its_path(tmp_path: Path) -> None:
    plan = table1.plan()
    later = [
        f"{data_set}/50/{method}/{seed}"
        for seed in (0, 1, 2)
        for data_set in ("cifar10-lt", "cifar100-lt")
        for method in ("softmax", "balanced_softmax")
    ]
    assert [str(cell) for cell in plan if cell.imbalance == 50] == [str(cell) for cell in plan[-12:]] == later
    asked = asked_cells(plan, RunOptions(["cifar100-lt/50"], None, tmp_path / "new.jsonl", tmp_path))
    assert [str(cell) for cell in asked] == [path for path in later if path.startswith("cifar100-lt/")]
    for cell in plan[-12:]:
        assert table1.recipe_of(cell) == table1.recipe_of(replace(cell, imbalance=100))


def test_adding_a_line_adds_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Method("focal_2", replace(BASE, options={"label_smoothing": 0.1}))
    monkeypatch.setattr(table1, "METHODS", (*table1.METHODS, line))
    added = [cell for cell in table1.plan() if cell.method == "focal_2"]
    assert len(added) == 18
    assert table1.recipe_of(added[0]) == line.recipe


def test_recipes_are_the_published_ones() -> None:
    for cell in table1.plan():
        recipe = table1.recipe_of(cell)
        assert (recipe.batch_size, recipe.momentum, recipe.weight_decay, recipe.blocks) == (512, 0.9, 5e-4, 5)
        assert not recipe.nesterov
        schedule = (recipe.iterations, recipe.warmup, recipe.first_lr, recipe.lr)
        if recipe.backbone is None:
            assert schedule == (13_000, 800, 0.05, 0.1)
        else:
            assert recipe.iterations in (2_000, 0)
            assert (recipe.backbone, recipe.learning_rate(0)) == ("softmax", 0.1)
    ldam = table1.recipe_of(Cell("cifar10-lt", 200, "ldam", 0))
    assert (ldam.loss, ldam.head, dict(ldam.options)) == (LDAMLoss, "normalized", {"max_margin": 0.5, "scale": 30.0})
    eql = table1.recipe_of(Cell("cifar100-lt", 200, "eql", 0))
    assert (eql.loss, dict(eql.options)) == (EqualizationLoss, {"gamma": 0.95, "threshold": 3e-3})
    balanced = table1.recipe_of(Cell("cifar100-lt", 200, "balanced_softmax", 0))
    assert (balanced.loss, dict(balanced.options)) == (BalancedSoftmaxLoss, {"tau": 1.0})
    beta = {name: table1.recipe_of(Cell(name, 10, "class_balanced", 0)).options["beta"] for name in table1.DATA_SETS}
    assert beta == {"cifar10-lt": 0.9999, "cifar100-lt": 0.9}
    assert table1.recipe_of(Cell("cifar10-lt", 10, "cbs", 0)).sampler == "class_balanced"


def test_choices_differ_from_the_table_only_in_what_is_chosen() -> None:
    recipes = {cell: table1.choice_recipe_of(cell) for cell in table1.choices_plan()}
    assert len(recipes) == 12
    for cell, recipe in recipes.items():
        assert replace(recipe, nesterov=False, loss=BASE.loss, options={}) == BASE, cell
    assert {cell.imbalance for cell in recipes} <= {100, 200}  # the draw at 10 leaves nothing out


# -------------------------------------------------------------------- the command


def test_only_and_seeds_take_a_part_and_what_is_recorded_is_not_missing(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "cifar-100-python").mkdir()

    def wanted(*only: str, seeds: list[int] | None = None) -> list[str]:
        options = RunOptions(only, seeds, tmp_path / "new.jsonl", tmp_path)
        missing = missing_cells(asked_cells(table1.plan(), options), options.recorded("table1", Record))
        return [str(cell) for cell in present_cells(missing, tmp_path)]

    assert wanted("cifar100-lt/100/balanced_softmax", seeds=[0, 2]) == [
        "cifar100-lt/100/balanced_softmax/0",
        "cifar100-lt/100/balanced_softmax/2",
    ]
    assert len(wanted("cifar10-lt/10")) == 24  # 100 is not within 10
    append_record(tmp_path / "new.jsonl", a_record(method="eql", seed=1))
    assert wanted("cifar10-lt/10/eql/1") == []
    assert len(wanted("cifar10-lt/10")) == 23
    with pytest.raises(typer.BadParameter, match=r"--only cifar10/10: the nearest is cifar10-lt/10$"):
        wanted("cifar10/10")
    with pytest.raises(typer.BadParameter, match=r"the nearest is cifar10-lt/200/balanced_softmax$"):
        wanted("cifar10-lt/200/balanced-softmax")
    with pytest.raises(typer.BadParameter, match=r"the nearest is cifar100-lt/100/crt/1$"):
        wanted("/cifar100-lt/100/crt/1/5/")


def test_a_part_that_is_not_planned_with_these_seeds_is_refused() -> None:
    plan = [Cell("cifar10-lt", 100, "one", 0), Cell("cifar10-lt", 100, "two", 1)]
    with pytest.raises(typer.BadParameter, match=r"--seeds \[1\]: the plan has seed 0 for --only cifar10-lt/100/one"):
        asked_cells(plan, RunOptions(["cifar10-lt/100/one"], [1]))


def test_run_trains_records_and_does_not_train_again(tmp_path: Path, tiny: None) -> None:
    write_cifar10(tmp_path / "data")
    out = tmp_path / "out" / "new.jsonl"
    arguments = ["run", "table1", "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    arguments += ["--results", str(tmp_path / "results"), "--only", "cifar10-lt/10/ldam", "--commit", "abc"]
    result = CliRunner().invoke(app, [*arguments, "--seeds", "0", "1"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "2 runs recorded" in result.output
    assert [(one.method, one.seed, one.commit) for one in read_jsonl(out)] == [("ldam", 0, "abc"), ("ldam", 1, "abc")]
    result = CliRunner().invoke(app, ["records", "import", str(out), "--results", str(tmp_path / "results")])
    assert "2 new records" in result.output
    assert len(read_records(tmp_path / "results")) == 2
    out.unlink()
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "1 run to train, on cpu\n" in result.output


def test_a_warning_about_the_data_is_a_line_of_its_own(tmp_path: Path, tiny: None) -> None:
    write_cifar10(tmp_path)
    arguments = ["run", "table1", "--data", str(tmp_path), "--out", str(tmp_path / "new.jsonl"), "--device", "cpu"]
    arguments += ["--only", "cifar10-lt/10/eql/0", "--results", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    (line,) = result.stderr.splitlines()
    assert re.fullmatch(r"in \S+cifar-10-batches-py the MD5 of .* is not the official one: reading it as it is", line)


def test_where_nothing_is_missing_it_says_where_the_records_are(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "new.jsonl"
    lines = tmp_path / "old.jsonl"
    for seed in (0, 1):
        append_record(lines, a_record(seed=seed))
    import_records(lines, results)
    arguments = ["run", "table1", "--data", str(tmp_path), "--results", str(results), "--out", str(out)]
    arguments += ["--device", "cpu", "--only", "cifar10-lt/10/softmax", "--seeds", "0", "1"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    again = "(pass --results with another folder to train them again)"
    assert result.output == f"nothing left to train: 2 have a record under {results} {again}\n"
    append_record(out, a_record(seed=2))
    result = CliRunner().invoke(app, [*arguments, "2"], catch_exceptions=False)
    both = "(pass --results with another folder and --out with another file to train them again)"
    told = f"2 have a record under {results}, 1 has a record in {out} {both}"
    assert result.output == f"nothing left to train: {told}\n"
    assert not (tmp_path / "checkpoints").exists()


def refused(*arguments: str) -> str:
    """What a command that must not work says, on one line."""
    result = CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_data_that_is_not_there_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    none = ("--results", str(tmp_path / "none"))
    both = refused("table1", "--data", str(tmp_path / "nowhere"), *none)
    assert "nowhere does not hold cifar-10-batches-py nor cifar-100-python" in both
    assert "or --download" in both
    write_cifar10(tmp_path)
    one = refused("table1", "--data", str(tmp_path), "--only", "cifar100-lt", *none)
    assert "does not hold cifar-100-python: pass the folder that has it as --data" in one


@pytest.mark.parametrize("options", [(), ("--download",)])
def test_the_folder_of_a_data_set_itself_gets_a_hint(options: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    said = refused("table1", "--data", str(folder), "--device", "cpu", "--results", str(tmp_path / "none"), *options)
    assert f"{folder} is cifar-10-batches-py itself: pass its parent, --data {tmp_path}" in said


@pytest.mark.parametrize("out", ["folder", "file/new.jsonl", "/proc/new.jsonl", "sealed/new.jsonl"])
def test_an_out_that_cannot_be_written_is_refused_before_the_training(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.training.queue.run_cells", lambda *_, **__: pytest.fail("trained"))
    write_cifar10(tmp_path / "data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "sealed").mkdir(mode=0o500)
    if out.startswith("sealed") and os.access(tmp_path / "sealed", os.W_OK):
        pytest.skip("this user may write everywhere")
    arguments = ["--data", str(tmp_path / "data"), "--only", "cifar10-lt/10/eql", "--device", "cpu"]
    said = refused("table1", *arguments, "--out", str(tmp_path / out), "--results", str(tmp_path))
    assert f"--out {tmp_path / out} cannot be written (" in said
    assert "name another file" in said


def test_kernels_are_deterministic_unless_they_are_to_be_timed() -> None:
    place = torch.device("cpu")
    asked = [KernelOptions(), KernelOptions(timed=True), KernelOptions(compiled=True)]
    found = [kernels_of(place, one) for one in asked]
    assert [(kernels.deterministic, kernels.compiled) for kernels in found] == [
        (True, False),
        (False, False),
        (True, True),
    ]
    for refused_here in (KernelOptions(fused=True), KernelOptions(fused=True, compiled=True)):
        with pytest.raises(typer.BadParameter, match="--fused needs a GPU and replaces --compile"):
            kernels_of(place, refused_here)


@pytest.mark.parametrize("checkpoints", ["file", "file/below", "/proc"])
def test_checkpoints_that_cannot_be_written_are_refused_before_the_training(
    checkpoints: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.training.queue.run_cells", lambda *_, **__: pytest.fail("trained"))
    write_cifar10(tmp_path / "data")
    (tmp_path / "file").touch()
    arguments = ["--data", str(tmp_path / "data"), "--only", "cifar10-lt/10/eql", "--device", "cpu"]
    arguments += ["--out", str(tmp_path / "new.jsonl"), "--results", str(tmp_path)]
    said = refused("table1", *arguments, "--checkpoints", str(tmp_path / checkpoints))
    assert f"{tmp_path / checkpoints} cannot be written (" in said
    assert "name a folder with --checkpoints" in said
    assert not (tmp_path / "new.jsonl").exists()


def test_looking_whether_out_can_be_written_leaves_it_as_it_was(tmp_path: Path) -> None:
    commands.check_writable(tmp_path / "below" / "new.jsonl", tmp_path / "checkpoints")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["below", "checkpoints"]
    (tmp_path / "old.jsonl").write_text("")
    commands.check_writable(tmp_path / "old.jsonl", tmp_path / "checkpoints")
    assert (tmp_path / "old.jsonl").read_text() == ""


def test_a_fault_of_the_program_in_training_is_no_wrong_option(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("'NoneType' object is not subscriptable")

    monkeypatch.setattr("equipoise.training.classification_runs.Classification.train", broken)
    write_cifar10(tmp_path / "data")
    data = ["--data", str(tmp_path / "data"), "--device", "cpu", "--out", str(tmp_path / "new.jsonl")]
    words = ["--results", str(tmp_path), "--only", "cifar10-lt/100/softmax/0"]
    result = CliRunner().invoke(app, ["run", "table1", *data, *words])
    assert isinstance(result.exception, TypeError)


def test_runs_that_another_process_has_recorded_are_not_to_go(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "new.jsonl", ["--only", "cifar10-lt/100/softmax/0", "--only", "cifar10-lt/100/softmax/1"]

    def trained_elsewhere(cells: list[Cell], *_: object, **__: object) -> list[Cell]:
        append_record(out, a_record(imbalance=100))
        return []

    monkeypatch.setattr("equipoise.training.queue.run_cells", trained_elsewhere)
    write_cifar10(tmp_path / "data")
    data = ["--data", str(tmp_path / "data"), "--device", "cpu", "--out", str(out), "--results", str(tmp_path)]
    result = CliRunner().invoke(app, ["run", "table1", *data, *words])
    assert f"0 runs recorded in {out}, 1 to go" in result.output


@pytest.mark.parametrize("validate", [False, True])
def test_a_blank_image_is_named_before_anything_is_trained(
    validate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.training.queue.run_cells", lambda *_, **__: pytest.fail("trained"))
    write_cifar10(tmp_path / "whole")
    with pytest.warns(UserWarning, match="MD5"):
        drawn = long_tailed_cifar(load_cifar(tmp_path / "whole", "cifar10"), 200)
    blank = int(held_out(drawn)[0] if validate else drawn.indices[0])
    write_cifar10(tmp_path / "holed", blank=blank)
    arguments = ["--data", str(tmp_path / "holed"), "--only", "cifar10-lt/200", "--device", "cpu"]
    arguments += ["--out", str(tmp_path / "new.jsonl"), "--results", str(tmp_path)]
    said = refused("table1", *arguments, *["--validate"] * validate)
    what = "the held-out set" if validate else "the draw at imbalance 200"
    assert f"{what} selects 1 blank image of cifar10 (training image {blank} is the first)" in said
    assert "the MD5 of" in said


def test_a_damaged_file_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    (write_cifar10(tmp_path) / "test_batch").unlink()
    words = ("--only", "cifar10-lt/10/eql", "--device", "cpu", "--results", str(tmp_path))
    said = refused("table1", "--data", str(tmp_path), *words)
    assert "test_batch is missing: unpack https://" in said


def test_runs_of_a_data_set_that_is_not_there_are_left_out_aloud(tmp_path: Path, capsys: Any) -> None:
    write_cifar10(tmp_path)
    cells = present_cells(asked_cells(table1.plan(), RunOptions(seeds=[0])), tmp_path)
    assert {cell.data_set for cell in cells} == {"cifar10-lt"}
    assert "does not hold cifar-100-python: skipping 35 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["3"], "unexpected extra argument"),
        (["--seeds", "0", "1", "x"], "unexpected extra argument"),
        (["--seeds", "0", "7"], "--seeds [0, 7]: the plan has seeds 0, 1, 2"),
        (["--only", "cifar100-lt/60"], "nothing in the plan matches --only cifar100-lt/60"),
        (["--together", "0"], "Invalid value for '--together'"),
        (["--iterations", "0"], "Invalid value for '--iterations'"),
        (["--device", "cpuu"], "--device cpuu: only cpu, cuda and cuda:N are supported"),
        (["--device", "mps"], "--device mps: only cpu, cuda and cuda:N are supported"),
        (["--device", "cuda:9999"], "--device cuda:9999, but torch sees"),
    ],
    ids=[
        *("bare number", "word", "unknown seed", "unknown part", "no run at a time", "no iteration"),
        *("no device", "another device", "no such GPU"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused("table1", *arguments, "--data", str(tmp_path))


def test_seeds_may_stand_anywhere_among_the_options() -> None:
    assert repeated(["--seeds", "0", "1", "2"]) == ["--seeds", "0", "--seeds", "1", "--seeds", "2"]
    assert repeated(["--seeds", "0", "--seeds", "1"]) == ["--seeds", "0", "--seeds", "1"]
    assert repeated(["--budget", "9", "1"]) == ["--budget", "9", "1"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "torch sees no GPU" in refused("table1", "--data", str(tmp_path), "--device", "cuda")


def test_a_smoke_test_is_repeated_only_with_another_length(tmp_path: Path, tiny: None) -> None:
    write_cifar10(tmp_path / "data")
    out = tmp_path / "new.jsonl"
    arguments = ["run", "table1", "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    arguments += ["--only", "cifar10-lt/10/eql/0", "--results", str(tmp_path)]
    again = f"nothing left to train: 1 has a record in {out} (pass --out with another file to train it again)"
    for options, words in (
        (["--iterations", "2"], "1 run of 2 iterations, for no table, on cpu"),
        ([], "1 run to train, on cpu"),
        (["--iterations", "2"], again),
        (["--iterations", "1"], "1 run of 1 iteration, for no table, on cpu"),
        ([], again),
    ):
        result = CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False)
        assert words in result.output
    assert [(one.iterations, one.complete) for one in read_jsonl(out)] == [(2, False), (3, True), (1, False)]
    assert import_records(out, tmp_path / "results").smoke_tests == 2


QUEUE = ["--only", "--seeds", "--out", "--results", "--budget", "--iterations"]


def test_the_options_of_run_table_and_import_are_these() -> None:
    from typer.main import get_command

    found = get_command(app).commands  # type: ignore[attr-defined]
    tables = found["run"].commands.items()
    options = {
        name: [option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)]
        for name, command in (*found.items(), *tables, *found["records"].commands.items())
    }
    assert [name for name, _ in tables] == [
        "table1",
        "causes",
        "record",
        "FILE.py",
        "table2",
        "voc2012-lt",
        "mosaic-lt",
        "tiny-imagenet-lt",
        "voc-mlt",
        "prior-shift",
    ]
    classifiers = [
        *(*QUEUE, "--validate", "--together", "--device", "--checkpoints", "--commit"),
        *("--compile", "--fused", "--no-deterministic"),
    ]
    for name in ("table1", "causes"):
        assert options[name] == ["--data", *classifiers, "--download"]
    assert options["record"] == [
        *("--data", "--download", "--teachers", "--export", "--next", *classifiers, "--judge"),
    ]
    source = [
        *("--data", "--train", "--val", "--images", "--weights", "--stride", "--workers", "--resident"),
        "--no-resident",
    ]
    assert options["FILE.py"] == [*source, *classifiers, "--download"]
    for name in ("table2", "voc2012-lt", "mosaic-lt"):
        assert options[name] == [
            *(*source, "--backbone", "--size", "--longest", "--federated", *QUEUE, "--validate", "--device"),
            *("--checkpoints", "--commit"),
        ]
    assert options["tiny-imagenet-lt"] == [
        *("--data", *QUEUE, "--validate", "--together", "--device", "--checkpoints", "--commit", "--compile")
    ]
    assert options["voc-mlt"] == [
        *("--data", "--weights", "--stride", *QUEUE, "--together", "--device", "--checkpoints", "--commit", "--compile")
    ]
    assert options["prior-shift"] == [*QUEUE, "--checkpoints", "--commit"]
    assert options["table"] == ["table", "--results", "--write"]
    assert options["import"] == ["source", "--results"]


def test_an_option_is_the_same_for_every_table() -> None:
    from typer.main import get_command

    tables = get_command(app).commands["run"].commands  # type: ignore[attr-defined]
    declared: dict[str, set[tuple[object, ...]]] = {}
    for command in tables.values():
        for option in command.params:
            told = (option.help, option.metavar, option.multiple, str(option.default))
            declared.setdefault(option.opts[0], set()).add(told)
    assert {name for name, told in declared.items() if len(told) > 1} == {"--data"}  # of CIFAR, or of images


def test_options_may_stand_before_the_table(tmp_path: Path) -> None:
    before = ("--data", str(tmp_path), "--results", str(tmp_path / "none"))
    assert "does not hold cifar-10" in refused(*before, "table1")
    assert "holds no train_lt.json" in refused(*before, "voc2012-lt")
    assert "nothing.py is not a file" in refused("--data", str(tmp_path), "nothing.py")


def test_in_80_columns_the_help_of_run_is_not_cut() -> None:
    tables = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "80"})
    assert "Train an experiment: table1, causes, record, table2, voc2012-lt," in tables.output
    result = CliRunner().invoke(app, ["run", "table1", "--help"], env={"COLUMNS": "80"})
    lines = [line.strip(" │") for line in result.output.splitlines()]
    assert "…" not in tables.output + result.output
    assert "equipoise run table1 --data DIR --only cifar10-lt/100 --seeds 0 1 2" in lines
    assert any(line.endswith("Folder with cifar-10-batches-py and") for line in lines)


def test_the_table_of_causes_is_that_of_table_1() -> None:
    result = CliRunner().invoke(app, ["table", "causes"], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "the runs of causes are rendered below Table 1: equipoise table table1 --write" in result.output


def test_a_record_of_another_draw_is_named_by_the_table(tmp_path: Path) -> None:
    append_record(tmp_path / "new.jsonl", a_record(seed=0))
    append_record(tmp_path / "new.jsonl", a_record(seed=1, draw="f" * 16))
    import_records(tmp_path / "new.jsonl", tmp_path)
    result = CliRunner().invoke(app, ["table", "table1", "--results", str(tmp_path)], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "table1/cifar10-lt/10/softmax/1 was trained on other images than the runs beside it" in result.output


# -------------------------------------------------------------------- import


def imported(source: Path, results: Path) -> tuple[int, str]:
    arguments = ["records", "import", str(source), "--results", str(results)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def test_import_says_in_one_line_what_became_of_every_line(tmp_path: Path) -> None:
    lines, results = tmp_path / "new.jsonl", tmp_path / "results"
    append_record(lines, a_record(seed=0))
    assert imported(lines, results) == (0, f"1 new record under {results}\n")
    for change in ({"seed": 1}, {"complete": False}, {"complete": False, "seed": 1}):
        append_record(lines, a_record(**change))
    lines.write_bytes(lines.read_bytes() + a_record(seed=2).to_json().encode()[:300])
    told = "1 was already there, 2 smoke tests and 1 half-written line left out"
    assert imported(lines, results) == (0, f"1 new record under {results}; {told}\n")
    told = "2 were already there, 2 smoke tests and 1 half-written line left out"
    assert imported(lines, results) == (0, f"0 new records under {results}; {told}\n")


def test_records_that_differ_are_listed_and_the_others_laid_out(tmp_path: Path) -> None:
    lines, results = tmp_path / "new.jsonl", tmp_path / "results"
    append_record(lines, a_record(seed=1))
    imported(lines, results)
    lines.unlink()
    for change in ({"seed": 0}, {"seed": 1, "seconds": 60.0}, {"seed": 2}):
        append_record(lines, a_record(**change))
    code, said = imported(lines, results)
    assert code == 1
    first, second = said.splitlines()
    assert first == f"2 new records under {results}; 1 differs from what is there"
    path = results / "table1/cifar10-lt/10/softmax/1.json"
    assert second == f"{path} exists and differs: results are append-only; compare the two by hand"
    assert [(one.seed, one.seconds) for one in read_records(results)] == [(0, 55.5), (1, 55.5), (2, 55.5)]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text("garbage")
    code, said = imported(tmp_path / "new.jsonl", tmp_path / "results")
    assert code == 2
    assert "new.jsonl, line 1 is not JSON: 'garbage'" in said
    assert "Invalid value" in imported(tmp_path / "nothing.jsonl", tmp_path)[1]


# -------------------------------------------------------------------- progress


STATUS = Status(done=40, iterations=100, images_a_second=1234.5, seconds_to_go=90.0)


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with commands.progress() as (say, report):
        say("training")
        report(STATUS)
        monkeypatch.setattr(commands, "SECONDS_BETWEEN_LINES", -1)
        report(STATUS)
    assert capsys.readouterr().out == "training\n  40 of 100 iterations, 1,234 img/s, 90 s to go\n"


def test_in_a_terminal_progress_is_a_bar_under_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(commands, "Console", lambda: Console(file=screen, force_terminal=True, width=120))
    with commands.progress() as (say, report):
        say("training [softmax]")
        report(STATUS)
        say("done")
    shown = screen.getvalue()
    assert "training [softmax]" in shown
    assert "40 of 100" in shown
    assert re.search(r"1,234 img/s, 90 s to go, \d:\d\d:\d\d elapsed", re.sub(r"\x1b\[[\d;]*m", "", shown))
    assert shown.index("40 of 100") < shown.index("done")


# -------------------------------------------------------------------- causes


def test_a_cause_changes_the_draw_or_one_thing_of_the_recipe() -> None:
    assert len(causes.plan()) == len(set(causes.plan())) == 9
    for cause in causes.CAUSES:
        ours = table1.recipe_of(Cell(*cause.cell, 0)).as_dict()
        for cell in cause.runs:
            recipe = causes.recipe_of(cell).as_dict()
            changed = {key for key in ours if recipe[key] != ours[key]}
            if cell.data_set != cause.cell[0]:
                assert cell.data_set.startswith(f"{cause.cell[0]}-draw-")
                assert changed == set()
            else:
                assert changed in ({"iterations", "warmup"}, {"options"})
    with pytest.raises(ValueError, match="is not one of the runs"):
        causes.recipe_of(Cell("cifar10-lt", 200, "softmax", 0))


def test_the_length_of_cbs_is_that_of_the_released_loop() -> None:
    for imbalance in (200, 100):
        images = sum(long_tailed_counts(5000, 10, imbalance))
        loader = math.ceil(5000 * 10 / 512)  # batches that its class-aware sampler fills
        iterations = math.ceil(13_000 / loader) * (images // 512)
        assert causes.recipe_of(Cell("cifar10-lt", imbalance, "cbs_released_length", 0)).iterations == iterations


@pytest.mark.usefixtures("tiny")
@pytest.mark.filterwarnings("ignore:4 of 10 classes have no item")  # the files are that small
def test_another_draw_is_trained_on(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data")
    out = tmp_path / "new.jsonl"
    arguments = ["run", "causes", "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    arguments += ["--results", str(tmp_path / "none")]
    result = CliRunner().invoke(app, [*arguments, "--only", "cifar10-lt-draw-2"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    records = list(read_jsonl(out))
    assert [one.key for one in records] == [
        f"causes/cifar10-lt-draw-2/200/{m}/0" for m in ("softmax", "balanced_softmax")
    ]
    with pytest.warns(UserWarning, match="MD5"):
        drawn = long_tailed_cifar(load_cifar(tmp_path / "data", "cifar10"), 200, draw=2)
    assert {one.draw for one in records} == {drawn.digest}


# -------------------------------------------------------------------- a recipe file


def recipe_file(folder: Path, *changes: tuple[str, str]) -> Path:
    """The example of docs/own-tables.md, shrunk for a CPU."""
    text = (Path(__file__).parents[2] / "docs" / "own-tables.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[2]
    for old, new in (("cifar100-lt", "cifar10-lt"), ("replace(BASE,", "replace(TINY,"), *changes):
        assert old in code
        code = code.replace(old, new)
    tiny = "TINY = replace(BASE, blocks=1, batch_size=4, iterations=3, warmup=1)\nRECIPES"
    (folder / "focal.py").write_text(code.replace("RECIPES", tiny, 1))
    return folder / "focal.py"


def test_the_recipe_file_of_the_documents_is_trained(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data")
    path, out = recipe_file(tmp_path), tmp_path / "new.jsonl"
    arguments = ["run", str(path), "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "--seeds", "1"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [one.key for one in read_jsonl(out)] == [f"focal/cifar10-lt/100/focal_{gamma}/1" for gamma in (0.5, 2.0)]
    assert [one.recipe["options"] for one in read_jsonl(out)] == [{"gamma": 0.5}, {"gamma": 2.0}]


def test_backbones_of_a_recipe_file_are_its_own(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data")
    more = 'for gamma in (0.5, 2.0)} | {"second": replace(TINY, backbone="focal_0.5")}'
    path, out = recipe_file(tmp_path, ("for gamma in (0.5, 2.0)}", more)), tmp_path / "new.jsonl"
    arguments = ["run", str(path), "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    CliRunner().invoke(app, [*arguments, "--seeds", "0", "--only", "cifar10-lt/100/second"], catch_exceptions=False)
    assert [one.method for one in read_jsonl(out)] == ["second"]
    kept = [file.relative_to(tmp_path).as_posix() for file in tmp_path.glob("checkpoints/**/*.pt")]
    assert kept == ["checkpoints/focal/cifar10-lt-100-focal_0.5-0.weights.pt"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("def plan", "def plans"), "does not define plan: see docs/own-tables.md"),
        (('NAME = "focal"', 'NAME = "table1"'), "has NAME = 'table1': give its records a folder of their own"),
        (('NAME = "focal"', 'NAME = "../focal"'), "has NAME = '../focal': expected letters, digits and _ only"),
        (('NAME = "focal"', 'NAME = "my-run"'), "has NAME = 'my-run': expected letters, digits and _ only"),
        (('Cell("cifar10-lt"', 'Cell("svhn"'), "no data set is named 'svhn': expected cifar10-lt, cifar100-lt"),
        (('f"focal_{gamma}"', 'f"focal/{gamma}"'), "plans a method 'focal/0.5': expected a name, without slash"),
    ],
    ids=["no plan", "the paper's folder", "a path", "a dash", "another data set", "a method with a slash"],
)
def test_a_recipe_file_that_will_not_do_is_refused(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    assert words in refused(str(recipe_file(tmp_path, change)), "--data", str(tmp_path))


def test_a_draw_that_cannot_be_made_is_refused_before_the_training(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data")
    path = recipe_file(tmp_path, ('Cell("cifar10-lt", 100', 'Cell("cifar10-lt-draw-1", 10'))
    arguments = ["--data", str(tmp_path / "data"), "--device", "cpu", "--out", str(tmp_path / "new.jsonl")]
    said = refused(str(path), *arguments)
    assert "draw 1 at imbalance 10: other draws are made from the images of the draw at 10" in said


@pytest.mark.parametrize("options", [(), ("--iterations", "1")])
def test_records_of_detectors_are_not_added_to(options: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    out.write_text('{"table": "voc2012-lt", "method": "rfs", "AP_box": 1.0}\n')
    words = refused("table1", "--data", str(tmp_path), "--out", str(out), *options)
    assert "cannot be added to" in words
    assert "name another file" in words
    result = CliRunner().invoke(app, ["records", "import", str(out)], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "line 1" in result.output


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    words = refused("table9", "--data", str(tmp_path))
    assert (
        "no table is named 'table9': expected table1, causes, record, table2, voc2012-lt, mosaic-lt, tiny-imagenet-lt, "
        "voc-mlt, prior-shift, or the path" in words
    )
    assert "is not a file" in refused("nothing.py", "--data", str(tmp_path))
    assert "--validate trains the choices of table1" in refused(
        str(recipe_file(tmp_path)), "--data", str(tmp_path), "--validate"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('{"gamma": gamma}', '{"gamma": object()}'), "its recipe cannot be stored in a record"),
        (("loss=eq.FocalLoss", 'backbone="absent", loss=eq.FocalLoss'), "recipe_of does not know 'absent'"),
    ],
    ids=["an option that is no plain data", "a backbone that is not planned"],
)
def test_a_recipe_that_could_not_be_recorded_is_refused_before_training(
    change: tuple[str, str], words: str, tmp_path: Path
) -> None:
    write_cifar10(tmp_path / "data")
    out = str(tmp_path / "new.jsonl")
    assert words in refused(str(recipe_file(tmp_path, change)), "--data", str(tmp_path / "data"), "--out", out)
