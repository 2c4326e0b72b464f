"""`equipoise train`: from a folder of images to a model that can be served."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options as o
from equipoise.cli.option_fields import fields_as_options

LIBRARIES = {
    "torchvision": "torchvision",
    "PIL": "pillow",
    "safetensors": "safetensors",
    "vl_convert": "vl-convert-python",
}
EXPORTING = {"onnx": "onnx", "onnxscript": "onnxscript"}
MODEL, TRAINING, DATA, OUTPUT = "Model", "Training", "Data", "Output"  # panels of the help
LOSSES = (
    "balanced_softmax by default. Any of softmax, cbw, cbs, focal, class_balanced, ldam, eql, balanced_softmax, "
    "sigmoid, balanced_sigmoid, adjusted, crt, lws, decoupled_balanced_softmax, or all. Repeatable."
)


@dataclass(frozen=True)
class TrainOptions:
    """What `equipoise train` was asked for."""

    source: Annotated[
        Path | None,
        typer.Argument(
            help="The images: a folder with one folder per class (or train/ and val/ of these), a list of paths and "
            "labels (.txt, .csv, .tsv, .parquet, .json), or a saved Hugging Face data set."
        ),
    ] = None
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="The folder of this run; an unfinished run in it is continued.", rich_help_panel=OUTPUT
        ),
    ] = Path("runs/first")
    losses: Annotated[
        list[str], typer.Option("--loss", metavar="NAME", help=LOSSES, show_default=False, rich_help_panel=MODEL)
    ] = field(default_factory=lambda: ["balanced_softmax"])
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A classifier of torchvision or timm.", rich_help_panel=MODEL)
    ] = "resnet18"
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Weights of the backbone: a file, the folder of another run, or pretrained to download them.",
            rich_help_panel=MODEL,
        ),
    ] = None
    stride: Annotated[str | None, o.stride(MODEL)] = None
    freeze: Annotated[
        bool,
        typer.Option(
            "--freeze",
            help="Freeze the backbone and train heads on its features, in seconds each; without --augment.",
            rich_help_panel=MODEL,
        ),
    ] = False
    epochs: Annotated[
        float, typer.Option(metavar="N", min=0.0, help="Passes over the training images.", rich_help_panel=TRAINING)
    ] = 30.0
    size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=8,
            help="Image size in pixels. By default close to that of the images: up to 224 on a GPU, up to 64 on a "
            "CPU, where larger sizes are slow.",
            rich_help_panel=MODEL,
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Images per step. By default 64; 256 if there are 20,000 images or more.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Highest learning rate. By default 0.1 per 256 images, 0.02 with --weights, 0.001 with adamw.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="sgd or adamw.", rich_help_panel=TRAINING)] = "sgd"
    weight_decay: Annotated[float, typer.Option(metavar="X", help="Weight decay.", rich_help_panel=TRAINING)] = 5e-4
    augment: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="crop, resized, randaugment, randaugment-crop, distorted, whole or none. By default crop up to 96 "
            "pixels, resized above.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    mixup: Annotated[
        float, typer.Option(metavar="ALPHA", min=0.0, help="Mixup; 0.2 is usual.", rich_help_panel=TRAINING)
    ] = 0.0
    cutmix: Annotated[
        float, typer.Option(metavar="ALPHA", min=0.0, help="CutMix; 1 is usual.", rich_help_panel=TRAINING)
    ] = 0.0
    ema: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0.0,
            max=1.0,
            help="Decay of the moving average of the weights, say 0.999.",
            rich_help_panel=TRAINING,
        ),
    ] = 0.0
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="instance, or class_balanced.", rich_help_panel=TRAINING)
    ] = "instance"
    accumulate: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Split each batch into N parts, to save memory.", rich_help_panel=TRAINING
        ),
    ] = 1
    train: Annotated[
        Path | None,
        typer.Option("--train", metavar="FILE", help="The training images, instead of SOURCE.", rich_help_panel=DATA),
    ] = None
    val: Annotated[
        Path | None,
        typer.Option(
            "--val", metavar="FILE", help="The images to evaluate on, a folder or a list.", rich_help_panel=DATA
        ),
    ] = None
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder that paths in lists are relative to.", rich_help_panel=DATA),
    ] = None
    held_out: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="The share of each class to hold out, if there is no val.", rich_help_panel=DATA
        ),
    ] = 0.2
    on_bad_image: Annotated[
        str,
        typer.Option(metavar="skip|refuse", help="What to do with images that cannot be read.", rich_help_panel=DATA),
    ] = "skip"
    export: Annotated[
        bool, typer.Option("--export", help="Also write ONNX and a torch.export program.", rich_help_panel=OUTPUT)
    ] = False
    compiled: o.Compiled = False
    resident: Annotated[
        bool | None, typer.Option(help="Keep decoded images in memory; by default if they fit.", rich_help_panel=DATA)
    ] = None
    decode: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|gpu",
            help="Where to decode JPEG files that are not kept in memory; auto: on the GPU if torchvision can.",
            rich_help_panel=DATA,
        ),
    ] = "auto"
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Processes or threads that decode; one per core by default.", rich_help_panel=DATA
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="The seed of training. Which images are held out does not depend on it.",
            rich_help_panel=TRAINING,
        ),
    ] = 0
    budget: o.Budget = None
    iterations: o.Iterations = None
    device: o.Device = None


@fields_as_options
def train(
    options: TrainOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, for programs.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Train image classifiers, evaluate them on classes with many, medium and few images, and save models to serve.

    \b
    equipoise train photos/ --out runs/first
    equipoise train photos/ --loss softmax --loss balanced_softmax --epochs 30 --size 64
    equipoise train --train ImageNet_LT_train.txt --val ImageNet_LT_val.txt --images ILSVRC2012 --model resnet50
    torchrun --nproc-per-node 8 -m equipoise train photos/ --model resnet50 --size 224
    """
    lists = [path for path in (options.source, options.train, options.val) if path]
    check_libraries(options.model, options.export, lists)
    if os.environ.get("RANK", "0") == "0":  # the first of torchrun's processes
        starting = "starting: loading torch"
        typer.echo(json.dumps({"message": starting}) if as_json else starting)
    from equipoise.cli.training import train_images

    train_images(options, as_json)


def check_libraries(model: str, export: bool, sources: Sequence[Path]) -> None:
    """Refuse what could not be trained, or not be saved afterwards, with all that is missing in one message."""
    needed = LIBRARIES | (EXPORTING if export else {})
    absent = {package: "train" for name, package in needed.items() if find_spec(name) is None}
    if model.startswith("timm/") and find_spec("timm") is None:
        absent["timm"] = "timm"
    if any(path.suffix == ".parquet" for path in sources) and find_spec("pyarrow") is None:
        absent["pyarrow"] = "parquet"
    if absent:
        extras = ",".join(dict.fromkeys(absent.values()))
        are = "is" if len(absent) == 1 else "are"
        raise typer.BadParameter(f"{', '.join(absent)} {are} not installed: pip install 'equipoise[{extras}]'")
