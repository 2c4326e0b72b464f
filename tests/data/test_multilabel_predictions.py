"""Files with several labels per item: every kind gives the same result; what is wrong is named by file, row, column."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data import predictions as module
from equipoise.data.multilabel_predictions import open_either
from equipoise.data.sources import read_source
from equipoise.report.files import judge_multilabel_file

NAMES = ["cat", "<b>dog</b>", "owl, great"]
PRIOR = eq.Prior.from_counts([900, 60, 5], total=1000, class_names=NAMES)


def sample(rows: int = 60) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    target = (random.random((rows, 3)) < [0.6, 0.3, 0.1]).astype(np.int64)
    target[0], target[1] = 0, 1  # an item without labels, and one with all
    return (random.normal(size=(rows, 3)) + 2 * target - 1).astype(np.float32), target


def tags(target: Any, mark: str = ";") -> list[str]:
    return [mark.join(NAMES[j] for j in np.flatnonzero(row)) for row in target]


def write_npz(path: Path, outputs: Any, target: Any, name: str = "targets", **more: Any) -> Path:
    np.savez(path.with_suffix(".npz"), logits=outputs, class_names=NAMES, **{name: target}, **more)
    return path.with_suffix(".npz")


def write_labels(path: Path, outputs: Any, target: Any) -> Path:
    return write_npz(path, outputs, target.astype(bool), "labels")


def write_tags(path: Path, outputs: Any, target: Any, cells: list[str] | None = None) -> Path:
    rows = [[row[0], cell, *row[1:]] for row, cell in zip(outputs, cells or tags(target), strict=True)]
    return write_csv(path, ["cat", "labels", *NAMES[1:]], rows)


def write_json_lists(path: Path, outputs: Any, target: Any) -> Path:
    return write_tags(path, outputs, target, [json.dumps([NAMES[j] for j in np.flatnonzero(row)]) for row in target])


def write_indices(path: Path, outputs: Any, target: Any) -> Path:
    return write_tags(path, outputs, target, ["|".join(map(str, np.flatnonzero(row))) for row in target])


def write_columns(path: Path, outputs: Any, target: Any) -> Path:
    header = ["image", *NAMES, *(f"target_{name}" for name in NAMES)]
    rows = [[f"{i}.jpg", *z, *y] for i, (z, y) in enumerate(zip(outputs, target, strict=True))]
    return write_csv(path, header, rows)


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with open(path.with_suffix(".csv"), "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path.with_suffix(".csv")


def write_parquet(path: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path.with_suffix(".parquet"), row_group_size=7)
    return path.with_suffix(".parquet")


def write_parquet_lists(path: Path, outputs: Any, target: Any) -> Path:
    labels = [[NAMES[j] for j in np.flatnonzero(row)] for row in target]
    return write_parquet(path, labels=labels, **{name: outputs[:, j] for j, name in enumerate(NAMES)})


def write_parquet_text(path: Path, outputs: Any, target: Any) -> Path:
    return write_parquet(path, labels=tags(target), **{name: outputs[:, j] for j, name in enumerate(NAMES)})


def write_parquet_columns(path: Path, outputs: Any, target: Any) -> Path:
    columns = {name: outputs[:, j] for j, name in enumerate(NAMES)}
    return write_parquet(path, **columns, **{f"target_{name}": target[:, j] for j, name in enumerate(NAMES)})


WRITERS = [
    write_npz,
    write_labels,
    write_tags,
    write_json_lists,
    write_indices,
    write_columns,
    write_parquet_lists,
    write_parquet_text,
    write_parquet_columns,
]


@pytest.mark.parametrize("at_once", [1 << 20, 20])
@pytest.mark.parametrize("write", WRITERS)
def test_every_kind_of_file_gives_the_same_scores(
    write: Any, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", at_once)  # one batch, or many
    outputs, target = sample()
    opened = open_either(write(tmp_path / "test", outputs, target))
    assert opened.multilabel
    assert opened.num_items == 60
    assert sum(1 for _ in opened.batches()) == (1 if at_once > 1000 else 10)
    found = judge_multilabel_file(opened, PRIOR, "counts.json").evaluation.scores()
    assert found == pytest.approx(eq.evaluate_multilabel(outputs, target, PRIOR).scores(), rel=1e-6)


@pytest.mark.parametrize("write", [write_npz, write_columns])
def test_unknown_labels_and_other_orders_are_read(write: Any, tmp_path: Path) -> None:
    outputs, target = sample()
    masked = target.astype(np.float64)
    masked[::3, 1] = np.nan if write is write_npz else -1
    prior = eq.Prior.from_counts({NAMES[j]: (900, 60, 5)[j] for j in (2, 0, 1)}, total=1000)
    opened = open_either(write(tmp_path / "test", outputs, masked))
    threshold = np.array([0.3, 0.5, 0.6])
    found = judge_multilabel_file(opened, prior, "counts.json", threshold=threshold).evaluation
    order = [2, 0, 1]
    expected = eq.evaluate_multilabel(outputs[:, order], masked[:, order], prior, threshold=threshold[order])
    assert found.scores() == pytest.approx(expected.scores(), rel=1e-6)
    assert found.labelled.tolist() == [60, 60, 40]


def test_a_file_without_a_label_is_refused_and_a_batch_without_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 30)  # ten rows
    outputs, target = sample()
    target[:10] = -1
    found = judge_multilabel_file(open_either(write_npz(tmp_path / "a", outputs, target)), PRIOR, "c").evaluation
    assert found.labelled.tolist() == [50] * 3
    path = write_npz(tmp_path / "b", outputs, np.full_like(target, -1))
    with pytest.raises(ValueError, match=r"b\.npz: every label is missing"):
        judge_multilabel_file(open_either(path), PRIOR, "c")


def test_an_empty_cell_of_a_target_column_is_not_known(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a", ["a", "b", "target_a", "target_b"], [[1.5, -1, 1, ""], [0.2, 3, 0, 1]])
    assert next(open_either(path).batches()).labels.tolist() == [[1, -1], [0, 1]]


def test_probabilities_are_recognised_and_need_no_sum(tmp_path: Path) -> None:
    outputs, target = sample()
    chance = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    np.savez(tmp_path / "a.npz", probabilities=chance, targets=target)
    for path in (tmp_path / "a.npz", write_columns(tmp_path / "b", chance, target)):
        opened = open_either(path)
        assert opened.probabilities
        found = judge_multilabel_file(opened, eq.Prior.from_counts([900, 60, 5], 1000), "c").evaluation.scores()
        assert found["map"] == pytest.approx(eq.evaluate_multilabel(outputs, target, PRIOR).scores()["map"])


def test_one_label_per_item_stays_one(tmp_path: Path) -> None:
    outputs, _ = sample()
    labels = np.arange(60) % 3
    np.savez(tmp_path / "a.npz", logits=outputs, labels=labels)
    single = write_csv(tmp_path / "b", ["label", "a|b", "c"], [["a|b", 1, 2], ["c", 3, 4]])
    for path in (tmp_path / "a.npz", single):
        opened = open_either(path)
        assert not opened.multilabel
        assert next(opened.batches()).labels[:2].tolist() == [0, 1]


WRONG = {
    "two": (
        lambda path: write_npz(path, *sample_with(2)),
        r"row 4: its label of column '<b>dog</b>' is 2, expected 0 or 1",
    ),
    "shapes": (lambda path: write_npz(path, sample()[0], sample()[1][:, :2]), r"targets are int64 of shape \(60, 2\)"),
    "text": (lambda path: write_npz(path, sample()[0], sample()[1].astype(str)), "targets are <U"),
    "unknown tag": (
        lambda path: write_csv(path, ["labels", "a", "b"], [["a;b", 1, 2], ["a;c", 1, 2]]),
        "line 3: its label is 'c', which no column is named after",
    ),
    "no number": (
        lambda path: write_csv(path, ["labels", "a", "b"], [["a;b", 1, 2], ["a", 1, "x"]]),
        "line 3, column 'b' is 'x', not a number",
    ),
    "ragged": (
        lambda path: write_csv(path, ["labels", "a", "b"], [["a;b", 1, 2], ["a", 1]]),
        "line 3 has 2 cells, the header 3",
    ),
    "broken list": (
        lambda path: write_csv(path, ["labels", "a", "b"], [["a;b", 1, 2], ["[a]", 1, 2]]),
        r"line 3: '\[a\]' is not a list: write",
    ),
    "a class without predictions": (
        lambda path: write_csv(path, ["a", "target_a", "target_b"], [[1, 0, 1]]),
        "has the column 'target_b' and no column 'b'",
    ),
    "not a probability": (
        lambda path: (
            np.savez(path.with_suffix(".npz"), probabilities=[[0.5, 1.5]], targets=[[1, 0]]) or path.with_suffix(".npz")
        ),
        "row 0, column 1 is 1.5, not a probability: logits?",
    ),
    "thresholds": (
        lambda path: write_npz(path, *sample(), thresholds=np.array([0.5, 0.5])),
        r"thresholds are float64 of shape \(2,\), expected one per class",
    ),
    "a threshold of 1": (
        lambda path: write_npz(path, *sample(), thresholds=np.array([0.5, 1.0, 0.5])),
        "thresholds hold 1.0, expected probabilities between 0 and 1",
    ),
}


def sample_with(value: int) -> tuple[Any, Any]:
    outputs, target = sample()
    target[4, 1] = value
    return outputs, target


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_by_file_row_and_column(case: str, tmp_path: Path) -> None:
    write, message = WRONG[case]
    path = write(tmp_path / "test")
    with pytest.raises(ValueError, match=message) as raised:
        for _ in open_either(path).batches():
            pass
    assert str(path) in str(raised.value)


# -------------------------------------------------------------------- training sets


def write_targets(path: Path, target: Any) -> Path:
    np.savez(path.with_suffix(".npz"), targets=target, class_names=NAMES)
    return path.with_suffix(".npz")


def training_sets(folder: Path) -> dict[str, Path]:
    _, target = sample()
    lists = [[NAMES[j] for j in np.flatnonzero(row)] for row in target]
    columns = {name: target[:, j] for j, name in enumerate(NAMES)}
    rows = [[f"{i}.jpg", cell] for i, cell in enumerate(tags(target))]
    return {
        "tags": write_csv(folder / "tags", ["image", "tags"], rows),
        "labels": write_csv(folder / "labels", ["image", "labels"], [[i, c.replace(";", "|")] for i, c in rows]),
        "columns": write_csv(folder / "columns", ["image", *NAMES], [[f"{i}.jpg", *y] for i, y in enumerate(target)]),
        "lists": write_parquet(folder / "lists", labels=lists),
        "texts": write_parquet(folder / "texts", tags=tags(target)),
        "numbers": write_parquet(folder / "numbers", image=[f"{i}.jpg" for i in range(60)], **columns),
        "predictions": write_npz(folder / "predictions", *sample()),
        "arrays": write_targets(folder / "arrays", target),
    }


@pytest.mark.parametrize("kind", ["tags", "labels", "columns", "lists", "texts", "numbers", "predictions", "arrays"])
def test_training_sets_of_every_kind_are_counted_alike(kind: str, tmp_path: Path) -> None:
    path = training_sets(tmp_path)[kind]
    source, target = read_source(path), sample()[1]
    counts = dict(zip(source.prior.class_names or (), source.prior.counts.tolist(), strict=True))
    assert source.multilabel
    assert source.prior.total == 60
    assert counts == dict(zip(NAMES, target.sum(0).tolist(), strict=True))
    shown = CliRunner().invoke(app, ["inspect", str(path), "--json"])
    assert json.loads(shown.stdout)["multilabel"] is True
    assert "BalancedSigmoidLoss" in shown.output
    assert "print(eq.evaluate_multilabel(logits, target, prior))" in shown.output


def test_columns_taken_for_classes_are_named_unless_they_are_called_so(tmp_path: Path) -> None:
    rows = "\n1,0,1,3\n0,1,0,4\n"
    (tmp_path / "plain.csv").write_text("cat,owl,sex,age" + rows)
    (tmp_path / "chosen.csv").write_text("target_cat,target_owl,sex,age" + rows)
    (tmp_path / "both.csv").write_text("target_cat,target_owl,cat,owl" + rows)
    note = "classes are all columns of zeros and ones (cat, owl, sex): leave out any that is not a class, or call those"
    runner = CliRunner()
    assert note in " ".join(runner.invoke(app, ["inspect", str(tmp_path / "plain.csv")]).stderr.split())
    for name in ("chosen.csv", "both.csv"):
        result = runner.invoke(app, ["inspect", str(tmp_path / name)])
        assert (result.exit_code, result.stderr) == (0, "")


def test_columns_that_are_no_classes_are_hinted_at(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("id,cat,owl,label\n7,0.2,-1,cat\n")
    (tmp_path / "counts.json").write_text('{"cat": 5, "owl": 3}')
    runner = CliRunner()
    words = ["evaluate", str(tmp_path / "test.csv"), "--counts", str(tmp_path / "counts.json")]
    output = runner.invoke(app, words, env={"COLUMNS": "400"}).output
    assert "has the class 'id'" in output
    assert "Columns of a table, except that of the labels, are classes: drop any other" in output
    (tmp_path / "test.csv").write_text("cat,owl\n0.2,-1\n")
    output = runner.invoke(app, words, env={"COLUMNS": "400"}).output
    assert "several labels per item go into columns target_CLASS, or as lists into tags" in output


def test_arrays_without_predictions_may_hold_unknown_labels_and_nothing_else(tmp_path: Path) -> None:
    path = write_targets(tmp_path / "a", [[1, -1, np.nan], [1, 0, 1]])
    assert read_source(path).prior.counts.tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match=r"b\.npz, row 0: its label of column 1 is 2, expected 0 or 1"):
        read_source(write_targets(tmp_path / "b", [[1, 2, 0]]))
    with pytest.raises(ValueError, match=r"c\.npz: targets are int64 of shape \(2,\), expected zeros and ones"):
        read_source(write_targets(tmp_path / "c", [1, 0]))


@pytest.mark.parametrize("target", ["target_", ""])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_of_a_training_set_may_hold_unknown_labels(target: str, ending: str, tmp_path: Path) -> None:
    a, b, c = (target + name for name in "abc")
    columns: dict[str, list[Any]] = {"id": [7, 8, 9], a: [1, None, 1], b: [0, 1, -1], c: [0.0, 1.0, None]}
    if ending == "parquet":
        path = write_parquet(tmp_path / "train", **columns)
    else:
        rows = [["" if value is None else value for value in row] for row in zip(*columns.values(), strict=True)]
        path = write_csv(tmp_path / "train", [*columns], rows)
    assert read_source(path).prior == eq.Prior.from_counts({"a": 2, "b": 1, "c": 1}, total=3)


def test_of_predictions_with_labels_only_the_labels_are_counted(tmp_path: Path) -> None:
    header = ["a", "b", "target_a", "target_b"]
    path = write_csv(tmp_path / "a", header, [[1, 0, 1, 1], [1, 0, 0, 1]])
    assert read_source(path).prior == eq.Prior.from_counts({"a": 1, "b": 2}, total=2)
    with pytest.raises(ValueError, match=r"b\.csv.*column 'target_b' holds more than 0, 1"):
        read_source(write_csv(tmp_path / "b", header, [[1, 0, 1, 1], [1, 0, 0, 2]]))


def test_a_named_column_of_lists_is_read_and_a_label_column_holds_one(tmp_path: Path) -> None:
    rows = [["x", "Mass|Edema"], ["y", "Mass"], ["z", ""]]
    found = read_source(write_csv(tmp_path / "a", ["image", "Findings"], rows), column="Findings")
    assert found.prior == eq.Prior.from_counts({"Edema": 1, "Mass": 2}, total=3)
    single = read_source(write_csv(tmp_path / "b", ["image", "label"], [["x", "a|b"], ["y", "a|b"]]))
    assert not single.multilabel
    assert single.prior.class_names == ("a|b",)


def test_numbers_in_lists_are_class_indices(tmp_path: Path) -> None:
    found = read_source(write_csv(tmp_path / "a", ["tags"], [["0;3"], ["3"], ["[3, 1]"]]))
    assert found.prior == eq.Prior.from_counts([1, 1, 0, 3], total=3)


@pytest.mark.parametrize("cells", [["cat, owl", "cat", "owl,yak"], ["a b", "a c", "b c", "a", "b", "c"]])
def test_cells_that_look_like_lists_but_count_as_one_class_are_pointed_out(tmp_path: Path, cells: list[str]) -> None:
    path = write_csv(tmp_path / "a", ["image", "tags"], [["x", cell] for cell in cells])
    with pytest.warns(UserWarning, match=r"column 'tags': cells such as .* separated by '[, ]'.* with ; or \|"):
        found = read_source(path)
    assert found.prior.class_names == tuple(sorted(cells))
    with pytest.warns(UserWarning, match="look like lists"):
        read_source(write_parquet(tmp_path / "b", tags=cells))


@pytest.mark.parametrize("cells", [["owl, great", "cat", "dog, small"], ["red fox", "grey fox", "red owl", "grey owl"]])
def test_names_with_commas_and_spaces_are_no_lists(tmp_path: Path, cells: list[str]) -> None:
    assert read_source(write_csv(tmp_path / "a", ["tags"], [[cell] for cell in cells])).prior.num_classes == len(cells)


def test_an_empty_cell_without_lists_says_how_lists_are_separated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 3, column 'tags' is empty: .* lists, separated by ; or \|"):
        read_source(write_csv(tmp_path / "a", ["image", "tags"], [["x", "cat"], ["y", ""]]))


def test_sigmoid_outputs_that_are_called_logits_are_refused_with_the_way_out(tmp_path: Path) -> None:
    random, path = np.random.default_rng(0), tmp_path / "wrong.npz"
    chances, targets = random.random((20, 3)), random.integers(0, 2, (20, 3))
    np.savez(path, logits=chances, targets=targets)
    with pytest.raises(ValueError, match=r"wrong\.npz: its logits are probabilities: name the array 'probabilities'"):
        list(open_either(path).batches())
    for fine in ({"probabilities": chances}, {"logits": chances * 2 - 1}):
        np.savez(path, targets=targets, **fine)
        assert sum(len(batch.labels) for batch in open_either(path).batches()) == 20
