"""Class-Balanced loss (Cui et al. 2019): a loss weighted by the inverse effective number of samples.

    loss(z, y) = w_y · L(z, y),      w_j ∝ (1 − β)/(1 − β^n_j),  Σ_j w_j = K,      L cross-entropy or focal

The mean is over rows, as in that paper, not over the weights of the rows as in torch: for the latter pass
`effective_number_weights(prior, beta)` as `weight` to `nn.CrossEntropyLoss` or `FocalLoss`.

Reference: "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, arXiv 1901.05555.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.losses.focal import check_gamma, focal_rows
from equipoise.losses.shared import SoftmaxLoss, check_reduction, counting, is_indices, reduce_rows, rows_of
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
) -> Tensor:
    """Cross-entropy (`gamma` = 0) or focal loss of `logits` [N, K, ...], each row times the weight [K] of its class.

    >>> class_balanced_loss(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0.5, 1.5]))
    tensor(1.0397)
    """
    loss, _ = focal_rows(logits, target, gamma, weight, ignore_index)
    rows = counting(target, ignore_index).sum() if is_indices(logits, target) else rows_of(logits)
    return reduce_rows(loss, rows, reduction)


class ClassBalancedLoss(SoftmaxLoss):
    """Class-Balanced loss over cross-entropy or, with `base="focal"`, over the softmax focal loss of `gamma`.

    >>> loss = ClassBalancedLoss(Prior.from_counts([30, 10]), beta=0.9)
    >>> loss(torch.zeros(1, 2), torch.tensor([1]))
    tensor(0.8251)
    """

    weight: Tensor

    def __init__(
        self,
        prior: Prior,
        beta: float,
        base: str = "cross_entropy",
        *,
        gamma: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if base not in ("cross_entropy", "focal"):
            raise ValueError(f"base={base!r}: expected 'cross_entropy' or 'focal'")
        check_gamma(gamma)
        check_reduction(reduction)
        self.register_buffer("weight", effective_number_weights(prior, beta))
        self.beta = beta
        self.gamma = gamma if base == "focal" else 0.0
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return class_balanced_loss(
            logits, target, self.weight, gamma=self.gamma, ignore_index=self.ignore_index, reduction=self.reduction
        )
