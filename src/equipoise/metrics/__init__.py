"""Judge predictions: pure functions, tensors or arrays in, plain data out."""

from equipoise.metrics.confusions import Confusions, Swallowed
from equipoise.metrics.evaluation import ClassResult, Evaluation, GroupResult, evaluate
from equipoise.metrics.intervals import mean_interval, wilson_interval, wilson_intervals
from equipoise.metrics.judging import Judged, judge
from equipoise.metrics.sweep import TAUS, WORLDS, LogitsMean, PriorSweep, prior_sweep

__all__ = [
    "TAUS",
    "WORLDS",
    "ClassResult",
    "Confusions",
    "Evaluation",
    "GroupResult",
    "Judged",
    "LogitsMean",
    "PriorSweep",
    "Swallowed",
    "evaluate",
    "judge",
    "mean_interval",
    "prior_sweep",
    "wilson_interval",
    "wilson_intervals",
]
