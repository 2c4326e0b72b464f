"""`equipoise run table2 | voc2012-lt` and `equipoise detect`: train, evaluate and use detectors."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from equipoise.cli.prior_shift import NAME as SHIFT
from equipoise.cli.prior_shift import run_prior_shift
from equipoise.cli.records import lay_out
from equipoise.cli.shared import check_writable, device_of, in_runs, progress, records_in, refusing
from equipoise.training import records as record_files
from equipoise.training.detection_records import DetectionRecord

if TYPE_CHECKING:
    from equipoise.experiments.table2.recipe import Method

TABLES = ("table2", "voc2012-lt")

detect_app = typer.Typer(
    help="Detectors: evaluate, write and draw what they find; needs the extra detection.", no_args_is_help=True
)


class SeedsCommand(TyperCommand):
    """A command of which `--seeds 0 1 2` is an option: 1 and 2 reach it as arguments, which its usage does not show."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece for piece in super().collect_usage_pieces(ctx) if "more seeds" not in piece]


class RunCommand(SeedsCommand):
    """`equipoise run`: other experiments have other options than Table 1, so they are commands of their own."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        others = dict.fromkeys(TABLES, run_detectors) | {SHIFT: run_prior_shift}
        if args and args[0] in others:
            app = typer.Typer(add_completion=False)
            app.command(cls=SeedsCommand)(others[args[0]])
            return typer.main.get_command(app).make_context(info_name, args, parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def run_detectors(
    table: Annotated[str, typer.Argument(help="table2 or voc2012-lt.")],
    more: Annotated[list[int] | None, typer.Argument(hidden=True, metavar="more seeds")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data set in its official layout.")
    ] = None,
    train: Annotated[Path | None, typer.Option(metavar="FILE", help="Your own COCO or LVIS file to train on.")] = None,
    val: Annotated[Path | None, typer.Option(metavar="FILE", help="Your own COCO or LVIS file to evaluate on.")] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that their file names start from.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="FILE", help="Backbone weights: a file, or torchvision to fetch them.")
    ] = None,
    stride: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Where the weights' network has its stride: 1x1 (MSRA, Caffe) or 3x3. By default what the file's name "
            "tells, else 3x3.",
        ),
    ] = None,
    backbone: Annotated[str, typer.Option(metavar="NAME", help="resnet50 or resnet101; table2 only.")] = "resnet50",
    size: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="Shorter side of images, instead of the recipe's. Repeatable: one is drawn an image."
        ),
    ] = None,
    longest: Annotated[
        int | None, typer.Option(metavar="N", help="With --size: the longer side at most; 5/3 of it by default.")
    ] = None,
    federated: Annotated[
        bool, typer.Option("--federated", help="Leave classes that an image was not searched for out of the loss.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="METHOD", help="Only this method. Repeatable.")] = None,
    seeds: Annotated[list[int] | None, typer.Option(metavar="N", help="Only these seeds: --seeds 0 1 2.")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where each record is appended as its run ends.")] = Path(
        "records.jsonl"
    ),
    results: Annotated[Path, typer.Option(metavar="DIR", help="Records that are there already.")] = Path("results"),
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where weights are kept; beside --out.")
    ] = None,
    budget: Annotated[float | None, typer.Option(metavar="N", help="Seconds to spend.")] = None,
    iterations: Annotated[int | None, typer.Option(metavar="N", help="A smoke test of so many iterations.")] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="voc2012-lt: the runs that choices are made from.")
    ] = False,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Processes that read images.")] = None,
    resident: Annotated[
        bool | None,
        typer.Option(help="Decode images once and keep them on the device; by default on a GPU, where they fit."),
    ] = None,
    together: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Commands like this that share the device meanwhile, for the records."),
    ] = 1,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cpu, cuda or cuda:N; the GPU if there is one.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The commit to note in records; git's by default.")
    ] = None,
) -> None:
    """Train what is still missing of a table of detectors; a record is appended as each run ends.

    \bequipoise run table2 --data DIR --weights FILE
    equipoise run voc2012-lt --data DIR --weights FILE --only rfs --seeds 0 1 2
    equipoise run table2 --train FILE --val FILE --images DIR --weights FILE
    """
    from equipoise.experiments.voc2012_lt import recipe as voc2012_lt
    from equipoise.models.batched_rcnn import world
    from equipoise.models.mask_rcnn import stride_by_name
    from equipoise.training.detection_queue import Cell, DetectionSettings, join_processes, run_cells

    if stride not in (None, "1x1", "3x3"):
        raise typer.BadParameter(f"--stride {stride}: expected 1x1 or 3x3")
    if more and not seeds:
        raise typer.BadParameter(f"what is {more}? Seeds are given as --seeds 0 1 2")
    kept = checkpoints or out.parent / "checkpoints"
    own = (train, val, images)
    if any(own) and not all(own):
        raise typer.BadParameter("your own data needs all of --train, --val and --images")
    methods, known_seeds, name = _rows(table, backbone, validate)
    where = _paths(table, data, own)
    if all(own):
        name = f"own/{Path(where[0]).stem}/{name}"
    changes, suffix = _changes(size, longest, federated)
    name += suffix
    methods = tuple(replace(method, recipe=replace(method.recipe, **changes)) for method in methods)
    evaluated_on = "val"
    if validate and data is not None:
        evaluated_on = "held_out"
        where = (where[0], voc2012_lt.write_held_out(data, kept / "held_out.json"), where[2])
    unknown = sorted(set(only or []) - {method.name for method in methods})
    if unknown:
        raise typer.BadParameter(f"no method is named {unknown[0]}: {', '.join(method.name for method in methods)}")
    have = _recorded(name, results, out, iterations)
    cells = [
        Cell(method.name, seed)
        for seed in ([*seeds, *(more or [])] if seeds else known_seeds)
        for method in methods
        if (not only or method.name in only) and f"{name}/{method.name}/{seed}" not in have
    ]
    device_found = join_processes(device_of(device))
    say: Callable[[str], None] = typer.echo if world()[1] == 0 else lambda text: None
    say(f"{in_runs(cells)} missing, on {record_files.hardware(device_found)['device']}")
    if not cells:
        return
    check_writable(out, kept)
    say(
        "no --weights: the backbone starts from random numbers, and every layer is trained"
        if weights is None
        else f"backbone from {weights}, its stride in the {stride or stride_by_name(weights)} convolutions"
    )
    with (
        refusing(),
        warnings.catch_warnings(),
        progress() if world()[1] == 0 else nullcontext((say, lambda status: None)) as (tell, report),
    ):
        warnings.showwarning = lambda message, *_, **__: tell(str(message))
        settings = DetectionSettings(
            table=name,
            train=where[0],
            val=where[1],
            images=where[2],
            device=device_found,
            checkpoints=kept,
            backbone=weights,
            stride=stride,  # type: ignore[arg-type]
            evaluated_on=evaluated_on,
            workers=_workers(device_found.type) if workers is None else workers,
            resident=resident,
            iterations=iterations,
            together=together,
            commit=commit or record_files.current_commit(),
            say=tell,
            report=report,
        )
        done = run_cells(
            cells,
            methods,
            settings,
            write=lambda record: record_files.append_record(out, record),
            budget=float("inf") if budget is None else budget,
        )
    say(f"{in_runs(done)} recorded in {out}, {len(cells) - len(done)} to go")


def _rows(table: str, backbone: str, validate: bool) -> tuple[tuple[Method, ...], tuple[int, ...], str]:
    """The methods of a table, its seeds, and the name that its records have."""
    from equipoise.experiments.table2 import recipe as table2
    from equipoise.experiments.voc2012_lt import recipe as voc2012_lt

    if table != voc2012_lt.NAME:
        if validate:
            raise typer.BadParameter("--validate is for voc2012-lt: nothing was chosen for table2")
        return table2.methods(backbone), table2.SEEDS, f"{table2.NAME}/{backbone}"
    if validate:
        return voc2012_lt.CHOICES, (0,), f"choices/{voc2012_lt.NAME}"
    return voc2012_lt.METHODS, voc2012_lt.SEEDS, voc2012_lt.NAME


def _recorded(name: str, results: Path, out: Path, iterations: int | None) -> set[str]:
    """The keys of what need not be run again: records, and in `out` also smoke tests of as many iterations."""
    with refusing():
        have = {record.key for record in record_files.read_records(results, name, DetectionRecord)}
    made = records_in(out, DetectionRecord)
    return have | {record.key for record in made if record.complete or record.iterations == iterations}


def _changes(size: list[int] | None, longest: int | None, federated: bool) -> tuple[dict[str, Any], str]:
    """What the options change in every recipe, and what they add to the name of the records."""
    if longest is not None and not size:
        raise typer.BadParameter("--longest goes with --size")
    changes: dict[str, Any] = {"federated": True} if federated else {}
    if size:
        changes |= {"min_sizes": tuple(sorted(size)), "max_size": longest or round(max(size) * 5 / 3)}
    return changes, (f"-{max(size)}px" if size else "") + ("-federated" if federated else "")


def _workers(device: str) -> int:
    return min(12, os.cpu_count() or 1) if device == "cuda" else 0


def _paths(table: str, data: Path | None, own: tuple[Path | None, ...]) -> tuple[Path, Path, Path]:
    from equipoise.experiments.table2 import recipe as table2
    from equipoise.experiments.voc2012_lt import recipe as voc2012_lt

    if all(own):
        return tuple(path for path in own if path is not None)  # type: ignore[return-value]
    if data is None:
        raise typer.BadParameter("which data? Give --data FOLDER, or your own with --train, --val and --images")
    try:
        return voc2012_lt.find(data) if table == "voc2012-lt" else table2.find(data)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None


@detect_app.command("eval")
@refusing()
def evaluate(
    results: Annotated[Path, typer.Argument(help="A JSON list of results in COCO's format.")],
    annotations: Annotated[Path, typer.Option(help="The COCO or LVIS file to evaluate against.")],
    prior: Annotated[
        Path | None, typer.Option(help="The training annotations: for groups r, c, f where the file has none.")
    ] = None,
) -> None:
    """Print the 13 LVIS numbers of a results file, for boxes and, where it has them, masks."""
    from equipoise.metrics.detection import Detections, GroundTruth
    from equipoise.prior import Prior

    found = Detections.from_file(results)
    truth = GroundTruth(annotations, None if prior is None else Prior.from_coco(prior))
    for kind in ("bbox", "segm"):
        if kind == "bbox" or (found.masks is not None and truth.has_masks):
            numbers = truth.evaluate(found, kind)
            shown = (f"{name} {'–' if value is None else f'{value:.2f}'}" for name, value in numbers.items())
            typer.echo(f"{kind}: " + ", ".join(shown))


@detect_app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A .jsonl file that `equipoise run` wrote.")],
    results: Annotated[Path, typer.Option(help="The folder of committed records.")] = Path("results"),
) -> None:
    """Lay the records of a .jsonl file out under results/; smoke tests are left out."""
    lay_out(source, results, DetectionRecord)


@detect_app.command("table")
def table_(
    table: Annotated[str, typer.Argument(help="voc2012-lt, choices/voc2012-lt, table2/resnet50 or table2/resnet101.")],
    results: Annotated[Path, typer.Option(help="The folder of committed records.")] = Path("results"),
) -> None:
    """Print a table of detectors from its records, as Markdown."""
    from equipoise.experiments.table2 import published as table2
    from equipoise.experiments.table2.report import methods_table
    from equipoise.experiments.voc2012_lt import published as voc2012_lt

    with refusing():
        records = record_files.read_records(results, table, DetectionRecord)
    if not records:
        raise typer.BadParameter(f"{results / table} holds no records")
    typer.echo(str(methods_table(records, voc2012_lt.CHOICES if table.startswith("choices") else table2.METHODS)))


@detect_app.command()
@refusing()
def submit(
    weights: Annotated[Path, typer.Argument(help="A .weights.pt file that `equipoise run` kept.")],
    annotations: Annotated[Path, typer.Option(help="The file that lists the images and categories.")],
    images: Annotated[Path, typer.Option(help="The folder that its file names start from.")],
    out: Annotated[Path, typer.Option(help="Where the results go.")] = Path("results.json"),
    backbone: Annotated[str | None, typer.Option(help="resnet50 or resnet101.")] = None,
    stride: Annotated[str | None, typer.Option(help="Where the backbone's stride is: 1x1 or 3x3.")] = None,
    size: Annotated[int | None, typer.Option(help="The shorter side at which images are looked at.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU if there is one.")] = None,
) -> None:
    """Write what a detector finds as the results JSON that the LVIS test server and `detect eval` take."""
    from equipoise.data.coco import CocoImages
    from equipoise.training.detection import predict as find_objects
    from equipoise.training.queue import Status

    data = CocoImages(annotations, images)
    place = device_of(device)
    model = _load(weights, data.num_classes, backbone, stride, size).to(place)
    with progress() as (_, report):
        began = time.monotonic()

        def tell(done: int) -> None:
            rate = (time.monotonic() - began) / done
            report(Status(done, len(data), 1 / max(rate, 1e-9), rate * (len(data) - done), "images"))

        found = find_objects(model, data, place, workers=_workers(place.type), report=tell)
    out.write_text(json.dumps(found.to_results()))
    typer.echo(f"{len(found)} detections in {len(data)} images, in {out}")


def _load(weights: Path, num_classes: int, backbone: str | None, stride: str | None, size: int | None) -> Any:
    """The detector of a weights file. What is None is as it was trained, if the file's note is still beside it, else a
    ResNet-50 with its stride in the 3×3 convolutions, at 800 pixels."""
    from equipoise.models.mask_rcnn import detector, load_detector_weights, read_tensors, resnet_fpn, sigmoid
    from equipoise.training.detection_queue import note_of

    tensors, note = read_tensors(weights), note_of(weights)
    trained: dict[str, Any] = {"backbone": "resnet50", "stride": "3x3", "size": 800, "longest": 1333}
    if note != weights and note.is_file():
        trained |= json.loads(note.read_text()).get("detector", {})
    elif None in (backbone, stride, size):
        typer.echo(
            f"there is no {note.name} beside the weights: taken for a {backbone or trained['backbone']}, its stride "
            f"in the {stride or trained['stride']} convolutions, at {size or trained['size']} pixels",
            err=True,
        )
    regression = tensors.get("roi_heads.box_predictor.bbox_pred.weight")
    if regression is not None and len(regression) != 4 * num_classes:
        raise ValueError(f"{weights} is of {len(regression) // 4} classes, the annotations have {num_classes}")
    if size is not None:
        trained |= {"size": size, "longest": round(size * trained["longest"] / trained["size"])}
    model = detector(
        resnet_fpn(backbone or trained["backbone"], stride=stride or trained["stride"]),  # type: ignore[arg-type]
        num_classes,
        sigmoid(num_classes),
        masks=any("mask_predictor" in name for name in tensors),
        scaled=any(name.endswith("cls_score.scales") for name in tensors),
        min_size=trained["size"],
        max_size=trained["longest"],
    )
    load_detector_weights(model, tensors)
    return model.eval()


@detect_app.command()
@refusing()
def predict(
    pictures: Annotated[list[Path], typer.Argument(help="Image files.")],
    weights: Annotated[Path, typer.Option(help="A .weights.pt file that `equipoise run` kept.")],
    annotations: Annotated[Path, typer.Option(help="A COCO or LVIS file with the categories it was trained on.")],
    out: Annotated[Path, typer.Option(help="Folder for the drawn pictures.")] = Path("predictions"),
    threshold: Annotated[float, typer.Option(help="Draw what scores at least this.")] = 0.3,
    backbone: Annotated[str | None, typer.Option(help="resnet50 or resnet101.")] = None,
    stride: Annotated[str | None, typer.Option(help="Where the backbone's stride is: 1x1 or 3x3.")] = None,
    size: Annotated[int | None, typer.Option(help="The shorter side at which images are looked at.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU if there is one.")] = None,
) -> None:
    """Draw the boxes and masks that a detector finds on pictures."""
    import torch

    from equipoise.data.coco import read_image, read_json
    from equipoise.report.detections import draw_detections

    categories = sorted(read_json(annotations)["categories"], key=lambda category: category["id"])
    names = [str(category.get("name", category["id"])) for category in categories]
    place = device_of(device)
    model = _load(weights, len(names), backbone, stride, size).to(place)
    out.mkdir(parents=True, exist_ok=True)
    missing = next((picture for picture in pictures if not picture.is_file()), None)
    if missing is not None:
        raise ValueError(f"there is no picture {missing}")
    for picture in pictures:
        image = read_image(picture)
        with torch.no_grad():
            found = model([image.to(place)])[0]
        target = out / f"{picture.stem}.png"
        draw_detections(image, found, names, threshold=threshold).save(target)
        scores = found["scores"].tolist()
        number = sum(score >= threshold for score in scores)
        best = f"; the best score is {max(scores):.2g}, see --threshold" if scores and not number else ""
        typer.echo(f"{target}: {number} objects{best}")
