"""`equipoise table`: an experiment from its records, beside the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from equipoise.cli.shared import Results, refusing
from equipoise.experiments.table1 import causes
from equipoise.experiments.table1 import recipe as table1
from equipoise.training import records as record_files
from equipoise.training.detection_records import COLUMNS, DetectionRecord

if TYPE_CHECKING:
    from equipoise.experiments.prior_shift.recipe import PriorShiftRecord

SHIFT = "prior-shift"
TABLES = ("table2", "voc2012-lt")


def table(
    table: Annotated[str, typer.Argument(help="Which table: table1, table2, voc2012-lt or prior-shift.")],
    results: Results = Path("results"),
    write: Annotated[
        bool, typer.Option("--write", help="Also render it into the documents beside the results, and draw the figure.")
    ] = False,
) -> None:
    """Print the table of an experiment from its records, beside the published numbers."""
    from equipoise.experiments.table1 import report

    if table == SHIFT:
        show_prior_shift(results, write)
        return
    if table in TABLES:
        show_table(table, results, write)
        return
    if table == causes.NAME:
        raise typer.BadParameter(
            f"the runs of {table} are rendered below Table 1: equipoise table {table1.NAME} --write"
        )
    if table != table1.NAME:
        known = ", ".join((table1.NAME, *TABLES, SHIFT))
        raise typer.BadParameter(f"no table is named {table!r}: expected one of {known}")
    with refusing():
        records = report.shown(record_files.read_records(results))
    if not records:
        raise typer.BadParameter(f"{results} holds no record of {table}: pass the folder that does as --results")
    console = Console()
    for data_set, title in report.TITLES.items():
        shown = Table(title=f"{title}: top-1, %, by imbalance", box=box.SIMPLE, padding=(0, 1, 0, 0))  # 80 columns
        for header in ("method", ""):
            shown.add_column(header, no_wrap=True)
        for imbalance in table1.IMBALANCES:
            shown.add_column(str(imbalance), justify="right", no_wrap=True)
        for name, source, texts in report.method_rows(records, data_set):
            ours = source == "ours"
            shown.add_row(name if ours else "", source, *texts, style="bold" if ours else "dim")
        console.print(shown)
    data_set, imbalance = table1.BELOW_CELL
    shown = Table("method", title=f"Under the line: {report.TITLES[data_set]} at {imbalance}")
    for header in ("ours", "companion"):
        shown.add_column(header, justify="right", no_wrap=True)
    for row in report.below_rows(records):
        shown.add_row(*row)
    console.print(shown)
    console.print("ours: mean ± standard deviation (n runs); published: mean ± standard error of three runs")
    console.print(report.missing(records))
    if write:
        root = results.resolve().parent
        with refusing():
            choices: list[record_files.Record] = record_files.read_records(results, "choices")
            tried: list[record_files.Record] = record_files.read_records(results, causes.NAME)
        for path, text in report.documents(root, records, choices, tried).items():
            path.write_text(text)
            typer.echo(f"rendered {path.relative_to(root)}")
        typer.echo(f"drew {report.write_figure(root, records).relative_to(root)}")


def show_table(table: str, results: Path, write: bool) -> None:
    """`equipoise table table2 | voc2012-lt`: print it, and with `write` render it into the documents."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from equipoise.experiments.table2 import recipe as table2
    from equipoise.experiments.table2 import report
    from equipoise.experiments.voc2012_lt import recipe as voc2012_lt

    if not results.is_dir():
        raise typer.BadParameter(f"{results} is not there: pass the folder of the records as --results")
    console = Console()
    methods = voc2012_lt.METHODS if table == voc2012_lt.NAME else table2.METHODS
    titles = [(method.name, method.title) for method in methods]
    for backbone in ("resnet50",) if table == voc2012_lt.NAME else report.TITLES:
        name = table if table == voc2012_lt.NAME else f"{table}/{backbone}"
        with refusing():
            records = record_files.read_records(results, name, DetectionRecord)
        what = "VOC2012-LT" if table == voc2012_lt.NAME else f"LVIS v1, {report.TITLES[backbone]}"
        shown = Table(title=f"{what}: average precision, %", box=box.SIMPLE, padding=(0, 1, 0, 0))
        shown.caption = "ours: mean ± standard deviation of n runs"
        rows = report.method_rows(records, titles, backbone)
        headers: tuple[str, ...] = ("method", "", *COLUMNS, "n")
        if table == voc2012_lt.NAME:  # the paper has none
            rows = [(row[0], *row[2:]) for row in rows if row[1] == "ours"]
            headers = ("method", *COLUMNS, "n")
        _print_whole(console, shown, headers, rows)
        if table == voc2012_lt.NAME:
            if differences := report.beside_control(records, titles):
                control = dict(titles).get(report.CONTROL, report.CONTROL)
                beside = Table(title=f"Beside {control!r} of the same seed", box=box.SIMPLE, padding=(0, 1, 0, 0))
                _print_whole(console, beside, ("difference", *COLUMNS, "n"), differences)
            console.print(
                report.orders_compared(records, titles) if records else f"{results} holds no record of it yet"
            )
    if write:
        root = results.resolve().parent
        for path, text in report.documents(root, results).items():
            path.write_text(text)
            typer.echo(f"rendered {path.relative_to(root)}")


