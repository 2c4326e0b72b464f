"""One recipe for one small network on all eight cells: CIFAR-10-LT and CIFAR-100-LT at imbalance 200, 100, 50, 10.

    teachers   six ResNet-32 with Balanced Softmax, as in Table 1 but with weight decay 1e-3 and Nesterov's momentum;
               each is an average of its weights during training (decay 0.999)
    student    the same network, for 18,500 iterations, with no loss but the divergence from the teachers' mean
               probabilities at temperature 2; it sees every class equally often, and a random part of each image is
               another's (CutMix)

One network is evaluated, the student's last iterate. Teachers and students see only the images of the long-tailed draw,
and each seed has its own teachers. What was compared before is in CHOICES, evaluated on training images that these runs
did not see.

The next recipe follows from what was compared later, in VARIED: five teachers, twice the learning rate for the student,
and another share of CutMix. On CIFAR-10-LT half of the teachers' batches have it and all of the student's, on
CIFAR-100-LT none and half. Once it has been trained in all cells it becomes the record: published.NEXT takes the place
of published.RECORD, whose runs move to results/choices/; then results/next/ moves to results/.
"""

from __future__ import annotations

from dataclasses import replace

from equipoise.data.cifar import SUPERSET_IMBALANCE
from equipoise.experiments.record import published
from equipoise.experiments.record.published import Factors, Version
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.training.methods import with_loss
from equipoise.training.recipe import Cell, Method, Recipe

NAME, TEACHERS = published.NAME, published.TEACHERS
TRIES, TRIED_TEACHERS = published.TRIES, published.TRIED_TEACHERS
SEEDS = (0, 1, 2)

TABLE1 = with_loss(Recipe(), BalancedSoftmaxLoss, tau=1.0)
PLAIN = Method("teacher", replace(TABLE1, weight_decay=1e-3, nesterov=True))
AVERAGED = replace(PLAIN.recipe, ema=0.999)
KINDS_OF_TEACHERS = (
    PLAIN,
    Method("teacher_ema", AVERAGED),
    Method("teacher_cutmix", replace(AVERAGED, cutmix=1.0, mix_probability=0.5)),
    Method("teacher_wide", replace(AVERAGED, width=2)),
    Method("teacher_deep", replace(AVERAGED, blocks=9)),
    Method("teacher_sam", replace(AVERAGED, sam=0.1)),
)

# What was or may be compared, one ingredient at a time.
FIRST = replace(PLAIN.recipe, iterations=18_500, teacher=PLAIN.name)
FEWER = replace(FIRST, views=32)
BALANCED = replace(FIRST, distillation=1.0, sampler="class_balanced")
COMBINED = replace(BALANCED, teacher="teacher_ema")
SECOND = replace(COMBINED, cutmix=1.0)  # the second recipe's student
CHOICES = (
    Method("balanced_softmax", TABLE1),
    Method("weight_decay", replace(TABLE1, weight_decay=1e-3)),
    Method("nesterov", PLAIN.recipe),
    Method("ema", AVERAGED),
    Method("distilled_13000", replace(FIRST, iterations=13_000)),
    Method("distilled_18500", FIRST),
    Method("distilled_alone", replace(FIRST, distillation=1.0)),
    Method("distilled_root", replace(FIRST, distillation=1.0, sampler="square_root")),
    Method("distilled_balanced", BALANCED),
    Method("distilled_mixup", replace(FIRST, distillation=1.0, mixup=1.0)),
    Method("distilled_cutmix", replace(FIRST, distillation=1.0, cutmix=1.0)),
    Method("distilled_views_32", FEWER),
    Method("distilled_t4", replace(FEWER, temperature=4.0)),
    Method("distilled_decay", replace(FEWER, weight_decay=5e-4)),
    Method("distilled_ema", replace(FEWER, teacher="teacher_ema")),
    Method("distilled_wide", replace(FEWER, teacher="teacher_wide", teachers=3)),
    Method("distilled_deep", replace(FEWER, teacher="teacher_deep", teachers=4)),
    Method("distilled_twelve", replace(FEWER, teachers=12)),
    Method("combined", COMBINED),
    Method("combined_t4", replace(COMBINED, temperature=4.0)),
    Method("combined_cutmix", SECOND),
    Method("combined_decay", replace(COMBINED, weight_decay=2e-3)),
    Method("combined_views_512", replace(COMBINED, views=512)),
    Method("combined_cutmix_37000", replace(SECOND, iterations=37_000)),
    Method("combined_cutmix_views_512", replace(SECOND, views=512)),
)


def student_with(factors: Factors) -> Method[Recipe]:
    """A student of three teachers, as the second recipe's (SECOND) but for these factors."""
    recipe = replace(SECOND, teacher=f"teacher_{factors.teachers}", teachers=3, mix_probability=factors.mixed)
    trained = replace(recipe, lr=factors.lr, iterations=factors.iterations, augmentation=factors.augmentation)
    return Method(factors.name, trained)


VARIED = tuple(student_with(one) for one in dict.fromkeys(one for every in published.FACTORS.values() for one in every))


def student_on(data_set: str, version: Version | None = None) -> Recipe:
    """The student of the record, or of another version of it."""
    return replace(SECOND, **(version or published.RECORD).students[data_set])


def recipe_of(cell: Cell, version: Version | None = None) -> Recipe:
    """The recipe of a student, of a teacher, or of a run behind the choice."""
    recipes = {method.name: method.recipe for method in (*KINDS_OF_TEACHERS, *CHOICES, *VARIED)}
    recipes[published.METHOD] = student_on(cell.data_set, version)
    if cell.method not in recipes:
        raise ValueError(f"no method is named {cell.method!r}: expected one of {', '.join(recipes)}")
    return recipes[cell.method]


def teacher_methods() -> set[str]:
    """The names of all kinds of teachers, which keep their weights."""
    return {kind.name for kind in KINDS_OF_TEACHERS}


def teachers_table(cell: Cell, version: Version | None = None, *, validate: bool = False) -> str | None:
    """The table that a teacher's record belongs to; None for a run that is no teacher.

    Teachers of the kind that the student on the same data has are the record's, others are tries. When choices are made
    at imbalance 10, all are tries: part of their images is held out.
    """
    if cell.method not in teacher_methods():
        return None
    other = cell.method != student_on(cell.data_set, version).teacher
    return TRIED_TEACHERS if other or (validate and cell.imbalance == SUPERSET_IMBALANCE) else TEACHERS


def plan() -> list[Cell]:
    """Every student: first three seeds of CIFAR-100-LT at 100, two of the next two cells, and one of the others."""
    first = {("cifar100-lt", 100): 3, ("cifar100-lt", 200): 2, ("cifar10-lt", 100): 2}
    columns = [*first, *(column for column in published.COLUMNS if column not in first)]
    cells = [Cell(*column, published.METHOD, seed) for column in columns for seed in SEEDS[: first.get(column, 1)]]
    rest = [Cell(*column, published.METHOD, seed) for seed in SEEDS for column in columns]
    return list(dict.fromkeys([*cells, *rest]))


def choices_plan() -> list[Cell]:
    """Every run behind the choice of the recipe, one seed each."""
    varied = [Cell(*column, one.name, 0) for column, every in published.FACTORS.items() for one in every]
    return [*(Cell(*published.CHOICES_CELL, name, 0) for name in published.CHOICES), *varied]
