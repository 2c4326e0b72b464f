"""timm's own pieces with the balanced criterion and the balanced loader."""

from __future__ import annotations

import collections
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.integrations import timm as adapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    timm = pytest.importorskip("timm")
    data = pytest.importorskip("timm.data")
image = pytest.importorskip("PIL.Image")

PRIOR = eq.Prior.from_counts({"cat": 12, "dog": 4, "owl": 1})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of images, each of one grey that tells which it is."""
    number = 0
    for name, count in zip(PRIOR.class_names or (), PRIOR.counts, strict=True):
        (tmp_path / name).mkdir()
        for _ in range(count):
            image.new("RGB", (8, 8), (number,) * 3).save(tmp_path / name / f"{number}.png")
            number += 1
    return tmp_path


def test_image_folders_are_counted_without_opening_an_image(folder: Path) -> None:
    dataset = data.create_dataset("", str(folder))
    for path in folder.rglob("*.png"):
        path.write_text("not an image")
    assert eq.Prior.from_dataset(dataset) == PRIOR


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # timm's files
@pytest.mark.parametrize("prefetch", [True, False])
def test_the_loader_draws_balanced_and_keeps_the_rest(folder: Path, prefetch: bool) -> None:
    dataset = data.create_dataset("", str(folder))
    options = {"is_training": True, "no_aug": True, "num_workers": 0, "device": torch.device("cpu")}
    loader = data.create_loader(dataset, (3, 8, 8), 3, use_prefetcher=prefetch, **options)
    drawn = adapter.balanced(loader, seed=1)
    assert type(drawn) is type(loader)
    epochs = [[target.tolist() for _, target in drawn] for _ in range(2)]
    assert [len(batch) for batch in epochs[0]] == [3] * 5  # 17 items, the last batch dropped
    counts = collections.Counter(target for batch in epochs[0] for target in batch)
    assert set(counts.values()) == {5}
    assert epochs[0] != epochs[1]
    assert isinstance(drawn.sampler, eq.ClassBalancedSampler)
    assert not isinstance(loader.sampler, eq.ClassBalancedSampler)  # the one given is as it was


def test_a_loader_that_cannot_be_rebuilt_is_refused() -> None:
    labels = TensorDataset(torch.zeros(4), torch.tensor([0, 0, 0, 1]))
    with pytest.raises(TypeError, match="with NoneType"):
        adapter.balanced(DataLoader(labels, batch_size=None))
    given = adapter.balanced(DataLoader(labels, 2), [0, 1, 1, 1])
    assert [int(i) for batch in given for i in batch[1]] != []


def test_the_criterion_takes_hard_and_mixed_targets() -> None:
    np.random.seed(0)
    logits, images, hard = torch.randn(4, 3), torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    criterion = adapter.loss(PRIOR, smoothing=0.1)
    smoothed = eq.BalancedSoftmaxLoss(PRIOR, label_smoothing=0.1)(logits, hard)
    torch.testing.assert_close(criterion(logits, hard), smoothed)
    mixup = data.Mixup(mixup_alpha=1.0, label_smoothing=0.1, num_classes=3)
    _, mixed = mixup(images, hard)
    torch.testing.assert_close(criterion(logits, mixed), eq.BalancedSoftmaxLoss(PRIOR)(logits, mixed))
    _, unmixed = data.Mixup(mixup_alpha=0.0, prob=0.0, label_smoothing=0.1, num_classes=3)(images, hard)
    torch.testing.assert_close(criterion(logits, unmixed), smoothed)  # smoothed once, by whom does not matter


@pytest.mark.filterwarnings("ignore")
def test_the_training_task_learns_with_it() -> None:
    task_module = pytest.importorskip("timm.task")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3, pretrained=False)
    task = task_module.ClassificationTask(model, adapter.loss(PRIOR), device=torch.device("cpu"), verbose=False)
    result = task(torch.randn(4, 3, 32, 32), torch.eye(3)[[0, 1, 2, 0]])
    result["loss"].backward()
    assert model.get_classifier().weight.grad.abs().sum() > 0
