"""VOC-MLT: the recipe's facts, a run from files to records, and the table from records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.run_records import read_jsonl
from helpers.tagged_photos import CLASSES, write_tagged
from typer.testing import CliRunner, Result

from equipoise.cli import app
from equipoise.experiments.documents import voc_mlt as documents
from equipoise.experiments.voc_mlt import recipe, report
from equipoise.models.classifiers import make_backbone
from equipoise.prior import Prior
from equipoise.training.multilabel_records import MultilabelRecord

ROOT = Path(__file__).parents[2]
RECORDS = report.read(ROOT / "results")
COUNTS = [6, 34, 8, 14, 154, 17, 249, 29, 478, 4, 240, 48, 11, 20, 760, 100, 5, 81, 7, 64]  # of the published list


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "400"})


def said(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).replace("│", " ").split())


# -------------------------------------------------------------------- the recipe


def test_the_schedule_is_the_published_one() -> None:
    base = recipe.BASE
    assert (base.iterations, base.batch_size, base.momentum, base.nesterov) == (8 * 118, 32, 0.9, False)
    rates = [base.learning_rate(i) for i in (0, 250, 500, 589, 590, 825, 826, 943)]
    expected = [0.02 / 3, 0.04 / 3, 0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002]
    assert rates == pytest.approx(expected)
    assert (base.weight_decay, base.clip, base.frozen_stages, base.neck, base.dropout) == (1e-4, 35, 1, 256, 0.5)


def test_rows_differ_in_loss_and_sampler_alone() -> None:
    assert list(recipe.RECIPES) == list(report.METHODS)
    for name, one in recipe.RECIPES.items():
        same = replace(one, loss=recipe.BASE.loss, options={}, sampler="instance")
        if name != "bce_adjusted":
            assert same == recipe.BASE
        json.dumps(one.as_dict())
    sampled = {name for name, one in recipe.RECIPES.items() if one.sampler == "class_balanced"}
    assert sampled == {"class_aware", "db"}
    planned = recipe.plan()
    assert len(planned) == len(set(planned)) == 27
    assert [cell.seed for cell in planned] == [0] * 9 + [1] * 9 + [2] * 9


def test_eql_spares_the_tail_and_the_two_forms_of_balanced_sigmoid_differ_by_a_constant() -> None:
    prior = Prior.from_counts(COUNTS, 1142)
    losses = {name: one.make_loss(prior) for name, one in recipe.RECIPES.items()}
    assert losses["eql"].rare.tolist() == [count < 20 for count in COUNTS]  # type: ignore[union-attr, operator]
    paper, released = (losses[name].shift for name in ("balanced_sigmoid", "balanced_sigmoid_half"))
    mean_rate = torch.tensor(sum(COUNTS) / 20 / 1142)
    torch.testing.assert_close(released - paper, mean_rate.logit().expand(20), rtol=0, atol=1e-5)  # type: ignore
    torch.testing.assert_close(released, prior.logit())
    logits, target = torch.randn(4, 20, requires_grad=True), (torch.rand(4, 20) < 0.2).float()
    for loss in losses.values():
        assert torch.autograd.grad(loss(logits, target), logits)[0].abs().sum() > 0
    for name in ("focal", "db"):  # the factor of the released code
        inner: Any = losses[name].loss
        torch.testing.assert_close(losses[name](logits, target), 2 * inner(logits, target))


# -------------------------------------------------------------------- a run


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command on small images, with a small network."""
    change: dict[str, Any] = {"model": "resnet18", "size": 32, "batch_size": 4}
    monkeypatch.setattr(recipe, "BASE", replace(recipe.BASE, **change))
    monkeypatch.setattr(recipe, "RECIPES", {name: replace(one, **change) for name, one in recipe.RECIPES.items()})
    write_tagged(tmp_path / "data")
    torch.manual_seed(0)
    network, _ = make_backbone("resnet18", 32, full_stem=True)
    torch.save(network.state_dict(), tmp_path / "resnet18.pth")
    words = ["--data", tmp_path / "data", "--weights", tmp_path / "resnet18.pth", "--device", "cpu"]
    words += ["--results", tmp_path / "results", "--out", tmp_path / "records.jsonl", "--seeds", 0]

    def call(*more: object) -> Result:
        return run("run", "voc-mlt", *words, *more)

    return call


