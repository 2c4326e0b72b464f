"""How fast the CIFAR engine trains, as ratios from one run on one machine; with --check, whether it is right.

    python benchmarks/cifar_throughput.py --check      about a minute: exactness, graph, neighbours
    python benchmarks/cifar_throughput.py              the ratios: this engine with 1 and 4 runs; the same model eager
                                                       with AMP and data on the device; a Pillow loader as of old
    python benchmarks/cifar_throughput.py --out r.json writes either into one file

Images are random: no data set is needed. Everything is ResNet-32 at batch 512 with augmentation included, unless said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pillow_augmentation as pillow
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from equipoise.data.longtail import long_tailed_counts
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.equalization import EqualizationLoss
from equipoise.losses.ldam import LDAMLoss
from equipoise.models.resnet_cifar import FEATURES, ResNetCifar
from equipoise.prior import Prior
from equipoise.training import classification
from equipoise.training.augmentation.autoaugment import ATOMS, AutoAugment
from equipoise.training.augmentation.cifar import TrainingAugmentation, draw, normalise
from equipoise.training.classification import Features, Training, compiled_features, train
from equipoise.training.recipe import Recipe
from equipoise.training.records import hardware
from equipoise.training.sets import CHUNK, CifarSet, stream_of
from equipoise.training.weights import weights_digest

SOFTMAX = Recipe()
RECIPES = {
    "softmax": SOFTMAX,
    "balanced softmax": replace(SOFTMAX, loss=BalancedSoftmaxLoss, options={"tau": 1.0}),
    "eql": replace(SOFTMAX, loss=EqualizationLoss, options={"gamma": 0.95, "threshold": 3e-3}),
    "ldam": replace(SOFTMAX, loss=LDAMLoss, head="normalized", sampler="class_balanced"),
}


def random_set(device: torch.device) -> CifarSet:
    """As many images as CIFAR-100-LT at 100 has, of noise with a colour for each class."""
    labels = np.repeat(np.arange(100), long_tailed_counts(500, 100, 100))
    random = np.random.default_rng(0)
    colours = random.integers(0, 128, (100, 3, 1, 1))
    images = (colours[labels] + random.integers(0, 128, (len(labels), 3, 32, 32))).astype(np.uint8)
    return CifarSet.of(images, labels, Prior.from_labels(labels), device)


# -------------------------------------------------------------------- checks


def augmentation_equals_pillow(device: torch.device, images_each: int = 50, draws: int = 4000) -> tuple[int, int]:
    """(atoms that differ from Pillow, whole random augmentations that differ), both of which must be 0."""
    pixels = pillow.sample_images(images_each)
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(device)
    augment = AutoAugment(device)
    wrong_atoms = 0
    for number, atom in enumerate(ATOMS):
        ours = augment(batch, np.full((len(batch), 1), number)).permute(0, 2, 3, 1).cpu().numpy()
        theirs = np.stack([np.asarray(pillow.apply(Image.fromarray(image), *atom)) for image in pixels])
        wrong_atoms += not np.array_equal(ours, theirs)
    index = np.random.default_rng(1).integers(len(batch), size=draws)
    drawn = draw(draws, np.random.default_rng(2))
    ours = TrainingAugmentation(batch)(index, drawn).permute(0, 2, 3, 1).cpu().numpy()
    wrong = 0
    for i in range(draws):
        image = Image.fromarray(pixels[index[i]])
        image = pillow.crop_and_flip(image, int(drawn.top[i]), int(drawn.left[i]), int(drawn.flip[i]))
        for atom in drawn.atoms[i]:
            image = pillow.apply(image, *ATOMS[atom])
        theirs = pillow.cutout(np.asarray(image), int(drawn.centre_y[i]), int(drawn.centre_x[i]))
        wrong += not np.array_equal(ours[i], theirs)
    return wrong_atoms, wrong


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Training without autocast and without TF32."""
    autocast, tf32 = classification._autocast, torch.backends.cudnn.allow_tf32
    classification._autocast = lambda device: contextlib.nullcontext()
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        classification._autocast, torch.backends.cudnn.allow_tf32 = autocast, tf32


