"""`equipoise detect`: evaluate and use detectors."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from equipoise.cli import options as o
from equipoise.cli.detect_measures import capped, lines, measured
from equipoise.cli.detect_pictures import beside
from equipoise.cli.shared import device_of, print_json, progress, refusing
from equipoise.files import write_text, written_whole

Weights = Annotated[Path, typer.Option(help="A .weights.pt file that `equipoise run` kept.")]
Backbone = Annotated[str | None, typer.Option(help="resnet50 or resnet101; by default as trained.")]
Size = Annotated[int | None, typer.Option(help="The shorter side to which images are resized.")]

TargetRate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Move sigmoid scores to this rate for every class, or mean; needs --prior."),
]
Softmax = Annotated[
    bool,
    typer.Option("--softmax", help="Move scores of a softmax with background to equal classes; needs --prior."),
]
Tau = Annotated[
    float | None, typer.Option(help="With --target-rate or --softmax: the share of the shift to apply; by default 1.")
]
TrainingPrior = Annotated[
    Path | None, typer.Option("--prior", help="The training annotations, for --target-rate or --softmax.")
]

detect_app = typer.Typer(
    help="Evaluate, export and draw the output of detectors; needs the extra detection.\n\n"
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
    softmax: Softmax = False,
    tau: Tau = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one line of JSON.")] = False,
) -> None:
    """Print the 13 LVIS numbers of a results file, for boxes and, if it has them, masks.

    \bequipoise detect eval results.json --annotations lvis_v1_val.json --prior lvis_v1_train.json
    equipoise detect eval results.json --annotations val.json --caps 300 50 --fixed --pool --json
    """
    from equipoise.metrics.detection import Detections, GroundTruth

    share = _share(tau, softmax or target_rate is not None)
    found, counted, said = Detections.from_file(results), _counted(prior), []
    truth = GroundTruth(annotations, counted)
    with _about(results):
        if (rate := _rate(target_rate, counted)) is not None and counted is not None:
            found = found.adjusted(counted, rate[0], share)
        if (shares := _shares(softmax, prior, target_rate)) is not None:
            found = found.adjusted_softmax(shares, share)
            said.append(f"{results} has one score per box: shifted as if the rest of the probability were background")
        if not truth.has_masks:
            truth.check_masks(found)
        if fixed or pool:
            said.append(f"{results} has {capped(found)}")
        if as_json:
            notes = {"notes": said} if said else {}
            print_json(measured(truth, found, caps, fixed=fixed, pool=pool) | notes)
            return
        said += lines(truth, found, caps, fixed=fixed, pool=pool)
    typer.echo("\n".join(said))


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Errors about the content of a file name the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _counted(path: Path | None) -> Any:
    """The images that hold each class of training annotations."""
    from equipoise.prior import Prior

    return None if path is None else Prior.from_coco(path)


def _rate(given: str | None, prior: Any) -> tuple[float | None] | None:
    """The value of --target-rate: None if it is not given, (None,) for the mean rate."""
    if given is None:
        return None
    if prior is None:
        raise ValueError("--target-rate needs to know how often each class occurs in training: pass --prior FILE")
    if given == "mean":
        return (None,)
    try:
        return (float(given),)
    except ValueError:
        raise ValueError(f"--target-rate {given}: expected a rate between 0 and 1, or mean") from None


def _share(tau: float | None, adjusts: bool) -> float:
    """The value of --tau; it is an error if there is no shift that it could be a share of."""
    if tau is not None and not adjusts:
        raise ValueError(f"--tau {tau:g} is the share of a shift: say of which one, with --target-rate or --softmax")
    if tau is not None and not math.isfinite(tau):
        raise ValueError(f"--tau {tau}: expected a finite number, 1 for the whole shift")
    return 1.0 if tau is None else tau


def _shares(softmax: bool, path: Path | None, target_rate: str | None) -> Any:
    """For --softmax: the share of each class among the training instances; None if it is not given."""
    from equipoise.prior import Prior

    if not softmax:
        return None
    if target_rate is not None:
        raise ValueError("--target-rate is for sigmoids, --softmax for a softmax: give the one that fits the detector")
    if path is None:
        raise ValueError("--softmax needs to know the share of each class in training: pass --prior FILE")
    return Prior.from_coco(path, by="instances")


@detect_app.command("table")
def table_(
    table: Annotated[str, typer.Argument(help="E.g. own/train/voc2012-lt for your train.json, or choices/voc2012-lt.")],
    results: o.Results = o.RESULTS,
) -> None:
    """Print any table of detectors from its records, as Markdown; for the paper's tables use equipoise table.

    \bequipoise detect table own/train/voc2012-lt
    """
    from equipoise.experiments.mosaic_lt import published as mosaic_lt
    from equipoise.experiments.table2 import published as table2
    from equipoise.experiments.table2.report import methods_table
    from equipoise.experiments.voc2012_lt import published as voc2012_lt
    from equipoise.training.detection_records import COLUMNS, MEASURES, DetectionRecord, columns_at
    from equipoise.training.records import read_records

    with refusing():
        moved = voc2012_lt.NAME if table == voc2012_lt.CUT else None
        records = read_records(results, table, DetectionRecord, named=moved)
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
    images: Annotated[Path, typer.Option(help="The folder that its file names are relative to.")],
    out: Annotated[Path, typer.Option(help="Where the results go.")] = Path("results.json"),
    backbone: Backbone = None,
    stride: o.Stride = None,
    size: Size = None,
    prior: TrainingPrior = None,
    target_rate: TargetRate = None,
    softmax: Softmax = False,
    tau: Tau = None,
    device: o.Device = None,
) -> None:
    """Write a detector's detections as a results JSON for the LVIS test server and `detect eval`.

    \bequipoise detect submit run.weights.pt --annotations lvis_v1_val.json --images coco
    """
    from equipoise.cli.detectors import workers_for
    from equipoise.data.coco import CocoImages
    from equipoise.training.detection import predict as find_objects
    from equipoise.training.progress import Status

    data = CocoImages(annotations, images)
    place = device_of(device)
    model = _load(weights, annotations, data.categories, backbone, stride, size).to(place)
    _adjust(model, prior, target_rate, softmax, tau, annotations, data.categories)
    with progress() as (_, report):
        began = time.monotonic()

        def tell(done: int) -> None:
            report(Status.at(done, len(data), 1, time.monotonic() - began, what="images"))

        found = find_objects(model, data, place, workers=workers_for(place.type), report=tell)
    write_text(out, json.dumps(found.to_results()))
    typer.echo(f"{len(found)} detections in {len(data)} images, in {out}")


def _load(
    weights: Path,
    annotations: Path,
    categories: dict[int, str],
    backbone: str | None,
    stride: str | None,
    size: int | None,
) -> Any:
    """The detector of a weights file, for the categories of the annotations. Options that are None are as in training,
    if the file's note is still beside it; otherwise a ResNet-50 with its stride in the 3×3 convolutions, at 800
    pixels."""
    from equipoise.data.coco import categories_of, check_same_categories
    from equipoise.models.mask_rcnn import (
        SoftmaxClassification,
        detector,
        load_detector_weights,
        resnet_fpn,
        seesaw,
        sigmoid,
    )
    from equipoise.models.weights import read_tensors
    from equipoise.prior import Prior
    from equipoise.training.kept import note_of

    tensors, note, num_classes = read_tensors(weights), note_of(weights), len(categories)
    trained: dict[str, Any] = {"backbone": "resnet50", "stride": "3x3", "size": 800, "longest": 1333}
    if note != weights and note.is_file():
        trained |= json.loads(note.read_text()).get("detector", {})
        if "categories" in trained:  # notes of earlier runs have none
            check_same_categories(categories, annotations, categories_of(trained, note), note)
    elif None in (backbone, stride, size):
        typer.echo(
            f"there is no {note.name} beside the weights: assuming a {backbone or trained['backbone']} with its stride "
            f"in the {stride or trained['stride']} convolutions, at {size or trained['size']} pixels",
            err=True,
        )
    regression = tensors.get("roi_heads.box_predictor.bbox_pred.weight")
    if regression is not None and len(regression) != 4 * num_classes:
        raise ValueError(f"{weights} has {len(regression) // 4} classes, the annotations have {num_classes}")
    columns = len(tensors.get("roi_heads.box_predictor.cls_score.bias", ()))
    part: Any = sigmoid(num_classes)
    if columns == num_classes + 1:
        plain = trained.get("classification") == SoftmaxClassification.__name__
        part = SoftmaxClassification() if plain else seesaw(Prior.uniform(num_classes))
    if size is not None:
        trained |= {"size": size, "longest": round(size * trained["longest"] / trained["size"])}
    model = detector(
        resnet_fpn(backbone or trained["backbone"], stride=stride or trained["stride"]),  # type: ignore[arg-type]
        num_classes,
        part,
        masks=any("mask_predictor" in name for name in tensors),
        scaled=any(name.endswith("cls_score.scales") for name in tensors),
        min_size=trained["size"],
        max_size=trained["longest"],
    )
    load_detector_weights(model, tensors)
    return model.eval()


def _adjust(
    model: Any,
    path: Path | None,
    target_rate: str | None,
    softmax: bool,
    tau: float | None,
    annotations: Path,
    categories: dict[int, str],
) -> None:
    """Subtract the shift of the training prior from a detector's logits, if requested."""
    from equipoise.data.coco import check_same_categories
    from equipoise.models.mask_rcnn import SigmoidClassification, SoftmaxClassification, adjust_bias, adjusted_sigmoid
    from equipoise.models.softmax_detectors import detector_shift

    share = _share(tau, softmax or target_rate is not None)
    prior = _counted(path)
    rate, shares = _rate(target_rate, prior), _shares(softmax, path, target_rate)
    if rate is None and shares is None:
        if path is not None:
            raise ValueError("--prior is for --target-rate or --softmax: give one of them, or leave it out")
        return
    part = model.roi_heads.classification
    if softmax and not isinstance(part, SoftmaxClassification):
        has = "sigmoids" if isinstance(part, SigmoidClassification) else "a softmax without background"
        raise ValueError(f"--softmax moves the scores of a softmax with background: this detector has {has}")
    if not softmax and not isinstance(part, SigmoidClassification):
        raise ValueError("--target-rate moves the scores of sigmoids: this detector has a softmax")
    trained = dict(zip(prior.class_ids, prior.class_names, strict=True))
    assert path is not None
    check_same_categories(categories, annotations, trained, path)
    if rate is not None:
        adjust_bias(model, adjusted_sigmoid(prior, rate[0], share).moved)  # type: ignore[arg-type]
    else:
        adjust_bias(model, detector_shift(shares, tau=share))


