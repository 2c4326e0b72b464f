"""`equipoise inspect`: how long the tail of a training set is."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.cli.shared import given, print_json, refusing
from equipoise.data.reading import counted, shown, visible

if TYPE_CHECKING:
    from equipoise.report.inspection import Inspection

GROUP_STYLES = {"many": "blue", "medium": "yellow", "few": "magenta"}


def inspect(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with one folder per class, CIFAR's folder, labels (.npy, .txt, .csv, .parquet), counts "
            "(.json) or COCO or LVIS annotations (.json); - is stdin. Several labels per item: lists (cat;owl) in a "
            "column called tags or labels, columns of 0 and 1, or targets [N, K] in an .npz file."
        ),
    ],
    column: Annotated[str | None, typer.Option(help="The label column of a .csv or .parquet file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the chart.")] = False,
    page: Annotated[Path | None, typer.Option("--html", help="Also write an HTML page to this file.")] = None,
) -> None:
    """Show how long the tail of a training set is, and what to do about it.

    \bequipoise inspect photos/train
    equipoise inspect train.csv --column species --html tail.html
    cut -f2 labels.tsv | equipoise inspect - --json
    """
    from equipoise.data.sources import read_source
    from equipoise.report.inspection import look

    with refusing(), given([source]) as (path,):
        found = read_source(path, column=column)
        seen = look(replace(found, path=source))
    for note in found.notes:
        typer.echo(visible(f"{source}: {note}"), err=True)
    if as_json:
        print_json(seen.to_dict())
    else:
        show_inspection(seen, Console())
        if found.labels and source.is_dir():
            typer.echo(visible(f"Next: equipoise train {shlex.quote(str(to_train(source)))}"))
    if page is not None:
        from equipoise.report.page import save_inspection

        with refusing():
            save_inspection(seen, page)
        typer.echo(f"page: {visible(page)}", err=as_json)


def to_train(folder: Path) -> Path:
    """The folder that `equipoise train` takes: of a `train` beside a `val` or `test`, the one above."""
    beside = any((folder.parent / name).is_dir() for name in ("val", "test"))
    return folder.parent if folder.name == "train" and beside else folder


def show_inspection(seen: Inspection, console: Console) -> None:
    """Print the output of `equipoise inspect`."""
    from equipoise.report.inspection import chart, scale

    prior = seen.prior
    console.print(Text(visible(seen.source), style="bold"), soft_wrap=True)
    console.print(_facts(seen), soft_wrap=True, highlight=False)
    console.print()
    names = 24 if console.width >= 70 else 12
    counts = max(len(bar.count) for bar in chart(prior, width=1))
    width = max(8, min(60, console.width - 13 - counts - names))
    rows = Table.grid(padding=(0, 1))
    rows.add_column(no_wrap=True, overflow="ellipsis", max_width=names)
    rows.add_column(justify="right", no_wrap=True, min_width=counts)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    last = ""
    for bar in chart(prior, width):
        style = GROUP_STYLES[bar.group]
        heading = bar.group if bar.group != last else ""
        rows.add_row(Text(visible(bar.label)), bar.count, Text(bar.text, style=style), heading)
        last = bar.group
    rows.add_row("", "", Text(scale(prior, width), style="dim"), "log scale")
    console.print(rows)
    console.print()
    groups = Table("group", "classes", seen.unit_in_groups, "share", box=None, pad_edge=False)
    words = {"many": "many (> 100)", "medium": "medium (20 to 100)", "few": "few (< 20)"}
    for name, group in seen.groups.items():
        groups.add_row(words[name], f"{group.classes:,}", f"{group.items:,}", f"{100 * group.share:.1f} %")
    console.print(groups)
    console.print()
    for advice in seen.advice:
        console.print(Text.assemble((f"{advice.title}: ", "bold"), visible(advice.words)))
        if advice.code:
            console.print(Text(f"    {visible(advice.code)}", style="green"), soft_wrap=True)


def _facts(seen: Inspection) -> Text:
    from equipoise.report.inspection import absent_in_words, how_unequal

    prior = seen.prior
    classes = counted(prior.num_classes, "class")
    absent = f"\n{absent_in_words(seen.absent)}: {shown(seen.absent, 6)}" if seen.absent else ""
    return Text(
        f"{counted(prior.total, seen.unit.removesuffix('s'))}, {classes}; {how_unequal(prior)}\n"
        f"{seen.half:,} of {classes} hold{'s' if seen.half == 1 else ''} half of the data{absent}"
    )
