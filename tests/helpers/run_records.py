"""A record as a run of Table 1 would leave it, and the records that a file holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.training.records import AnyRecord, Record, read_lines


def read_jsonl(path: Path, kind: type[AnyRecord] = Record) -> list[AnyRecord]:  # type: ignore[assignment]
    """The whole records of a .jsonl file."""
    return [one for one in read_lines(path, [kind]) if one is not None]


def record(**change: object) -> Record:
    """The record, with some values changed."""
    usual = Record(
        table="table1",
        data_set="cifar10-lt",
        imbalance=100,
        method="softmax",
        seed=0,
        top1=75.0,
        balanced_accuracy=75.0,
        evaluated_on="test",
        iterations=13_000,
        complete=True,
        recipe={"loss": "CrossEntropyLoss", "options": {}},
        draw="0" * 16,
        pixels="1" * 16,
        counts=[3, 1],
        correct=[2, 1],
        total=[2, 2],
        marginal=[0.5, 0.5],
        loss_curve=[2.0, 1.0],
        weights="2" * 16,
        seconds=55.5,
        together=4,
        engine={"deterministic": True},
        commit=None,
        versions={"torch": "2.11"},
        hardware={"device": "cpu"},
    )
    return replace(usual, **change)  # type: ignore[arg-type]
