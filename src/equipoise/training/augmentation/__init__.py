"""Augmentation in batches, on the device of the data, equal to Pillow to the bit."""

from equipoise.training.augmentation.autoaugment import ATOMS, POLICY, Atom, AutoAugment, draw_atoms
from equipoise.training.augmentation.cifar import (
    MEAN,
    STD,
    Draws,
    TrainingAugmentation,
    crop_and_flip,
    cutout,
    draw,
    normalise,
    pad,
)

__all__ = [
    "ATOMS",
    "MEAN",
    "POLICY",
    "STD",
    "Atom",
    "AutoAugment",
    "Draws",
    "TrainingAugmentation",
    "crop_and_flip",
    "cutout",
    "draw",
    "draw_atoms",
    "normalise",
    "pad",
]
