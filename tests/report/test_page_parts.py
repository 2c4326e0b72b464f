"""What the report concludes, its table of classes, confusion map, pictures and cut-offs, as numbers and text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.metrics.confusions import Confusions
from equipoise.metrics.intervals import change_interval, wilson_interval
from equipoise.report import changes, heat_map, pictures
from equipoise.report.class_table import precision_and_f1
from equipoise.report.page_data import headlines

COUNTS = [900, 300, 90, 40, 9, 2]
NAMES = ["cat", "dog", "owl", "yak", "elk", "<gnu>"]
PRIOR = eq.Prior.from_counts(COUNTS, class_names=NAMES)
TARGET = torch.arange(300) % 6


def logits(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(300, 6, generator=generator) + 2 * torch.nn.functional.one_hot(TARGET, 6)


def plain(seed: int = 0) -> torch.Tensor:
    return logits(seed) + PRIOR.log()


@pytest.fixture(scope="module")
def report() -> eq.Report:
    return eq.Report({"A": eq.judge(plain(), TARGET, PRIOR), "B": eq.judge(logits(), TARGET, PRIOR)})


def data_of(made: eq.Report | eq.MultilabelReport) -> Any:
    found = re.search(r'id="data">(.*?)</script>', made.to_html(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_distance_from_uniform_is_one_number_in_table_and_chart(report: eq.Report) -> None:
    """Rounded to four digits first, 39.6496 % would be 39.7 in one place and 39.6 in the other."""
    for model, shown in zip(report.models, data_of(report)["models"], strict=True):
        assert shown["total_variation"] == pytest.approx(model.total_variation, abs=5.1e-7)


# -------------------------------------------------------------------- the conclusion


def test_the_conclusion_says_what_changed_for_whom_and_whether_it_is_chance(report: eq.Report) -> None:
    words = report.conclusion()
    one, other = (headlines(model) for model in report.models)
    assert words.startswith("From A to B, the mean accuracy per class rises by ")
    for group in ("few", "medium", "many"):
        was, now = one[group], other[group]
        assert was is not None
        assert now is not None
        size = abs(round(100 * now.value, 1) - round(100 * was.value, 1))
        assert f"“{group}” {'gains' if now.value > was.value else 'loses'} {size:.1f} points" in words
    assert "more than chance" in words
    page = report.to_html()
    assert page.index(words) < page.index("<h2>The numbers</h2>")


def test_a_change_that_chance_would_make_is_called_so() -> None:
    target = torch.arange(12) % 6
    other = torch.nn.functional.one_hot(target, 6).float()
    other[0] = torch.eye(6)[1]
    one = other.clone()
    one[6] = torch.eye(6)[2]
    made = eq.Report({"A": eq.judge(one, target, PRIOR), "B": eq.judge(other, target, PRIOR)})
    words = made.conclusion()
    assert ", from 83.3 to 91.7 %, which may be chance." in words
    assert "“many” gains 25.0 points" in words
    assert words.endswith(", which may be chance.")
    assert "“few” may have changed either way (" in words
    assert (words.count("chance"), "more than chance" in words) == (2, False)


def test_nothing_that_did_not_change_is_called_chance() -> None:
    target = torch.arange(12) % 6
    same = eq.judge(logits()[:12], target, PRIOR)
    words = eq.Report({"A": same, "B": same}).conclusion()
    assert "the mean accuracy per class may have changed either way (95 %: " in words  # so few items do not show it
    assert f"), at {100 * same.evaluation.balanced_accuracy:.1f} %. By number of training items: " in words
    assert "chance" not in words


def test_a_model_alone_is_concluded_by_its_tail(report: eq.Report) -> None:
    words = eq.Report({"A": eq.judge(plain(), TARGET, PRIOR)}).conclusion()
    few, many = (headlines(report.models[0])[group] for group in ("few", "many"))
    assert few is not None
    assert many is not None
    assert f"few training items it is right on {100 * few.value:.1f} %" in words
    assert f"{100 * (many.value - few.value):.1f} points below the {100 * many.value:.1f} %" in words
    assert words.endswith("more than chance.")


def test_changes_are_paired_where_both_models_saw_the_same_items(report: eq.Report) -> None:
    found = changes.changes(*report.models, [0, 5])
    right = [model.answers[0].right for model in report.models]
    rare = TARGET.numpy() == 5
    counts = [int(each[rare].sum()) for each in right]
    both = int((right[0] & right[1])[rare].sum())
    assert found.paired
    assert (found.low[1], found.high[1]) == pytest.approx(change_interval(counts[:1], counts[1:], [50], [both]))
    shuffled = eq.judge(logits().flip(0), TARGET.flip(0), PRIOR)
    apart = eq.Report({"A": eq.judge(plain(), TARGET, PRIOR), "B": shuffled})
    unpaired = changes.changes(*apart.models, [0, 5])
    assert not unpaired.paired
    for key, change in found.headline.items():
        wider = unpaired.headline[key]
        assert change is not None
        assert wider is not None
        assert change.value == wider.value
        assert change.high - change.low <= wider.high - wider.low  # equal where a model is never right
    narrow, wide = found.headline["top1"], unpaired.headline["top1"]
    assert narrow is not None
    assert wide is not None
    assert narrow.high - narrow.low < 0.95 * (wide.high - wide.low)
    assert data_of(apart)["changes"]["0-1"]["paired"] is False


def test_evaluations_alone_have_changes_too_as_of_different_items() -> None:
    made = eq.Report({"A": eq.evaluate(plain(), TARGET, PRIOR), "B": eq.evaluate(logits(), TARGET, PRIOR)})
    found = data_of(made)["changes"]["0-1"]
    assert found["paired"] is False
    assert found["headline"]["few"]["low"] < found["headline"]["few"]["value"] < found["headline"]["few"]["high"]


def test_seeds_are_paired_by_their_share_of_right_answers() -> None:
    runs = {
        name: [eq.judge(made(seed), TARGET, PRIOR) for seed in range(2)] for name, made in (("A", plain), ("B", logits))
    }
    found = changes.changes(*eq.Report(runs).models, [])
    alone = eq.Report({name: some[0] for name, some in runs.items()})
    one = changes.changes(*alone.models, [])
    assert found.paired
    for each in (found.headline["top1"], one.headline["top1"]):
        assert each is not None
        assert each.low < each.value < each.high


def test_a_change_is_the_difference_of_the_numbers_shown(report: eq.Report) -> None:
    found = data_of(report)
    shown = [{key: round(1000 * v["value"]) for key, v in model["headline"].items()} for model in found["models"]]
    for key, change in found["changes"]["0-1"]["headline"].items():
        assert change["value"] == shown[1][key] - shown[0][key]


def test_of_very_many_models_only_some_pairs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = eq.judge(logits(), TARGET, PRIOR)
    found = data_of(eq.Report([judged] * 10))["changes"]
    assert len(found) == 9 + 8
    assert {"0-9", "3-9", "0-4"} <= set(found)
    monkeypatch.setattr(changes, "MOST_CLASSES", 10)
    few = data_of(eq.Report([judged] * 3))["changes"]
    assert (len(few["0-1"]["low"]), len(few["1-2"]["low"])) == (6, 0)


# -------------------------------------------------------------------- the table of classes


def test_precision_and_f1_are_those_of_the_confusion_matrix(report: eq.Report) -> None:
    model = report.models[0]
    assert model.confusions is not None
    matrix = model.confusions.dense()
    found = precision_and_f1(model)
    for j in range(6):
        right, items, predicted = matrix[j, j], matrix[j].sum(), matrix[:, j].sum()
        if predicted == 0:
            assert np.isnan(found["precision"][j])
            continue
        assert found["precision"][j] == pytest.approx(right / predicted)
        ends = found["precision_low"][j], found["precision_high"][j]
        assert ends == pytest.approx(wilson_interval(right, predicted))
        assert found["f1"][j] == pytest.approx(2 * right / (items + predicted))
        assert found["f1_low"][j] <= found["f1"][j] <= found["f1_high"][j]


def test_without_predictions_the_table_has_recall_only() -> None:
    assert [s["key"] for s in data_of(eq.Report([eq.evaluate(logits(), TARGET, PRIOR)]))["table"]["scores"]] == [
        "recall"
    ]


# -------------------------------------------------------------------- the confusion map


def test_the_map_goes_from_head_to_tail_and_its_rows_are_whole(report: eq.Report) -> None:
    confusions = report.models[0].confusions
    assert confusions is not None
    found = heat_map.heat_map_data(confusions, PRIOR, 1)
    matrix = np.zeros((6, 6))
    matrix[found["row"], found["column"]] = found["share"]
    expected = 1000 * confusions.dense() / confusions.dense().sum(1, keepdims=True)
    np.testing.assert_allclose(matrix, expected, atol=0.5)  # rounded to whole tenths of a percent
    assert found["kept"] == 1
    assert data_of(report)["heat"] == {"classes": 6, "ends": [2, 4, 6]}


def test_of_too_many_cells_the_largest_are_kept_and_equal_ones_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_map, "MOST_CELLS", 1000)
    true = np.repeat(np.arange(100), 40)
    predicted = (true + np.tile(np.arange(40), 100)) % 100
    predicted[::40] = true[::40]
    confusions = Confusions.count(np.append(true, [7] * 60), np.append(predicted, [8] * 60), 100)
    found = heat_map.heat_map_data(confusions, eq.Prior.from_counts(range(100, 0, -1)), 1)
    assert len(found["row"]) == 1000
    assert (found["row"][-1], found["column"][-1]) == (7, 8)  # the largest, drawn last
    assert 0.2 < found["kept"] < 0.3
    low, high = (sum(1 for row in found["row"] if part <= row < part + 50) for part in (0, 50))
    assert abs(low - high) < 200  # were classes left out in their order, one half would be empty


# -------------------------------------------------------------------- pictures


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    (tmp_path / "photos").mkdir()
    paths = [f"{i}.png" for i in range(300)]
    for path in paths:
        Image.new("RGB", (300, 150), "green").save(tmp_path / "photos" / path)
    return paths


def test_the_surest_mistakes_are_pictured_with_class_and_accuracy(photos: list[str], tmp_path: Path) -> None:
    judged = eq.judge(plain(), TARGET, PRIOR)
    made = eq.Report({"A": judged, "B": judged}, paths=photos, images=tmp_path / "photos")
    shown = data_of(made)["models"][0]["pictures"]
    assert 1 < len(shown) <= pictures.MOST // 2
    assert judged.answers is not None
    first = shown[0]
    assert first["source"].startswith("data:image/jpeg;base64,")
    row = next(judged.evaluation.per_class[j] for j in range(6) if NAMES[j] == first["name"])
    wrong = (judged.answers.target == row.index) & (
        judged.answers.predicted == NAMES.index(first["below"].removeprefix("mistaken for "))
    )
    assert first["sure"] == f"confidence {100 * judged.answers.confidence[wrong].max():.1f} %"
    assert f"accuracy of {first['name']}: {100 * (row.accuracy or 0):.1f} %" in first["words"]
    assert len(made.to_html()) < 3_000_000
    assert f"pair by pair: up to {pictures.EACH} of each, its most confident mistakes." in made.to_html()
    pairs = [(one["name"], one["below"]) for one in shown]
    assert max(map(pairs.count, pairs)) == pictures.EACH
    together = [place for place in range(1, len(pairs)) if pairs[place] == pairs[place - 1]]
    assert len(together) == len(pairs) - len(set(pairs))  # the pictures of a pair are neighbours


def test_only_files_below_the_folder_are_opened(photos: list[str], tmp_path: Path) -> None:
    judged = eq.judge(plain(), TARGET, PRIOR)
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    (tmp_path / "photos" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "photos" / "no image.png").write_text("no image")
    for path in ("../secret.png", str(tmp_path / "secret.png"), "link.png", "no image.png", "gone.png", ""):
        made = eq.Report({"A": judged}, paths=[path] * 300, images=tmp_path / "photos")
        assert data_of(made)["models"][0]["pictures"] == []
        assert "The most confident mistakes" not in made.to_html()
    absolute = eq.Report({"A": judged}, paths=[str(tmp_path / "secret.png")] * 300)
    assert data_of(absolute)["models"][0]["pictures"]
    relative = eq.Report({"A": judged}, paths=photos)
    assert not data_of(relative)["models"][0]["pictures"]


def test_paths_are_one_per_item() -> None:
    with pytest.raises(ValueError, match="2 paths for the 300 test items of 'A'"):
        eq.Report({"A": eq.judge(logits(), TARGET, PRIOR)}, paths=["a", "b"])


# -------------------------------------------------------------------- cut-offs


def test_cut_offs_move_classes_between_groups_everywhere() -> None:
    judged = eq.judge(plain(), TARGET, PRIOR, logits_mean="train")
    made = eq.Report({"A": judged}, many=50, few=10)
    found = data_of(made)
    assert found["classes"]["group"] == ["many", "many", "many", "medium", "few", "few"]
    assert found["heat"]["ends"] == [3, 4, 6]
    expected = judged.evaluation.groups(50, 10)
    (model,) = found["models"]
    for group, result in expected.items():
        assert model["headline"][group]["value"] == pytest.approx(result.accuracy, abs=1e-6)
        assert model["ece"][group] == pytest.approx(result.ece, abs=1e-6)
        assert model["sweep"]["groups"][group][0] == pytest.approx(result.accuracy, abs=1e-6)
        flow = next(row for row in model["rows"]["flow"] if row["group"] == group and row["end"] == "right")
        assert flow["to"] == pytest.approx(100 * (result.accuracy or 0))
        inside = [NAMES[j] for j in PRIOR.groups(50, 10)[group]]
        assert {row["name"] for row in model["rows"]["swallowed"] if row["group"] == group} <= set(inside)
    page = made.to_html()
    assert "many, &gt;&nbsp;50" in page
    assert "'medium, 10 to 50'" in page  # in the legends
    assert "20 to 100" not in page
    with pytest.raises(ValueError, match="few=60 and many=50 overlap"):
        eq.Report({"A": judged}, many=50, few=60)


# -------------------------------------------------------------------- the command


@pytest.fixture
def files(photos: list[str], tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", logits=plain(), labels=TARGET, class_names=NAMES, paths=photos)
    np.savez(tmp_path / "b.npz", logits=logits(), labels=TARGET, class_names=NAMES)
    (tmp_path / "counts.json").write_text(json.dumps(dict(zip(NAMES, COUNTS, strict=True))))
    return tmp_path


def run(*arguments: object, code: int = 0, stdin: bytes | None = None) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "300"}, input=stdin)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else " ".join(result.output.split())


def test_the_command_prints_json(files: Path, report: eq.Report) -> None:
    both = (files / "a.npz", files / "b.npz", "--counts", files / "counts.json", "--out", files / "r.html")
    found = json.loads(run(*both, "--json", "--name", "A", "--name", "B"))
    assert found["conclusion"] == report.conclusion()
    assert (found["from"], found["to"], found["paired"]) == ("A", "B", True)
    assert found["page"] == str(files / "r.html")
    assert found["groups"] == {"many": 2, "medium": 2, "few": 2}
    few = headlines(report.models[1])["few"]
    assert few is not None
    assert found["models"][1]["headline"]["few"] == pytest.approx(vars(few))
    assert found["change"]["few"]["low"] > 0
    first, last = (model["headline"] for model in found["models"])
    for key, change in found["change"].items():  # of the numbers themselves, not of what the page shows
        assert change["value"] == last[key]["value"] - first[key]["value"]
    assert report.conclusion() in run(*both, "--name", "A", "--name", "B")


def test_the_command_takes_cut_offs_and_images(files: Path) -> None:
    both = (files / "a.npz", files / "b.npz", "--counts", files / "counts.json", "--out", files / "r.html")
    run(*both, "--many", 50, "--few", 10, "--images", files / "photos")
    page = (files / "r.html").read_text()
    assert "many, &gt;&nbsp;50" in page
    assert page.count("data:image/jpeg") > 1
    run(*both, "--images", "none")
    assert "data:image/jpeg" not in (files / "r.html").read_text()
    assert "is not a folder" in run(*both, "--images", files / "nowhere", code=2)


def test_the_command_tells_how_to_show_pictures_of_relative_paths(files: Path) -> None:
    one = ["report", str(files / "a.npz"), "--counts", str(files / "counts.json"), "--out", str(files / "r.html")]
    hint = "pass --images DIR"
    assert hint in CliRunner().invoke(app, one).stderr
    for folder in (files / "photos", "none"):
        assert hint not in CliRunner().invoke(app, [*one, "--images", str(folder)]).stderr
    evaluated = CliRunner().invoke(app, ["evaluate", *one[1:4]])  # shows no pictures
    assert evaluated.exit_code == 0
    assert hint not in evaluated.stderr


def test_the_command_reads_stdin(files: Path) -> None:
    content = (files / "a.npz").read_bytes()
    found = json.loads(run("-", "--counts", files / "counts.json", "--out", files / "r.html", "--json", stdin=content))
    assert found["models"][0]["name"] == "stdin"
    counts = (files / "counts.json").read_bytes()
    both = (files / "a.npz", "--counts", "-", "--out", files / "r.html", "--json")
    assert json.loads(run(*both, stdin=counts))["models"][0]["headline"] == found["models"][0]["headline"]
    assert "stdin is not JSON" in run(*both, stdin=b"{", code=2)
    assert "can be read only once" in run("-", "--counts", "-", stdin=b"", code=2)


# -------------------------------------------------------------------- several labels per item


def multilabel() -> eq.MultilabelReport:
    random = np.random.default_rng(0)
    target = (random.random((200, 6)) < 0.3).astype(int)
    scores = random.normal(size=(200, 6)) + 2.5 * target - 1.5
    worse = scores + 1.5 * random.normal(size=(200, 6))
    prior = eq.Prior.from_counts(COUNTS, total=1000, class_names=NAMES)
    judged = {"A": eq.judge_multilabel(worse, target, prior), "B": eq.judge_multilabel(scores, target, prior)}
    return eq.MultilabelReport(judged, resamples=50)


def test_several_labels_are_concluded_by_the_paired_bootstrap() -> None:
    made = multilabel()
    found = data_of(made)["changes"]["0-1"]
    one, other = (model.drawn for model in made.models)
    assert one is not None
    assert other is not None
    draws = other.mean_precision() - one.mean_precision()
    low, high = np.quantile(draws, [0.025, 0.975])
    assert found["paired"] is True
    assert found["headline"]["map"]["low"] == pytest.approx(1000 * low, abs=0.51)
    assert found["headline"]["map"]["high"] == pytest.approx(1000 * high, abs=0.51)
    assert found["headline"]["ece"]["low"] is None
    classes = np.quantile(other.precision[:, 0] - one.precision[:, 0], [0.025, 0.975])
    assert [found["low"][0], found["high"][0]] == pytest.approx(1000 * classes, abs=0.51)
    words = made.conclusion()
    assert words.startswith("From A to B, the mean average precision rises by ")
    assert "the tail gains" in words
    assert (
        json.loads(json.dumps(made.to_dict()["models"][0]["headline"]["map"]["value"])) == made.models[0].scores["map"]
    )


def test_without_draws_a_change_of_several_labels_has_no_interval() -> None:
    made = multilabel()
    made.models = [replace(model, drawn=None) for model in made.models]
    found = data_of(made)["changes"]["0-1"]
    assert found["headline"]["map"]["low"] is None
    assert found["low"] == [None] * 6
    assert "; without an interval, this may be chance." in made.conclusion()
    alone = multilabel()
    alone.models = alone.models[:1]
    assert "A has a mean average precision of" in alone.conclusion()
