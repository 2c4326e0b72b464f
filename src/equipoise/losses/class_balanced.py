"""Class-Balanced loss (Cui et al. 2019): a loss weighted by the inverse effective number of samples.

    loss(z, y) = w_y · L(z, y),      w_j ∝ (1 − β)/(1 − β^n_j),  Σ_j w_j = K,      L cross-entropy or focal

The mean is over rows, as in that paper, and not over the weights of the rows, as in torch. For the latter, pass
`effective_number_weights(prior, beta)` as `weight` to `nn.CrossEntropyLoss` or `FocalLoss`.

Reference: "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, arXiv 1901.05555.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.losses.focal import check_gamma, focal_rows
from equipoise.losses.shared import Rows, SoftmaxLoss, check_vector, is_indices, not_ignored, reduce_rows
from equipoise.losses.weights import effective_number_weights
from equipoise.prior import Prior


def class_balanced_loss(
    logits: Tensor,
    target: Tensor,
    weight: Tensor,
    *,
    gamma: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    dim: int = 1,
) -> Tensor:
    """Cross-entropy (`gamma` = 0) or focal loss of `logits` [N, K, ...], each row times the weight [K] of its class.

    `weight` is `effective_number_weights(prior, beta)`. The classes are in dimension `dim`.

    gamma   focusing as in the focal loss; 0 is cross-entropy

    >>> class_balanced_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0.5, 1.5]))
    tensor(1.0397)
    """
    check_vector(weight, "weight", "effective_number_weights(prior, beta)")
    rows = Rows(logits, target, dim)
    logits, target = rows.logits, rows.target
    loss, counted = focal_rows(logits, target, gamma, weight, ignore_index)
    if is_indices(logits, target):
        counted = not_ignored(target, ignore_index).sum()
    return rows.back(reduce_rows(loss, counted, reduction))


class ClassBalancedLoss(SoftmaxLoss):
    """Class-Balanced loss over cross-entropy or, with `base="focal"`, over the softmax focal loss of `gamma`.

    beta    in [0, 1): 0 weights all classes equally, towards 1 the weights approach 1/n_j
    base    "cross_entropy" or "focal"
    gamma   of the focal loss; not used by cross-entropy

    >>> loss = ClassBalancedLoss(Prior.from_counts([30, 10]), beta=0.9)
    >>> loss(torch.zeros(1, 2), torch.tensor([1]))
    tensor(0.8251)
    """

    weight: Tensor
    gamma: float

    def __init__(
        self,
        prior: Prior,
        beta: float,
        base: str = "cross_entropy",
        *,
        gamma: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        dim: int = 1,
    ) -> None:
        if base not in ("cross_entropy", "focal"):
            raise ValueError(f"base={base!r}: expected 'cross_entropy' or 'focal'")
        check_gamma(gamma)
        gamma = gamma if base == "focal" else 0.0
        super().__init__(beta=beta, gamma=gamma, ignore_index=ignore_index, reduction=reduction, dim=dim)
        self.register_buffer("weight", effective_number_weights(prior, beta))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return class_balanced_loss(logits, target, self.weight, gamma=self.gamma, **self.common(logits))
