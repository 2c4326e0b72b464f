"""LDAM (Cao et al. 2019): a larger margin for a rarer class.

    loss(c, y) = cross_entropy(s · (c − m_y e_y), y),      m_j = max_margin · (n_min / n_j)^(1/4)

`c` are cosines in [−1, 1], of normalised features and class vectors, as `equipoise.models.heads.NormalizedLinear`
computes them. Prediction has no margin: argmax c. The paper's deferred re-weighting is a schedule, not part of the
loss.

Reference: "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss", NeurIPS 2019, arXiv 1906.07413.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.losses.balanced_softmax import cross_entropy
from equipoise.losses.shared import Rows, SoftmaxLoss, along, check_vector, class_dim, full_precision, own_class
from equipoise.prior import Prior, as_prior


def ldam_margins(prior: Prior, max_margin: float = 0.5) -> Tensor:
    """m_j ∝ n_j^(−1/4), fp32 [K]; `max_margin` for the rarest class that occurs and for classes that never occur.

    max_margin   the margin of the rarest class

    >>> ldam_margins(Prior.from_counts([160, 10]))
    tensor([0.2500, 0.5000])
    """
    if not max_margin >= 0:
        raise ValueError(f"max_margin is {max_margin}: it must be at least 0 (0 is cross-entropy of scaled cosines)")
    prior = as_prior(prior)
    rarest = prior.counts[prior.counts > 0].min()  # raises for a stated prior, which has no counts
    counts = prior.without_zeros()
    return torch.from_numpy((max_margin * np.minimum(rarest / counts, 1) ** 0.25).astype(np.float32))


def ldam_loss(
    logits: Tensor,
    target: Tensor,
    margins: Tensor,
    *,
    scale: float = 30.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """LDAM of cosines [N, K, ...] against class indices [N, ...], with `margins` [K], `ldam_margins(prior)`.

    The classes are in dimension `dim`.

    margins   `ldam_margins(prior)`, [K]
    scale     s, by which cosines are multiplied

    >>> ldam_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0.25, 0.5]), scale=2.0)
    tensor(1.3133)
    """
    check_vector(margins, "margins", "ldam_margins(prior)")
    rows = Rows(logits, target, dim)
    logits, target = full_precision(rows.logits), rows.target
    margins = along(margins, logits, class_dim(logits))
    own = own_class(logits, target, ignore_index, "LDAM")
    logits = scale * (logits - own * margins)
    return rows.back(cross_entropy(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction))


class LDAMLoss(SoftmaxLoss):
    """LDAM on the cosines of a `NormalizedLinear` head.

    max_margin   the margin of the rarest class, on the scale of cosines
    scale        s, by which cosines are multiplied

    >>> LDAMLoss(Prior.from_counts([160, 10]), scale=2.0)(torch.zeros(1, 2), torch.tensor([1]))
    tensor(1.3133)
    """

    margins: Tensor
    weight: Tensor | None
    scale: float

    def __init__(
        self,
        prior: Prior,
        max_margin: float = 0.5,
        scale: float = 30.0,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        super().__init__(scale=scale, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("margins", ldam_margins(prior, max_margin))
        self.register_buffer("weight", weight)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The softmax of the scaled cosines."""
        return super().probabilities(self.scale * full_precision(logits))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ldam_loss(logits, target, self.margins, scale=self.scale, weight=self.weight, **self.common(logits))
