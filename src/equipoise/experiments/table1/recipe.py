"""Table 1 of the paper: CIFAR-10-LT and CIFAR-100-LT at imbalance 200, 100, 10. The recipe, then one line per method.

    ResNet-32, batch 512, 13,000 iterations whatever the sampler, SGD with momentum 0.9 and weight decay 5e-4 on all
    parameters, learning rate 0.05 → 0.1 over 800 iterations, then a cosine to 0; crop, flip, AutoAugment, Cutout 16.

The paper itself gives no recipe for this table. This one is that of its companion, Ren et al., "Balanced Meta-Softmax
for Long-Tailed Visual Recognition", 2020, arXiv 2007.10740, appendix C.3, and of its released code; it states that the
other methods have the best hyper-parameters of their own papers. Where each comes from:

    nesterov          off, as in the released code; the companion's text says on. On held-out training images the
                      difference is within the variation between seeds (CHOICES)
    cbw               w_j ∝ 1/n_j, the weighted mean of torch: the common reading, not released
    focal             γ = 1 on the softmax, the variant and value of Cao et al. 2019 (LDAM)
    class_balanced    cross-entropy; β = 0.9999 on CIFAR-10 and 0.9 on CIFAR-100, the values of Zhang et al. 2021 (Bag
                      of Tricks for Long-Tailed Visual Recognition), later than the table: a value, not the authors'
    ldam              s = 30, max margin 0.5, cosine head, no deferred re-weighting: Cao et al. 2019
    eql               γ = 0.95, λ = 3e-3 on CIFAR-100: Tan et al. 2020. On CIFAR-10 that λ would affect one class at
                      imbalance 200 and none at 100 and 10; there λ is the best of four on held-out training images
                      (CHOICES)
    crt, lws          Kang et al. 2020; here 2,000 iterations at 0.1 with a cosine, as the companion's second stage

One iterate is reported, the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from equipoise.experiments.table1 import published
from equipoise.losses.balanced_sigmoid import BalancedSigmoidLoss
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.class_balanced import ClassBalancedLoss
from equipoise.losses.equalization import EqualizationLoss
from equipoise.losses.focal import FocalLoss
from equipoise.losses.ldam import LDAMLoss
from equipoise.training.methods import sigmoid_cross_entropy, weighted_cross_entropy, with_loss
from equipoise.training.recipe import Cell, Method, Recipe

NAME, DATA_SETS, IMBALANCES = published.NAME, tuple(published.DATA_SETS), published.IMBALANCES
BELOW_CELL = published.BELOW_CELL
SEEDS = (0, 1, 2)


BASE = Recipe()
SIGMOID = replace(BASE, rare_bias=True)
SECOND_STAGE = replace(BASE, backbone="softmax", iterations=2_000, warmup=0)


BETAS = {"cifar10-lt": 0.9999, "cifar100-lt": 0.9}
THRESHOLDS = {"cifar10-lt": 0.02, "cifar100-lt": 3e-3}
METHODS = (
    Method("softmax", BASE),
    Method("cbw", with_loss(BASE, weighted_cross_entropy)),
    Method("cbs", replace(BASE, sampler="class_balanced")),
    Method("focal", with_loss(BASE, FocalLoss, gamma=1.0)),
    Method("class_balanced", with_loss(BASE, ClassBalancedLoss, beta=BETAS)),
    Method("ldam", with_loss(replace(BASE, head="normalized"), LDAMLoss, max_margin=0.5, scale=30.0)),
    Method("eql", with_loss(BASE, EqualizationLoss, gamma=0.95, threshold=THRESHOLDS)),
    Method("balanced_softmax", with_loss(BASE, BalancedSoftmaxLoss, tau=1.0)),
)

# Under the rule line, on CIFAR-100-LT at 100 only. A method that keeps a backbone takes that of the same seed.
BELOW = (
    *(Method(f"balanced_softmax_tau_{tau}", with_loss(BASE, BalancedSoftmaxLoss, tau=tau)) for tau in (0.25, 0.5, 1.5)),
    Method("softmax_adjusted", replace(SECOND_STAGE, head="kept", iterations=0, adjusted=True)),
    Method("sigmoid", with_loss(SIGMOID, sigmoid_cross_entropy)),
    Method("balanced_sigmoid", with_loss(SIGMOID, BalancedSigmoidLoss, reduction="batchmean")),
    Method("crt", replace(SECOND_STAGE, sampler="class_balanced")),
    Method("lws", replace(SECOND_STAGE, sampler="class_balanced", head="scaled")),
    Method("decoupled_balanced_softmax", with_loss(SECOND_STAGE, BalancedSoftmaxLoss, tau=1.0)),
)

# What had to be chosen, and from what: evaluated on the images of the factor-10 draw that the cell's draw leaves out.
CHOICES = (
    *(
        ("cifar100-lt", 100, Method(f"{method.name}{suffix}", replace(method.recipe, nesterov=nesterov)))
        for method in (METHODS[0], METHODS[-1])
        for suffix, nesterov in (("", False), ("_nesterov", True))
    ),
    *(
        ("cifar10-lt", imbalance, Method(f"eql_threshold_{threshold}", recipe))
        for imbalance in (100, 200)
        for threshold in (0.01, 0.02, 0.05, 0.1)
        for recipe in [with_loss(BASE, EqualizationLoss, gamma=0.95, threshold=threshold)]
    ),
)


def recipe_of(cell: Cell) -> Recipe:
    """The cell's recipe, with the options for its data set."""
    recipes = {method.name: method.recipe for method in (*METHODS, *BELOW)}
    if cell.method not in recipes:
        raise ValueError(f"no method is named {cell.method!r}: expected one of {', '.join(recipes)}")
    return recipes[cell.method].for_data(cell.data_set)


def choice_recipe_of(cell: Cell) -> Recipe:
    """The recipe of a cell of CHOICES."""
    for data_set, imbalance, method in CHOICES:
        if (data_set, imbalance, method.name) == (cell.data_set, cell.imbalance, cell.method):
            return method.recipe.for_data(data_set)
    raise ValueError(f"{cell} is not one of the choices")


def plan() -> list[Cell]:
    """Every run of the table, the most informative first; last those of the imbalance that the paper does not have."""
    ends = ["softmax", "balanced_softmax"]
    between = [method.name for method in METHODS if method.name not in ends]
    below = [Cell(*BELOW_CELL, method.name, seed) for seed in SEEDS for method in BELOW]

    def cells(seeds: Sequence[int], methods: Sequence[str]) -> list[Cell]:
        return [Cell(*column, name, seed) for seed in seeds for column in published.COLUMNS for name in methods]

    # softmax and balanced_softmax first: they are trained together, and stop together
    first = cells(SEEDS[:1], ends + between) + cells(SEEDS[1:], ends) + below[: len(BELOW)]
    later = [
        Cell(*column, name, seed)
        for seed in SEEDS
        for column in published.LATER_COLUMNS
        for name in published.LATER_METHODS
    ]
    return first + cells(SEEDS[1:], between) + below[len(BELOW) :] + later


def choices_plan() -> list[Cell]:
    """Every run behind a choice, one seed each."""
    return [Cell(data_set, imbalance, method.name, 0) for data_set, imbalance, method in CHOICES]
