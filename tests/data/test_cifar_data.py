"""CIFAR's official files: what is read, what is refused, and which images the long-tailed draw takes."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.cifar_files import write_cifar10

from equipoise.data import cifar as module
from equipoise.data.cifar import Cifar, found_data_sets, held_out, load_cifar, long_tailed_cifar, source_of

COUNTS = {  # the published sizes
    ("cifar10", 200): ([5000, 2775, 1540, 854, 474, 263, 146, 81, 45, 25], 11203),
    ("cifar10", 100): ([5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50], 12406),
    ("cifar10", 10): ([5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500], 20431),
    ("cifar100", 200): ([500, 473, 449, 425, 403], 9502),
    ("cifar100", 100): ([500, 477, 455, 434, 415], 10847),
    ("cifar100", 10): ([500, 488, 477, 466, 455], 19573),
}


def read(root: Path) -> Cifar:
    with pytest.warns(UserWarning, match="MD5 of data_batch_1, .* is not the official one"):
        return load_cifar(root, "cifar10")


def test_reads_images_labels_and_names(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    cifar = read(tmp_path)
    first = pickle.loads((folder / "data_batch_1").read_bytes())
    assert cifar.train_images.shape == (200, 3, 32, 32)
    assert cifar.test_images.shape == (40, 3, 32, 32)
    np.testing.assert_array_equal(cifar.train_images[7, 1, 2], first["data"][7, 1024 + 64 : 1024 + 96])
    assert cifar.train_labels[:40].tolist() == first["labels"]
    assert cifar.class_names[3] == "class 3"
    assert found_data_sets(tmp_path) == ["cifar10"]


def test_official_files_are_read_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cifar10(tmp_path)
    layout = module.LAYOUTS["cifar10"]
    for files in (layout.train, layout.test, layout.meta):
        for name in files:
            monkeypatch.setitem(files, name, module._md5(folder / name))
    assert load_cifar(tmp_path, "cifar10").num_classes == 10  # a warning would be an error


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_md5_sums_are_those_that_torchvision_publishes(name: str) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    theirs = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    ours = module.LAYOUTS[name]
    assert (ours.train, ours.test) == (dict(theirs.train_list), dict(theirs.test_list))
    assert (ours.archive_md5, ours.url) == (theirs.tgz_md5, theirs.url)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "owned"),)

    folder = write_cifar10(tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": Evil(), "labels": []}, protocol=2))
    with pytest.warns(UserWarning, match="MD5"), pytest.raises(ValueError, match=r"test_batch is damaged .*mkdir"):
        load_cifar(tmp_path, "cifar10")
    assert not (tmp_path / "owned").exists()


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    (write_cifar10(tmp_path) / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_4 is missing: unpack https.*cifar-10-python\.tar\.gz"):
        load_cifar(tmp_path, "cifar10")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80", pickle.dumps([1]), pickle.dumps({"data": np.zeros((2, 3), np.uint8), "labels": [1, 2]})],
    ids=["empty", "cut", "a list", "another shape"],
)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (write_cifar10(tmp_path) / "data_batch_2").write_bytes(content)
    with pytest.warns(UserWarning, match="MD5"), pytest.raises(ValueError, match=r"data_batch_2 is damaged .*again"):
        load_cifar(tmp_path, "cifar10")


def test_an_archive_with_another_md5_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.urllib.request, "urlretrieve", lambda url, path: Path(path).write_bytes(b"not it"))
    with pytest.raises(ValueError, match=r"MD5 .* expected c58f30108f718f92721af3b95e74349a"):
        load_cifar(tmp_path / "new", "cifar10", download=True)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_verified_archive_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "made")
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), "gztar", tmp_path / "made"))
    monkeypatch.setattr(module.urllib.request, "urlretrieve", lambda url, path: shutil.copy(archive, path))
    layout = module.LAYOUTS["cifar10"]
    monkeypatch.setitem(layout.__dict__, "archive_md5", module._md5(archive))
    with pytest.warns(UserWarning, match="MD5"):
        assert len(load_cifar(tmp_path / "new", "cifar10", download=True).train_labels) == 200


def test_a_blank_image_that_the_draw_selects_is_an_error(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "whole")
    whole = read(tmp_path / "whole")
    drawn = long_tailed_cifar(whole, 10).indices
    write_cifar10(tmp_path / "holed", blank=int(drawn[5]))
    with pytest.raises(
        ValueError, match=rf"selects 1 blank image of cifar10 \(training image {drawn[5]}.*larger imbal"
    ):
        long_tailed_cifar(read(tmp_path / "holed"), 10)
    outside = np.setdiff1d(np.arange(200), drawn)
    write_cifar10(tmp_path / "reduced", blank=int(outside[0]))
    assert long_tailed_cifar(read(tmp_path / "reduced"), 10).indices.tolist() == drawn.tolist()


@pytest.mark.parametrize(("name", "imbalance"), COUNTS)
def test_counts_are_the_published_ones(name: str, imbalance: int) -> None:
    num_classes, largest = (10, 5000) if name == "cifar10" else (100, 500)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), largest))
    images = np.ones((len(labels), 3, 1, 1), np.uint8)
    cifar = Cifar(name, images, labels, images[:1], labels[:1], tuple(map(str, range(num_classes))))
    drawn = long_tailed_cifar(cifar, imbalance)
    head, total = COUNTS[name, imbalance]
    assert drawn.prior.counts[: len(head)].tolist() == head
    assert drawn.prior.total == len(np.unique(drawn.indices)) == total


def test_the_digest_names_the_indices_and_nothing_else(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    cifar = read(tmp_path)
    assert long_tailed_cifar(cifar, 10).digest == long_tailed_cifar(cifar, 10).digest
    assert long_tailed_cifar(cifar, 10).digest != long_tailed_cifar(cifar, 20).digest


def test_held_out_images_are_of_the_superset_and_not_of_the_draw(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    cifar = read(tmp_path)
    drawn, superset = long_tailed_cifar(cifar, 20), long_tailed_cifar(cifar, 10)
    left = held_out(drawn)
    assert set(left) == set(superset.indices) - set(drawn.indices)
    assert set(drawn.indices) <= set(superset.indices)
    with pytest.raises(ValueError, match="uses every image"):
        held_out(superset)


def test_other_draws_have_the_counts_of_the_first_and_other_images_of_the_superset(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    cifar = read(tmp_path)
    superset = set(long_tailed_cifar(cifar, 10).indices)
    first, again, other = (long_tailed_cifar(cifar, 20, draw=draw) for draw in (1, 1, 2))
    usual = long_tailed_cifar(cifar, 20)
    assert first.indices.tolist() == again.indices.tolist()
    assert len({one.digest for one in (usual, first, other)}) == 3
    for one in (first, other):
        assert one.prior.counts.tolist() == usual.prior.counts.tolist()
        assert len(set(one.indices)) == len(one.indices)
        assert set(one.indices) <= superset
        assert np.array_equal(np.sort(one.labels), np.sort(usual.labels))
        assert set(held_out(one)) == superset - set(one.indices)
    with pytest.raises(ValueError, match="the imbalance must be above it"):
        long_tailed_cifar(cifar, 10, draw=1)


@pytest.mark.parametrize("name", ["cifar10", "svhn-lt", "cifar10-lt-draw-0", "cifar10-lt-draw-x", "cifar1000-lt"])
def test_a_data_set_with_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no data set is named"):
        source_of(name)