def against_eager(data: CifarSet, recipe: Recipe, iterations: int = 20, **kernels: Features) -> dict[str, Any]:
    """Graphed steps beside eager ones by torch: largest relative differences of the loss; are the weights equal?

    Kernels that round in other places cannot be equal to the bit. They must be as near as eager steps are (up to a
    factor of 2, which is chance) to the same steps in fp32.
    """
    recipe = recipe.shortened(iterations)
    with full_precision():
        exact = Training(recipe, data, 0, graphed=False)
        train([exact])
    graphed, eager = Training(recipe, data, 0, **kernels), Training(recipe, data, 0, graphed=False)
    for run in (graphed, eager):
        train([run])

    def worst(one: Training, other: Training) -> float:
        losses, true = one.losses.cpu(), other.losses.cpu()
        return float(((losses - true).abs() / true.abs()).max())

    found: dict[str, Any] = {
        "worst_relative_loss": worst(graphed, eager),
        "from_fp32": worst(graphed, exact),
        "eager_from_fp32": worst(eager, exact),
        "same_weights": weights_digest(graphed.model) == weights_digest(eager.model),
    }
    near = found["from_fp32"] <= 2 * found["eager_from_fp32"]
    return found | {"good": found["same_weights"] or (bool(kernels) and near)}


def alone_against_shared(data: CifarSet, iterations: int = 60, **kernels: Features) -> dict[str, bool]:
    """For each recipe, whether a run ends with the same weights alone as with the others beside it."""
    recipes = {name: recipe.shortened(iterations) for name, recipe in RECIPES.items()}
    together = {name: Training(recipe, data, 0, **kernels) for name, recipe in recipes.items()}
    train(list(together.values()))
    same = {}
    for name, recipe in recipes.items():
        alone = Training(recipe, data, 0, **kernels)
        train([alone])
        same[name] = weights_digest(alone.model) == weights_digest(together[name].model)
    return same


# -------------------------------------------------------------------- speed


def images_a_second(step: Callable[[], None], images: int, device: torch.device, seconds: float = 4.0) -> float:
    """`step` over and over for so many seconds, after one to warm up."""
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return steps * images / (time.perf_counter() - start)


def engine_speed(
    data: CifarSet, runs: int, *, seconds: float = 4.0, recipe: Recipe = SOFTMAX, **kernels: Features
) -> float:
    """Images per second of `runs` runs that train together, everything included; `kernels` as of `Training`."""
    trainings = [Training(recipe, data, seed, **kernels) for seed in range(runs)]

    def chunk() -> None:
        for training in trainings:
            training.advance()

    return images_a_second(chunk, runs * CHUNK * recipe.batch_size, data.device, seconds)


def step_speed(data: CifarSet, runs: int, *, seconds: float = 3.0, **kernels: Features) -> float:
    """The same without augmentation: one chunk over and over."""
    trainings = [Training(SOFTMAX, data, seed, **kernels) for seed in range(runs)]
    for training in trainings:
        training.advance()
        training.wait()
        training._fill = training._slot.zero_  # type: ignore[method-assign, assignment]

    def chunk() -> None:
        for training in trainings:
            training.advance()

    return images_a_second(chunk, runs * CHUNK * SOFTMAX.batch_size, data.device, seconds)


def augmentation_speed(data: CifarSet) -> float:
    """Images per second of the augmentation alone, drawing included."""
    number = CHUNK * SOFTMAX.batch_size
    index = np.random.default_rng(0).integers(len(data.labels), size=number)
    chunks = iter(range(10**9))

    def chunk() -> None:
        data.augmentation(index, draw(number, stream_of(0, 2, next(chunks))))

    return images_a_second(chunk, number, data.device, 2.0)


class PillowData(Dataset[tuple[torch.Tensor, int]]):
    """One image after another with Pillow, as the released code has it."""

    def __init__(self, data: CifarSet) -> None:
        self.labels = data.labels
        inside = data.augmentation.padded[:, :, 4:-4, 4:-4]
        self.pixels = inside.permute(0, 2, 3, 1).cpu().numpy()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        drawn = draw(1, np.random.default_rng())
        image = Image.fromarray(self.pixels[i])
        image = pillow.crop_and_flip(image, int(drawn.top[0]), int(drawn.left[0]), int(drawn.flip[0]))
        for atom in drawn.atoms[0]:
            image = pillow.apply(image, *ATOMS[atom])
        pixels = pillow.cutout(np.asarray(image), int(drawn.centre_y[0]), int(drawn.centre_x[0]))
        return normalise(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0], int(self.labels[i])