def test_rows_are_trained_and_judged_on_the_test_images(small: Callable[..., Result], tmp_path: Path) -> None:
    rows = ("bce", "db", "balanced_sigmoid", "bce_adjusted")
    words = ("--iterations", 2, *(word for row in rows for word in ("--only", row)))
    result = small(*words)
    assert result.exit_code == 0, said(result)
    records = {one.method: one for one in read_jsonl(tmp_path / "records.jsonl", MultilabelRecord)}
    assert set(records) == set(rows)
    for name, one in records.items():
        assert (one.items, one.trained_items, one.complete) == (12, 24, False)
        assert (one.iterations, one.class_names) == (0 if name == "bce_adjusted" else 2, list(CLASSES))
        assert one.starts_from == "resnet18.pth"
        assert one.map_head is None  # no class has more than 100 images
        assert one.recipe["stride"] == "3x3"
    plain, after = records["bce"], records["bce_adjusted"]
    assert after.backbone_weights == plain.weights
    assert after.average_precision == pytest.approx(plain.average_precision, abs=0.01)
    assert after.marginal != plain.marginal
    assert len({one.weights for name, one in records.items() if name != "bce_adjusted"}) == 3
    again = small(*words)
    assert "nothing left to train" in said(again)


def test_a_run_for_which_no_time_was_left_is_the_same_later(small: Callable[..., Result], tmp_path: Path) -> None:
    assert small("--iterations", 3, "--only", "db").exit_code == 0
    kept = tmp_path / "kept"
    stopped = small("--iterations", 3, "--only", "db", "--out", kept / "r.jsonl", "--budget", 0.001)
    assert "0 runs recorded" in said(stopped)
    assert small("--iterations", 3, "--only", "db", "--out", kept / "r.jsonl").exit_code == 0
    (whole,), (rest,) = (read_jsonl(path, MultilabelRecord) for path in (tmp_path / "records.jsonl", kept / "r.jsonl"))
    assert (rest.weights, rest.map, rest.micro_ap) == (whole.weights, whole.map, whole.micro_ap)


def test_what_is_missing_is_said(small: Callable[..., Result], tmp_path: Path) -> None:
    assert "holds no labels.csv" in said(small("--data", tmp_path))
    assert "there is no weights file" in said(small("--weights", tmp_path / "nothing.pth"))
    wanted = run("run", "voc-mlt", "--data", tmp_path, "--results", tmp_path, "--out", tmp_path / "r.jsonl")
    assert (wanted.exit_code, "pass a file for ResNet-50 as --weights" in said(wanted)) == (2, True)
    assert "the nearest is balanced_sigmoid" in said(small("--only", "balanced_sigmoit"))
    (tmp_path / "data" / "images" / "30.png").write_bytes(b"no image")
    assert "images/30.png" in said(small("--iterations", 1))


# -------------------------------------------------------------------- the table


def record(method: str, seed: int, above: float = 0.0, **change: Any) -> MultilabelRecord:
    """As a run would leave it; every AP is 60 plus what it is above."""
    precision: list[float | None] = [60 + above + place for place in range(20)]
    hits = [40] * 20
    scores = {"map": float(np.mean([value for value in precision if value])), "f1_micro": 40.0}
    usual: dict[str, Any] = {
        "map_head": 66.0 + above, "map_medium": 67.0 + above, "map_tail": 68.0 + above, "micro_ap": 50.0 + above,
        "f1_macro": 45.0 + above, "scores": {}, "evaluated_on": "test", "iterations": 944, "complete": True,
        "recipe": {"backbone": None}, "trained_on": "0", "tested_on": "1", "trained_items": 1142, "counts": COUNTS,
        "items": 4952, "positives": [100] * 20, "predicted": [100] * 20, "hits": hits,
        "average_precision": precision, "marginal": [0.1] * 20, "class_names": [f"class {i}" for i in range(20)],
        "loss_curve": [1.0], "weights": "2", "starts_from": "w.pth", "backbone_weights": None, "seconds": 41.0,
        "images_per_second": 700.0, "together": 4, "engine": {}, "commit": None, "versions": {"torch": "2.11"},
        "hardware": {"device": "a GPU"},
    }  # fmt: skip
    return MultilabelRecord("voc-mlt", method, seed, **scores, **{**usual, **change})


