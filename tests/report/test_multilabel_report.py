"""The page for several labels per item: it holds the numbers of the evaluation, and the command makes it of files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.metrics import multilabel
from equipoise.metrics.intervals import wilson_interval
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


def test_the_page_says_what_it_was_made_from_and_where_its_intervals_come_from() -> None:
    target = sample()[1]
    report = made(judged())
    words = f"Evaluated on 120 test items with {target.sum(1).mean():.1f} of 4 labels each on average."
    assert words in report.to_html()
    assert "seeded bootstrap draws" in report.to_html().split("<footer>")[1].split("</footer>")[0]
    assert "Wilson" not in report.to_html().split("<footer>")[1].split("</footer>")[0]
    report.models = [replace(model, drawn=None) for model in report.models]
    assert "ntervals" not in report.to_html().split("<footer>")[1].split("</footer>")[0]


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


@pytest.mark.parametrize("kept", [True, False])
def test_calibration_is_in_bins_of_equal_mass(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kept:
        monkeypatch.setattr(multilabel, "EXACT_PAIRS", 10)
    logits, target = sample(rows=1200)
    target[:7, 0] = -1  # not known
    found = eq.judge_multilabel(logits, target, PRIOR)
    assert found.evaluation.binned is not kept
    rows = data_of(made(found).to_html())["models"][0]["rows"]["calibration"]
    head = [row for row in rows if row["group"] == "head"]
    assert sum(row["items"] for row in head) == 1193
    assert [row["confidence"] for row in head] == sorted(row["confidence"] for row in head)
    if not kept:
        return
    assert len(head) == 10
    assert {row["items"] for row in head} <= {119, 120}
    chance = 1 / (1 + np.exp(-logits[7:, 0]))
    order = np.argsort(chance)
    assert head[0]["accuracy"] == pytest.approx(100 * target[7:, 0][order][: head[0]["items"]].mean(), abs=0.051)
    assert head[-1]["confidence"] == pytest.approx(100 * chance[order][-head[-1]["items"] :].mean(), abs=0.051)


def test_the_best_threshold_of_a_class_is_where_its_f1_is_highest() -> None:
    found = judged()
    best = data_of(made(found).to_html())["models"][0]["columns"]["best"]
    for index, odds in enumerate(best):
        there = eq.evaluate_multilabel(*sample(), PRIOR, threshold=1 / (1 + np.exp(-odds))).per_class[index]
        assert there.f1 == pytest.approx(np.nanmax(found.f1_at()[index]))


def test_without_any_positive_the_conclusion_is_a_sentence() -> None:
    logits, target = sample()
    found = made(eq.judge_multilabel(logits, 0 * target, PRIOR)).conclusion()
    assert found.endswith("has no average precision and no F1, as no test item is positive for any class.")


def test_an_empty_group_and_a_class_without_positives_are_dashes_and_said() -> None:
    logits, target = sample()
    target[:, 2:] = 0
    page = made(eq.judge_multilabel(logits, target, PRIOR)).to_html()
    shown = data_of(page)["models"][0]
    assert shown["headline"]["map_tail"] is None
    assert shown["columns"]["precision"][2:] == [None, None]
    assert shown["columns"]["best"][2:] == [None, None]
    assert '<td role="cell" data-label="mAP tail"><span>–</span></td>' in page
    assert "2 of 4 classes have no positive test item, and are left out of means." in page


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = sample()
    masked = target.copy()
    masked[:5, 0] = -1
    monkeypatch.setattr(multilabel_data, "MOST_RESAMPLED", 10)
    page = made(judged(), eq.judge_multilabel(logits, masked, PRIOR)).to_html()
    assert "There are no intervals, as there are too many scores to resample." in page
    assert "The models were evaluated on different test items" in page
    assert data_of(page)["models"][0]["headline"]["map"]["low"] is None
    numbers_and_classes = page[page.index('<section id="numbers">') : page.index('<section id="table">')]
    assert "Each point is a class" in numbers_and_classes
    assert "95 % interval" not in numbers_and_classes
    assert "Bars are 95 % intervals" in made_with_intervals()
    assert "5 unknown labels are left out." in made(eq.judge_multilabel(logits, masked, PRIOR)).to_html()


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


def test_cut_offs_move_classes_between_groups_everywhere() -> None:
    found = judged()
    report = eq.MultilabelReport({"a": found, "b": judged(1.0)}, resamples=30, many=50, few=9)
    data, page = data_of(report.to_html()), report.to_html()
    assert data["classes"]["group"] == ["head", "head", "medium", "tail"]
    scores, rows = found.evaluation.scores(50, 9), found.evaluation.per_class
    assert scores["map_head"] == pytest.approx(np.mean([row.average_precision for row in rows[:2]]))
    shown = data["models"][0]
    for name, members in (("head", [0, 1]), ("medium", [2]), ("tail", [3])):
        assert shown["headline"][f"map_{name}"]["value"] == pytest.approx(scores[f"map_{name}"], abs=1e-6)
        assert shown["curve"][name] == pytest.approx(found.f1_at()[members].mean(0), abs=1e-6)
        assert shown["ece"][name] == pytest.approx(np.mean([rows[j].ece for j in members]), abs=1e-6)
        slope = next(row for row in shown["rows"]["f1_slopes"] if row["group"] == name)
        assert (slope["accuracy"], slope["classes"]) == (pytest.approx(100 * scores[f"f1_{name}"]), len(members))
        calibrated = [row["items"] for row in shown["rows"]["calibration"] if row["group"] == name]
        assert sum(calibrated) == 120 * len(members)
    plain = report.to_dict()
    assert plain["groups"] == {"head": 2, "medium": 1, "tail": 1}
    was, now = (model["headline"]["map"]["value"] for model in plain["models"])
    assert plain["change"]["map"]["value"] == now - was
    ends = data["changes"]["0-1"]["headline"]["map_tail"]
    drawn = [model.drawn.precision[:, 3] for model in report.models if model.drawn is not None]
    assert (ends["low"], ends["high"]) == tuple(np.round(1000 * np.quantile(drawn[1] - drawn[0], [0.025, 0.975])))
    assert "head more than 50, tail fewer than 9" in page
    assert "'medium, 9 to 50'" in page  # in the legends
    assert "20 to 100" not in page
    with pytest.raises(ValueError, match="few=50 and many=9 overlap"):
        eq.MultilabelReport({"a": found}, resamples=5, many=9, few=50)


# -------------------------------------------------------------------- pictures


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    (tmp_path / "photos").mkdir()
    paths = [f"{i}.png" for i in range(120)]
    for path in paths:
        Image.new("RGB", (300, 150), "green").save(tmp_path / "photos" / path)
    return paths


@pytest.mark.parametrize("probabilities", [False, True])
def test_what_is_missed_most_is_pictured_the_tail_first(photos: list[str], tmp_path: Path, probabilities: bool) -> None:
    logits, target = sample()
    chance = 1 / (1 + np.exp(-logits))
    found = eq.judge_multilabel(chance if probabilities else logits, target, PRIOR, probabilities=probabilities)
    report = eq.MultilabelReport({"a": found}, resamples=5, paths=photos, images=tmp_path / "photos")
    shown = data_of(report.to_html())["models"][0]["pictures"]
    missed = {name: np.flatnonzero((target[:, j] == 1) & (chance[:, j] < 0.5)) for j, name in enumerate(NAMES)}
    least = {
        name: wilson_interval(len(rows), int(target[:, j].sum()))[0] for j, (name, rows) in enumerate(missed.items())
    }
    worst = max(NAMES[2:], key=least.__getitem__)  # of the tail
    assert [each["name"] for each in shown[:6:2]] == [worst, NAMES[1], "cat"]
    for name in NAMES:
        j = NAMES.index(name)
        lowest = sorted(chance[missed[name], j])[:2]
        assert [each["sure"] for each in shown if each["name"] == name] == [
            f"probability {100 * value:.1f} %" for value in lowest
        ]
    first = missed[worst][np.argmin(chance[missed[worst], NAMES.index(worst)])]
    others = [name for j, name in enumerate(NAMES) if chance[first, j] >= 0.5]
    assert shown[0]["below"] == (f"predicted: {', '.join(others)}" if others else "nothing is predicted")
    recall = found.evaluation.per_class[NAMES.index(worst)].recall or 0.0
    assert shown[0]["words"].endswith(f"{shown[0]['below']}; recall of {worst}: {100 * recall:.1f} %")
    assert shown[0]["source"].startswith("data:image/jpeg;base64,")


def test_without_files_there_is_no_section_of_pictures(photos: list[str]) -> None:
    for paths in (None, photos, ["/nowhere.png"] * 120):
        page = eq.MultilabelReport({"a": judged()}, resamples=5, paths=paths).to_html()
        assert "What is missed most" not in page
    with pytest.raises(ValueError, match="2 paths for the 120 test items of 'a'"):
        eq.MultilabelReport({"a": judged()}, resamples=5, paths=["a", "b"])


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
    assert "balanced: a label is predicted at a probability of 50 % or more." in words
    page = out.read_text()
    own = {"targets": sample()[1], "class_names": NAMES, "thresholds": np.linspace(0.1, 0.45, len(NAMES))}
    np.savez(files / "own.npz", logits=sample()[0], **own)
    both = report(files / "bce.npz", files / "own.npz", "--counts", files / "counts.json", "--out", files / "own.html")
    assert "bce: a label is predicted at a probability of 50 % or more." in both
    assert "own: each class has its own threshold, from 10 % to 45 %." in both
    assert "Several labels, from head to tail" in page
    assert data_of(page)["models"][1]["headline"]["map"]["value"] == pytest.approx(expected["map"], abs=1e-6)


def test_the_command_takes_cut_offs_and_images(files: Path, photos: list[str]) -> None:
    logits, target = sample()
    np.savez(files / "seen.npz", logits=logits, targets=target, class_names=NAMES, paths=np.array(photos))
    arguments = [files / "seen.npz", "--counts", files / "counts.json", "--out", files / "page.html"]
    expected = eq.evaluate_multilabel(logits, target, PRIOR).scores(50, 9)
    words = report(*arguments, "--many", 50, "--few", 9, "--images", files / "photos")
    assert f"seen {100 * expected['map']:.1f} {100 * expected['map_head']:.1f}" in words
    data = data_of((files / "page.html").read_text())
    assert data["classes"]["group"] == ["head", "head", "medium", "tail"]
    assert data["models"][0]["pictures"]
    report(*arguments, "--images", "none")
    assert data_of((files / "page.html").read_text())["models"][0]["pictures"] == []
    assert "is not a folder" in report(*arguments, "--images", files / "nowhere", code=2)
    arguments[0] = files / "bce.npz"
    assert "no file has `paths`" in report(*arguments, "--images", files / "photos", code=2)


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
