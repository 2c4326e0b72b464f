"""Table 1 of the paper: CIFAR-10-LT and CIFAR-100-LT at imbalance 200, 100, 10. The recipe, then one line per method.

    ResNet-32, batch 512, 13,000 iterations whatever the sampler, SGD with momentum 0.9 and weight decay 5e-4 on all
    parameters, learning rate 0.05 → 0.1 over 800 iterations, then a cosine to 0; crop, flip, AutoAugment, Cutout 16.

The paper itself gives no recipe for this table. This one is that of its companion, Ren et al., "Balanced Meta-Softmax
for Long-Tailed Visual Recognition", 2020, arXiv 2007.10740, appendix C.3, and of its released code; it says that the
other methods have the best hyper-parameters of their own papers. Where each comes from:

    nesterov          off, as in the released code; the companion's text says on. On held-out training images the
                      difference is within what seeds do (CHOICES)
    cbw               w_j ∝ 1/n_j, the weighted mean of torch: the common reading, not released
    focal             γ = 1 on the softmax, the variant and value of Cao et al. 2019 (LDAM)
    class_balanced    cross-entropy; β = 0.9999 on CIFAR-10 and 0.9 on CIFAR-100, the values of Zhang et al. 2021 (Bag
                      of Tricks for Long-Tailed Visual Recognition), later than the table: a value, not the authors'
    ldam              s = 30, max margin 0.5, cosine head, no deferred re-weighting: Cao et al. 2019
    eql               γ = 0.95, λ = 3e-3 on CIFAR-100: Tan et al. 2020. On CIFAR-10 that λ would reach one class at
                      imbalance 200 and none at 100 and 10; λ there is the best of four on held-out training images
                      (CHOICES)
    crt, lws          Kang et al. 2020; here 2,000 iterations at 0.1 with a cosine, as the companion's second stage

One iterate is reported, the last.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from equipoise.losses import (
    BalancedSigmoidLoss,
    BalancedSoftmaxLoss,
    ClassBalancedLoss,
    EqualizationLoss,
    FocalLoss,
    LDAMLoss,
    inverse_frequency_weights,
)
from equipoise.prior import Prior
from equipoise.training.recipe import Cell, Method, Recipe

NAME = "table1"
DATA_SETS = ("cifar10-lt", "cifar100-lt")
IMBALANCES = (200, 100, 10)
SEEDS = (0, 1, 2)


def weighted_cross_entropy(prior: Prior) -> nn.CrossEntropyLoss:
    """Class-balanced weighting: cross-entropy with weights ∝ 1/n_j."""
    return nn.CrossEntropyLoss(weight=inverse_frequency_weights(prior))


def sigmoid_cross_entropy(prior: Prior) -> BalancedSigmoidLoss:
    """K binary problems, summed over classes: Balanced Sigmoid under a uniform prior, whose shift is 0."""
    return BalancedSigmoidLoss(Prior.uniform(prior.num_classes), reduction="batchmean")


BASE = Recipe()
SIGMOID = replace(BASE, rare_bias=True)
SECOND_STAGE = replace(BASE, backbone="softmax", iterations=2_000, warmup=0)


METHODS = (
    Method("softmax", "Softmax", BASE),
    Method("cbw", "CBW", replace(BASE, loss=weighted_cross_entropy)),
    Method("cbs", "CBS", replace(BASE, sampler="class_balanced")),
    Method("focal", "Focal", replace(BASE, loss=FocalLoss, options={"gamma": 1.0})),
    Method(
        "class_balanced",
        "Class-Balanced",
        replace(BASE, loss=ClassBalancedLoss, options={"beta": {"cifar10-lt": 0.9999, "cifar100-lt": 0.9}}),
    ),
    Method("ldam", "LDAM", replace(BASE, loss=LDAMLoss, options={"max_margin": 0.5, "scale": 30.0}, head="normalized")),
    Method(
        "eql",
        "EQL",
        replace(
            BASE,
            loss=EqualizationLoss,
            options={"gamma": 0.95, "threshold": {"cifar10-lt": 0.02, "cifar100-lt": 3e-3}},
        ),
    ),
    Method("balanced_softmax", "Balanced Softmax", replace(BASE, loss=BalancedSoftmaxLoss, options={"tau": 1.0})),
)

# Under the rule line, on CIFAR-100-LT at 100 only. What keeps a backbone takes that of the same seed.
BELOW = (
    *(
        Method(
            f"balanced_softmax_tau_{tau}",
            f"Balanced Softmax, τ = {tau}",
            replace(BASE, loss=BalancedSoftmaxLoss, options={"tau": tau}),
        )
        for tau in (0.25, 0.5, 1.5)
    ),
    Method(
        "softmax_adjusted",
        "Softmax, adjusted after training",
        replace(SECOND_STAGE, head="kept", iterations=0, adjusted=True),
    ),
    Method("sigmoid", "Sigmoid", replace(SIGMOID, loss=sigmoid_cross_entropy)),
    Method(
        "balanced_sigmoid",
        "Balanced Sigmoid",
        replace(SIGMOID, loss=BalancedSigmoidLoss, options={"reduction": "batchmean"}),
    ),
    Method("crt", "Softmax, then cRT", replace(SECOND_STAGE, sampler="class_balanced")),
    Method("lws", "Softmax, then LWS", replace(SECOND_STAGE, sampler="class_balanced", head="scaled")),
    Method(
        "decoupled_balanced_softmax",
        "Softmax, then Balanced Softmax",
        replace(SECOND_STAGE, loss=BalancedSoftmaxLoss, options={"tau": 1.0}),
    ),
)
BELOW_CELL = ("cifar100-lt", 100)

# What had to be chosen, and among what: evaluated on the images of the factor-10 draw that the cell's draw leaves out.
CHOICES = (
    *(
        ("cifar100-lt", 100, Method(f"{method.name}{suffix}", method.title, replace(method.recipe, nesterov=nesterov)))
        for method in (METHODS[0], METHODS[-1])
        for suffix, nesterov in (("", False), ("_nesterov", True))
    ),
    *(
        (
            "cifar10-lt",
            imbalance,
            Method(
                f"eql_threshold_{threshold}",
                f"EQL, λ = {threshold}",
                replace(BASE, loss=EqualizationLoss, options={"gamma": 0.95, "threshold": threshold}),
            ),
        )
        for imbalance in (100, 200)
        for threshold in (0.01, 0.02, 0.05, 0.1)
    ),
)

# Mean and standard error over three runs, as printed, at imbalance 200, 100, 10. First the paper, then the companion's
# version of the two rows in which it differs.
PAPER: dict[tuple[str, str], tuple[tuple[float, float], ...]] = {
    ("softmax", "cifar10-lt"): ((71.2, 0.3), (77.4, 0.8), (90.0, 0.2)),
    ("softmax", "cifar100-lt"): ((41.0, 0.3), (45.3, 0.3), (61.9, 0.1)),
    ("cbw", "cifar10-lt"): ((72.5, 0.2), (78.6, 0.6), (90.1, 0.2)),
    ("cbw", "cifar100-lt"): ((36.7, 0.2), (42.3, 0.8), (61.4, 0.3)),
    ("cbs", "cifar10-lt"): ((68.3, 0.3), (77.8, 2.2), (90.2, 0.2)),
    ("cbs", "cifar100-lt"): ((37.8, 0.1), (42.6, 0.4), (61.2, 0.3)),
    ("focal", "cifar10-lt"): ((71.8, 2.1), (77.1, 0.2), (90.3, 0.2)),
    ("focal", "cifar100-lt"): ((40.2, 0.5), (43.8, 0.1), (60.0, 0.6)),
    ("class_balanced", "cifar10-lt"): ((72.6, 1.8), (78.2, 1.1), (89.9, 0.3)),
    ("class_balanced", "cifar100-lt"): ((39.9, 0.1), (44.6, 0.4), (59.8, 1.1)),
    ("ldam", "cifar10-lt"): ((71.2, 0.3), (77.2, 0.2), (90.2, 0.3)),
    ("ldam", "cifar100-lt"): ((41.0, 0.3), (45.4, 0.1), (62.0, 0.3)),
    ("eql", "cifar10-lt"): ((72.8, 0.2), (76.7, 0.1), (89.9, 0.3)),
    ("eql", "cifar100-lt"): ((43.3, 0.1), (47.3, 0.1), (59.7, 0.3)),
    ("balanced_softmax", "cifar10-lt"): ((79.0, 0.8), (83.1, 0.4), (90.9, 0.4)),
    ("balanced_softmax", "cifar100-lt"): ((45.9, 0.3), (50.3, 0.3), (63.1, 0.2)),
}
COMPANION: dict[tuple[str, str], tuple[tuple[float, float], ...]] = {
    ("ldam", "cifar10-lt"): ((73.6, 0.1), (78.9, 0.9), (90.3, 0.1)),
    ("ldam", "cifar100-lt"): ((41.3, 0.4), (46.1, 0.1), (62.1, 0.3)),
    ("eql", "cifar10-lt"): ((74.6, 0.1), (78.5, 0.1), (90.2, 0.2)),
    ("eql", "cifar100-lt"): ((43.3, 0.1), (47.4, 0.2), (60.5, 0.6)),
}
# The companion's figures for rows under the line, CIFAR-100-LT at 100.
COMPANION_BELOW: dict[str, tuple[float, float]] = {
    "balanced_softmax_tau_0.25": (46.4, 0.7),
    "crt": (50.0, 0.2),
    "lws": (50.5, 0.1),
    "decoupled_balanced_softmax": (50.4, 0.0),
}


def recipe_of(cell: Cell) -> Recipe:
    """The cell's recipe, with the options for its data set."""
    for method in (*METHODS, *BELOW):
        if method.name == cell.method:
            return method.recipe.for_data(cell.data_set)
    known = ", ".join(method.name for method in (*METHODS, *BELOW))
    raise ValueError(f"no method is named {cell.method!r}: expected one of {known}")


