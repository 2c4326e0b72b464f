"""Small pictures of what was confused or missed most, for the page: bounded in number and bytes, and embedded in it.

Only existing files are opened: below the given folder or, if none was given, at absolute paths.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from equipoise.arrays import sigmoid
from equipoise.metrics.evaluation import percent
from equipoise.metrics.intervals import wilson_intervals
from equipoise.metrics.multilabel import KeptScores
from equipoise.report.groups import GROUPS
from equipoise.report.multilabel_data import Model as MultilabelModel
from equipoise.report.page_data import PAIRS, Model, cut

MOST = 48  # pictures of a page
EACH = 2  # of a pair of classes
SIDE = 112  # pixels
MOST_BYTES = 16_000  # of a picture
Paths = Sequence[str] | Mapping[str, Sequence[str]]
Either = TypeVar("Either", Model, MultilabelModel)


class Mistake(NamedTuple):
    """An item to picture: its file, its class, the text below that, how sure the model was, and all of it in words."""

    path: str
    name: str
    below: str
    sure: str
    words: str


def pictures(models: Sequence[Iterable[Mistake]], root: Path | None) -> tuple[list[list[dict[str, Any]]], int]:
    """The first mistakes of each model whose pictures can be shown, and how many files could not be opened."""
    found, missing = [], 0
    for mistakes in models:
        shown: list[dict[str, Any]] = []
        for mistake in mistakes:
            if len(shown) == max(MOST // len(models), 4):
                break
            source = _thumbnail(mistake.path, root)
            missing += source is None
            if source is not None:
                shown.append({"source": source} | {k: v for k, v in mistake._asdict().items() if k != "path"})
        found.append(shown)
    return found, missing


def confused(model: Model) -> Iterator[Mistake]:
    """Items of the pairs in the chart of swallowed classes, the surest of each pair; pairs of all groups in turn."""
    if model.paths is None or model.confusions is None or not model.answers:
        return
    answers, prior = model.answers[0], model.runs[0].prior
    listed = [model.confusions.swallowed(prior, PAIRS, model.groups.get(group, [])) for group in reversed(GROUPS)]
    for pair in _in_turn(listed):
        rows = np.flatnonzero((answers.target == pair.true) & (answers.predicted == pair.predicted))
        name, other = (cut(prior.name(index), 80) for index in (pair.true, pair.predicted))
        right = percent(float(model.correct[pair.true] / model.runs[0].items[pair.true]))
        for row in rows[np.argsort(-answers.confidence[rows], kind="stable")][:EACH].tolist():
            sure = percent(float(answers.confidence[row]))
            words = f"{name}, mistaken for {other} with a confidence of {sure} %; accuracy of {name}: {right} %"
            yield Mistake(model.paths[row], name, f"mistaken for {other}", f"confidence {sure} %", words)


def missed(model: MultilabelModel) -> Iterator[Mistake]:
    """Items with a class that is not predicted, the lowest probabilities first, of the classes of each group that are
    most surely missed (by the lower end of the interval of their share of misses); classes of all groups in turn."""
    kept, evaluation = model.evaluation.scores_, model.evaluation
    if model.paths is None or not isinstance(kept, KeptScores):
        return
    scores, target = kept.joined()
    lost = evaluation.positives - evaluation.hits
    least, _ = wilson_intervals(lost, evaluation.positives)
    surest = [index[lost[index] > 0] for _, index in reversed(model.members)]
    predicted = scores >= evaluation.thresholds
    for j in _in_turn([index[np.argsort(-least[index], kind="stable")][:PAIRS].tolist() for index in surest]):
        rows = np.flatnonzero((target[:, j] == 1) & ~predicted[:, j])
        name, recall = cut(evaluation.prior.name(j), 80), percent(evaluation.hits[j] / evaluation.positives[j])
        for row in rows[np.argsort(scores[rows, j], kind="stable")][:EACH].tolist():
            score = float(scores[row, j])
            chance = f"{percent(score if evaluation.probabilities else float(sigmoid(np.array(score))))} %"
            others = _listed([evaluation.prior.name(index) for index in np.flatnonzero(predicted[row]).tolist()])
            words = f"{name}, missed with a probability of {chance}; {others}; recall of {name}: {recall} %"
            yield Mistake(model.paths[row], name, others, f"probability {chance}", words)


def _in_turn(lists: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """The first of each list, then the second of each, and so on.

    >>> list(_in_turn([[1, 4], [], [2]]))
    [1, 2, 4]
    """
    for place in range(max(map(len, lists), default=0)):
        yield from (found[place] for found in lists if place < len(found))


def _listed(names: Sequence[str], most: int = 3) -> str:
    """What was predicted, in words.

    >>> _listed([]), _listed(["cat", "owl"]), _listed(["a", "b", "c", "d", "e"])
    ('nothing is predicted', 'predicted: cat, owl', 'predicted: a, b, c and 2 more')
    """
    if not names:
        return "nothing is predicted"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"predicted: {', '.join(cut(name, 40) for name in names[:most])}{more}"


def with_paths(models: list[Either], items: Sequence[int], paths: Paths | None) -> list[Either]:
    """The models with the paths of their test items; `items` is how many each has."""
    if paths is None:
        return models
    by_name = paths if isinstance(paths, Mapping) else dict.fromkeys((model.name for model in models), paths)
    found = []
    for model, number in zip(models, items, strict=True):
        known = by_name.get(model.name)
        if known is not None and len(known) != number:
            raise ValueError(f"{len(known)} paths for the {number} test items of {model.name!r}: give one per item")
        found.append(replace(model, paths=None if known is None else tuple(map(str, known))))
    return found


def _thumbnail(path: str, root: Path | None) -> str | None:
    """The picture as a data URL, or None if it cannot be shown."""
    from equipoise.data.image_files import open_rgb, quiet

    file = _existing(path, root)
    if file is None:
        return None
    try:
        with quiet():
            image = open_rgb(file, at_least=SIDE)
    except Exception:  # Pillow may raise anything for a file that is not an image
        return None
    image.thumbnail((SIDE, SIDE))
    for quality in (80, 50, 20):
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=quality)
        if stream.tell() <= MOST_BYTES:
            return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()
    return None


def _existing(path: str, root: Path | None) -> str | None:
    """The file, if it exists: below `root` and nowhere else or, without a root, at an absolute path."""
    if root is None:
        return path if os.path.isabs(path) and os.path.isfile(path) else None
    whole = os.path.realpath(os.path.join(root, path))
    inside = os.path.commonpath([whole, os.path.realpath(root)]) == os.path.realpath(root)
    return whole if inside and os.path.isfile(whole) else None
