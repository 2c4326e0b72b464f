"""Table 1: its plan, its recipes, its command."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from cifar_files import write_cifar10

from equipoise.commands import records_app, run, wanted_cells
from equipoise.losses import BalancedSoftmaxLoss, EqualizationLoss, LDAMLoss
from equipoise.recipes import table1
from equipoise.recipes.table1 import BASE, Cell, Method
from equipoise.records import read_jsonl, read_records

TABLE = ["softmax", "cbw", "cbs", "focal", "class_balanced", "ldam", "eql", "balanced_softmax"]


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(run)
    made.add_typer(records_app, name="records")
    return made


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's methods, small enough for a CPU."""

    def shrunk(method: Method) -> Method:
        iterations = min(method.recipe.iterations, 3)
        return replace(method, recipe=replace(method.recipe, blocks=1, batch_size=4, iterations=iterations, warmup=1))

    monkeypatch.setattr(table1, "METHODS", tuple(shrunk(method) for method in table1.METHODS))
    monkeypatch.setattr(table1, "BELOW", tuple(shrunk(method) for method in table1.BELOW))


# -------------------------------------------------------------------- the plan


def test_the_plan_holds_every_run_once_and_seed_0_of_all_48_cells_first() -> None:
    plan = table1.plan()
    assert len(plan) == len(set(plan)) == 8 * 6 * 3 + 9 * 3
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


def test_adding_a_line_adds_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Method("focal_2", "Focal, γ = 2", replace(BASE, options={"label_smoothing": 0.1}))
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
    assert len(recipes) == 16
    for cell, recipe in recipes.items():
        assert replace(recipe, nesterov=False, loss=BASE.loss, options={}) == BASE, cell
    assert {cell.imbalance for cell in recipes} <= {100, 200}  # the draw at 10 leaves nothing out


# -------------------------------------------------------------------- the command


def test_only_and_seeds_take_a_part_and_what_is_recorded_is_not_missing(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "cifar-100-python").mkdir()

    def wanted(*only: str, seeds: list[int] | None = None, have: frozenset[str] = frozenset()) -> list[str]:
        cells = wanted_cells(table1.plan(), only=list(only), seeds=seeds, have=set(have), data=tmp_path, table="table1")
        return [str(cell) for cell in cells]

    assert wanted("cifar100-lt/100/balanced_softmax", seeds=[0, 2]) == [
        "cifar100-lt/100/balanced_softmax/0",
        "cifar100-lt/100/balanced_softmax/2",
    ]
    assert len(wanted("cifar10-lt/10")) == 24  # 100 is not within 10
    assert wanted("cifar10-lt/10/eql/1", have=frozenset({"table1/cifar10-lt/10/eql/1"})) == []
    with pytest.raises(typer.BadParameter, match="nothing in the plan matches --only cifar10/10"):
        wanted("cifar10/10")


def test_run_trains_records_and_does_not_train_again(tmp_path: Path, app: typer.Typer, tiny: None) -> None:
    write_cifar10(tmp_path / "data")
    out = tmp_path / "out" / "new.jsonl"
    arguments = ["run", "table1", "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    arguments += ["--results", str(tmp_path / "results"), "--only", "cifar10-lt/10/ldam", "--commit", "abc"]
    with pytest.warns(UserWarning, match="MD5"):
        result = CliRunner().invoke(app, [*arguments, "--seeds", "0", "1"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "2 runs recorded" in result.output
    assert [(one.method, one.seed, one.commit) for one in read_jsonl(out)] == [("ldam", 0, "abc"), ("ldam", 1, "abc")]
    result = CliRunner().invoke(app, ["records", "import", str(out), "--results", str(tmp_path / "results")])
    assert "2 new records" in result.output
    assert len(read_records(tmp_path / "results")) == 2
    out.unlink()
    with pytest.warns(UserWarning, match="MD5"):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "1 runs are missing" in result.output


def test_data_that_is_not_there_is_an_error_with_what_to_do(tmp_path: Path, app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["run", "table1", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "cifar-10-batches-py" in result.output


def test_a_bare_number_without_seeds_is_an_error(tmp_path: Path, app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["run", "table1", "3", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "--seeds 0 1 2" in result.output
