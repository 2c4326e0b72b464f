"""Seesaw loss (Wang et al. 2021): an example pushes rarer classes down less, and classes that outscore its own more.

    loss(z, y)  =  −log( exp(z_y) / Σ_j S_yj exp(z_j) ),      S_yj = M_yj · C_yj,      S_yy = 1
    M_yj  =  min(1, (n_j / n_y)^p)                mitigation: a rarer class j is pushed less by examples of y
    C_yj  =  max(1, (σ_j / σ_y)^q)                compensation: a class that scores above the right one is pushed more

σ is the softmax of z, σ_y at least 0.01, and no gradient flows through C, as in the authors' code. Their counts n are
those seen so far in training; here they come from the prior, which those approach. p = q = 0 is cross-entropy.

Reference: "Seesaw Loss for Long-Tailed Instance Segmentation", CVPR 2021, arXiv 2008.10032.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.losses.balanced_softmax import cross_entropy
from equipoise.losses.shared import (
    Rows,
    SoftmaxLoss,
    along,
    check_logs,
    check_vector,
    class_dim,
    full_precision,
    own_class,
)
from equipoise.prior import PriorLike, softmax_shift

LEAST = 0.01  # of the true class's score in the compensation


def seesaw_loss(
    logits: Tensor,
    target: Tensor,
    log_prior: Tensor,
    *,
    p: float = 0.8,
    q: float = 2.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Seesaw loss of `logits` [N, K, ...] against class indices [N, ...]; `log_prior` [K] is log n_j + any constant.

    The classes are in dimension `dim`.

    p   strength of the mitigation, 0 for none
    q   strength of the compensation, 0 for none

    >>> log_prior = torch.tensor([0.9, 0.1]).log()
    >>> seesaw_loss(torch.zeros(1, 2), torch.tensor([0]), log_prior, p=1.0)
    tensor(0.1054)
    """
    check_exponents(p, q)
    check_vector(log_prior, "log_prior", "prior.log()")
    check_logs(log_prior, "log_prior", "prior.log()", of_probabilities=True)
    rows = Rows(logits, target, dim)
    logits, target = full_precision(rows.logits), rows.target
    dim = class_dim(logits)
    rarity = along(log_prior, logits, dim)
    own = own_class(logits, target, ignore_index, "the seesaw loss")
    mitigation = p * (rarity - (own * rarity).sum(dim, keepdim=True)).clamp(max=0)
    scores = logits.detach().log_softmax(dim)
    # not a product with zeros: a score of another class may be −inf
    right = torch.where(own.bool(), scores, 0.0).sum(dim, keepdim=True).clamp(min=math.log(LEAST))
    compensation = q * (scores - right).clamp(min=0)
    moved = torch.where(own.bool(), logits, logits + mitigation + compensation)
    return rows.back(cross_entropy(moved, target, weight=weight, ignore_index=ignore_index, reduction=reduction))


class SeesawLoss(SoftmaxLoss):
    """Seesaw loss as a drop-in for `nn.CrossEntropyLoss`.

    p   strength of the mitigation, 0 for none
    q   strength of the compensation, 0 for none

    >>> from equipoise import Prior
    >>> SeesawLoss(Prior.from_counts([9, 1]), p=1.0)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.1054)
    """

    log_prior: Tensor
    weight: Tensor | None
    p: float
    q: float

    def __init__(
        self,
        prior: PriorLike,
        *,
        p: float = 0.8,
        q: float = 2.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        check_exponents(p, q)
        super().__init__(p=p, q=q, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("log_prior", softmax_shift(prior))
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        options = {"p": self.p, "q": self.q, "weight": self.weight, **self.common(logits)}
        return seesaw_loss(logits, target, self.log_prior, **options)


def check_exponents(p: float, q: float) -> None:
    if not (p >= 0 and q >= 0):
        raise ValueError(f"p is {p} and q is {q}: both exponents must be at least 0 (0 turns that part off)")
