"""Match the training prior, or rates, with files of predictions: the same classes, with the same names and order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from equipoise.arrays import sigmoid
from equipoise.data.predictions import check_once
from equipoise.data.reading import SEPARATORS, read_json, reading, shown
from equipoise.data.sources import Source, numbers_of_json, read_prior, read_source
from equipoise.prior import FloatArray, IntArray, Prior


class Classes(Protocol):
    """Anything with ordered classes, named or not: a file of predictions, or a model."""

    @property
    def path(self) -> Path: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def columns(self) -> list[str] | None: ...


@dataclass(frozen=True)
class Rates:
    """How often each class is present, strictly between 0 and 1, where an item may have several classes or none."""

    values: FloatArray
    class_names: tuple[str, ...] | None = None

    @property
    def num_classes(self) -> int:
        return len(self.values)


def aligned(predictions: Classes, prior: Prior | Rates, where: str) -> IntArray | None:
    """Which column of the file each class of `prior` (read from `where`) is; None if the order is the same.

    Classes are matched by name if both sides have names, otherwise by position.
    """
    names, wanted = predictions.columns, prior.class_names
    if names is None or wanted is None or list(names) == list(wanted):
        if predictions.num_classes != prior.num_classes:
            raise ValueError(
                f"{predictions.path} has {predictions.num_classes} columns of classes, {where} has {prior.num_classes} "
                "classes: both must be those of the model"
            )
        return None
    for one, other, here, there in ((names, wanted, predictions.path, where), (wanted, names, where, predictions.path)):
        missing = [name for name in one if name not in set(other)]
        if missing:
            what = f"the class {shown(missing)!r}" if len(missing) == 1 else f"the classes {shown(missing)}"
            unknown = [name for name in other if name not in set(one)]
            instead = f"has {shown(unknown)} instead" if unknown else "does not"
            table = here == predictions.path and predictions.path.suffix.lower() in (*SEPARATORS, ".parquet")
            hint = ". Columns of a table, except that of the labels, are classes: drop any other" if table else ""
            raise ValueError(f"{here} has {what}, {there} {instead}: give both the same classes{hint}")
        check_once(one, f"{here} has the class")
    place = {name: index for index, name in enumerate(names)}
    return np.array([place[name] for name in wanted], np.int64)


def training_prior(
    path: str | os.PathLike[str], opened: Sequence[Classes], *, column: str | None = None
) -> tuple[Prior, str]:
    """The counts in `path`, with class names from the first file that has any, and where the classes came from."""
    return _completed(read_source(path, column=column, counts_of=opened[0].num_classes), opened)


def prior_of_columns(path: str | os.PathLike[str], opened: Classes, *, column: str | None = None) -> Prior:
    """The counts or probabilities in `path`, with the classes named and ordered like the columns of `opened`."""
    return _of_columns(read_prior(path, column=column, counts_of=opened.num_classes), opened)


def _of_columns(source: Source, opened: Classes) -> Prior:
    prior, where = _completed(source, [opened])
    columns = aligned(opened, prior, where)
    return prior if columns is None else _ordered(prior, np.argsort(columns), opened.columns)


# -------------------------------------------------------------------- rates of several labels per item


def holds_rates(path: Path, *, column: str | None = None) -> bool:
    """Whether a file can only be for items with several labels: rates that do not sum to 1, a table of such labels."""
    stated = _stated_rates(path)
    return abs(stated.values.sum() - 1) > 1e-4 if stated else read_prior(path, column=column).multilabel


def rates_of_columns(path: Path, opened: Classes, *, column: str | None = None) -> Rates:
    """The rates in `path`, stated or counted, with the classes named and ordered like the columns of `opened`.

    A class that was never counted, or in every item, is taken as counted once more or less, with a warning.
    """
    stated = _stated_rates(path)
    if stated is None:
        source = read_prior(path, column=column, counts_of=opened.num_classes)
        _check_total(source, opened)
        prior = _of_columns(source, opened)
        return Rates(sigmoid(prior.logit().double().numpy()), prior.class_names)
    columns = aligned(opened, stated, str(path))
    order = np.arange(stated.num_classes) if columns is None else np.argsort(columns)
    wrong = np.flatnonzero((stated.values <= 0) | (stated.values >= 1))
    if len(wrong):
        name = f"class {wrong[0]}" if stated.class_names is None else shown([stated.class_names[wrong[0]]])
        raise ValueError(f"{path}: the rate of {name} is {stated.values[wrong[0]]:g}: expected it between 0 and 1")
    return Rates(stated.values[order], tuple(opened.columns) if opened.columns else stated.class_names)


def _stated_rates(path: Path) -> Rates | None:
    """Numbers from 0 to 1 in a .json file, by class; None if the file holds anything else."""
    if path.suffix.lower() != ".json" or path.is_dir():
        return None
    with reading(path):
        content = read_json(path)
        values = list(content.values()) if isinstance(content, dict) else content
        numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
        if not numbers or float not in map(type, values) or not all(0 <= value <= 1 for value in values):
            return None
        rates, names = numbers_of_json(content)
    return Rates(rates.astype(np.float64), None if names is None else tuple(names))


def _check_total(source: Source, opened: Classes) -> None:
    """Refuse counts per class without the number of items: their rates are not known."""
    known = not source.prior.counted or source.multilabel or source.labels or source.unit != "items"
    if not known and not (source.path.suffix.lower() == ".json" and "total" in read_json(source.path)):
        raise ValueError(
            f"{source.path} holds counts but not of how many items, and items of {opened.path} may have several "
            'labels: give rates, {"cat": 0.3}, or {"counts": {"cat": 300}, "total": 1000}'
        )


# -------------------------------------------------------------------- inside


def _completed(source: Source, opened: Sequence[Classes]) -> tuple[Prior, str]:
    """The prior of a source, with all classes of the predictions: labels alone do not show a class that never
    occurs."""
    prior, named = source.prior, next((file for file in opened if file.columns is not None), None)
    total = prior.total if source.multilabel and prior.counted else None
    if source.labels and prior.class_names is None:
        absent = [0] * (opened[0].num_classes - prior.num_classes)
        prior = Prior.from_counts([*prior.counts.tolist(), *absent], total)
    elif source.labels and named is not None and named.columns is not None:
        found = dict(zip(prior.class_names or (), prior.counts.tolist(), strict=True))
        prior = Prior.from_counts(dict.fromkeys(named.columns, 0) | found, total)
    if prior.class_names is None and named is not None:
        aligned(named, prior, str(source.path))
        return _ordered(prior, np.arange(prior.num_classes), named.columns), f"{named.path} (with {source.path})"
    return prior, str(source.path)


def _ordered(prior: Prior, order: IntArray, names: list[str] | None) -> Prior:
    if prior.counted:
        return Prior.from_counts(prior.counts[order], prior.total, class_names=names)
    return Prior.from_probabilities(prior.probabilities[order], class_names=names)
