"""Classifier heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NormalizedLinear(nn.Module):
    """Cosines between features [..., in_features] and one vector a class: no bias, outputs in [−1, 1].

    The head that LDAM wants. A loss other than LDAM, or a prior added to these logits, needs them scaled first
    (by about 30): log n is far larger than a cosine.

    >>> head = NormalizedLinear(4, 3)
    >>> bool((head(torch.randn(5, 4)).abs() <= 1 + 1e-6).all())
    True
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        directions = torch.empty(out_features, in_features).uniform_(-1, 1)
        self.weight = nn.Parameter(F.normalize(directions, dim=1))

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=1))

    def extra_repr(self) -> str:
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"
