"""One file a loss: the formula, a function of tensors, and a thin module that holds the prior."""

from equipoise.losses.balanced_sigmoid import (
    BalancedSigmoidLoss,
    balanced_sigmoid,
    balanced_sigmoid_loss,
    log_balanced_sigmoid,
)
from equipoise.losses.balanced_softmax import (
    BalancedSoftmaxLoss,
    balanced_softmax,
    balanced_softmax_loss,
    log_balanced_softmax,
)
from equipoise.losses.class_balanced import ClassBalancedLoss, class_balanced_loss
from equipoise.losses.equalization import (
    EqualizationLoss,
    SigmoidEqualizationLoss,
    equalization_loss,
    rare_classes,
    sigmoid_equalization_loss,
)
from equipoise.losses.focal import FocalLoss, SigmoidFocalLoss, focal_loss, sigmoid_focal_loss
from equipoise.losses.ldam import LDAMLoss, ldam_loss, ldam_margins
from equipoise.losses.linear_cross_entropy import BalancedLinearCrossEntropyLoss, balanced_linear_cross_entropy
from equipoise.losses.weights import effective_number_weights, inverse_frequency_weights

__all__ = [
    "BalancedLinearCrossEntropyLoss",
    "BalancedSigmoidLoss",
    "BalancedSoftmaxLoss",
    "ClassBalancedLoss",
    "EqualizationLoss",
    "FocalLoss",
    "LDAMLoss",
    "SigmoidEqualizationLoss",
    "SigmoidFocalLoss",
    "balanced_linear_cross_entropy",
    "balanced_sigmoid",
    "balanced_sigmoid_loss",
    "balanced_softmax",
    "balanced_softmax_loss",
    "class_balanced_loss",
    "effective_number_weights",
    "equalization_loss",
    "focal_loss",
    "inverse_frequency_weights",
    "ldam_loss",
    "ldam_margins",
    "log_balanced_sigmoid",
    "log_balanced_softmax",
    "rare_classes",
    "sigmoid_equalization_loss",
    "sigmoid_focal_loss",
]
