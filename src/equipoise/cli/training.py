"""Train image classifiers: what `equipoise train` does."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from torch import nn

from equipoise.cli.image_sources import ImageSource, read_lists, readable, shared_files, size_for
from equipoise.cli.options import KINDS, RunOptions
from equipoise.cli.queues import missing_cells, train_cells
from equipoise.cli.shared import device_of, perhaps, refusing
from equipoise.cli.train import TrainOptions
from equipoise.cli.trained import conclude, few_images, told_as_json
from equipoise.data.reading import counted, read_json, shown
from equipoise.files import write_text
from equipoise.models.classifiers import SMALL, has_small_stem, make_backbone
from equipoise.models.processes import join_processes, leave_processes, world
from equipoise.models.weights import stride_by_name
from equipoise.training.augmentation.photographs import AUGMENTATIONS
from equipoise.training.image_records import ImageRecord, in_full
from equipoise.training.images import Finished, FrozenClassification, ImageClassification, ImageData, decodes_on
from equipoise.training.kinds import Settings
from equipoise.training.methods import methods
from equipoise.training.progress import Status
from equipoise.training.recipe import MethodCell, Recipe
from equipoise.training.records import Recorded
from equipoise.training.run_folder import export_run, source_name, weights_file, write_run
from equipoise.training.weights import weights_digest

LARGE_SET = 20_000  # images: from here on batches are large by default
RUN = "run.json"
WITH_PRIOR = ("balanced_softmax", "balanced_sigmoid", "adjusted")  # no prior is left in class-balanced samples
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
IN_JSON = {"iterations": "iteration", "images whose features are computed": "features"}  # what progress is counted in
ONE_CLASS = ("ldam", "focal", "eql")  # no mixed labels
NOT_OWN = ("out", "on_bad_image", "export", "compiled", "resident", "decode", "workers", "budget", "device")


def train_images(options: TrainOptions, as_json: bool = False) -> None:
    """Train what was asked for, and write the folder of the run."""
    check_words(options)
    place = join_processes(device_of(options.device))
    leads = world()[1] == 0
    shown = json_lines() if as_json else None
    say = told_as_json if as_json else typer.echo
    log: Callable[[str], None] = say if leads else lambda text: None
    with refusing():
        if options.decode == "gpu":
            decodes_on(place, "gpu")  # refused before anything is read
        if options.weights is not None:
            options = replace(options, weights=weights_file(options.weights))
        images = images_of(options)
        train, test, where = read_lists(images)
        before = run_before(options.out)
        size = options.size or before.get("size") or size_for(train, place)
        made_from = described(options, size) | {"trained_on": train.digest, "judged_on": test.digest}
        check_same(options.out, before, made_from)  # before weights are downloaded
        stride: Any = options.stride
        start = make_backbone(options.model, size, options.weights, stride=stride, log=log)
        made_from["start_weights"] = None if options.weights is None else weights_digest(start[0])
        check_same(options.out, before, made_from)
        data = readable(images, ImageData(train, test, size, where), place, log)
        describe(data, options, log)
        check_batch(options, data, start[0])
        recipes = recipes_for(options, data, start[0])
    wanted = chosen(options, recipes)
    cells = [MethodCell(method, options.seed) for method in wanted]
    table = before.get("table") or options.out.resolve().name  # the name stays, whatever the folder is called later
    kept = RunOptions(
        out=options.out / "records.jsonl", results=options.out / "results", budget=options.budget,
        iterations=options.iterations, device=options.device, checkpoints=options.out / "checkpoints",
    )  # fmt: skip
    recorded = Recorded(kept.out, kept.results, table, ImageRecord, KINDS, options.iterations)
    missing = missing_cells(cells, recorded, out="folder", log=log)
    if missing:
        if leads:
            with refusing():
                noted = made_from | {"table": table}
                write_text(options.out / RUN, json.dumps(noted, indent=1, default=str) + "\n")

        def make(settings: Settings) -> ImageClassification:
            return kind_of(options, table, recipes, data, start, settings)

        what = announced([cell.method for cell in missing], wanted, options.iterations)
        train_cells(missing, kept, recorded, place, make, leads=leads, shown=shown, log=log, what=what)
    with refusing():
        done = conclude(options, table, wanted, data.test, as_json) if leads else {}
    leave_processes()
    if leads and options.budget is None and len(done) < len(wanted):  # or it is trained by another process
        lost = ", ".join(name for name in wanted if name not in done)
        rate = next(iter(recipes.values())).lr
        log(f"no model was trained for {lost}. If the loss became infinite, try an --lr below {rate:g}")
        raise typer.Exit(1)


# -------------------------------------------------------------------- what was asked for


def images_of(options: TrainOptions) -> ImageSource:
    """Where the images are."""
    return ImageSource(
        source=options.source,
        train=options.train,
        val=options.val,
        images=options.images,
        held_out=options.held_out,
        on_bad_image=options.on_bad_image,
        workers=options.workers,
        resident=options.resident,
        decode=options.decode,
    )


def check_words(options: TrainOptions) -> None:
    """Refuse words that mean nothing, before anything is read."""
    expected = {
        "--optimizer": (options.optimizer, ("sgd", "adamw")),
        "--sampler": (options.sampler, ("instance", "class_balanced")),
        "--decode": (options.decode, ("auto", "cpu", "gpu")),
        "--on-bad-image": (options.on_bad_image, ("skip", "refuse")),
        "--augment": (options.augment or AUGMENTATIONS[0], AUGMENTATIONS),
    }
    for option, (given, words) in expected.items():
        if given not in words:
            expects = f"expected {', '.join(words[:-1])} or {words[-1]}"
            raise typer.BadParameter(f"{option} {given}: {expects}{perhaps(words, given)}")
    names = methods(Recipe())
    for name in options.losses:
        if name not in (*names, "all"):
            expects = f"expected {', '.join(names)} or all"
            raise typer.BadParameter(f"--loss {name}: {expects}{perhaps((*names, 'all'), name)}")
    if (options.source is None) == (options.train is None):
        raise typer.BadParameter("which images? Give a folder or a list, or --train and --val")
    if not 0 < options.held_out < 1:
        raise typer.BadParameter(f"--held-out {options.held_out}: expected a share between 0 and 1")
    if options.freeze and options.weights is None:
        raise typer.BadParameter("--freeze would keep random weights: pass --weights FILE or --weights pretrained")
    if options.freeze and (options.mixup or options.cutmix or options.augment not in (None, "none")):
        raise typer.BadParameter(
            "--freeze trains on features, which are computed once: leave --augment, --mixup and --cutmix out"
        )
    check_numbers(options)
    check_weights(options)
    balanced = [name for name in options.losses if name in WITH_PRIOR]
    if options.sampler == "class_balanced" and balanced:
        raise typer.BadParameter(
            f"{balanced[0]} already balances the classes; class-balanced sampling would balance them twice: "
            "leave --sampler out, or train softmax with it"
        )


def check_weights(options: TrainOptions) -> None:
    """Refuse a weights file that does not exist, and losses that do not take mixed labels."""
    if options.weights not in (None, "pretrained") and not Path(str(options.weights)).exists():
        meant = perhaps(["pretrained"], str(options.weights))
        raise typer.BadParameter(f"there is no weights file {options.weights}{meant}")
    single = [name for name in options.losses if name in ONE_CLASS]
    if single and (options.mixup or options.cutmix):
        raise typer.BadParameter(f"{single[0]} takes one class per image: leave --mixup and --cutmix out, or that loss")


def check_numbers(options: TrainOptions) -> None:
    """Refuse numbers that nothing can be trained with."""
    positive = {"--lr": options.lr, "--epochs": options.epochs}
    for option, value in positive.items():
        if value is not None and not 0 < value < 1e6:
            raise typer.BadParameter(f"{option} {value:g}: expected a number above 0 and below 1,000,000")
    others = {"--weight-decay": options.weight_decay, "--mixup": options.mixup, "--cutmix": options.cutmix}
    for option, value in others.items():
        if not 0 <= value < 1e6:
            raise typer.BadParameter(f"{option} {value:g}: expected a number of at least 0 and below 1,000,000")
    if options.ema >= 1:
        raise typer.BadParameter(f"--ema {options.ema}: the weights would never change; 0.999 is usual")


def batch_for(options: TrainOptions, data: ImageData) -> int:
    """Images per step: as many as were asked for, in equal parts for every process and part of a batch."""
    number = len(data.train)
    batch = min(options.batch or (256 if number >= LARGE_SET else 64), number)
    parts = world()[0] * options.accumulate
    return max(parts, batch // parts * parts)


def check_batch(options: TrainOptions, data: ImageData, network: nn.Module) -> None:
    """Refuse batches of which each process and part gets one image, if the network normalises over batches."""
    rows = batch_for(options, data) // (world()[0] * options.accumulate)
    if rows < 2 and not options.freeze and any(isinstance(module, BATCH_NORMS) for module in network.modules()):
        raise ValueError(
            f"{options.model} normalises over batches, which takes at least 2 images per process and part, not {rows}: "
            "raise --batch, or lower --accumulate"
        )


def recipes_for(options: TrainOptions, data: ImageData, network: nn.Module) -> dict[str, Recipe]:
    """Every method, on the recipe that the options describe, with the stem of the network that it starts from."""
    number, batch = len(data.train), batch_for(options, data)
    iterations = max(1, math.ceil(options.epochs * number / batch))
    rate = (
        options.lr
        or (0.001 if options.optimizer == "adamw" else 0.1 if options.weights is None else 0.02) * batch / 256
    )
    base = Recipe(
        sampler=options.sampler,  # type: ignore[arg-type]
        batch_size=batch,
        iterations=iterations,
        warmup=min(iterations // 10, 1000),
        first_lr=0.0,
        lr=rate,
        nesterov=options.optimizer == "sgd",
        weight_decay=options.weight_decay,
        model=options.model,
        size=data.size,
        full_stem=options.weights is not None and not has_small_stem(network),
        stride="1x1" if (options.stride or stride_by_name(options.weights)) == "1x1" else None,
        augmentation=options.augment or ("crop" if data.size <= SMALL else "resized"),
        optimizer=options.optimizer,  # type: ignore[arg-type]
        ema=options.ema,
        mixup=options.mixup,
        cutmix=options.cutmix,
        accumulate=options.accumulate,
    )
    return methods(base)


def chosen(options: TrainOptions, recipes: Mapping[str, Recipe]) -> list[str]:
    """The methods to train, in the order asked for; what costs nothing beside softmax comes along with it."""
    names = list(recipes) if "all" in options.losses else list(dict.fromkeys(options.losses))
    if "softmax" in names and "adjusted" not in names:
        names.insert(names.index("softmax") + 1, "adjusted")
    if options.sampler == "class_balanced":
        names = [name for name in names if name not in WITH_PRIOR]
    if options.mixup or options.cutmix:
        names = [name for name in names if name not in ONE_CLASS]
    return names


def announced(missing: list[str], wanted: list[str], iterations: int | None) -> str:
    """What is going to be trained.

    >>> announced(["softmax", "adjusted"], ["softmax", "adjusted"], None)
    '2 models: softmax, adjusted (no training)'
    >>> announced(["adjusted"], ["adjusted"], 1)
    '1 model: adjusted; a smoke test of 1 iteration'
    """
    free = {"adjusted"} if "softmax" in wanted else set()
    names = ", ".join(f"{name} (no training)" if name in free else name for name in missing)
    smoke = "" if iterations is None else f"; a smoke test of {counted(iterations, 'iteration')}"
    return f"{counted(len(missing), 'model')}: {names}{smoke}"


# -------------------------------------------------------------------- the folder of the run


def described(options: TrainOptions, size: int) -> dict[str, Any]:
    """What makes a run that run, as plain data."""
    content = {name: value for name, value in asdict(options).items() if name not in NOT_OWN}
    paths = [name for name in ("source", "train", "val", "images", "weights") if content[name]]
    absolute = {name: str(Path(content[name]).resolve()) for name in paths if content[name] != "pretrained"}
    augment = "none" if options.freeze else options.augment
    return content | {"size": size, "augment": augment} | absolute


def run_before(out: Path) -> dict[str, Any]:
    """What the run in the folder was made from; nothing where there is none. Other folders are refused."""
    path = out / RUN
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: name a folder")
    above = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = "is a file" if not above.is_dir() else "may not be written to"
        raise ValueError(f"--out {out} cannot be made, as {above} {why}: name another folder")
    if not path.is_file():
        if out.is_dir() and any(not entry.name.startswith(".") for entry in out.iterdir()):
            raise ValueError(f"--out {out} holds other files: name a new folder")
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not describe a run: name another folder")
    return content


def check_same(out: Path, before: Mapping[str, Any], made_from: Mapping[str, Any]) -> None:
    """Refuse the folder of another run; this run is resumed, perhaps with other losses."""
    now = json.loads(json.dumps(made_from, default=str))
    other = [name for name in now if name != "losses" and before.get(name) != now[name]] if before else []
    if other:
        changes = ", ".join(f"{name} {before.get(name)}, now {now[name]}" for name in other[:3])
        raise ValueError(f"--out {out} holds another run ({changes}): name another folder")


def describe(data: ImageData, options: TrainOptions, log: Any) -> None:
    prior = data.train.prior
    groups = ", ".join(f"{len(members)} {name}" for name, members in prior.groups().items())
    most, least = int(prior.counts.max()), int(prior.counts.min())
    where = in_full(data.evaluated_on).removesuffix(" images")
    log(
        f"{len(data.train):,} training images, {len(data.test):,} evaluation images ({where}); "
        f"{counted(prior.num_classes, 'class')} with {most:,} down to {least:,} images: {groups}"
    )
    unseen = [data.test.class_names[index] for index in np.flatnonzero(data.test.prior.counts == 0)]
    if unseen:
        log(f"{counted(len(unseen), 'class')} without an evaluation image, trained but not evaluated: {shown(unseen)}")
    chosen = "" if options.size is not None else " (chosen here; --size sets another)"
    both = shared_files(data.train, data.test)
    if both:
        log(f"WARNING: {both:,} evaluation images are also training images: accuracy will look too good")
    log(f"{options.model} at {data.size} × {data.size} pixels{chosen}")
    batch = batch_for(options, data)
    if options.batch not in (None, batch):
        why = "there are no more images" if batch == len(data.train) else "every process and part gets the same number"
        log(f"batches of {batch:,} images instead of {options.batch:,}: {why}")
    if options.weights is None and (advice := few_images(len(data.train), options.model)):
        log(advice)


def kind_of(
    options: TrainOptions,
    table: str,
    recipes: Mapping[str, Recipe],
    data: ImageData,
    start: tuple[nn.Module, int],
    settings: Settings,
) -> ImageClassification:
    """The kind of runs for the queue; each leaves its folder as it is judged."""

    def deliver(finished: Finished, record: ImageRecord) -> None:
        folder = options.out / finished.cell.method
        write_run(folder, finished, record, data.test)
        if options.export:
            export_run(folder)

    backbone, width = start
    shared: dict[str, Any] = {"compiled": options.compiled, "deliver": deliver}
    if options.weights is None:
        return ImageClassification(table, recipes, data, settings, **shared)
    shared["starts_from"] = source_name(options.weights)
    if options.freeze:
        shared |= {"network": options.model, "backbone": backbone, "width": width}
        return FrozenClassification(table, recipes, data, settings, **shared)
    tensors = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    return ImageClassification(table, recipes, data, settings, start=tensors, **shared)


@contextmanager
def json_lines() -> Iterator[tuple[Callable[[str], None], Callable[[Status], None]]]:
    """How to say something and how to report progress, as lines of JSON."""

    def report(status: Status) -> None:
        speed, left = round(status.images_a_second, 1), round(status.seconds_to_go, 1)
        told = {IN_JSON.get(status.what, status.what): status.done, "of": status.iterations}
        typer.echo(json.dumps(told | {"images_per_second": speed, "seconds_to_go": left}))

    yield told_as_json, report
