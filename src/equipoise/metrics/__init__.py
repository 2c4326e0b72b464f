"""Judge predictions: pure functions, tensors or arrays in, plain data out."""

from equipoise.metrics.calibration import CalibrationScores, calibration_scores, sigmoid_calibration_scores
from equipoise.metrics.confusions import Confusions, Swallowed
from equipoise.metrics.evaluation import ClassResult, Evaluation, GroupResult, evaluate
from equipoise.metrics.intervals import mean_interval, wilson_interval, wilson_intervals
from equipoise.metrics.judging import Judged, judge
from equipoise.metrics.sweep import TAUS, WORLDS, LogitsMean, PriorSweep, prior_sweep

__all__ = [
    "TAUS",
    "WORLDS",
    "CalibrationScores",
    "ClassResult",
    "Confusions",
    "Evaluation",
    "GroupResult",
    "Judged",
    "LogitsMean",
    "PriorSweep",
    "Swallowed",
    "calibration_scores",
    "evaluate",
    "judge",
    "mean_interval",
    "prior_sweep",
    "sigmoid_calibration_scores",
    "wilson_interval",
    "wilson_intervals",
]
