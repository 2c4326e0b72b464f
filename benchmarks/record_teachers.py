"""Teachers of different kinds, alone and together, on training images that the draw leaves out.

    equipoise run record --data DIR --fused --validate --only cifar10-lt/200 --checkpoints CHECKPOINTS
    python benchmarks/record_teachers.py --data DIR --teachers CHECKPOINTS/record --cell cifar10-lt/200 --out FILE.json

Weights of this cell are refused if a committed record names others; files without a record are skipped. Every kind of
teachers, every two kinds and so on are evaluated by the mean of their probabilities.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.data.cifar import SUPERSET_IMBALANCE, held_out
from equipoise.experiments.record import recipe as record_recipe
from equipoise.files import write_text
from equipoise.metrics.evaluation import evaluate
from equipoise.prior import IntArray, Prior
from equipoise.training.augmentation.cifar import normalise
from equipoise.training.classification import build_model
from equipoise.training.classification_runs import Store
from equipoise.training.distillation import Teacher, mean_probabilities
from equipoise.training.recipe import Cell
from equipoise.training.records import Record, hardware, read_records
from equipoise.training.weights import read_tensors, weights_digest


def recorded(results: Path, data_set: str, imbalance: int) -> dict[Cell, str]:
    """The digests of the weights of a cell's teachers."""
    tables = (record_recipe.TEACHERS, record_recipe.TRIED_TEACHERS)
    records: list[Record] = [record for table in tables for record in read_records(results, table)]
    return {
        Cell(one.data_set, one.imbalance, one.method, one.seed): one.weights
        for one in records
        if (one.data_set, one.imbalance) == (data_set, imbalance)
    }


def probabilities(cell: Cell, path: Path, images: Tensor, num_classes: int, digest: str) -> Tensor:
    """A teacher's probabilities [N, K] of uint8 images; refused if its record names other weights."""
    weights = read_tensors(path)
    if weights_digest(weights) != digest:
        raise SystemExit(f"{path} does not hold the weights of the record of {cell}, {digest}")
    model = build_model(record_recipe.recipe_of(cell), num_classes, cell.seed).eval()
    model.load_state_dict(weights)
    (found,) = mean_probabilities([Teacher(str(cell), model)], images, lambda net, part: net(normalise(part)), 1.0)
    return found


def judged(answers: Sequence[Tensor], labels: IntArray, prior: Prior) -> dict[str, float]:
    """Top-1 and balanced accuracy, in percent, of the mean of networks' probabilities [N, K]."""
    result = evaluate(torch.stack(list(answers)).mean(0), labels, prior, probabilities=True)
    return {"top1": round(100 * result.top1, 4), "balanced_accuracy": round(100 * result.balanced_accuracy, 4)}


def measure(folder: Path, results: Path, data_set: str, imbalance: int, store: Store) -> dict[str, Any]:
    """Every teacher of a cell whose weights are in the folder, and all combinations of their kinds."""
    drawn, known = store.drawn(data_set, imbalance), recorded(results, data_set, imbalance)
    left = held_out(drawn)
    images, labels = torch.from_numpy(drawn.cifar.train_images[left]), drawn.cifar.train_labels[left]
    answers: dict[str, list[Tensor]] = {}
    alone: dict[str, dict[str, Any]] = {}
    for cell, digest in known.items():
        path = folder / f"{str(cell).replace('/', '-')}.weights.pt"
        if path.is_file():
            one = probabilities(cell, path, images, drawn.prior.num_classes, digest)
            answers.setdefault(cell.method, []).append(one)
            seeds = alone.setdefault(cell.method, {})
            seeds[str(cell.seed)] = {"weights": digest} | judged([one], labels, drawn.prior)
    if not answers:
        raise SystemExit(f"{folder} holds no weights of {data_set}/{imbalance} that have a record under {results}")
    every = chain.from_iterable(combinations(answers, number) for number in range(1, len(answers) + 1))
    together = [of_kinds(kinds, answers, labels, drawn.prior) for kinds in every]
    return {"cell": f"{data_set}/{imbalance}", "images": len(labels), "alone": alone, "together": together}


def of_kinds(
    kinds: Sequence[str], answers: Mapping[str, list[Tensor]], labels: IntArray, prior: Prior
) -> dict[str, Any]:
    """All teachers of some kinds together."""
    every = [one for kind in kinds for one in answers[kind]]
    return {"kinds": list(kinds), "networks": len(every)} | judged(every, labels, prior)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of CIFAR")
    parser.add_argument("--teachers", type=Path, required=True, help="the folder of weights")
    parser.add_argument("--cell", required=True, help="data set and imbalance, as in cifar10-lt/200")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the folder of committed records")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    options = parser.parse_args()
    data_set, imbalance = options.cell.split("/")
    if int(imbalance) <= SUPERSET_IMBALANCE:
        parser.error(f"--cell {options.cell}: the draw leaves out images only at an imbalance above 10")
    store = Store(options.data, torch.device("cpu"))
    found = measure(options.teachers, options.results, data_set, int(imbalance), store)
    print(json.dumps(found, indent=1))
    if options.out:
        about = hardware(store.device) | {"torch": torch.__version__}
        write_text(options.out, json.dumps({"machine": about} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
