"""`equipoise run`: train a table of the paper."""

from __future__ import annotations

import difflib
import json
import re
import runpy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.shared import all_seeds, check_writable, device_of, in_runs, progress, records_in, refusing
from equipoise.data.cifar import LAYOUTS, found_data_sets, held_out, source_of
from equipoise.experiments.table1 import causes
from equipoise.experiments.table1 import recipe as table1
from equipoise.training import records as record_files
from equipoise.training.records import counted

if TYPE_CHECKING:
    from equipoise.training.queue import Store
    from equipoise.training.recipe import Recipe


OURS = {table1.NAME: table1, causes.NAME: causes}  # what `run` trains without a file of the user's
TAKEN = ("choices", "benchmarks", "table2", "own")  # folders of results/ that records of other kinds lie in


# -------------------------------------------------------------------- run


def run(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="table1; causes, what was tried where it differs from the paper; or the path of a recipe file of your "
            "own (docs/table1.md). The others have options of their own: equipoise run table2 --help, and so on.",
        ),
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with cifar-10-batches-py and cifar-100-python in it.")
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="A part, as above; a shorter prefix is a larger part. Repeatable."),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="more seeds")] = None,
    seeds: Annotated[list[int] | None, typer.Option(metavar="N", help="Only these seeds: --seeds 0 1 2.")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where each record is appended as its run ends.")] = Path(
        "records.jsonl"
    ),
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Records that are there already: these runs are not missing.")
    ] = Path("results"),
    budget: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="Seconds to spend: as many missing runs as fit.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="A smoke test of so many iterations; never in the table.")
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="The runs that hyper-parameters are chosen from, on held-out images.")
    ] = False,
    together: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs that share the device; 4 on a GPU, 1 on a CPU.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cpu, cuda or cuda:N; the GPU if there is one.")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the backbone: faster, half a minute at the start.")
    ] = False,
    fused: Annotated[
        bool, typer.Option("--fused", help="Kernels of our own for the backbone (NVIDIA GPU, Triton): the fastest.")
    ] = False,
    timed: Annotated[
        bool,
        typer.Option("--no-deterministic", help="cuDNN's fastest kernels, found by timing, not deterministic ones."),
    ] = False,
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where unfinished runs and backbones are kept; beside --out.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The commit to note in records; git's by default.")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a data set that is not there.")] = False,
) -> None:
    """Train an experiment: table1, causes, table2, voc2012-lt, prior-shift, or a recipe file of your own.

    Most telling runs first, without those that have a record already.
    A record is appended as each ends.

    \bequipoise run table1 --data DIR --budget 3600
    equipoise run table1 --data DIR --only cifar100-lt/100/balanced_softmax
    equipoise run table1 --data DIR --only cifar10-lt/100 --seeds 0 1 2
    """
    from equipoise.training.queue import Settings, Store, run_cells

    recipes = recipes_of(table)
    if validate and recipes is not table1:
        raise typer.BadParameter(f"--validate trains the choices of {table1.NAME}: leave it out for {table}")
    name = "choices" if validate else recipes.NAME
    recipe_of = recipes.choice_recipe_of if validate else recipes.recipe_of
    plan = recipes.choices_plan() if validate else recipes.plan()
    where = device_of(device)
    if fused and (where.type != "cuda" or compiled):
        raise typer.BadParameter("--fused needs a GPU, and does what --compile does: pass one of the two")
    asked = asked_cells(plan, only=only or [], seeds=all_seeds(seeds, more))
    committed, appended = _recorded(results, out, name)
    cells = wanted_cells(
        asked,
        have=committed | appended if iterations is None else set(),
        data=data,
        table=name,
        download=download,
    )
    if not cells:
        keys = {f"{name}/{cell}" for cell in asked}
        typer.echo(_none_missing(len(keys & committed), results, len(keys & appended), out))
        return
    what = "missing" if iterations is None else f"of {counted(iterations, 'iteration')}, for no table"
    check_recipes(cells, recipe_of)
    typer.echo(f"{in_runs(cells)} {what}, on {record_files.hardware(where)['device']}")
    kept = checkpoints or out.parent / "checkpoints"
    kept = kept if recipes is table1 else kept / name  # methods of other files may have the same names
    check_writable(out, kept)
    store = Store(data, where, download=download)
    _read_draws(store, cells, validate)
    with progress() as (say, report):
        settings = Settings(
            device=where,
            together=together or (4 if where.type == "cuda" else 1),
            compiled=compiled,
            fused=fused,
            deterministic=not timed,
            validate=validate,
            iterations=iterations,
            commit=commit or record_files.current_commit(),
            checkpoints=kept,
            say=say,
            report=report,
        )
        done = run_cells(
            cells,
            recipe_of,
            store,
            settings,
            table=name,
            write=lambda record: record_files.append_record(out, record),
            budget=float("inf") if budget is None else budget,
            backbones={method for cell in plan if (method := recipe_of(cell).backbone)},
        )
    typer.echo(f"{in_runs(done)} recorded in {out}, {len(cells) - len(done)} to go")


