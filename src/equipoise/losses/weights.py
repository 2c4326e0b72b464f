"""Class weights: inverse frequency (CBW) and the effective number of samples (Cui et al. 2019).

    inverse frequency     w_j ∝ 1 / n_j
    effective number      w_j ∝ (1 − β) / (1 − β^n_j)          β = 0: all equal;  β → 1: inverse frequency

Both are scaled so that the weights of the classes that occur sum to K. Pass them as `weight` to any loss.

Reference: Cui et al., "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, arXiv 1901.05555.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.prior import FloatArray, Prior, PriorLike, as_prior


def inverse_frequency_weights(prior: PriorLike) -> Tensor:
    """w_j ∝ 1/n_j, fp32 [K]: rare classes weigh more. The weights of the classes that occur sum to K.

    A class that never occurs is taken as n = 1; its weight comes on top of that sum.

    >>> inverse_frequency_weights(Prior.from_counts([30, 10]))
    tensor([0.5000, 1.5000])
    """
    prior = as_prior(prior)
    return _sum_to_num_classes(1 / prior.without_zeros(), prior)


def effective_number_weights(prior: Prior, beta: float) -> Tensor:
    """w_j ∝ (1 − β)/(1 − β^n_j), fp32 [K]; the weights of the classes that occur sum to K.

    beta   in [0, 1): 0 weights all classes equally, towards 1 the weights approach 1/n_j

    >>> effective_number_weights(Prior.from_counts([30, 10]), beta=0.9)
    tensor([0.8096, 1.1904])
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta is {beta}: it must be in [0, 1); for its limit at 1 use inverse_frequency_weights")
    prior = as_prior(prior)
    if beta == 0:
        return torch.ones(prior.num_classes, dtype=torch.float32)
    if not prior.counted:
        raise ValueError(
            "the effective number of samples needs counts, but this prior was stated as probabilities: build it with "
            "Prior.from_counts"
        )
    # 1 − β^n = −expm1(n log β), exact where β is close to 1
    return _sum_to_num_classes((1 - beta) / -np.expm1(prior.without_zeros() * np.log(beta)), prior)


def _sum_to_num_classes(weights: FloatArray, prior: Prior) -> Tensor:
    scale = prior.num_classes / weights[prior.probabilities > 0].sum()
    return torch.from_numpy((weights * scale).astype(np.float32))