def _print_whole(console: Console, shown: Table, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of which a narrow terminal may break lines, but of which no number is cut off."""
    from rich.measure import Measurement

    shown.add_column(headers[0])
    for place, header in enumerate(headers[1:], start=1):
        longest = max(len(row[place]) for row in rows)
        shown.add_column(header, justify="right" if header else "left", no_wrap=True, min_width=longest)
    for row in rows:
        shown.add_row(*row, style="bold" if row[1] == "ours" else "dim" if row[1] == "paper" else None)
    needed = Measurement.get(console, console.options.update(max_width=1000), shown).minimum
    console.width = max(console.width, needed)
    console.print(shown)


def show_prior_shift(results: Path, write: bool) -> None:
    """Print the table of the committed records, and with `write` render the documents and the figure."""
    from equipoise.experiments.prior_shift import report
    from equipoise.experiments.prior_shift.recipe import PriorShiftRecord

    with refusing():
        records = record_files.read_records(results, SHIFT, PriorShiftRecord)
    if not records:
        raise typer.BadParameter(f"{results} holds no record of {SHIFT}: pass the folder that does as --results")
    print_prior_shift(Console(), records)
    if write:
        root = results.resolve().parent
        for path, text in report.documents(root, records).items():
            path.write_text(text)
            typer.echo(f"rendered {path.relative_to(root)}")
        typer.echo(f"drew {report.write_figure(root, records).relative_to(root)}")


def print_prior_shift(console: Console, records: Sequence[PriorShiftRecord]) -> None:
    from equipoise.experiments.prior_shift.recipe import METHODS, SHIFTS
    from equipoise.experiments.prior_shift.report import COLUMNS, values

    for what, title, digits in (("accuracy", "Accuracy, %", 1), ("log_loss", "Log-loss", 2)):
        shown = Table(title=f"{title}, mean over {len({record.seed for record in records})} seeds")
        shown.add_column("test set", no_wrap=True)
        for column in COLUMNS:
            shown.add_column(column.replace("calibrated", "cal.").replace(".,", "."), justify="right")
        for method in METHODS:
            if not any(record.method == method for record in records):
                continue
            shown.add_row(f"[bold]{METHODS[method][0]}")
            for shift, name in SHIFTS.items():
                numbers = (mean(values(records, method, shift, column, what)) for column in COLUMNS)
                shown.add_row(f" {name}", *(f"{number:.{digits}f}" for number in numbers))
            shown.add_section()
        console.print(shown)
    console.print("cal.: bias-corrected temperature scaling, fitted to labelled, held-out images")