def plain_loop(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """An ordinary training step: autocast, nn.CrossEntropyLoss, torch.optim.SGD."""
    model = ResNetCifar(nn.Linear(FEATURES, 100)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loss_function = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_function(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def eager_speed(data: CifarSet) -> float:
    """The same model eager with AMP; data and augmentation on the device as in this engine."""
    step, size = plain_loop(data.device), SOFTMAX.batch_size
    random = np.random.default_rng(0)

    def chunk() -> None:
        index = random.integers(len(data.labels), size=CHUNK * size)
        images = data.augmentation(index, draw(CHUNK * size, random)).view(CHUNK, size, 3, 32, 32)
        labels = data.device_labels[torch.from_numpy(index).to(data.device)].view(CHUNK, size)
        for i in range(CHUNK):
            step(normalise(images[i]), labels[i])

    return images_a_second(chunk, CHUNK * size, data.device)


def pillow_speed(data: CifarSet, workers: int) -> float:
    """A DataLoader with Pillow and `workers` processes in front of the eager step: 40 batches after the first 5."""
    step = plain_loop(data.device)
    loader = DataLoader(PillowData(data), SOFTMAX.batch_size, shuffle=True, drop_last=True, num_workers=workers)
    done, start = 0, time.perf_counter()
    while done < 45:
        for images, labels in loader:
            step(images.to(data.device), labels.to(data.device))
            done += 1
            if done == 5:
                start = time.perf_counter()
            if done == 45:
                break
    if data.device.type == "cuda":
        torch.cuda.synchronize()
    return 40 * SOFTMAX.batch_size / (time.perf_counter() - start)


def ways(device: torch.device) -> dict[str, dict[str, Features]]:
    """The engine's ways to compute the backbone; all but the first need a GPU."""
    if device.type != "cuda":
        return {"torch": {}}
    from equipoise.experiments.resnet32.fused import fused_features  # needs Triton

    return {
        "cuDNN": {},
        "cuDNN, compiled": {"features": compiled_features()},
        "fused kernels": {"features": fused_features},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that it is right; exit 1 if it is not")
    parser.add_argument("--workers", type=int, default=8, help="processes of the Pillow loader")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each speed is measured")
    parser.add_argument("--out", type=Path, help="write what came out as JSON; what the file holds already is kept")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = hardware(device) | {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    data = random_set(device)
    found = check(device, data) if arguments.check else speed(device, data, arguments.seconds, arguments.workers)
    if arguments.out:
        before = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        content = before | {"machine": about} | found
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    if found.get("good") is False:
        sys.exit(1)


def check(device: torch.device, data: CifarSet) -> dict[str, Any]:
    """Whether the engine is right: printed and returned, with "good" to say that everything holds."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    draws = 4000
    wrong_atoms, wrong = augmentation_equals_pillow(device, draws=draws)
    print(f"augmentation against Pillow: {wrong_atoms} of {len(ATOMS)} atoms, {wrong} of {draws} random draws differ")
    found: dict[str, Any] = {
        "augmentation_against_pillow": {
            "atoms": len(ATOMS),
            "atoms_that_differ": wrong_atoms,
            "random_draws": draws,
            "draws_that_differ": wrong,
        },
        "graph_against_eager": {},
        "alone_against_shared": {},
        "good": wrong_atoms == wrong == 0,
    }
    deterministic = {name: kernels for name, kernels in ways(device).items() if "compiled" not in name}
    for name, kernels in deterministic.items():
        for recipe_name, recipe in RECIPES.items():
            entry = against_eager(data, recipe, **kernels)
            print(
                f"20 steps, {name}, against eager ones: {recipe_name}: loss off by {entry['worst_relative_loss']:.1e}, "
                f"to the bit: {entry['same_weights']}; from fp32: {entry['from_fp32']:.1e}, "
                f"eager {entry['eager_from_fp32']:.1e}"
            )
            found["graph_against_eager"].setdefault(name, {})[recipe_name] = entry
            found["good"] &= entry["good"]
        same = alone_against_shared(data, **kernels)
        print(f"same weights alone as with three neighbours, {name}: {same}", flush=True)
        found["alone_against_shared"][name] = same
        found["good"] &= all(same.values())
    print("all good" if found["good"] else "NOT GOOD")
    return found


def speed(device: torch.device, data: CifarSet, seconds: float, workers: int) -> dict[str, Any]:
    """Images per second, printed as ratios to the slowest and returned."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
    speeds: dict[str, float] = {"augmentation alone": augmentation_speed(data)}
    for name, kernels in ways(device).items():
        for runs in (1, 4):
            label = f"this engine, {name}, {runs} run{'s' if runs > 1 else ''}"
            speeds[label] = engine_speed(data, runs, seconds=seconds, **kernels)
            print(f"{label:55s} {speeds[label]:12,.0f} img/s", flush=True)
            if device.type == "cuda":
                speeds[f"{label}, without augmentation"] = step_speed(data, runs, seconds=seconds / 2, **kernels)
    speeds["eager AMP, data on the device"] = eager_speed(data)
    speeds[f"eager AMP, Pillow loader, {workers} workers"] = pillow_speed(data, workers)
    slowest = min(speeds.values())
    for label, value in speeds.items():
        print(f"{label:60s} {value:12,.0f} img/s {value / slowest:8.1f}×")
    return {"images_a_second": speeds, "pillow_workers": workers}


if __name__ == "__main__":
    main()
