"""VOC2012-LT: the methods of Table 2 on real images that fit one GPU. The recipe, then one line per method.

    PASCAL VOC2012 instance segmentation at 320 px: 862 training images with a long tail from 242 images of `person` to
    4 of `sheep`, tested on all 1,449 of `val`. Mask R-CNN, ResNet-50 from ImageNet, 25 epochs, then 10 of the
    classifier alone; 16 images, learning rate 0.02, warm-up of 100 iterations (50 in the second stage).

This is not LVIS and is never called so; only the regime is the same: frequent, common and rare classes by LVIS's rule,
LVIS's evaluation, sigmoid heads, two stages. What the size of the data set changes:

    images             shorter side 320, longer at most 480 (LVIS: 800 and 1,333), so 1,000 boxes of a level compete
    repeat threshold   0.05 where LVIS has 0.001, which would repeat nothing here
    eql                λ = 100 of 862 images, as LVIS's 1.1e-3 is about 100 images
    balanced_sigmoid   the paper's form, counting the images that hold a class
    rfs_adjusted       the whole shift, tau = 1, as chosen on mosaic-lt; the choice for these images is not run yet
    seesaw, eql_v2, federated   with their authors' values, as in mosaic-lt; federated's 50 classes per batch are all 20

The threshold, the learning rate, the form and what is counted were chosen from CHOICES, on the 602 images of the
original training set that the long-tailed one leaves out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from equipoise.data.reading import read_json
from equipoise.experiments.detectors import adjusted, more_rows, rows_of_the_paper, second_stage, tau_choices
from equipoise.files import write_text
from equipoise.models.mask_rcnn import balanced_sigmoid
from equipoise.training.detection import DetectionRecipe
from equipoise.training.recipe import Method

NAME = "voc2012-lt"
SEEDS = (0, 1, 2)

# What BASE_CHOICES vary; what was chosen is in BASE. A choice never changes the runs behind it.
TRIED = DetectionRecipe(
    repeat_threshold=0.02, warmup=100, steps=(0.7, 0.9), min_sizes=(320,), max_size=480, proposals=1000
)
BASE = replace(TRIED, repeat_threshold=0.05)


METHODS = (*rows_of_the_paper(BASE, rare=100 / 862), adjusted(BASE, tau=1.0), *more_rows(BASE))

# What had to be chosen, and from what.
SECOND_TRIED = second_stage(TRIED, f"rfs_{TRIED.repeat_threshold}")
BASE_CHOICES = (
    *(Method(f"rfs_{threshold}", replace(TRIED, repeat_threshold=threshold)) for threshold in (0.02, 0.001, 0.05, 0.1)),
    Method("rfs_lr_0.01", replace(TRIED, lr=0.01)),
    Method("rfs_longer", SECOND_TRIED),
    *(
        Method(
            f"balanced_sigmoid_{form}_{counts}{'' if lr == TRIED.lr else f'_lr_{lr}'}",
            replace(SECOND_TRIED, classification=balanced_sigmoid, options={"target_rate": rate}, counts=counts, lr=lr),
        )
        for lr in (0.02, 0.002)
        for form, rate in (("paper", None), ("released", 0.5))
        for counts in ("images", "instances")
    ),
)
CHOICES = (*BASE_CHOICES, *tau_choices(BASE))


def find(folder: Path) -> tuple[Path, Path, Path]:
    """The annotations to train and to test on, and the folder of the images."""
    train, val = folder / "train_lt.json", folder / "val.json"
    if not (train.is_file() and val.is_file()):
        raise FileNotFoundError(f"{folder} holds no train_lt.json and val.json: pass the folder with them as --data")
    return train, val, folder


def held_out(folder: Path, path: Path) -> Path:
    """The annotations of the training images outside of train_lt.json, with its categories, written to `path`."""
    if not (folder / "train.json").is_file():
        raise FileNotFoundError(
            f"{folder} holds no train.json: for --validate, put the annotations of all training images there, beside "
            "train_lt.json"
        )
    every, drawn = read_json(folder / "train.json"), read_json(folder / "train_lt.json")
    used = {image["id"] for image in drawn["images"]}
    left = {
        "images": [image for image in every["images"] if image["id"] not in used],
        "annotations": [annotation for annotation in every["annotations"] if annotation["image_id"] not in used],
        "categories": drawn["categories"],
    }
    write_text(path, json.dumps(left))  # written whole: another command may be reading it
    return path
