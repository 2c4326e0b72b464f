"""Why a number of Table 1 differs from the published one: the same run with one thing changed.

    other draws      the released code draws a new long-tailed subset in every run; ours is one draw. The same recipe on
                     other draws with the same counts
    released length  in the released code a class-aware sampler shortens training: the iterations become epochs of the
                     sampler's length, and each is cut off at N // 512 batches
    no margin        LDAM's head and scale with plain cross-entropy, to separate its head from its margin

`equipoise run causes --data DIR` trains them. The results are in docs/table1.md, below the differences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from equipoise.experiments.table1 import recipe as table1
from equipoise.training.recipe import Cell, Recipe

NAME = "causes"
CBS, LDAM = (next(method.recipe for method in table1.METHODS if method.name == name) for name in ("cbs", "ldam"))


@dataclass(frozen=True)
class Cause:
    """What was changed, in which cell of the table (data set, imbalance, method), and the runs with it changed."""

    title: str
    cell: tuple[str, int, str]
    runs: tuple[Cell, ...]
    recipe: Recipe | None = None  # None: the table's


def other_draws(method: str) -> Cause:
    """CIFAR-10-LT at 200, drawn three more times."""
    runs = tuple(Cell(f"cifar10-lt-draw-{draw}", 200, method, 0) for draw in (1, 2, 3))
    return Cause("other draws", ("cifar10-lt", 200, method), runs)


def released_length(imbalance: int, images: int) -> Cause:
    """CBS for as many iterations as the released code would run it: epochs of 98 batches, cut at N // 512."""
    iterations = -(-13_000 // 98) * (images // 512)
    runs = (Cell("cifar10-lt", imbalance, "cbs_released_length", 0),)
    return Cause(f"{iterations:,} iterations", ("cifar10-lt", imbalance, "cbs"), runs, CBS.shortened(iterations))


def no_margin() -> Cause:
    runs = (Cell("cifar100-lt", 10, "ldam_no_margin", 0),)
    recipe = replace(LDAM, options={**LDAM.options, "max_margin": 0.0})
    return Cause("no margin", ("cifar100-lt", 10, "ldam"), runs, recipe)


CAUSES = (
    other_draws("softmax"),
    released_length(200, images=11_203),
    released_length(100, images=12_406),
    other_draws("balanced_softmax"),
    no_margin(),
)


def plan() -> list[Cell]:
    """Every run, the most informative first."""
    return [cell for cause in CAUSES for cell in cause.runs]


def recipe_of(cell: Cell) -> Recipe:
    """The recipe of a run: that of the table, or the changed one."""
    for cause in CAUSES:
        if cell in cause.runs:
            return cause.recipe or table1.recipe_of(Cell(*cause.cell, cell.seed))
    raise ValueError(f"{cell} is not one of the runs that look for causes")