def test_scores_that_their_classes_do_not_give_are_refused() -> None:
    with pytest.raises(ValueError, match=r"map is 61\.0, but its classes give 69\.50"):
        replace(record("bce", 0), map=61.0)
    with pytest.raises(ValueError, match="f1_micro is nan"):
        replace(record("bce", 0), f1_micro=float("nan"))
    assert MultilabelRecord.from_json(record("bce", 0).to_json()) == record("bce", 0)


def test_differences_are_those_of_the_same_seed_and_chance_is_in_brackets() -> None:
    records = [record("bce", seed, 10.0 * seed) for seed in range(3)]
    records += [record("db", seed, 10.0 * seed + gain) for seed, gain in enumerate((1.0, 1.2, 0.9))]
    records += [record("focal", seed, 10.0 * seed + gain) for seed, gain in enumerate((1.0, -0.5, 0.9))]
    rows = {row[0]: row[1:] for row in report.differences_table(records).rows}
    assert rows["Distribution-Balanced, class-aware sampling"][0] == "+1.0 ± 0.2"
    assert rows["Focal"][0] == "(+0.5 ± 0.8)"
    assert rows["ASL"] == ["–"] * 7
    shown = {row[0]: row[1:] for row in report.methods_table(records).rows}
    assert shown["BCE"][0] == "79.5 ± 10.0"
    assert shown["EQL"] == ["–"] * 7 + ["0"]


def test_the_class_of_exactly_100_images_is_shown_in_both_groups() -> None:
    (note,) = report.released_split([record("bce", 0)])
    assert "The authors count class 15, with exactly 100, as head" in note
    head, medium = np.mean([64, 66, 68, 70, 74, 75]), np.mean([61, 67, 71, 73, 77, 79])
    assert f"BCE {head:.1f} and {medium:.1f}" in note


def test_the_documents_are_written_from_records(tmp_path: Path) -> None:
    for name in ("results/README.md", "docs/multilabel.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / name).read_text())
    assert run("table", "voc-mlt", "--results", tmp_path / "results").exit_code == 2  # holds no record
    for one in [record("bce", 0), record("balanced_sigmoid", 0, 2.0)]:
        path = one.path_under(tmp_path / "results")
        path.parent.mkdir(parents=True)
        path.write_text(one.to_json(indent=1))
    result = run("table", "voc-mlt", "--results", tmp_path / "results", "--write")
    assert result.exit_code == 0, said(result)
    text = (tmp_path / "results" / "README.md").read_text()
    assert "| BCE | 69.5 | 66.0 | 67.0 | 68.0 | 50.0 | 45.0 | 40.0 | 1 |" in text
    assert "our own choice" in text
    assert "so it does not depend on the prior" in text
    assert "Not run yet: BCE, class-aware sampling, Focal, ASL" in text
    short = (tmp_path / "docs" / "multilabel.md").read_text()
    assert "| Balanced Sigmoid | 71.5 | 70.0 | 52.0 | 47.0 | 1 |" in short
    assert "our own choice" in short


def test_the_committed_documents_are_what_the_committed_records_give() -> None:
    for path, text in documents.documents(ROOT, ROOT / "results").items():
        assert path.read_text() == text, "run: equipoise table voc-mlt --write"


def test_committed_runs_are_of_the_plan_and_of_one_list_of_images() -> None:
    planned = {(cell.method, cell.seed) for cell in recipe.plan()}
    assert {(one.method, one.seed) for one in RECORDS} in (planned, set())
    bce = {one.seed: one for one in RECORDS if one.method == "bce"}
    for one in RECORDS:
        expected = recipe.RECIPES[one.method].as_dict()
        stored = {name: one.recipe[name] for name in expected.keys() & one.recipe.keys() - {"stride"}}
        assert stored == {name: expected[name] for name in stored}
        assert (one.counts, one.trained_items, one.items) == (COUNTS, 1142, 4952)
        assert (one.trained_on, one.tested_on) == (RECORDS[0].trained_on, RECORDS[0].tested_on)
        if one.method == "bce_adjusted":
            assert one.backbone_weights == bce[one.seed].weights
            assert one.map == pytest.approx(bce[one.seed].map, abs=0.01)
