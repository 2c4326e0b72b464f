"""What training leaves in its folder, with one folder per method; every file is either complete or absent.

model.safetensors   the weights, with the prior and the class names in the file's metadata (`eq.Rebalanced.load`)
model.json          the network they belong to, and how images are prepared for it
predictions.npz     logits of the images it was evaluated on, with labels and names; `equipoise report` reads it
record.json         recipe, numbers, versions
model.onnx, model.pt2   if an export was requested: images from 0 to 1 in, logits out, the correction inside;
                    how images are prepared is in the metadata of the first and the extra files of the second
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from equipoise.data.images import ImageList
from equipoise.data.reading import read_json
from equipoise.files import write_text, written_whole
from equipoise.models.classifiers import PRETRAINED, Classifier, Normalised, make_backbone
from equipoise.models.heads import NormalizedLinear, ScaledHead
from equipoise.models.resnet_cifar import FEATURES, ResNetCifar
from equipoise.models.weights import MODEL, NETWORK
from equipoise.prior import Prior
from equipoise.serving.export import export_onnx, export_program
from equipoise.serving.rebalanced import Rebalanced
from equipoise.training.augmentation.cifar import MEAN, STD
from equipoise.training.image_records import PREDICTIONS, RECORD, ImageRecord
from equipoise.training.images import Finished, stored_side
from equipoise.training.methods import logits_mean
from equipoise.training.sets import IMAGENET_MEAN, IMAGENET_STD

PREPARED = "preprocessing"
RULE = (
    "open with Pillow (a JPEG file at the reduced scale that draft gives for the resized image), turn upright as EXIF "
    "says, convert to RGB; resize the middle square, as wide as the shorter side, to resize x resize pixels with "
    "BILINEAR; keep the middle crop x crop pixels; divide by 255; axes: batch, channel, row, column. The mean and std "
    "of inside are part of the model."
)


@dataclass(frozen=True)
class NetworkNote:
    """The network that the weights in a file belong to."""

    model: str
    size: int
    num_classes: int
    head: str = "linear"  # or "normalized"
    stride: Literal["1x1", "3x3"] | None = None
    full_stem: bool = False
    blocks: int = 5  # of each stage, if `model` is "resnet32"
    width: int = 1  # a factor of its channels, likewise

    @property
    def preprocessing(self) -> dict[str, Any]:
        """How a photo becomes an input of the network: what `equipoise predict` does."""
        own = (MEAN, STD) if self.model == "resnet32" else (IMAGENET_MEAN, IMAGENET_STD)
        inside = {"mean": list(own[0]), "std": list(own[1])}
        return {"resize": stored_side(self.size), "crop": self.size, "rule": RULE, "inside": inside}

    def save(self, path: Path) -> None:
        """Write the note, with the preprocessing for those who serve the model without this library."""
        write_text(path, json.dumps(asdict(self) | {PREPARED: self.preprocessing}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> NetworkNote:
        """The note of a file that `save` wrote."""
        content = read_json(path)
        try:
            return cls(**{name: value for name, value in {**content}.items() if name != PREPARED})
        except TypeError as error:
            raise ValueError(f"{path} does not describe a network: {error}") from None

    def network(self) -> Normalised:
        """The network, without the weights."""
        if self.model == "resnet32":
            last = nn.Linear(FEATURES * self.width, self.num_classes)
            return Normalised(ResNetCifar(last, self.blocks, self.width), MEAN, STD)
        backbone, width = make_backbone(self.model, self.size, stride=self.stride, full_stem=self.full_stem)
        head = (NormalizedLinear if self.head == "normalized" else nn.Linear)(width, self.num_classes)
        return Normalised(Classifier(backbone, head), IMAGENET_MEAN, IMAGENET_STD)


def write_run(folder: Path, finished: Finished, record: ImageRecord, test: ImageList) -> None:
    """Write everything that an evaluated run leaves."""
    run, prior = finished.run, finished.evaluation.prior
    model: Any = copy.deepcopy(run.model).cpu().float().eval().to(memory_format=torch.contiguous_format)
    head = model.head.plain() if isinstance(model.head, ScaledHead) else model.head
    whole = Classifier(finished.backbone or model.backbone, head).eval()
    scale = run.recipe.options.get("scale") if isinstance(head, NormalizedLinear) else None
    mean = logits_mean(run.recipe)
    served = serve(Normalised(whole, IMAGENET_MEAN, IMAGENET_STD), prior, mean, run.recipe.adjusted, scale)
    folder.mkdir(parents=True, exist_ok=True)
    served.save(folder / MODEL)
    kind = "normalized" if scale is not None else "linear"
    recipe = run.recipe
    note = NetworkNote(finished.model, recipe.size, prior.num_classes, kind, recipe.stride, recipe.full_stem)
    note.save(folder / NETWORK)
    arrays = {
        "logits": finished.logits.float().numpy() * (scale or 1),
        "labels": test.labels,
        "class_names": np.array(test.class_names),
        "logits_mean": np.array(mean),
        "paths": np.array(test.paths),
    }
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    with written_whole(folder / PREDICTIONS) as scratch:
        scratch.write_bytes(content.getvalue())
    write_text(folder / RECORD, record.to_json(indent=1))


def serve(model: nn.Module, prior: Prior, mean: str, adjusted: bool, scale: float | None) -> Rebalanced:
    """The model with the prior that its logits mean; predictions are the same as when it was evaluated."""
    uniform = Prior.uniform(prior.num_classes, class_names=prior.class_names)
    source = prior if mean == "train" or adjusted else uniform
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "source and target are the same")
        return Rebalanced(model, source=source, target=uniform if mean == "uniform" else prior, scale=scale)


def load_run(folder: Path) -> tuple[Rebalanced, NetworkNote]:
    """The model of a method's folder, ready to predict."""
    for name in (NETWORK, MODEL):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no {name}: expected the folder of a trained method")
    note = NetworkNote.load(folder / NETWORK)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "source and target are the same")
        return Rebalanced.load(folder / MODEL, note.network()).eval(), note


