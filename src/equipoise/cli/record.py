"""Train the record: teachers, then the students that learn from them; what `equipoise run record` does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.cli.classifiers import kernels_of, present_cells, read_draws
from equipoise.cli.options import RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.experiments.record import recipe as record
from equipoise.training.classification_runs import Classification, Store
from equipoise.training.queue import Settings
from equipoise.training.recipe import Cell
from equipoise.training.records import Record, Recorded


@dataclass(frozen=True)
class RecordOptions:
    """What the command takes beside the options of every table."""

    data: Path
    download: bool = False


def train_record(options: RunOptions, own: RecordOptions, **asked_kernels: bool) -> None:
    """Train the students that are missing, and before them the teachers that they need."""
    table, plan = (record.TRIES, record.choices_plan()) if options.validate else (record.NAME, record.plan())
    place = device_of(options.device)
    kernels = kernels_of(place, **asked_kernels)
    recorded, teachers = (options.recorded(name, Record) for name in (table, record.TEACHERS))
    students = missing_cells(asked_cells(plan, options), recorded)
    students = present_cells(students, own.data, download=own.download)
    if not students:
        return
    first = [] if options.validate else unrecorded_teachers(students, teachers)
    together = options.together or (4 if place.type == "cuda" else 1)
    options = replace(options, checkpoints=options.kept / record.NAME, together=together)

    def make(settings: Settings) -> Classification:
        store = Store(own.data, place, download=own.download)
        read_draws(store, students, options.validate)
        tables = {record.TEACHER.name: record.TEACHERS}
        return Classification(
            table, record.recipe_of, store, settings, kernels=kernels, backbones=set(tables), tables=tables
        )

    train_cells(
        [*first, *students], options, recorded, place, make, finished=lambda: recorded.appended() | teachers.appended()
    )


def unrecorded_teachers(students: list[Cell], teachers: Recorded) -> list[Cell]:
    """The teachers of all students that have no record yet. One that has, and whose weights are gone, is trained again
    for its students, and gets no second record."""
    with refusing():
        known = teachers.committed() | teachers.appended()
    every = [teacher for student in students for teacher in record.recipe_of(student).teacher_cells(student)]
    return [teacher for teacher in dict.fromkeys(every) if str(teacher) not in known]
