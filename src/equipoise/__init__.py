"""Equipoise: train on the data you have, predict for the world you want.

A `Prior` says how often each class occurs. Count it once, hand it to a loss, a sampler, an evaluation, and to the model
that you serve.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from equipoise.metrics import (
    CalibrationScores,
    Evaluation,
    Judged,
    calibration_scores,
    evaluate,
    judge,
    sigmoid_calibration_scores,
)
from equipoise.models.balanced_head import fold_prior, fold_sigmoid_prior, unfold_prior
from equipoise.models.heads import NormalizedLinear
from equipoise.prior import Prior, sigmoid_shift, softmax_shift
from equipoise.samplers import ClassBalancedSampler, RepeatFactorSampler, progressive
from equipoise.serving.adjust import adjust_logits, adjust_sigmoid_logits
from equipoise.serving.calibrate import Calibration, fit_sigmoid_temperature, fit_temperature, rate_thresholds
from equipoise.serving.estimate import PriorEstimate, estimate_prior
from equipoise.serving.export import export_onnx, export_program, fold_correction
from equipoise.serving.rebalanced import Rebalanced, RebalancedSigmoid

if TYPE_CHECKING:
    from equipoise.integrations import sklearn as sklearn
    from equipoise.report.page import Report

__version__ = "0.1.0"

__all__ = [
    "BalancedLinearCrossEntropyLoss",
    "BalancedSigmoidLoss",
    "BalancedSoftmaxLoss",
    "Calibration",
    "CalibrationScores",
    "ClassBalancedLoss",
    "ClassBalancedSampler",
    "EqualizationLoss",
    "Evaluation",
    "FocalLoss",
    "Judged",
    "LDAMLoss",
    "NormalizedLinear",
    "Prior",
    "PriorEstimate",
    "Rebalanced",
    "RebalancedSigmoid",
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
    "calibration_scores",
    "class_balanced_loss",
    "effective_number_weights",
    "equalization_loss",
    "estimate_prior",
    "evaluate",
    "export_onnx",
    "export_program",
    "fit_sigmoid_temperature",
    "fit_temperature",
    "focal_loss",
    "fold_correction",
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
    "rate_thresholds",
    "sigmoid_calibration_scores",
    "sigmoid_equalization_loss",
    "sigmoid_focal_loss",
    "sigmoid_shift",
    "softmax_shift",
    "unfold_prior",
]


def __getattr__(name: str) -> Any:
    """`eq.sklearn` and `eq.Report` are imported when they are first asked for: what they need is an extra."""
    if name == "sklearn":
        return import_module("equipoise.integrations.sklearn")
    if name == "Report":
        return import_module("equipoise.report.page").Report
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
