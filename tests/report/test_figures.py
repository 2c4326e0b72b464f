"""Every figure is a chart of the page: it shows its numbers, with class names, and is written as PNG, SVG and PDF."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.metrics.judging import Judged, judge
from equipoise.metrics.sweep import TAUS, WORLDS
from equipoise.report import figures as figure_files
from equipoise.report import specs
from equipoise.report.count_specs import MOST_ROWS, class_counts
from equipoise.report.figures import finished, save
from equipoise.report.page_data import class_data, drawn_classes, headlines
from equipoise.report.specs import Spec

PRIOR = eq.Prior.from_counts({"cat": 900, "dog $5$": 200, "owl": 60, "x" * 300: 5, "<b>gone</b>": 0})
NAMES = ["class-counts", "marginal-likelihood", "group-slopes", "world-sweep"]
OF_A_MODEL = ["class-accuracy", "calibration", "swallowed-classes", "group-flow", "tau-sweep"]


@pytest.fixture(scope="module")
def judged() -> Judged:
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(200) % 4
    logits = torch.randn(200, 5, generator=generator) + torch.nn.functional.one_hot(target, 5)
    return judge(logits + torch.tensor(PRIOR.counts) / 300, target, PRIOR, logits_mean="train")


@pytest.fixture(scope="module")
def drawn(judged: Judged) -> dict[str, Spec]:
    return eq.Report({"Soft$max$": judged}).figures()


def rows(figure: Spec) -> list[dict[str, Any]]:
    found = figure["data"]["values"]
    assert isinstance(found, list)
    return found


def only(figure: Spec, **wanted: object) -> list[dict[str, Any]]:
    return [row for row in rows(figure) if wanted.items() <= row.items()]


# -------------------------------------------------------------------- files


def test_every_figure_is_written_as_png_svg_and_pdf(drawn: dict[str, Spec], tmp_path: Path) -> None:
    assert list(drawn) == [*NAMES, *(f"1-{name}" for name in OF_A_MODEL)]
    for name, figure in drawn.items():
        with Image.open(save(figure, tmp_path / "new" / f"{name}.png")) as picture:
            assert min(picture.size) > 300
            assert len(picture.convert("RGB").getcolors(100_000) or []) > 10  # something is drawn
        assert (tmp_path / "new" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in save(figure, tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert save(drawn["group-slopes"], tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ValueError, match=r"a\.gif cannot be written: a figure is \.png, \.svg or \.pdf"):
        save(drawn["group-slopes"], tmp_path / "a.gif")


def test_a_picture_carries_its_note(drawn: dict[str, Spec], tmp_path: Path) -> None:
    with Image.open(save(drawn["class-counts"], tmp_path / "a.png", note="what it shows")) as picture:
        picture.load()
        assert picture.info["Description"] == "what it shows"


def test_an_old_figure_survives_a_failing_write(
    drawn: dict[str, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, content: bytes) -> int:
        with open(self, "wb") as file:
            file.write(content[:10])
        raise OSError("No space left on device")

    path = save(drawn["class-counts"], tmp_path / "a.png")
    old = path.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save(drawn["group-slopes"], path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_no_colour_of_the_page_is_left_unnamed(drawn: dict[str, Spec]) -> None:
    assert "var(--" not in str(drawn)
    assert finished(specs.group_flow())["layer"][0]["mark"]["stroke"] == "#fdfdfb"


def test_long_and_odd_names_are_text(tmp_path: Path) -> None:
    prior = eq.Prior.from_counts({"a <b> & \\frac": 900, "b": 5})
    figure = eq.Report({"m <i>": eq.evaluate(torch.eye(2), [0, 1], prior)}).figures()["marginal-likelihood"]
    text = save(figure, tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "a &lt;b&gt; &amp; \\frac" in text
    assert "<b>" not in text


def test_without_the_extra_a_figure_says_which(monkeypatch: pytest.MonkeyPatch, drawn: dict[str, Spec]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"pip install 'equipoise\[report\]'"):
        save(drawn["class-counts"], "a.png")


# -------------------------------------------------------------------- numbers


def test_counts_are_drawn_largest_first_with_their_names(drawn: dict[str, Spec], tmp_path: Path) -> None:
    (columns,) = rows(drawn["class-counts"])
    assert columns["name"] == ["cat", "dog $5$", "owl", "x" * 300, "<b>gone</b>"]
    assert (columns["count"], columns["rank"]) == ([900, 200, 60, 5, 0], [1, 2, 3, 4, 5])
    figure = drawn["class-counts"]
    assert (figure["encoding"]["y"]["field"], figure["encoding"]["x"]["scale"]["type"]) == ("rank", "log")
    assert figure["params"][0]["value"] == dict(zip("12345", columns["name"], strict=True))
    text = save(figure, tmp_path / "counts.svg").read_text(encoding="utf-8")
    assert [f">{name}</text>" in text for name in ("cat", "dog $5$", "owl", "&lt;b&gt;gone&lt;/b&gt;")] == 4 * [True]


@pytest.mark.parametrize("num_classes", [40, 41, 1000, 30_000])
def test_of_many_classes_the_first_the_last_and_evenly_spaced_ones_are_named(num_classes: int) -> None:
    prior = eq.Prior.from_counts(list(range(num_classes)))  # class 0 is absent, and the last is the largest
    classes = class_data(prior, drawn_classes(prior, 1))
    chart = class_counts(classes, prior)
    called = {int(rank): name for rank, name in chart["params"][0]["value"].items()}
    assert all(name == str(num_classes - rank) for rank, name in called.items())
    if num_classes <= MOST_ROWS:
        assert list(called) == list(range(1, num_classes + 1))
        assert chart["height"] == 16 * num_classes
        return
    assert chart["encoding"]["x"]["axis"]["values"] == list(called)
    assert (len(called), min(called), max(called)) == (9, 1, num_classes)
    assert set(called) <= set(classes["rank"])  # of 30,000 classes the chart draws 24,000
    steps = np.diff(list(called))
    assert max(steps) - min(steps) <= 2  # rounded twice, where not all classes are drawn


def test_a_name_that_looks_like_a_colour_of_the_page_is_drawn_as_it_is() -> None:
    prior = eq.Prior.from_counts({"var(--owl)": 9, "cat": 5})
    classes = class_data(prior, [0, 1])
    assert finished(class_counts(classes, prior))["params"][0]["value"] == {"1": "var(--owl)", "2": "cat"}


def test_accuracies_are_drawn_by_group_with_intervals(drawn: dict[str, Spec], judged: Judged) -> None:
    (columns,) = rows(drawn["1-class-accuracy"])
    row = judged.evaluation.per_class[3]
    place = columns["count"].index(5)
    assert columns["group"] == ["many", "many", "medium", "few", "few"]
    assert columns["accuracy"][place] == pytest.approx(row.correct / row.items, abs=1e-6)
    assert (columns["low"][place], columns["high"][place]) == pytest.approx((row.low, row.high), abs=1e-6)
    assert columns["items"][4] == 0  # the absent class has no test items, and the chart leaves such classes out
    assert {"filter": "datum.items > 0"} in drawn["1-class-accuracy"]["transform"]
    assert drawn["1-class-accuracy"]["title"]["text"] == "Soft$max$"


def test_seeds_of_a_model_are_drawn_as_their_mean(judged: Judged) -> None:
    right = torch.eye(5)[torch.from_numpy(np.repeat(np.arange(5), judged.evaluation.items))]
    perfect = eq.evaluate(30 * right, right.argmax(1), PRIOR)
    figures = eq.Report({"m": [judged.evaluation, perfect]}).figures()
    row = judged.evaluation.per_class[3]
    (columns,) = rows(figures["1-class-accuracy"])
    assert columns["accuracy"][3] == pytest.approx(0.5 + 0.5 * row.correct / row.items, abs=1e-6)
    error = judged.evaluation.groups()["few"].ece
    assert error is not None
    assert f"few {50 * error:.1f}" in figures["1-calibration"]["title"]["subtitle"]


def test_slopes_lead_from_model_to_model_by_name(judged: Judged) -> None:
    other = eq.evaluate(torch.eye(5)[torch.arange(200) % 4], torch.arange(200) % 4, PRIOR)
    results = {"one": judged.evaluation, "two": other, "three": other}
    figure = eq.Report(results).figures()["group-slopes"]
    assert figure["layer"][0]["encoding"]["x"]["sort"] == ["one", "two", "three"]
    few = [only(figure, group="few", role=name)[0] for name in results]
    assert [row["accuracy"] for row in few] == pytest.approx([100 * (judged.evaluation.few or 0), 100, 100])
    assert [row["place"] for row in few] == [0, 1, 2]
    interval = headlines(eq.Report(results).models[0])["few"]
    assert interval is not None
    assert (few[0]["low"], few[0]["high"]) == pytest.approx((100 * interval.low, 100 * interval.high))


def test_numbers_beside_the_slopes_can_be_read(judged: Judged) -> None:
    perfect = eq.evaluate(torch.eye(5)[torch.arange(200) % 4], torch.arange(200) % 4, PRIOR)
    heights = sorted(row["beside"] for row in rows(eq.Report({"m": perfect}).figures()["group-slopes"]))
    assert heights == [89, 94.5, 100]
    half = eq.evaluate(torch.eye(5)[[0, 1, 0, 1, 2, 0, 3, 0]], torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), PRIOR)
    heights = sorted(row["beside"] for row in rows(eq.Report({"m": half}).figures()["group-slopes"]))
    assert heights == [50, 55.5, 61]


def test_swallowed_pairs_lead_from_left_to_right_in_every_script() -> None:
    prior = eq.Prior.from_counts([900, 5], class_names=["cat", "שלום"])
    figure = eq.Report({"m": eq.judge([[1.0, 0.0]] * 2, [0, 1], prior)}).figures()["1-swallowed-classes"]
    assert [row["pair"] for row in rows(figure)] == ["\u200eשלום → cat"]


def test_swallowed_pairs_are_named_and_long_names_cut(drawn: dict[str, Spec], judged: Judged) -> None:
    found, groups = rows(drawn["1-swallowed-classes"]), PRIOR.groups()
    pairs = [p for name in ("few", "medium", "many") for p in judged.confusions.swallowed(PRIOR, 5, groups[name])]
    assert {row["group"] for row in found} == {"few", "medium", "many"}
    assert [row["share"] for row in found] == pytest.approx([100 * pair.share for pair in pairs])
    assert [row["name"] for row in found] == [PRIOR.name(pair.true) for pair in pairs]
    assert max(len(row["pair"]) for row in found) <= 44 + len("\u200e → ")
    assert any(row["pair"] == f"\u200e{'x' * 40}… → cat" for row in found)


def test_the_bars_of_the_flow_are_whole(drawn: dict[str, Spec]) -> None:
    for group in ("many", "medium", "few"):
        bars = only(drawn["1-group-flow"], group=group)
        assert [bar["end"] for bar in bars] == ["right", "many", "medium", "few"]
        assert bars[0]["from"] == 0
        assert [bar["from"] for bar in bars[1:]] == [bar["to"] for bar in bars[:-1]]
        assert bars[-1]["to"] == pytest.approx(100)


def test_calibration_names_the_error_of_each_group(drawn: dict[str, Spec], judged: Judged) -> None:
    error = judged.evaluation.groups()["few"].ece
    assert error is not None
    assert drawn["1-calibration"]["title"]["subtitle"].endswith(f"few {100 * error:.1f}")
    assert sum(row["items"] for row in rows(drawn["1-calibration"])) == 200


def test_p_of_y_is_drawn_with_its_distance_from_uniform(drawn: dict[str, Spec], judged: Judged) -> None:
    (columns,) = rows(drawn["marginal-likelihood"])
    assert columns["p"] == pytest.approx(judged.evaluation.marginal, rel=1e-3)
    assert columns["role"] == f"Soft$max$, {judged.evaluation.total_variation:.2f} from uniform"


def test_sweeps_show_the_world_and_tau(drawn: dict[str, Spec], judged: Judged) -> None:
    assert judged.sweep is not None
    accuracy = 100 * judged.sweep.accuracy()
    told, as_it_is = (only(drawn["world-sweep"], how=how) for how in ("given the prior", "as it is"))
    assert [row["alpha"] for row in told] == WORLDS.tolist()
    assert [row["accuracy"] for row in told] == pytest.approx(accuracy.diagonal(), abs=0.0501)  # one digit
    assert [row["accuracy"] for row in as_it_is] == pytest.approx(accuracy[:, 0], abs=0.0501)
    tau = only(drawn["1-tau-sweep"], group="all")
    assert [row["tau"] for row in tau] == TAUS.tolist()
    assert [row["accuracy"] for row in tau] == pytest.approx(100 * judged.sweep.groups()["all"], abs=0.0501)
    assert drawn["1-tau-sweep"]["params"] == [{"name": "tau", "value": 0.0}]  # as it is


def test_more_models_than_colours_are_the_first_and_the_last(judged: Judged) -> None:
    evaluation = judged.evaluation
    names = [f"model {i}" for i in range(8)]
    figure = eq.Report(dict.fromkeys(names, evaluation)).figures()["group-slopes"]
    assert figure["layer"][0]["encoding"]["x"]["sort"] == ["model 0", "model 7"]
    figure = eq.Report(dict.fromkeys(names[:7], evaluation)).figures()["marginal-likelihood"]
    line = figure["layer"][1]["encoding"]
    ranges = (line[channel]["scale"]["range"] for channel in ("color", "strokeDash"))
    looks = [str(look) for look in zip(*ranges, strict=True)]
    assert len(set(looks)) == 7


def test_figures_are_drawn_on_white_and_the_page_is_not(tmp_path: Path, drawn: dict[str, Spec]) -> None:
    assert specs.group_flow()["config"]["background"] is None
    with Image.open(save(drawn["class-counts"], tmp_path / "a.png")) as picture:
        assert picture.convert("RGBA").getpixel((1, 1)) == (255, 255, 255, 255)
    assert re.search(r'width="\d+"', save(drawn["class-counts"], tmp_path / "a.svg").read_text(encoding="utf-8"))
    assert drawn["class-counts"]["width"] == figure_files.WIDTH
