"""How to train, apart from the data and the seed: one frozen object; recipes are derived from one another with
`replace`.

A table is a list of methods, each with its recipe, and a plan: the cells to train, in order.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, TypeVar

from torch import nn

from equipoise.prior import Prior

AnyRecipe = TypeVar("AnyRecipe")
TEACHER_SEEDS = 1000  # the teachers of seed s have seeds from 1000 (s + 1) on, which no student has


@dataclass(frozen=True)
class Method(Generic[AnyRecipe]):
    """A row of a table: its name in paths and commands, and its recipe."""

    name: str
    recipe: AnyRecipe


@dataclass(frozen=True)
class Cell:
    """One run of a table of classifiers."""

    data_set: str
    imbalance: int
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.data_set}/{self.imbalance}/{self.method}/{self.seed}"


@dataclass(frozen=True)
class MethodCell:
    """One run of a table with one data set."""

    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.method}/{self.seed}"


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are those of the paper's CIFAR experiments (Ren et al. 2020, arXiv 2007.10740, C.3).

    loss           builds the loss; gets the training set's prior if it has a parameter of that name, and the options
    options        the loss's options; a mapping stands for one value per data set
    sampler        "instance": every image once per epoch. "class_balanced": every class equally often (an image with
                   several classes is drawn for each of them). "square_root": in proportion to the square root of its
                   count, for students that learn from their teachers alone
    head           "linear"; "normalized": cosines, for LDAM; with a backbone also "scaled" and "kept"
    rare_bias      start the head's bias at −log(K − 1): every class at 1/K, for sigmoids
    backbone       the method whose trained backbone (same data, same seed) is kept frozen, running statistics included
    adjusted       subtract the prior from the logits when predicting: for a model trained with a plain loss. With
                   several labels per image, every class then has the mean rate
    blocks, width  for "resnet32": blocks per stage (9: ResNet-56), and a factor of its 16, 32 and 64 channels
    model          "resnet32", or a classifier from torchvision or timm for images of `size` pixels
    full_stem      use the network's own first layers even for small images, as a weights file needs
    stride         where a ResNet's bottlenecks halve the picture, as in `make_backbone`
    neck           features of a layer with batch normalisation and dropout between backbone and head; 0: no such layer
    dropout        the share of these features that is dropped
    frozen_stages  stages of a ResNet that are frozen, together with the stem; the statistics of all its batch
                   normalisations are then frozen, too
    augmentation   of CIFAR: "paper", or "crop" for crops and flips only, without AutoAugment and Cutout; of other
                   images: one of AUGMENTATIONS in augmentation/photographs.py
    optimizer      "sgd" with momentum, or "adamw"
    sam            take the gradients where the loss rises most within this distance from the weights, at twice the cost
                   (sharpness-aware minimisation); 0: at the weights. Dropout drops others there
    ema            keep a moving average of the weights, with this decay per step; 0: keep the last iterate
    mixup, cutmix  the parameter of the Beta distribution with which images are mixed; 0: no mixing
    mix_probability   the share of batches that are mixed
    steps          iterations at which the learning rate is divided by 10; none: it falls as half a cosine
    clip           the largest norm of the gradient, which is scaled down to it; 0: no limit
    accumulate     parts that a batch is split into, one after the other: less memory, the same gradients (except for
                   batch statistics, which are computed per part)
    teacher        the method whose runs teach this one: `teachers` of them, on the same data, with seeds of their own
                   (`teacher_cells`). None: it learns from labels alone
    temperature, distillation   of the teachers' probabilities, and the weight of their loss beside the recipe's own
    views          augmented views of every image, on which the teachers are run once; later epochs reuse them

    >>> replace(Recipe(), iterations=50).warmup
    800
    """

    loss: Callable[..., nn.Module] = nn.CrossEntropyLoss
    options: Mapping[str, Any] = field(default_factory=dict)
    sampler: Literal["instance", "class_balanced", "square_root"] = "instance"
    head: Literal["linear", "normalized", "scaled", "kept"] = "linear"
    rare_bias: bool = False
    backbone: str | None = None
    adjusted: bool = False
    blocks: int = 5
    batch_size: int = 512
    iterations: int = 13_000
    warmup: int = 800
    first_lr: float = 0.05
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    model: str = "resnet32"
    size: int = 32
    augmentation: str = "paper"
    full_stem: bool = False
    stride: Literal["1x1", "3x3"] | None = None
    optimizer: Literal["sgd", "adamw"] = "sgd"
    ema: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    accumulate: int = 1
    neck: int = 0
    dropout: float = 0.0
    frozen_stages: int = 0
    steps: tuple[int, ...] = ()
    clip: float = 0.0
    teacher: str | None = None
    teachers: int = 6
    temperature: float = 2.0
    distillation: float = 0.8
    views: int = 128
    width: int = 1
    mix_probability: float = 1.0
    sam: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.mix_probability <= 1:
            raise ValueError(f"mix_probability is {self.mix_probability}: expected a share of the batches, from 0 to 1")
        if not 0 <= self.sam < math.inf:
            raise ValueError(f"sam is {self.sam}: expected a distance from the weights, 0 or more")
        if self.sampler == "square_root" and not self.taught_alone:
            raise ValueError(
                'sampler="square_root" leaves class frequencies that no loss here corrects: expected a teacher and '
                "distillation=1.0"
            )
        if self.teacher is None:
            return
        if (self.mixup or self.cutmix) and self.distillation != 1:
            raise ValueError(
                f"a student of mixed images learns from its teachers alone: expected distillation=1.0 beside mixup or "
                f"cutmix, got {self.distillation}"
            )
        if self.backbone is not None:
            raise ValueError("a student trains its whole network: expected a teacher or a backbone, got both")
        if not 1 <= self.teachers <= TEACHER_SEEDS:
            raise ValueError(f"teachers is {self.teachers}: expected 1 to {TEACHER_SEEDS}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}: expected more than 0")
        if not 0 <= self.distillation <= 1:
            raise ValueError(f"distillation is {self.distillation}: expected the teachers' share of the loss, 0 to 1")
        if self.views < 1:
            raise ValueError(f"views is {self.views}: teachers need at least 1 view of each image")

    @property
    def taught_alone(self) -> bool:
        """Whether only teachers decide what is learned: then labels and sampling do not move the logits."""
        return self.teacher is not None and self.distillation == 1

    @property
    def passes(self) -> int:
        """How often an iteration runs the network forward and back."""
        return 2 if self.sam else 1

    def learning_rate(self, iteration: int) -> float:
        """Linear from `first_lr` to `lr` over the warm-up, then a half cosine to 0 at the end, or steps.

        >>> recipe = Recipe()
        >>> [round(recipe.learning_rate(i), 6) for i in (0, 400, 800, 6_900, 13_000)]
        [0.05, 0.075, 0.1, 0.05, 0.0]
        >>> [round(replace(recipe, steps=(9_000, 12_000)).learning_rate(i), 6) for i in (800, 8_999, 9_000, 12_000)]
        [0.1, 0.1, 0.01, 0.001]
        """
        if iteration < self.warmup:
            return self.first_lr + (self.lr - self.first_lr) * iteration / self.warmup
        if self.steps:
            return self.lr * 0.1 ** sum(iteration >= step for step in self.steps)
        done = (iteration - self.warmup) / max(self.iterations - self.warmup, 1)
        return self.lr * (1 + math.cos(math.pi * done)) / 2

    def for_data(self, data_set: str) -> Recipe:
        """The recipe with the loss's options for one data set.

        >>> Recipe(options={"beta": {"cifar10-lt": 0.9999, "cifar100-lt": 0.9}}).for_data("cifar100-lt").options
        {'beta': 0.9}
        """
        chosen = {
            name: value[data_set] if isinstance(value, Mapping) else value for name, value in self.options.items()
        }
        return replace(self, options=chosen)

    def shortened(self, iterations: int) -> Recipe:
        """A smoke test with this many iterations, and warm-up and steps in proportion.

        >>> Recipe().shortened(130).warmup
        8
        """
        if self.iterations == 0:
            return self
        warmup, *steps = (place * iterations // self.iterations for place in (self.warmup, *self.steps))
        return replace(self, iterations=iterations, warmup=warmup, steps=tuple(steps))

    def teacher_cells(self, cell: Cell) -> list[Cell]:
        """The runs that teach a cell of this recipe; no two cells of different seeds share one.

        >>> [str(one) for one in Recipe(teacher="ce", teachers=2).teacher_cells(Cell("cifar10-lt", 100, "student", 1))]
        ['cifar10-lt/100/ce/2000', 'cifar10-lt/100/ce/2001']
        """
        if self.teacher is None:
            return []
        first = TEACHER_SEEDS * (cell.seed + 1)
        return [Cell(cell.data_set, cell.imbalance, self.teacher, first + i) for i in range(self.teachers)]

    def make_loss(self, prior: Prior) -> nn.Module:
        """The loss for a training set with this prior."""
        given = {"prior": prior} if "prior" in inspect.signature(self.loss).parameters else {}
        return self.loss(**given, **self.options)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a record.

        >>> Recipe().as_dict()["loss"]
        'CrossEntropyLoss'
        """
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return content | {"loss": self.loss.__name__, "options": dict(self.options), "steps": list(self.steps)}
