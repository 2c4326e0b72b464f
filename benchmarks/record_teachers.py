"""Teachers of different kinds, alone and together, on training images that the draw leaves out.

    equipoise run record --data DIR --fused --validate --only cifar10-lt/200 --checkpoints CHECKPOINTS
    python benchmarks/record_teachers.py --data DIR --teachers CHECKPOINTS/record --cell cifar10-lt/200 --out FILE.json

The weights of this cell in the folder are taken if a committed record names them. Every kind of teachers, every two
kinds and so on are evaluated by the mean of their probabilities.
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

from equipoise.data.cifar import held_out
from equipoise.experiments.documents.record import by_name
from equipoise.experiments.record import recipe as record_recipe
from equipoise.files import write_text
from equipoise.metrics.evaluation import evaluate
from equipoise.prior import IntArray, Prior
from equipoise.training.augmentation.cifar import normalise
from equipoise.training.classification import build_model
from equipoise.training.classification_runs import Store
from equipoise.training.recipe import Cell
from equipoise.training.records import Record, hardware, read_records
from equipoise.training.weights import read_tensors, weights_digest

AT_ONCE = 500


def recorded(results: Path) -> dict[str, set[str]]:
    """The digests of every teacher's weights that have a record."""
    found: dict[str, set[str]] = {}
    for table in (record_recipe.TEACHERS, record_recipe.TRIED_TEACHERS):
        records: list[Record] = read_records(results, table)
        for name, record in by_name(records).items():
            found.setdefault(name, set()).add(record.weights)
    return found


@torch.inference_mode()
def answers(cell: Cell, path: Path, images: Tensor, num_classes: int, known: set[str]) -> Tensor:
    """A teacher's probabilities [N, K] of uint8 images; refused if no record names its weights."""
    weights = read_tensors(path)
    if weights_digest(weights) not in known:
        raise SystemExit(f"{path}: no record of {cell} has these weights")
    model = build_model(record_recipe.recipe_of(cell), num_classes, cell.seed).eval()
    model.load_state_dict(weights)
    return torch.cat([model(normalise(part)).softmax(1) for part in torch.split(images, AT_ONCE)])


def judged(probabilities: Sequence[Tensor], labels: IntArray, prior: Prior) -> dict[str, float]:
    """The mean of the probabilities of some networks, in percent."""
    result = evaluate(torch.stack(list(probabilities)).mean(0), labels, prior, probabilities=True)
    return {"top1": round(100 * result.top1, 2), "balanced_accuracy": round(100 * result.balanced_accuracy, 2)}


def measure(folder: Path, results: Path, data_set: str, imbalance: int, store: Store) -> dict[str, Any]:
    """Every teacher of a cell whose weights are in the folder, and all combinations of their kinds."""
    drawn, known = store.drawn(data_set, imbalance), recorded(results)
    left = held_out(drawn)
    images, labels = torch.from_numpy(drawn.cifar.train_images[left]), drawn.cifar.train_labels[left]
    found: dict[str, dict[int, Tensor]] = {}
    for name, digests in known.items():
        cell = Cell(data_set, imbalance, *_method_and_seed(name))
        path = folder / f"{str(cell).replace('/', '-')}.weights.pt"
        if name == str(cell) and path.is_file():
            one = answers(cell, path, images, drawn.prior.num_classes, digests)
            found.setdefault(cell.method, {})[cell.seed] = one
    if not found:
        raise SystemExit(f"no weights of {data_set}/{imbalance} are in {folder}")
    return {
        "cell": f"{data_set}/{imbalance}",
        "images": len(labels),
        "alone": {
            kind: {str(seed): judged([one], labels, drawn.prior) for seed, one in sorted(every.items())}
            for kind, every in found.items()
        },
        "together": [_of_kinds(kinds, found, labels, drawn.prior) for kinds in _combinations(found)],
    }


def _method_and_seed(name: str) -> tuple[str, int]:
    *_, method, seed = name.split("/")
    return method, int(seed)


def _combinations(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(found, number) for number in range(1, len(found) + 1)))


def _of_kinds(
    kinds: Sequence[str], found: Mapping[str, Mapping[int, Tensor]], labels: IntArray, prior: Prior
) -> dict[str, Any]:
    every = [one for kind in kinds for one in found[kind].values()]
    return {"kinds": list(kinds), "networks": len(every)} | judged(every, labels, prior)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of CIFAR")
    parser.add_argument("--teachers", type=Path, required=True, help="the folder of weights")
    parser.add_argument("--cell", required=True, help="data set and imbalance, as in cifar10-lt/200")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the folder of committed records")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    options = parser.parse_args()
    store = Store(options.data, torch.device("cpu"))
    data_set, imbalance = options.cell.split("/")
    found = measure(options.teachers, options.results, data_set, int(imbalance), store)
    print(json.dumps(found, indent=1))
    if options.out:
        about = hardware(store.device) | {"torch": torch.__version__}
        write_text(options.out, json.dumps({"machine": about} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
