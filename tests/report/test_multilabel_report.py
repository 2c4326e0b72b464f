"""The page for several labels per item: it holds the numbers of the evaluation, and the command makes it of files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.report import multilabel_data
from equipoise.report.figures import save

NAMES = ["cat", "<b>dog</b>", "owl", "newt"]
PRIOR = eq.Prior.from_counts([900, 60, 9, 5], total=1000, class_names=NAMES)


def sample(strength: float = 2.0, rows: int = 120) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    target = (random.random((rows, 4)) < [0.6, 0.3, 0.2, 0.1]).astype(np.int64)
    return random.normal(size=(rows, 4)) + strength * target - 1, target


def judged(strength: float = 2.0, prior: eq.Prior = PRIOR, **options: Any) -> eq.JudgedMultilabel:
    return eq.judge_multilabel(*sample(strength), prior, **options)


def made(*models: eq.JudgedMultilabel) -> eq.MultilabelReport:
    return eq.MultilabelReport({f"model {i}": model for i, model in enumerate(models)}, resamples=30)


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_holds_the_numbers_of_the_evaluation() -> None:
    report = made(judged(threshold=[0.2, 0.5, 0.1, 0.3]), judged(1.0))
    data = data_of(report.to_html())
    assert data["classes"]["group"] == ["head", "medium", "tail", "tail"]
    for model, shown in zip(report.models, data["models"], strict=True):
        scores, ends = model.evaluation.scores(), model.evaluation.intervals(resamples=30)
        for key, value in shown["headline"].items():
            assert value["value"] == pytest.approx(scores[key], abs=1e-6)
            assert (value["low"], value["high"]) == pytest.approx(ends.get(key, (None, None)), abs=1e-6)
        rows = model.evaluation.per_class
        assert shown["columns"]["precision"] == pytest.approx([row.average_precision for row in rows], abs=1e-6)
        assert shown["columns"]["f1"] == pytest.approx([row.f1 for row in rows], abs=1e-6)
        assert all(low <= value <= high for value, low, high in zip(*columns(shown, "precision"), strict=True))
        assert shown["columns"]["items"] == [row.positives for row in rows]
        at = model.judged.f1_at()
        assert shown["curve"]["all"] == pytest.approx(at.mean(0), abs=1e-6)
        assert shown["curve"]["tail"] == pytest.approx(at[2:].mean(0), abs=1e-6)
        slopes = {row["group"]: row["accuracy"] for row in shown["rows"]["f1_slopes"]}
        assert slopes == pytest.approx({name: 100 * scores[f"f1_{name}"] for name in ("head", "medium", "tail")})
        assert sum(row["items"] for row in shown["rows"]["calibration"]) == 4 * 120
        assert shown["ece"]["tail"] == pytest.approx(np.mean([row.ece for row in rows[2:]]), abs=1e-6)
    used = 1 / (1 + np.exp(-np.array(data["models"][0]["columns"]["used"])))
    assert used == pytest.approx([0.2, 0.5, 0.1, 0.3], abs=1e-5)


def columns(shown: Any, name: str) -> list[Any]:
    return [shown["columns"][key] for key in (name, f"{name}_low", f"{name}_high")]


def test_the_best_threshold_of_a_class_is_where_its_f1_is_highest() -> None:
    found = judged()
    best = data_of(made(found).to_html())["models"][0]["columns"]["best"]
    for index, odds in enumerate(best):
        there = eq.evaluate_multilabel(*sample(), PRIOR, threshold=1 / (1 + np.exp(-odds))).per_class[index]
        assert there.f1 == pytest.approx(np.nanmax(found.f1_at()[index]))


def test_without_any_positive_the_conclusion_is_a_sentence() -> None:
    logits, target = sample()
    found = made(eq.judge_multilabel(logits, 0 * target, PRIOR)).conclusion()
    assert found.endswith("has no average precision and no F1: none of the test items is positive for any class.")


def test_an_empty_group_and_a_class_without_positives_are_dashes_and_said() -> None:
    logits, target = sample()
    target[:, 2:] = 0
    page = made(eq.judge_multilabel(logits, target, PRIOR)).to_html()
    shown = data_of(page)["models"][0]
    assert shown["headline"]["map_tail"] is None
    assert shown["columns"]["precision"][2:] == [None, None]
    assert shown["columns"]["best"][2:] == [None, None]
    assert '<td role="cell" data-label="mAP tail"><span>–</span></td>' in page
    assert "2 of 4 classes have no positive test item: no score, and in no mean." in page


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = sample()
    masked = target.copy()
    masked[:5, 0] = -1
    monkeypatch.setattr(multilabel_data, "MOST_RESAMPLED", 10)
    page = made(judged(), eq.judge_multilabel(logits, masked, PRIOR)).to_html()
    assert "No intervals: there are too many scores to draw the items again." in page
    assert "The models were judged on different test items" in page
    assert data_of(page)["models"][0]["headline"]["map"]["low"] is None
    assert "95 % interval" not in page.partition("Who is missed")[0]
    assert "Bars are 95 % intervals" in made_with_intervals()
    assert "5 labels are not known and left out." in made(eq.judge_multilabel(logits, masked, PRIOR)).to_html()


def made_with_intervals() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multilabel_data, "MOST_RESAMPLED", 10**6)
        return made(judged()).to_html()


def test_names_come_out_as_text_and_the_policy_allows_nothing_unsafe() -> None:
    page = eq.MultilabelReport({"<img src=x>": judged()}, title="<i>tags</i>", resamples=5).to_html()
    assert "<img" not in page.partition("<script")[0]
    assert "<i>tags" not in page
    assert "unsafe" not in page.partition("<style")[0]
    assert " style=" not in page.partition("<script")[0]


def test_figures_are_drawn(tmp_path: Path) -> None:
    logits, target = sample()
    logits[:, 1] -= 4 * target[:, 1] * target[:, 0]  # so that there is a missed pair
    found = eq.MultilabelReport({"a": eq.judge_multilabel(logits, target, PRIOR)}, resamples=5).figures()
    parts = ("class-average-precision", "class-f1", "missed-classes", "f1-by-threshold", "thresholds", "calibration")
    assert list(found) == ["class-counts", "group-average-precision", "group-f1", *(f"1-{name}" for name in parts)]
    for name, spec in found.items():
        drawn = save(spec, tmp_path / f"{name}.svg").read_text()
        assert drawn.count("<path") > 3
        assert "var(--" not in drawn


def test_a_report_says_what_it_is_and_shows_itself() -> None:
    report = made(judged())
    assert repr(report) == "MultilabelReport(1 model: model 0; 4 classes, 120 test items)"
    assert report._repr_html_().startswith("<iframe srcdoc=")


def test_what_cannot_be_reported_is_named() -> None:
    with pytest.raises(ValueError, match="nothing to report"):
        eq.MultilabelReport({})
    with pytest.raises(TypeError, match="pass what judge_multilabel returns"):
        eq.MultilabelReport({"a": judged().evaluation})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="another training prior"):
        made(judged(), judged(prior=eq.Prior.from_counts([9, 9, 9, 9], 1000)))
    with pytest.raises(ValueError, match="a report needs counts"):
        made(judged(prior=eq.Prior.uniform(4)))
    with pytest.raises(ValueError, match="judged on no items"):
        made(eq.judge_multilabel(np.zeros((0, 4)), np.zeros((0, 4)), PRIOR))
    with pytest.raises(TypeError, match=r"there is eq\.MultilabelReport"):
        eq.Report([judged()])  # type: ignore[list-item]


# -------------------------------------------------------------------- the command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, strength in (("bce", 1.0), ("balanced", 2.0)):
        logits, target = sample(strength)
        np.savez(tmp_path / f"{name}.npz", logits=logits, targets=target, class_names=NAMES)
    (tmp_path / "counts.json").write_text(PRIOR.to_json())
    np.savez(tmp_path / "single.npz", logits=logits, labels=np.arange(120) % 4, class_names=NAMES)
    return tmp_path


def report(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "400"})
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_the_command_recognises_several_labels(files: Path) -> None:
    out = files / "page.html"
    words = report(files / "bce.npz", files / "balanced.npz", "--counts", files / "counts.json", "--out", out)
    expected = eq.evaluate_multilabel(*sample(2.0), PRIOR).scores()
    assert f"balanced {100 * expected['map']:.1f} {100 * expected['map_head']:.1f}" in words
    assert "balanced: a label is predicted from a probability of 50 %." in words
    page = out.read_text()
    assert "Several labels, from head to tail" in page
    assert data_of(page)["models"][1]["headline"]["map"]["value"] == pytest.approx(expected["map"], abs=1e-6)


@pytest.mark.parametrize("given", ["0.3", "list.json", "names.json", "file"])
def test_the_command_takes_thresholds(files: Path, given: str) -> None:
    limits = [0.3] * 4 if given == "0.3" else [0.1, 0.2, 0.3, 0.4]
    logits, target = sample()
    (files / "list.json").write_text(json.dumps(limits))
    (files / "names.json").write_text(json.dumps(dict(zip(NAMES[::-1], limits[::-1], strict=True))))
    np.savez(files / "file.npz", logits=logits, targets=target, class_names=NAMES, thresholds=np.array(limits))
    path, out = files / ("file.npz" if given == "file" else "balanced.npz"), files / "page.html"
    option = [] if given == "file" else ["--threshold", given if given == "0.3" else files / given]
    words = report(path, "--counts", files / "counts.json", "--out", out, *option)
    expected = eq.evaluate_multilabel(logits, target, PRIOR, threshold=limits).scores()
    assert data_of(out.read_text())["models"][0]["headline"]["f1_macro"]["value"] == pytest.approx(
        expected["f1_macro"], abs=1e-6
    )
    assert "50 %" not in words


def test_the_prior_may_be_a_list_of_tags(files: Path) -> None:
    tags = ["cat"] * 150 + ["cat;<b>dog</b>"] * 30 + ["owl"] * 3
    (files / "train.csv").write_text("tags\n" + "\n".join(tags))
    report(files / "bce.npz", "--counts", files / "train.csv", "--out", files / "page.html")
    classes = data_of((files / "page.html").read_text())["classes"]
    assert dict(zip(classes["name"], classes["count"], strict=True)) == {"cat": 180, NAMES[1]: 30, "owl": 3, "newt": 0}
    assert "183 training items" in (files / "page.html").read_text()


def test_the_command_names_what_is_wrong(files: Path) -> None:
    counts = ["--counts", files / "counts.json", "--out", files / "page.html"]
    both = report(files / "bce.npz", files / "single.npz", *counts, code=2)
    assert "single.npz has one label per item, others have several" in both
    assert "--logits-mean is for files with one label" in report(
        files / "bce.npz", *counts, "--logits-mean", "train", code=2
    )
    assert "--threshold is for several labels per item" in report(
        files / "single.npz", *counts, "--threshold", "0.5", code=2
    )
    for wrong in ("1.5", "[0.5, 0.5]", '{"cat": 0.5}', '["a", "b", "c", "d"]'):
        (files / "wrong.json").write_text(wrong)
        given = wrong if wrong == "1.5" else files / "wrong.json"
        assert "thresh" in report(files / "bce.npz", *counts, "--threshold", given, code=2)
    missing = report(files / "bce.npz", *counts, "--threshold", "nowhere.json", code=2)
    assert "--threshold is nowhere.json: expected a probability between 0 and 1" in missing
    assert not (files / "page.html").exists()
