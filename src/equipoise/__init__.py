"""Equipoise: train on the data you have, predict for the world you want.

A `Prior` says how often each class occurs. Count it once, hand it to a loss, a sampler, an evaluation, and to the model
that you serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equipoise.adjust import adjust_logits, adjust_sigmoid_logits
from equipoise.data.longtail import long_tailed_indices
from equipoise.losses import (
    BalancedLinearCrossEntropyLoss,
    BalancedSigmoidLoss,
    BalancedSoftmaxLoss,
    ClassBalancedLoss,
    EqualizationLoss,
    FocalLoss,
    LDAMLoss,
    SigmoidEqualizationLoss,
    SigmoidFocalLoss,
    balanced_linear_cross_entropy,
    balanced_sigmoid,
    balanced_sigmoid_loss,
    balanced_softmax,
    balanced_softmax_loss,
    class_balanced_loss,
    effective_number_weights,
    equalization_loss,
    focal_loss,
    inverse_frequency_weights,
    ldam_loss,
    ldam_margins,
    log_balanced_sigmoid,
    log_balanced_softmax,
    rare_classes,
    sigmoid_equalization_loss,
    sigmoid_focal_loss,
)
from equipoise.metrics import Evaluation, Judged, evaluate, judge
from equipoise.models.balanced_head import fold_prior, fold_sigmoid_prior, unfold_prior
from equipoise.models.heads import NormalizedLinear
from equipoise.prior import Prior, sigmoid_shift, softmax_shift
from equipoise.samplers import ClassBalancedSampler, RepeatFactorSampler, progressive

if TYPE_CHECKING:
    from equipoise.report.page import Report

__version__ = "0.1.0"

__all__ = [
    "BalancedLinearCrossEntropyLoss",
    "BalancedSigmoidLoss",
    "BalancedSoftmaxLoss",
    "ClassBalancedLoss",
    "ClassBalancedSampler",
    "EqualizationLoss",
    "Evaluation",
    "FocalLoss",
    "Judged",
    "LDAMLoss",
    "NormalizedLinear",
    "Prior",
    "RepeatFactorSampler",
    "Report",
    "SigmoidEqualizationLoss",
    "SigmoidFocalLoss",
    "adjust_logits",
    "adjust_sigmoid_logits",
    "balanced_linear_cross_entropy",
    "balanced_sigmoid",
    "balanced_sigmoid_loss",
    "balanced_softmax",
    "balanced_softmax_loss",
    "class_balanced_loss",
    "effective_number_weights",
    "equalization_loss",
    "evaluate",
    "focal_loss",
    "fold_prior",
    "fold_sigmoid_prior",
    "inverse_frequency_weights",
    "judge",
    "ldam_loss",
    "ldam_margins",
    "log_balanced_sigmoid",
    "log_balanced_softmax",
    "long_tailed_indices",
    "progressive",
    "rare_classes",
    "sigmoid_equalization_loss",
    "sigmoid_focal_loss",
    "sigmoid_shift",
    "softmax_shift",
    "unfold_prior",
]


def __getattr__(name: str) -> Any:
    """`Report` is imported when it is first used: importing the library takes torch and NumPy only."""
    if name == "Report":
        from equipoise.report.page import Report

        return Report
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
