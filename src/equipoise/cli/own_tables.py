"""Tables of the user's own, from a Python file: what `equipoise run FILE.py` and `equipoise table FILE.py` do.

A file defines NAME, the folder of its records, and one of

    METHODS                     recipes by name, one per row: `Recipe`s for any images, `DetectionRecipe`s for
                                COCO-style files; SEEDS, if they are not 0, 1 and 2
    plan() and recipe_of(cell)  for CIFAR-LT: the cells to train, in order, and the recipe of each
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from equipoise.cli.classifiers import ClassifierTable, tell_of_twice, train_classifiers
from equipoise.cli.detectors import train_rows
from equipoise.cli.image_sources import ImageSource, read_lists, readable
from equipoise.cli.image_tables import started, train_image_table
from equipoise.cli.options import KernelOptions, RunOptions, Source
from equipoise.cli.shared import device_of, refusing
from equipoise.data.cifar import source_of
from equipoise.data.reading import visible
from equipoise.experiments.mosaic_lt import recipe as mosaic_lt
from equipoise.experiments.mosaic_lt.report import BOXES
from equipoise.experiments.table2.report import methods_table
from equipoise.models.weights import check_stride
from equipoise.report.tables import Table, grouped, mean_std
from equipoise.training.detection import DetectionRecipe
from equipoise.training.detection_records import COLUMNS, MEASURES, DetectionRecord, columns_at
from equipoise.training.image_records import ImageRecord
from equipoise.training.images import ImageData
from equipoise.training.recipe import Cell, Method, MethodCell, Recipe
from equipoise.training.records import NAMES, Record, Recorded, StoredRecord, names_a_folder, read_records
from equipoise.training.run_folder import source_name, weights_file

# Folders of results/ that are not the user's.
TAKEN = ("choices", "benchmarks", "table1", "causes", "table2", "record", "next", "own")
ACCURACIES = ("top1", "balanced_accuracy", "many", "medium", "few")


@dataclass(frozen=True)
class MethodsTable:
    """A file with METHODS: recipes for images, or for detectors."""

    name: str
    methods: Mapping[str, Recipe] | Mapping[str, DetectionRecipe]
    seeds: Sequence[int]

    @property
    def plan(self) -> list[MethodCell]:
        """Every method with the first seed, then with the next, and so on."""
        return [MethodCell(method, seed) for seed in self.seeds for method in self.methods]

    @property
    def detectors(self) -> bool:
        return isinstance(next(iter(self.methods.values())), DetectionRecipe)


# -------------------------------------------------------------------- read a file


def read_table(path: Path) -> ClassifierTable | MethodsTable:
    """The table of a user's Python file."""
    if not path.is_file():
        raise typer.BadParameter(f"{visible(path)} is not a file")
    try:
        found = runpy.run_path(str(path))
    except (SyntaxError, ImportError, ValueError, TypeError) as error:
        raise typer.BadParameter(f"{path} cannot be run: {type(error).__name__}: {error}") from None
    wanted = ("NAME",) if "METHODS" in found else ("NAME", "plan", "recipe_of")
    missing = [name for name in wanted if name not in found]
    if missing:
        raise typer.BadParameter(f"{path} does not define {', '.join(missing)}: see docs/own-tables.md")
    name = str(found["NAME"])
    if not re.fullmatch(r"\w+", name):
        raise typer.BadParameter(f"{path} has NAME = {name!r}: expected letters, digits and _ only")
    if name in TAKEN:
        raise typer.BadParameter(f"{path} has NAME = {name!r}: give its records a folder of their own")
    try:
        return _with_methods(name, found) if "METHODS" in found else _with_plan(name, found)
    except ValueError as error:
        raise typer.BadParameter(f"{path}: {error}") from None


def _with_methods(name: str, found: Mapping[str, Any]) -> MethodsTable:
    methods, seeds = found["METHODS"], found.get("SEEDS", (0, 1, 2))
    if not isinstance(methods, Mapping) or not methods:
        raise ValueError("METHODS must be a dict of recipes by name")
    kinds = {type(recipe) for recipe in methods.values()}
    if len(kinds) > 1 or not kinds <= {Recipe, DetectionRecipe}:
        raise ValueError("METHODS must hold only Recipes, or only DetectionRecipes")
    for method, recipe in methods.items():
        _check_name(method)
        if isinstance(recipe, Recipe) and recipe.teacher is not None:
            raise ValueError(f"{method} has a teacher: only tables of CIFAR-LT support one")
        _check_start(method, methods)
    if not all(type(seed) is int and seed >= 0 for seed in seeds) or len(set(seeds)) < len(seeds) or not seeds:
        raise ValueError(f"SEEDS is {seeds}: expected different numbers from 0")
    return MethodsTable(name, methods, tuple(seeds))


