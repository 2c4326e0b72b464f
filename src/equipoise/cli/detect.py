"""`equipoise detect`: evaluate and use detectors."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer.core import TyperCommand

from equipoise.cli import options as o
from equipoise.cli.shared import device_of, print_json, progress, refusing
from equipoise.files import write_text, written_whole

Weights = Annotated[Path, typer.Option(help="A .weights.pt file that `equipoise run` kept.")]
Backbone = Annotated[str | None, typer.Option(help="resnet50 or resnet101; as trained by default.")]
Size = Annotated[int | None, typer.Option(help="The shorter side at which images are looked at.")]

TargetRate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Move sigmoid scores to this rate of every class, or mean; needs --prior."),
]
Tau = Annotated[float, typer.Option(help="With --target-rate: how much of the shift, 1 is all of it.")]
TrainingPrior = Annotated[Path | None, typer.Option("--prior", help="The training annotations, for --target-rate.")]

detect_app = typer.Typer(
    help="Detectors: evaluate, write and draw what they find; needs the extra detection.\n\n"
    "\bequipoise detect eval results.json --annotations val.json",
    no_args_is_help=True,
)


class CapsCommand(TyperCommand):
    """A command that takes `--caps 300 50` for `--caps 300 --caps 50`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, o.repeated(args, "--caps"))


@detect_app.command("eval", cls=CapsCommand)
@refusing()
def evaluate(
    results: Annotated[Path, typer.Argument(help="A JSON list of results in COCO's format.")],
    annotations: Annotated[Path, typer.Option(help="The COCO or LVIS file to evaluate against.")],
    prior: Annotated[
        Path | None, typer.Option(help="The training annotations: for groups r, c, f where the file has none.")
    ] = None,
    caps: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="AP of the best N detections per image: --caps 300 50.")
    ] = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="AP-fixed: the 10,000 best per class, no cap.")] = False,
    pool: Annotated[bool, typer.Option("--pool", help="AP-pool: all classes in one ranking, and calibration.")] = False,
    target_rate: TargetRate = None,
    tau: Tau = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one line of JSON.")] = False,
) -> None:
    """Print the 13 LVIS numbers of a results file, for boxes and, where it has them, masks.

    \bequipoise detect eval results.json --annotations lvis_v1_val.json --prior lvis_v1_train.json
    equipoise detect eval results.json --annotations val.json --caps 300 50 --fixed --pool --json
    """
    from equipoise.metrics.detection import Detections, GroundTruth

    found, counted = Detections.from_file(results), _counted(prior)
    if (rate := _rate(target_rate, counted)) is not None and counted is not None:
        found = found.adjusted(counted, rate[0], tau)
    truth = GroundTruth(annotations, counted)
    if as_json:
        print_json(_measured(truth, found, caps, fixed=fixed, pool=pool))
        return
    if fixed or pool:
        most = int(np.unique(found.image_ids, return_counts=True)[1].max(initial=0))
        typer.echo(
            f"{results} has at most {most} detections per image: AP-fixed and AP-pool are of these, so if they were "
            "capped when they were made, they are lower than without a cap"
        )
    for kind in ("bbox", "segm"):
        if kind == "bbox" or (found.masks is not None and truth.has_masks):
            typer.echo(f"{kind}: {_numbers(truth.evaluate(found, kind))}")
            if caps or fixed or pool:
                _print_measures(kind, truth.match(found, kind), caps, fixed=fixed, pool=pool)


def _measured(truth: Any, found: Any, caps: list[int] | None, *, fixed: bool, pool: bool) -> dict[str, Any]:
    """The numbers by kind, box and mask, and by measure."""
    from equipoise.metrics.detection_measures import ap_at, ap_fixed, ap_pool

    made: dict[str, Any] = {}
    for kind in ("bbox", "segm"):
        if kind == "bbox" or (found.masks is not None and truth.has_masks):
            made[kind] = {"lvis": truth.evaluate(found, kind)}
            matches: Any = truth.match(found, kind) if caps or fixed or pool else None
            made[kind] |= {f"at {cap}": ap_at(matches, cap) for cap in caps or ()}
            made[kind] |= {"fixed": ap_fixed(matches)} if fixed else {}
            made[kind] |= {"pool": ap_pool(matches)} if pool else {}
    return made