def recipes_of(table: str) -> ModuleType | SimpleNamespace:
    """The recipes of a table of the paper, or of a Python file that defines NAME, plan() and recipe_of(cell)."""
    if table in OURS:
        return OURS[table]
    path = Path(table)
    if path.suffix != ".py":
        from equipoise.cli.detect import TABLES
        from equipoise.cli.prior_shift import NAME as SHIFT

        known = ", ".join((*OURS, *TABLES, SHIFT))
        raise typer.BadParameter(f"no table is named {table!r}: expected {known}, or the path of a .py file")
    if not path.is_file():
        raise typer.BadParameter(f"{path} is not a file")
    found = SimpleNamespace(**runpy.run_path(str(path)))
    missing = [name for name in ("NAME", "plan", "recipe_of") if not hasattr(found, name)]
    if missing:
        raise typer.BadParameter(f"{path} does not define {', '.join(missing)}: see docs/table1.md")
    if not re.fullmatch(r"\w+", str(found.NAME)):
        raise typer.BadParameter(f"{path} has NAME = {found.NAME!r}: letters, digits and _ only")
    if found.NAME in (*OURS, *TAKEN):
        raise typer.BadParameter(f"{path} has NAME = {found.NAME!r}: give its records a folder of their own")
    plan = found.plan()
    unknown = {cell.data_set for cell in plan if not _is_known(cell.data_set)}
    if unknown:
        expected = ", ".join(table1.DATA_SETS)
        raise typer.BadParameter(f"{path} plans runs on {', '.join(sorted(unknown))}: expected {expected}")
    odd = [cell.method for cell in plan if not record_files.names_a_folder(cell.method)]
    if odd:
        raise typer.BadParameter(f"{path} plans a method {odd[0]!r}: expected {record_files.NAMES}")
    return found


def _is_known(data_set: str) -> bool:
    try:
        return bool(source_of(data_set))
    except ValueError:
        return False


def check_recipes(cells: Sequence[table1.Cell], recipe_of: Callable[[table1.Cell], Recipe]) -> None:
    """Whether every recipe is there and can be noted in a record: before the training, not after it."""
    for cell in cells:
        try:
            recipe = recipe_of(cell)
            if recipe.backbone is not None:
                recipe_of(table1.Cell(cell.data_set, cell.imbalance, recipe.backbone, cell.seed)).as_dict()
            json.dumps(recipe.as_dict())
        except KeyError as error:
            raise typer.BadParameter(f"{cell}: recipe_of knows no {error}") from None
        except (TypeError, AttributeError) as error:
            raise typer.BadParameter(
                f"{cell}: its recipe cannot be noted in a record ({error}): options are numbers, text or lists of "
                "them, and the loss a class or a function with a name"
            ) from None


def _read_draws(store: Store, cells: Sequence[table1.Cell], validate: bool) -> None:
    """Read every draw that is needed: what is wrong with one is said before the first is trained on."""
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


def asked_cells(plan: list[table1.Cell], *, only: list[str], seeds: list[int] | None) -> list[table1.Cell]:
    """The part of the plan that `--only` and `--seeds` name."""
    for part in only:
        if not any(_within(cell, part) for cell in plan):
            raise typer.BadParameter(
                f"nothing in the plan matches --only {part}: the nearest is {_nearest(plan, part)}"
            )
    planned = sorted({cell.seed for cell in plan})
    if seeds is not None and not set(seeds) <= set(planned):
        raise typer.BadParameter(f"--seeds {seeds}: the plan has seeds {', '.join(map(str, planned))}")
    within = [cell for cell in plan if not only or any(_within(cell, part) for part in only)]
    cells = [cell for cell in within if seeds is None or cell.seed in seeds]
    if not cells:
        has = ", ".join(map(str, sorted({cell.seed for cell in within})))
        raise typer.BadParameter(f"--seeds {seeds}: the plan has seed {has} of --only {' '.join(only)}")
    return cells


def _nearest(plan: list[table1.Cell], part: str) -> str:
    """What is planned, as long as `part`, and most like it."""
    words = part.strip("/").count("/") + 1
    parts = dict.fromkeys("/".join(str(cell).split("/")[:words]) for cell in plan)
    (nearest,) = difflib.get_close_matches(part.strip("/"), list(parts), n=1, cutoff=0.0)
    return nearest


def wanted_cells(
    asked: list[table1.Cell], *, have: set[str], data: Path, table: str, download: bool = False
) -> list[table1.Cell]:
    """Those of the cells that have no record yet; their data must be there.

    Where nothing in particular was asked for, a data set that is not there is left out, and that is said.
    """
    cells = [cell for cell in asked if f"{table}/{cell}" not in have]
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
        typer.echo(f"{lacks}: leaving out {in_runs(left)}")
    return [cell for cell in cells if cell not in left]


def _within(cell: table1.Cell, part: str) -> bool:
    return f"{cell}/".startswith(part.strip("/") + "/")


def _recorded(results: Path, out: Path, table: str) -> tuple[set[str], set[str]]:
    """The keys of the runs that have a record under `results`, and of those that have one in `out`."""
    with refusing():
        committed: list[record_files.Record] = record_files.read_records(results, table)
    appended = [record for record in records_in(out, record_files.Record) if record.table == table]
    return record_files.keys(committed), record_files.keys(appended)


def _none_missing(committed: int, results: Path, appended: int, out: Path) -> str:
    """Why there is nothing to train, and how to train it all the same."""
    places = [
        (number, where, instead)
        for number, where, instead in (
            (committed, f"under {results}", "--results with another folder"),
            (appended, f"in {out}", "--out with another file"),
        )
        if number
    ]
    have = ", ".join(f"{number} {'has' if number == 1 else 'have'} a record {where}" for number, where, _ in places)
    them = "it" if max(committed, appended) == 1 else "them"
    return f"0 runs missing: {have} (pass {' and '.join(instead for *_, instead in places)} to train {them} again)"