def _check_start(method: str, methods: Mapping[str, Recipe | DetectionRecipe]) -> None:
    """Check what a method builds on, and what that builds on."""
    chain = [method]
    while (before := _builds_on(methods[chain[-1]])) is not None:
        if before not in methods:
            raise ValueError(f"{chain[-1]} builds on {before!r}, which is not a method of the file")
        if before in chain:
            raise ValueError(f"{' builds on '.join([*chain, before])}: a method cannot build on itself")
        chain.append(before)


def _builds_on(recipe: Recipe | DetectionRecipe) -> str | None:
    return recipe.start if isinstance(recipe, DetectionRecipe) else recipe.backbone


def _with_plan(name: str, found: Mapping[str, Any]) -> ClassifierTable:
    planned = found["plan"]()
    if not isinstance(planned, Iterable) or not (plan := list(dict.fromkeys(planned))):
        raise ValueError("plan() must return the cells to train, a list that is not empty")
    for cell in plan:
        if not (isinstance(cell, Cell) and type(cell.imbalance) is int and type(cell.seed) is int and cell.seed >= 0):
            raise ValueError(f"plans {cell!r}: expected a Cell, as in Cell('cifar100-lt', 100, 'softmax', 0)")
        source_of(cell.data_set)
        _check_name(cell.method)
    return ClassifierTable(name, plan, found["recipe_of"], name)


def _check_name(method: str) -> None:
    if not names_a_folder(method):
        raise ValueError(f"plans a method {method!r}: expected {NAMES}")


# -------------------------------------------------------------------- train it


def train_own(path: Path, options: RunOptions, kernels: KernelOptions, source: Source, *, download: bool) -> None:
    """Train the missing runs of a file's table."""
    table = read_table(path)
    if options.validate:
        raise typer.BadParameter("--validate trains the choices of table1: a file of your own lists what it tries")
    given = {
        "--train": source.train, "--val": source.val, "--images": source.images, "--weights": source.weights,
        "--stride": source.stride, "--workers": source.workers, "--fused": kernels.fused,
        "--no-deterministic": kernels.timed, "--compile": kernels.compiled, "--download": download,
        "--together": options.together, "--resident": source.resident,
    }  # fmt: skip
    for place in (source.data, source.train, source.val, source.images):
        if place is not None and not place.exists() and not download:
            raise typer.BadParameter(f"{place} does not exist: is the path right?")
    if isinstance(table, ClassifierTable):
        of_images = ("--train", "--val", "--images", "--weights", "--stride", "--workers", "--resident")
        _refuse(given, "a table of CIFAR-LT", *of_images)
        if source.data is None:
            raise typer.BadParameter("which data? Give --data, the folder with cifar-10-batches-py or cifar-100-python")
        train_classifiers(table, options, kernels, source.data, download=download)
    elif table.detectors:
        words = ("--fused", "--no-deterministic", "--compile", "--download", "--together")
        _refuse(given, "a table of detectors", *words)
        with refusing():
            check_stride(source.stride)
        rows: list[Method[Any]] = [Method(name, recipe) for name, recipe in table.methods.items()]
        train_rows(table.name, rows, table.seeds, options, source, source.paths(mosaic_lt.find))
    else:
        _refuse(given, "a table of images", "--fused", "--no-deterministic", "--download")
        tell_of_twice(table.methods)  # type: ignore[arg-type]
        _train_images(table, options, source, compiled=kernels.compiled)


def _refuse(given: Mapping[str, Any], what: str, *words: str) -> None:
    """Refuse options that have no meaning for this kind of table."""
    odd = [word for word in words if given[word] not in (None, False)]
    if odd:
        raise typer.BadParameter(f"{odd[0]} has no meaning for {what}: leave it out")


def _train_images(table: MethodsTable, options: RunOptions, source: Source, *, compiled: bool) -> None:
    recipes: dict[str, Any] = dict(table.methods)
    sizes = sorted({recipe.size for recipe in recipes.values()})
    if len(sizes) > 1:
        raise typer.BadParameter(f"the recipes are for images of {sizes} px: give them one size, or two files")
    if (source.data is None) == (source.train is None):
        raise typer.BadParameter("which images? Give --data FOLDER, or --train and --val")
    given = ImageSource(
        source.data, source.train, source.val, source.images, workers=source.workers, resident=source.resident
    )
    start = file = None
    with refusing():
        if source.weights is not None:
            recipes, start = started(recipes, source.weights, source.stride)
            file = source_name(weights_file(source.weights))
        train, test, where = read_lists(given)
    data = ImageData(train, test, sizes[0], where)

    @cache
    def known() -> ImageData:
        return readable(given, data, device_of(options.device), typer.echo)

    with refusing():
        _check_same_images(options.recorded(table.name, ImageRecord), data, known)
    shared: dict[str, Any] = {"compiled": compiled, "start": start, "starts_from": file}
    train_image_table(table.name, recipes, table.plan, known, options, **shared)


