"""A student as files that can be served without this library's training code, and its evaluation from these files.

<folder>/<data set>/<imbalance>/<method>/<seed>/
    model.safetensors, model.json    weights, the prior that the logits mean, class names; which network it is
    model.onnx, model.pt2            images from 0 to 1 in, logits out
    record.json                      the record of the run
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.reading import reading
from equipoise.files import write_text
from equipoise.models.classifiers import Normalised
from equipoise.models.weights import MODEL, NETWORK
from equipoise.training.augmentation.cifar import MEAN, STD
from equipoise.training.classification import Training
from equipoise.training.classification_runs import Store
from equipoise.training.image_records import RECORD
from equipoise.training.methods import logits_mean
from equipoise.training.records import Record
from equipoise.training.run_folder import NetworkNote, export_run, load_run, serve

ONNX = "model.onnx"
BATCH = 500


def export_student(root: Path, run: Training, record: Record) -> Path:
    """Write an evaluated run; returns its folder below `root`."""
    folder = root / record.key.removeprefix(f"{record.table}/")
    folder.mkdir(parents=True, exist_ok=True)
    recipe, prior = run.recipe, run.data.prior
    model: Any = copy.deepcopy(run.model).cpu().float().eval().to(memory_format=torch.contiguous_format)
    served = serve(Normalised(model, MEAN, STD), prior, logits_mean(recipe), recipe.adjusted, None)
    served.save(folder / MODEL)
    note = NetworkNote(recipe.model, recipe.size, prior.num_classes, blocks=recipe.blocks, width=recipe.width)
    note.save(folder / NETWORK)
    write_text(folder / RECORD, record.to_json(indent=1))
    export_run(folder)
    return folder


@dataclass(frozen=True)
class Judged:
    """Top-1 in percent of one file on the test set, beside that of the run's record."""

    file: Path
    record: Record
    top1: float

    def __str__(self) -> str:
        same = "as in its record" if self.top1 == self.record.top1 else f"its record has {self.record.top1:.2f}"
        if self.record.evaluated_on != "test":
            same = f"its record is of {self.record.evaluated_on} images"
        return f"{self.record.key}: top-1 {self.top1:.2f} from {self.file.name}, {same}"


def exported(root: Path) -> list[Path]:
    """The folders of students at or below `root`."""
    found = sorted(path.parent for path in root.rglob(MODEL) if (path.parent / RECORD).is_file())
    if not found:
        raise FileNotFoundError(f"{root} holds no exported student: expected {MODEL} and {RECORD} somewhere below it")
    return found


def judged(folder: Path, store: Store) -> Iterator[Judged]:
    """The files of one student on the test set of its data: safetensors, and ONNX if onnxruntime is installed."""
    with reading(folder / RECORD):
        record = Record.from_json((folder / RECORD).read_text(encoding="utf-8"))
    cifar = store.read(record.data_set)
    served, note = load_run(folder)
    if note.num_classes != cifar.num_classes:
        raise ValueError(f"{folder} has {note.num_classes} classes, {cifar.name} has {cifar.num_classes}")
    served = served.to(store.device)

    def by_torch(images: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return served(torch.from_numpy(images).to(store.device)).cpu().numpy()  # type: ignore[no-any-return]

    answers: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {MODEL: by_torch}
    if (folder / ONNX).is_file() and (by_onnx := _onnx(folder / ONNX)) is not None:
        answers[ONNX] = by_onnx
    pixels = cifar.test_images.astype(np.float32) / np.float32(255)
    for name, answer in answers.items():
        starts = range(0, len(pixels), BATCH)
        found = np.concatenate([answer(pixels[start : start + BATCH]).argmax(1) for start in starts])
        yield Judged(folder / name, record, round(100 * float((found == cifar.test_labels).mean()), 4))


def _onnx(path: Path) -> Callable[[NDArray[np.float32]], NDArray[np.float32]] | None:
    """What an ONNX file answers; None without onnxruntime."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return None
    with reading(path):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
    return lambda images: session.run(None, {given.name: images})[0]
