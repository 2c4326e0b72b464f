"""The prior-shift experiment: its data, a run, its committed records, and the documents rendered from them."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data.digits import load_digits_lt
from equipoise.experiments.demo import digits_cnn
from equipoise.experiments.documents import prior_shift as documents
from equipoise.experiments.prior_shift import recipe as prior_shift
from equipoise.experiments.prior_shift import report
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.experiments.prior_shift.runs import PriorShiftRun
from equipoise.training.recipe import MethodCell
from equipoise.training.records import read_records
from equipoise.training.weights import weights_digest

TREATMENTS = ("as trained", "known", "EM", "BBSE")  # what the target prior is taken from
ROOT = Path(__file__).parents[2]
COMMITTED = read_records(ROOT / "results", prior_shift.NAME, PriorShiftRecord)


def accuracy(method: str, shift: str, column: str) -> float:
    return mean(report.values(COMMITTED, method, shift, column, "accuracy"))


# -------------------------------------------------------------------- the data


def test_validation_and_test_sets_share_no_image_and_have_the_frequencies_they_say() -> None:
    digits = load_digits_lt(prior_shift.IMBALANCE, prior_shift.VALIDATION_PER_CLASS + prior_shift.TEST_PER_CLASS)
    validation, pool = prior_shift.split(digits)
    assert set(validation) | set(pool) == set(range(len(digits.test_labels)))
    assert set(validation) & set(pool) == set()
    assert np.bincount(digits.test_labels[validation]).tolist() == [prior_shift.VALIDATION_PER_CLASS] * 10
    names = []
    for shift, counts, chosen in prior_shift.test_sets(digits.test_labels, pool, seed=0):
        names.append(shift)
        assert set(chosen) <= set(pool)
        assert len(set(chosen)) == len(chosen)
        assert np.bincount(digits.test_labels[chosen], minlength=10).tolist() == counts.tolist()
        assert counts.max() == prior_shift.TEST_PER_CLASS
        if shift.startswith(("forward", "backward")):
            way, ratio = shift.split("-")
            ends = counts[[0, -1]] if way == "forward" else counts[[-1, 0]]
            assert ends.tolist() == [50, 50 // int(ratio)]
    assert names == [*list(prior_shift.SHIFTS)[:-1], *["dirichlet"] * prior_shift.DIRICHLET_DRAWS]
    first, again, other = (
        [chosen.tolist() for *_, chosen in prior_shift.test_sets(digits.test_labels, pool, seed)] for seed in (0, 0, 1)
    )
    assert first == again != other


# -------------------------------------------------------------------- a run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prior_shift, "DIRICHLET_DRAWS", 1)
    monkeypatch.setattr(prior_shift, "estimate_prior", partial(eq.estimate_prior, resamples=5))
    monkeypatch.setattr(prior_shift, "METHODS", {"softmax": prior_shift.METHODS["softmax"]})


@pytest.mark.usefixtures("quick")
def test_a_smoke_test_prints_the_table_and_is_never_imported(tmp_path: Path) -> None:
    out, results = tmp_path / "records.jsonl", tmp_path / "results"
    arguments = [
        "run",
        "prior-shift",
        "--iterations",
        "60",
        "--seeds",
        "0",
        "--results",
        str(results),
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    for word in ("Accuracy", "Log-loss", "as", "known", "EM", "BBSE", "backward, 50", "Dirichlet"):
        assert word in result.output
    result = CliRunner().invoke(app, ["records", "import", str(out), "--results", str(results)])
    assert "0 new records" in result.output
    assert "1 smoke test left out" in result.output
    assert not results.exists()


@pytest.mark.usefixtures("quick")
def test_a_smoke_test_is_not_in_the_table_of_another(tmp_path: Path) -> None:
    def table(iterations: int, out: str) -> str:
        words = ["run", "prior-shift", "--iterations", str(iterations), "--seeds", "0", "--out", str(tmp_path / out)]
        result = CliRunner().invoke(app, [*words, "--results", str(tmp_path)], env={"COLUMNS": "100"})
        assert result.exit_code == 0, result.output
        return result.output[result.output.index("Accuracy") : result.output.index("the table:")]

    alone, longer = table(2, "alone.jsonl"), table(40, "both.jsonl")
    assert longer != alone
    assert table(2, "both.jsonl") == alone


def test_a_finished_run_is_saved_and_restored() -> None:
    run, again = (PriorShiftRun(MethodCell("softmax", 0), 3) for _ in range(2))
    run.load_state_dict({"model": digits_cnn().state_dict()})
    assert not again.done
    again.load_state_dict(run.state_dict())
    assert (again.iteration, again.finite) == (3, True)
    assert weights_digest(again.model) == weights_digest(run.model)
    with torch.no_grad():
        next(again.model.parameters()).fill_(torch.nan)
    assert not again.finite


def test_runs_are_recorded_once_and_imported_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def record(method: str, seed: int, *_: object, **__: object) -> PriorShiftRecord:
        asked.append((method, seed))
        return next(record for record in COMMITTED if (record.method, record.seed) == (method, seed))

    monkeypatch.setattr(prior_shift, "fit", lambda *_: digits_cnn())
    monkeypatch.setattr(prior_shift, "record", record)
    out, results = tmp_path / "records.jsonl", tmp_path / "results"
    arguments = ["run", "prior-shift", "--seeds", "0", "1", "--results", str(results), "--out", str(out)]
    for expected in ("4 runs recorded", "nothing left to train: 4 have a record in"):
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
        assert result.exit_code == 0, result.output
        assert expected in result.output
    assert sorted(asked) == [(method, seed) for method in ("balanced_softmax", "softmax") for seed in (0, 1)]
    result = CliRunner().invoke(app, ["records", "import", str(out), "--results", str(results)])
    assert "4 new records" in result.output
    name = f"{prior_shift.NAME}/softmax/1.json"
    assert (results / name).read_text() == (ROOT / "results" / name).read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--seeds", "9"], "the plan has seeds 0, 1, 2, 3, 4"), (["3"], "unexpected extra argument")],
)
def test_seeds_that_are_not_planned_are_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["run", "prior-shift", *words], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output


# -------------------------------------------------------------------- committed records and documents


def test_every_planned_run_is_committed_and_was_trained_as_planned() -> None:
    planned = {f"{prior_shift.NAME}/{method}/{seed}" for method in prior_shift.METHODS for seed in prior_shift.SEEDS}
    assert {record.key for record in COMMITTED} == planned
    for record in COMMITTED:
        assert record.complete
        assert record.imbalance == prior_shift.IMBALANCE
        assert len(record.test_sets) == len(prior_shift.SHIFTS) - 1 + prior_shift.DIRICHLET_DRAWS
        for one in record.test_sets:
            assert set(one["results"]["raw"]) == set(TREATMENTS)


def test_the_committed_documents_and_the_figure_are_what_the_committed_records_give() -> None:
    rendered = documents.documents(ROOT, ROOT / "results")
    assert {path.relative_to(ROOT).as_posix() for path in rendered} == {"docs/estimation.md", "results/README.md"}
    stale = [path.name for path, text in rendered.items() if path.read_text() != text]
    assert stale == [], "run: equipoise table prior-shift --write"
    with Image.open(ROOT / documents.FIGURE) as picture:
        assert picture.info["Description"] == documents.digest(COMMITTED)


def test_writing_renders_the_documents_and_the_figure(tmp_path: Path) -> None:
    for name in ("docs", "results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "estimation.md"
    text = page.read_text()
    page.write_text(text.replace("| Softmax | balanced |", "| ? | ? |"))
    (tmp_path / documents.FIGURE).unlink()
    command = ["table", "prior-shift", "--results", str(tmp_path / "results"), "--write"]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert page.read_text() == text
    assert (tmp_path / documents.FIGURE).read_bytes().startswith(b"\x89PNG")
    command = ["table", "prior-shift", "--results", str(tmp_path / "docs")]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "holds no record of" in result.output


def record(seed: int, base: float) -> PriorShiftRecord:
    """A record whose accuracies are `base` and one more for each treatment, two Dirichlet draws ten apart."""

    def results(shift: str, number: int) -> dict[str, Any]:
        above = 10.0 * number if shift == "dirichlet" else 0.0
        return {
            kind: {
                name: {"accuracy": base + above + step + more, "log_loss": 0.5, "total_variation": 0.25}
                | ({"trusted": number == 0, "covered": 0.9} if name in ("EM", "BBSE") else {})
                for step, name in enumerate(TREATMENTS)
            }
            for more, kind in ((0, "raw"), (4, "calibrated"))
        }

    draws = [(shift, number) for shift in prior_shift.SHIFTS for number in range(2 if shift == "dirichlet" else 1)]
    scores = {"log_loss": 0.5, "brier": 0.25, "ece": 0.125, "temperature": 2.0}
    content = json.loads(COMMITTED[0].to_json()) | {
        "method": "softmax",
        "seed": seed,
        "calibration": dict.fromkeys(("before", "temperature", "bias-corrected"), scores),
        "test_sets": [{"shift": s, "counts": [1] * 10, "results": results(s, number)} for s, number in draws],
    }
    return PriorShiftRecord(**content)


def test_the_tables_show_means_over_draws_and_spread_over_seeds() -> None:
    records = [record(0, 50.0), record(1, 52.0)]
    lines = str(documents.shift_table(records)).splitlines()
    assert lines[2] == (
        "| Softmax | forward, 50 | 51.0 ± 1.4 / 0.50 | 52.0 ± 1.4 / 0.50 | 53.0 ± 1.4 / 0.50 | 54.0 ± 1.4 / 0.50 | "
        "55.0 ± 1.4 / 0.50 | 56.0 ± 1.4 / 0.50 | 57.0 ± 1.4 / 0.50 | 2 |"
    )
    assert lines[-1].startswith("| Softmax | Dirichlet | 56.0 ± 1.4 / 0.50 | 57.0 ± 1.4")
    assert (
        str(documents.estimate_table(records)).splitlines()[2] == "| Softmax | EM | 0.25 | 0.25 | 90 % | 12 of 14 | 2 |"
    )
    assert str(documents.calibration_table(records)).splitlines()[2:4] == [
        "| Softmax | before | 0.500 | 0.250 | 0.125 | – | 2 |",
        "| Softmax | temperature | 0.500 | 0.250 | 0.125 | 2.00 | 2 |",
    ]


def test_the_figure_shows_every_column_at_its_mean() -> None:
    records = [record(0, 50.0), record(1, 52.0)]
    made = documents.figure(
        [*records, *(PriorShiftRecord(**vars(r) | {"method": "balanced_softmax"}) for r in records)]
    )
    (one, other), below = (row["hconcat"] for row in made["vconcat"])
    assert [panel.get("title", {}).get("text", "") for panel in (one, other, *below)] == [
        *("trained with Softmax", "trained with Balanced Softmax"),
        *("", ""),
    ]
    by_target: dict[str, list[float]] = {}
    for row in one["data"]["values"]:
        by_target.setdefault(row["target"], []).append(row["value"])
    assert list(by_target) == ["that of the logits (as trained)", "estimated", "estimated after calibration", "known"]
    assert by_target["known"][:5] == [52.0] * 5
    assert by_target["estimated after calibration"][:5] == [57.0] * 5
    first = one["data"]["values"][0]
    assert (first["value"], first["seeds"]) == (51.0, [50.0, 52.0])  # single seeds behind their mean
    assert {row["value"] for row in below[0]["data"]["values"]} == {0.5}


# -------------------------------------------------------------------- what the page says in words


def test_the_prior_is_worth_more_the_further_the_test_set_is_from_training() -> None:
    gains = [accuracy("softmax", s, "known") - accuracy("softmax", s, "as trained") for s in prior_shift.SHIFTS][:5]
    assert gains == sorted(gains)
    assert abs(gains[0]) < 0.5
    assert gains[-1] > 15


@pytest.mark.parametrize("shift", ["uniform", "backward-10", "backward-50", "dirichlet"])
def test_em_gives_softmax_a_part_of_the_gain_and_after_calibration_all_of_it(shift: str) -> None:
    trained, known, raw, calibrated = (
        accuracy("softmax", shift, column) for column in ("as trained", "known", "EM", "calibrated, EM")
    )
    assert 0.2 < (raw - trained) / (known - trained) < 0.8
    assert (calibrated - trained) / (known - trained) > 0.98


def test_raw_estimates_cost_balanced_softmax_accuracy_where_the_shift_is_small() -> None:
    for shift in ("uniform", "backward-10"):
        assert accuracy("balanced_softmax", shift, "EM") < accuracy("balanced_softmax", shift, "as trained") - 1


def test_most_raw_estimates_are_trusted_as_the_page_says() -> None:
    for method in prior_shift.METHODS:
        trusted = [
            one["results"]["raw"]["EM"]["trusted"] for r in COMMITTED if r.method == method for one in r.test_sets
        ]
        assert mean(trusted) > 0.5
