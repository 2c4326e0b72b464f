"""Labels of real data sets, found without decoding an image."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)

from equipoise import Prior


class Undecodable:
    """Fails the test if an item is read."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(getattr(self, "targets", getattr(self, "labels", [])))

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("an image was decoded to count its label")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, number in {"cat": 3, "dog": 1, "owl": 2}.items():
        (tmp_path / name).mkdir()
        for i in range(number):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def no_loader(path: str) -> Any:
    raise AssertionError(f"{path} was decoded to count its label")


def test_targets_and_labels_are_read_where_they_are() -> None:
    for kind in (list, np.array, torch.tensor):
        assert Prior.from_dataset(Undecodable(targets=kind([0, 1, 1, 2, 1]))).counts.tolist() == [1, 3, 1]
        assert Prior.from_dataset(Undecodable(labels=kind([0, 1, 1, 2, 1]))).counts.tolist() == [1, 3, 1]


def test_torchvision_folders_keep_their_class_names(folder: Path) -> None:
    images = torchvision.datasets.ImageFolder(str(folder), loader=no_loader)
    prior = Prior.from_dataset(images)
    assert prior == Prior.from_counts({"cat": 3, "dog": 1, "owl": 2})
    files = torchvision.datasets.DatasetFolder(str(folder), no_loader, extensions=(".png",))
    assert Prior.from_dataset(files) == prior


def test_a_target_transform_counts_what_training_sees(folder: Path) -> None:
    images = torchvision.datasets.ImageFolder(str(folder), loader=no_loader, target_transform=lambda y: 2 - y)
    assert Prior.from_dataset(images) == Prior.from_counts([2, 1, 3])


def test_a_torchvision_data_set_without_targets_is_read_item_by_item() -> None:
    fake = torchvision.datasets.FakeData(size=6, image_size=(3, 4, 4), num_classes=3)
    with pytest.warns(UserWarning, match=r"this FakeData has no \.targets or \.labels: reading every item") as caught:
        counted = Prior.from_dataset(fake)
    assert counted.total == 6
    assert caught[0].filename == __file__


def test_nested_subsets_concatenations_and_splits(folder: Path) -> None:
    images = torchvision.datasets.ImageFolder(str(folder), loader=no_loader)
    tail = Subset(Subset(images, [0, 3, 4, 5]), [1, 2, 3])
    assert Prior.from_dataset(tail) == Prior.from_counts({"cat": 0, "dog": 1, "owl": 2})
    both = ConcatDataset([images, tail])
    assert Prior.from_dataset(both) == Prior.from_counts({"cat": 3, "dog": 2, "owl": 4})
    parts = random_split(both, [0.5, 0.5], generator=torch.Generator().manual_seed(0))
    assert sum(Prior.from_dataset(part) for part in parts) == Prior.from_dataset(both)


def test_concatenated_data_sets_must_agree_on_their_names(folder: Path) -> None:
    images = torchvision.datasets.ImageFolder(str(folder), loader=no_loader)
    with pytest.raises(ValueError, match="name their classes differently"):
        Prior.from_dataset(ConcatDataset([images, Undecodable(targets=[0], classes=["eel"])]))  # type: ignore[list-item]


def test_tensor_datasets() -> None:
    data = TensorDataset(torch.zeros(4, 3), torch.tensor([1, 0, 1, 1]))
    assert Prior.from_dataset(data).counts.tolist() == [1, 3]
    assert Prior.from_dataset(data, num_classes=5).counts.tolist() == [1, 3, 0, 0, 0]
    with pytest.raises(ValueError, match="one tensor only"):
        Prior.from_dataset(TensorDataset(torch.zeros(4)))


def test_hugging_face_datasets_are_counted_by_column() -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "mood": datasets.ClassLabel(names=["sad", "calm", "glad"])}
    )
    data = datasets.Dataset.from_dict({"text": list("abcdef"), "mood": [0, 0, 1, 0, 1, 0]}, features=features)
    expected = Prior.from_counts({"sad": 4, "calm": 2, "glad": 0})
    assert Prior.from_dataset(data, label="mood") == expected
    assert Prior.from_dataset(data.select([0, 2, 4]), label="mood").counts.tolist() == [1, 2, 0]
    assert Prior.from_dataset(data.shuffle(seed=0).with_format("torch"), label="mood") == expected
    assert Prior.from_dataset(data.to_iterable_dataset(), label="mood") == expected
    assert Prior.from_dataset(Subset(data, [0, 1]), label="mood").counts.tolist() == [2, 0, 0]  # type: ignore[type-var]
    with pytest.raises(ValueError, match=r"no column 'label': pass label= one of \['text', 'mood'\]"):
        Prior.from_dataset(data)
    with pytest.raises(TypeError, match=r"dictionary of splits \(train\)"):
        Prior.from_dataset(datasets.DatasetDict({"train": data}), label="mood")
    with pytest.raises(ValueError, match="empty"):
        Prior.from_dataset(data.select([]), label="mood")