def export_run(folder: Path) -> list[Path]:
    """Write the model of a method's folder as ONNX and as a `torch.export` program."""
    served, note = load_run(folder)
    example = torch.zeros(2, 3, note.size, note.size)
    onnx, program = folder / "model.onnx", folder / "model.pt2"
    prepared = {PREPARED: json.dumps(note.preprocessing)}
    export_onnx(served, example, onnx, metadata=prepared)
    made = export_program(served, example)
    with written_whole(program) as scratch:
        torch.export.save(made, scratch, extra_files=served.metadata | prepared)
    return [onnx, program]


def method_folders(run: Path) -> list[Path]:
    """The folders of the methods that were trained in a run's folder; a method's folder gives itself."""
    if (run / MODEL).is_file():
        return [run]
    return sorted(path.parent for path in run.glob(f"*/{MODEL}"))


def weights_file(weights: str) -> str:
    """The file that --weights names: itself, or the model in the folder of a run with one method, or of a method."""
    if weights == PRETRAINED or not Path(weights).is_dir():
        return weights
    found = method_folders(Path(weights))
    if len(found) == 1:
        return str(found[0] / MODEL)
    if not found:
        raise ValueError(f"{weights} holds no trained model: expected a file, or a folder that equipoise train wrote")
    raise ValueError(f"{weights} holds several methods: pass the folder of one, {', '.join(map(str, found))}")


def source_name(weights: str) -> str:
    """How records name the file that backbones start from: by its name; the model of a run, by its folders as well.

    >>> source_name("downloads/resnet50.pth"), source_name("/runs/first/softmax/model.safetensors")
    ('resnet50.pth', 'first/softmax/model.safetensors')
    """
    path = Path(weights)
    return path.name if path.name != MODEL else "/".join(path.resolve().parts[-3:])
