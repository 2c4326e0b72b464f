"""One recipe for one small network on all eight cells: CIFAR-10-LT and CIFAR-100-LT at imbalance 200, 100, 50, 10.

    teachers   six ResNet-32 with Balanced Softmax, as in Table 1 but with weight decay 1e-3 and Nesterov's momentum
    student    the same network, for 18,500 iterations: a fifth of its loss is Balanced Softmax, four fifths are the
               divergence from the teachers' mean probabilities at temperature 2

One network is evaluated, the student's last iterate. Teachers and students see only the images of the long-tailed draw,
and each seed has its own teachers. What was compared before is in CHOICES, evaluated on training images that the draw
leaves out.
"""

from __future__ import annotations

from dataclasses import replace

from equipoise.experiments.record import published
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.training.methods import with_loss
from equipoise.training.recipe import Cell, Method, Recipe

NAME, TEACHERS, TRIES = published.NAME, published.TEACHERS, published.TRIES
SEEDS = (0, 1, 2)

TABLE1 = with_loss(Recipe(), BalancedSoftmaxLoss, tau=1.0)
TEACHER = Method("teacher", replace(TABLE1, weight_decay=1e-3, nesterov=True))
STUDENT = Method(published.METHOD, replace(TEACHER.recipe, iterations=18_500, teacher=TEACHER.name))

# What was compared before the student's recipe was fixed, one ingredient at a time; the last ones also at imbalance 10,
# where every tenth training image is held out.
CHOICES = (
    Method("balanced_softmax", TABLE1),
    Method("weight_decay", replace(TABLE1, weight_decay=1e-3)),
    Method("nesterov", TEACHER.recipe),
    Method("ema", replace(TEACHER.recipe, ema=0.999)),
    Method("distilled_13000", replace(STUDENT.recipe, iterations=13_000)),
    Method("distilled_18500", STUDENT.recipe),
    Method("distilled_26000", replace(STUDENT.recipe, iterations=26_000)),
    Method("distilled_views_32", replace(STUDENT.recipe, views=32)),
    Method("distilled_alone", replace(STUDENT.recipe, distillation=1.0)),
    Method("distilled_mixup", replace(STUDENT.recipe, distillation=1.0, mixup=1.0)),
    Method("distilled_cutmix", replace(STUDENT.recipe, distillation=1.0, cutmix=1.0)),
    Method("distilled_cutmix_26000", replace(STUDENT.recipe, distillation=1.0, cutmix=1.0, iterations=26_000)),
)


def recipe_of(cell: Cell) -> Recipe:
    """The recipe of a student, of a teacher, or of a run behind the choice."""
    recipes = {method.name: method.recipe for method in (STUDENT, TEACHER, *CHOICES)}
    if cell.method not in recipes:
        raise ValueError(f"no method is named {cell.method!r}: expected one of {', '.join(recipes)}")
    return recipes[cell.method]


def plan() -> list[Cell]:
    """Every student: first three seeds of CIFAR-100-LT at 100, two of the next two cells, and one of the others."""
    first = {("cifar100-lt", 100): 3, ("cifar100-lt", 200): 2, ("cifar10-lt", 100): 2}
    columns = [*first, *(column for column in published.COLUMNS if column not in first)]
    cells = [Cell(*column, STUDENT.name, seed) for column in columns for seed in SEEDS[: first.get(column, 1)]]
    rest = [Cell(*column, STUDENT.name, seed) for seed in SEEDS for column in columns]
    return list(dict.fromkeys([*cells, *rest]))


def choices_plan() -> list[Cell]:
    """Every run behind the choice of the recipe, one seed each."""
    return [Cell(*column, name, 0) for column, names in published.CHOICES_CELLS.items() for name in names]
