"""Train the record: teachers, then the students that learn from them; what `equipoise run record` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import typer

from equipoise.cli.classifiers import check_widths, kernels_of, present_cells, read_draws
from equipoise.cli.options import RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.experiments.record import published
from equipoise.experiments.record import recipe as record
from equipoise.experiments.record.published import Changed
from equipoise.experiments.record.report import of_another_recipe
from equipoise.training.classification import Training
from equipoise.training.classification_runs import Classification, Store
from equipoise.training.kinds import Settings
from equipoise.training.recipe import Cell, Recipe
from equipoise.training.records import Record, Recorded, read_records


@dataclass(frozen=True)
class RecordOptions:
    """What the command takes in addition to the options of every table."""

    data: Path
    download: bool = False
    teachers: Path | None = None  # with the weights of all teachers
    export: Path | None = None  # where students are written as files
    coming: bool = False  # train the next recipe


def judge_exported(root: Path, own: RecordOptions, device: str | None) -> None:
    """Evaluate exported students again from their files."""
    from equipoise.experiments.record.exported import exported, judged

    with refusing():
        store = Store(own.data, device_of(device), download=own.download)
        for folder in exported(root):
            for one in judged(folder, store):
                typer.echo(one)


def train_record(options: RunOptions, own: RecordOptions, **asked_kernels: bool) -> None:
    """Train the students that are missing, and before them the teachers that they need; or teachers alone."""
    if own.coming and options.validate:
        raise typer.BadParameter("--validate trains the choices behind every recipe: leave --next out")
    if own.coming:
        options = replace(options, results=options.results / published.NEXT)
    table, plan = (record.TRIES, record.choices_plan()) if options.validate else (record.NAME, record.plan())
    teachers_table = record.TRIED_TEACHERS if options.validate else record.TEACHERS
    place = device_of(options.device)
    kernels = kernels_of(place, **asked_kernels)
    recorded, teachers = (options.recorded(name, Record) for name in (table, teachers_table))
    if not options.validate:
        refuse_other_recipes(recorded, published.NEXT_STUDENTS if own.coming else published.STUDENTS)
    recipe_of = partial(record.recipe_of, coming=own.coming)
    table_of = partial(record.teachers_table, coming=own.coming, validate=options.validate)

    def to_record(students: list[Cell]) -> list[Cell]:
        """Their teachers, but for those whose records belong to the other table."""
        return [one for one in teachers_of(students, recipe_of) if table_of(one) == teachers_table]

    asked = asked_cells(plan if own.teachers else [*plan, *to_record(plan)], options)
    students = [cell for cell in asked if cell in plan]
    named = [cell for cell in asked if cell not in {*plan, *teachers_of(students, recipe_of)}]
    missing = missing_cells(students, recorded) if students else missing_cells(named, teachers)
    if not missing:
        return
    wanted = list(dict.fromkeys([*missing, *unrecorded(named, teachers)]))
    cells = present_cells(wanted, own.data, download=own.download)
    students = [cell for cell in cells if cell in plan]
    theirs = to_record(students)
    known = recorded_weights(theirs, teachers)
    first = unrecorded([*([] if own.teachers else theirs), *(cell for cell in cells if cell not in plan)], teachers)
    check_widths([*first, *students, *teachers_of(students, recipe_of)], recipe_of, kernels)
    together = options.together or (4 if place.type == "cuda" else 1)
    options = replace(options, checkpoints=options.kept / record.NAME, together=together)

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
            recorded_weights=known,
            deliver=delivery(own.export, table),
        )

    def finished() -> set[str]:
        return recorded.appended() | teachers.appended()

    train_cells([*students, *first], options, recorded, place, make, finished=finished, teachers=own.teachers)


def delivery(folder: Path | None, table: str) -> Callable[[Training, Record], None]:
    """What is done with an evaluated run: a student is exported, if requested."""
    if folder is None:
        return lambda run, made: None
    from equipoise.experiments.record.exported import export_student

    def deliver(run: Training, made: Record) -> None:
        if made.table == table:
            typer.echo(f"exported {export_student(folder, run, made)}")

    return deliver


def teachers_of(students: Sequence[Cell], recipe_of: Callable[[Cell], Recipe]) -> list[Cell]:
    """The teachers of all students, each once."""
    return list(dict.fromkeys(one for student in students for one in recipe_of(student).teacher_cells(student)))


def unrecorded(cells: list[Cell], teachers: Recorded) -> list[Cell]:
    """The teachers that have no record yet. One that has, and whose weights are gone, is trained again for its
    students, and gets no second record."""
    with refusing():
        known = teachers.committed() | teachers.appended()
    return [cell for cell in dict.fromkeys(cells) if str(cell) not in known]


def recorded_weights(teachers: list[Cell], recorded: Recorded) -> dict[Cell, str]:
    """The digests that a table's records give for teachers' weights; none for a smoke test, whose teachers differ."""
    if recorded.smoke_test is not None:
        return {}
    with refusing():
        every = [*read_records(recorded.results, recorded.table), *recorded.read()]
    found = {one.key: one.weights for one in every if isinstance(one, Record) and one.complete}
    return {teacher: found[key] for teacher in teachers if (key := f"{recorded.table}/{teacher}") in found}


def refuse_other_recipes(recorded: Recorded, expected: Changed) -> None:
    """Refuse records of students of another recipe, which would stand for runs of this one."""
    with refusing():
        committed: list[Record] = read_records(recorded.results, recorded.table)
        appended = [one for one in recorded.read() if isinstance(one, Record) and one.table == recorded.table]
        for records, way in ((committed, "--results with another folder"), (appended, "--out with another file")):
            for one in records:
                if other := of_another_recipe(one, expected):
                    raise ValueError(f"there is a record of {one.key} that {other}: pass {way}")