def _files_of(pictures: list[Path]) -> list[Path]:
    """The named image files, and those in named folders."""
    from equipoise.data.class_folders import IMAGES

    found: list[Path] = []
    for path in pictures:
        if not path.exists():
            raise ValueError(f"there is no image {path}")
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} holds no images: expected {', '.join(sorted(IMAGES))} files")
        found += inside
    return found


@detect_app.command()
@refusing()
def predict(
    pictures: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    weights: Weights,
    annotations: Annotated[Path, typer.Option(help="A COCO or LVIS file with the training categories.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("predictions"),
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Draw detections that score at least this.")] = 0.3,
    backbone: Backbone = None,
    stride: o.Stride = None,
    size: Size = None,
    prior: TrainingPrior = None,
    target_rate: TargetRate = None,
    softmax: Softmax = False,
    tau: Tau = None,
    device: o.Device = None,
) -> None:
    """Draw the boxes and masks that a detector finds in images.

    \bequipoise detect predict photo.jpg --weights run.weights.pt --annotations train.json
    """
    import torch

    from equipoise.data.coco import categories_of, read_image
    from equipoise.data.reading import read_json
    from equipoise.report.detections import draw_detections

    categories = categories_of(read_json(annotations), annotations)
    names = list(categories.values())
    pictures = _files_of(pictures)
    twice = sorted({picture.stem for picture in pictures if sum(picture.stem == p.stem for p in pictures) > 1})
    if twice:
        raise ValueError(f"two images are named {twice[0]}: both would be written to {out / twice[0]}.png")
    place = device_of(device)
    model = _load(weights, annotations, categories, backbone, stride, size).to(place)
    _adjust(model, prior, target_rate, softmax, tau, annotations, categories)
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


@detect_app.command()
@refusing()
def compare(
    first: Annotated[Path, typer.Argument(help="A JSON list of results in COCO's format.")],
    second: Annotated[Path, typer.Argument(help="Another results file for the same images.")],
    annotations: Annotated[Path, typer.Option(help="The COCO or LVIS file of the images.")],
    images: Annotated[Path, typer.Option(help="The folder that its file names are relative to.")],
    prior: Annotated[
        Path | None, typer.Option(help="The training annotations: for groups r, c, f where the file has none.")
    ] = None,
    image: Annotated[
        int | None, typer.Option(metavar="ID", help="The image; by default the one with the most rare classes, if any.")
    ] = None,
    names: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Names for the two; by default their file names.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the two pictures.")] = Path("compared"),
) -> None:
    """Draw the 20 best detections of two results files in an image, and the share of class groups among the best.

    \bequipoise detect compare plain.json balanced.json --annotations val.json --images photos --prior train.json
    """
    from equipoise.metrics.detection import Detections, GroundTruth
    from equipoise.metrics.detection_measures import group_shares, instance_shares
    from equipoise.report.compared import shares_figure
    from equipoise.report.figures import renderer, save

    titles = names or (first.stem, second.stem)
    if titles[0] == titles[1]:
        raise ValueError(f"both results are called {titles[0]}: tell them apart with --names A B")
    renderer()
    truth = GroundTruth(annotations, _counted(prior))
    if not truth.grouped:
        raise ValueError(f"{annotations} does not show which classes are rare: give the training annotations, --prior")
    results = {}
    for title, path in zip(titles, (first, second), strict=True):
        with _about(path):
            found = Detections.from_file(path)
            truth.check_masks(found)
            results[title] = found, truth.match(found, "bbox")
    shares = {title: group_shares(matches) for title, (_, matches) in results.items()}
    picture, said = beside(results, annotations, images, image)
    drawn, figure = out / "best-20.png", out / "shares.png"
    with written_whole(drawn) as scratch:
        picture.save(scratch)
    wanted = instance_shares(results[titles[0]][1])
    save(shares_figure(shares, wanted), figure)
    typer.echo(f"{drawn}: {said}\n{figure}: shares of r, c, f among the best of each image")
    for k in (1, 10, 100):
        each = (f"{title} {_shares_at(found, k)}" for title, found in shares.items())
        typer.echo(f"best {k}, % of r, c, f: {', '.join(each)}")
    typer.echo(f"instances, % of r, c, f: {' / '.join(f'{100 * share:.1f}' for share in wanted.values())}")


def _shares_at(shares: dict[str, Any], k: int) -> str:
    return " / ".join(
        "–" if len(found) < 1 else f"{100 * found[min(k, len(found)) - 1]:.1f}" for found in shares.values()
    )
