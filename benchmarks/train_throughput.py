"""How much of the bare training step `equipoise train` keeps: images per second, by where the images are.

python benchmarks/train_throughput.py                    ResNet-18 at 64 px and ResNet-50 at 224 px
python benchmarks/train_throughput.py --out FILE.json    also written there
python benchmarks/train_throughput.py --table FILE.json  such a record as a table

bare            the captured step alone, on a batch that stays (on a CPU: the step as it is)
resident        decoded images on the device: drawn, augmented and trained on, as a run does it
streamed        JPEG files of about 500 × 375 pixels, made for it and read again and again from the page cache, by
                worker processes; decoded by these (cpu) or on the device (gpu), then as above
decoding alone  the same without training
reading alone   the same without decoding, as it is done for decoding on the device

What bounds a streamed run is the slowest of these three, each measured alone: if the run keeps up with it, nothing
else does. Worker processes decode a batch each, so batches come in bursts, one per worker: whole rounds of them are
counted, at least three. Without a GPU "gpu" is the same code on the CPU, which says nothing of a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from equipoise.data.gpu_images import EncodedStream, GpuDecoder, collated, why_not_on
from equipoise.data.image_files import decode
from equipoise.data.images import ImageList, read_images
from equipoise.prior import Prior
from equipoise.training.classification import Training
from equipoise.training.images import ImageData, stored_side, training_set
from equipoise.training.recipe import Recipe
from equipoise.training.records import hardware, versions
from equipoise.training.sets import ImageSet, Photographs, StreamedSet


@dataclass(frozen=True)
class Shape:
    model: str
    size: int
    batch: int

    def __str__(self) -> str:
        return f"{self.model} at {self.size} px, batch {self.batch}"


SHAPES = (Shape("resnet18", 64, 256), Shape("resnet50", 224, 256))
SIDES = ((500, 375), (375, 500), (500, 333))
AUGMENTATIONS = {64: ("crop", "randaugment-crop"), 224: ("resized", "randaugment")}


def random_set(size: int, number: int, device: torch.device) -> ImageSet:
    """Noise of ten classes, as it is kept for a model that sees `size` pixels."""
    labels = np.arange(number) % 10
    side = stored_side(size)
    images = torch.randint(0, 256, (number, 3, side, side), dtype=torch.uint8, device=device)
    return ImageSet(labels, torch.from_numpy(labels).to(device), Prior.from_labels(labels), size, side, images=images)


def write_photographs(folder: Path, number: int) -> ImageList:
    """JPEG files of about 500 × 375 pixels, three shapes, with the detail of photographs: noise of several scales."""
    for label in range(10):
        (folder / f"class{label}").mkdir()

    def write(index: int) -> None:
        random = np.random.default_rng(index)
        width, height = SIDES[index // 10 % len(SIDES)]
        pixels = np.zeros((height, width, 3), np.float32)
        for scale in (4, 16, 64):
            noise = random.integers(0, 256, (height // scale + 1, width // scale + 1, 3), np.uint8)
            pixels += np.asarray(Image.fromarray(noise).resize((width, height)), np.float32)
        name = folder / f"class{index % 10}" / f"{index}.jpg"
        Image.fromarray((pixels / 3).astype(np.uint8)).save(name, quality=90)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(number)))
    return read_images(folder)


def rate(
    step: Callable[[], int],
    seconds: float,
    workers: int = 1,
    warm: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Batches per second of `step`, which returns how many it did, from the end of one step to the end of another.

    The first three steps and the first `warm` rounds of `workers` batches are not counted. Then whole rounds are, at
    least three, for `seconds` or longer; where steps and rounds seldom end together, after 3 · `seconds` any will do.
    """
    number, done = 0, 0
    while number < 3 or done < warm * workers:
        done += step()
        number += 1
    start, done = clock(), 0
    while True:
        done += step()
        took = clock() - start
        if done >= 3 * workers and took >= seconds and (done % workers == 0 or took >= 3 * seconds):
            return done / took


def speed(run: Training, step: Callable[[], int], seconds: float, workers: int = 1) -> float:
    """Images per second of a run, whose `step` returns how many iterations it did."""
    found = rate(step, seconds, workers, warm=5) * run.batch_size  # worker processes have four rounds ready
    run.wait()
    return found


def bare_step(run: Training) -> Callable[[], int]:
    def step() -> int:
        with run._on_stream():
            run._slot.zero_()
            for _ in range(run.chunk):
                run._step() if run._graph is None else run._graph.replay()
        run.wait()  # `advance` waits itself where too much is queued
        return run.chunk

    return step


def whole_step(run: Training) -> Callable[[], int]:
    def step() -> int:
        before = run.iteration
        run.advance()
        return run.iteration - before

    return step


def begun(shape: Shape, data: Photographs, augmentation: str) -> Training:
    """A run that does not end soon."""
    recipe = Recipe(model=shape.model, size=shape.size, batch_size=shape.batch, iterations=20_000, warmup=0, lr=1e-4)
    return Training(replace(recipe, nesterov=True, augmentation=augmentation), data, seed=0)


