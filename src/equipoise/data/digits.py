"""scikit-learn's handwritten digits, made long-tailed: real data that needs no download.

There are 1,797 images of 8 × 8 pixels. A balanced test split is taken first (the last `test_per_class` images of each
digit); the seeded draw takes the training set from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.data.longtail import long_tailed_indices
from equipoise.prior import Prior


@dataclass(frozen=True)
class Digits:
    """Images [N, 1, 8, 8] in [0, 1] with labels [N], for training and test."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def prior(self) -> Prior:
        """The prior of the training set."""
        return Prior.from_labels(self.train_labels, class_names=[str(digit) for digit in range(10)])


def load_digits_lt(imbalance: float = 50, test_per_class: int = 30) -> Digits:
    """The long-tailed digits: `imbalance` times more zeros than nines in training, equally many in test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(images / 16).float().view(-1, 1, 8, 8)
    test = np.concatenate([np.flatnonzero(labels == digit)[-test_per_class:] for digit in range(10)])
    rest = np.setdiff1d(np.arange(len(labels)), test)
    train = rest[long_tailed_indices(labels[rest], imbalance)]
    target = torch.from_numpy(labels).long()
    return Digits(images[train], target[train], images[test], target[test])
