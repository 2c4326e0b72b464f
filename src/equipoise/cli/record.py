"""Train the record: teachers, then the students that learn from them; what `equipoise run record` does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import typer

from equipoise.cli.classifiers import check_widths, kernels_of, needed_by, present_cells, read_draws, sharing
from equipoise.cli.options import KernelOptions, RecordOptions, RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.experiments.record import published
from equipoise.experiments.record import recipe as record
from equipoise.experiments.record.published import Version
from equipoise.experiments.record.report import of_another_recipe
from equipoise.training.classification import Training
from equipoise.training.classification_runs import Classification, Store
from equipoise.training.kinds import Settings
from equipoise.training.recipe import Cell
from equipoise.training.records import Record, Recorded, read_records


def judge_exported(root: Path, own: RecordOptions, device: str | None) -> None:
    """Evaluate exported students again from their files."""
    from equipoise.experiments.record.exported import exported, judged

    with refusing():
        store = Store(own.data, device_of(device), download=own.download)
        for folder in exported(root):
            for one in judged(folder, store):
                typer.echo(one)


def train_record(options: RunOptions, asked_kernels: KernelOptions, own: RecordOptions) -> None:
    """Train the students that are missing, and before them the teachers that they need; or teachers alone."""
    version = published.NEXT if own.of_next else published.RECORD
    table, plan = (record.TRIES, record.choices_plan()) if options.validate else (record.NAME, record.plan())
    teachers_table = record.TRIED_TEACHERS if options.validate else record.TEACHERS
    place = device_of(options.device)
    kernels = kernels_of(place, asked_kernels)
    recorded, teachers = (options.recorded(name, Record) for name in (table, teachers_table))
    if not options.validate:
        refuse_other_recipes(recorded, version)
    recipe_of = partial(record.recipe_of, version=version)
    table_of = partial(record.teachers_table, version=version, validate=options.validate)

    def to_record(students: list[Cell]) -> list[Cell]:
        """Their teachers, but for those whose records belong to the other table."""
        return [one for one in needed_by(students, recipe_of) if table_of(one) == teachers_table]

    asked = asked_cells(plan if own.teachers else [*plan, *to_record(plan)], options)
    students = [cell for cell in asked if cell in plan]
    named = [cell for cell in asked if cell not in {*plan, *needed_by(students, recipe_of)}]
    left = [*unrecorded(students, recorded), *unrecorded(named, teachers)]
    if not left:
        missing_cells(students or named, recorded if students else teachers)  # tells where the records are
        if own.export:
            typer.echo("--export writes students when they have been trained: there are none")
        return
    cells = present_cells(left, own.data, download=own.download)
    students = [cell for cell in cells if cell in plan]
    theirs = to_record(students)
    known = recorded_weights(theirs, teachers)
    first = unrecorded([*([] if own.teachers else theirs), *(cell for cell in cells if cell not in plan)], teachers)
    check_widths([*first, *students, *needed_by(students, recipe_of)], recipe_of, kernels)
    options = replace(options, checkpoints=options.kept / record.NAME, together=sharing(options, place))
    export = None if own.export is None else export_folder(own.export / version.folder, options.iterations)

    def make(settings: Settings) -> Classification:
        store = Store(own.data, place, download=own.download, validate=options.validate)
        read_draws(store, [*first, *students], options.validate)
        return Classification(
            table,
            recipe_of,
            store,
            settings,
            kernels=kernels,
            backbones=record.teacher_methods(),
            own_table=table_of,
            mark=f"-{version.folder}" if own.of_next else "",
            recorded_weights=known,
            deliver=delivery(export, table),
        )

    def finished() -> set[str]:
        if not options.validate:
            refuse_other_recipes(recorded, version)  # of another command with the same --out
        return recorded.appended() | teachers.appended()

    train_cells([*students, *first], options, recorded, place, make, finished=finished, teachers=own.teachers)
    if own.of_next and options.iterations is None:
        typer.echo(f"to keep them: equipoise records import {options.out} --results {options.results}")


def export_folder(folder: Path, smoke_test: int | None) -> Path:
    """The folder for students, that of smoke tests below it; checked before training."""
    if smoke_test is not None:
        folder /= f"smoke-test-{smoke_test}"
    for module in ("onnx", "onnxscript"):
        if find_spec(module) is None:
            raise typer.BadParameter(f"--export needs {module}: pip install 'equipoise[serve]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(f"--export {folder} cannot be written ({error.strerror or error})") from None
    return folder


def delivery(folder: Path | None, table: str) -> Callable[[Training, Record], None]:
    """What is done with an evaluated run: a student is exported, if requested."""
    if folder is None:
        return lambda run, made: None
    from equipoise.experiments.record.exported import export_student

    def deliver(run: Training, made: Record) -> None:
        if made.table == table:
            typer.echo(f"exported {export_student(folder, run, made)}")

    return deliver


def unrecorded(cells: list[Cell], recorded: Recorded) -> list[Cell]:
    """The runs that have no record yet. A teacher that has one, and whose weights are gone, is trained again for its
    students, and gets no second record."""
    with refusing():
        known = recorded.committed() | recorded.appended()
    return [cell for cell in dict.fromkeys(cells) if str(cell) not in known]


def recorded_weights(teachers: list[Cell], recorded: Recorded) -> dict[Cell, str]:
    """The digests that a table's records give for teachers' weights; none for a smoke test, whose teachers differ."""
    if recorded.smoke_test is not None:
        return {}
    with refusing():
        every = [*read_records(recorded.results, recorded.table), *recorded.read()]
    found = {one.key: one.weights for one in every if isinstance(one, Record) and one.complete}
    return {teacher: found[key] for teacher in teachers if (key := f"{recorded.table}/{teacher}") in found}


def refuse_other_recipes(recorded: Recorded, version: Version) -> None:
    """Refuse records of students of another recipe, which would stand for runs of this one."""
    smoke_test = recorded.smoke_test is not None
    with refusing():
        committed: list[Record] = [] if smoke_test else read_records(recorded.results, recorded.table)
        appended = [one for one in recorded.read() if isinstance(one, Record) and one.table == recorded.table]
        for records, way in ((committed, "--results with another folder"), (appended, "--out with another file")):
            for one in records:
                if one.complete != smoke_test and (other := of_another_recipe(one, version)):
                    raise ValueError(f"there is a record of {one.key} that {other}: pass {way}")
