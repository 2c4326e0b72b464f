"""The options that commands share, each declared once, and how the training commands use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.image_records import ImageRecord
from equipoise.training.multilabel_records import MultilabelRecord
from equipoise.training.records import Record, Recorded, StoredRecord

Data = Annotated[Path, typer.Option(metavar="DIR", help="Folder with cifar-10-batches-py and cifar-100-python in it.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="PART", help="A part, as cifar10-lt/100 or rfs/0: the beginning of a run's path. Repeatable."),
]
Seeds = Annotated[list[int] | None, typer.Option(metavar="N", help="Only these seeds: --seeds 0 1 2.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="The file to which each record is appended when its run ends.")]
Results = Annotated[Path, typer.Option(metavar="DIR", help="The folder of committed records.")]
Budget = Annotated[float | None, typer.Option(metavar="N", min=0, help="Seconds to spend: train as many runs as fit.")]
Iterations = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="A smoke test with this many iterations; never in a table.")
]
Validate = Annotated[
    bool,
    typer.Option("--validate", help="Train the candidates behind the recipe, evaluated on held-out training images."),
]
Together = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Runs that share the device; by default 4 on a GPU, 1 on a CPU.")
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda or cuda:N; by default the GPU, if any.")]
Checkpoints = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for unfinished runs and weights; by default beside --out.")
]
Train = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your own data to train on: a COCO or LVIS file, or a list of images."),
]
Val = Annotated[Path | None, typer.Option(metavar="FILE", help="Your own data to evaluate on, in the same form.")]
Images = Annotated[Path | None, typer.Option(metavar="DIR", help="The folder that file names are relative to.")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Number of processes that read images.")]
Resident = Annotated[
    bool | None, typer.Option(help="Keep decoded images on the device; by default on a GPU, if they fit.")
]
Weights = Annotated[
    str | None, typer.Option(metavar="FILE", help="Backbone weights: a file, or torchvision to download them.")
]


def stride(panel: str | None = None) -> Any:
    """The option --stride, in a panel of the help."""
    words = "Where the weights' network has its stride: 1x1 (MSRA, Caffe) or 3x3; by default from the file name."
    return typer.Option(metavar="WHERE", help=words, rich_help_panel=panel)


Stride = Annotated[str | None, stride()]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile the backbone: faster after the first half minute.")]
Fused = Annotated[
    bool, typer.Option("--fused", help="Kernels of our own for the backbone (NVIDIA GPU, Triton): the fastest.")
]
Timed = Annotated[
    bool, typer.Option("--no-deterministic", help="Use cuDNN's fastest kernels, chosen by timing; not deterministic.")
]
Download = Annotated[bool, typer.Option("--download", help="Download a missing data set.")]
Commit = Annotated[str | None, typer.Option(metavar="TEXT", help="The commit to store in records; by default git's.")]

KINDS: tuple[type[StoredRecord], ...] = (Record, DetectionRecord, PriorShiftRecord, ImageRecord, MultilabelRecord)
RECORDS = Path("records.jsonl")
RESULTS = Path("results")
NEXT_RECORDS, NEXT_RESULTS = Path("next.jsonl"), RESULTS / "next"  # of the recipe that is to be the record's


@dataclass(frozen=True)
class RunOptions:
    """The options of every training command."""

    only: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    out: Path = RECORDS
    results: Path = RESULTS
    budget: float | None = None
    iterations: int | None = None
    validate: bool = False
    together: int | None = None
    device: str | None = None
    checkpoints: Path | None = None
    commit: str | None = None

    @property
    def kept(self) -> Path:
        """The folder for checkpoints."""
        return self.checkpoints or self.out.parent / "checkpoints"

    def recorded(self, table: str, kind: type[StoredRecord]) -> Recorded:
        """Where the records of a table are, and where new ones go."""
        return Recorded(self.out, self.results, table, kind, KINDS, self.iterations)


class SeedsCommand(TyperCommand):
    """A command that takes `--seeds 0 1 2` for `--seeds 0 --seeds 1 --seeds 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeated(args))


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
