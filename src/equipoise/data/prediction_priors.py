"""Match the training prior with files of predictions: the same classes, with the same names and order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from equipoise.data.predictions import check_once
from equipoise.data.reading import shown
from equipoise.data.sources import Source, read_prior, read_source
from equipoise.prior import IntArray, Prior


class Classes(Protocol):
    """Anything with ordered classes, named or not: a file of predictions, or a model."""

    @property
    def path(self) -> Path: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def columns(self) -> list[str] | None: ...


def aligned(predictions: Classes, prior: Prior, where: str) -> IntArray | None:
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
            raise ValueError(f"{here} has {what}, {there} {instead}: give both the same classes")
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
    source = read_prior(path, column=column, counts_of=opened.num_classes)
    prior, where = _completed(source, [opened])
    columns = aligned(opened, prior, where)
    return prior if columns is None else _ordered(prior, np.argsort(columns), opened.columns)


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
