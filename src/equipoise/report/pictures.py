"""Small pictures of the worst confusions, for the page: bounded in number and bytes, and embedded in the page itself.

Only existing files are opened: below the given folder or, if none was given, at absolute paths.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.metrics.evaluation import percent
from equipoise.report.groups import GROUPS
from equipoise.report.page_data import PAIRS, Model, cut

MOST = 48  # pictures of a page
EACH = 2  # of a pair of classes
SIDE = 112  # pixels
MOST_BYTES = 16_000  # of a picture


def pictures(models: list[Model], root: Path | None) -> tuple[list[list[dict[str, Any]]], int]:
    """Each model's most telling mistakes: a picture, both classes, and the model's confidence; and how many files were
    missing."""
    found, missing = [], 0
    for model in models:
        shown: list[dict[str, Any]] = []
        for row in _telling(model):
            if len(shown) == max(MOST // len(models), 4):
                break
            assert model.paths is not None
            source = _thumbnail(model.paths[row], root)
            missing += source is None
            if source is not None:
                shown.append({"source": source} | _words(model, row))
        found.append(shown)
    return found, missing


def _telling(model: Model) -> Iterator[int]:
    """Items of the pairs in the chart of swallowed classes, the most confident mistakes first; all groups in turn."""
    if model.paths is None or model.confusions is None or not model.answers:
        return
    answers, prior = model.answers[0], model.runs[0].prior
    listed = [model.confusions.swallowed(prior, PAIRS, model.groups.get(group, [])) for group in reversed(GROUPS)]
    for place in range(PAIRS):
        for pairs in listed:
            if place < len(pairs):
                pair = pairs[place]
                rows = np.flatnonzero((answers.target == pair.true) & (answers.predicted == pair.predicted))
                yield from rows[np.argsort(-answers.confidence[rows], kind="stable")][:EACH].tolist()


def _words(model: Model, row: int) -> dict[str, str]:
    answers, prior = model.answers[0], model.runs[0].prior
    true, predicted = int(answers.target[row]), int(answers.predicted[row])
    name, other = (cut(prior.name(index), 80) for index in (true, predicted))
    sure = percent(float(answers.confidence[row]))
    right = percent(float(model.correct[true] / model.runs[0].items[true]))
    return {
        "name": name,
        "other": other,
        "sure": sure,
        "words": f"{name}, taken for {other} with a confidence of {sure} %; accuracy of {name}: {right} %",
    }


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
