"""`equipoise adapt` where items may have several labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app

NAMES = ["cat", "owl", "yak"]
SOURCE, TARGET = np.array([0.3, 0.1, 0.05]), np.array([0.1, 0.3, 0.2])
STATED = {"yak": 0.05, "cat": 0.3, "owl": 0.1}  # not in the order of the columns
IN_USE = dict(zip(NAMES, TARGET.tolist(), strict=True))


def world(rates: Any, n: int = 200) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    truth = (generator.random((n, 3)) < rates).astype(np.int64)
    return 2 * (generator.normal(size=(n, 3)) + 2 * truth - 1) + np.log(SOURCE / (1 - SOURCE)), truth


LOGITS, TRUTH = world(TARGET)
EXPECTED = eq.adjust_sigmoid_logits(torch.tensor(LOGITS), source=SOURCE, target_rate=TARGET).numpy()


def adapt(folder: Path, predictions: str = "scores.npz", *more: str, source: Any = STATED, target: Any = IN_USE) -> Any:
    words = []
    for side, content in (("source", source), ("target", target)):
        if not isinstance(content, str):
            (folder / f"{side}.json").write_text(json.dumps(content))
            content = str(folder / f"{side}.json")
        words += [f"--{side}", content]
    options = [*words, "--out", str(folder / "adapted.npz"), *more]
    return CliRunner().invoke(app, ["adapt", str(folder / predictions), *options], env={"COLUMNS": "300"})


def save(folder: Path, **arrays: Any) -> None:
    np.savez(folder / "scores.npz", **(arrays or {"logits": LOGITS, "targets": TRUTH, "class_names": NAMES}))


def written(folder: Path) -> dict[str, Any]:
    with np.load(folder / "adapted.npz", allow_pickle=False) as file:
        return dict(file)


def table(folder: Path, scores: Any, labels: str | None) -> str:
    """A .csv file with its labels in columns of their own ("columns"), as lists ("tags"), or without labels."""
    header, rows = list(NAMES), [list(map(repr, row)) for row in scores.tolist()]
    if labels == "columns":
        header += [f"target_{name}" for name in NAMES]
        rows = [[*row, *map(str, own)] for row, own in zip(rows, TRUTH.tolist(), strict=True)]
    elif labels == "tags":
        header.append("tags")
        lists = [";".join(name for name, one in zip(NAMES, own, strict=True) if one) for own in TRUTH.tolist()]
        rows = [[*row, own] for row, own in zip(rows, lists, strict=True)]
    (folder / "scores.csv").write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    return "scores.csv"


def test_each_class_is_moved_to_its_rate_in_use_matched_by_name(tmp_path: Path) -> None:
    save(tmp_path, logits=LOGITS, targets=TRUTH, class_names=NAMES, ids=np.arange(200))
    result = adapt(tmp_path)
    assert result.exit_code == 0, result.output
    found = written(tmp_path)
    assert set(found) == {"logits", "targets", "class_names", "ids", "source", "target"}
    np.testing.assert_allclose(found["logits"], EXPECTED, atol=1e-6)
    np.testing.assert_array_equal(found["targets"], TRUTH)
    np.testing.assert_allclose(found["source"], SOURCE)
    np.testing.assert_allclose(found["target"], TARGET)


@pytest.mark.parametrize("labels", ["columns", "tags", None])
@pytest.mark.parametrize("probabilities", [False, True])
def test_a_table_is_adapted_like_the_arrays(tmp_path: Path, labels: str | None, probabilities: bool) -> None:
    scores = torch.tensor(LOGITS).sigmoid().numpy() if probabilities else LOGITS
    result = adapt(tmp_path, table(tmp_path, scores, labels))
    assert result.exit_code == 0, result.output
    found = written(tmp_path)
    if probabilities:
        np.testing.assert_allclose(found["probabilities"], torch.tensor(EXPECTED).sigmoid(), atol=1e-6)
    else:
        np.testing.assert_allclose(found["logits"], EXPECTED, atol=1e-6)
    assert found["class_names"].tolist() == NAMES
    assert ("The file has no labels: taken as one for several labels per item" in result.output) == (labels is None)
    if labels is None:
        assert "targets" not in found
    else:
        np.testing.assert_array_equal(found["targets"], TRUTH)


def test_the_tables_show_rates_and_scores_before_and_after(tmp_path: Path) -> None:
    save(tmp_path)
    output = adapt(tmp_path).output
    for word in ("Rate of each class, %", *NAMES, "30.0", "10.0", "5.0", "mAP", "mean F1", "ECE", "before", "after"):
        assert word in output
    changed = int(((EXPECTED >= 0) != (LOGITS >= 0)).sum())
    assert f"{changed} of 600 predicted labels changed" in output
    told = json.loads(adapt(tmp_path, "scores.npz", "--json").stdout)
    assert [row["class"] for row in told["classes"]] == NAMES
    np.testing.assert_allclose([row["after"] for row in told["classes"]], (EXPECTED >= 0).mean(0))
    np.testing.assert_allclose([row["before"] for row in told["classes"]], (LOGITS >= 0).mean(0))
    for when, logits in (("before", LOGITS), ("after", EXPECTED)):
        judged = eq.evaluate_multilabel(logits, TRUTH, eq.Prior.uniform(3)).scores()
        assert told["scores"][when] == pytest.approx({key: judged[key] for key in told["scores"][when]})
    assert told["scores"]["after"]["ece"] < told["scores"]["before"]["ece"]  # the labels follow --target
    assert told["notes"] == []


def test_a_note_says_so_where_the_labels_follow_the_source(tmp_path: Path) -> None:
    logits, truth = world(SOURCE)
    save(tmp_path, logits=logits, targets=truth, class_names=NAMES)
    assert "The labels are closer to --source than to --target" in adapt(tmp_path).output


def test_rates_are_also_counted_or_one_number_and_uniform_is_their_mean(tmp_path: Path) -> None:
    save(tmp_path)
    counted = {"counts": {"yak": 5, "cat": 30, "owl": 10}, "total": 100}
    (tmp_path / "train.csv").write_text(
        "cat,owl,yak\n" + "1,0,0\n" * 24 + "1,1,0\n" * 6 + "0,1,1\n" * 4 + "0,0,1\n" * 1
    )
    assert adapt(tmp_path, source=counted).exit_code == 0
    np.testing.assert_allclose(written(tmp_path)["logits"], EXPECTED, atol=1e-5)
    assert adapt(tmp_path, source=str(tmp_path / "train.csv")).exit_code == 0
    np.testing.assert_allclose(written(tmp_path)["source"], np.array([30, 10, 5]) / 35, atol=1e-6)
    assert adapt(tmp_path, source="0.25", target="uniform").exit_code == 0
    assert written(tmp_path)["source"].tolist() == written(tmp_path)["target"].tolist() == [0.25] * 3
    assert adapt(tmp_path, target="uniform").exit_code == 0
    np.testing.assert_allclose(written(tmp_path)["target"], [0.15] * 3)


def test_an_array_called_target_is_kept_under_another_name_and_the_result_can_be_adapted_again(tmp_path: Path) -> None:
    save(tmp_path, logits=LOGITS, target=TRUTH)
    assert adapt(tmp_path, source=SOURCE.tolist(), target=TARGET.tolist()).exit_code == 0
    found = written(tmp_path)
    np.testing.assert_array_equal(found["targets"], TRUTH)
    np.testing.assert_allclose(found["target"], TARGET)
    del found["targets"]  # without labels, `target` holds rates
    save(tmp_path, **found)
    result = adapt(tmp_path, source=TARGET.tolist(), target=SOURCE.tolist())
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(written(tmp_path)["logits"], LOGITS, atol=1e-5)


def test_thresholds_in_the_file_decide_and_a_note_asks_for_new_ones(tmp_path: Path) -> None:
    save(tmp_path, logits=LOGITS, targets=TRUTH, class_names=NAMES, thresholds=np.array([0.2, 0.3, 0.4]))
    told = json.loads(adapt(tmp_path, "scores.npz", "--json").stdout)
    chances = torch.tensor(EXPECTED).sigmoid().numpy()
    np.testing.assert_allclose([row["after"] for row in told["classes"]], (chances >= [0.2, 0.3, 0.4]).mean(0))
    assert "choose them anew" in told["notes"][0]


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ({"target": "estimate"}, "--target estimate needs items of one class each"),
        ({"source": "uniform"}, "pass the rate that the balanced loss gave every class"),
        ({"source": {"cat": 300, "owl": 10, "yak": 5}}, "holds counts but not of how many items"),
        ({"target": {"cat": 0.0, "owl": 0.1, "yak": 0.2}}, "the rate of cat is 0: expected it between 0 and 1"),
        ({"target": {"cat": 0.2, "emu": 0.1, "yak": 0.2}}, "has the class 'owl'"),
        ({"target": "rates.jsn"}, "--target rates.jsn does not exist: expected uniform, a rate between 0 and 1"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(tmp_path: Path, sides: dict[str, Any], message: str) -> None:
    save(tmp_path)
    result = adapt(tmp_path, **sides)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not (tmp_path / "adapted.npz").exists()


def test_rates_for_items_of_one_class_are_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, logits=LOGITS, labels=TRUTH.argmax(1), class_names=NAMES)
    result = adapt(tmp_path)
    assert result.exit_code == 2, result.output
    assert "source.json: the count of yak is 0.05, and all numbers sum to 0.45" in result.output
    assert "the probabilities of classes sum to 1" in result.output
    assert "Prior.from" not in result.output
