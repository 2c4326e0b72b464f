"""VOC-MLT: several labels per photograph, 20 classes. The recipe, then one line per method.

    1,142 training images of PASCAL VOC 2012, 760 down to 4 per class: the published list. Tested on 4,952 other images
    of VOC 2012: our own choice, since the published test set, that of VOC 2007, was not available.

Published (Wu et al. 2020 and their released code, for the row DB): ResNet-50 from ImageNet weights, its stem and first
stage frozen and the statistics of its batch normalisations kept; a layer of 256 features with batch normalisation and
dropout 0.5, no nonlinearity; images squeezed to 224 × 224 pixels, photometric distortion, a crop of at least 80 % of
either side, mirroring; batch 32; SGD with learning rate 0.02, momentum 0.9 and weight decay 1e-4, gradients clipped to
a norm of 35; a warm-up of 500 iterations from a third; 8 epochs of 3,800 class-aware draws, 118 batches each; steps
after 5 and 7 of them; the parameters of the loss, which is a mean over classes, times 2 where it is focal.

Ours: the test images; the ImageNet weights, which halve the picture in another place (`--stride`) than torchvision's;
one image per class at a time in class-aware sampling, not three; 944 iterations for every row, including those that
sample images as they are; and the values of the rows that their paper does not have: ASL's are its paper's, EQL treats
classes with fewer than 20 images as rare, Balanced Sigmoid has none. Nothing was tuned.

Reference: Wu, Huang, Liu, Wang, Lin, "Distribution-Balanced Loss for Multi-Label Classification in Long-Tailed
Datasets", ECCV 2020, arXiv 2007.09654.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from equipoise.data.images import ImageList
from equipoise.data.tagged_images import read_tagged_images
from equipoise.losses.asymmetric import AsymmetricLoss
from equipoise.losses.balanced_sigmoid import BalancedSigmoidLoss
from equipoise.losses.distribution_balanced import DistributionBalancedLoss
from equipoise.losses.equalization import SigmoidEqualizationLoss
from equipoise.losses.focal import SigmoidFocalLoss
from equipoise.prior import Prior
from equipoise.training.methods import with_loss
from equipoise.training.recipe import MethodCell, Recipe

NAME = "voc-mlt"
SEEDS = (0, 1, 2)
EPOCH = 3_800 // 32  # batches: every class is drawn a quarter as often as the largest one has images
RARE = 20  # images: EQL treats classes with fewer as rare

BASE = Recipe(
    loss=nn.BCEWithLogitsLoss,
    model="resnet50",
    size=224,
    full_stem=True,
    neck=256,
    dropout=0.5,
    frozen_stages=1,
    augmentation="distorted",
    batch_size=32,
    iterations=8 * EPOCH,
    warmup=500,
    first_lr=0.02 / 3,
    lr=0.02,
    steps=(5 * EPOCH, 7 * EPOCH),
    clip=35.0,
    weight_decay=1e-4,
)


class Doubled(nn.Module):
    """A loss times 2: the factor of focal losses in the released code."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return 2 * self.loss(logits, target)  # type: ignore[no-any-return]


def focal(gamma: float) -> Doubled:
    """Sigmoid focal loss, times 2."""
    return Doubled(SigmoidFocalLoss(gamma))


def distribution_balanced(prior: Prior, **options: float) -> Doubled:
    """Distribution-Balanced loss in its focal form, times 2."""
    return Doubled(DistributionBalancedLoss(prior, **options))  # type: ignore[arg-type]


def equalization(prior: Prior, images: int) -> SigmoidEqualizationLoss:
    """EQL that treats classes with fewer than this many training images as rare."""
    return SigmoidEqualizationLoss(prior, images / prior.total)


RELEASED = {"alpha": 0.1, "beta": 10.0, "mu": 0.3, "tolerance": 5.0, "kappa": 0.05, "gamma": 2.0}
RECIPES = {
    "bce": BASE,
    "class_aware": replace(BASE, sampler="class_balanced"),
    "focal": with_loss(BASE, focal, gamma=2.0),
    "asl": with_loss(BASE, AsymmetricLoss, gamma_positive=0.0, gamma_negative=4.0, margin=0.05),
    "db": with_loss(replace(BASE, sampler="class_balanced"), distribution_balanced, **RELEASED),
    "eql": with_loss(BASE, equalization, images=RARE),
    "balanced_sigmoid": with_loss(BASE, BalancedSigmoidLoss),
    "balanced_sigmoid_half": with_loss(BASE, BalancedSigmoidLoss, target_rate=0.5),
    "bce_adjusted": replace(BASE, backbone="bce", head="kept", adjusted=True, iterations=0, warmup=0, steps=()),
}


def plan() -> list[MethodCell]:
    """Every run, seed by seed, the most informative first."""
    first = ("bce", "balanced_sigmoid", "db", "bce_adjusted")
    order = (*first, *(name for name in RECIPES if name not in first))
    return [MethodCell(name, seed) for seed in SEEDS for name in order]


def find(folder: Path) -> tuple[ImageList, ImageList]:
    """The images to train and to test on."""
    table = folder / "labels.csv"
    if not table.is_file():
        raise FileNotFoundError(f"{folder} holds no labels.csv: pass the folder with labels.csv and images as --data")
    train = read_tagged_images(table, part="train")
    return train, read_tagged_images(table, part="test", class_names=train.class_names)
