"""Distribution-Balanced Loss for long-tailed multi-label classification (Wu et al., 2020).

    loss(z, y) = Σ_j w_j [ y_j log(1 + e^−u_j)  +  (1 − y_j) log(1 + e^(λ u_j)) / λ ],     u_j = z_j − ν_j

    re-balanced weights      w_j = α + σ(β (r_j − μ)),    r_j = (1/n_j) / Σ_k y_k / n_k
    negative tolerance       λ > 1 lowers the loss of clear negatives; ν_j = −κ logit(π_j) / λ

r_j is the share of an item's draws under class-aware sampling that are due to class j; the weight offsets the draws
that its other labels add. λ = 1, κ = 0 and α = 1, β = 0 (up to a factor 1.5) is binary cross-entropy. With `gamma` > 0
each term is focused as in the focal loss, as in the paper's best rows.

The bias is divided by λ, as in the authors' released code; the paper's text has ν_j = −κ logit(π_j). The defaults are
the released values for VOC-MLT; for COCO-MLT the authors use μ = 0.2 and λ = 2.

Reference: Wu, Huang, Liu, Wang, Lin, "Distribution-Balanced Loss for Multi-Label Classification in Long-Tailed
Datasets", ECCV 2020, arXiv 2007.09654.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.arrays import fp32
from equipoise.losses.balanced_sigmoid import dense_target, reduce_elements
from equipoise.losses.focal import check_gamma
from equipoise.losses.shared import Rows, SigmoidLoss, along, check_reduction, check_vector, class_dim, full_precision
from equipoise.prior import Prior


def distribution_balanced_loss(
    logits: Tensor,
    target: Tensor,
    inverse_counts: Tensor,
    bias: Tensor,
    *,
    alpha: float = 0.1,
    beta: float = 10.0,
    mu: float = 0.3,
    tolerance: float = 5.0,
    gamma: float = 2.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Distribution-Balanced loss of `logits` [N, K, ...] against zeros and ones [N, K, ...] or class indices [N, ...].

    `inverse_counts` [K] is 1/n_j and `bias` [K] is −ν_j; `DistributionBalancedLoss` computes both from a prior. An item
    without positives has r = ∞, that is w = α + 1 for every class. `reduction`, `ignore_index` and `dim` work as in
    `balanced_sigmoid_loss`.

    inverse_counts    1/n_j, [K]
    bias              −ν_j, [K]
    alpha, beta, mu   offset, slope and centre of the re-balanced weight w
    tolerance         λ: above 1, clear negatives count less
    gamma             focusing as in the focal loss; 0 is none

    >>> inverse, bias = torch.tensor([0.01, 0.1]), torch.zeros(2)
    >>> distribution_balanced_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), inverse, bias, gamma=0.0)
    tensor(0.4572)
    """
    check_options(tolerance, gamma)
    check_reduction(reduction, "batchmean")
    wanted = "1 / torch.from_numpy(prior.counts.clip(1)).float()"
    check_vector(inverse_counts, "inverse_counts", wanted)
    check_vector(bias, "bias", "prior.logit() times kappa / tolerance")
    rows = Rows(logits, target, dim)
    logits, target = full_precision(rows.logits), rows.target
    dim = class_dim(logits)
    inverse = along(inverse_counts, logits, dim).to(logits.dtype)
    target, counts = dense_target(logits, target, None, ignore_index)
    drawn = (target * inverse).sum(dim, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny)
    weight = alpha + torch.sigmoid(beta * (inverse / drawn - mu))
    shifted = logits + along(bias, logits, dim).to(logits.dtype)
    positive, negative = -F.logsigmoid(shifted), -F.logsigmoid(-tolerance * shifted)
    if gamma:
        positive = positive * torch.exp(gamma * F.logsigmoid(-shifted))
        negative = negative * torch.exp(gamma * F.logsigmoid(tolerance * shifted))
    loss = weight * (target * positive + (1 - target) * negative / tolerance)
    return rows.back(reduce_elements(loss, counts, reduction))


class DistributionBalancedLoss(SigmoidLoss):
    """Distribution-Balanced loss as a drop-in for `nn.BCEWithLogitsLoss`; `prior` counts positives per class.

    alpha, beta, mu   offset, slope and centre of the re-balanced weight w
    tolerance         λ: above 1, clear negatives count less
    kappa             strength of the bias ν, which comes from the prior
    gamma             focusing as in the focal loss; 0 is none

    >>> from equipoise import Prior
    >>> loss = DistributionBalancedLoss(Prior.from_counts([90, 10], total=100))
    >>> loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor(0.1074)
    """

    inverse_counts: Tensor
    bias: Tensor
    alpha: float
    beta: float
    mu: float
    tolerance: float
    gamma: float

    def __init__(
        self,
        prior: Prior,
        *,
        alpha: float = 0.1,
        beta: float = 10.0,
        mu: float = 0.3,
        tolerance: float = 5.0,
        kappa: float = 0.05,
        gamma: float = 2.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        check_options(tolerance, gamma)
        options = {"alpha": alpha, "beta": beta, "mu": mu, "tolerance": tolerance, "gamma": gamma}
        super().__init__(**options, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("inverse_counts", fp32(1 / np.maximum(prior.counts, 1)))
        self.register_buffer("bias", prior.logit() * (kappa / tolerance))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return distribution_balanced_loss(
            logits,
            target,
            self.inverse_counts,
            self.bias,
            alpha=self.alpha,
            beta=self.beta,
            mu=self.mu,
            tolerance=self.tolerance,
            gamma=self.gamma,
            **self.common(logits),
        )


def check_options(tolerance: float, gamma: float) -> None:
    check_gamma(gamma)
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}: it must be above 0 (1 treats negatives like positives)")