def choice_recipe_of(cell: Cell) -> Recipe:
    """The recipe of a cell of CHOICES."""
    for data_set, imbalance, method in CHOICES:
        if (data_set, imbalance, method.name) == (cell.data_set, cell.imbalance, cell.method):
            return method.recipe.for_data(data_set)
    raise ValueError(f"{cell} is not one of the choices")


def plan() -> list[Cell]:
    """Every run of the table, the most telling first."""
    columns = [(data_set, imbalance) for data_set in DATA_SETS for imbalance in IMBALANCES]
    table = [method.name for method in METHODS]
    ends = ["softmax", "balanced_softmax"]
    # softmax and balanced_softmax first: what is trained together then shares its fate
    first = sorted(table, key=lambda name: name not in ends)
    cells = [Cell(*column, method, 0) for column in columns for method in first]
    cells += [Cell(*column, method, seed) for seed in SEEDS[1:] for column in columns for method in ends]
    cells += [Cell(*BELOW_CELL, method.name, 0) for method in BELOW]
    cells += [
        Cell(*column, method, seed)
        for seed in SEEDS[1:]
        for column in columns
        for method in table
        if method not in ends
    ]
    cells += [Cell(*BELOW_CELL, method.name, seed) for seed in SEEDS[1:] for method in BELOW]
    return cells


def choices_plan() -> list[Cell]:
    """Every run that a choice is made from, one seed each."""
    return [Cell(data_set, imbalance, method.name, 0) for data_set, imbalance, method in CHOICES]
