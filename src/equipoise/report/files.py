"""Evaluate files of predictions and folders of run records: what `equipoise report` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from equipoise.data.prediction_priors import aligned
from equipoise.data.predictions import Predictions
from equipoise.metrics.evaluation import BINS, Evaluation
from equipoise.metrics.judging import Judged, judge
from equipoise.metrics.multilabel_judging import JudgedMultilabel, judge_multilabel
from equipoise.metrics.sweep import LogitsMean
from equipoise.prior import FloatArray, Prior
from equipoise.report.tables import grouped
from equipoise.training.image_records import PREDICTIONS, RECORD, ImageRecord
from equipoise.training.records import Record

SWEPT_ROWS = 100_000  # rows: the sweep predicts each one 41 times, so with more it uses a seeded sample
SEED = 0
MERGED_AT_ONCE = 16


def judge_file(
    predictions: Predictions,
    prior: Prior,
    where: str,
    *,
    logits_mean: LogitsMean | None,
    advance: Callable[[int], None] = lambda rows: None,
) -> Judged:
    """Evaluate every row, in batches; classes in the order of `prior`, which was read from `where`."""
    columns = aligned(predictions, prior, where)
    place = None if columns is None else np.argsort(columns)
    swept = np.arange(predictions.num_items)
    if predictions.num_items > SWEPT_ROWS:
        swept = np.sort(np.random.default_rng(SEED).choice(predictions.num_items, SWEPT_ROWS, replace=False))
    parts: list[Judged] = []
    for batch in predictions.batches():
        outputs, labels = batch.outputs, batch.labels
        if columns is not None and place is not None:
            outputs, labels = outputs[:, columns], place[labels]
        low, high = np.searchsorted(swept, [batch.first, batch.first + len(labels)])
        part = judge(
            outputs,
            labels,
            prior,
            probabilities=predictions.probabilities,
            logits_mean=logits_mean,
            swept=swept[low:high] - batch.first,
        )
        parts.append(part)
        if len(parts) == MERGED_AT_ONCE:
            parts = [sum(parts[1:], parts[0])]
        advance(len(labels))
    if not parts:
        raise ValueError(f"{predictions.path} has no rows: there is nothing to judge")
    return sum(parts[1:], parts[0])


def judge_multilabel_file(
    predictions: Predictions,
    prior: Prior,
    where: str,
    *,
    threshold: float | FloatArray = 0.5,
    advance: Callable[[int], None] = lambda rows: None,
) -> JudgedMultilabel:
    """Evaluate every row of a file with several labels per item; classes in the order of `prior`, read from `where`.

    Thresholds per class are in the order of the file's columns.
    """
    columns = aligned(predictions, prior, where)
    limits = threshold
    if columns is not None and np.ndim(threshold):
        limits = np.asarray(threshold)[columns]
    parts: list[JudgedMultilabel] = []
    for batch in predictions.batches():
        outputs, labels = batch.outputs, batch.labels
        if columns is not None:
            outputs, labels = outputs[:, columns], labels[:, columns]
        said = predictions.probabilities
        parts.append(judge_multilabel(outputs, labels, prior, probabilities=said, threshold=limits))
        if len(parts) == MERGED_AT_ONCE:
            parts = [sum(parts[1:], parts[0])]
        advance(len(labels))
    whole = sum(parts[1:], parts[0])
    if not whole.evaluation.labelled.any():
        raise ValueError(f"{predictions.path}: every label is missing, so that there is nothing to judge")
    return whole


# -------------------------------------------------------------------- the folder of a run


def predictions_in(folder: Path) -> list[Path]:
    """The files of predictions that `equipoise train` left in the folder of a run or of one method, plain methods
    first; none in a folder of run records."""
    own = folder / PREDICTIONS
    found = [own] if own.is_file() else folder.glob(f"*/{PREDICTIONS}")
    return sorted(found, key=lambda path: _place(path.parent.name))


def method_of(file: Path) -> str | None:
    """The method whose predictions `equipoise train` wrote to a file; None for other files."""
    return file.absolute().parent.name if file.name == PREDICTIONS and file.with_name(RECORD).is_file() else None


def prior_beside(files: Sequence[Path]) -> tuple[Prior, str] | None:
    """The training set in the records beside files of predictions, and where it was read; None if one has no record."""
    if not all(map(method_of, files)):
        return None
    places = [path.with_name(RECORD) for path in files]
    priors = []
    for place in places:
        try:
            record = ImageRecord.from_json(place.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{place} is {error}: pass --counts") from None
        priors.append(Prior.from_counts(record.counts, class_names=record.class_names))
    other = next((place for place, prior in zip(places, priors, strict=True) if prior != priors[0]), None)
    if other is not None:
        raise ValueError(f"{places[0]} and {other} have different counts: pass runs on one training set, or --counts")
    return priors[0], str(places[0])


# -------------------------------------------------------------------- run records


def evaluation_of(record: Record) -> Evaluation:
    """The evaluation in a run's record. It has no bins of confidence, so its ECE is NaN."""
    correct, total = np.asarray(record.correct, np.int64), np.asarray(record.total, np.int64)
    bins = np.zeros((len(correct), BINS), np.int64)
    return Evaluation(
        prior=Prior.from_counts(record.counts),
        correct=correct,
        items=total,
        probability=np.asarray(record.marginal, np.float64) * total.sum(),
        bin_items=bins,
        bin_correct=bins.copy(),
        bin_confidence=np.full(bins.shape, np.nan),
    )


def read_runs(folder: Path) -> dict[str, list[Evaluation]]:
    """The runs below a folder of records, by method, plain methods first; all must share one training set."""
    paths = sorted(path for path in folder.rglob("*.json") if not path.name.startswith("."))
    if not paths:
        raise ValueError(f"{folder} has no .json files: expected a folder of run records")
    records = []
    for path in paths:
        try:
            records.append(Record.from_json(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path} is not a run record: {error}") from None
    sets = {f"{record.data_set}/{record.imbalance}": record.counts for record in records if record.complete}
    if not sets:
        raise ValueError(f"{folder} holds smoke tests only: pass a folder of whole runs")
    if len(sets) > 1:
        raise ValueError(
            f"{folder} holds runs on several training sets ({', '.join(sorted(sets))}): pass the folder of one"
        )
    ordered = sorted((r for r in records if r.complete), key=lambda r: (_place(r.method), r.seed))
    by_method = grouped(ordered, lambda record: record.method)
    return {method: [evaluation_of(record) for record in runs] for method, runs in by_method.items()}


def _place(method: str) -> tuple[bool, bool, str]:
    """Softmax first, Balanced Softmax last: the page opens with them as before and after."""
    return method == "balanced_softmax", method != "softmax", method
