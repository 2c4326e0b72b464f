"""mosaic-lt: the methods of Table 2 on 200 classes of boxes, in LVIS's proportions of rare, common and frequent ones.

    Tiny-ImageNet's photos and human boxes in mosaics of 4 to 16, 256 px: 2,379 training images with 500 down to 2
    photos per class (57 frequent, 83 common, 60 rare), tested on 1,325 balanced images. Faster R-CNN, ResNet-50 from
    ImageNet, 25 epochs, then 10 of the classifier alone; the recipe is VOC2012-LT's, at 320 px.

Its size changes one thing: EQL's λ is 100 of 2,379 images, as LVIS's 1.1e-3 is about 100 images. `rfs_adjusted` is the
detector of `rfs` with the sigmoid shift of the prior subtracted from its logits, without training. Its tau is chosen
among CHOICES on 797 held-out images; 1 is the whole shift. `seesaw`, `eql_v2` and `federated` have their authors'
values: p = 0.8 and q = 2; gamma 12, mu 0.8 and alpha 4; 50 classes per batch by the root of their images. `seesaw`
starts a new classifier: one column for whether a box holds an object, and a softmax for which, as in its paper.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.experiments.detectors import adjusted, more_rows, rows_of_the_paper, tau_choices
from equipoise.experiments.voc2012_lt import recipe as voc2012_lt

NAME = "mosaic-lt"
SEEDS = (0, 1, 2)
BASE = voc2012_lt.BASE

METHODS = (*rows_of_the_paper(BASE, rare=100 / 2379), adjusted(BASE, tau=1.0), *more_rows(BASE))
CHOICES = tau_choices(BASE)


def find(folder: Path) -> tuple[Path, Path, Path]:
    """The annotations to train and to test on, and the folder of the images."""
    train, val = folder / "train.json", folder / "val.json"
    if not (train.is_file() and val.is_file()):
        raise FileNotFoundError(f"{folder} holds no train.json and val.json: pass the folder with them as --data")
    return train, val, folder


def held_out(folder: Path, path: Path) -> Path:
    """The annotations for making choices; they are in the data set's folder, so `path` is not used."""
    if not (found := folder / "heldout.json").is_file():
        raise FileNotFoundError(
            f"{folder} holds no heldout.json: for --validate, put the annotations of held-out images there, beside "
            "train.json"
        )
    return found
