"""How much of the bare training step `equipoise train` keeps: images per second, by where the images are.

python benchmarks/train_throughput.py                    ResNet-18 at 64 px and ResNet-50 at 224 px
python benchmarks/train_throughput.py --out FILE.json    also written there

bare       the captured step alone, on a batch that stays (on a CPU: the step as it is)
resident   decoded images on the device: drawn, augmented and trained on, as a run does it
streamed   JPEG files of 500 × 375 pixels, made for it, decoded by worker processes
decoding   these files decoded and resized, nothing trained: on the CPU by Pillow, on a GPU by torchvision
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from equipoise.data.image_files import decode
from equipoise.data.images import ImageList, read_images
from equipoise.prior import Prior
from equipoise.training.classification import Training
from equipoise.training.images import ImageData, stored_side, training_set
from equipoise.training.recipe import Recipe
from equipoise.training.records import hardware, versions
from equipoise.training.sets import ImageSet, Photographs

SHAPES = (("resnet18", 64, 256), ("resnet50", 224, 256))
AUGMENTATIONS = {64: ("crop", "randaugment-crop"), 224: ("resized", "randaugment")}


def random_set(size: int, number: int, device: torch.device) -> ImageSet:
    """Noise of ten classes, as it is kept for a model that sees `size` pixels."""
    labels = np.arange(number) % 10
    side = stored_side(size)
    images = torch.randint(0, 256, (number, 3, side, side), dtype=torch.uint8, device=device)
    return ImageSet(labels, torch.from_numpy(labels).to(device), Prior.from_labels(labels), size, side, images=images)


def write_photographs(folder: Path, number: int) -> ImageList:
    """JPEG files of 500 × 375 pixels with the detail of photographs: smooth noise of several scales."""
    random = np.random.default_rng(0)
    for index in range(number):
        place = folder / f"class{index % 10}"
        place.mkdir(exist_ok=True)
        pixels = np.zeros((375, 500, 3), np.float32)
        for scale in (4, 16, 64):
            noise = random.integers(0, 256, (375 // scale + 1, 500 // scale + 1, 3), np.uint8)
            pixels += np.asarray(Image.fromarray(noise).resize((500, 375)), np.float32)
        Image.fromarray((pixels / 3).astype(np.uint8)).save(place / f"{index}.jpg", quality=90)
    return read_images(folder)


def speed(run: Training, step: Callable[[], int], seconds: float, warm: float = 0.0) -> float:
    """Images per second of `step`, which returns how many iterations it did; the first ones are not counted, nor are
    `warm` seconds, in which what worker processes had ready is used up."""
    start, done = time.perf_counter(), 0
    while done < 3 or time.perf_counter() - start < warm:
        step()
        run.wait()
        done += 1
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        done += step()
        if run.data.device.type == "cuda":
            run.wait()
    return done * run.batch_size / (time.perf_counter() - start)


def bare_step(run: Training) -> Callable[[], int]:
    def step() -> int:
        with run._on_stream():
            run._slot.zero_()
            for _ in range(run.chunk):
                run._step() if run._graph is None else run._graph.replay()
        return run.chunk

    return step


def whole_step(run: Training) -> Callable[[], int]:
    def step() -> int:
        before = run.iteration
        run.advance()
        return run.iteration - before

    return step


def begun(model: str, size: int, batch: int, data: Photographs, augmentation: str) -> Training:
    """A run that does not end soon."""
    recipe = Recipe(model=model, size=size, batch_size=batch, iterations=20_000, warmup=0, lr=1e-4, nesterov=True)
    return Training(replace(recipe, augmentation=augmentation), data, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each number")
    parser.add_argument("--files", type=int, default=2000, help="JPEG files to stream")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, help="another batch size")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = write_photographs(Path(folder), options.files)
        for model, size, usual in SHAPES:
            batch = options.batch or usual
            row = found[f"{model} at {size} px, batch {batch}"] = {}
            images = random_set(size, 8 * batch, device)
            for kind in AUGMENTATIONS[size]:
                run = begun(model, size, batch, images, kind)
                row.setdefault("bare", speed(run, bare_step(run), options.seconds))
                row[f"resident, {kind}"] = speed(run, whole_step(run), options.seconds)
            streamed = training_set(ImageData(files, files, size, workers=options.workers, resident=False), device)
            run = begun(model, size, batch, streamed, AUGMENTATIONS[size][0])
            row["streamed"] = speed(run, whole_step(run), 4 * options.seconds, warm=2 * options.seconds)
            start, decoded = time.perf_counter(), 0
            while time.perf_counter() - start < options.seconds:
                decode(files, stored_side(size), workers=options.workers)
                decoded += len(files)
            row["decoding, Pillow"] = decoded / (time.perf_counter() - start)
            if device.type == "cuda":
                row["decoding, GPU"] = gpu_decoding(files, stored_side(size), device)
            for name, value in row.items():
                share = value / row["bare"]
                print(f"{model} at {size} px  {name:28s}{value:12,.0f} images/s{share:8.2f} of bare", flush=True)
    machine = hardware(device) | versions() | {"workers": str(options.workers)}
    record = {"machine": machine, "seconds": options.seconds, "images_per_second": found}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def table(path: Path) -> str:
    """What stays of the bare step, as Markdown. Records from before streaming was warmed up ("seconds" is not in them)
    show what is in memory alone: what they call streamed came from what the worker processes had ready."""
    record = json.loads(path.read_text())
    shown = ("bare", "resident", "streamed", "decoding") if "seconds" in record else ("bare", "resident")
    lines = [
        f"| {record['machine']['device']}, torch {record['machine']['torch']} | images per second | of the bare step |"
    ]
    lines.append("|:---|---:|---:|")
    for shape, row in record["images_per_second"].items():
        for name, value in row.items():
            if name.startswith(shown):
                lines.append(f"| {shape}: {name} | {value:,.0f} | {value / row['bare']:.2f} |")
    return "\n".join(lines)


def gpu_decoding(files: ImageList, side: int, device: torch.device) -> float:
    """torchvision's decoder (nvJPEG) in batches of 64, resized on the GPU."""
    from torchvision.io import decode_jpeg, read_file
    from torchvision.transforms.v2.functional import resize

    try:
        content = [read_file(str(files.open(index))) for index in range(len(files))]
        for _ in range(2):  # the first time the decoder is made
            torch.cuda.synchronize()
            start = time.perf_counter()
            for first in range(0, len(content), 64):
                for image in decode_jpeg(content[first : first + 64], device=device):
                    resize(image, [side], antialias=True)
            torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"torchvision cannot decode on this GPU: {error}")
        return float("nan")
    return len(content) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
