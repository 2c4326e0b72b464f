"""The confusion matrix as a heat map: its largest cells, classes from head to tail, drawn and zoomed by heat_map.js."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.metrics.confusions import Confusions
from equipoise.prior import Prior
from equipoise.report.groups import GROUPS

MOST_CELLS = 40_000  # of all models of a page


def heat_map_data(confusions: Confusions, prior: Prior, models: int) -> dict[str, Any]:
    """Rows and columns are classes from the most training items to the fewest; `share` is the share of the row's test
    items, in tenths of a percent. If there are very many cells, the largest are kept, and `kept` is the share of the
    test items in them.

    >>> confusions = Confusions.count(np.array([0, 0, 1]), np.array([1, 0, 1]), 2)
    >>> found = heat_map_data(confusions, Prior.from_counts([5, 9]), 1)
    >>> sorted(zip(found["row"], found["column"], found["share"])), found["kept"]
    ([(0, 0, 1000), (1, 0, 500), (1, 1, 500)], 1.0)
    """
    true, predicted = np.divmod(confusions.codes, confusions.num_classes)
    items = np.bincount(true, confusions.times, confusions.num_classes)
    share = confusions.times / items[true]
    place = np.empty(prior.num_classes, np.int64)
    place[np.argsort(-prior.counts, kind="stable")] = np.arange(prior.num_classes)
    chance = np.random.default_rng(0).random(len(share))  # which of equal cells are left out must not depend on classes
    order = np.lexsort((chance, share))[-max(MOST_CELLS // models, 1000) :]  # the largest are drawn last, on top
    return {
        "row": place[true[order]].tolist(),
        "column": place[predicted[order]].tolist(),
        "share": np.maximum(np.round(1000 * share[order]), 1).astype(int).tolist(),
        "kept": round(float(confusions.times[order].sum() / confusions.times.sum()), 4),
    }


def group_ends(groups: Mapping[str, Sequence[int]]) -> list[int]:
    """Where the groups end among classes from head to tail."""
    return [int(end) for end in np.cumsum([len(groups.get(name, ())) for name in GROUPS])]
