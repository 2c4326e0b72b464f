"""What limits a student of the record: how far it is from its teachers on what it was trained on, and on other images.

    equipoise run record --data DIR --export STUDENTS --checkpoints CHECKPOINTS
    python benchmarks/record_students.py --data DIR --students STUDENTS --teachers CHECKPOINTS/record --out FILE.json

Five kinds of images:

    trained     the very views that the student was trained on: augmented, mixed, every class equally often
    new         new views of its training images, augmented and mixed alike
    unseen      views of test images, augmented and mixed alike; their labels are not used
    training    training images as they are, every class equally often
    test        test images as they are

For each, the divergence T² KL(p ‖ softmax(z / T)) of the student's logits z from its teachers' mean p, in nats, at the
recipe's T, with its standard error (as of independent images, though those of a batch are mixed in one way); and how
often the two predict the same class. The first three kinds are alike, so that they can be compared: a student that has
learned its views by heart is nearer to its teachers on the first than on the second, and one that has learned its
images by heart, on the second than on the third. The same numbers for a teacher and the mean of the others show how far
another network of this size is.

The script also evaluates the first 1, 2, ... teachers together on the training images that the draw leaves out
(balanced accuracy, in percent), if it leaves out any.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data.cifar import SUPERSET_IMBALANCE, held_out
from equipoise.experiments.record import recipe as record_recipe
from equipoise.experiments.record.exported import exported
from equipoise.files import write_text
from equipoise.metrics.evaluation import evaluate
from equipoise.prior import IntArray, Prior
from equipoise.training.augmentation.cifar import normalise
from equipoise.training.classification import build_model, sample_order
from equipoise.training.classification_runs import Classification, Store
from equipoise.training.distillation import divergences, mix_views, occurrences
from equipoise.training.image_records import RECORD
from equipoise.training.kept import Kept, as_in_json
from equipoise.training.kinds import Settings
from equipoise.training.recipe import Cell, Recipe
from equipoise.training.records import EARLIER, Record, hardware
from equipoise.training.run_folder import load_run
from equipoise.training.sets import CifarSet, Order
from equipoise.training.weights import weights_digest

OTHER_SEED = 777  # no run has it: its views are new
EVERY = 4  # one view of so many is taken, so that they are from more batches: a batch is mixed in one way
AT_ONCE = 500


def read_student(folder: Path) -> tuple[Record, Cell, nn.Module]:
    """An exported student with its record; refused if the weights or the recipe are not those of the record."""
    record = Record.from_json((folder / RECORD).read_text(encoding="utf-8"))
    cell = Cell(record.data_set, record.imbalance, record.method, record.seed)
    served: Any = load_run(folder)[0]
    model: nn.Module = served.model.classifier
    if weights_digest(model) != record.weights:
        raise SystemExit(f"{folder} does not hold the weights of its record, {record.weights}")
    if EARLIER | record.recipe != as_in_json(record_recipe.recipe_of(cell).as_dict()):
        raise SystemExit(f"{record.key} was trained with another recipe than that of today: check its commit out")
    return record, cell, model


def read_teachers(folder: Path, record: Record, cell: Cell, store: Store) -> list[nn.Module]:
    """The networks that taught a student; refused if they are not those that its record names."""
    settings = Settings(store.device, folder, folder / "claims", teachers=folder)
    kind = Classification(
        record.table,
        record_recipe.recipe_of,
        store,
        settings,
        backbones=record_recipe.teacher_methods(),
        own_table=record_recipe.teachers_table,
    )
    kept = Kept(kind, settings)
    if kept.taught_by(cell) != record.teachers:
        raise SystemExit(f"{folder} does not hold the teachers of {record.key}: their digests differ")
    models: list[nn.Module] = []
    for teacher, weights in kept.teachers_of(cell).items():
        model = build_model(record_recipe.recipe_of(teacher), len(record.counts), teacher.seed).eval()
        model.load_state_dict(weights)
        models.append(model)
    return models


def views(data: CifarSet, order: Order, recipe: Recipe, seed: int) -> Tensor:
    """The first views that a run with this order and seed is trained on; only every fourth is kept."""
    if occurrences(order).max() >= recipe.views:
        raise SystemExit(f"an image is shown more than {recipe.views} times: pass fewer --images")
    items = torch.empty(*order.shape, *data.shape, dtype=data.dtype)
    fill = data.filler(order, recipe, seed)
    for start in range(0, len(order), data.chunk):
        part = items[start : start + data.chunk]
        fill(part, start)
        mix_views(part, start, recipe, seed)
    return items.flatten(0, 1)[::EVERY]


@torch.inference_mode()
def logits_of(model: nn.Module, images: Tensor) -> Tensor:
    """Logits [N, K] of uint8 images."""
    return torch.cat([model(normalise(part)) for part in torch.split(images, AT_ONCE)])


def apart(logits: Tensor, teachers: Sequence[Tensor], temperature: float) -> dict[str, float]:
    """How far logits [N, K] are from the mean of their teachers, and how often both predict the same class."""
    mean = torch.stack([(one / temperature).softmax(1) for one in teachers]).mean(0)
    each = temperature**2 * divergences(logits, mean, temperature)
    return {
        "divergence": float(each.mean()),
        "error": float(each.std() / len(each) ** 0.5),
        "agreement": float((logits.argmax(1) == mean.argmax(1)).float().mean()),
    }


def measured(images: Tensor, student: nn.Module, models: Sequence[nn.Module], temperature: float) -> dict[str, Any]:
    """A student beside its teachers, and each teacher beside the others, on average."""
    answers = [logits_of(model, images) for model in models]
    others = [[answer for answer in answers if answer is not one] for one in answers]
    each = [apart(one, rest, temperature) for one, rest in zip(answers, others, strict=True)]
    return {
        "student": apart(logits_of(student, images), answers, temperature),
        "teacher": {key: float(np.mean([one[key] for one in each])) for key in each[0]},
    }


def together(images: Tensor, labels: IntArray, models: Sequence[nn.Module], prior: Prior) -> list[float]:
    """Balanced accuracy of the mean probabilities of the first 1, 2, ... teachers, in percent."""
    answers = torch.stack([logits_of(model, images).softmax(1) for model in models])
    means = [answers[:number].mean(0) for number in range(1, len(models) + 1)]
    return [round(100 * evaluate(mean, labels, prior, probabilities=True).balanced_accuracy, 2) for mean in means]


def kinds_of_images(cell: Cell, recipe: Recipe, store: Store, number: int) -> dict[str, Tensor]:
    """At least `number` images of each kind."""
    drawn, data = store.get(cell.data_set, cell.imbalance)
    cifar = drawn.cifar
    test = CifarSet.of(cifar.test_images, cifar.test_labels, drawn.prior, store.device)
    few = replace(recipe, iterations=-(-EVERY * number // recipe.batch_size))
    each_once = replace(few, sampler="instance")

    def order(some: Recipe, of: CifarSet, seed: int) -> Order:
        return sample_order(some, of.labels, seed).reshape(-1, some.batch_size)

    shown, other = order(few, data, cell.seed), order(few, data, OTHER_SEED)
    tested = order(each_once, test, OTHER_SEED)
    return {
        "trained": views(data, shown, few, cell.seed),
        "new": views(data, other, few, OTHER_SEED),
        "unseen": views(test, tested, each_once, OTHER_SEED),
        "training": torch.from_numpy(drawn.images[other.reshape(-1)[::EVERY]]),
        "test": torch.from_numpy(cifar.test_images[tested.reshape(-1)[::EVERY]]),
    }


def measure(folder: Path, teachers_folder: Path, store: Store, number: int) -> dict[str, Any]:
    """Everything for one exported student."""
    record, cell, student = read_student(folder)
    recipe = record_recipe.recipe_of(cell)
    models = read_teachers(teachers_folder, record, cell, store)
    found: dict[str, Any] = {"student": record.key, "weights": record.weights, "temperature": recipe.temperature}
    for kind, images in kinds_of_images(cell, recipe, store, number).items():
        found[kind] = {"images": len(images)} | measured(images, student, models, recipe.temperature)
    if cell.imbalance != SUPERSET_IMBALANCE:
        drawn, _ = store.get(cell.data_set, cell.imbalance)
        left_out = held_out(drawn)
        pixels, labels = torch.from_numpy(drawn.cifar.train_images[left_out]), drawn.cifar.train_labels[left_out]
        found["held_out"] = together(pixels, labels, models, drawn.prior)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of CIFAR")
    parser.add_argument("--students", type=Path, required=True, help="the folder of exported students")
    parser.add_argument("--teachers", type=Path, required=True, help="the folder of their teachers' weights")
    parser.add_argument("--images", type=int, default=4096, help="of each kind")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    options = parser.parse_args()
    store, rows = Store(options.data, torch.device("cpu")), []
    for folder in exported(options.students):
        rows.append(measure(folder, options.teachers, store, options.images))
        print(json.dumps(rows[-1], indent=1), flush=True)
    if options.out:
        about = hardware(store.device) | {"torch": torch.__version__}
        write_text(options.out, json.dumps({"machine": about, "students": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
