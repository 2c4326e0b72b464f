"""`equipoise predict`: use a model that `equipoise train` left."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from equipoise.cli import options as o
from equipoise.cli.shared import device_of, perhaps, refusing
from equipoise.data.reading import counted, visible
from equipoise.files import write_text

if TYPE_CHECKING:
    from equipoise.prior import Prior
    from equipoise.serving.rebalanced import Rebalanced

BATCH = 64


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of one of its methods.")],
    photos: Annotated[
        list[Path], typer.Argument(help="Photos, folders of photos, or lists of paths (.txt: one per line).")
    ],
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that paths in lists are relative to.")
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="NAME", help="The method, if the run has several.")] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="PRIOR",
            help="The class frequencies where the model is used: uniform, or counts or labels in any file that inspect "
            "reads. By default equal for adjusted and after a balanced loss, those of training after a plain loss.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Classes per photo.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write .csv or .jsonl there instead of printing CSV.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    device: o.Device = None,
) -> None:
    """Classify photos with a trained model, with --target for other class frequencies than those of training.

    A photo that does not exist or cannot be read has no label but an error, in the column or key `error`; the others
    are still classified, and the exit status is 1. It is 2 if nothing could be done.

    \b
    equipoise predict runs/first --method balanced_softmax photo.jpg
    equipoise predict runs/first --method balanced_softmax holiday/ --top 3 --out holiday.csv
    equipoise predict runs/first --method softmax camera.txt --images camera/ --target counts-at-the-camera.json
    """
    if out is not None and out.suffix not in (".csv", ".jsonl"):
        raise typer.BadParameter(f"--out {out}: expected .csv or .jsonl")
    if as_json and out is not None and out.suffix == ".csv":
        raise typer.BadParameter("--json writes JSON lines: name the file .jsonl")
    if images is not None and not images.is_dir():
        raise typer.BadParameter(f"--images {images} is not a folder")
    place = device_of(device)
    with refusing():
        served, size = loaded(run, method, target)
        top = min(top, len(served.shift))
        paths = list(photo_paths(photos, images))
        if not paths:
            raise ValueError("no photos were named: the list is empty")
        rows = list(predictions(served.to(place), size, paths, top))
        lines = as_json or (out is not None and out.suffix == ".jsonl")
        text = "".join(json.dumps(row) + "\n" for row in rows) if lines else as_csv(rows, top)
        if out is not None:
            write_text(out, text)
    if out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"{counted(len(rows), 'photo')}: {visible(out)}")
    bad = sum("error" in row for row in rows)
    if bad:
        typer.echo(f"{bad:,} of {counted(len(rows), 'photo')} could not be read: see the errors", err=True)
        raise typer.Exit(1)


class ModelClasses(NamedTuple):
    """The classes of a model, for reading a prior in their order."""

    path: Path
    num_classes: int
    columns: list[str] | None


def loaded(run: Path, method: str | None, target: Path | None) -> tuple[Rebalanced, int]:
    """The model, for the wanted class frequencies, and the size of the pictures it takes."""
    from equipoise.training.run_folder import load_run, method_folders

    every = method_folders(run)
    if not every:
        raise ValueError(f"{run} holds no trained model: expected a folder that equipoise train wrote")
    folders, names = every, ", ".join(folder.name for folder in every)
    if method is not None:
        folders = [folder for folder in every if folder.name == method]
    if not folders:
        near = perhaps([folder.name for folder in every], method or "")
        raise ValueError(f"{run} holds no method {method!r}: expected one of {names}{near}")
    if len(folders) > 1:
        raise ValueError(f"{run} holds several methods: choose one with --method, {names}")
    served, note = load_run(folders[0])
    if target is not None:
        classes = None if served.class_names is None else list(served.class_names)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            served.target = wanted_prior(target, ModelClasses(folders[0], note.num_classes, classes))
        for one in notes:
            typer.echo(visible(f"note: {one.message}"), err=True)
    return served, note.size


def wanted_prior(target: Path, classes: ModelClasses) -> Prior:
    """The prior that --target names, with the classes in the model's order."""
    from equipoise.data.prediction_priors import prior_of_columns
    from equipoise.prior import Prior

    if str(target) == "uniform":
        return Prior.uniform(classes.num_classes, class_names=classes.columns)
    return prior_of_columns(target, classes)


def photo_paths(given: list[Path], images: Path | None = None) -> Iterator[Path]:
    """Every photo that was named, in a folder or a list; paths in lists are relative to `images`, or to the list."""
    from equipoise.data.class_folders import is_image
    from equipoise.data.sources import list_lines

    for path in given:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if is_image(file.name) and file.is_file())
            if not found:
                raise ValueError(f"{path} holds no photos")
            yield from found
        elif path.suffix.lower() == ".txt":
            yield from (listed(images or path.parent, line) for line in list_lines(path))
        elif path.suffix.lower() in (".csv", ".tsv", ".parquet", ".json"):
            raise ValueError(f"{path} is not a photo: expected photos, folders, or a .txt with one path per line")
        else:  # also one that does not exist: a row with an error, as in a list
            yield path


def listed(folder: Path, line: str) -> Path:
    """The photo of a list's line: a path, or a path and a label as in the lists that training reads."""
    whole, without = folder / line, folder / line.rsplit(maxsplit=1)[0]
    return without if not whole.exists() and without.is_file() else whole


def predictions(served: Rebalanced, size: int, paths: list[Path], top: int) -> Iterator[dict[str, Any]]:
    """The likeliest classes of every photo; one that cannot be read has an error instead."""
    import torch

    from equipoise.data.image_files import decode
    from equipoise.data.images import ImageList
    from equipoise.training.images import middle, stored_side

    names = served.class_names or tuple(map(str, range(len(served.shift))))
    for start in range(0, len(paths), BATCH):
        part = paths[start : start + BATCH]
        images = ImageList.of_files(part)
        decoded = decode(images, stored_side(size))
        pixels = torch.from_numpy(decoded.pixels).to(served.shift.device)
        with torch.inference_mode():
            shares = served(middle(pixels, size).float() / 255).softmax(1).cpu()
        best = shares.topk(min(top, len(names)))
        reasons = {bad.index: bad.reason for bad in decoded.bad}
        for row, path in enumerate(part):
            if row in reasons:
                yield {"path": str(path), "error": reasons[row]}
                continue
            found = [
                {"label": names[index], "probability": round(share, 6)}
                for share, index in zip(best.values[row].tolist(), best.indices[row].tolist(), strict=True)
            ]
            yield {"path": str(path), "predictions": found}


def as_csv(rows: list[dict[str, Any]], top: int) -> str:
    """A line per photo: path, label and probability of the likeliest classes, and why a photo has none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [""] if top == 1 else [f"_{place}" for place in range(1, top + 1)]
    writer.writerow(["path", *(f"{word}{number}" for number in numbers for word in ("label", "probability")), "error"])
    for row in rows:
        if "error" in row:
            writer.writerow([visible(row["path"]), *[""] * 2 * len(numbers), row["error"]])
        else:
            cells = (cell for one in row["predictions"] for cell in (one["label"], f"{one['probability']:.4f}"))
            writer.writerow([visible(row["path"]), *cells, ""])
    return text.getvalue()
