"""Distillation: one network learns from several others, its teachers, in addition to the labels.

    loss = (1 − w) · own loss + w · T² · mean over the batch of KL(p ‖ softmax(z / T))
    p    = mean over the teachers of softmax(z_t / T)

z are a model's logits, before a loss shifts them: after Balanced Softmax they mean equal classes, for the teachers and
for the student, so no prior appears in the second term. The recipe has w (`distillation`) and T.

Teachers are run once, before the first step, on a pool of `views` augmented views of every image: those that the run
would draw anyway the first `views` times it shows the image. Later epochs reuse the views in the same order. Images and
probabilities (in half precision) stay on the device, and a step costs no more than a plain one.

With mixup or CutMix the teachers see mixed images. Then w must be 1: the teachers alone decide what a mixture shows.

Reference: Hinton, Vinyals, Dean, "Distilling the Knowledge in a Neural Network", 2015.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.models.processes import world
from equipoise.training.augmentation.autoaugment import upload
from equipoise.training.mixing import draw, mixed_images
from equipoise.training.recipe import Recipe
from equipoise.training.sets import MIXING, Order, TrainingSet, stream_of

AT_ONCE = 4096  # items in a teacher's batch

Asked = Callable[[Any, Tensor], Tensor]
"""Computes a model's logits [N, K], or features [N, F], of items as a training set holds them."""
Labelled = Callable[[int, int], None]
"""Receives how many views the teachers have labelled so far, and how many there are."""


@dataclass(frozen=True)
class Teacher:
    """A trained network, by the name of its run; on the student's device, in evaluation mode."""

    name: str
    model: nn.Module


def distilled(own: Tensor, logits: Tensor, taught: Tensor, *, temperature: float, weight: float) -> Tensor:
    """The loss of a student: its `own`, logits [N, K], and the teachers' mean probabilities [N, K] at `temperature`.

    >>> probabilities = torch.tensor([[0.25, 0.75]])
    >>> logits = 3 * probabilities.log()
    >>> distilled(torch.tensor(1.0), logits, probabilities, temperature=3.0, weight=0.75)  # nothing left to learn
    tensor(0.2500)
    """
    divergence = divergences(logits, taught, temperature).mean()
    return (1 - weight) * own + weight * temperature**2 * divergence