def _check_same_images(recorded: Recorded, data: ImageData, known: Callable[[], ImageData]) -> None:
    """Refuse to add to records of other images. `known` are those that can be read, which records are of; all of them
    are decoded only if the lists differ."""
    lines = [*recorded.read(), *read_records(recorded.results, recorded.table, ImageRecord)]
    smoke_test = recorded.smoke_test is not None
    runs = [run for run in lines if isinstance(run, ImageRecord) and run.table == recorded.table]
    found = {(run.trained_on, run.tested_on) for run in runs if run.complete != smoke_test}
    if found <= {(data.train.digest, data.test.digest)}:
        return
    data = known()
    if not found <= {(data.train.digest, data.test.digest)}:
        raise ValueError(
            f"there are records of {recorded.table} on other images, in {recorded.out} or under {recorded.results}: "
            "give the file another NAME, or pass another --out and --results"
        )


# -------------------------------------------------------------------- show it


def shown_own(path: Path, results: Path) -> list[Table]:
    """A file's table from its records: every method that was run, then the differences from the first, by seed."""
    table = read_table(path)
    kind: type[StoredRecord] = ImageRecord
    if isinstance(table, ClassifierTable):
        kind = Record
    elif table.detectors:
        kind = DetectionRecord
    records: list[Any] = read_records(results, table.name, kind)
    if not records:
        raise ValueError(
            f"{results} holds no record of {table.name}: sort them in with equipoise records import RECORDS.jsonl"
        )
    if isinstance(table, ClassifierTable):
        return [_cifar_table(table, records)]
    names = {name: name for name in table.methods}
    if not table.detectors:
        return [_images_table(table, records), *_beside_first(table, records, ("top1", "few"))]
    kinds = COLUMNS if records[0].AP_mask is not None else BOXES
    whole = [methods_table(records, names, columns=columns) for columns in (kinds, MEASURES, columns_at(records))]
    return [*whole, *_beside_first(table, records, (kinds[0], "AP_pool"))]


def _cifar_table(table: ClassifierTable, records: Sequence[Record]) -> Table:
    runs = grouped(records, lambda run: (run.data_set, run.imbalance, run.method))
    columns = dict.fromkeys((cell.data_set, cell.imbalance) for cell in table.plan)
    rows = [
        [method, *(mean_std([run.top1 for run in runs.get((*column, method), ())], n=True) for column in columns)]
        for method in dict.fromkeys(cell.method for cell in table.plan)
    ]
    header = ["method", *(f"{data_set} {imbalance}" for data_set, imbalance in columns)]
    return Table(header, rows, title=f"{table.name}: top-1, %, mean ± standard deviation (seeds)")


def _images_table(table: MethodsTable, records: Sequence[ImageRecord]) -> Table:
    runs = grouped(records, lambda run: run.method)
    rows = [
        [name, *(mean_std([getattr(run, column) for run in alike]) for column in ACCURACIES), str(len(alike))]
        for name in table.methods
        if (alike := runs.get(name, []))
    ]
    header = ["method", "top-1", "balanced", "many", "medium", "few", "n"]
    return Table(header, rows, title=f"{table.name}: accuracy on {records[0].evaluated_on}, %")


def _beside_first(table: MethodsTable, records: Sequence[Any], columns: Sequence[str]) -> list[Table]:
    """Each method's difference from the first method, with the same seed."""
    first = next(iter(table.methods))
    runs = {(run.method, run.seed): run for run in records}
    rows = []
    for name in table.methods:
        pairs = [
            (runs[name, seed], runs[first, seed])
            for seed in table.seeds
            if {(name, seed), (first, seed)} <= runs.keys()
        ]
        if name == first or not pairs:
            continue
        both = [[(getattr(run, column), getattr(other, column)) for run, other in pairs] for column in columns]
        known = [[ours - theirs for ours, theirs in column if None not in (ours, theirs)] for column in both]
        rows.append([name, *(mean_std(values, digits=2, sign=True) for values in known), str(len(pairs))])
    header = ["difference", *("top-1" if column == "top1" else column for column in columns), "seeds"]
    title = f"Difference from {first} with the same seed, mean ± standard deviation"
    return [Table(header, rows, title=title)] if rows else []
