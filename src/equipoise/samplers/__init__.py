"""Which item comes next: samplers that give indices only."""

from equipoise.samplers.class_balanced import ClassBalancedSampler, progressive
from equipoise.samplers.repeat_factor import RepeatFactorSampler

__all__ = ["ClassBalancedSampler", "RepeatFactorSampler", "progressive"]
