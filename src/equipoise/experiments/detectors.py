"""The rows that tables of detectors share, built from one recipe of the first stage, for any COCO-style data."""

from __future__ import annotations

from dataclasses import replace

from equipoise.experiments.voc2012_lt.published import TAUS
from equipoise.models.mask_rcnn import (
    adjusted_sigmoid,
    balanced_sigmoid,
    equalized_sigmoid,
    equalized_v2_sigmoid,
    federated_sigmoid,
    seesaw,
)
from equipoise.training.detection import DetectionRecipe
from equipoise.training.recipe import Method

Methods = tuple[Method[DetectionRecipe], ...]


def second_stage(first: DetectionRecipe, start: str) -> DetectionRecipe:
    """Train the classifier alone, from a detector that was trained with the recipe `first` under the name `start`."""
    return replace(first, start=start, epochs=10, warmup=50, steps=(1 / 2, 9 / 11))


def rows_of_the_paper(base: DetectionRecipe, rare: float) -> Methods:
    """The methods of Table 2 and the control that it lacks; EQL treats classes in a smaller share than `rare` as
    rare."""
    second = second_stage(base, "rfs")
    return (
        Method("rfs", base),
        Method("rfs_longer", second),
        Method("crt", replace(second, head="reset", sampler="class_aware")),
        Method("lws", replace(second, head="scaled", sampler="class_aware")),
        Method("eql", replace(second, classification=equalized_sigmoid, options={"threshold": rare})),
        Method(
            "balanced_sigmoid",
            replace(second, classification=balanced_sigmoid, options={"target_rate": None}, counts="images"),
        ),
    )


def adjusted(base: DetectionRecipe, tau: float, name: str = "rfs_adjusted") -> Method[DetectionRecipe]:
    """The first stage with `tau` times Balanced Sigmoid's shift subtracted from its logits; nothing is trained."""
    options = {"target_rate": None, "tau": tau}
    recipe = replace(base, start="rfs", epochs=0, warmup=0, classification=adjusted_sigmoid, options=options)
    return Method(name, recipe)


def tau_choices(base: DetectionRecipe) -> Methods:
    """The first stage, and how much of the shift `adjusted` may subtract from it, to be compared on held-out images."""
    return Method("rfs", base), *(adjusted(base, tau, f"rfs_adjusted_{tau}") for tau in TAUS)


def more_rows(base: DetectionRecipe) -> Methods:
    """Second stages with losses that the paper does not compare."""
    second = second_stage(base, "rfs")
    return (
        Method("seesaw", replace(second, classification=seesaw, head="reset")),
        Method("eql_v2", replace(second, classification=equalized_v2_sigmoid)),
        Method("federated", replace(second, classification=federated_sigmoid)),
    )
