"""Tables of images with several labels each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tagged_photos import CLASSES, write_tagged
from torch.utils.data import DataLoader

from equipoise.data.image_files import BadImage, BadImages
from equipoise.data.image_stream import ImageStream
from equipoise.data.tagged_images import read_tagged_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged(tmp_path_factory.mktemp("tagged"))


def test_labels_become_zeros_and_ones_and_the_prior_counts_them(folder: Path) -> None:
    train = read_tagged_images(folder / "labels.csv", part="train")
    test = read_tagged_images(folder / "labels.csv", part="test", class_names=train.class_names)
    assert (len(train), len(test), train.class_names) == (24, 12, CLASSES)
    assert train.labels[0].tolist() == [1, 1, 1]
    lines = (folder / "labels.csv").read_text().splitlines()[1:25]
    expected = [[int(name in line.split(",")[2].split()) for name in CLASSES] for line in lines]
    assert train.labels.tolist() == expected
    assert train.prior.counts.tolist() == np.sum(expected, 0).tolist()
    assert train.prior.total == 24
    assert test.digest != train.digest != read_tagged_images(folder / "labels.csv").digest


def test_lists_of_labels_are_read_in_every_way_of_writing(folder: Path) -> None:
    path = folder / "ways.csv"
    path.write_text(
        'file,tags\nimages/0.png,cat owl\nimages/1.png,cat;owl\nimages/2.png,"[""cat"", ""owl""]"\nimages/3.png,\n'
    )
    assert read_tagged_images(path).labels.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]


def test_images_come_with_their_labels_one_by_one(folder: Path) -> None:
    train = read_tagged_images(folder / "labels.csv", part="train")
    pixels, labels = next(iter(DataLoader(ImageStream(train, 16, resize="square"), batch_size=4)))
    assert pixels.shape == (4, 3, 16, 16)
    assert torch.equal(labels, torch.from_numpy(train.labels[:4]))


def test_a_class_that_loses_its_last_readable_image_is_refused(folder: Path) -> None:
    train = read_tagged_images(folder / "labels.csv", part="train")
    owls = np.flatnonzero(train.labels[:, 2])
    bad = BadImages(tuple(BadImage(int(index), train.key(int(index)), "cut off") for index in owls))
    with pytest.raises(ValueError, match="no readable image of class owl"):
        train.without(bad)
    assert len(train.without(BadImages(bad.items[:1]))) == 23


BAD = {
    "unknown label": ("file,labels\nimages/0.png,cat fox\n", ("bird", "cat"), "'fox' is not a class: .*bird, cat"),
    "twice": ("file,labels\nimages/0.png,cat\nimages/0.png,owl\n", None, "has images/0.png twice"),
    "no column": ("file,kind\nimages/0.png,cat\n", None, "expected one with the labels, called labels, tags, label or"),
    "no labels": ("file,labels\nimages/0.png,\n", None, "has no labels"),
    "no rows": ("file,labels\n", None, "lists no images"),
    "no file": ("file,labels\n,cat\n", None, "line 2, column 'file' is empty"),
    "no image": ("file,labels\nnothing.png,cat\n", None, "lists 1 images and none of them exists, e.g. .*nothing.png"),
    "a broken list": ('file,labels\nimages/0.png,"[cat, owl]"\n', None, "line 2: .* is not a list"),
}


@pytest.mark.parametrize(("content", "classes", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_one_message(
    content: str, classes: tuple[str, ...] | None, message: str, folder: Path
) -> None:
    path = folder / "bad.csv"
    path.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_tagged_images(path, class_names=classes)


def test_a_part_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="lists no images of the part 'val'"):
        read_tagged_images(folder / "labels.csv", part="val")
    (folder / "plain.csv").write_text("file,labels\nimages/0.png,cat\n")
    with pytest.raises(ValueError, match="expected one called part"):
        read_tagged_images(folder / "plain.csv", part="train")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_tagged_images(folder / "nothing.csv")
