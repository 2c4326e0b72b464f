"""Records of multi-label image classifiers: a run is a line of a .jsonl file, then a JSON,
results/<table>/<method>/<seed>.json."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any, ClassVar

from equipoise.training.records import StoredRecord


@dataclass(frozen=True)
class MultilabelRecord(StoredRecord):
    """Everything about one run. Scores are in percent, None if a group has no class with positives.

    Per class: `average_precision` (None without positives) and, over the `items` that it was evaluated on, `positives`,
    `predicted` (items that reach the threshold of 1/2) and `hits` (the positives among these); `marginal`, the mean
    predicted probability; `counts`, the training images that have it, out of `trained_items`.
    """

    PATTERN: ClassVar[str] = "*/*.json"
    WHAT: ClassVar[str] = "the record of a classifier of several labels"
    NESTED: ClassVar[bool] = True

    table: str
    method: str
    seed: int
    map: float
    map_head: float | None
    map_medium: float | None
    map_tail: float | None
    micro_ap: float
    f1_macro: float
    f1_micro: float
    scores: dict[str, float | None]  # every other number of `evaluate_multilabel`
    evaluated_on: str
    iterations: int
    complete: bool  # trained as long as the recipe says; smoke tests are not
    recipe: dict[str, Any]
    trained_on: str  # the digest of the list of images, and that of the test images
    tested_on: str
    trained_items: int
    counts: list[int]
    items: int
    positives: list[int]
    predicted: list[int]
    hits: list[int]
    average_precision: list[float | None]
    marginal: list[float]
    class_names: list[str]
    loss_curve: list[float]
    weights: str
    starts_from: str | None  # the weights file that the backbone started from
    backbone_weights: str | None  # of the run that was kept, as `weights` names them there
    seconds: float
    images_per_second: float
    together: int
    engine: dict[str, Any]
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, str]
    start_weights: str | None = None  # the digest of the weights that the backbone started from

    def __post_init__(self) -> None:
        known = [value for value in self.average_precision if value is not None]
        f1 = 200 * sum(self.hits) / max(sum(self.positives) + sum(self.predicted), 1)
        for name, given, found in (("map", self.map, mean(known or [0.0])), ("f1_micro", self.f1_micro, f1)):
            if not abs(given - found) <= 0.005:  # not for NaN either
                raise ValueError(f"{self.key}: {name} is {given}, but its classes give {found:.2f}")
