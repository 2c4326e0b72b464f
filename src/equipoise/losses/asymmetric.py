"""Asymmetric Loss for many labels per item (Ridnik et al., 2021).

    loss(z, y) = −Σ_j [ y_j (1 − p_j)^γ₊ log p_j  +  (1 − y_j) q_j^γ₋ log(1 − q_j) ],    p = σ(z),   q = max(p − m, 0)

Most labels of most items are negative. A larger γ₋ than γ₊ gives easy negatives less weight, and the margin m ignores
those whose probability is below it. With γ₊ = γ₋ = m = 0 it is binary cross-entropy. It uses no class frequencies.

Reference: Ridnik, Ben-Baruch, Zamir, Noy, Friedman, Protter, Zelnik-Manor, "Asymmetric Loss For Multi-Label
Classification", ICCV 2021, arXiv 2009.14119.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.balanced_sigmoid import dense_target, reduce_elements
from equipoise.losses.shared import Rows, SigmoidLoss, check_reduction, full_precision


def asymmetric_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma_positive: float = 0.0,
    gamma_negative: float = 4.0,
    margin: float = 0.05,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Asymmetric loss of `logits` [N, K, ...] against zeros and ones [N, K, ...] or class indices [N, ...].

    The defaults are the paper's. `reduction`, `ignore_index` and `dim` work as in `balanced_sigmoid_loss`; the paper
    sums over classes ("batchmean").

    gamma_positive, gamma_negative   how strongly well-classified positives and negatives are down-weighted: 0 is none
    margin                           negatives with a probability below it do not count

    >>> asymmetric_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), reduction="batchmean")
    tensor(0.7177)
    """
    check_options(gamma_positive, gamma_negative, margin)
    check_reduction(reduction, "batchmean")
    rows = Rows(logits, target, dim)
    logits, target = full_precision(rows.logits), rows.target
    target, counts = dense_target(logits, target, None, ignore_index)
    log_p, log_not_p = F.logsigmoid(logits), F.logsigmoid(-logits)
    positive = -log_p * torch.exp(gamma_positive * log_not_p)
    if margin:
        # clamped from below, so that the power has a finite gradient where the margin leaves 0
        shifted = (log_p.exp() - margin).clamp(min=torch.finfo(logits.dtype).tiny)
        negative = -torch.log1p(-shifted) * shifted**gamma_negative
    else:
        negative = -log_not_p * torch.exp(gamma_negative * log_p)
    return rows.back(reduce_elements(target * positive + (1 - target) * negative, counts, reduction))


class AsymmetricLoss(SigmoidLoss):
    """Asymmetric loss as a drop-in for `nn.BCEWithLogitsLoss`.

    gamma_positive, gamma_negative   how strongly well-classified positives and negatives are down-weighted: 0 is none
    margin                           negatives with a probability below it do not count

    >>> AsymmetricLoss()(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor(0.3588)
    """

    gamma_positive: float
    gamma_negative: float
    margin: float

    def __init__(
        self,
        *,
        gamma_positive: float = 0.0,
        gamma_negative: float = 4.0,
        margin: float = 0.05,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        check_options(gamma_positive, gamma_negative, margin)
        options = {"gamma_positive": gamma_positive, "gamma_negative": gamma_negative, "margin": margin}
        super().__init__(**options, ignore_index=ignore_index, reduction=reduction, dim=dim)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return asymmetric_loss(
            logits,
            target,
            gamma_positive=self.gamma_positive,
            gamma_negative=self.gamma_negative,
            margin=self.margin,
            **self.common(logits),
        )


def check_options(gamma_positive: float, gamma_negative: float, margin: float) -> None:
    for name, gamma in (("gamma_positive", gamma_positive), ("gamma_negative", gamma_negative)):
        if not gamma >= 0:
            raise ValueError(f"{name} is {gamma}: it must be at least 0 (0 turns the weighting off)")
    if not 0 <= margin < 1:
        raise ValueError(f"margin is {margin}: it is subtracted from a probability and must be at least 0 and below 1")
