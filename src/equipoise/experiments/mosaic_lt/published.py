"""The names of mosaic-lt's rows, and of what was chosen among. Nothing of it was published. No torch here."""

from __future__ import annotations

from equipoise.experiments.voc2012_lt import published as voc2012_lt

NAME = "mosaic-lt"
METHODS = voc2012_lt.METHODS
TAUS = (0.25, 0.5, 0.75, 1.0)
CHOICES = {
    "rfs": METHODS["rfs"],
    **{f"rfs_adjusted_{tau}": f"RFS, adjusted afterwards, tau {tau}" for tau in TAUS},
}
