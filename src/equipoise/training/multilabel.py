"""Runs of multi-label image classifiers for the queue: those of `images.py`, evaluated by `evaluate_multilabel`.
Labels are zeros and ones [N, K], which losses take as they are."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from equipoise.metrics.multilabel import evaluate_multilabel
from equipoise.training.classification import Training
from equipoise.training.images import ImageClassification
from equipoise.training.kinds import Context
from equipoise.training.multilabel_records import MultilabelRecord
from equipoise.training.progress import in_words
from equipoise.training.recipe import MethodCell
from equipoise.training.records import in_percent

COLUMNS = ("map", "map_head", "map_medium", "map_tail", "micro_ap", "f1_macro", "f1_micro")


class MultilabelClassification(ImageClassification):
    """The kind of runs that `recipes` describe, by method, for images with several labels."""

    def keeps(self, cell: MethodCell) -> bool:
        """What others build on."""
        return any(recipe.backbone == cell.method for recipe in self.recipes.values())

    def judge(self, cell: MethodCell, run: Training, context: Context) -> MultilabelRecord:
        train, test = self.data.train, self.data.test
        logits = torch.cat([run.predict(items).cpu() for items in self.test_items()]).double()
        with warnings.catch_warnings():  # logits of a model that has learned little may all be from 0 to 1
            warnings.filterwarnings("ignore", "these look like probabilities")
            result = evaluate_multilabel(logits, test.labels, train.prior)
        scores = {name: in_percent(value) for name, value in result.scores().items()}
        return MultilabelRecord(
            **self.noted(cell, run, context),
            **{name: scores.pop(name) for name in COLUMNS},  # type: ignore[arg-type]
            scores=scores,
            trained_items=len(train),
            items=len(test),
            positives=result.positives.tolist(),
            predicted=result.predicted.tolist(),
            hits=result.hits.tolist(),
            average_precision=[in_percent(one.average_precision) for one in result.per_class],
            marginal=[float(f"{value:.6g}") for value in logits.sigmoid().mean(0).tolist()],
        )

    def in_words(self, record: Any) -> str:
        shown = ", ".join(f"{name} {value:.1f}" for name in COLUMNS if (value := getattr(record, name)) is not None)
        return f"{shown} on {record.evaluated_on}, {in_words(record.seconds)}"
