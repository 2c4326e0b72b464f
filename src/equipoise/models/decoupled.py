"""Learnable weight scaling (LWS): one factor a class on a head that is otherwise kept as it was trained.

    logits_j = s_j · (w_j · x + b_j),      s_j = 1 at first; only s is learnt

Reference: Kang et al., "Decoupling Representation and Classifier for Long-Tailed Recognition", ICLR 2020,
arXiv 1910.09217.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ScaledHead(nn.Module):
    """`head`, frozen, with a learnable factor a class.

    >>> scaled = ScaledHead(nn.Linear(4, 3))
    >>> [name for name, parameter in scaled.named_parameters() if parameter.requires_grad]
    ['scales']
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head.requires_grad_(False)
        self.scales = nn.Parameter(torch.ones(head.out_features))

    def forward(self, features: Tensor) -> Tensor:
        return self.scales * self.head(features)  # type: ignore[no-any-return]
