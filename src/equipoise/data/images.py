"""The images of a data set and their classes, as files: listed, split and checked before anything is decoded.

`read_images` reads any kind of source (`image_lists.py` lists them); `decode` and `check_images` of `image_files.py`
look at every image. Labels are class indices; without `class_names` they come from the source:

    folder of class folders   the sorted names of the folders that hold an image, as torchvision's `ImageFolder`
    labels that are names     sorted
    whole numbers             the classes "0" to "K − 1"; a gap in the numbers is refused
    annotations, ClassLabel   all classes that the file lists, in its order, even those without an image

With the `class_names` of a training set, every label must be one of them, and classes may be without images.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from equipoise.data.class_folders import IMAGES, TEST, TRAIN, VALIDATION
from equipoise.data.image_files import BadImages, Pixels, Resize, open_rgb, quiet, square, why_bad
from equipoise.data.image_lists import Columns, Listed, list_images
from equipoise.data.image_tables import Embedded
from equipoise.data.reading import reading, shown, twice, visible
from equipoise.data.sources import is_whole, number_labels
from equipoise.prior import IntArray, Prior

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, eq=False)
class ImageList:
    """The images of a data set by name, with their labels and the names of the classes. Labels are class indices [N],
    or zeros and ones [N, K] if an image may have several.

    `paths` are relative to `root`, or name rows of a table that holds the images, whose numbers are `rows`. `notes` are
    sentences about what was left out of the source.
    """

    source: Path
    root: Path
    paths: tuple[str, ...]
    labels: IntArray
    class_names: tuple[str, ...]
    rows: IntArray | None = None
    embedded: Embedded | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_files(cls, files: Sequence[str | os.PathLike[str]]) -> ImageList:
        """Files without labels: all of class 0, which has no name."""
        paths = tuple(os.path.abspath(file) for file in files)
        return cls(Path(), Path("/"), paths, np.zeros(len(paths), np.int64), ("",))

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def prior(self) -> Prior:
        """How often each class occurs."""
        if self.labels.ndim == 2:
            return Prior.from_multilabel(self.labels, class_names=self.class_names)
        return Prior.from_labels(self.labels, class_names=self.class_names)

    @property
    def digest(self) -> str:
        """Identifies the list: the start of the SHA-256 of its class names, paths and labels, whatever its location."""
        names = "\0".join((*self.class_names, "", *self.paths)).encode("utf-8", "surrogatepass")
        return hashlib.sha256(names + self.labels.astype("<i8").tobytes()).hexdigest()[:16]

    def key(self, index: int) -> str:
        """The name of an image in predictions and messages: its path as in the source, or its row."""
        return self.paths[index]

    def open(self, index: int) -> str | bytes:
        """The file of an image, or its bytes if it is inside a table."""
        if self.embedded is not None and self.rows is not None:
            return self.embedded.read(int(self.rows[index]))
        return os.path.join(self.root, self.paths[index])

    def read(self, index: int) -> Image:
        """An image, upright and in RGB; if it cannot be decoded, the error names it."""
        with self.naming(index):
            return open_rgb(self.open(index))

    def square(self, index: int, size: int, resize: Resize = "shorter") -> Pixels:
        """An image as in `decode`, uint8 [3, size, size]; if it cannot be decoded, the error names it."""
        with self.naming(index):
            return square(self, index, size, resize)

    @contextmanager
    def naming(self, index: int) -> Iterator[None]:
        """Turn whatever goes wrong while an image is read into an error that names it."""
        try:
            with quiet():
                yield
        except (MemoryError, ImportError):
            raise
        except Exception as error:
            raise ValueError(f"{self.source}: {visible(self.key(index))} cannot be read: {why_bad(error)}") from None

    def subset(self, indices: ArrayLike) -> ImageList:
        """The images with these numbers, in this order; the classes stay the same."""
        chosen = np.asarray(indices, np.int64)
        paths = tuple(self.paths[index] for index in chosen.tolist())
        rows = None if self.rows is None else self.rows[chosen]
        return replace(self, paths=paths, labels=self.labels[chosen], rows=rows)

    def without(self, bad: BadImages, *, all_classes: bool = True) -> ImageList:
        """The list without the images that cannot be decoded; a class that loses its last one is refused, unless
        `all_classes` is False, as for images to evaluate on."""
        kept = self.subset(np.setdiff1d(np.arange(len(self)), bad.indices))
        if not len(kept):
            raise ValueError(f"{self.source}: {bad}. No image is left")
        counts, left = (_counts(labels, self.num_classes) for labels in (self.labels, kept.labels))
        lost = np.flatnonzero((counts > 0) & (left == 0))
        if len(lost) and all_classes:
            names = shown(self.class_names[index] for index in lost)
            raise ValueError(f"{self.source} has no readable image of {_classes(len(lost))} {names}: {bad}")
        return kept


def _counts(labels: IntArray, num_classes: int) -> IntArray:
    return labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=num_classes)


def read_images(
    source: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
) -> ImageList:
    """List the images of `source` and their labels; none is opened.

    Paths in a list are relative to the folder `images`, by default to the folder of the list. `class_names` are the
    classes of a training set, so that a validation list gets the same indices. `path_column` and `label_column` name
    the columns of a table if they do not have one of the usual names.
    """
    found = Path(source)
    if not found.exists():
        raise FileNotFoundError(f"{found} does not exist: give a folder of images, or a list of them")
    with reading(found):
        listed = list_images(found, Columns(path_column, label_column))
        if len(listed.paths) == 0:
            raise ValueError(f"{found} lists no images")
        if class_names is None:
            labels, names = _own_classes(listed, found)
        else:
            names = tuple(str(name) for name in class_names)
            labels = _given_classes(listed, found, names)
        root = found if found.is_dir() else found.parent if images is None else Path(images)
        rows = None if listed.embedded is None else np.arange(len(labels))
        made = ImageList(found, root, tuple(listed.paths), labels, names, rows, listed.embedded, listed.notes)
        if listed.embedded is not None or found.is_dir():
            return made
        made = _without_repeats(made, listed)
    _check_root(made, images is None)
    return made


def _own_classes(listed: Listed, source: Path) -> tuple[IntArray, tuple[str, ...]]:
    """Labels and class names as the source has them."""
    if isinstance(listed.labels, np.ndarray):
        assert listed.names is not None
        labels, names = listed.labels, listed.names
    else:
        columns, sorted_names = number_labels(_first_places(listed), source, listed.unit)
        labels = np.array([columns[label] for label in listed.labels], np.int64)
        names = tuple(map(str, range(int(labels.max()) + 1))) if sorted_names is None else tuple(sorted_names)
        missing = np.setdiff1d(np.arange(len(names)), labels)
        if len(missing):
            raise ValueError(
                f"{source} has the labels 0 to {len(names) - 1}, but no image of {_classes(len(missing))} "
                f"{shown(missing.tolist())}: number the classes without gaps, or label images with names"
            )
    if len(np.unique(labels)) < 2:
        name = shown([names[int(labels[0])]])
        raise ValueError(f"{source} has images of one class only, {name}: there is nothing to tell apart")
    return labels, names


def _given_classes(listed: Listed, source: Path, names: tuple[str, ...]) -> IntArray:
    """Labels as positions in `names`. Whole numbers are positions themselves, unless the names are numbers, too."""
    if twice(names) is not None:
        raise ValueError(f"the class {shown([twice(names)])!r} occurs twice among {len(names)} class names: rename one")
    place = {name: index for index, name in enumerate(names)}
    if isinstance(listed.labels, np.ndarray):
        assert listed.names is not None
        texts = {index: listed.names[index] for index in np.unique(listed.labels).tolist()}
        _refuse_unknown([text for text in texts.values() if text not in place], source, names)
        table = np.zeros(len(listed.names), np.int64)
        for index, text in texts.items():
            table[index] = place[text]
        made: IntArray = table[listed.labels]
        return made
    first = _first_places(listed)
    if all(map(is_whole, first)):
        indices = {text: int(text.removesuffix(".0")) for text in first}
        if all(map(is_whole, names)):
            known = {text: place[str(index)] for text, index in indices.items() if str(index) in place}
        else:
            known = {text: index for text, index in indices.items() if index < len(names)}
    else:
        known = {text: place[text] for text in first if text in place}
    _refuse_unknown([text for text in first if text not in known], source, names)
    return np.array([known[text] for text in listed.labels], np.int64)


def _refuse_unknown(unknown: list[str], source: Path, names: tuple[str, ...]) -> None:
    if unknown:
        number = "a class" if len(unknown) == 1 else f"{len(unknown):,} classes"
        raise ValueError(
            f"{source} has {number} that the training set lacks: {shown(unknown)}. It has {len(names)}: {shown(names)}"
        )


def _first_places(listed: Listed) -> dict[str, int]:
    first: dict[str, int] = {}
    for place, label in zip(listed.places, listed.labels, strict=True):
        first.setdefault(label, place)
    return first


def _without_repeats(made: ImageList, listed: Listed) -> ImageList:
    """The list with each image once: a second line for an image is left out, and refused if its label differs."""
    first: dict[str, int] = {}
    kept = []
    for index, path in enumerate(made.paths):
        before = first.setdefault(os.path.normpath(path), index)
        if before == index:
            kept.append(index)
        elif made.labels[before] != made.labels[index]:
            both = [f"{made.class_names[made.labels[i]]} ({_place(listed, i)})" for i in (before, index)]
            raise ValueError(f"{made.source} has {shown([path])} with two labels: {shown(both)}")
    if len(kept) == len(made):
        return made
    left_out = len(made) - len(kept)
    note = f"left out {left_out:,} {'line that repeats' if left_out == 1 else 'lines that repeat'} an image"
    return replace(made.subset(kept), notes=(*made.notes, note))


def _place(listed: Listed, index: int) -> str:
    return f"{listed.unit} {listed.places[index]}" if len(listed.places) else f"image {index}"


def _check_root(made: ImageList, guessed: bool) -> None:
    """At least one file must exist. Missing ones are bad images, found when they are decoded."""
    files = (os.path.join(made.root, path) for path in made.paths)
    if not any(map(os.path.exists, files)):
        first = visible(os.path.join(made.root, made.paths[0]))
        way_out = "pass the folder that its paths are relative to (--images)" if guessed else f"is {made.root} right?"
        raise FileNotFoundError(
            f"{made.source} lists {len(made):,} images and none of them exists, e.g. {first}: {way_out}"
        )


def _classes(number: int) -> str:
    return "class" if number == 1 else f"{number:,} classes:"


# -------------------------------------------------------------------- splits


def find_splits(folder: str | os.PathLike[str]) -> tuple[Path, Path | None, Path | None]:
    """The training, validation and test part of a folder: subfolders named train, val and test, in any of their
    spellings. A folder of class folders or a file is all training data; a test folder without classes is left out.
    """
    root = Path(folder)
    if not root.is_dir() or (root / "state.json").is_file():
        return root, None, None
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    split_names = {*TRAIN, *VALIDATION, *TEST}
    labelled = [name for name in names if name.lower() in split_names and _has_classes(root / name)]
    if not labelled:
        return root, None, None
    bare = [name for name in names if name.lower() in VALIDATION and name not in labelled and _has_images(root / name)]
    if bare:
        raise ValueError(
            f"{root / bare[0]} has images, but no folder per class: sort them, or move the folder elsewhere"
        )
    parts = [[name for name in labelled if name.lower() in words] for words in (TRAIN, VALIDATION, TEST)]
    double = next((part for part in parts if len(part) > 1), None)
    if double:
        raise ValueError(
            f"{root} has the folders {' and '.join(double)}: which of them is it? Pass the parts one by one"
        )
    if not parts[0]:
        raise ValueError(
            f"{root} has {', '.join(labelled)}, but no folder train: pass the training set by its own path"
        )
    others = [name for name in names if name.lower() not in split_names and _has_images(root / name)]
    if others:
        raise ValueError(
            f"{root} has {', '.join(labelled)} beside folders of images, {shown(others)}: are those classes? Pass the "
            "training set by its own path"
        )
    train, validation, test = (root / part[0] if part else None for part in parts)
    assert train is not None
    return train, validation, test


def _has_classes(folder: Path) -> bool:
    """Whether a folder is a part of a data set: it holds folders, or the files of a table."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    return any(entry.is_dir() or entry.name == "state.json" or entry.name.endswith(".parquet") for entry in entries)


