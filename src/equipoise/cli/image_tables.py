"""Train tables of image classifiers: what `equipoise run tiny-imagenet-lt` and a file of image recipes do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from torch import Tensor

from equipoise.cli.options import RunOptions
from equipoise.cli.queues import asked_cells, missing_cells, train_cells
from equipoise.cli.shared import device_of, refusing
from equipoise.data.images import read_images
from equipoise.experiments.tiny_imagenet_lt import recipe as tiny
from equipoise.models.classifiers import PRETRAINED, has_small_stem, make_backbone
from equipoise.models.weights import stride_by_name
from equipoise.training.image_records import ImageRecord
from equipoise.training.images import ImageClassification, ImageData
from equipoise.training.kinds import Settings
from equipoise.training.recipe import MethodCell, Recipe
from equipoise.training.run_folder import weights_file


def train_tiny_imagenet_lt(options: RunOptions, data: Path, *, compiled: bool) -> None:
    """Train the missing runs of Tiny-ImageNet-LT."""

    def known() -> ImageData:
        train, judged, called = tiny.find(data, options.validate)
        images = read_images(train)
        return ImageData(images, read_images(judged, class_names=images.class_names), tiny.BASE.size, called)

    name, recipes = (f"choices/{tiny.NAME}", tiny.CHOICES) if options.validate else (tiny.NAME, tiny.RECIPES)
    train_image_table(name, recipes, tiny.plan(options.validate), known, options, compiled=compiled)


def train_image_table(
    name: str,
    recipes: Mapping[str, Recipe],
    plan: Sequence[MethodCell],
    known: Callable[[], ImageData],
    options: RunOptions,
    *,
    compiled: bool = False,
    start: Mapping[str, Tensor] | None = None,
    starts_from: str | None = None,
) -> None:
    """Train the missing runs of a table; its images are read only if some are missing."""
    place = device_of(options.device)
    recorded = options.recorded(name, ImageRecord)
    cells = missing_cells(asked_cells(plan, options), recorded)
    if not cells:
        return
    with refusing():
        data = known()
    options = replace(options, together=options.together or (2 if place.type == "cuda" else 1))

    def make(settings: Settings) -> ImageClassification:
        shared: dict[str, Any] = {"start": start, "starts_from": starts_from, "compiled": compiled}
        return ImageClassification(name, recipes, data, settings, **shared)

    train_cells(cells, options, recorded, place, make)


def started(
    recipes: Mapping[str, Recipe], weights: str, stride: str | None
) -> tuple[dict[str, Recipe], dict[str, Tensor]]:
    """The recipes with the stem and stride of a weights file, and the tensors that their backbones start from."""
    given = PRETRAINED if weights == "torchvision" else weights_file(weights)
    where: Any = stride or stride_by_name(given)
    networks = {(recipe.model, recipe.size) for recipe in recipes.values()}
    if len(networks) > 1:
        found = ", ".join(sorted(f"{model} at {size} px" for model, size in networks))
        raise ValueError(f"{weights} fits one network, but the recipes have {found}: use a separate file for each")
    ((model, size),) = networks
    backbone, _ = make_backbone(model, size, given, stride=where, log=typer.echo)
    full = not has_small_stem(backbone)
    kept = {name: replace(recipe, full_stem=full, stride=where) for name, recipe in recipes.items()}
    return kept, {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
