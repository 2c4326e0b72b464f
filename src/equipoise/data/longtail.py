"""The seeded long-tailed draw: one definition, shared by every stage and seed.

    n_j = int(n_max · imbalance^(−j / (K − 1))),   j = 0 … K − 1 in label order

NumPy's RandomState(seed) shuffles the indices of each class in label order, and the first n_j are kept: with seed 0 and
CIFAR's label order this is the subset of Cao et al. 2019 (LDAM) that most papers on CIFAR-LT use. A run's own seed must
not change it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.arrays import as_array
from equipoise.prior import IntArray


def long_tailed_counts(n_max: int, num_classes: int, imbalance: float) -> list[int]:
    """n_j for each class.

    >>> long_tailed_counts(5000, 10, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    if imbalance < 1:
        raise ValueError(f"imbalance is {imbalance}: it is n_max / n_min, at least 1 (100, not 0.01)")
    ratio = 1 / imbalance
    return [int(n_max * ratio ** (j / max(num_classes - 1, 1))) for j in range(num_classes)]


def long_tailed_indices(labels: ArrayLike | Tensor, imbalance: float, *, seed: int = 0) -> IntArray:
    """Indices of a long-tailed subset of `labels` [N], sorted by class; n_max is the size of the largest class.

    A class with fewer than n_j items contributes all of them.

    labels      class indices, [N]
    imbalance   how many times larger the largest class is than the smallest, at least 1
    seed        another seed draws other items, equally many

    >>> labels = [0, 1, 2] * 100
    >>> picked = long_tailed_indices(labels, imbalance=100)
    >>> np.bincount(np.asarray(labels)[picked]).tolist()
    [100, 10, 1]
    """
    array = as_array(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"labels are {array.dtype} of shape {array.shape}: expected one class index per item, [N]")
    classes, sizes = np.unique(array, return_counts=True)
    random = np.random.RandomState(seed)
    kept = []
    for wanted, label in zip(long_tailed_counts(int(sizes.max()), len(classes), imbalance), classes, strict=True):
        index = np.flatnonzero(array == label)
        random.shuffle(index)
        kept.append(index[:wanted])
    return np.concatenate(kept).astype(np.int64)
