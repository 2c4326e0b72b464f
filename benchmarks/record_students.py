"""What limits a student of the record: how far it is from its teachers on what it was shown, and on what it never saw.

    equipoise run record --data DIR --export STUDENTS --checkpoints CHECKPOINTS
    python benchmarks/record_students.py --data DIR --students STUDENTS --teachers CHECKPOINTS/record --out FILE.json

Three kinds of images, class-balanced as the student was shown them:

    shown       new views of training images, augmented and mixed as in its recipe
    training    training images as they are
    unseen      test images; their labels are not used

For each, T² KL(p ‖ softmax(z / T)) of the student's logits z from its teachers' mean p, in nats, at the recipe's T,
and how often the two name the same class. A student that learned its views by heart would be near its teachers there
and far from them on unseen images; one that is equally far from them everywhere has learned all that it can. The same
numbers of a teacher beside the mean of the others show how far two networks of this size are apart.

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
from equipoise.experiments.record.exported import exported
from equipoise.experiments.record.recipe import recipe_of
from equipoise.files import write_text
from equipoise.metrics.evaluation import evaluate
from equipoise.prior import IntArray, Prior
from equipoise.training.augmentation.cifar import normalise
from equipoise.training.classification import build_model, features, sample_order
from equipoise.training.classification_runs import Store
from equipoise.training.distillation import Teacher, distilled, make_pool
from equipoise.training.image_records import RECORD
from equipoise.training.recipe import Cell, Recipe
from equipoise.training.records import Record, hardware
from equipoise.training.run_folder import load_run
from equipoise.training.weights import read_tensors, weights_digest

VIEWS_SEED = 777  # no run has it: the views are new
AT_ONCE = 500


def read_teachers(folder: Path, record: Record, recipe: Recipe) -> list[Teacher]:
    """The networks that a student's record names, by their digests."""
    teachers = []
    for name, digest in (record.teachers or {}).items():
        path = folder / f"{name.replace('/', '-')}.weights.pt"
        weights = read_tensors(path)
        if weights_digest(weights) != digest:
            raise SystemExit(f"{path} is not the teacher of {record.key}: its digest is not {digest}")
        model = build_model(recipe, len(record.counts), seed=0).eval()
        model.load_state_dict(weights)
        teachers.append(Teacher(name, model))
    return teachers


@torch.inference_mode()
def logits_of(model: nn.Module, images: Tensor) -> Tensor:
    """Logits [N, K] of uint8 images."""
    return torch.cat([model(normalise(part)) for part in torch.split(images, AT_ONCE)])


def apart(student: Tensor, teachers: Sequence[Tensor], temperature: float) -> dict[str, float]:
    """The divergence of logits [N, K] from the mean of their teachers, and the share of images that both call alike."""
    mean = torch.stack([(one / temperature).softmax(1) for one in teachers]).mean(0)
    divergence = distilled(torch.zeros(()), student, mean, temperature=temperature, weight=1.0)
    return {"divergence": float(divergence), "agreement": float((student.argmax(1) == mean.argmax(1)).float().mean())}


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


def measure(folder: Path, teachers_folder: Path, store: Store, number: int) -> dict[str, Any]:
    """Everything for one exported student."""
    record = Record.from_json((folder / RECORD).read_text(encoding="utf-8"))
    cell = Cell(record.data_set, record.imbalance, record.method, record.seed)
    recipe = recipe_of(cell)
    teachers = read_teachers(teachers_folder, record, recipe_of(recipe.teacher_cells(cell)[0]))
    student: Any = load_run(folder)[0]
    drawn, data = store.get(cell.data_set, cell.imbalance)
    few = replace(recipe, iterations=number // recipe.batch_size)
    order = sample_order(few, drawn.labels, VIEWS_SEED).reshape(-1, few.batch_size)
    test = torch.from_numpy(store.read(cell.data_set).test_images)
    images = {
        "shown": make_pool(data, order, few, VIEWS_SEED, teachers, features).items,
        "training": torch.from_numpy(drawn.images[order.reshape(-1)]),
        "unseen": test[np.random.default_rng(0).permutation(len(test))[:number]],
    }
    found: dict[str, Any] = {"student": record.key, "weights": record.weights, "temperature": recipe.temperature}
    models = [teacher.model for teacher in teachers]
    for kind, shown in images.items():
        found[kind] = measured(shown, student.model.classifier, models, recipe.temperature)
    if cell.imbalance != SUPERSET_IMBALANCE:
        left_out = held_out(drawn)
        pixels, labels = (
            getattr(store.read(cell.data_set), name)[left_out] for name in ("train_images", "train_labels")
        )
        found["held_out"] = together(torch.from_numpy(pixels), labels, models, drawn.prior)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of CIFAR")
    parser.add_argument("--students", type=Path, required=True, help="the folder of exported students")
    parser.add_argument("--teachers", type=Path, required=True, help="the folder of their teachers' weights")
    parser.add_argument("--images", type=int, default=5120, help="of each kind")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    options = parser.parse_args()
    device = torch.device("cpu")
    store, rows = Store(options.data, device), []
    for folder in exported(options.students):
        rows.append(measure(folder, options.teachers, store, options.images))
        print(json.dumps(rows[-1], indent=1), flush=True)
    if options.out:
        about = hardware(device) | {"torch": torch.__version__}
        content = {"machine": about, "images": options.images, "students": rows}
        write_text(options.out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
