"""`equipoise run`, `table` and `records`: train a table of the paper, and show it from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise import records as record_files
from equipoise.recipes import table1

records_app = typer.Typer(help="Records of runs: one small JSON each.", no_args_is_help=True)


def run(
    table: Annotated[str, typer.Argument(help="Which table of the paper: table1.")],
    data: Annotated[Path, typer.Option(help="Folder with cifar-10-batches-py and cifar-100-python.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="A part: cifar100-lt/100/balanced_softmax, or a shorter prefix. Repeatable."),
    ] = None,
    more: Annotated[list[int] | None, typer.Argument(hidden=True)] = None,
    seeds: Annotated[list[int] | None, typer.Option(help="Only these seeds: --seeds 0 1 2.")] = None,
    out: Annotated[Path, typer.Option(help="Where each record is appended as its run ends.")] = Path("records.jsonl"),
    results: Annotated[Path, typer.Option(help="Records that are there already: these runs are not missing.")] = Path(
        "results"
    ),
    budget: Annotated[float | None, typer.Option(help="Seconds to spend: as many missing runs as fit.")] = None,
    iterations: Annotated[
        int | None, typer.Option(help="A smoke test of so many iterations; never in the table.")
    ] = None,
    validate: Annotated[
        bool, typer.Option(help="The runs that hyper-parameters are chosen from, on held-out images.")
    ] = False,
    together: Annotated[int | None, typer.Option(help="Runs that share the device; 4 on a GPU, 1 on a CPU.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; the GPU if there is one.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the backbone: faster, half a minute at the start.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option(help="Only deterministic cuDNN kernels, chosen without timing.")
    ] = True,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Where unfinished runs and backbones are kept; beside --out.")
    ] = None,
    commit: Annotated[str | None, typer.Option(help="The commit to note in records; git's by default.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch a data set that is not there.")] = False,
) -> None:
    """Train what is still missing of a table, most telling runs first; a record is appended as each run ends."""
    import torch

    from equipoise.train.queue import Settings, Store, run_cells

    if table != table1.NAME:
        raise typer.BadParameter(f"no table is named {table!r}: expected {table1.NAME}")
    if more and not seeds:
        raise typer.BadParameter(f"what is {more}? Seeds are given as --seeds 0 1 2")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    cells = wanted_cells(
        table1.choices_plan() if validate else table1.plan(),
        only=only or [],
        seeds=[*seeds, *(more or [])] if seeds else None,
        have=_recorded(results, out, "choices" if validate else table1.NAME),
        data=data,
        table="choices" if validate else table1.NAME,
        download=download,
    )
    typer.echo(f"{len(cells)} runs are missing, on {record_files.hardware(where)['device']}")
    settings = Settings(
        device=where,
        together=together or (4 if where.type == "cuda" else 1),
        compiled=compiled,
        deterministic=deterministic,
        validate=validate,
        iterations=iterations,
        commit=commit or record_files.current_commit(),
        checkpoints=checkpoints or out.parent / "checkpoints",
        say=typer.echo,
    )
    done = run_cells(
        cells,
        table1.choice_recipe_of if validate else table1.recipe_of,
        Store(data, where, download=download),
        settings,
        table="choices" if validate else table1.NAME,
        write=lambda record: record_files.append_record(out, record),
        budget=float("inf") if budget is None else budget,
        backbones={method.recipe.backbone for method in table1.BELOW if method.recipe.backbone},
    )
    typer.echo(f"{len(done)} runs recorded in {out}, {len(cells) - len(done)} to go")


def wanted_cells(
    plan: list[table1.Cell],
    *,
    only: list[str],
    seeds: list[int] | None,
    have: set[str],
    data: Path,
    table: str,
    download: bool = False,
) -> list[table1.Cell]:
    """The cells of `plan` that were asked for, whose data is there, and that have no record yet."""
    from equipoise.data.cifar import LAYOUTS, found_data_sets

    for part in only:
        if not any(_within(cell, part) for cell in plan):
            raise typer.BadParameter(f"nothing in the plan matches --only {part}: expected e.g. {plan[0]}")
    present = set(LAYOUTS) if download else set(found_data_sets(data))
    if not present:
        folders = " or ".join(layout.folder for layout in LAYOUTS.values())
        raise typer.BadParameter(f"{data} holds neither {folders}: pass the folder that does as --data, or --download")
    return [
        cell
        for cell in plan
        if (not only or any(_within(cell, part) for part in only))
        and (seeds is None or cell.seed in seeds)
        and table1.DATA_SETS[cell.data_set] in present
        and f"{table}/{cell}" not in have
    ]


def _within(cell: table1.Cell, part: str) -> bool:
    return f"{cell}/".startswith(part.strip("/") + "/")


def _recorded(results: Path, out: Path, table: str) -> set[str]:
    found = record_files.read_records(results, table)
    if out.is_file():
        found += [record for record in record_files.read_jsonl(out) if record.table == table]
    return record_files.keys(found)


@records_app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A .jsonl file that `equipoise run` wrote.")],
    results: Annotated[Path, typer.Option(help="The folder of committed records.")] = Path("results"),
) -> None:
    """Lay the records of a .jsonl file out under results/; smoke tests are left out."""
    written = record_files.import_records(source, results)
    typer.echo(f"{len(written)} new records under {results}")
