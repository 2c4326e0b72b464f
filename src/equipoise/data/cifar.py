"""CIFAR-10 and CIFAR-100 from their official "python version" files, and their long-tailed subsets.

The files are pickles, and a pickle can run any code: `plain_pickle` reads them without running any.
A file whose MD5 is not the official one is read with a warning, because there are legitimate reduced copies (training
images outside a draw written as zeros); but if the draw selects a blank image, that is an error.

Reference: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, www.cs.toronto.edu/~kriz.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import tempfile
import urllib.request
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.longtail import long_tailed_indices
from equipoise.data.plain_pickle import read_pickle
from equipoise.data.reading import counted
from equipoise.prior import IntArray, Prior

Images = NDArray[np.uint8]
SUPERSET_IMBALANCE = 10
LEFT_OUT = 10  # at that imbalance, one image in this many is held out for choosing hyper-parameters
MOST_LABELS = 100  # classes of the larger data set


@dataclass(frozen=True)
class _Layout:
    """What the official archive holds, with the MD5 sums that its page and torchvision give."""

    folder: str
    archive: str
    archive_md5: str
    train: dict[str, str]
    test: dict[str, str]
    meta: dict[str, str]
    labels_key: str
    names_key: str

    @property
    def url(self) -> str:
        return f"https://www.cs.toronto.edu/~kriz/{self.archive}"


LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        archive_md5="c58f30108f718f92721af3b95e74349a",
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        labels_key="labels",
        names_key="label_names",
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels_key="fine_labels",
        names_key="fine_label_names",
    ),
}


@dataclass(frozen=True)
class Cifar:
    """A whole data set: images [N, 3, 32, 32] uint8 and class indices [N], for training and test."""

    name: str
    train_images: Images
    train_labels: IntArray
    test_images: Images
    test_labels: IntArray
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True)
class LongTailedCifar:
    """The seeded long-tailed draw of a data set, with the whole set beside it."""

    cifar: Cifar
    imbalance: int
    indices: IntArray

    @property
    def images(self) -> Images:
        return self.cifar.train_images[self.indices]

    @property
    def labels(self) -> IntArray:
        return self.cifar.train_labels[self.indices]

    @property
    def prior(self) -> Prior:
        return Prior.from_labels(self.labels, self.cifar.num_classes, class_names=self.cifar.class_names)

    @property
    def digest(self) -> str:
        """Identifies the draw: the start of the SHA-256 of its indices (int64, little-endian), in the order drawn."""
        return hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()[:16]

    @property
    def pixel_digest(self) -> str:
        """Identifies the drawn images: the start of the SHA-256 of their pixels."""
        return hashlib.sha256(self.images.tobytes()).hexdigest()[:16]


def found_data_sets(root: str | os.PathLike[str]) -> list[str]:
    """Which of "cifar10" and "cifar100" are in `root` (complete or in part)."""
    return [name for name, layout in LAYOUTS.items() if (Path(root) / layout.folder).is_dir()]


def count_cifar(root: str | os.PathLike[str], name: str) -> Prior:
    """The prior of the training labels of "cifar10" or "cifar100"; images are not read."""
    layout = LAYOUTS[name]
    folder = Path(root) / layout.folder
    _, labels = _read_split(folder, layout, layout.train)
    return Prior.from_labels(labels, class_names=_read_names(folder, layout, int(labels.max())))


def load_cifar(root: str | os.PathLike[str], name: str, *, download: bool = False) -> Cifar:
    """The data set `name`, "cifar10" or "cifar100", from its official folder under `root`.

    With `download` a missing folder is downloaded first, and its archive's MD5 is verified.
    """
    if name not in LAYOUTS:
        raise ValueError(f"no data set is named {name!r}: expected one of {', '.join(LAYOUTS)}")
    layout = LAYOUTS[name]
    folder = Path(root) / layout.folder
    if download and not folder.is_dir():
        _download(layout, Path(root))
    unofficial = [path for path, md5 in _files(folder, layout) if _md5(path) != md5]
    if unofficial:
        named = ", ".join(path.name for path in unofficial)
        warnings.warn(f"in {folder} the MD5 of {named} is not the official one: reading it as it is", stacklevel=2)
    train_images, train_labels = _read_split(folder, layout, layout.train)
    test_images, test_labels = _read_split(folder, layout, layout.test)
    names = _read_names(folder, layout, int(max(train_labels.max(), test_labels.max())))
    return Cifar(name, train_images, train_labels, test_images, test_labels, names)


def source_of(data_set: str) -> tuple[str, int]:
    """The official data set and the number of the draw that a name refers to.

    >>> source_of("cifar10-lt"), source_of("cifar100-lt-draw-2")
    (('cifar10', 0), ('cifar100', 2))
    """
    found = re.fullmatch(r"(cifar100?)-lt(?:-draw-([1-9]\d{0,3}))?", data_set)
    if found is None:
        raise ValueError(f"no data set is named {data_set!r}: expected cifar10-lt, cifar100-lt, or cifar10-lt-draw-1")
    return found[1], int(found[2] or 0)


def long_tailed_cifar(cifar: Cifar, imbalance: int, draw: int = 0) -> LongTailedCifar:
    """The draw at `imbalance` (n_max / n_min: 200, 100, 10), always the same; it does not depend on a run's seed.

    Draw 0 is the one that everybody uses. The others have the same counts and take their images from those of draw 0 at
    imbalance 10; they show how much depends on the draw.
    """
    indices = long_tailed_indices(cifar.train_labels, imbalance)
    if draw:
        if imbalance <= SUPERSET_IMBALANCE:
            raise ValueError(
                f"draw {draw} at imbalance {imbalance}: other draws are made from the images of the draw at "
                f"{SUPERSET_IMBALANCE}, so the imbalance must be above it"
            )
        indices = _drawn_again(cifar, indices, draw)
    _refuse_blank(cifar, indices, f"the draw at imbalance {imbalance}", "a larger imbalance, or ")
    return LongTailedCifar(cifar, imbalance, indices)


def _drawn_again(cifar: Cifar, indices: IntArray, draw: int) -> IntArray:
    """As many images of each class as `indices` has, from the draw at imbalance 10."""
    superset = long_tailed_indices(cifar.train_labels, SUPERSET_IMBALANCE)
    random = np.random.default_rng(draw)
    kept = [
        random.permutation(superset[cifar.train_labels[superset] == label])[:count]
        for label, count in enumerate(np.bincount(cifar.train_labels[indices], minlength=cifar.num_classes))
    ]
    return np.concatenate(kept)


def held_out(drawn: LongTailedCifar) -> IntArray:
    """Training images of the factor-10 draw that `drawn` leaves out; choices are made on these, never on the test
    set."""
    superset = long_tailed_indices(drawn.cifar.train_labels, SUPERSET_IMBALANCE)
    left = np.setdiff1d(superset, drawn.indices)
    if len(left) == 0:
        raise ValueError(
            f"the draw at imbalance {drawn.imbalance} uses every image of the factor-{SUPERSET_IMBALANCE} draw: "
            f"validate at an imbalance above {SUPERSET_IMBALANCE}"
        )
    _refuse_blank(drawn.cifar, left, "the held-out set")
    return left


def without_held_out(drawn: LongTailedCifar) -> LongTailedCifar:
    """The training images for choosing hyper-parameters: the draw, if `held_out` finds images outside of it. The draw
    at imbalance 10 leaves none out, so every tenth image of each class is removed from it."""
    if drawn.imbalance != SUPERSET_IMBALANCE:
        return drawn
    counts = np.bincount(drawn.labels, minlength=drawn.cifar.num_classes)
    places = np.concatenate([np.arange(count) for count in counts])  # the draw is sorted by class
    return replace(drawn, indices=drawn.indices[places % LEFT_OUT != LEFT_OUT - 1])


def _refuse_blank(cifar: Cifar, indices: IntArray, what: str, instead: str = "") -> None:
    blank = indices[~cifar.train_images[indices].any(axis=(1, 2, 3))]
    if len(blank):
        raise ValueError(
            f"{what} selects {counted(len(blank), 'blank image')} of {cifar.name} (training image {blank[0]} is the "
            f"first): these files hold only part of the training set. Use {instead}the official files (--download)"
        )


# -------------------------------------------------------------------- files


def _read_split(folder: Path, layout: _Layout, files: dict[str, str]) -> tuple[Images, IntArray]:
    images: list[Images] = []
    indices: list[int] = []
    for path in (folder / name for name in files):
        part = _read(path, layout)
        rows, labels = part.get("data"), part.get(layout.labels_key)
        good = isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[1] == 3072 and len(rows) > 0
        if not good or not isinstance(labels, list) or len(labels) != len(part["data"]):
            raise _damaged(path, layout, f"no uint8 rows of 3,072 with {layout.labels_key} for each")
        for number, label in enumerate(labels):
            if type(label) is not int or not 0 <= label < MOST_LABELS:
                raise _damaged(path, layout, f"label {number} is not a class from 0 to 99")
        images.append(part["data"])
        indices.extend(labels)
    return np.concatenate(images).reshape(-1, 3, 32, 32), np.array(indices, np.int64)


def _read_names(folder: Path, layout: _Layout, highest: int) -> tuple[str, ...]:
    """The names of the classes; `highest` is the largest label."""
    (meta,) = layout.meta
    names = _read(folder / meta, layout).get(layout.names_key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _damaged(folder / meta, layout, f"no list of {layout.names_key}")
    if highest >= len(names):
        raise ValueError(f"{folder} holds label {highest}, but {meta} names {len(names)} classes: replace the files")
    return tuple(names)


def _files(folder: Path, layout: _Layout) -> list[tuple[Path, str]]:
    """Every file of the data set with its official MD5; all must be there."""
    files = [(folder / name, md5) for name, md5 in (layout.train | layout.test | layout.meta).items()]
    for path, _ in files:
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: unpack {layout.url} (which holds {layout.folder}) into {folder.parent}, "
                "or delete the folder and pass --download"
            )
    return files


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _read(path: Path, layout: _Layout) -> dict[str, Any]:
    try:
        return read_pickle(path.read_bytes())
    except Exception as error:
        raise _damaged(path, layout, str(error) or type(error).__name__) from None


def _damaged(path: Path, layout: _Layout, why: str) -> ValueError:
    return ValueError(f"{path} is damaged ({why}): delete it and unpack {layout.url} again, or pass --download")


def _download(layout: _Layout, root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        archive = Path(scratch) / layout.archive
        try:
            urllib.request.urlretrieve(layout.url, archive)
        except OSError as error:
            raise ConnectionError(
                f"{layout.url} could not be downloaded ({error}): download it elsewhere and unpack it in {root}"
            ) from None
        found = _md5(archive)
        if found != layout.archive_md5:
            raise ValueError(f"{layout.url} has MD5 {found}, expected {layout.archive_md5}: the download is damaged")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (Path(scratch) / layout.folder).rename(root / layout.folder)
