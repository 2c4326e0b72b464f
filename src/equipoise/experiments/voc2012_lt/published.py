"""The names of VOC2012-LT's rows, and of what was chosen among. Nothing of it was published. No torch here."""

from __future__ import annotations

from equipoise.experiments.table2 import published as table2

NAME = "voc2012-lt"
CUT = "voc2012-lt-cut-nms"  # runs in which NMS of proposals was cut off; their records name the table voc2012-lt
METHODS = {
    **{name: title for name, title in table2.METHODS.items() if name != "balanced_sigmoid_released"},
    "rfs_adjusted": "RFS, adjusted afterwards",
    "seesaw": "Seesaw loss",
    "eql_v2": "EQL v2",
    "federated": "Federated loss",
}
TAUS = (0.25, 0.5, 0.75, 1.0)
TAU_CHOICES = {
    "rfs": METHODS["rfs"],
    **{f"rfs_adjusted_{tau}": f"RFS, adjusted afterwards, tau {tau}" for tau in TAUS},
}
CHOICES = {
    **{f"rfs_{threshold}": f"RFS, threshold {threshold}" for threshold in (0.02, 0.001, 0.05, 0.1)},
    "rfs_lr_0.01": "RFS, learning rate 0.01",
    "rfs_longer": METHODS["rfs_longer"],
    **{
        f"balanced_sigmoid_{form}_{counts}{name}": f"Balanced Sigmoid, {form} form, {counts}{title}"
        for name, title in (("", ""), ("_lr_0.002", ", learning rate 0.002"))
        for form in ("paper", "released")
        for counts in ("images", "instances")
    },
}
