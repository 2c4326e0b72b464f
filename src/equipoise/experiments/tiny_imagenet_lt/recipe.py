"""Tiny-ImageNet-LT: the paper's methods on photographs of 200 classes. The recipe, then one line per method.

    21,549 training images of 64 px, 500 down to 5 per class (imbalance 100), tested on the official validation set, 50
    images per class. ResNet-18 with a small stem from random weights, 60 epochs, batch 256, SGD with Nesterov momentum
    0.9 and weight decay 5e-4, learning rate 0.1 after a warm-up of a tenth, then a cosine to 0; shifts, mirroring and
    RandAugment.

Nothing was tuned: the values are the usual ones for the network, the same for every method. `--validate` trains
possible alternatives, evaluated on held-out training images. crt, lws and decoupled_balanced_softmax are second stages,
a fifth as long, on the frozen backbone of softmax; softmax_adjusted is softmax itself, minus the log prior.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.training.methods import methods
from equipoise.training.recipe import MethodCell, Recipe

NAME = "tiny-imagenet-lt"
SEEDS = (0, 1, 2)
IMAGES, EPOCHS, BATCH = 21_549, 60, 256
ITERATIONS = EPOCHS * IMAGES // BATCH

BASE = Recipe(
    model="resnet18",
    size=64,
    augmentation="randaugment-crop",
    batch_size=BATCH,
    iterations=ITERATIONS,
    warmup=ITERATIONS // 10,
    first_lr=0.0,
    nesterov=True,
)
EVERY = methods(BASE)
RECIPES = {name: EVERY[name] for name in ("softmax", "cbw", "cbs", "ldam", "balanced_softmax")} | {
    "softmax_adjusted": EVERY["adjusted"],
    "crt": EVERY["crt"],
    "lws": EVERY["lws"],
    "decoupled_balanced_softmax": EVERY["decoupled_balanced_softmax"],
}
ONE_SEED = ("cbw", "cbs", "ldam")

# Possible alternatives, on held-out images: augmentation and weight decay, for the two ends of the table.
CHOICES = {
    f"{name}{suffix}": replace(EVERY[name], **change)
    for suffix, change in (("", {}), ("_crop", {"augmentation": "crop"}), ("_decay_1e-4", {"weight_decay": 1e-4}))
    for name in ("softmax", "balanced_softmax")
}


def plan(validate: bool = False) -> list[MethodCell]:
    """Every run, the most informative first: both ends and what builds on softmax, then the rest, then more seeds."""
    if validate:
        return [MethodCell(name, 0) for name in CHOICES]
    several = [name for name in RECIPES if name not in ONE_SEED]
    first = [MethodCell(name, 0) for name in (*several, *ONE_SEED)]
    return first + [MethodCell(name, seed) for seed in SEEDS[1:] for name in several]


def find(folder: Path, validate: bool = False) -> tuple[Path, Path, str]:
    """The folders to train and to evaluate on, and the name of the latter in records."""
    judged, called = ("heldout", "held_out") if validate else ("val", "val")
    for name in ("train", judged):
        if not (folder / name).is_dir():
            raise FileNotFoundError(f"{folder} holds no folder {name}: pass the folder with train and val as --data")
    return folder / "train", folder / judged, called
