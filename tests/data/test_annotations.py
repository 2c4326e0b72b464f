"""Data sets whose items hold several classes: each kind is counted alike wherever it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

import equipoise as eq

datasets = pytest.importorskip("datasets")

SETS = [[0, 1], [0], [], [0, 2], [1]]
HOT = [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0]]
TOKENS = [[0, 0, 1, -100], [0, 2, -100, -100], [0, 0, 0, 0]]
NAMES = ["cat", "dog", "owl", "yak"]


def hugging_face(values: list[list[int]], feature: Any) -> Any:
    features = datasets.Features({"text": datasets.Value("string"), "labels": feature})
    return datasets.Dataset.from_dict({"text": ["x"] * len(values), "labels": values}, features=features)


def class_lists() -> list[Any]:
    return [datasets.List(datasets.ClassLabel(names=NAMES)), datasets.Sequence(datasets.ClassLabel(names=NAMES))]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("streamed", [False, True])
def test_lists_of_classes_are_counted_with_their_names(number: int, streamed: bool) -> None:
    data = hugging_face(SETS, class_lists()[number])
    data = data.to_iterable_dataset() if streamed else data
    prior = eq.Prior.from_dataset(data, label="labels", kind="multilabel")
    assert prior == eq.Prior.from_counts([3, 2, 1, 0], total=5, class_names=NAMES)


def test_lists_that_hold_only_zeros_and_ones_are_classes_where_the_feature_says_so() -> None:
    data = hugging_face([[0, 1], [1, 0], [1, 1]], class_lists()[0])
    prior = eq.Prior.from_dataset(data, label="labels", kind="multilabel")
    assert prior.counts.tolist() == [2, 3, 0, 0]  # the class twice in a list counts once


def test_multi_hot_labels_are_counted_wherever_they_are() -> None:
    tensor = torch.tensor(HOT)
    expected = eq.Prior.from_multilabel(HOT)
    plain = hugging_face(HOT, datasets.List(datasets.Value("int64")))
    floats = hugging_face(HOT, datasets.List(datasets.Value("float32")))
    kept = TensorDataset(torch.zeros(5), tensor.float())
    for data in (plain, floats, plain.to_iterable_dataset(), kept, ConcatDataset([kept])):
        assert eq.Prior.from_dataset(data, label="labels", kind="multilabel") == expected
    assert eq.Prior.from_dataset(Subset(kept, [0, 3]), kind="multilabel").counts.tolist() == [2, 1, 1, 0]


class Kept:
    """A data set that keeps its labels beside its items."""

    def __init__(self, targets: list[Any], length: int) -> None:
        self.targets, self.length = targets, length

    def __len__(self) -> int:
        return self.length


def test_zeros_and_ones_for_another_number_of_classes_are_refused() -> None:
    for hot in (HOT, np.array(HOT, bool)[:, :2]):
        with pytest.raises(ValueError, match=r"every item has . zeros and ones for 6 classes: expected one for each"):
            eq.Prior.from_dataset(Kept(list(hot), 5), kind="multilabel", num_classes=6)
    pairs = eq.Prior.from_dataset(Kept([[0, 1], [1, 0]], 2), kind="multilabel", num_classes=6)
    assert pairs.counts.tolist() == [2, 2, 0, 0, 0, 0]  # two classes of each item


def test_labels_for_another_number_of_items_are_refused() -> None:
    with pytest.raises(ValueError, match=r"this Kept has 5 \.targets for 3 items: pass the labels of the items"):
        eq.Prior.from_dataset(Kept(HOT, 3), kind="multilabel")


def test_columns_of_zeros_and_ones_are_classes_of_their_names() -> None:
    columns = dict(zip(NAMES, np.array(HOT).T.tolist(), strict=True))
    data = datasets.Dataset.from_dict({"text": ["x"] * 5, **columns})
    prior = eq.Prior.from_dataset(data, label=NAMES, kind="multilabel")
    assert prior == eq.Prior.from_counts([3, 2, 1, 0], total=5, class_names=NAMES)
    with pytest.raises(ValueError, match="no column 'emu'"):
        eq.Prior.from_dataset(data, label=["cat", "emu"], kind="multilabel")
    with pytest.raises(TypeError, match="go with kind='multilabel'"):
        eq.Prior.from_dataset(data, label=NAMES)


@pytest.mark.parametrize("streamed", [False, True])
def test_tokens_are_counted_without_their_padding(streamed: bool) -> None:
    data = hugging_face(TOKENS, datasets.List(datasets.Value("int64")))
    data = data.to_iterable_dataset() if streamed else data
    assert eq.Prior.from_dataset(data, label="labels", kind="tokens") == eq.Prior.from_counts([7, 1, 1])
    wider = eq.Prior.from_dataset(data, label="labels", kind="tokens", num_classes=5)
    assert wider.counts.tolist() == [7, 1, 1, 0, 0]
    with pytest.raises(ValueError, match="-100 is negative"):
        eq.Prior.from_dataset(data, label="labels", kind="tokens", ignore_index=0)


def test_a_column_of_several_classes_names_the_kinds() -> None:
    with pytest.raises(TypeError, match="kind='multilabel', or kind='tokens'"):
        eq.Prior.from_dataset(hugging_face(SETS, class_lists()[0]), label="labels")
    with pytest.raises(ValueError, match="kind is 'masked'"):
        eq.Prior.from_dataset(hugging_face(SETS, class_lists()[0]), label="labels", kind="masked")  # type: ignore[arg-type]


class Maps(IterableDataset[Any]):
    """MONAI's dictionaries: a map [1, H, W] of floats per item."""

    def __iter__(self) -> Iterator[Any]:
        for value in (0, 1, 1):
            label = torch.full((1, 2, 3), float(value))
            label[0, 0, 0] = 255
            yield {"image": torch.zeros(1, 2, 3), "label": label}


def test_label_maps_are_counted_by_pixel() -> None:
    with pytest.warns(UserWarning, match="reading every item"):
        prior = eq.Prior.from_dataset(Maps(), kind="masks", num_classes=3, ignore_index=255)
    assert prior.counts.tolist() == [5, 10, 0]
    with pytest.raises(ValueError, match="pass num_classes"):
        eq.Prior.from_dataset(Maps(), kind="masks")


def test_a_folder_of_label_maps_is_counted(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "deeper").mkdir()
    image.fromarray(np.array([[0, 1], [1, 255]], np.uint8)).save(tmp_path / "a.png")
    indexed = image.new("P", (2, 1), color=2)  # as VOC's: indices with colours for the eye
    indexed.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    indexed.save(tmp_path / "deeper" / "b.png")
    np.save(tmp_path / "c.npy", np.zeros((1, 3), np.int64))
    (tmp_path / "notes.txt").write_text("no label map")
    prior = eq.Prior.from_masks(tmp_path, num_classes=3, ignore_index=255)
    assert prior.counts.tolist() == [4, 2, 2]
    image.new("RGB", (2, 1)).save(tmp_path / "d.png")
    with pytest.raises(ValueError, match=r"d\.png is a colour image \(RGB\)"):
        eq.Prior.from_masks(str(tmp_path), num_classes=3, ignore_index=255)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no label maps"):
        eq.Prior.from_masks(tmp_path / "empty", num_classes=3)
