"""Table 2 of the paper: instance segmentation on LVIS v1 with two backbones. The recipe, then one line per method.

    Mask R-CNN with a feature pyramid, sigmoid classification without background, repeat-factor sampling at 0.001; 25
    epochs, then 10 epochs of the classifier alone, with everything else frozen. SGD, 16 images, learning rate 0.02,
    warm-up of 1,000 iterations, weight decay 1e-4; shorter side 640 to 800, longer at most 1,333, flip; tested at 800.

An epoch is as many images as the training set has. Where each setting comes from:

    stage 1      Ren et al. 2020, "Balanced Meta-Softmax", appendix C.3 and its released code (LVIS v0.5), whose steps
                 are at 2/3 and 8/9; the paper gives 25 and 10 epochs for LVIS v1 and no steps
    stage 2      steps at 1/2 and 9/11, as 11,000 and 18,000 of 22,000 iterations in that code
    rfs_longer   10 more epochs of the plain sigmoid, classifier alone: the control that the paper lacks
    crt, lws     Kang et al. 2020: a new classifier, or one scale per class; class-aware sampling
    eql          Tan et al. 2020 with λ = 1.1e-3, its authors' value for LVIS v1
    balanced_sigmoid   the paper's formula. `balanced_sigmoid_released` is that of the released code, target rate 1/2

One iterate is reported, the last.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.experiments.table2 import published
from equipoise.models.mask_rcnn import balanced_sigmoid, equalized_sigmoid
from equipoise.training.detection import DetectionRecipe
from equipoise.training.recipe import Method

NAME, BACKBONES = published.NAME, tuple(published.BACKBONES)
SEEDS = (0,)

BASE = DetectionRecipe()
SECOND_STAGE = replace(BASE, start="rfs", epochs=10, steps=(1 / 2, 9 / 11))


METHODS = (
    Method("rfs", BASE),
    Method("rfs_longer", SECOND_STAGE),
    Method("crt", replace(SECOND_STAGE, head="reset", sampler="class_aware")),
    Method("lws", replace(SECOND_STAGE, head="scaled", sampler="class_aware")),
    Method("eql", replace(SECOND_STAGE, classification=equalized_sigmoid, options={"threshold": 1.1e-3})),
    Method("balanced_sigmoid", replace(SECOND_STAGE, classification=balanced_sigmoid)),
    Method(
        "balanced_sigmoid_released",
        replace(SECOND_STAGE, classification=balanced_sigmoid, options={"target_rate": 0.5}),
    ),
)


def methods(backbone: str) -> tuple[Method[DetectionRecipe], ...]:
    """The rows on one of the backbones."""
    if backbone not in BACKBONES:
        raise ValueError(f"backbone is {backbone!r}: expected one of {', '.join(BACKBONES)}")
    return tuple(replace(method, recipe=replace(method.recipe, backbone=backbone)) for method in METHODS)  # type: ignore[arg-type]


def find(folder: Path) -> tuple[Path, Path, Path]:
    """The annotations to train and to test on, and the folder of train2017 and val2017, in LVIS's official layout."""
    for place in (folder, folder / "annotations"):
        train, val = place / "lvis_v1_train.json", place / "lvis_v1_val.json"
        if train.is_file() and val.is_file():
            return train, val, folder
    raise FileNotFoundError(
        f"{folder} holds no lvis_v1_train.json and lvis_v1_val.json, nor does its annotations folder: pass the folder "
        "with them and with COCO's train2017 and val2017"
    )
