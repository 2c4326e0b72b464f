"""Judge predictions: pure functions, tensors or arrays in, plain data out."""

from equipoise.metrics.calibration import CalibrationScores, calibration_scores, sigmoid_calibration_scores
from equipoise.metrics.evaluation import ClassResult, Evaluation, GroupResult, evaluate
from equipoise.metrics.intervals import wilson_interval

__all__ = [
    "CalibrationScores",
    "ClassResult",
    "Evaluation",
    "GroupResult",
    "calibration_scores",
    "evaluate",
    "sigmoid_calibration_scores",
    "wilson_interval",
]