def _print_measures(kind: str, matches: Any, caps: list[int] | None, *, fixed: bool, pool: bool) -> None:
    from equipoise.metrics.detection_measures import ap_at, ap_fixed, ap_pool, pool_calibration, scaled_cap

    scaled = scaled_cap(len(matches.instances))
    for cap in sorted({*caps, scaled}, reverse=True) if caps else ():
        words = ", LVIS's scaled to the classes" if cap == scaled else ""
        typer.echo(f"{kind}, {cap} per image{words}: {_numbers(ap_at(matches, cap))}")
    if fixed:
        typer.echo(f"{kind}, AP-fixed: {_numbers(ap_fixed(matches))}")
    if pool:
        typer.echo(f"{kind}, AP-pool: {_numbers(ap_pool(matches))}")
        for group, bins in pool_calibration(matches).items():
            seen = zip(bins.number, bins.edges, bins.edges[1:], bins.expected, bins.observed, strict=False)
            each = [f"{low:g}-{high:g} {100 * e:.1f} ({100 * p:.1f})" for n, low, high, e, p in seen if n]
            typer.echo(
                f"{kind}, scores of {group}, mean % (right at IoU 0.5, %): {', '.join(each)}; error "
                f"{100 * bins.error:.2f}"
            )


def _numbers(numbers: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {'–' if value is None else f'{value:.2f}'}" for name, value in numbers.items())


def _counted(path: Path | None) -> Any:
    """The images that hold each class of training annotations."""
    from equipoise.prior import Prior

    return None if path is None else Prior.from_coco(path)


def _rate(given: str | None, prior: Any) -> tuple[float | None] | None:
    """What --target-rate asks for: None where it is not given, (None,) for the mean rate."""
    if given is None:
        return None
    if prior is None:
        raise ValueError("--target-rate needs the training annotations, for how often each class occurs: --prior FILE")
    if given == "mean":
        return (None,)
    try:
        return (float(given),)
    except ValueError:
        raise ValueError(f"--target-rate {given}: expected a rate between 0 and 1, or mean") from None


@detect_app.command("table")
def table_(
    table: Annotated[str, typer.Argument(help="As own/train/voc2012-lt, for your train.json, or choices/voc2012-lt.")],
    results: o.Results = o.RESULTS,
) -> None:
    """Print any table of detectors from its records, as Markdown; those of the paper: equipoise table.

    \bequipoise detect table own/train/voc2012-lt
    """
    from equipoise.experiments.mosaic_lt import published as mosaic_lt
    from equipoise.experiments.table2 import published as table2
    from equipoise.experiments.table2.report import methods_table
    from equipoise.experiments.voc2012_lt import published as voc2012_lt
    from equipoise.training.detection_records import COLUMNS, MEASURES, DetectionRecord, columns_at
    from equipoise.training.records import read_records

    with refusing():
        records = read_records(results, table, DetectionRecord)
    if not records:
        raise typer.BadParameter(f"{results / table} holds no records")
    chosen = {**voc2012_lt.CHOICES, **mosaic_lt.CHOICES} if table.startswith("choices") else {}
    titles = chosen or table2.METHODS | mosaic_lt.METHODS
    titles |= {record.method: record.method for record in records if record.method not in titles}
    measured = [MEASURES, columns_at(records)] if any(record.AP_at for record in records) else []
    for columns in (COLUMNS, *measured):
        typer.echo(f"{methods_table(records, titles, columns=columns)}\n")


@detect_app.command()
@refusing()
def submit(
    weights: Annotated[Path, typer.Argument(help="A .weights.pt file that `equipoise run` kept.")],
    annotations: Annotated[Path, typer.Option(help="The file that lists the images and categories.")],
    images: Annotated[Path, typer.Option(help="The folder that its file names start from.")],
    out: Annotated[Path, typer.Option(help="Where the results go.")] = Path("results.json"),
    backbone: Backbone = None,
    stride: o.Stride = None,
    size: Size = None,
    prior: TrainingPrior = None,
    target_rate: TargetRate = None,
    tau: Tau = 1.0,
    device: o.Device = None,
) -> None:
    """Write what a detector finds as the results JSON that the LVIS test server and `detect eval` take.

    \bequipoise detect submit run.weights.pt --annotations lvis_v1_val.json --images coco
    """
    from equipoise.cli.detectors import workers_for
    from equipoise.data.coco import CocoImages
    from equipoise.training.detection import predict as find_objects
    from equipoise.training.progress import Status

    data = CocoImages(annotations, images)
    place = device_of(device)
    model = _load(weights, data.num_classes, backbone, stride, size).to(place)
    _adjust(model, prior, target_rate, tau, data.class_ids)
    with progress() as (_, report):
        began = time.monotonic()

        def tell(done: int) -> None:
            report(Status.at(done, len(data), 1, time.monotonic() - began, what="images"))

        found = find_objects(model, data, place, workers=workers_for(place.type), report=tell)
    write_text(out, json.dumps(found.to_results()))
    typer.echo(f"{len(found)} detections in {len(data)} images, in {out}")


def _load(weights: Path, num_classes: int, backbone: str | None, stride: str | None, size: int | None) -> Any:
    """The detector of a weights file. What is None is as it was trained, if the file's note is still beside it, else a
    ResNet-50 with its stride in the 3×3 convolutions, at 800 pixels."""
    from equipoise.models.mask_rcnn import detector, load_detector_weights, resnet_fpn, seesaw, sigmoid
    from equipoise.models.weights import read_tensors
    from equipoise.prior import Prior
    from equipoise.training.kept import note_of

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
    columns = len(tensors.get("roi_heads.box_predictor.cls_score.bias", ()))
    if size is not None:
        trained |= {"size": size, "longest": round(size * trained["longest"] / trained["size"])}
    model = detector(
        resnet_fpn(backbone or trained["backbone"], stride=stride or trained["stride"]),  # type: ignore[arg-type]
        num_classes,
        seesaw(Prior.uniform(num_classes)) if columns == num_classes + 1 else sigmoid(num_classes),
        masks=any("mask_predictor" in name for name in tensors),
        scaled=any(name.endswith("cls_score.scales") for name in tensors),
        min_size=trained["size"],
        max_size=trained["longest"],
    )
    load_detector_weights(model, tensors)
    return model.eval()


def _adjust(model: Any, path: Path | None, target_rate: str | None, tau: float, class_ids: Sequence[int]) -> None:
    """Take the shift of the training prior off a detector's logits, where it is asked for."""
    from equipoise.models.mask_rcnn import adjust_bias, adjusted_sigmoid

    prior = _counted(path)
    if (rate := _rate(target_rate, prior)) is None:
        return
    if model.roi_heads.classification.background_columns:
        raise ValueError("--target-rate moves the scores of sigmoids: this detector has a softmax")
    if list(prior.class_ids) != list(class_ids):
        raise ValueError(f"{path} and --annotations have different categories")
    adjust_bias(model, adjusted_sigmoid(prior, rate[0], tau).moved)  # type: ignore[arg-type]


@detect_app.command()
@refusing()
def predict(
    pictures: Annotated[list[Path], typer.Argument(help="Image files.")],
    weights: Weights,
    annotations: Annotated[Path, typer.Option(help="A COCO or LVIS file with the categories it was trained on.")],
    out: Annotated[Path, typer.Option(help="Folder for the drawn pictures.")] = Path("predictions"),
    threshold: Annotated[float, typer.Option(help="Draw what scores at least this.")] = 0.3,
    backbone: Backbone = None,
    stride: o.Stride = None,
    size: Size = None,
    prior: TrainingPrior = None,
    target_rate: TargetRate = None,
    tau: Tau = 1.0,
    device: o.Device = None,
) -> None:
    """Draw the boxes and masks that a detector finds on pictures.

    \bequipoise detect predict photo.jpg --weights run.weights.pt --annotations train.json
    """
    import torch

    from equipoise.data.coco import categories_of, read_image
    from equipoise.data.reading import read_json
    from equipoise.report.detections import draw_detections

    categories = categories_of(read_json(annotations), annotations)
    names = list(categories.values())
    twice = sorted({picture.stem for picture in pictures if sum(picture.stem == p.stem for p in pictures) > 1})
    if twice:
        raise ValueError(f"two pictures are named {twice[0]}: both would be drawn to {out / twice[0]}.png")
    place = device_of(device)
    model = _load(weights, len(names), backbone, stride, size).to(place)
    _adjust(model, prior, target_rate, tau, list(categories))
    missing = next((picture for picture in pictures if not picture.is_file()), None)
    if missing is not None:
        raise ValueError(f"there is no picture {missing}")
    for picture in pictures:
        image = read_image(picture)
        with torch.no_grad():
            found = model([image.to(place)])[0]
        target = out / f"{picture.stem}.png"
        with written_whole(target) as scratch:
            draw_detections(image, found, names, threshold=threshold).save(scratch)
        scores = found["scores"].tolist()
        number = sum(score >= threshold for score in scores)
        best = f"; the best score is {max(scores):.2g}, see --threshold" if scores and not number else ""
        typer.echo(f"{target}: {number} objects{best}")
