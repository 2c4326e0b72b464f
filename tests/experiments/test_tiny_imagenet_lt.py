"""Tiny-ImageNet-LT: the plan, the folder it needs, and the table from its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments.documents import tiny_imagenet_lt as documents
from equipoise.experiments.documents import tiny_imagenet_lt_figure as figure
from equipoise.experiments.tiny_imagenet_lt import recipe, report
from equipoise.training.image_records import ImageRecord

ROOT = Path(__file__).parents[2]
RECORDS = report.read(ROOT / "results")


def record(method: str, seed: int, **change: Any) -> ImageRecord:
    return replace(RECORDS[0], method=method, seed=seed, **change)


def test_the_committed_document_is_what_the_committed_records_give() -> None:
    for path, text in documents.documents(ROOT, ROOT / "results").items():
        assert path.read_text() == text


def test_the_committed_figure_shows_the_committed_records() -> None:
    found = figure.bars(RECORDS)
    with Image.open(ROOT / documents.FIGURE) as picture:
        assert picture.info["Description"] == figure.bars_digest(found)
    assert figure.bars(RECORDS[1:]) != found


def test_a_pair_of_bars_stands_for_a_group_and_means_over_seeds() -> None:
    columns = {"top1": RECORDS[0].top1, "many": 40.0, "medium": 20.0}
    runs = [record("softmax", seed, few=few, **columns) for seed, few in enumerate((5.0, 8.0))]
    rows = figure.figure(figure.bars(runs))["data"]["values"]
    assert [row["shown"] for row in rows] == ["40.0", "20.0", "6.5", f"{RECORDS[0].top1:.1f}"]
    assert {row["method"] for row in rows} == {"cross-entropy"}  # nothing is drawn for what was not run


def test_every_run_of_the_plan_has_a_record() -> None:
    assert {(one.method, one.seed) for one in RECORDS} == {(cell.method, cell.seed) for cell in recipe.plan()}
    assert list(recipe.RECIPES) == list(report.METHODS)
    for one in RECORDS:
        expected, usual = recipe.RECIPES[one.method].as_dict(), recipe.Recipe().as_dict()
        assert one.recipe == {name: expected[name] for name in one.recipe}
        later = expected.keys() - one.recipe.keys()  # options that came after the run
        assert {name: expected[name] for name in later} == {name: usual[name] for name in later}
        assert one.trained_on == RECORDS[0].trained_on
        assert (sum(one.counts), sum(one.total), one.iterations) == (21_549, 10_000, expected["iterations"])


def test_second_stages_start_from_the_softmax_of_their_seed() -> None:
    softmax = {one.seed: one.weights for one in RECORDS if one.method == "softmax"}
    second = [one for one in RECORDS if one.recipe["backbone"] == "softmax"]
    assert len(second) == 12
    assert all(one.backbone_weights == softmax[one.seed] for one in second)


def test_gains_are_those_of_the_same_seed() -> None:
    columns = {"many": 40.0, "medium": 20.0}
    runs = [
        record("softmax", 0, top1=RECORDS[0].top1, few=5.0, **columns),
        record("softmax", 1, top1=RECORDS[0].top1, few=7.0, **columns),
        record("balanced_softmax", 0, top1=RECORDS[0].top1, few=10.0, **columns),
        record("balanced_softmax", 1, top1=RECORDS[0].top1, few=14.0, **columns),
        record("balanced_softmax", 2, top1=RECORDS[0].top1, few=90.0, **columns),
    ]
    (note,) = report.notes(runs)
    assert "few +6.0 ± 1.4 (to 12.0 %)" in note
    assert report.notes(runs[2:]) == []


def test_a_folder_without_the_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    words = ["run", "tiny-imagenet-lt", "--data", str(tmp_path), "--results", str(tmp_path), "--device", "cpu"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "records.jsonl")])
    assert result.exit_code == 2
    assert "holds no folder val" in " ".join(result.stderr.replace("│", " ").split())
    with pytest.raises(FileNotFoundError, match="holds no folder heldout"):
        recipe.find(tmp_path, validate=True)
