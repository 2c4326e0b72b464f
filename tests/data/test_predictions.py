"""Files of predictions: every kind gives the same result, in batches; what is wrong is named by file, row, column."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import equipoise as eq
from equipoise.data import predictions as module
from equipoise.data.predictions import open_predictions
from equipoise.data.reading import npy_header
from equipoise.metrics.judging import Judged, judge
from equipoise.report import files
from equipoise.report.files import evaluation_of, judge_file, read_runs
from equipoise.training.records import read_records

NAMES = ["cat", "<b>dog</b>", "owl, great"]
PRIOR = eq.Prior.from_counts([900, 60, 5], class_names=NAMES)
ROOT = Path(__file__).parents[2]


def sample(rows: int = 50) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, rows)
    return (random.normal(size=(rows, 3)) + 2 * np.eye(3)[labels]).astype(np.float32), labels


def write_npz(path: Path, outputs: Any, labels: Any, **more: Any) -> Path:
    np.savez(path.with_suffix(".npz"), logits=outputs, labels=labels, class_names=NAMES, **more)
    return path.with_suffix(".npz")


def write_compressed(path: Path, outputs: Any, labels: Any) -> Path:
    np.savez_compressed(path.with_suffix(".npz"), logits=outputs, labels=labels, class_names=NAMES)
    return path.with_suffix(".npz")


def write_parquet(path: Path, outputs: Any, labels: Any) -> Path:
    columns = {"label": [NAMES[j] for j in labels]} | {name: outputs[:, j] for j, name in enumerate(NAMES)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path.with_suffix(".parquet"), row_group_size=7)
    return path.with_suffix(".parquet")


def write_csv(path: Path, outputs: Any, labels: Any) -> Path:
    with open(path.with_suffix(".csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cat", "label", *NAMES[1:]])
        writer.writerows([row[0], NAMES[label], *row[1:]] for row, label in zip(outputs, labels, strict=True))
    return path.with_suffix(".csv")


WRITERS = [write_npz, write_compressed, write_parquet, write_csv]


def judged(path: Path, prior: eq.Prior = PRIOR) -> Judged:
    return judge_file(open_predictions(path), prior, "counts.json", logits_mean="train")


@pytest.fixture
def tiny_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 3 * 4)  # four rows at once


# -------------------------------------------------------------------- what is read


@pytest.mark.usefixtures("tiny_batches")
@pytest.mark.parametrize("write", WRITERS)
def test_every_kind_of_file_is_judged_in_batches_as_its_arrays_are(tmp_path: Path, write: Callable[..., Path]) -> None:
    outputs, labels = sample()
    path = write(tmp_path / "a", outputs, labels)
    opened = open_predictions(path)
    assert (opened.num_items, opened.num_classes, opened.columns) == (50, 3, NAMES)
    assert [len(batch.labels) for batch in opened.batches()] == [4] * 12 + [2]
    found, expected = judged(path), judge(outputs, labels, PRIOR, logits_mean="train")
    assert found.evaluation.correct.tolist() == expected.evaluation.correct.tolist()
    assert found.evaluation.marginal == pytest.approx(expected.evaluation.marginal)
    assert found.confusions == expected.confusions
    assert found.sweep is not None
    assert expected.sweep is not None
    assert found.sweep.correct.tolist() == expected.sweep.correct.tolist()


def test_half_precision_big_endian_and_double_are_read(tmp_path: Path) -> None:
    outputs, labels = sample()
    for kind in ("<f2", ">f4", "<f8"):
        found = judged(write_npz(tmp_path / "a", outputs.astype(kind), labels))
        assert found.evaluation.top1 == judge(outputs, labels, PRIOR).evaluation.top1


def test_integers_and_arrays_stored_column_by_column_are_read(tmp_path: Path) -> None:
    outputs, labels = sample()
    whole = (10 * outputs).astype(np.int16)
    for given in (whole, np.asfortranarray(whole), np.asfortranarray(whole.astype(">f4"))):
        found = judged(write_npz(tmp_path / "a", given, labels))
        assert found.evaluation.correct.tolist() == judge(whole * 1.0, labels, PRIOR).evaluation.correct.tolist()


def test_a_class_may_be_ruled_out_and_labels_may_be_whole_floats_or_names(tmp_path: Path) -> None:
    outputs, labels = sample()
    outputs[outputs == outputs.min(axis=1, keepdims=True)] = -np.inf
    expected = judge(outputs, labels, PRIOR).evaluation.correct.tolist()
    for given in (labels, labels.astype(np.float64), np.array(NAMES)[labels]):
        assert judged(write_npz(tmp_path / "a", outputs, given)).evaluation.correct.tolist() == expected


def test_a_file_without_labels_is_read_where_none_are_needed(tmp_path: Path) -> None:
    outputs, _ = sample()
    np.savez(tmp_path / "a.npz", logits=outputs)
    (tmp_path / "a.csv").write_text("cat,owl\n1,2\n3,4\n")
    for path, columns in ((tmp_path / "a.npz", None), (tmp_path / "a.csv", ["cat", "owl"])):
        opened = open_predictions(path, labelled=False)
        assert (opened.labelled, opened.columns) == (False, columns)
        assert (next(opened.batches()).labels == -1).all()
        with pytest.raises(ValueError, match="labels"):
            open_predictions(path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda: {"features": np.zeros(1 << 22, np.uint8)}, None),
        (lambda: {"labels": np.zeros(1 << 22, np.uint8)}, "labels have shape"),
        (lambda: {"labels": np.array(["a" * (1 << 20)] * 6)}, "labels are <U1048576, expected class indices or names"),
        (lambda: {"class_names": np.zeros(1 << 22, np.uint8)}, "4194304 class_names for 3 columns"),
        (lambda: {"class_names": np.array(["a" * (1 << 20)] * 3)}, "longer than any name"),
        (lambda: {"logits_mean": np.zeros(1 << 22, np.uint8)}, "4194304 logits_mean"),
    ],
)
def test_other_arrays_are_not_read_and_wrong_ones_refused_by_their_header(
    tmp_path: Path, more: Callable[[], dict[str, Any]], message: str | None
) -> None:
    outputs, labels = sample(6)
    np.savez_compressed(tmp_path / "a.npz", **({"logits": outputs, "labels": labels} | more()))  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        with contextlib.nullcontext() if message is None else pytest.raises(ValueError, match=message):
            assert len(list(open_predictions(tmp_path / "a.npz").batches())) == 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


def test_an_array_that_is_shorter_than_its_header_says_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("logits.npy", "w") as stream:
        described = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 1000)}
        np.lib.format.write_array_header_1_0(stream, described)
    with pytest.raises(ValueError, match=r"a.npz is damaged: logits take 128 bytes, but 4000000000128 by their header"):
        open_predictions(tmp_path / "a.npz", labelled=False)


def test_a_huge_number_as_a_column_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,7,99999999999\n7,9,0\n99999999999,0,9\n")
    assert next(open_predictions(tmp_path / "a.csv").batches()).labels.tolist() == [0, 1]


def test_tables_say_themselves_whether_they_hold_probabilities(tmp_path: Path) -> None:
    outputs, labels = sample()
    chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert open_predictions(write_parquet(tmp_path / "p", chances, labels)).probabilities
    assert not open_predictions(write_parquet(tmp_path / "l", outputs, labels)).probabilities
    np.savez(tmp_path / "p.npz", probabilities=chances, labels=labels)
    assert open_predictions(tmp_path / "p.npz").probabilities


def test_columns_that_are_numbers_are_matched_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,2,0,1\n2,9,0,0\n0,0,9,0\n1,0,0,9\n")
    assert judged(tmp_path / "a.csv", eq.Prior.from_counts([3, 2, 1])).evaluation.top1 == 1.0
    (tmp_path / "b.csv").write_text("label,0,1,2\n2,0,0,9\n")
    assert open_predictions(tmp_path / "b.csv").columns is None


def test_among_names_a_number_is_a_name_and_else_whole_numbers_are_places(tmp_path: Path) -> None:
    def labels(text: str) -> list[int]:
        (tmp_path / "a.csv").write_text(text)
        return next(iter(open_predictions(tmp_path / "a.csv").batches())).labels.tolist()

    assert labels("label,1,0,cat\n1,9,0,0\n0,0,9,0\n") == [0, 1]
    assert labels("label,0,1,2\n1.0,0,9,0\n2.0,0,0,9\n") == [1, 2]


def test_names_of_bytes_are_text(tmp_path: Path) -> None:
    names = np.array([name.encode() for name in NAMES])
    outputs, labels = sample(6)
    np.savez(tmp_path / "a.npz", logits=outputs, labels=names[labels], class_names=names)
    opened = open_predictions(tmp_path / "a.npz")
    assert opened.columns == NAMES
    assert next(iter(opened.batches())).labels.tolist() == labels.tolist()


def test_classes_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    outputs, labels = sample()
    path = write_npz(tmp_path / "a", outputs, labels)
    turned = eq.Prior.from_counts({NAMES[2]: 5, NAMES[0]: 900, NAMES[1]: 60})
    expected = judge(outputs, labels, PRIOR).evaluation
    assert judged(path, turned).evaluation.correct.tolist() == expected.correct[[2, 0, 1]].tolist()


def test_a_long_file_is_swept_on_a_seeded_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, labels = sample()
    path = write_npz(tmp_path / "a", outputs, labels)
    monkeypatch.setattr(files, "SWEPT_ROWS", 20)
    first, second = judged(path).sweep, judged(path).sweep
    assert first is not None
    assert second is not None
    assert first.num_items == 20
    assert first.correct.tolist() == second.correct.tolist()
    assert judged(path).evaluation.num_items == 50


def test_the_file_says_what_its_logits_mean(tmp_path: Path) -> None:
    assert open_predictions(write_npz(tmp_path / "a", *sample(), logits_mean="uniform")).logits_mean == "uniform"
    with pytest.raises(ValueError, match=r"logits_mean is 'equal', expected 'train' or 'uniform'"):
        open_predictions(write_npz(tmp_path / "a", *sample(), logits_mean="equal"))


# -------------------------------------------------------------------- what is wrong


@pytest.mark.usefixtures("tiny_batches")
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_prediction_that_is_no_number_is_named(tmp_path: Path, write: Callable[..., Path], value: float) -> None:
    outputs, labels = sample()
    outputs[9, 2] = value
    path = write(tmp_path / "a", outputs, labels)
    row = "line 11" if path.suffix == ".csv" else "row 9"
    with pytest.raises(ValueError, match=re.escape(f"{path}, {row}, column 'owl, great' is {value}")):
        judged(path)


def broken(**arrays: Any) -> dict[str, Any]:
    outputs, labels = sample(6)
    return {
        name: array for name, array in ({"logits": outputs, "labels": labels} | arrays).items() if array is not None
    }


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (broken(labels=None), r"has the arrays logits: expected 'labels', and 'logits' or 'probabilities'"),
        (broken(logits=None), r"has the arrays labels: expected"),
        (broken(probabilities=np.zeros((6, 3))), r"has the arrays labels, logits, probabilities: expected"),
        (broken(logits=np.zeros((6, 3, 2))), r"logits are float64 of shape \(6, 3, 2\)"),
        (broken(logits=np.zeros((6, 3), bool)), "logits are bool of shape"),
        (broken(logits=np.zeros((6, 0))), r"logits are float64 of shape \(6, 0\)"),
        (broken(labels=np.zeros(5, int)), r"labels have shape \(5,\), expected one for each of 6 rows"),
        (broken(labels=np.array([0, 1, 2, 3, 0, 0])), "row 3: its label is 3, expected a class from 0 to 2"),
        (broken(labels=np.array([0, -1, 2, 1, 0, 0])), "row 1: its label is -1"),
        (broken(labels=np.array([0, 1, np.nan, 1, 0, 0])), "row 2: its label is missing"),
        (broken(labels=np.array([0, 1, 0.5, 1, 0, 0])), "row 2: its label is 0.5, not a whole number"),
        (broken(labels=np.array(list("abcabc"))), "labels are names .*'a'.*, but there are no class_names"),
        (broken(labels=np.array(["cat"] * 5 + ["x"]), class_names=NAMES), "row 5: its label is 'x', which no column"),
        (broken(labels=np.array(["cat", ""] * 3), class_names=NAMES), "row 1: its label is missing"),
        (
            broken(class_names=["cat", "owl, great", "<b>dog"]),
            "has the class '<b>dog', counts.json has <b>dog</b>",
        ),
        (broken(class_names=["a", "b"]), "2 class_names for 3 columns"),
        (broken(labels=np.array([0, None] * 3, dtype=object)), "labels are Python objects"),
        (broken(logits=np.full((6, 3), -np.inf)), "row 0 is -inf for every class"),
        (broken(logits=None, probabilities=np.full((6, 3), 0.5)), r"row 0 is not a distribution \(sum 1.5, least"),
        (broken(logits=np.zeros((0, 3)), labels=np.zeros(0, int)), "has no rows"),
        (broken(logits=np.zeros((6, 4))), "has 4 columns of classes, counts.json has 3 classes"),
        (broken(class_names=["cat", "owl, great", "yak"]), "has the class 'yak', counts.json has <b>dog</b> instead"),
        (broken(class_names=["cat", "emu", "yak"]), "has the classes emu, yak, counts.json has <b>dog</b>, owl"),
        (broken(class_names=["cat", "cat", "owl, great"]), "class_names has 'cat' twice"),
        (broken(logits=np.zeros((6, 3), np.longdouble)), "logits are float128 of shape|logits are longdouble"),
    ],
)
def test_an_npz_that_cannot_be_used_is_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message) as error:
        judged(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("label\n0\n", "has the column 'label' only"),
        ("a,b\n0,1\n", "has the columns a, b: name the one with the labels, e.g. --label b"),
        ("label;a;b\n0;1;2\n", "has the one column 'label;a;b': separate columns with ',', not ';'"),
        (",label,a,b\n0,0,1,2\n", "has the column '', the row numbers of pandas: write the table with index=False"),
        ('label,a,b,c\n0,1,2,3\n"0,1' + ",2" * 70000, "cannot be read as a table: field larger than field limit"),
        ("label,a,b,c\n0,1,2,3\n0,1,2\n", "line 3 has 3 cells, the header 4"),
        ("label,a,b,c\n0,1,2,3\n,1,2,3\n", "line 3, column 'label': its label is missing"),
        ("label,a,b,c\n0,1,2,3\n\n7,1,2,3\n", "line 4: its label is 7"),
        ("label,a,b,c\n0,1,,3\n", "line 2, column 'b' is empty"),
        ("label,a,b,c\n0,1,x,3\n", "line 2, column 'b' is 'x', not a number"),
        ("label,a,b,b\n0,1,2,3\n", "has the column 'b' twice"),
        ("label,a,b,c\n0,1,0,0\n1,0.5,0.25,0.25\n2,3,2,1\n", "line 4 is not a distribution"),
    ],
)
def test_a_csv_that_cannot_be_used_is_named(
    tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 6)
    path = tmp_path / "model.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        judged(path, eq.Prior.from_counts([3, 2, 1]))
    assert str(path) in str(error.value)


def test_a_parquet_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    def written(**columns: Any) -> Path:
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    prior = eq.Prior.from_counts([2, 1])
    with pytest.raises(ValueError, match=r"a.parquet, row 1, column 'b' is empty"):
        judged(written(label=[0, 1], a=[0.0, 1.0], b=[1.0, None]), prior)
    with pytest.raises(ValueError, match=r"a.parquet, row 1, column 'label': its label is missing"):
        judged(written(label=[0, None], a=[0.0, 1.0], b=[1.0, 2.0]), prior)
    with pytest.raises(ValueError, match=r"a.parquet: column 'b' is string, expected numbers"):
        judged(written(label=[0, 1], a=[0.0, 1.0], b=["x", "y"]), prior)


def test_damaged_and_unknown_files_are_named(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a", *sample(500))
    data = bytearray(path.read_bytes())
    data[300] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a.npz is damaged|or is damaged"):
        judged(path)
    path.write_bytes(data[:200])
    with pytest.raises(ValueError, match=r"is not an .npz file, or is damaged"):
        open_predictions(path)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        open_predictions(tmp_path)
    (tmp_path / "a.pt").touch()
    with pytest.raises(ValueError, match=r"ends in '.pt': expected predictions"):
        open_predictions(tmp_path / "a.pt")


def test_files_that_their_library_cannot_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("label,é,b\né,1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a.csv is not UTF-8 text"):
        open_predictions(tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_bytes(b"no table" * 9)
    with pytest.raises(ValueError, match=r"a.parquet is not a Parquet file, or is damaged"):
        open_predictions(tmp_path / "a.parquet")


# -------------------------------------------------------------------- run records


def test_run_records_are_read_by_method_with_softmax_before_and_balanced_softmax_after() -> None:
    runs = read_runs(ROOT / "results" / "table1" / "cifar100-lt" / "100")
    assert (next(iter(runs)), list(runs)[-1]) == ("softmax", "balanced_softmax")
    record = next(r for r in read_records(ROOT / "results") if r.method == "softmax" and r.imbalance == 100)
    evaluation = evaluation_of(record)
    assert 100 * evaluation.top1 == pytest.approx(record.top1)
    assert evaluation.marginal == pytest.approx(record.marginal)
    assert np.isnan(evaluation.ece)


def test_folders_that_are_no_runs_of_one_training_set_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"several training sets \(cifar10-lt/10, .*\): pass the folder of one"):
        read_runs(ROOT / "results" / "table1")
    with pytest.raises(ValueError, match=r"has no .json files"):
        read_runs(tmp_path)
    first = json.loads(next((ROOT / "results" / "table1").rglob("0.json")).read_text())
    (tmp_path / "0.json").write_text(json.dumps(first | {"complete": False}))
    with pytest.raises(ValueError, match=r"holds smoke tests only: pass a folder of whole runs"):
        read_runs(tmp_path)
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(ValueError, match=r"a.json is not a run record"):
        read_runs(tmp_path)


def test_a_header_that_promises_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    """NumPy reads a header whole before it looks at its length."""
    header = b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little")

    class Counted(io.BytesIO):
        most = 0

        def read(self, size: int | None = -1) -> bytes:
            self.most = max(self.most, size or 0)
            return super().read(size)

    stream = Counted(header)
    with pytest.raises(ValueError, match="its header claims 1073741824 bytes"):
        npy_header(stream)
    assert stream.most < 100
    (tmp_path / "labels.npy").write_bytes(header)
    with pytest.raises(ValueError, match=r"labels\.npy is not a NumPy array"):
        eq.Prior.from_file(tmp_path / "labels.npy")


@pytest.mark.parametrize("text", ['{"counts": {"1": 1, "0": 99}}', '{"1": 1, "0": 99}'])
def test_whole_numbers_as_keys_are_classes_wherever_they_stand(text: str, tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text(text)
    assert eq.Prior.from_file(tmp_path / "counts.json").counts.tolist() == [99, 1]


def test_probabilities_that_are_called_logits_are_refused_with_the_way_out(tmp_path: Path) -> None:
    outputs, labels = sample()
    chances = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    path = tmp_path / "wrong.npz"
    np.savez(path, logits=chances, labels=labels)
    with pytest.raises(ValueError, match=r"wrong\.npz: its logits are probabilities: name the array 'probabilities'"):
        list(open_predictions(path).batches())
    np.savez(path, probabilities=chances, labels=labels)
    assert next(open_predictions(path).batches()).labels.tolist() == labels.tolist()
