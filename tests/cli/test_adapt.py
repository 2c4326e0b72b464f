"""`equipoise adapt` as a user meets it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data.sources import read_prior
from equipoise.metrics.evaluation import percent

NAMES = ["cat", "owl", "yak"]
SOURCE = np.array([0.6, 0.3, 0.1])
COUNTS = {"owl": 30, "yak": 10, "cat": 60}  # not in the order of the columns


def world(prior: Any, n: int, seed: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, n, p=prior)
    x = generator.normal(size=(n, 3))
    x[np.arange(n), labels] += 2
    return (2 * x + np.log(SOURCE)).astype(np.float32), labels


LOGITS, LABELS = world([0.1, 0.3, 0.6], 400, 0)


def adapt(folder: Path, target: str = "uniform", *more: str, source: str = "counts.json", **arrays: Any) -> Any:
    held = arrays or {"logits": LOGITS, "labels": LABELS, "class_names": NAMES, "ids": np.arange(400)}
    np.savez(folder / "predictions.npz", **held)
    (folder / "counts.json").write_text(json.dumps(COUNTS))
    words = [str(folder / word) if (folder / word).is_file() else word for word in (source, target)]
    options = ["--source", words[0], "--target", words[1], "--out", str(folder / "adapted.npz"), *more]
    return CliRunner().invoke(app, ["adapt", str(folder / "predictions.npz"), *options], env={"COLUMNS": "300"})


def written(folder: Path) -> dict[str, Any]:
    with np.load(folder / "adapted.npz", allow_pickle=False) as file:
        return dict(file)


def test_predictions_become_right_for_equal_classes_matched_by_name(tmp_path: Path) -> None:
    result = adapt(tmp_path)
    assert result.exit_code == 0, result.output
    found = written(tmp_path)
    expected = eq.adjust_logits(torch.tensor(LOGITS), source=SOURCE)
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5)
    assert found["class_names"].tolist() == NAMES
    assert found["ids"].tolist() == list(range(400))
    np.testing.assert_array_equal(found["labels"], LABELS)
    np.testing.assert_allclose(found["source"], SOURCE)
    np.testing.assert_allclose(found["target"], 1 / 3)


def test_the_table_says_what_changed(tmp_path: Path) -> None:
    output = adapt(tmp_path).output
    for word in (*NAMES, "60.0", "33.3", "accuracy", "log-loss", "ECE", "before", "after"):
        assert word in output
    changed = int((written(tmp_path)["logits"].argmax(1) != LOGITS.argmax(1)).sum())
    assert f"{changed} of 400 predictions changed" in output
    assert percent((written(tmp_path)["logits"].argmax(1) == LABELS).mean()) in output


def test_a_note_says_so_where_the_labels_follow_the_source_and_only_there(tmp_path: Path) -> None:
    note = "The labels are closer to --source than to --target in their class frequencies"
    assert note not in adapt(tmp_path).output
    logits, labels = world(SOURCE, 400, 2)
    result = adapt(tmp_path, logits=logits, labels=labels, class_names=NAMES)
    assert result.exit_code == 0, result.output
    assert note in result.output


def test_of_many_classes_the_most_changed_are_shown_or_the_first_if_none_is(tmp_path: Path) -> None:
    np.save(tmp_path / "prior.npy", np.arange(20, 0, -1))
    said = [
        adapt(tmp_path, target, source="prior.npy", logits=np.eye(20)).output for target in ("uniform", "prior.npy")
    ]
    assert "12 of 20, most changed" in said[0]
    assert "12 of 20, the first" in said[1]


def test_probabilities_stay_probabilities_without_labels_and_names(tmp_path: Path) -> None:
    p = torch.tensor(LOGITS).softmax(1).numpy()
    result = adapt(tmp_path, probabilities=p)
    assert result.exit_code == 0, result.output
    assert "accuracy" not in result.output
    found = written(tmp_path)
    assert set(found) == {"probabilities", "source", "target"}
    counted = np.array([30, 10, 60]) / 100  # without names on both sides, the order of the file is that of the columns
    expected = p / counted
    np.testing.assert_allclose(found["probabilities"], expected / expected.sum(1, keepdims=True), atol=1e-5)


def test_the_target_can_be_estimated_and_the_estimate_is_the_librarys(tmp_path: Path) -> None:
    result = adapt(tmp_path, "estimate")
    assert result.exit_code == 0, result.output
    expected = eq.estimate_prior(torch.tensor(LOGITS).softmax(1), SOURCE)
    np.testing.assert_allclose(written(tmp_path)["target"], expected.probabilities, atol=1e-6)
    assert f"({100 * expected.low[0]:.1f} to {100 * expected.high[0]:.1f})" in result.output
    assert "Calibration was not checked" in result.output


def test_an_estimate_that_cannot_be_trusted_is_called_so(tmp_path: Path) -> None:
    result = adapt(tmp_path, "estimate", logits=LOGITS[:12])
    assert result.exit_code == 3, result.output
    assert "The estimate cannot be trusted: 12 items are few for 3 classes" in result.output
    assert written(tmp_path)["logits"].shape == (12, 3)
    told = adapt(tmp_path, "estimate", "--json", logits=LOGITS[:12])
    assert told.exit_code == 3
    assert json.loads(told.stdout)["trusted"] is False
    assert "12 items are few for 3 classes" in json.loads(told.stdout)["doubts"][0]


def test_what_changed_can_be_had_as_json(tmp_path: Path) -> None:
    result = adapt(tmp_path, "estimate", "--json")
    assert result.exit_code == 0, result.output
    found, kept = json.loads(result.stdout), written(tmp_path)
    estimate = eq.estimate_prior(torch.tensor(LOGITS).softmax(1), SOURCE)
    assert [row["class"] for row in found["classes"]] == NAMES
    np.testing.assert_allclose([row["target"] for row in found["classes"]], estimate.probabilities, atol=1e-6)
    np.testing.assert_allclose([row["low"] for row in found["classes"]], estimate.low, atol=1e-6)
    shares = np.bincount(kept["logits"].argmax(1), minlength=3) / 400
    np.testing.assert_allclose([row["after"] for row in found["classes"]], shares)
    assert found["scores"]["after"]["accuracy"] == pytest.approx((kept["logits"].argmax(1) == LABELS).mean())
    assert found["changed"] == int((kept["logits"].argmax(1) != LOGITS.argmax(1)).sum())
    assert (found["trusted"], found["items"], found["written"]) == (True, 400, str(tmp_path / "adapted.npz"))
    without = json.loads(adapt(tmp_path, "uniform", "--json", logits=LOGITS).stdout)
    assert (without["scores"], without["trusted"], without["doubts"]) == (None, None, [])


@pytest.mark.parametrize("what", ["predictions", "source"])
def test_one_file_may_come_in_on_stdin(tmp_path: Path, what: str) -> None:
    expected = adapt(tmp_path, "uniform", "--json")
    content = (tmp_path / ("predictions.npz" if what == "predictions" else "counts.json")).read_bytes()
    files = {"predictions": str(tmp_path / "predictions.npz"), "source": str(tmp_path / "counts.json")} | {what: "-"}
    options = ["--source", files["source"], "--target", "uniform", "--out", str(tmp_path / "adapted.npz"), "--json"]
    result = CliRunner().invoke(app, ["adapt", files["predictions"], *options], input=content)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads(expected.stdout)


def test_bbse_takes_a_labelled_file(tmp_path: Path) -> None:
    held_out, labels = world(SOURCE, 400, 1)
    np.savez(tmp_path / "validation.npz", logits=held_out, labels=labels)
    result = adapt(tmp_path, "estimate", "--method", "bbse", "--validation", str(tmp_path / "validation.npz"))
    assert result.exit_code == 0, result.output
    predictions, held_out = (torch.tensor(values).softmax(1) for values in (LOGITS, held_out))
    expected = eq.estimate_prior(predictions, SOURCE, method="bbse", validation=(held_out, labels))
    np.testing.assert_allclose(written(tmp_path)["target"], expected.probabilities, atol=1e-9)


def test_a_known_prior_rules_classes_out_and_the_same_prior_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "known.json").write_text("[0.5, 0.5, 0.0]")
    assert adapt(tmp_path, "known.json").exit_code == 0
    assert (written(tmp_path)["logits"].argmax(1) < 2).all()
    result = adapt(tmp_path, "counts.json")
    assert "the same prior: nothing changed" in result.output
    np.testing.assert_allclose(written(tmp_path)["logits"], LOGITS)


@pytest.mark.parametrize(
    ("text", "probabilities"),
    [
        ("[3, 1]", [0.75, 0.25]),
        ("[0.25, 0.75]", [0.25, 0.75]),
        ('{"1": 3, "0": 1}', [0.25, 0.75]),
        ('{"cat": 3, "owl": 1}', [0.75, 0.25]),
        ('{"cat": 0.75, "owl": 0.25}', [0.75, 0.25]),
        (eq.Prior.from_counts([3, 1]).to_json(), [0.75, 0.25]),
    ],
)
def test_a_prior_is_read_in_every_form_it_is_written_in(tmp_path: Path, text: str, probabilities: list[float]) -> None:
    (tmp_path / "prior.json").write_text(text)
    assert read_prior(tmp_path / "prior.json").prior.probabilities.tolist() == probabilities


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"target": "unifrom"},
            "--target unifrom does not exist: expected estimate, uniform, or counts, probabilities or labels",
        ),
        (
            {"source": "counts.jsn"},
            "--source counts.jsn does not exist: expected uniform, or counts, probabilities or labels",
        ),
        ({"target": "estimate", "more": ["--method", "bbse"]}, "pass --validation, or use --method em"),
        ({"target": "estimate", "more": ["--method", "mle"]}, "expected 'em' or 'bbse'"),
        ({"more": ["--method", "bbse"]}, "are for --target estimate, but --target is uniform"),
        ({"target": "estimate", "more": ["--validation", "no.npz"]}, "no.npz is not a file: expected predictions"),
        ({"arrays": {"scores": LOGITS}}, "has the arrays scores: expected 'logits' or 'probabilities'"),
        ({"arrays": {"logits": LOGITS[0]}}, "logits are float32 of shape (3,)"),
        ({"arrays": {"logits": LOGITS * np.nan}}, "predictions.npz, row 0, column 0 is nan"),
        ({"arrays": {"probabilities": LOGITS}}, "is not a distribution"),
        ({"arrays": {"logits": LOGITS[:, :2]}}, "has 2 columns of classes"),
        (
            {"arrays": {"logits": LOGITS, "labels": LABELS[:3]}},
            "labels have shape (3,), expected one for each of 400 rows",
        ),
        ({"arrays": {"logits": LOGITS, "class_names": NAMES[:2]}}, "2 class_names for 3 columns"),
        ({"arrays": {"logits": LOGITS, "class_names": ["cat", "emu", "yak"]}}, "predictions.npz has the class 'emu'"),
        ({"arrays": {"logits": np.array([[{}, {}, {}]])}}, "logits are Python objects"),
        ({"more": ["--out", "adapted.txt"]}, "expected a name ending in .npz"),
        ({"target": "predictions.npz"}, "ends in '.npz': expected a folder, .npy"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    arrays, more = arguments.pop("arrays", {}), arguments.pop("more", [])
    result = adapt(tmp_path, arguments.pop("target", "uniform"), *more, **arguments, **arrays)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not (tmp_path / "adapted.npz").exists()


def test_a_file_that_is_no_npz_and_the_file_itself_as_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    options = ["--source", "uniform", "--target", "uniform", "--out", str(tmp_path / "out.npz")]
    result = CliRunner().invoke(app, ["adapt", str(tmp_path / "text.npz"), *options], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "text.npz is not an .npz file, or is damaged" in result.output
    result = adapt(tmp_path, "uniform", "--out", str(tmp_path / "predictions.npz"))
    assert result.exit_code == 2
    assert "is the file that is read" in result.output


def test_files_that_are_missing_or_cannot_be_written_are_named_without_a_traceback(tmp_path: Path) -> None:
    np.save(tmp_path / "single.npy", LOGITS)
    (tmp_path / "old.npz").write_text("an older result")
    cases = [
        ("nowhere.npz", "old.npz", "nowhere.npz is not a file"),
        ("single.npy", "out.npz", "single.npy ends in '.npy': expected predictions, .npz"),
    ]
    for predictions, out, message in cases:
        options = ["--source", "uniform", "--target", "uniform", "--out", str(tmp_path / out)]
        result = CliRunner().invoke(app, ["adapt", str(tmp_path / predictions), *options], env={"COLUMNS": "300"})
        assert result.exit_code == 2, result.output
        assert message in result.output
    result = adapt(tmp_path, "uniform", "--out", str(tmp_path / "old.npz" / "out.npz"))
    assert result.exit_code == 2
    assert "cannot be written" in result.output


def test_names_are_shown_as_they_are_and_classes_counted_zero_times_are_noted(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text(json.dumps([3, 1, 0]), encoding="utf-8-sig")  # as Windows writes it
    names = ["猫", "owl [red]", "yak [/]"]
    result = adapt(tmp_path, "none.json", source="none.json", logits=LOGITS, class_names=names)
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in names)
    assert "1 of 3 classes have no item ('yak [/]'): each is treated as if it had one" in result.output


def test_files_that_name_the_columns_in_different_orders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"cat": 60, "owl": 30, "yak": 10}))
    result = adapt(tmp_path, "other.json", logits=LOGITS)
    assert result.exit_code == 2, result.output
    assert "the class names of --target are the same names in another order: reorder one to match --source" in (
        result.output
    )
    assert adapt(tmp_path, "other.json", logits=LOGITS, class_names=NAMES).exit_code == 0  # matched by name
    held_out, labels = world(SOURCE, 400, 1)
    np.savez(tmp_path / "labelled.npz", logits=held_out, labels=labels, class_names=NAMES[::-1])
    result = adapt(tmp_path, "estimate", "--validation", str(tmp_path / "labelled.npz"))
    assert result.exit_code == 2, result.output
    assert "the class names of --validation are the same names in another order" in result.output


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_of_predictions_is_adapted_as_an_npz_is(tmp_path: Path, kind: str) -> None:
    assert adapt(tmp_path).exit_code == 0
    expected = written(tmp_path)
    columns = {"label": [NAMES[j] for j in LABELS]} | {name: LOGITS[:, j] for j, name in enumerate(NAMES)}
    path = tmp_path / f"predictions.{kind}"
    if kind == "csv":
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *lines]))
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    options = ["--source", str(tmp_path / "counts.json"), "--target", "uniform", "--out", str(tmp_path / "adapted.npz")]
    result = CliRunner().invoke(app, ["adapt", str(path), *options])
    assert result.exit_code == 0, result.output
    found = written(tmp_path)
    assert set(found) == {"logits", "labels", "class_names", "source", "target"}
    for name in found:
        if name == "class_names":
            assert found[name].tolist() == expected[name].tolist()
        else:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5)


def test_the_prior_is_read_from_whatever_a_training_set_lies_in(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(["owl"] * 30 + ["yak"] * 10 + ["cat"] * 60))
    (tmp_path / "indices.csv").write_text("\n".join(["id,species", *(f"7,{j}" for j in [0] * 6 + [1] * 3 + [2])]))
    np.save(tmp_path / "counts.npy", [60, 30, 10])
    np.save(tmp_path / "chances.npy", SOURCE)
    for name, number in zip(NAMES, (6, 3, 1), strict=True):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(number):
            (tmp_path / "images" / name / f"{i}.png").touch()
    for source in ("labels.txt", "indices.csv", "counts.npy", "chances.npy", "images"):
        more = ["--column", "species"] if source.endswith("csv") else []
        result = adapt(tmp_path, "uniform", *more, source=str(tmp_path / source))
        assert result.exit_code == 0, result.output
        np.testing.assert_allclose(written(tmp_path)["source"], SOURCE)


def test_a_class_that_training_labels_never_show_counts_0(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(["owl"] * 3 + ["cat"]))
    result = adapt(tmp_path, source=str(tmp_path / "labels.txt"))
    assert result.exit_code == 0, result.output
    assert written(tmp_path)["source"].tolist() == [0.25, 0.75, 0]


@pytest.mark.parametrize(
    "arrays",
    [
        {"logits": (8 * LOGITS).astype(np.int16), "labels": LABELS},
        {"logits": np.where(LOGITS < -4, -np.inf, LOGITS), "labels": LABELS},
        {"logits": LOGITS, "labels": np.array(NAMES)[LABELS], "class_names": NAMES},
        {"logits": LOGITS, "labels": LABELS.astype(np.float32)},
        {"logits": np.asfortranarray(LOGITS), "labels": LABELS},
    ],
    ids=["integers", "ruled out", "names", "whole floats", "by column"],
)
def test_what_report_reads_adapt_reads(tmp_path: Path, arrays: dict[str, Any]) -> None:
    result = adapt(tmp_path, **arrays, source="counts.json")
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    found = written(tmp_path)
    counted = SOURCE if "class_names" in arrays else np.array([0.3, 0.1, 0.6])
    expected = eq.adjust_logits(torch.tensor(arrays["logits"].astype(np.float64)), source=counted)
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5)
    assert found["labels"].tolist() == arrays["labels"].tolist()  # as they were
    report = ["report", str(tmp_path / "predictions.npz"), "--counts", str(tmp_path / "counts.json")]
    assert CliRunner().invoke(app, [*report, "--out", str(tmp_path / "a.html")]).exit_code == 0


def test_other_arrays_come_along_without_being_read_into_memory(tmp_path: Path) -> None:
    features = np.zeros((1 << 13, 1 << 12), np.uint8)
    features[-1, -1] = 7
    np.savez_compressed(tmp_path / "big.npz", logits=LOGITS, features=features)
    options = ["--source", "uniform", "--target", "uniform", "--out", str(tmp_path / "adapted.npz")]
    CliRunner().invoke(app, ["adapt", str(tmp_path / "big.npz"), *options])  # imports what it needs
    tracemalloc.start()
    result = CliRunner().invoke(app, ["adapt", str(tmp_path / "big.npz"), *options])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.exit_code == 0, result.output
    assert peak < features.nbytes / 4
    assert (tmp_path / "adapted.npz").stat().st_size < features.nbytes / 100  # compressed as it was
    np.testing.assert_array_equal(written(tmp_path)["features"], features)


def test_an_old_result_stays_where_the_new_one_cannot_be_written_whole(tmp_path: Path) -> None:
    (tmp_path / "adapted.npz").write_bytes(b"an older result")
    np.savez(tmp_path / "damaged.npz", logits=LOGITS, zeros=np.zeros(999))
    content = bytearray((tmp_path / "damaged.npz").read_bytes())
    content[-1000] ^= 0xFF  # among the zeros
    (tmp_path / "damaged.npz").write_bytes(content)
    options = ["--source", "uniform", "--target", "uniform", "--out", str(tmp_path / "adapted.npz")]
    result = CliRunner().invoke(app, ["adapt", str(tmp_path / "damaged.npz"), *options], env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert "damaged.npz is damaged" in result.output
    assert (tmp_path / "adapted.npz").read_bytes() == b"an older result"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapted.npz", "damaged.npz"]


def test_names_cannot_write_to_the_terminal_but_by_visible_escapes(tmp_path: Path) -> None:
    names = ["cat\x1b[2J", "owl\x9b1m", "yak\u202e"]
    (tmp_path / "none.json").write_text(json.dumps([3, 1, 0]))
    result = adapt(tmp_path, "uniform", source="none.json", logits=LOGITS, class_names=names)
    assert result.exit_code == 0, result.output
    assert not set(result.output) & set("\x1b\x9b\u202e")
    assert all(text in result.output for text in (r"cat\x1b[2J", r"owl\x9b1m", r"yak\u202e"))


def test_the_options_are_these() -> None:
    from typer.main import get_command

    command = get_command(app).commands["adapt"]  # type: ignore[attr-defined]
    assert [option for p in command.params for option in p.opts] == [
        "predictions",
        "--source",
        "--target",
        "--out",
        "--method",
        "--validation",
        "--label",
        "--column",
        "--json",
    ]
