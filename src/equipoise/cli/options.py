"""The options that commands share, each declared once, and how the training commands use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from equipoise.cli.shared import refusing
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.image_records import ImageRecord
from equipoise.training.multilabel_records import MultilabelRecord
from equipoise.training.records import Record, Recorded, StoredRecord

KINDS: tuple[type[StoredRecord], ...] = (Record, DetectionRecord, PriorShiftRecord, ImageRecord, MultilabelRecord)
RECORDS = Path("records.jsonl")
RESULTS = Path("results")
NEXT_RECORDS, NEXT_RESULTS = Path("next.jsonl"), RESULTS / "next"  # of the recipe that is to be the record's

Data = Annotated[Path, typer.Option(metavar="DIR", help="Folder with cifar-10-batches-py and cifar-100-python in it.")]
Results = Annotated[Path, typer.Option(metavar="DIR", help="The folder of committed records.")]
Budget = Annotated[float | None, typer.Option(metavar="N", min=0, help="Seconds to spend: train as many runs as fit.")]
Iterations = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="A smoke test with this many iterations; never in a table.")
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda or cuda:N; by default the GPU, if any.")]
Weights = Annotated[
    str | None, typer.Option(metavar="FILE", help="Backbone weights: a file, or torchvision to download them.")
]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile the backbone: faster after the first half minute.")]
Download = Annotated[bool, typer.Option("--download", help="Download a missing data set.")]


def stride(panel: str | None = None) -> Any:
    """The option --stride, in a panel of the help."""
    words = "Where the weights' network has its stride: 1x1 (MSRA, Caffe) or 3x3; by default from the file name."
    return typer.Option(metavar="WHERE", help=words, rich_help_panel=panel)


Stride = Annotated[str | None, stride()]


@dataclass(frozen=True)
class RunOptions:
    """The options of every command that trains a table."""

    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", help="A part, as cifar10-lt/100 or rfs/0: the beginning of a run's path. Repeatable."
        ),
    ] = None
    seeds: Annotated[list[int] | None, typer.Option(metavar="N", help="Only these seeds: --seeds 0 1 2.")] = None
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The file to which each record is appended when its run ends.")
    ] = RECORDS
    results: Results = RESULTS
    budget: Budget = None
    iterations: Iterations = None
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Train the candidates behind the recipe, evaluated on held-out training images."
        ),
    ] = False
    together: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Runs that share the device; by default 4 on a GPU, 1 on a CPU."),
    ] = None
    device: Device = None
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for unfinished runs and weights; by default beside --out."),
    ] = None
    commit: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The commit to store in records; by default git's.")
    ] = None

    @property
    def kept(self) -> Path:
        """The folder for checkpoints."""
        return self.checkpoints or self.out.parent / "checkpoints"

    def recorded(self, table: str, kind: type[StoredRecord]) -> Recorded:
        """Where the records of a table are, and where new ones go."""
        return Recorded(self.out, self.results, table, kind, KINDS, self.iterations)


@dataclass(frozen=True)
class KernelOptions:
    """How classifiers of CIFAR are computed."""

    compiled: Compiled = False
    fused: Annotated[
        bool, typer.Option("--fused", help="Kernels of our own for the backbone (NVIDIA GPU, Triton): the fastest.")
    ] = False
    timed: Annotated[
        bool,
        typer.Option("--no-deterministic", help="Use cuDNN's fastest kernels, chosen by timing; not deterministic."),
    ] = False


@dataclass(frozen=True)
class Source:
    """Where images and the backbone's weights come from."""

    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the data set in its official layout.")] = (
        None
    )
    train: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own data to train on: a COCO or LVIS file, or a list of images."),
    ] = None
    val: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own data to evaluate on, in the same form.")
    ] = None
    images: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that file names are relative to.")] = (
        None
    )
    weights: Weights = None
    stride: Stride = None
    workers: Annotated[int | None, typer.Option(metavar="N", help="Number of processes that read images.")] = None
    resident: Annotated[
        bool | None, typer.Option(help="Keep decoded images on the device; by default on a GPU, if they fit.")
    ] = None

    def paths(self, find: Callable[[Path], tuple[Path, Path, Path]]) -> tuple[Path, Path, Path]:
        """The annotations to train and to evaluate on, and the folder of the images; `find` looks for them in
        --data."""
        own = (self.train, self.val, self.images)
        if any(own) and self.data is not None:
            raise typer.BadParameter("which data? Give --data, or your own with --train, --val and --images, not both")
        if self.train and self.val and self.images:
            return self.train, self.val, self.images
        if any(own):
            raise typer.BadParameter("your own data needs all of --train, --val and --images")
        if self.data is None:
            raise typer.BadParameter("which data? Give --data FOLDER, or your own with --train, --val and --images")
        with refusing():
            return find(self.data)


@dataclass(frozen=True)
class OwnSource(Source):
    """The same for a table of one's own."""

    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The data: folders of images, COCO files train.json and val.json, or CIFAR."),
    ] = None


@dataclass(frozen=True)
class DetectorChanges:
    """What may be changed in every recipe of a table of detectors."""

    size: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Shorter side of images; if several, one is drawn per image."),
    ] = None
    longest: Annotated[
        int | None, typer.Option(metavar="N", help="With --size: limit for the longer side; by default 5/3 of it.")
    ] = None
    federated: Annotated[
        bool, typer.Option("--federated", help="Leave out of an image's loss the classes that it was not searched for.")
    ] = False


@dataclass(frozen=True)
class RecordOptions:
    """What `equipoise run record` takes in addition to the options of every table."""

    data: Data
    download: Download = False
    teachers: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with the weights of all teachers: none is trained.")
    ] = None
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for each student as safetensors, ONNX and torch.export.")
    ] = None
    of_next: Annotated[
        bool,
        typer.Option("--next", help="Train the next recipe; by default with --out next.jsonl, --results results/next."),
    ] = False


class SeedsCommand(TyperCommand):
    """A command that takes `--seeds 0 1 2` for `--seeds 0 --seeds 1 --seeds 2`."""

    takes_several = "--seeds"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeated(args, self.takes_several))


def repeated(args: Sequence[str], option: str = "--seeds") -> list[str]:
    """
    >>> repeated(["--seeds", "0", "1", "--out", "2"])
    ['--seeds', '0', '--seeds', '1', '--out', '2']
    """
    found: list[str] = []
    for word in args:
        if word.isdigit() and found[-2:-1] == [option] and found[-1] != option:
            found.append(option)
        found.append(word)
    return found
