"""Records of image classifiers: a run is a line of a .jsonl file, then a JSON, results/<table>/<method>/<seed>.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from equipoise.training.records import StoredRecord, check_top1

PREDICTIONS, RECORD = "predictions.npz", "record.json"  # of a method, in the folder of a run


def in_full(evaluated_on: str) -> str:
    """The images that a model was evaluated on, as people call them.

    >>> in_full("held_out"), in_full("val")
    ('held-out images', 'val')
    """
    return "held-out images" if evaluated_on == "held_out" else evaluated_on


@dataclass(frozen=True)
class ImageRecord(StoredRecord):
    """Everything about one run. Accuracies are in percent, None for a group without classes; `correct`, `total`,
    `marginal` (p(y)) and `counts` (training images) have one entry per class."""

    PATTERN: ClassVar[str] = "*/*.json"
    WHAT: ClassVar[str] = "the record of an image classifier"
    NESTED: ClassVar[bool] = True

    table: str
    method: str
    seed: int
    top1: float
    balanced_accuracy: float
    many: float | None
    medium: float | None
    few: float | None
    evaluated_on: str
    iterations: int
    complete: bool  # trained as long as the recipe says; smoke tests are not
    recipe: dict[str, Any]
    trained_on: str  # the digest of the list of images, and that of the test images
    tested_on: str
    counts: list[int]
    correct: list[int]
    total: list[int]
    marginal: list[float]
    class_names: list[str]
    loss_curve: list[float]
    weights: str
    starts_from: str | None  # the weights file that the backbone started from
    backbone_weights: str | None  # of the run whose backbone was kept, as `weights` names them there
    seconds: float
    images_per_second: float
    together: int
    engine: dict[str, Any]
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, str]
    start_weights: str | None = None  # the digest of the weights that the backbone started from

    def __post_init__(self) -> None:
        check_top1(self)
