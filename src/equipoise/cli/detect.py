"""`equipoise detect`: evaluate and use detectors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import options as o
from equipoise.cli.detect_measures import capped, lines, measured
from equipoise.cli.detect_models import PRIOR_FOR_GROUPS, Network, Shift, ShiftOfResults, adjust, load, prior_of
from equipoise.cli.detect_pictures import beside
from equipoise.cli.option_fields import fields_as_options
from equipoise.cli.shared import device_of, print_json, progress, refusing
from equipoise.files import write_text, written_whole

detect_app = typer.Typer(
    help="Evaluate, export and draw the output of detectors; needs the extra detection.\n\n"
    "\bequipoise detect eval results.json --annotations val.json",
    no_args_is_help=True,
)


class CapsCommand(o.SeedsCommand):
    """A command that takes `--caps 300 50` for `--caps 300 --caps 50`."""

    takes_several = "--caps"


@detect_app.command("eval", cls=CapsCommand)
@fields_as_options
@refusing()
def evaluate(
    results: Annotated[Path, typer.Argument(help="A JSON list of results in COCO's format.")],
    annotations: Annotated[Path, typer.Option(help="The COCO or LVIS file to evaluate against.")],
    shift: ShiftOfResults,
    caps: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="AP of the best N detections per image: --caps 300 50.")
    ] = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="AP-fixed: the 10,000 best per class, no cap.")] = False,
    pool: Annotated[bool, typer.Option("--pool", help="AP-pool: all classes in one ranking, and calibration.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one line of JSON.")] = False,
) -> None:
    """Print the 13 LVIS numbers of a results file, for boxes and, if it has them, masks.

    \bequipoise detect eval results.json --annotations lvis_v1_val.json --prior lvis_v1_train.json
    equipoise detect eval results.json --annotations val.json --caps 300 50 --fixed --pool --json
    """
    from equipoise.metrics.detection import Detections, GroundTruth

    share = shift.strength
    found, counted, said = Detections.from_file(results), prior_of(shift.prior), []
    truth = GroundTruth(annotations, counted)
    with _about(results):
        if (rate := shift.rate(counted)) is not None and counted is not None:
            found = found.adjusted(counted, rate[0], share)
        if (shares := shift.class_shares()) is not None:
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
@fields_as_options
@refusing()
def submit(
    weights: Annotated[Path, typer.Argument(help="A .weights.pt file that `equipoise run` kept.")],
    annotations: Annotated[Path, typer.Option(help="The file that lists the images and categories.")],
    images: Annotated[Path, typer.Option(help="The folder that its file names are relative to.")],
    *,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = Path("results.json"),
    network: Network,
    shift: Shift,
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
    model = load(weights, annotations, data.categories, network).to(place)
    adjust(model, shift, annotations, data.categories)
    with progress() as (_, report):
        began = time.monotonic()

        def tell(done: int) -> None:
            report(Status.at(done, len(data), 1, time.monotonic() - began, what="images"))

        found = find_objects(model, data, place, workers=workers_for(place.type), report=tell)
    write_text(out, json.dumps(found.to_results()))
    typer.echo(f"{len(found)} detections in {len(data)} images, in {out}")


def _files_of(pictures: list[Path]) -> list[Path]:
    """The named image files, and those in named folders."""
    from equipoise.data.class_folders import IMAGES, is_image

    found: list[Path] = []
    for path in pictures:
        if not path.exists():
            raise ValueError(f"there is no image {path}")
        inside = sorted(file for file in path.iterdir() if is_image(file.name)) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} holds no images: expected {', '.join(sorted(IMAGES))} files")
        found += inside
    return found


@detect_app.command()
@fields_as_options
@refusing()
def predict(
    pictures: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    weights: Annotated[Path, typer.Option(help="A .weights.pt file that `equipoise run` kept.")],
    annotations: Annotated[Path, typer.Option(help="A COCO or LVIS file with the training categories.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("predictions"),
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Draw detections that score at least this.")] = 0.3,
    network: Network,
    shift: Shift,
    device: o.Device = None,
) -> None:
    """Draw the boxes and masks that a detector finds in images.

    \bequipoise detect predict photo.jpg --weights run.weights.pt --annotations train.json
    """
    import torch

    from equipoise.data.coco import categories_of, read_image
    from equipoise.data.reading import read_json, twice
    from equipoise.report.detections import draw_detections

    categories = categories_of(read_json(annotations), annotations)
    names = list(categories.values())
    pictures = _files_of(pictures)
    if (name := twice(picture.stem for picture in pictures)) is not None:
        raise ValueError(f"two images are named {name}: both would be written to {out / name}.png")
    place = device_of(device)
    model = load(weights, annotations, categories, network).to(place)
    adjust(model, shift, annotations, categories)
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
    prior: Annotated[Path | None, PRIOR_FOR_GROUPS] = None,
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
    truth = GroundTruth(annotations, prior_of(prior))
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
