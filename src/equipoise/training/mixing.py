"""Mixup and CutMix on the device: every image of a batch is mixed with the one at the same place from the end.

    mixup    λ x + (1 − λ) x',            λ ~ Beta(α, α), one per batch
    cutmix   x' within a rectangle with a share 1 − λ of the area, at a random place and clipped at the border

Targets are mixed by the shares of the pixels: they become probabilities [N, K], which the losses accept. With both, one
of them is drawn per batch. A batch is mixed with the recipe's `mix_probability`. With several processes, each mixes its
own rows.

References: Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018; Yun et al., "CutMix", 2019.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.training.augmentation.autoaugment import upload
from equipoise.training.recipe import Recipe
from equipoise.training.sets import MIXING, stream_of

WHOLE = (1.0, 0, 0, 0, 0, 1.0)  # the row of a batch that is not mixed


class Mixing:
    """How the batches of a chunk are mixed: (share of the image outside the rectangle, top, bottom, left, right, share
    of the target), one row per batch."""

    def __init__(self, recipe: Recipe, chunk: int, num_classes: int, device: torch.device) -> None:
        self.recipe, self.num_classes = recipe, num_classes
        self.draws = torch.zeros(chunk, 6, device=device)

    def fill(self, seed: int, iteration: int, side: int) -> None:
        """Draw for the batches from `iteration` on."""
        rows = [draw(self.recipe, side, stream_of(seed, MIXING, iteration + step)) for step in range(len(self.draws))]
        self.draws.copy_(upload(np.array(rows, np.float32), self.draws.device))

    def __call__(self, images: Tensor, labels: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Images [N, C, H, W] as floats from 0 to 255 and targets [N, K], mixed according to the row `slot`."""
        return mixed(images, labels, self.draws.index_select(0, slot)[0], self.num_classes)


def draw(recipe: Recipe, side: int, random: np.random.Generator) -> tuple[float, ...]:
    """The row for one batch of images that are `side` pixels wide."""
    if recipe.mix_probability < 1 and random.random() >= recipe.mix_probability:
        return WHOLE
    cuts = recipe.cutmix > 0 and (not recipe.mixup or random.random() < 0.5)
    alpha = recipe.cutmix if cuts else recipe.mixup
    share = float(random.beta(alpha, alpha))
    if not cuts:
        return (share, 0, 0, 0, 0, share)
    cut = int(side * np.sqrt(1 - share))
    y, x = random.integers(side, size=2)
    ends = (y - cut // 2, y + (cut + 1) // 2, x - cut // 2, x + (cut + 1) // 2)
    top, bottom, left, right = (int(np.clip(end, 0, side)) for end in ends)
    return (1.0, top, bottom, left, right, 1 - (bottom - top) * (right - left) / side**2)


def mixed(images: Tensor, labels: Tensor, row: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The batch mixed with itself from the end."""
    share = row[5]
    targets = F.one_hot(labels, num_classes).float() if labels.ndim == 1 else labels.float()
    return mixed_images(images, row), targets * share + targets.flip(0) * (1 - share)


def mixed_images(images: Tensor, row: Tensor) -> Tensor:
    """The images alone, as floats."""
    outside, top, bottom, left, right, _ = row.unbind()
    ys, xs = (torch.arange(length, device=images.device) for length in images.shape[-2:])
    within = ((ys >= top) & (ys < bottom))[:, None] & ((xs >= left) & (xs < right))
    kept = torch.where(within, 0.0, outside)
    given = images.float()
    return given * kept + given.flip(0) * (1 - kept)
