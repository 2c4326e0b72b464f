"""Counting labels in Parquet files."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.data import parquet as module
from equipoise.data.parquet import count_parquet

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path, labels, name="label"):
    pq.write_table(pyarrow.table({"other": pyarrow.array(["x"] * len(labels)), name: labels}), path)
    return path


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64])
def test_a_file_is_counted_as_numpy_counts_it(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 100)
    labels = np.random.default_rng(0).integers(0, 50, 1234).astype(dtype)
    found = count_parquet(write(tmp_path / "a.parquet", labels), "label")
    assert np.array_equal(found, np.bincount(labels))
    assert found.dtype == np.int64


def test_a_folder_is_the_sum_of_its_files(tmp_path):
    (tmp_path / "part").mkdir()
    write(tmp_path / "a.parquet", [0, 1, 1])
    write(tmp_path / "part" / "b.parquet", [5])
    assert count_parquet(tmp_path, "label", num_classes=8).tolist() == [1, 2, 0, 0, 0, 1, 0, 0]


def test_a_huge_range_of_labels_is_counted(tmp_path):
    found = count_parquet(write(tmp_path / "a.parquet", [3, 1_000_000, 3]), "label")
    assert (len(found), found[3], found[1_000_000], found.sum()) == (1_000_001, 2, 1, 3)


@pytest.mark.parametrize(
    ("labels", "arguments", "error", "message"),
    [
        ([0, 1], {"column": "class"}, ValueError, "no column 'class': its columns are other, label"),
        (["cat"], {}, TypeError, "column 'label' of .* is string, expected integers"),
        ([0, None], {}, ValueError, "row 1, column .label. is empty"),
        ([0, -1], {}, ValueError, "has the label -1"),
        ([0, 9], {"num_classes": 5}, ValueError, "has the label 9: .* num_classes is 5"),
        (pyarrow.array([], pyarrow.int64()), {}, ValueError, "nothing to count"),
    ],
)
def test_bad_files_are_refused_with_the_value_and_the_way_out(tmp_path, labels, arguments, error, message):
    path = write(tmp_path / "a.parquet", labels)
    with pytest.raises(error, match=message):
        count_parquet(path, **{"column": "label"} | arguments)


def test_a_missing_file_or_an_empty_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        count_parquet(tmp_path / "none.parquet")
    with pytest.raises(FileNotFoundError, match=r"has no \*.parquet file"):
        count_parquet(tmp_path)
