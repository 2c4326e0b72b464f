"""Balanced Sigmoid for one-stage detectors, whose scores are [N, anchors, K] and whose targets are soft.

An anchor with an assigned object has a positive target somewhere; it is shifted by the prior. The others are background
and keep the plain sigmoid. This file needs no detection library; the adapters use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.losses.balanced_sigmoid import balanced_sigmoid_loss
from equipoise.losses.shared import PriorModule
from equipoise.prior import Prior, sigmoid_shift


class AnchorLoss(PriorModule):
    """Binary cross-entropy [N, anchors, K], unreduced, shifted by the prior where an anchor has an object.

    >>> loss = AnchorLoss(eq.Prior.from_counts([9, 1]))
    >>> loss(torch.zeros(1, 2, 2), torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]))
    tensor([[[2.3026, 2.3026],
             [0.6931, 0.6931]]])
    """

    shift: Tensor

    def __init__(self, prior: Prior, target_rate: float | None = None) -> None:
        super().__init__()
        self.register_buffer("shift", sigmoid_shift(prior, target_rate), persistent=False)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        rows, wanted = scores.flatten(0, -2), target.flatten(0, -2)
        options = {"foreground": (wanted > 0).any(1), "reduction": "none"}
        return balanced_sigmoid_loss(rows, wanted, self.shift, **options).view_as(scores)  # type: ignore[arg-type]


def prior_of_objects(classes: Iterable[Any], names: list[str]) -> Prior:
    """The prior from the classes in each image: images that hold each class, out of those with an object."""
    counts, total = np.zeros(len(names), np.int64), 0
    for values in classes:
        found = np.unique(torch.as_tensor(values).reshape(-1).long().numpy())
        counts[found] += 1
        total += len(found) > 0
    return Prior.from_counts(counts, int(total), class_names=names)