def divergences(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """KL(p ‖ softmax(z / T)) of each row: [N], from logits z [N, K] and the teachers' mean probabilities p [N, K].

    >>> divergences(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), temperature=2.0)
    tensor([0.6931])
    """
    p = taught.to(logits.dtype)
    log_q = torch.log_softmax(logits / temperature, dim=1)
    return (torch.xlogy(p, p) - p * log_q).sum(1)


@torch.no_grad()
def mean_probabilities(
    teachers: Sequence[Teacher], items: Tensor, asked: Asked, *temperatures: float
) -> tuple[Tensor, ...]:
    """The mean of the teachers' probabilities at each temperature: [N, K] in fp32."""
    parts = []
    for part in torch.split(items, AT_ONCE):
        answers = [asked(teacher.model, part).float() for teacher in teachers]
        parts.append([torch.stack([(one / t).softmax(1) for one in answers]).mean(0) for t in temperatures])
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def occurrences(order: Order) -> NDArray[np.int64]:
    """How often each item of the batches has occurred before.

    >>> occurrences(np.array([[3, 5, 3], [3, 4, 5]], np.int32)).tolist()
    [[0, 0, 1], [2, 0, 1]]
    """
    flat = order.reshape(-1)
    by_item = np.argsort(flat, kind="stable")
    starts = np.flatnonzero(np.diff(flat[by_item], prepend=-1))
    numbers = np.arange(len(flat)) - np.repeat(starts, np.diff(starts, append=len(flat)))
    found = np.empty(len(flat), np.int64)
    found[by_item] = numbers
    return found.reshape(order.shape)


UNSEEN = ("first_lr", "lr", "warmup", "steps", "momentum", "nesterov", "weight_decay", "ema", "sam", "clip")


def shown_alike(recipe: Recipe) -> str:
    """Equal for recipes whose students, with the same data, seed and teachers, are shown the same views: those that
    differ at most in how the weights are updated.

    >>> from dataclasses import replace
    >>> recipe = Recipe(teacher="ce")
    >>> shown_alike(recipe) == shown_alike(replace(recipe, lr=0.2)), shown_alike(recipe) == shown_alike(Recipe())
    (True, False)
    """
    seen = {name: value for name, value in recipe.as_dict().items() if name not in UNSEEN}
    return json.dumps(seen, sort_keys=True)


@dataclass(frozen=True)
class Pool:
    """Views of the training images with the teachers' probabilities; `rows` lists the views in every batch."""

    items: Tensor  # [R, ...] as the training set holds them
    probabilities: Tensor  # [R, K] half
    rows: NDArray[np.int32]  # [iterations, batch size]

    def fill(self, items: Tensor, iteration: int, taught: Tensor) -> None:
        """Write the batches from an iteration on into [steps, rows, ...] and [steps, rows, K]."""
        index = upload(self.rows[iteration : iteration + len(items)].astype(np.int64), self.items.device)
        items.copy_(self.items[index])
        taught.copy_(self.probabilities[index])


def make_pool(
    data: TrainingSet,
    order: Order,
    recipe: Recipe,
    seed: int,
    teachers: Sequence[Teacher],
    features: Asked,
    labelled: Labelled = lambda done, of: None,
) -> Pool:
    """The views that a run with this order of images shows, and the teachers' probabilities for them; `features` runs
    the teachers' backbones."""
    check_teachable(recipe, teachers)
    shown = occurrences(order)
    view = order.astype(np.int64) * recipe.views + shown % recipe.views
    drawn = np.flatnonzero(shown.reshape(-1) < recipe.views)
    row_of = np.full(len(data.labels) * recipe.views, -1, np.int32)
    row_of[view.reshape(-1)[drawn]] = np.arange(len(drawn), dtype=np.int32)
    batches = -(-len(drawn) // recipe.batch_size)
    padded = np.resize(order.reshape(-1)[drawn], batches * recipe.batch_size).reshape(batches, -1)
    fill = data.filler(padded, recipe, seed)
    items = torch.empty(*padded.shape, *data.shape, dtype=data.dtype, device=data.device)
    num_classes = data.prior.num_classes
    probabilities = torch.empty(*padded.shape, num_classes, dtype=torch.float16, device=data.device)

    def asked(model: Any, items: Tensor) -> Tensor:
        return model.head(features(model, items).float())  # type: ignore[no-any-return]

    for start in range(0, batches, data.chunk):
        part = items[start : start + data.chunk]
        fill(part, start)
        mix_views(part, start, recipe, seed)
        (found,) = mean_probabilities(teachers, part.flatten(0, 1), asked, recipe.temperature)
        probabilities[start : start + data.chunk] = found.view(*part.shape[:2], num_classes)
        done = min((start + data.chunk) * recipe.batch_size, len(drawn))
        if done == len(drawn) and data.device.type == "cuda":
            torch.cuda.synchronize(data.device)
        labelled(done, len(drawn))
    return Pool(items.flatten(0, 1), probabilities.flatten(0, 1), row_of[view])


def mix_views(views: Tensor, start: int, recipe: Recipe, seed: int) -> None:
    """Mix views [batches, rows, C, H, W] as a run with this seed does from its batch `start` on; in place."""
    if recipe.mixup or recipe.cutmix:
        for step, batch in enumerate(views):
            row = draw(recipe, views.shape[-1], stream_of(seed, MIXING, start + step))
            batch.copy_(mixed_images(batch, upload(np.array(row, np.float32), views.device)).round())


def number_of_views(recipe: Recipe, images: int) -> int:
    """At most how many views teachers label for a student that learns from this number of images.

    >>> number_of_views(Recipe(views=128), 20_000), number_of_views(Recipe(views=128, iterations=10), 20_000)
    (2560000, 5120)
    """
    return min(recipe.views * images, recipe.iterations * recipe.batch_size)


def check_teachable(recipe: Recipe, teachers: Sequence[Teacher]) -> None:
    """Refuse what a student cannot be trained with."""
    if len(teachers) != recipe.teachers:
        raise ValueError(f"this recipe has {recipe.teachers} teachers ({recipe.teacher}), not {len(teachers)}")
    if world()[0] > 1:
        raise ValueError("a student is trained by one process: start it without torchrun")