def streamed_speeds(
    shape: Shape, files: ImageList, device: torch.device, asked: argparse.Namespace
) -> dict[str, float]:
    """Training from files, and parts of it alone, decoded by the workers and on the device."""
    found: dict[str, float] = {}
    workers = max(asked.workers, 1)
    for where in ("cpu", "gpu"):
        data = ImageData(files, files, shape.size, workers=asked.workers, resident=False, decode="cpu")
        images = training_set(data, device)
        assert isinstance(images, StreamedSet)
        if where == "gpu":
            problem = why_not_on(device) if device.type == "cuda" else None
            if problem is not None:
                print(problem)
                break
            decoder = GpuDecoder(images.stored, "shorter", images.device)
            images = replace(images, files=EncodedStream(files, images.stored), decoder=decoder)
        run = begun(shape, images, AUGMENTATIONS[shape.size][0])
        found[f"streamed, {where}"] = speed(run, whole_step(run), 2 * asked.seconds, workers)
        del run
        gc.collect()  # its worker processes end
        found[f"decoding alone, {where}"] = loaded(images, shape.batch, asked.seconds, workers)
        if where == "gpu":
            reading = replace(images, decoder=lambda batch: batch.content)  # type: ignore[arg-type]
            found["reading alone, gpu"] = loaded(reading, shape.batch, asked.seconds, workers)
    return found


def loaded(images: StreamedSet, batch: int, seconds: float, workers: int) -> float:
    """Images per second that come, if nobody trains on them."""
    order = np.random.default_rng(0).integers(len(images.labels), size=(20_000, batch), dtype=np.int32)
    batches = images.batches(order)

    def step() -> int:
        next(batches)
        return 1

    return rate(step, seconds, workers) * batch


def difference(files: ImageList, side: int, device: torch.device) -> float:
    """By how much, of 255, pixels that the device decodes differ from Pillow's, in the mean."""
    few = files.subset(range(min(64, len(files))))
    batch = collated([EncodedStream(few, side)[index] for index in range(len(few))])
    found = GpuDecoder(side, "shorter", torch.zeros(1, device=device).device)(batch)
    return float(np.abs(found.cpu().numpy().astype(np.float32) - decode(few, side).pixels).mean())


def bounds(row: dict[str, float]) -> dict[str, str]:
    """What bounds each streamed run, and what share of it is reached."""
    found = {}
    for where in ("cpu", "gpu"):
        if f"streamed, {where}" in row:
            parts = {name: value for name, value in row.items() if name == "bare" or name.endswith(f"alone, {where}")}
            slowest = min(parts, key=lambda name: parts[name])
            share = row[f"streamed, {where}"] / parts[slowest]
            found[f"streamed, {where}"] = f"{slowest}: {share:.2f} of it"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each number; for streamed ones twice as long")
    parser.add_argument("--files", type=int, default=2000, help="JPEG files to stream")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, help="another batch size")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.table:
        print(table(asked.table))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    began = time.perf_counter()
    found: dict[str, dict[str, float]] = {}
    bounded: dict[str, dict[str, str]] = {}
    differing: dict[str, float] = {}
    machine = hardware(device) | versions() | {"workers": str(asked.workers), "cores": str(os.cpu_count())}
    record = {"machine": machine, "seconds": asked.seconds, "images_per_second": found, "bound_by": bounded}
    record["pixels_differ"] = differing
    with tempfile.TemporaryDirectory() as folder:
        files = write_photographs(Path(folder), asked.files)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.jpg")) / len(files)
        record["files"] = {"number": len(files), "bytes_each": round(size), "sides": SIDES}
        print(f"{len(files):,} files of {size / 1000:.0f} kB written, {time.perf_counter() - began:.0f} s", flush=True)
        for shape in (replace(shape, batch=asked.batch or shape.batch) for shape in SHAPES):
            row = found[str(shape)] = {}
            images = random_set(shape.size, 8 * shape.batch, device)
            for kind in AUGMENTATIONS[shape.size]:
                run = begun(shape, images, kind)
                if "bare" not in row:
                    row["bare"] = speed(run, bare_step(run), asked.seconds)
                row[f"resident, {kind}"] = speed(run, whole_step(run), asked.seconds)
            del run, images
            row |= streamed_speeds(shape, files, device, asked)
            if "streamed, gpu" in row:
                differing[str(shape)] = round(difference(files, stored_side(shape.size), device), 3)
            bounded[str(shape)] = bounds(row)
            for name, value in row.items():
                why = f"  limited by {bounded[str(shape)][name]}" if name in bounded[str(shape)] else ""
                print(f"{shape}: {name:26s}{value:10,.0f} images/s{value / row['bare']:8.2f} of bare{why}", flush=True)
            record["took"] = round(time.perf_counter() - began, 1)
            if asked.out:  # also after the first shape: what is measured is kept
                asked.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['took']} s in all")


def table(path: Path) -> str:
    """Each speed beside that of the bare step, as Markdown.

    Records without "bound_by" show what is in memory alone: what they call streamed came from what the worker processes
    had ready.
    """
    record = json.loads(path.read_text())
    bounded = record.get("bound_by", {})
    shown = ("bare", "resident", "streamed", "decoding", "reading") if bounded else ("bare", "resident")
    where = f"{record['machine']['device']}, torch {record['machine']['torch']}"
    title = f"| {where} | images per second | share of the bare step |"
    lines = [title + (" limited by |" if bounded else ""), "|:---|---:|---:|" + (":---|" if bounded else "")]
    for shape, row in record["images_per_second"].items():
        for name, value in row.items():
            if name.startswith(shown):
                limit, _, share = bounded.get(shape, {}).get(name, "").partition(": ")
                why = f" {share.removesuffix(' of it')}{' × ' if share else ''}{limit} |" if bounded else ""
                lines.append(f"| {shape}: {name} | {value:,.0f} | {value / row['bare']:.2f} |{why}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