def test_hugging_face_images_are_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    data = datasets.Dataset.from_dict(
        {"image": [str(tmp_path / "broken.png")] * 3, "label": [0, 1, 1]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    assert Prior.from_dataset(data).counts.tolist() == [1, 2]


def test_labels_that_mark_nothing_can_be_ignored() -> None:
    assert Prior.from_dataset(Undecodable(labels=[0, -1, 1, 1]), ignore_index=-1).counts.tolist() == [1, 2]


def test_labels_must_be_those_of_the_items() -> None:
    class Short(Undecodable):
        def __len__(self) -> int:
            return 3

    with pytest.raises(ValueError, match=r"10 \.targets for 3 items"):
        Prior.from_dataset(Short(targets=[0] * 10))


def test_synonyms_make_one_name() -> None:
    data = Undecodable(targets=[0, 1], classes=[("tench", "Tinca tinca"), ("eel",)])
    assert Prior.from_dataset(data).class_names == ("tench, Tinca tinca", "eel")


def test_an_empty_or_unnamed_part_does_not_stop_the_others(folder: Path) -> None:
    images = torchvision.datasets.ImageFolder(str(folder), loader=no_loader)
    tensors = TensorDataset(torch.zeros(2, 3), torch.tensor([1, 1]))
    both = ConcatDataset([images, tensors, Subset(images, [])])
    assert Prior.from_dataset(both) == Prior.from_counts({"cat": 3, "dog": 3, "owl": 2})


def test_of_a_subset_only_its_own_items_are_read() -> None:
    class Broken(Dataset[Any]):
        read: ClassVar[list[int]] = []

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            self.read.append(index)
            return "image", index % 2

    with pytest.warns(UserWarning, match="reading every item"):
        prior = Prior.from_dataset(Subset(Subset(Broken(), [5, 6, 9]), [0, 2]))
    assert prior.counts.tolist() == [0, 2]
    assert Broken.read == [5, 9]


def test_streams_with_a_length_and_chains_are_iterated() -> None:
    class Sized(Stream):
        def __len__(self) -> int:
            return 3

    for stream in (Sized(), ChainDataset([Sized(), Sized()])):
        with pytest.warns(UserWarning, match="reading every item"):
            assert Prior.from_dataset(stream).imbalance == 2
    with pytest.raises(TypeError, match=r"pass its data set, loader\.dataset"):
        Prior.from_dataset(DataLoader(Plain([("a", 0)])))


@pytest.mark.parametrize("transform", [lambda y: y + 0.7, str, lambda y: [0, 1]])
def test_a_target_transform_must_give_class_indices(folder: Path, transform: Any) -> None:
    images = torchvision.datasets.ImageFolder(str(folder), loader=no_loader, target_transform=transform)
    with pytest.raises((TypeError, ValueError), match=r"label|target_transform"):
        Prior.from_dataset(images)


class Plain(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([("a", 1), ("b", 0), ("c", torch.tensor(1))])


def test_anything_else_is_read_item_by_item_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="reading every item"):
        assert Prior.from_dataset(Plain([("a", 1), ("b", 0), ("c", torch.tensor([1]))])).counts.tolist() == [1, 2]
    with pytest.warns(UserWarning, match="reading every item"):
        assert Prior.from_dataset(Stream()).counts.tolist() == [1, 2]
    with pytest.warns(UserWarning, match="reading every item"):
        assert Prior.from_dataset(Plain([{"x": 0, "kind": 1}]), label="kind").counts.tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore:.*reading every item")
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Plain([]), "empty"),
        (Undecodable(targets=[]), "empty"),
        (Plain(["a"]), r"item 0 has no label: expected \(input, label\)"),
        (Plain([("a", 0), {"y": 1}]), "item 1 has no label.*the key 'label'"),
        (Plain([("a", [0, 1])]), r"label of item 0 has shape \(2,\).*from_multilabel"),
        (Plain([("a", 0.5)]), "expected integers"),
        (Undecodable(targets=[[0, 1], [1, 1]]), r"Prior\.from_multilabel"),
        (3, "not a data set"),
    ],
    ids=["empty", "no targets", "no label", "other key", "two labels", "fraction", "multi-label", "a number"],
)
def test_data_sets_without_usable_labels_are_refused(dataset: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Prior.from_dataset(dataset)


# ------------------------------------------------------------------ COCO and LVIS files


def write(path: Path, **content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


CATEGORIES = [{"id": 7, "name": "owl"}, {"id": 2, "name": "cat"}, {"id": 9, "name": "eel"}]
ANNOTATIONS = [
    {"id": number, "image_id": image, "category_id": category}
    for number, (image, category) in enumerate([(1, 2), (1, 2), (1, 7), (5, 2), (8, 2)])
]


def test_coco_counts_images_or_instances_in_the_order_of_category_ids(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.json", images=[{"id": i} for i in (1, 5, 6, 8)], annotations=ANNOTATIONS, categories=CATEGORIES
    )
    images, instances = Prior.from_coco(path), Prior.from_coco(str(path), by="instances")
    assert images.class_names == ("cat", "owl", "eel")
    assert images.class_ids == (2, 7, 9)
    assert (images.counts.tolist(), images.total) == ([3, 1, 0], 3)
    assert (instances.counts.tolist(), instances.total) == ([4, 1, 0], 5)


def test_image_ids_may_be_names(tmp_path: Path) -> None:
    annotations = [{"image_id": name, "category_id": 2} for name in ("a", "b", "a")]
    prior = Prior.from_coco(write(tmp_path / "a.json", annotations=annotations, categories=CATEGORIES))
    assert (prior.counts.tolist(), prior.total) == ([2, 0, 0], 2)


def test_coco_counts_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = list(zip(rng.integers(0, 40, 500).tolist(), rng.integers(0, 9, 500).tolist(), strict=True))
    path = write(
        tmp_path / "a.json",
        annotations=[{"image_id": i * 1000, "category_id": c * 3} for i, c in pairs],
        categories=[{"id": c * 3, "name": str(c)} for c in range(10)],
    )
    prior = Prior.from_coco(path)
    assert prior.counts.tolist() == [len({i for i, c in pairs if c == k}) for k in range(10)]
    assert prior.total == len({i for i, _ in pairs})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"annotations": ANNOTATIONS}, "has no 'categories'"),
        ({"categories": CATEGORIES, "images": []}, "has no 'annotations'"),
        ({"categories": CATEGORIES[:1], "annotations": ANNOTATIONS}, "annotation 0 has category_id 2"),
        ({"categories": CATEGORIES * 2, "annotations": ANNOTATIONS}, "two of its 'categories' have the id 7"),
        ({"categories": CATEGORIES, "annotations": [{"segments_info": []}]}, "panoptic"),
    ],
    ids=["no categories", "no annotations", "unknown category", "twice", "panoptic"],
)
def test_files_that_are_no_annotations_are_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Prior.from_coco(write(tmp_path / "bad.json", **content))
    assert "bad.json" in str(error.value)


