"""`equipoise run`: train an experiment: a table of the paper, or one of the user's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from equipoise.cli import options as o
from equipoise.cli.option_fields import Without, fields_as_options
from equipoise.cli.shared import perhaps
from equipoise.data.reading import visible


class RunGroup(TyperGroup):
    """The tables, and any path that ends in .py: a table of the user's own. Options may come before the name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [param for command in self.commands.values() for param in command.params]
        with_value = {name for param in options if not getattr(param, "is_flag", False) for name in param.opts}
        for before, word in enumerate(args):
            named = word in self.commands or (word.endswith(".py") and not word.startswith("-"))
            if named and (before == 0 or args[before - 1] not in with_value):
                args = [word, *args[:before], *args[before + 1 :]]
                break
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0].endswith(".py"):
            return visible(args[0]), self.commands["FILE.py"], args[1:]  # the usage line shows it
        if args[0] not in self.commands:
            names = [name for name in self.commands if name != "FILE.py"]
            known = f"{', '.join(names)}, or the path of a .py file"
            raise typer.BadParameter(f"no table is named {args[0]!r}: expected {known}{perhaps(names, args[0])}")
        return super().resolve_command(ctx, args)


run_app = typer.Typer(
    cls=RunGroup,
    no_args_is_help=True,
    help="Train an experiment: table1, causes, record, table2, voc2012-lt, mosaic-lt, tiny-imagenet-lt, voc-mlt, "
    "prior-shift, or a recipe file of your own. `equipoise run table1 --help` has the options.\n\n"
    "\bequipoise run table1 --data cifar --only cifar10-lt/100 --seeds 0\nequipoise run prior-shift",
)


@run_app.command(
    "causes",
    cls=o.SeedsCommand,
    short_help="Runs that test why Table 1 differs from the paper.",
    help="Train runs of Table 1 with one thing changed, skipping those that already have a record.\n\n"
    "\bequipoise run causes --data DIR --only cifar10-lt-draw-1\nequipoise run causes --data DIR --budget 3600",
)
@run_app.command("table1", cls=o.SeedsCommand, short_help="Table 1 of the paper: classifiers on CIFAR-LT.")
@fields_as_options
def run_classifiers(
    ctx: typer.Context,
    data: o.Data,
    options: o.RunOptions,
    kernels: o.KernelOptions,
    download: o.Download = False,
) -> None:
    """Train classifiers: the most informative runs first, skipping those that already have a record.

    \bequipoise run table1 --data DIR --budget 3600
    equipoise run table1 --data DIR --only cifar100-lt/100/balanced_softmax
    equipoise run table1 --data DIR --only cifar10-lt/100 --seeds 0 1 2
    """
    from equipoise.cli.classifiers import table_of, train_classifiers

    train_classifiers(table_of(str(ctx.info_name), options.validate), options, kernels, data, download=download)