def _has_images(folder: Path) -> bool:
    files: Iterable[str] = (name for _, _, names in os.walk(folder) for name in names)
    return any(os.path.splitext(name)[1].lower() in IMAGES for name in files)


def stratified_split(labels: ArrayLike, share: float = 0.2, *, seed: int = 0) -> tuple[IntArray, IntArray]:
    """The numbers of the items to train on and of those to hold out, both ascending: `share` of each class, at random.

    Of n items of a class, ⌊n · share + 1/2⌋ are held out, but never the last one: a class with one item is only trained
    on, and so is one whose share is below half an item. The draw depends only on the labels and the seed.

    >>> train, held_out = stratified_split([0] * 10 + [1] * 5 + [2], seed=1)
    >>> np.asarray([0] * 10 + [1] * 5 + [2])[held_out].tolist(), len(train)
    ([0, 0, 1], 13)
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"labels are {array.dtype} of shape {array.shape}: expected one class index per item, [N]")
    if not 0 < share < 1:
        raise ValueError(f"share is {share}: expected the part to hold out, between 0 and 1")
    keys = np.random.PCG64(seed).random_raw(len(array))  # raw bits: the same with every version of NumPy
    order = np.lexsort((keys, array))
    _, starts, sizes = np.unique(array[order], return_index=True, return_counts=True)
    numbers = np.minimum(np.floor(sizes * share + 0.5).astype(np.int64), sizes - 1)
    rank = np.arange(len(array)) - np.repeat(starts, sizes)
    held = order[rank < np.repeat(numbers, sizes)]
    return np.setdiff1d(np.arange(len(array)), held), np.sort(held)
