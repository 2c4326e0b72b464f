"""The names of mosaic-lt's rows, and of what was chosen among. Nothing of it was published. No torch here."""

from __future__ import annotations

from equipoise.experiments.table2 import published as table2

NAME = "mosaic-lt"
METHODS = {
    **{name: title for name, title in table2.METHODS.items() if name != "balanced_sigmoid_released"},
    "rfs_adjusted": "RFS, adjusted afterwards",
    "seesaw": "Seesaw loss",
    "eql_v2": "EQL v2",
    "federated": "Federated loss",
}
TAUS = (0.25, 0.5, 0.75, 1.0)
CHOICES = {
    "rfs": METHODS["rfs"],
    **{f"rfs_adjusted_{tau}": f"RFS, adjusted afterwards, tau {tau}" for tau in TAUS},
}
