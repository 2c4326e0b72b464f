"""Equipoise: train on the data you have, predict for the world you want."""

from equipoise.data.longtail import long_tailed_indices
from equipoise.prior import Prior, sigmoid_shift, softmax_shift

__version__ = "0.1.0"

__all__ = ["Prior", "long_tailed_indices", "sigmoid_shift", "softmax_shift"]
