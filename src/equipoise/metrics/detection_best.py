"""The best detections of each class over a whole test set, one batch at a time: AP-fixed in bounded memory.

A class is cut down to its best `most` whenever it has twice as many. Its lowest score is then its threshold: detections
below it can no longer be among the best, and the detector can skip them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.metrics.detection import Detections, joined
from equipoise.metrics.detection_measures import BEST
from equipoise.prior import FloatArray


class BestPerClass:
    """Keeps at least the `most` best detections of each class among all that were added; ties are all kept."""

    def __init__(self, most: int = BEST) -> None:
        self.most = most
        self._parts: dict[int, list[Detections]] = {}
        self._number: dict[int, int] = {}
        self._least: dict[int, float] = {}

    def __len__(self) -> int:
        return sum(self._number.values())

    def add(self, detections: Detections) -> None:
        order = np.argsort(detections.category_ids, kind="stable")
        ordered = detections.category_ids[order]
        for rows in np.split(order, np.flatnonzero(np.diff(ordered)) + 1) if len(order) else []:
            category = int(detections.category_ids[rows[0]])
            if category in self._least:
                rows = rows[detections.scores[rows] >= self._least[category]]
            self._parts.setdefault(category, []).append(detections[rows])
            self._number[category] = self._number.get(category, 0) + len(rows)
            if self._number[category] >= 2 * self.most:
                self._cut(category)

    def _cut(self, category: int) -> None:
        every = joined(self._parts[category])
        self._least[category] = float(np.partition(every.scores, -self.most)[-self.most])
        best = every[np.flatnonzero(every.scores >= self._least[category])]
        self._parts[category], self._number[category] = [best], len(best)

    def thresholds(self, category_ids: Sequence[int], floor: float) -> FloatArray:
        """The lowest score that may still count, by class; `floor` if any may."""
        return np.array([max(self._least.get(category, floor), floor) for category in category_ids])

    def detections(self) -> Detections:
        """The best `most` of each class, including ties with the last of them, in the order of images as added."""
        for category, number in self._number.items():
            if number > self.most:
                self._cut(category)
        every = joined([part for parts in self._parts.values() for part in parts])
        return every[np.argsort(every.image_ids, kind="stable")]
