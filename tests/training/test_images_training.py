"""Image classifiers in the engine: from memory as from files, taken up to the bit, by two processes as by one."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.image_folders import NETWORK, write_splits
from helpers.processes import in_two_processes
from torch import nn

from equipoise.data.gpu_images import GpuDecoder
from equipoise.data.images import read_images
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.models.classifiers import Classifier, make_backbone
from equipoise.training import classification
from equipoise.training.classification import Training, build_model, train
from equipoise.training.images import (
    FrozenClassification,
    ImageClassification,
    ImageData,
    decodes_on,
    free_memory,
    stored_side,
    training_set,
)
from equipoise.training.kinds import Settings
from equipoise.training.methods import logits_mean, methods
from equipoise.training.queue import run_cells
from equipoise.training.recipe import MethodCell, Recipe
from equipoise.training.sets import StreamedSet
from equipoise.training.weights import weights_digest

CPU = torch.device("cpu")
RECIPE = Recipe(
    model=NETWORK, size=32, augmentation="crop", batch_size=8, iterations=6, warmup=2, first_lr=0.0, lr=0.01,
    loss=BalancedSoftmaxLoss,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    folder = write_splits(tmp_path_factory.mktemp("photos"))
    images = read_images(folder / "train")
    return ImageData(images, read_images(folder / "val", class_names=images.class_names), 32)


def small(name: str, size: int, *_: Any, **__: Any) -> tuple[nn.Module, int]:
    """A network without batch statistics: what several processes compute is what one does."""
    layers = [nn.Conv2d(3, 4, 3, stride=4), nn.GELU(), nn.Flatten()]
    return nn.Sequential(*layers), 4 * ((size - 3) // 4 + 1) ** 2


def trained(recipe: Recipe, data: ImageData, seed: int = 0) -> Training:
    run = Training(recipe, training_set(data, CPU), seed)
    train([run])
    return run


def test_images_from_files_train_what_images_in_memory_do(data: ImageData) -> None:
    recipe = replace(RECIPE, augmentation="randaugment")
    kept = trained(recipe, replace(data, resident=True))
    for workers in (0, 2):
        streamed = trained(recipe, replace(data, resident=False, workers=workers))
        assert weights_digest(streamed.model) == weights_digest(kept.model)
    assert weights_digest(trained(recipe, data, seed=1).model) != weights_digest(kept.model)


@pytest.mark.parametrize(
    "change",
    [{"ema": 0.5}, {"mixup": 0.3, "cutmix": 1.0}, {"optimizer": "adamw", "lr": 1e-3}, {"sampler": "class_balanced"}],
    ids=["average", "mixing", "adamw", "sampler"],
)
def test_a_run_taken_up_at_any_iteration_ends_with_the_same_weights(change: dict[str, Any], data: ImageData) -> None:
    recipe = replace(RECIPE, **change)
    images = training_set(data, CPU)
    whole = trained(recipe, data)
    for stop in (1, 4):
        first = Training(recipe, images, 0)
        for _ in range(stop):
            first.advance()
        rest = Training(recipe, images, 0)
        rest.load_state_dict(first.state_dict())
        train([rest])
        assert weights_digest(rest.model) == weights_digest(whole.model)


def test_a_batch_in_parts_gives_the_gradients_of_the_whole(data: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "make_backbone", small)
    whole, parts = (trained(replace(RECIPE, accumulate=number), data) for number in (1, 4))
    for own, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(whole.losses, parts.losses, rtol=1e-4, atol=1e-6)


def test_the_average_of_the_weights_is_what_is_kept(data: ImageData) -> None:
    images = training_set(data, CPU)
    run, plain = (Training(replace(RECIPE, ema=ema), images, 0) for ema in (0.75, 0.0))
    averages = [value.clone() for value in plain.model.state_dict().values() if value.is_floating_point()]
    for _ in range(RECIPE.iterations):
        run.advance()
        plain.advance()
        states = [value for value in plain.model.state_dict().values() if value.is_floating_point()]
        averages = [0.75 * old + 0.25 * new for old, new in zip(averages, states, strict=True)]
    kept = [value for value in run.model.state_dict().values() if value.is_floating_point()]
    for own, expected in zip(kept, averages, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)


def test_what_diverges_is_not_trained_to_the_end(data: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "LOOK_EVERY", 2)
    run = Training(replace(RECIPE, lr=float("inf"), warmup=0, iterations=50), training_set(data, CPU), 0)
    assert not train([run])
    assert run.iteration < 10
    assert not run.finite


def test_a_batch_that_processes_cannot_share_is_refused(data: ImageData) -> None:
    with pytest.raises(ValueError, match="a batch of 8 images cannot be split among 1 processes in 3 parts"):
        Training(replace(RECIPE, accumulate=3), training_set(data, CPU), 0)


# -------------------------------------------------------------------- two processes


def shared(rank: int, folder: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=2)
    classification.make_backbone = small  # type: ignore[assignment]
    images = read_images(Path(folder) / "train")
    data = ImageData(images, images, 32)
    run = trained(replace(RECIPE, augmentation="randaugment"), data)
    if rank == 0:
        torch.save({"model": run.model.state_dict(), "losses": run.losses}, f"{out}/shared.pt")


def test_two_processes_train_what_one_does(data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "make_backbone", small)
    alone = trained(replace(RECIPE, augmentation="randaugment"), replace(data, test=data.train))
    in_two_processes(shared, str(data.train.root.parent), str(tmp_path))
    found = torch.load(tmp_path / "shared.pt", weights_only=True)
    torch.testing.assert_close(found["losses"], alone.losses, rtol=1e-5, atol=1e-6)
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(found["model"][name], value, rtol=1e-4, atol=1e-6)


# -------------------------------------------------------------------- in the queue


def in_queue(kind: Any, tmp_path: Path, *names: str) -> dict[str, Any]:
    records: list[Any] = []
    settings = kind.settings
    run_cells([MethodCell(name, 0) for name in names], kind, settings, write=records.append)
    return {record.method: record for record in records}


def quiet(tmp_path: Path) -> Settings:
    return Settings(CPU, tmp_path / "checkpoints", tmp_path / "claims", log=lambda text: None)


def test_a_run_with_two_passes_costs_twice_as_much(
    data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = {"plain": replace(RECIPE, iterations=100), "sam": replace(RECIPE, iterations=100, sam=0.1)}
    kind = ImageClassification("small", recipes, data, replace(quiet(tmp_path), budget=60.0))
    plain, twice = (MethodCell(name, 0) for name in recipes)
    assert (kind.cost(plain), kind.cost(twice)) == (1.0, 2.0)
    monkeypatch.setattr("equipoise.training.images.timed", lambda recipe, *more: 6.0 if recipe.sam else 3.0)
    assert kind.seconds_an_iteration([plain, twice]) == kind.seconds_an_iteration([twice, plain]) == 3.0


def test_a_run_from_other_weights_of_the_same_name_starts_over(data: ImageData, tmp_path: Path) -> None:
    said: list[str] = []
    settings = replace(quiet(tmp_path), log=said.append)
    found = []
    for seed in (0, 1, 1):
        start = build_model(RECIPE, 4, seed).state_dict()
        start = {name: value for name, value in start.items() if name.startswith("backbone.")}
        kind = ImageClassification("small", {"one": RECIPE}, data, settings, start=start, starts_from="w.pth")
        found.append(in_queue(kind, tmp_path, "one")["one"])
    first, second, again = (record.start_weights for record in found)
    assert first != second == again
    other = [line for line in said if "belongs to another run" in line]
    assert len(other) == 1
    assert f"(start_weights {first}, now {second}): starting from the beginning" in other[0]
    assert any("resumed at iteration 6 of 6" in line for line in said)


def test_second_stages_build_on_softmax_and_adjusting_costs_nothing(data: ImageData, tmp_path: Path) -> None:
    recipes = methods(replace(RECIPE, loss=nn.CrossEntropyLoss))
    kind = ImageClassification("small", recipes, data, quiet(tmp_path))
    found = in_queue(kind, tmp_path, "softmax", "adjusted", "crt", "lws", "decoupled_balanced_softmax")
    softmax = found.pop("softmax")
    assert all(record.backbone_weights == softmax.weights for record in found.values())
    assert found["adjusted"].iterations == 0
    assert (found["crt"].iterations, found["crt"].recipe["sampler"]) == (1, "class_balanced")
    assert softmax.counts == [24, 12, 6, 3]
    assert sum(softmax.total) == 16
    assert softmax.engine["images"] == "in memory"
    means = {name: logits_mean(recipe) for name, recipe in recipes.items()}
    assert [name for name, mean in means.items() if mean == "train"] == [
        "softmax", "focal", "class_balanced", "ldam", "eql", "sigmoid",
    ]  # fmt: skip


def test_heads_on_frozen_features_are_those_of_the_whole_network(data: ImageData, tmp_path: Path) -> None:
    backbone, width = make_backbone(NETWORK, 32)
    state = {name: value.clone() for name, value in backbone.state_dict().items()}
    recipes = methods(replace(RECIPE, loss=nn.CrossEntropyLoss, iterations=30, lr=0.05))
    delivered: list[Any] = []
    kind = FrozenClassification(
        "frozen", recipes, data, quiet(tmp_path), network=NETWORK, backbone=backbone, width=width,
        deliver=lambda finished, record: delivered.append((finished, record)),
    )  # fmt: skip
    in_queue(kind, tmp_path, "softmax", "balanced_softmax")
    for finished, record in delivered:
        assert all(torch.equal(value, state[name]) for name, value in finished.backbone.state_dict().items())
        whole = Classifier(finished.backbone, finished.run.model.head).eval()
        pixels = torch.from_numpy(data.decoded(data.test)).float() / 255
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (kind.mean, kind.std))
        with torch.no_grad():
            logits = whole((pixels - mean) / std)
        torch.testing.assert_close(logits.double(), finished.logits, rtol=1e-4, atol=1e-5)
        assert record.engine["frozen"]
        assert finished.model == NETWORK


def test_room_for_crops_is_kept_around_larger_images(data: ImageData) -> None:
    larger = replace(data, size=112, pixels={})
    assert stored_side(112) == 128
    images = training_set(larger, CPU)
    items = torch.zeros(2, 8, 3, 112, 112, dtype=torch.uint8)
    order = np.arange(16, dtype=np.int32).reshape(2, 8)
    images.filler(order, replace(RECIPE, augmentation="none"), 0)(items, 0)
    decoded = torch.from_numpy(larger.decoded(data.train))[:16, :, 8:120, 8:120]
    assert torch.equal(items.flatten(0, 1), decoded)


def test_every_batch_is_augmented_anew(data: ImageData) -> None:
    images = training_set(data, CPU)
    order = np.zeros((2, 8), np.int32)  # the same image all the time
    items = torch.zeros(2, 8, 3, 32, 32, dtype=torch.uint8)
    images.filler(order, RECIPE, 0)(items, 0)
    assert not torch.equal(items[0], items[1])


def test_a_streamed_run_that_goes_back_reads_the_right_files(data: ImageData) -> None:
    streamed = training_set(replace(data, resident=False), CPU)
    run = Training(RECIPE, streamed, 0)
    start = copy.deepcopy(run.state_dict())
    run.advance()
    run.load_state_dict(start)
    train([run])
    assert weights_digest(run.model) == weights_digest(trained(RECIPE, data).model)


def test_images_decoded_on_the_device_train_alike_whoever_reads_them(
    data: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.training.images.why_not_on", lambda device: None)  # the CPU stands in for a GPU
    asked = replace(data, resident=False, decode="gpu")
    kept = training_set(asked, CPU)
    assert isinstance(kept, StreamedSet)
    assert isinstance(kept.decoder, GpuDecoder)
    order = np.arange(16, dtype=np.int32).reshape(2, 8)
    decoded = torch.from_numpy(data.decoded(data.train))[:16].int()
    assert (torch.cat(list(kept.batches(order))).int() - decoded)[..., 1:-1, 1:-1].abs().max() <= 1
    alone, helped = (trained(RECIPE, replace(asked, workers=workers)) for workers in (0, 2))
    assert weights_digest(alone.model) == weights_digest(helped.model)


def test_where_streamed_images_are_decoded(data: ImageData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings, gpu = Settings(CPU, tmp_path, tmp_path), torch.device("cuda", 0)
    assert not decodes_on(CPU, "auto")
    with pytest.raises(ValueError, match="decode gpu: there is no GPU to decode on; auto and cpu work everywhere"):
        decodes_on(CPU, "gpu")
    for problem in (None, "no nvJPEG"):
        monkeypatch.setattr("equipoise.training.images.why_not_on", lambda device, problem=problem: problem)
        assert decodes_on(gpu, "auto") == (problem is None)
        assert not decodes_on(gpu, "cpu")
    kind = ImageClassification("t", {}, replace(data, resident=False), settings)
    assert kind.engine(None)["images"] == "streamed"  # type: ignore[arg-type]
    in_memory = ImageClassification("t", {}, replace(data, resident=True), settings)
    assert kind.must_match(None) == in_memory.must_match(None)  # type: ignore[arg-type]
    monkeypatch.setattr("equipoise.training.images.why_not_on", lambda device: None)
    kind = ImageClassification("t", {}, replace(data, resident=False, decode="gpu"), settings)
    assert kind.engine(None)["images"] == "streamed, decoded on the GPU"  # type: ignore[arg-type]
    assert kind.must_match(None) != in_memory.must_match(None)  # type: ignore[arg-type]


def test_the_free_memory_is_read_and_assumed_where_it_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 30 kB\nMemFree: 10 kB\nMemAvailable:    20 kB\n")
    monkeypatch.setattr("equipoise.training.images.MEMORY", tmp_path / "meminfo")
    assert free_memory(CPU) == 20_480
    for content in ("MemTotal: 30 kB\n", "MemAvailable: much kB\n"):
        (tmp_path / "meminfo").write_text(content)
        assert free_memory(CPU) == 8e9
    monkeypatch.setattr("equipoise.training.images.MEMORY", tmp_path / "nothing")
    assert free_memory(CPU) == 8e9