def _by_default(ctx: typer.Context, name: str) -> bool:
    """Whether the user left out an option."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT"


@run_app.command("record", cls=o.SeedsCommand, short_help="One ResNet-32 on CIFAR-LT, distilled from an ensemble.")
@fields_as_options
def run_record(
    ctx: typer.Context,
    own: o.RecordOptions,
    options: o.RunOptions,
    kernels: o.KernelOptions,
    judge: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Train nothing: evaluate exported students from their files.")
    ] = None,
) -> None:
    """Distil one network per cell from an ensemble: students in groups of --together, each after its teachers.

    \bequipoise run record --data DIR --fused --together 6 --only cifar100-lt/100 --seeds 0
    equipoise run record --data DIR --fused --validate
    equipoise run record --data DIR --judge EXPORTED
    """
    from equipoise.cli.record import judge_exported, train_record

    if judge is not None:
        return judge_exported(judge, own, options.device)
    if own.of_next and options.validate:
        raise typer.BadParameter("--validate trains the choices behind every recipe: leave --next out")
    if own.of_next:
        out = o.NEXT_RECORDS if _by_default(ctx, "out") else options.out
        results = o.NEXT_RESULTS if _by_default(ctx, "results") else options.results
        options = replace(options, out=out, results=results)
    train_record(options, kernels, own)


@run_app.command(
    "FILE.py", cls=o.SeedsCommand, short_help="A table of your own, from a recipe file (docs/own-tables.md)."
)
@fields_as_options
def run_own(
    ctx: typer.Context,
    source: o.OwnSource,
    options: o.RunOptions,
    kernels: o.KernelOptions,
    download: o.Download = False,
) -> None:
    """Train the methods that a Python file lists, on your own data; runs that have a record are not trained again.

    \bequipoise run losses.py --data photos
    equipoise run losses.py --data photos --only balanced_softmax --seeds 0
    equipoise run detectors.py --train train.json --val val.json --images photos --weights FILE
    """
    from equipoise.cli.own_tables import train_own

    train_own(Path(str(ctx.info_name)), options, kernels, source, download=download)


@run_app.command(
    "mosaic-lt",
    cls=o.SeedsCommand,
    short_help="The same detectors and more, on 200 classes of boxes.",
    help="Train detectors of boxes: the runs of mosaic-lt that are still missing.\n\n"
    "\bequipoise run mosaic-lt --data DIR --weights FILE --only rfs --seeds 0 1 2",
)
@run_app.command(
    "voc2012-lt",
    cls=o.SeedsCommand,
    short_help="The detectors of Table 2 on PASCAL VOC.",
    help="Train the detectors of Table 2 on PASCAL VOC: the runs that are still missing.\n\n"
    "\bequipoise run voc2012-lt --data DIR --weights FILE --only rfs --seeds 0 1 2",
)
@run_app.command("table2", cls=o.SeedsCommand, short_help="Table 2 of the paper: detectors on LVIS.")
@fields_as_options
def run_detectors(
    ctx: typer.Context,
    *,
    source: o.Source,
    backbone: Annotated[
        str | None, typer.Option(metavar="NAME", help="resnet50, the default, or resnet101; table2 only.")
    ] = None,
    changes: o.DetectorChanges,
    options: Annotated[o.RunOptions, Without("together")],
) -> None:
    """Train detectors: the runs of Table 2 that are still missing.

    \bequipoise run table2 --data DIR --weights FILE
    equipoise run table2 --data DIR --weights FILE --only rfs --seeds 0 1 2
    equipoise run table2 --train FILE --val FILE --images DIR --weights FILE
    """
    from equipoise.cli.detectors import train_detectors

    train_detectors(str(ctx.info_name), options, source, backbone, changes)


@run_app.command("tiny-imagenet-lt", cls=o.SeedsCommand, short_help="Photographs of 200 classes at 64 px.")
@fields_as_options
def run_tiny_imagenet_lt(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder with train and val, one folder per class in each.")],
    options: o.RunOptions,
    compiled: o.Compiled = False,
) -> None:
    """Train classifiers on Tiny-ImageNet-LT: the runs of the table that are still missing.

    \bequipoise run tiny-imagenet-lt --data DIR --only balanced_softmax --seeds 0 1 2
    """
    from equipoise.cli.image_tables import train_tiny_imagenet_lt

    train_tiny_imagenet_lt(options, data, compiled=compiled)


@run_app.command("voc-mlt", cls=o.SeedsCommand, short_help="Several labels per photograph, on PASCAL VOC.")
@fields_as_options
def run_voc_mlt(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder with labels.csv and images (docs/multilabel.md).")],
    *,
    weights: o.Weights = None,
    stride: o.Stride = None,
    options: Annotated[o.RunOptions, Without("validate")],
    compiled: o.Compiled = False,
) -> None:
    """Train multi-label classifiers on VOC-MLT: the runs of the table that are still missing.

    \bequipoise run voc-mlt --data DIR --weights FILE --only balanced_sigmoid --seeds 0 1 2
    """
    from equipoise.cli.voc_mlt import train_voc_mlt

    train_voc_mlt(options, data, weights, stride, compiled=compiled)


@run_app.command(
    "prior-shift", cls=o.SeedsCommand, short_help="The value of knowing the prior when it changes: digits, on a CPU."
)
@fields_as_options
def run_prior_shift(options: Annotated[o.RunOptions, Without("validate", "together", "device")]) -> None:
    """Train on long-tailed digits on the CPU and evaluate under shifted class frequencies (about two minutes).

    Shows accuracy and log-loss as trained, with the true class frequencies, and with estimated ones; see
    docs/estimation.md.

    \bequipoise run prior-shift --seeds 0 1 2
    """
    from equipoise.cli.prior_shift import train_prior_shift

    train_prior_shift(options)
