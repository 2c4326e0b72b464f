"""Images listed from every kind of source, with the same labels; and every bad source refused in one line."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torchvision
from PIL import Image

from equipoise import Prior
from equipoise.data.image_files import BadImage, BadImages
from equipoise.data.images import ImageList, find_splits, read_images, stratified_split
from equipoise.data.sources import read_prior

COUNTS = {"cat": 3, "dog": 1, "owl": 2}
FILES = [f"{name}/{number}.png" for name, count in COUNTS.items() for number in range(count)]
LABELS = [0, 0, 0, 1, 2, 2]
NAMES = ("cat", "dog", "owl")


def picture(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4), (value, 0, 0)).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, file in enumerate(FILES):
        picture(tmp_path / "images" / file, number * 10)
    return tmp_path / "images"


def red(images: ImageList) -> list[int]:
    """What was painted into each image."""
    return [np.asarray(images.read(index))[0, 0, 0].item() for index in range(len(images))]


# ------------------------------------------------------------------ every source


def csv_file(folder: Path, labels: list[Any]) -> Path:
    rows = [f"{number},{file},{label}" for number, (file, label) in enumerate(zip(FILES, labels, strict=True))]
    path = folder.parent / "list.csv"
    path.write_text("\n".join(["id,filename,category", *rows]) + "\n")
    return path


def tsv_file(folder: Path, labels: list[Any]) -> Path:
    path = folder.parent / "list.tsv"
    path.write_text("image\tlabel\n" + "".join(f"{f}\t{n}\n" for f, n in zip(FILES, labels, strict=True)))
    return path


def txt_file(folder: Path, labels: list[Any]) -> Path:
    path = folder.parent / "list.txt"
    path.write_text("".join(f"{file} {label}\n" for file, label in zip(FILES, labels, strict=True)))
    return path


def parquet_file(folder: Path, labels: list[Any]) -> Path:
    path = folder.parent / "list.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"path": FILES, "label": labels}), path)
    return path


def json_file(folder: Path, labels: list[Any]) -> Path:
    content = {
        "images": [{"id": 100 + number, "file_name": file} for number, file in enumerate(FILES)],
        "annotations": [
            {"id": number, "image_id": 100 + number, "category_id": 7 + LABELS[number]} for number in range(len(FILES))
        ],
        "categories": [{"id": 7 + number, "name": NAMES[number]} for number in (2, 0, 1)],
    }
    path = folder.parent / "train2018.json"
    path.write_text(json.dumps(content))
    return path


LISTS = [csv_file, tsv_file, txt_file, parquet_file]


@pytest.mark.parametrize("write", [*LISTS, json_file])
def test_lists_of_names_agree_with_the_folder(folder: Path, write: Callable[[Path, list[Any]], Path]) -> None:
    of_folder = read_images(folder)
    listed = read_images(write(folder, [NAMES[label] for label in LABELS]), images=folder)
    assert listed.paths == of_folder.paths == tuple(FILES)
    assert listed.labels.tolist() == of_folder.labels.tolist() == LABELS
    assert listed.labels.dtype == np.int64
    assert listed.class_names == of_folder.class_names == NAMES
    assert listed.prior == of_folder.prior
    assert listed.prior.counts.tolist() == list(COUNTS.values())
    assert listed.digest == of_folder.digest
    assert red(listed) == red(of_folder) == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize("write", LISTS)
def test_lists_of_numbers_name_their_classes_by_number(folder: Path, write: Callable[[Path, list[Any]], Path]) -> None:
    listed = read_images(write(folder, LABELS), images=folder)
    assert listed.labels.tolist() == LABELS
    assert listed.class_names == ("0", "1", "2")


def test_a_folder_is_listed_as_torchvision_lists_it(folder: Path) -> None:
    for name in ("cat/nested/a.png", "cat/B.PNG", "owl/a/b/c.png", "owl/a.png", "dog/x.webp"):
        picture(folder / name)
    theirs = torchvision.datasets.ImageFolder(str(folder))
    ours = read_images(folder)
    assert [str(folder / path) for path in ours.paths] == [path for path, _ in theirs.samples]
    assert ours.labels.tolist() == theirs.targets
    assert list(ours.class_names) == theirs.classes
    assert read_prior(folder).prior == ours.prior


def test_what_is_hidden_empty_or_no_image_is_left_out_of_a_folder(folder: Path) -> None:
    picture(folder / ".cache" / "a.png")
    picture(folder / "cat" / ".ipynb_checkpoints" / "0.png")
    picture(folder / "cat" / "._0.png")
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "readme.txt").write_text("no image")
    (folder / "bee").mkdir()
    (folder / "yak" / "deeper").mkdir(parents=True)
    listed = read_images(folder)
    assert listed.paths == tuple(FILES)
    assert listed.class_names == NAMES
    assert listed.notes == ("left out 2 folders without an image: bee, yak",)
    picture(folder / "loose.PNG")
    picture(folder / "._loose.png")
    assert read_images(folder).notes[1:] == ("left out 1 image beside the folders of the classes: loose.PNG",)
    assert read_images(folder).paths == tuple(FILES)


def test_a_folder_can_be_the_one_we_are_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert read_images(".").paths == tuple(FILES)
    monkeypatch.chdir(folder.parent)
    assert read_images("images/").paths == tuple(FILES)
    assert red(read_images("images/")) == [0, 10, 20, 30, 40, 50]


def test_a_link_back_is_not_followed(folder: Path) -> None:
    (folder / "cat" / "again").symlink_to(folder, target_is_directory=True)
    assert read_images(folder).paths == tuple(FILES)


def test_a_path_may_have_spaces_and_start_anywhere(tmp_path: Path) -> None:
    picture(tmp_path / "my cats" / "a b.png", 1)
    outside = picture(tmp_path / "elsewhere" / "owl.png", 2)
    (tmp_path / "list.txt").write_text(f"my cats/a b.png\t0\n{outside}   1\n\n")
    listed = read_images(tmp_path / "list.txt")
    assert listed.paths == ("my cats/a b.png", str(outside))
    assert red(listed) == [1, 2]


def test_columns_can_be_named(folder: Path) -> None:
    path = folder.parent / "odd.csv"
    rows = [f"{number},{file},{label}" for number, (file, label) in enumerate(zip(FILES, LABELS, strict=True))]
    path.write_text("\n".join(["label,where,species", *rows]))
    with pytest.raises(ValueError, match=r"name the one with the paths of the images, e.g. --path-column"):
        read_images(path, images=folder)
    named = read_images(path, images=folder, path_column="where", label_column="species")
    assert named.labels.tolist() == LABELS
    assert read_images(path, images=folder, path_column="where").num_classes == 6


def test_a_table_of_two_columns_needs_no_usual_label(folder: Path) -> None:
    path = folder.parent / "two.csv"
    path.write_text("species,path\n" + "".join(f"{NAMES[n]},{f}\n" for f, n in zip(FILES, LABELS, strict=True)))
    assert read_images(path, images=folder).labels.tolist() == LABELS


def hugging_face(labels: list[int], names: list[str]) -> datasets.Dataset:
    images = [Image.new("RGB", (5, 4), (number * 10, 0, 0)) for number in range(len(labels))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)


@pytest.mark.parametrize("kind", ["saved", "parquet", "folder of parquet"])
def test_images_inside_hugging_face_data_sets_are_read(tmp_path: Path, kind: str) -> None:
    data = hugging_face(LABELS, [*NAMES, "yak"])
    place = tmp_path / "data"
    if kind == "saved":
        data.save_to_disk(place, num_shards=2)
    elif kind == "parquet":
        place = tmp_path / "data.parquet"
        data.to_parquet(place, batch_size=2)
    else:
        place.mkdir()
        data.select(range(2)).to_parquet(place / "0.parquet")
        data.select(range(2, 6)).to_parquet(place / "1.parquet", batch_size=3)
    listed = read_images(place)
    assert listed.labels.tolist() == LABELS
    assert listed.class_names == (*NAMES, "yak")
    assert red(listed) == [0, 10, 20, 30, 40, 50]
    assert red(listed.subset([5, 1])) == [50, 10]
    assert listed.subset([5, 1]).key(0) == "row 5"
    assert red(pickle.loads(pickle.dumps(listed.subset([4])))) == [40]


def test_a_column_of_images_needs_no_usual_name(tmp_path: Path) -> None:
    data = hugging_face(LABELS, list(NAMES)).rename_column("image", "photo")
    data = data.add_column("path", [f"{number}.png" for number in range(6)])
    data.save_to_disk(tmp_path / "data")
    data.to_parquet(tmp_path / "data.parquet")
    for source in (tmp_path / "data", tmp_path / "data.parquet"):
        assert red(read_images(source)) == [0, 10, 20, 30, 40, 50]


def test_a_saved_data_set_is_counted_without_reading_its_images(tmp_path: Path) -> None:
    hugging_face(LABELS, [*NAMES, "yak"]).save_to_disk(tmp_path / "data")
    assert Prior.from_file(tmp_path / "data") == Prior.from_counts({**COUNTS, "yak": 0})
    assert Prior.from_file(tmp_path / "data") == read_images(tmp_path / "data").prior
    texts = datasets.Dataset.from_dict({"path": FILES, "label": [NAMES[label] for label in LABELS]})
    texts.save_to_disk(tmp_path / "texts")
    assert Prior.from_file(tmp_path / "texts") == Prior.from_counts(COUNTS)


def test_a_saved_dictionary_of_splits_is_found_by_its_parts(tmp_path: Path) -> None:
    parts = {"train": hugging_face(LABELS, list(NAMES)), "validation": hugging_face([2], list(NAMES))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "data")
    train, validation, test = find_splits(tmp_path / "data")
    assert test is None
    assert validation is not None
    listed = read_images(train)
    assert listed.labels.tolist() == LABELS
    assert read_images(validation, class_names=listed.class_names).labels.tolist() == [2]
    with pytest.raises(ValueError, match=r"data holds several splits: pass one of them"):
        read_images(tmp_path / "data")


# ------------------------------------------------------------------ the classes of a training set


def test_a_validation_list_gets_the_indices_of_the_training_set(folder: Path) -> None:
    names = ("owl", "bee", "cat", "dog")
    expected = [2, 2, 2, 3, 0, 0]
    assert read_images(folder, class_names=names).labels.tolist() == expected
    texts = [NAMES[label] for label in LABELS]
    for write in [*LISTS, json_file]:
        listed = read_images(write(folder, texts), images=folder, class_names=names)
        assert listed.labels.tolist() == expected
        assert listed.class_names == names
        assert listed.prior.counts.tolist() == [2, 0, 3, 1]


def test_numbers_are_places_unless_the_names_are_numbers(folder: Path) -> None:
    path = txt_file(folder, LABELS)
    assert read_images(path, images=folder, class_names=NAMES).labels.tolist() == LABELS
    assert read_images(path, images=folder, class_names=["2", "1", "0", "10"]).labels.tolist() == [2, 2, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        (["cat", "cat", "cat", "yak", "gnu", "gnu"], NAMES, "has 2 classes that the training set lacks: yak, gnu"),
        ([0, 0, 0, 1, 3, 3], NAMES, "has a class that the training set lacks: 3"),
        (["cat", "cat", "cat", "0", "owl", "owl"], NAMES, "give all as whole numbers, or all as names"),
        (LABELS, ["1", "2", "3"], "lacks: 0"),
        (LABELS, ["a", "b", "a"], "'a' occurs twice among 3 class names"),
    ],
    ids=["names", "number", "mixed", "numbers as names", "twice"],
)
def test_classes_that_the_training_set_lacks_are_refused(
    folder: Path, labels: list[Any], names: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_images(txt_file(folder, labels), images=folder, class_names=names)


def test_folders_that_the_training_set_lacks_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="lacks: dog, owl"):
        read_images(folder, class_names=["cat", "yak"])


def test_gaps_are_refused_unless_names_are_given(folder: Path) -> None:
    path = txt_file(folder, [0, 0, 0, 2, 5, 5])
    with pytest.raises(
        ValueError, match=r"list\.txt has the labels 0 to 5, but no image of 3 classes: 1, 3, 4: number"
    ):
        read_images(path, images=folder)
    assert read_images(path, images=folder, class_names=list("abcdef")).prior.counts.tolist() == [3, 0, 1, 0, 0, 2]


# ------------------------------------------------------------------ lists of images


def test_a_subset_keeps_the_classes(folder: Path) -> None:
    part = read_images(folder).subset([5, 0])
    assert part.paths == ("owl/1.png", "cat/0.png")
    assert part.labels.tolist() == [2, 0]
    assert part.class_names == NAMES
    assert red(part) == [50, 0]


def test_the_digest_sees_names_paths_labels_and_order(folder: Path) -> None:
    listed = read_images(folder)
    others = [
        listed.subset([1, 0, 2, 3, 4, 5]),
        listed.subset([0, 1, 2, 3, 4]),
        read_images(txt_file(folder, LABELS), images=folder),
        read_images(txt_file(folder, [0, 0, 0, 1, 1, 2]), images=folder, class_names=NAMES),
    ]
    assert len({listed.digest, *(other.digest for other in others)}) == 5
    folder.rename(folder.parent / "moved")
    assert read_images(folder.parent / "moved").digest == listed.digest


def test_bad_images_leave_the_list_but_no_class_may_vanish(folder: Path) -> None:
    listed = read_images(folder)
    kept = listed.without(BadImages((BadImage(1, "cat/1.png", "cut off"), BadImage(5, "owl/1.png", "cut off"))))
    assert kept.paths == ("cat/0.png", "cat/2.png", "dog/0.png", "owl/0.png")
    with pytest.raises(ValueError, match=r"no readable image of class dog: 1 image cannot be read \(1 cut off\)"):
        listed.without(BadImages((BadImage(3, "dog/0.png", "cut off"),)))
    with pytest.raises(ValueError, match="No image is left"):
        listed.without(BadImages(tuple(BadImage(number, "", "cut off") for number in range(6))))


def test_a_repeated_line_is_left_out_and_noted(folder: Path) -> None:
    path = folder.parent / "list.txt"
    path.write_text("cat/0.png 0\ndog/0.png 1\n./cat/0.png 0\n")
    listed = read_images(path, images=folder)
    assert listed.paths == ("cat/0.png", "dog/0.png")
    assert listed.notes == ("left out 1 line that repeats an image",)


def test_missing_files_are_left_for_the_check_unless_all_are_missing(folder: Path) -> None:
    path = txt_file(folder, LABELS)
    (folder / FILES[0]).unlink()
    assert len(read_images(path, images=folder)) == 6
    with pytest.raises(ValueError, match=r"list\.txt: cat/0\.png cannot be read: no such file"):
        read_images(path, images=folder).read(0)
    tried = folder.parent / FILES[0]
    with pytest.raises(FileNotFoundError, match=rf"6 images and none of them exists, e\.g\. {tried}: pass .*--images"):
        read_images(path)
    with pytest.raises(FileNotFoundError, match=r"none of them exists, e\.g\. .*nowhere/cat/0\.png: is .* right\?"):
        read_images(path, images=folder.parent / "nowhere")


# ------------------------------------------------------------------ bad sources


def annotations(**change: Any) -> bytes:
    content: dict[str, Any] = {
        "images": [{"id": 0, "file_name": "cat/0.png"}, {"id": 1, "file_name": "dog/0.png"}],
        "annotations": [{"id": 0, "image_id": 0, "category_id": 0}, {"id": 1, "image_id": 1, "category_id": 1}],
        "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
    }
    return json.dumps({**content, **change}).encode()


def table(**columns: Any) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


BAD: dict[str, tuple[str, bytes, str]] = {
    "empty list": ("a.txt", b"", "is empty"),
    "line without label": ("a.txt", b"cat/0.png 0\ndog/0.png\n", r"line 2 has no label: 'dog/0.png'"),
    "spaces without label": ("a.txt", b"cat/0.png 0\nmy dog.png\n", r"line 2 has no label"),
    "empty line": ("a.txt", b"cat/0.png 0\n\ndog/0.png 1\n", "line 2 is empty"),
    "mixed labels": ("a.txt", b"cat/0.png 0\ndog/0.png dog\n", "line 2 has the label 'dog', line 1 has '0'"),
    "negative label": ("a.txt", b"cat/0.png 0\ndog/0.png -1\n", "'-1'"),
    "huge label": ("a.txt", b"cat/0.png 0\ndog/0.png 99999999999\n", "would make 100000000000 classes"),
    "two labels": ("a.txt", b"cat/0.png 0\ndog/0.png 1\ncat/0.png 1\n", r"two labels: 0 \(line 1\), 1 \(line 3\)"),
    "one class": ("a.txt", b"cat/0.png 0\ncat/1.png 0\n", "one class only, 0"),
    "not UTF-8": ("a.txt", b"cat/\xff.png 0\n", "is not UTF-8 text"),
    "csv not UTF-8": ("a.csv", b"path,label\ncat/\xff.png,0\n", "is not UTF-8 text"),
    "csv without rows": ("a.csv", b"path,label\n", "lists no images"),
    "csv without label": ("a.csv", b"path,label\ncat/0.png,cat\ndog/0.png,\n", "line 3, column 'label' is empty"),
    "csv of one column": ("a.csv", b"path\ncat/0.png\n", "one column 'path': expected one of paths and one of labels"),
    "csv of odd columns": (
        "a.csv",
        b"path,a,b\ncat/0.png,1,2\n",
        "name the one with the labels, e.g. --label-column b",
    ),
    "fractions": ("a.csv", b"path,label\ncat/0.png,0.5\ndog/0.png,1\n", "line 2 has the label 0.5"),
    "lists of tags": (
        "a.csv",
        b"path,tags\ncat/0.png,cat\ndog/0.png,cat;dog\n",
        r"'tags' holds several labels per image \(cat;dog\): equipoise train takes one class per image",
    ),
    "lists in a column of any name": (
        "a.csv",
        b"path,seen\ncat/0.png,cat|dog\ndog/0.png,dog\n",
        "'seen' holds several",
    ),
    "Parquet of lists": (
        "a.parquet",
        table(path=["a", "b"], labels=[["cat"], ["cat", "dog"]]),
        "'labels' holds several labels per image",
    ),
    "open quote": ("a.csv", b'path,label\n"cat/0.png,0\ndog/0.png,1\n', "Is a quote left open"),
    "Parquet cut off": (
        "a.parquet",
        table(path=["a", "b"], label=[0, 1])[:-20],
        "is not a Parquet file, or is damaged",
    ),
    "Parquet with gaps": ("a.parquet", table(path=["a", None], label=[0, 1]), "row 1, column 'path' is empty"),
    "Parquet without paths": ("a.parquet", table(a=["a", "b"], label=[0, 1]), "the one with the paths of the images"),
    "no JSON": ("a.json", b"{", "is not JSON"),
    "no annotations": (
        "a.json",
        annotations(annotations=[]),
        "2 images have no annotation and therefore no class: 0, 1",
    ),
    "no images": ("a.json", annotations(images=[]), "has no 'images'"),
    "no categories": ("a.json", annotations(categories=[]), "has no 'categories'"),
    "two classes": (
        "a.json",
        annotations(annotations=[{"id": i, "image_id": 0, "category_id": i} for i in range(2)]),
        "image 0 has the classes cat, dog: expected one class per image",
    ),
    "unknown ending": ("a.pkl", b"", "ends in '.pkl': expected a folder with one folder per class, or a list"),
}


def test_a_column_of_one_label_may_have_any_text(folder: Path) -> None:
    path = folder.parent / "one.csv"
    path.write_text("path,label\ncat/0.png,cat;old\ndog/0.png,dog|old\n")
    assert read_images(path, images=folder).class_names == ("cat;old", "dog|old")


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=list(BAD))
def test_bad_files_are_refused_in_one_line_that_names_them(
    folder: Path, name: str, content: bytes, message: str
) -> None:
    path = folder.parent / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_images(path, images=folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_folders_are_refused_in_one_line_that_names_them(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare" / "cat").mkdir(parents=True)
    picture(tmp_path / "one" / "cat" / "0.png")
    picture(tmp_path / "flat" / "0.png")
    picture(tmp_path / "split" / "train" / "cat" / "0.png")
    for name, message in [
        ("empty", "has no folders"),
        ("bare", "has 1 folders and no image in them"),
        ("one", "one class only, cat"),
        ("flat", "has no folders"),
        ("split", "holds the splits train"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            read_images(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        read_images(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"0\.png ends in '\.png': expected a folder"):
        read_images(folder / FILES[0])


def test_damaged_saved_data_sets_are_refused(tmp_path: Path) -> None:
    hugging_face(LABELS, list(NAMES)).save_to_disk(tmp_path / "data")
    (file,) = (tmp_path / "data").glob("*.arrow")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=rf"{file.name} is damaged"):
        read_images(tmp_path / "data")
    images = pyarrow.ipc.open_stream(content).read_all().column("image").chunk(0).field("bytes")
    offsets = images.buffers()[1].to_pybytes()[: 4 * 7]
    assert content.count(offsets) == 1
    file.write_bytes(content.replace(offsets, b"\x00" * 24 + b"\xff\xff\xff\x7f"))  # the last image ends far outside
    with pytest.raises(ValueError, match=rf"{file.name} is damaged"):
        read_images(tmp_path / "data")
    (tmp_path / "data" / "state.json").write_text('{"_data_files": [{"filename": "../../etc/passwd"}]}')
    with pytest.raises(ValueError, match=r"state\.json names no files"):
        read_images(tmp_path / "data")


def test_unlabelled_rows_of_a_saved_data_set_are_refused(tmp_path: Path) -> None:
    hugging_face([-1, 0, 1], list(NAMES)).save_to_disk(tmp_path / "data")
    with pytest.raises(ValueError, match=r"row 0 has the label -1: .* Drop unlabelled items"):
        read_images(tmp_path / "data")


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "ca\x1b[2J\nt" / "0.png")
    with pytest.raises(ValueError, match=r"one class only, ca\\x1b\[2J\\nt"):
        read_images(tmp_path / "a")


# ------------------------------------------------------------------ splits


@pytest.mark.parametrize(
    "names", [("train", "val", "test"), ("Training", "VALID", "Test"), ("train", "validation", None)]
)
def test_splits_are_found_by_their_names(tmp_path: Path, names: tuple[str, str, str | None]) -> None:
    for name in names:
        if name is not None:
            picture(tmp_path / name / "cat" / "0.png")
    (tmp_path / "docs").mkdir()
    assert find_splits(tmp_path) == tuple(None if name is None else tmp_path / name for name in names)


def test_a_folder_of_classes_and_a_file_are_all_training(folder: Path) -> None:
    assert find_splits(folder) == (folder, None, None)
    picture(folder / "train" / "0.png")  # a class of trains
    assert find_splits(folder) == (folder, None, None)
    file = txt_file(folder, LABELS)
    assert find_splits(file) == (file, None, None)


def test_a_test_folder_without_classes_is_left_out(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / "0.png")
    picture(tmp_path / "test" / "0.png")
    assert find_splits(tmp_path) == (tmp_path / "train", None, None)


def test_a_validation_folder_without_classes_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / "0.png")
    picture(tmp_path / "val" / "0.png")
    with pytest.raises(ValueError, match="val has images, but no folder per class"):
        find_splits(tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("train", "val", "valid"), "has the folders val and valid"),
        (("val", "test"), "has test, val, but no folder train"),
        (("train", "cat"), "has train beside folders of images, cat"),
    ],
)
def test_mixtures_of_splits_are_refused(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        picture(tmp_path / name / "cat" / "0.png")
    with pytest.raises(ValueError, match=message) as caught:
        find_splits(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_stratified_split_takes_a_share_of_each_class_and_never_all() -> None:
    sizes = [1, 2, 3, 5, 10, 100]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), sizes))
    train, held_out = stratified_split(labels, 0.2, seed=3)
    assert sorted([*train, *held_out]) == list(range(len(labels)))
    assert np.bincount(labels[held_out], minlength=6).tolist() == [0, 0, 1, 1, 2, 20]
    assert np.bincount(labels[stratified_split(labels, 0.99)[0]]).tolist() == [1, 1, 1, 1, 1, 1]
    assert held_out.tolist() == stratified_split(labels.tolist(), 0.2, seed=3)[1].tolist()
    assert held_out.tolist() != stratified_split(labels, 0.2, seed=4)[1].tolist()


def test_the_draw_is_the_same_on_every_machine() -> None:
    assert stratified_split([0, 1] * 10, 0.2, seed=0)[1].tolist() == [2, 3, 11, 18]


@pytest.mark.parametrize(
    ("labels", "share", "message"),
    [
        ([], 0.2, "expected one class index per item"),
        ([0.5], 0.2, "float64"),
        ([0], 0, "share is 0"),
        ([0], 1.0, "share"),
    ],
)
def test_splits_of_nothing_are_refused(labels: list[Any], share: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stratified_split(labels, share)


def test_an_unreadable_folder_is_named(folder: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (folder / "cat").chmod(0)
    try:
        with pytest.raises((ValueError, OSError), match="cat"):
            read_images(folder)
    finally:
        (folder / "cat").chmod(0o755)
