"""Train tables of CIFAR classifiers: what `equipoise run table1` and `causes` do."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import typer

from equipoise.cli.options import KernelOptions, RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.data.cifar import LAYOUTS, found_data_sets, held_out, source_of
from equipoise.data.reading import counted
from equipoise.experiments.table1 import causes
from equipoise.experiments.table1 import recipe as table1
from equipoise.training.classification import compiled_features, features
from equipoise.training.classification_runs import Classification, Kernels, Store
from equipoise.training.kinds import Settings
from equipoise.training.methods import balances_twice
from equipoise.training.recipe import Cell, Recipe
from equipoise.training.records import Record


@dataclass(frozen=True)
class ClassifierTable:
    """The content of a recipe file: the name of its records, the runs in order, and the recipe of each."""

    name: str
    plan: Sequence[Cell]
    recipe_of: Callable[[Cell], Recipe]
    checkpoints: str = ""  # the folder below --checkpoints: methods of other files may have the same names


def train_classifiers(
    table: ClassifierTable, options: RunOptions, asked_kernels: KernelOptions, data: Path, *, download: bool
) -> None:
    """Train the missing runs of a table."""
    place = device_of(options.device)
    kernels = kernels_of(place, asked_kernels)
    asked = asked_cells(table.plan, options)
    recorded = options.recorded(table.name, Record)
    cells = present_cells(missing_cells(asked, recorded), data, download=download)
    if not cells:
        return
    check_recipes(cells, table.recipe_of)
    needed = needed_by(cells, table.recipe_of)
    check_widths([*cells, *needed], table.recipe_of, kernels)
    recipes = [table.recipe_of(cell) for cell in (*table.plan, *needed)]
    backbones = {method for recipe in recipes for method in (recipe.backbone, recipe.teacher) if method}
    options = replace(options, checkpoints=options.kept / table.checkpoints, together=sharing(options, place))

    def make(settings: Settings) -> Classification:
        store = Store(data, place, download=download)
        read_draws(store, cells, options.validate)
        return Classification(table.name, table.recipe_of, store, settings, kernels=kernels, backbones=backbones)

    train_cells(cells, options, recorded, place, make)


def kernels_of(place: torch.device, asked: KernelOptions) -> Kernels:
    """The requested kernels."""
    if asked.fused and (place.type != "cuda" or asked.compiled):
        raise typer.BadParameter("--fused needs a GPU and replaces --compile: pass only one of the two")
    frozen = compiled_features() if asked.compiled else features
    trained = answers = frozen
    version = 0
    if asked.fused:
        from equipoise.experiments.resnet32.fused import VERSION as version  # needs Triton
        from equipoise.experiments.resnet32.fused import fused_answers as answers
        from equipoise.experiments.resnet32.fused import fused_features as trained
    return Kernels(trained, frozen, answers, asked.compiled, version, deterministic=not asked.timed)


def sharing(options: RunOptions, place: torch.device) -> int:
    """How many runs share the device."""
    return options.together or (4 if place.type == "cuda" else 1)


# -------------------------------------------------------------------- what to train


def table_of(name: str, validate: bool = False) -> ClassifierTable:
    """The recipes of a table of the paper."""
    if validate and name != table1.NAME:
        raise typer.BadParameter(f"--validate trains the choices of {table1.NAME}: leave it out for {name}")
    if validate:
        return ClassifierTable("choices", table1.choices_plan(), table1.choice_recipe_of)
    if name == table1.NAME:
        return ClassifierTable(name, table1.plan(), table1.recipe_of)
    return ClassifierTable(name, causes.plan(), causes.recipe_of, name)


def check_recipes(cells: Sequence[Cell], recipe_of: Callable[[Cell], Recipe]) -> None:
    """Check before training that every recipe exists and can be stored in a record."""
    for cell in cells:
        try:
            for one in (cell, *needed_by([cell], recipe_of)):
                json.dumps(recipe_of(one).as_dict())
        except KeyError as error:
            raise typer.BadParameter(f"{cell}: recipe_of does not know {error}") from None
        except (TypeError, AttributeError) as error:
            raise typer.BadParameter(
                f"{cell}: its recipe cannot be stored in a record ({error}): options must be numbers, text or lists of "
                "them, and the loss a class or a named function"
            ) from None
    tell_of_twice({cell.method: recipe_of(cell) for cell in cells})


def tell_of_twice(recipes: Mapping[str, Recipe]) -> None:
    """Warn of methods that balance the classes twice, and are trained all the same."""
    for name, recipe in recipes.items():
        if balances_twice(recipe):
            words = "samples the classes equally often, and its loss balances the prior of the data on top of it"
            typer.echo(f"WARNING: {name} {words}: it favours rare classes too much", err=True)


def needed_by(cells: Sequence[Cell], recipe_of: Callable[[Cell], Recipe]) -> list[Cell]:
    """The runs that these start from or learn from, and those that these need in turn."""
    found: dict[Cell, None] = {}

    def add_what_is_needed(cell: Cell, chain: tuple[str, ...]) -> None:
        recipe = recipe_of(cell)
        start = [] if recipe.backbone is None else [replace(cell, method=recipe.backbone)]
        for one in (*start, *recipe.teacher_cells(cell)):
            if one.method in chain:
                raise typer.BadParameter(f"{' needs '.join([*chain, one.method])}: a method cannot need itself")
            if one not in found:
                found[one] = None
                add_what_is_needed(one, (*chain, one.method))

    for cell in cells:
        add_what_is_needed(cell, (cell.method,))
    return list(found)


def check_widths(cells: Sequence[Cell], recipe_of: Callable[[Cell], Recipe], kernels: Kernels) -> None:
    """Refuse fused kernels for a network that is too wide for them, before anything is trained."""
    if not kernels.fused:
        return
    from equipoise.experiments.resnet32.fused import fits  # needs Triton

    for cell in cells:
        if not fits(width := recipe_of(cell).width):
            raise typer.BadParameter(f"--fused has no kernels for {cell}, of width {width}: pass --compile instead")


def read_draws(store: Store, cells: Sequence[Cell], validate: bool) -> None:
    """Read every draw that is needed, so that errors are reported before training starts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            for data_set, imbalance in dict.fromkeys((cell.data_set, cell.imbalance) for cell in cells):
                with refusing():
                    drawn, _ = store.get(data_set, imbalance)
                    if validate:
                        held_out(drawn)
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                typer.echo(text, err=True)


def present_cells(cells: list[Cell], data: Path, *, download: bool = False) -> list[Cell]:
    """The cells whose data exists. If only some of it is missing, its runs are left out with a message."""
    own = [layout.folder for layout in LAYOUTS.values() if data.resolve().name == layout.folder]
    if cells and own and data.is_dir() and not found_data_sets(data):
        raise typer.BadParameter(f"{data} is {own[0]} itself: pass its parent, --data {data.resolve().parent}")
    present = set(LAYOUTS) if download else set(found_data_sets(data))
    absent = {layout.folder: name for name, layout in LAYOUTS.items() if name not in present}
    left = [cell for cell in cells if source_of(cell.data_set)[0] in absent.values()]
    lacks = f"{data} does not hold {' nor '.join(absent)}"
    if left and len(left) == len(cells):
        raise typer.BadParameter(f"{lacks}: pass the folder that has it as --data, or --download")
    if left:
        typer.echo(f"{lacks}: skipping {counted(len(left), 'run')}")
    return [cell for cell in cells if cell not in left]
