"""The names of mosaic-lt's rows, and of what was chosen among. Nothing of it was published. No torch here."""

from __future__ import annotations

from equipoise.experiments.voc2012_lt import published as voc2012_lt

NAME = "mosaic-lt"
METHODS = voc2012_lt.METHODS
CHOICES = voc2012_lt.TAU_CHOICES
