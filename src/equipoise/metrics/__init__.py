"""Judge predictions: pure functions, tensors or arrays in, plain data out."""

from equipoise.metrics.evaluation import ClassResult, Evaluation, GroupResult, evaluate
from equipoise.metrics.intervals import wilson_interval

__all__ = ["ClassResult", "Evaluation", "GroupResult", "evaluate", "wilson_interval"]