def test_files_that_are_no_json_are_named(tmp_path: Path) -> None:
    for text in ("{", "[" * 100_000, ""):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match=r"bad\.json is not JSON"):
            Prior.from_coco(tmp_path / "bad.json")
    with pytest.raises(FileNotFoundError, match="missing"):
        Prior.from_coco(tmp_path / "missing.json")
    with pytest.raises(ValueError, match="'images' or 'instances'"):
        Prior.from_coco(tmp_path / "bad.json", by="pixels")  # type: ignore[arg-type]


def test_a_large_annotation_file_takes_little_more_than_its_json(tmp_path: Path) -> None:
    """100,000 annotations of 20,000 categories. Reading and counting takes about four times as long as parsing alone; a
    search through the categories or the images for each annotation would take a hundred times as long."""
    rng = np.random.default_rng(0)
    size, images, classes = 100_000, 8_000, 20_000
    rows = zip(rng.integers(0, images, size).tolist(), rng.integers(1, classes + 1, size).tolist(), strict=True)
    annotations = ",".join(
        f'{{"id":{n},"image_id":{i},"category_id":{c},"bbox":[0,0,9,9]}}' for n, (i, c) in enumerate(rows)
    )
    categories = json.dumps([{"id": c, "name": f"class {c}"} for c in range(1, classes + 1)])
    path = tmp_path / "lvis.json"
    path.write_text(f'{{"images":[],"categories":{categories},"annotations":[{annotations}]}}')
    read, counted = [], []
    for _ in range(3):  # the least of three: imports, and what else a machine does, are not what is compared
        start = time.process_time()
        json.loads(path.read_bytes())
        middle = time.process_time()
        prior = Prior.from_coco(path)
        read.append(middle - start)
        counted.append(time.process_time() - middle)
    assert min(counted) < 20 * min(read)
    assert prior.num_classes == classes
    assert Prior.from_coco(path, by="instances").total == size
