"""The report: its numbers, what becomes of names, its size, and the command."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data.sources import read_source
from equipoise.metrics.intervals import wilson_interval
from equipoise.metrics.sweep import TAUS, WORLDS
from equipoise.report import page_data, sections, specs, sweep_specs
from equipoise.report.inspection import look
from equipoise.report.page import save_inspection
from equipoise.report.page_data import headlines

ROOT = Path(__file__).parents[2]
NAMES = [
    "cat",
    "</script><img src=x onerror=alert(1)>",
    "a,b;\"c\" 'd' &amp;",
    "猫 🦉 \u202eabc",
    "x" * 300,
    "{{data}}",
]
PRIOR = eq.Prior.from_counts([900, 300, 90, 40, 9, 0], class_names=NAMES)


def logits(strength: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(300, 6, generator=generator) + strength * torch.nn.functional.one_hot(TARGET, 6)


TARGET = torch.arange(300) % 6


@pytest.fixture(scope="module")
def results() -> dict[str, eq.Judged]:
    log_prior = torch.tensor(PRIOR.counts.clip(1) / PRIOR.total).log().float()
    return {
        "<b>Softmax</b>": eq.judge(logits() + log_prior, TARGET, PRIOR, logits_mean="train"),
        "Balanced": eq.judge(logits(), TARGET, PRIOR, logits_mean="uniform"),
    }


class Texts(HTMLParser):
    """The text of cells, notes and headings, and every tag that was opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = dict(attrs).get("id") or "script" if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data
        else:
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = None


def data_of(page: str) -> dict[str, Any]:
    found = json.loads(Texts(page).scripts["data"])
    assert isinstance(found, dict)
    return found


# -------------------------------------------------------------------- numbers


def test_the_page_holds_the_numbers_of_the_evaluation(results: dict[str, eq.Judged]) -> None:
    data = data_of(eq.Report(results).to_html())
    for model, judged in zip(data["models"], results.values(), strict=True):
        evaluation, order = judged.evaluation, np.argsort(-PRIOR.counts, kind="stable")
        assert model["headline"]["top1"]["value"] == pytest.approx(evaluation.top1, abs=1e-6)
        ends = wilson_interval(int(evaluation.correct.sum()), 300)
        assert (model["headline"]["top1"]["low"], model["headline"]["top1"]["high"]) == pytest.approx(ends, abs=1e-6)
        for group in ("many", "medium", "few"):
            assert model["headline"][group]["value"] == pytest.approx(getattr(evaluation, group), abs=1e-6)
            assert model["ece"][group] == pytest.approx(evaluation.groups()[group].ece, abs=1e-4)
        rows = [evaluation.per_class[j] for j in order]
        columns = model["columns"]
        assert columns["accuracy"] == pytest.approx([row.accuracy for row in rows], abs=1e-6)
        assert columns["low"] == pytest.approx([row.low for row in rows], abs=1e-6)
        assert columns["p"] == pytest.approx(evaluation.marginal[order], rel=1e-3)
        assert judged.sweep is not None
        assert np.array(model["sweep"]["accuracy"]) == pytest.approx(judged.sweep.accuracy(), abs=1e-6)
        assert sum(bin["items"] for bin in model["rows"]["calibration"]) == 300
        first = judged.confusions.swallowed(PRIOR)[0]
        assert model["rows"]["swallowed"][0]["times"] == f"{first.times} of {first.items}"
    assert data["classes"]["group"] == ["many", "many", "medium", "medium", "few", "few"]
    assert data["classes"]["count"] == [900, 300, 90, 40, 9, 0]
    assert (data["worlds"], data["taus"]) == (WORLDS.tolist(), TAUS.tolist())


def test_the_table_shows_what_the_cards_show(results: dict[str, eq.Judged]) -> None:
    report = eq.Report(results)
    texts = Texts(report.to_html()).texts
    for model in report.models:
        for value in headlines(model).values():
            assert value is not None
            assert f"{100 * value.value:.1f}" in texts
            assert f"{100 * value.low:.1f} to {100 * value.high:.1f}" in texts


def test_seeds_of_a_model_are_averaged_and_that_is_said() -> None:
    runs = [eq.evaluate(logits(seed=seed), TARGET, PRIOR) for seed in range(3)]
    report = eq.Report({"Softmax": runs})
    found = headlines(report.models[0])["top1"]
    assert found is not None
    assert found.value == pytest.approx(np.mean([run.top1 for run in runs]))
    assert found.low == pytest.approx(wilson_interval(round(300 * found.value), 300)[0], abs=2e-3)
    assert "Softmax, 3 runs (± " in " ".join(Texts(report.to_html()).texts)


def test_an_absent_class_counts_as_one_item_in_what_the_slider_says() -> None:
    page = eq.Report(eq.evaluate(np.eye(3), [0, 1, 2], eq.Prior.from_counts([500, 10, 0]))).to_html()
    assert data_of(page)["imbalance"] == 500


def test_an_empty_group_is_a_dash_and_not_a_zero() -> None:
    prior = eq.Prior.from_counts([900, 300])
    report = eq.Report([eq.evaluate(torch.eye(2), [0, 1], prior)])
    assert headlines(report.models[0])["few"] is None
    page = report.to_html()
    assert data_of(page)["models"][0]["headline"]["few"] is None
    assert "–" in Texts(page).texts


def test_what_is_not_known_is_left_out() -> None:
    evaluation = eq.evaluate(logits(), TARGET, PRIOR)
    page = eq.Report([evaluation]).to_html()
    assert "Confidence and accuracy" in page
    for missing in ("<h2>Confusions", "If class frequencies change", 'id="pick-before"'):
        assert missing not in page


def test_a_sample_and_different_test_sets_are_said(results: dict[str, eq.Judged]) -> None:
    part = eq.judge(logits(), TARGET, PRIOR, logits_mean="uniform", swept=[0, 1, 2])
    other = eq.evaluate(logits()[:100], TARGET[:100], PRIOR)
    text = " ".join(Texts(eq.Report({"one": part, "two": other}).to_html()).texts)
    assert "one: the prior sweep uses a seeded sample of 3 of 300 rows." in text
    assert "evaluated on different test items" in text
    assert "sample" not in " ".join(Texts(eq.Report(results).to_html()).texts)


# -------------------------------------------------------------------- names


def test_names_of_classes_and_models_come_out_as_text(results: dict[str, eq.Judged]) -> None:
    page = eq.Report(results, title="<i>title</i>").to_html()
    parsed, data = Texts(page), data_of(page)
    assert data["classes"]["name"] == NAMES
    assert [model["name"] for model in data["models"]] == list(results)
    assert "<b>Softmax</b>" in parsed.texts
    assert "<i>title</i>" in parsed.texts
    assert not {"img", "b>", "i"} & set(parsed.tags)
    assert parsed.tags.count("script") == 4
    assert "<img" not in page.partition('<script type="application/json" id="data">')[0]
    assert "<img" not in parsed.scripts["data"]


def test_lone_surrogates_do_not_stop_the_page(tmp_path: Path) -> None:
    prior = eq.Prior.from_counts([9, 5], class_names=["\ud800", "b"])
    assert eq.Report([eq.evaluate(torch.eye(2), [0, 1], prior)]).save(tmp_path / "a.html").stat().st_size > 1000


# -------------------------------------------------------------------- colours


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(colour: str) -> float:
    """CIE L*, 0 to 100: how light a colour is in grey."""
    return float(116 * np.cbrt(luminance(colour)) - 16)


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def themes() -> list[dict[str, str]]:
    text = (Path(sections.__file__).parent / "page_files" / "page.css").read_text()
    blocks = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r"{[^{}]*}", text)]
    found = [block for block in blocks if "paper" in block]
    assert len(found) == 3
    assert found[1] == found[2]  # dark by the system's choice, and by the button
    return found[:2]


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_the_page_can_be_read_in_grey_and_has_contrast(theme: dict[str, str]) -> None:
    for text in ("ink", "muted", "accent"):
        assert min(contrast(theme[text], theme[ground]) for ground in ("paper", "card")) >= 4.5
    for mark in ("many", "medium", "few", "before", "after"):
        assert contrast(theme[mark], theme["paper"]) >= 3
    for words, ground in (("on-colour", "many"), ("on-colour", "few"), ("on-medium", "medium"), ("ink", "right")):
        assert contrast(theme[words], theme[ground]) >= 4.5
    for colours in (("many", "medium", "few"), ("before", "after")):
        values = sorted(lightness(theme[name]) for name in colours)
        assert np.diff(values).min() >= 12


def channels(spec: Any) -> set[str]:
    """Every channel of a chart that takes a field."""
    if isinstance(spec, list):
        return set().union(*map(channels, spec))
    if not isinstance(spec, dict):
        return set()
    own = {key for key, value in spec.get("encoding", {}).items() if isinstance(value, dict) and "field" in value}
    return own.union(*(channels(value) for key, value in spec.items() if key != "encoding"))


def test_the_axis_of_training_items_is_that_of_the_training_set() -> None:
    def axis(counts: list[int]) -> Any:
        return specs.class_accuracy(eq.Prior.from_counts(counts))["layer"][0]["encoding"]["x"]["scale"]["domain"]

    assert axis([900, 60, 5]) == [5, 900]
    assert axis([900, 60, 0]) == [0.5, 900]
    assert axis([60, 60]) == [30, 120]


@pytest.mark.parametrize(("classes", "beside", "words"), [(6, 0, "line connects them"), (100, 5, "of neighbouring")])
def test_the_line_through_few_classes_goes_through_them(classes: int, beside: int, words: str) -> None:
    prior = eq.Prior.from_counts(np.arange(classes) + 1)
    window = specs.class_accuracy(prior)["layer"][1]["transform"][0]
    assert window["frame"] == [-beside, beside]
    assert words in eq.Report(eq.evaluate(np.eye(classes), np.arange(classes), prior)).to_html()


def test_colour_is_never_the_only_difference() -> None:
    lines = ["before", "after"]
    charts = specs.charts(PRIOR, pairs=3, lines=lines) | sweep_specs.sweeps(lines)
    found = {name: channels(spec) for name, spec in charts.items()}
    for name in ("classes", "slopes", "calibration", "marginal", "world"):
        assert "shape" in found[name], name
    for name in ("slopes", "calibration", "marginal", "tau"):
        assert "strokeDash" in found[name], name
    assert "text" in found["flow"]


# -------------------------------------------------------------------- size and files


@pytest.mark.parametrize("letter", ["n", "<", "猫"])
def test_the_page_is_one_file_under_three_megabytes(tmp_path: Path, letter: str) -> None:
    names = [f"{i:04}" + letter * 296 for i in range(1203)]
    prior = eq.Prior.from_counts((1000 * 2000.0 ** (-np.arange(1203) / 1202)).astype(int) + 1, class_names=names)
    target = np.arange(2406) % 1203
    judged = eq.judge(np.random.default_rng(0).normal(size=(2406, 1203)), target, prior, logits_mean="train")
    path = eq.Report({f"model {i}": judged for i in range(5)}).save(tmp_path / "new" / "report.html")
    assert path.stat().st_size < 3_000_000


def test_a_page_of_very_many_classes_with_long_names_is_under_three_megabytes() -> None:
    random = np.random.default_rng(0)
    prior = eq.Prior.from_counts(
        random.integers(1, 99999, 24000), class_names=[f"{i}{'猫' * 40}" for i in range(24000)]
    )
    items = random.integers(50, 99, 24000)
    correct = random.integers(0, 50, 24000)
    bins = np.zeros((24000, 15), int)
    evaluation = eq.Evaluation(prior, correct, items, items * random.random(24000), bins, bins.copy(), bins * 0.0)
    assert len(eq.Report(evaluation).to_html().encode()) < 3_000_000


def test_of_very_many_classes_evenly_spaced_ones_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_data, "MOST_POINTS", 400)
    prior = eq.Prior.from_counts(range(1, 1001))
    page = eq.Report([eq.evaluate(np.eye(1000), np.arange(1000), prior)] * 2).to_html()
    ranks = data_of(page)["classes"]["rank"]
    assert (len(ranks), ranks[0], ranks[-1]) == (200, 1, 1000)
    assert "Charts of classes show 200 of 1,000" in page


def test_an_old_page_survives_a_failing_write(
    results: dict[str, eq.Judged], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, text: str, encoding: str) -> int:
        with open(self, "w", encoding=encoding) as file:
            file.write(text[:10])
        raise OSError("No space left on device")

    page, tail = tmp_path / "report.html", tmp_path / "tail.html"
    page.write_text("old page")
    tail.write_text("old tail")
    np.save(tmp_path / "counts.npy", PRIOR.counts)
    seen = look(read_source(tmp_path / "counts.npy", counts_of=6))
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        eq.Report(results).save(page)
    with pytest.raises(OSError, match="No space left"):
        save_inspection(seen, tail)
    assert (page.read_text(), tail.read_text()) == ("old page", "old tail")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "tail.html", "counts.npy"}


def test_the_policy_of_the_page_names_its_scripts_and_allows_no_other(results: dict[str, eq.Judged]) -> None:
    page = eq.Report(results).to_html()
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    policy = dict(part.strip().split(" ", 1) for part in found[1].split(";"))
    assert "unsafe" not in found[1]
    assert (policy["default-src"], policy["img-src"]) == ("'none'", "data:")
    assert policy["script-src"].split() == [
        digest(script) for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    ]
    assert policy["style-src"].split() == [digest(css) for css in re.findall(r"<style>(.*?)</style>", page, re.DOTALL)]
    assert " style=" not in page.partition("<script")[0]


def digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_a_notebook_shows_the_page_in_a_frame(results: dict[str, eq.Judged]) -> None:
    report = eq.Report(results)
    frame = report._repr_html_()
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*" title="[^"]*"></iframe>', frame, re.DOTALL)
    assert found is not None
    assert html.unescape(found[1]) == report.to_html()


def test_a_report_says_what_it_is(results: dict[str, eq.Judged]) -> None:
    assert repr(eq.Report(list(results.values()), names=["a", "b"])) == (
        "Report(2 models: a, b; 6 classes, 300 test items)"
    )


def test_figures_are_written_as_png_and_svg(results: dict[str, eq.Judged], tmp_path: Path) -> None:
    plain = eq.Prior.from_counts(PRIOR.counts)  # the usual fonts lack some of the names above
    judged = eq.judge(logits(), TARGET, plain, logits_mean="train")
    files = eq.Report({"one": judged, "two": eq.evaluate(logits(), TARGET, plain)}).save_figures(tmp_path / "figures")
    assert {file.name for file in files} == {
        f"{name}.{ending}"
        for ending in ("png", "svg")
        for name in (
            *("class-counts", "marginal-likelihood", "group-slopes", "world-sweep"),
            *("1-class-accuracy", "1-calibration", "1-swallowed-classes", "1-group-flow", "1-tau-sweep"),
            *("2-class-accuracy", "2-calibration"),
        )
    }
    assert all(file.stat().st_size > 1000 for file in files)


# -------------------------------------------------------------------- what is refused


def test_what_cannot_be_reported_is_named() -> None:
    evaluation = eq.evaluate(logits(), TARGET, PRIOR)
    other = eq.evaluate(torch.eye(2), [0, 1], eq.Prior.from_counts([2, 1]))
    stated = eq.evaluate(torch.eye(2), [0, 1], eq.Prior.uniform(2))
    with pytest.raises(ValueError, match="'b' was judged with another training prior than 'a'"):
        eq.Report({"a": evaluation, "b": other})
    with pytest.raises(ValueError, match="nothing to report"):
        eq.Report([])
    with pytest.raises(ValueError, match="nothing to report of 'a'"):
        eq.Report({"a": []})
    with pytest.raises(ValueError, match="stated as probabilities"):
        eq.Report([stated])
    with pytest.raises(TypeError, match="'model 1' is a str"):
        eq.Report(["accuracy 99 %"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="give each a name of its own"):
        eq.Report([evaluation, evaluation], names=["a", "a"])
    with pytest.raises(ValueError, match="results have names already"):
        eq.Report({"a": evaluation}, names=["b"])
    with pytest.raises(ValueError, match="judged on no items"):
        eq.Report([eq.evaluate(np.zeros((0, 6)), np.zeros(0, int), PRIOR)])
    with pytest.raises(TypeError, match="'a' is a NoneType"):
        eq.Report({"a": None})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="the 2 runs of 'a' were judged on different test items"):
        eq.Report({"a": [evaluation, eq.evaluate(logits()[:100], TARGET[:100], PRIOR)]})
    with pytest.raises(ValueError, match=r"logits_mean is of \['b'\], predictions of \['a'\]"):
        eq.Report.from_predictions({"a": logits()}, TARGET, PRIOR, logits_mean={"b": "train"})
    with pytest.raises(ValueError, match="mixes evaluations with judged predictions"):
        eq.Report({"a": [evaluation, eq.judge(logits(), TARGET, PRIOR)]})


def test_without_the_extra_the_page_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    sections.vega_bundle.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'equipoise\[report\]'"):
        eq.Report([eq.evaluate(logits(), TARGET, PRIOR)]).to_html()


# -------------------------------------------------------------------- the command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two models, their counts in several forms."""
    np.savez(tmp_path / "softmax.npz", logits=logits(), labels=TARGET, class_names=NAMES)
    np.savez(tmp_path / "balanced.npz", logits=logits(2.0), labels=TARGET, logits_mean="uniform")
    (tmp_path / "counts.json").write_text(json.dumps(dict(zip(NAMES, PRIOR.counts.tolist(), strict=True))))
    (tmp_path / "list.json").write_text(json.dumps(PRIOR.counts.tolist()))
    np.save(tmp_path / "counts.npy", PRIOR.counts)
    np.save(tmp_path / "labels.npy", np.repeat(np.arange(6), PRIOR.counts))
    np.save(tmp_path / "names.npy", np.repeat(NAMES, PRIOR.counts))
    return tmp_path


def report(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "400"})
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize("counts", ["counts.json", "list.json", "counts.npy", "labels.npy", "names.npy"])
def test_the_command_compares_files_whatever_the_counts_are_in(files: Path, counts: str) -> None:
    out = files / "out" / "report.html"
    text = report(files / "softmax.npz", files / "balanced.npz", "--counts", files / counts, "--out", out)
    data = data_of(out.read_text())
    assert [model["name"] for model in data["models"]] == ["softmax", "balanced"]
    assert data["classes"]["count"] == [900, 300, 90, 40, 9, 0]
    assert data["classes"]["name"] == NAMES  # labels do not know the class that never occurs: the predictions do
    expected = eq.evaluate(logits(2.0), TARGET, PRIOR)
    assert data["models"][1]["headline"]["top1"]["value"] == pytest.approx(expected.top1, abs=1e-6)
    assert f"{100 * expected.top1:.1f}" in text
    assert data["models"][0]["sweep"]["as_it_is"] == 0
    assert data["models"][1]["sweep"]["as_it_is"] == 20  # the file says so
    assert "softmax: assumed to be for the training prior" in " ".join(Texts(out.read_text()).texts)


def test_evaluate_prints_the_numbers_of_the_page_and_writes_nothing(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    arguments = [files / "softmax.npz", files / "balanced.npz", "--counts", files / "counts.json"]
    page = json.loads(report(*arguments, "--out", files / "report.html", "--json"))
    (files / "report.html").unlink()
    before = sorted(files.iterdir())
    runner = partial(CliRunner().invoke, app, env={"COLUMNS": "400"})
    told = runner(["evaluate", *map(str, arguments)])
    assert told.exit_code == 0, told.output
    assert f"balanced {100 * eq.evaluate(logits(2.0), TARGET, PRIOR).top1:.1f}" in " ".join(told.output.split())
    assert "assumed to be for" not in told.output  # that is for the sweep
    as_json = runner(["evaluate", *map(str, arguments), "--json", "--many", "500", "--few", "20"])
    found = json.loads(as_json.stdout)
    assert "page" not in found
    headlines_of = [[model["headline"] for model in one["models"]] for one in (page, found)]
    assert headlines_of[0][1]["top1"] == headlines_of[1][1]["top1"]
    assert headlines_of[0][1]["many"] != headlines_of[1][1]["many"]
    assert [model["notes"] for model in found["models"]] == [[], []]
    runs = runner(["evaluate", str(ROOT / "results" / "table1" / "cifar100-lt" / "100")])
    assert runs.exit_code == 0, runs.output
    no_threshold = runner(["evaluate", str(ROOT / "results" / "table1" / "cifar100-lt" / "100"), "--threshold", "0.3"])
    assert "no predictions: leave --threshold out" in " ".join(no_threshold.output.split())
    missing = runner(["evaluate", str(files / "softmax.npz")])
    assert missing.exit_code == 2
    assert "--counts is missing" in missing.output
    nowhere = runner(["evaluate", str(files / "none")])
    assert nowhere.exit_code == 2
    assert "none does not exist: expected a file of predictions" in " ".join(nowhere.output.split())
    assert sorted(files.iterdir()) == before


def test_the_command_takes_names_and_what_logits_mean(files: Path) -> None:
    out = files / "report.html"
    both = [files / "softmax.npz", files / "balanced.npz", "--counts", files / "counts.json", "--out", out]
    report(*both, "--logits-mean", "uniform", "--name", "A", "--name", "<B>", "--title", "Mine")
    data = data_of(out.read_text())
    assert [(model["name"], model["sweep"]["as_it_is"]) for model in data["models"]] == [("A", 20), ("<B>", 20)]
    assert "assumed to be for" not in out.read_text()
    report(*both, "--logits-mean", "uniform", "--logits-mean", "train")
    assert [model["sweep"]["as_it_is"] for model in data_of(out.read_text())["models"]] == [20, 0]


def test_the_command_shows_run_records(tmp_path: Path) -> None:
    folder = ROOT / "results" / "table1" / "cifar100-lt" / "100"
    text = report(folder, "--out", tmp_path / "runs.html")
    data = data_of((tmp_path / "runs.html").read_text())
    top1 = [json.loads(path.read_text())["top1"] for path in (folder / "softmax").glob("*.json")]
    assert 100 * data["models"][0]["headline"]["top1"]["value"] == pytest.approx(np.mean(top1), abs=0.01)
    assert "Confidence and accuracy" not in (tmp_path / "runs.html").read_text()
    assert "softmax" in text


def test_the_command_names_what_is_wrong(files: Path) -> None:
    one, counts = files / "softmax.npz", files / "counts.json"
    assert "--counts is missing" in report(one, code=2)
    assert "--logits-mean is 'equal'" in report(one, "--counts", counts, "--logits-mean", "equal", code=2)
    assert "2 values of --name for 1 files" in report(one, "--counts", counts, "--name", "a", "--name", "b", code=2)
    assert "a file is given twice" in report(one, one, "--counts", counts, code=2)
    assert "cannot be combined with other inputs" in report(files, one, code=2)
    assert "leave --counts" in report(files, "--counts", counts, code=2)
    (files / "few.json").write_text("[5, 4]")
    assert "softmax.npz has 6 columns of classes" in report(one, "--counts", files / "few.json", code=2)
    np.savez(files / "other.npz", logits=logits(), labels=TARGET, class_names=[*NAMES[:5], "yak"])
    message = report(one, files / "other.npz", "--counts", files / "list.json", code=2)
    assert "other.npz has the class 'yak'" in message
    assert "softmax.npz" in message


def test_inspect_writes_a_page_too(files: Path) -> None:
    arguments = ["inspect", str(files / "counts.json"), "--html", str(files / "new" / "tail.html")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    parsed = Texts((files / "new" / "tail.html").read_text())
    assert json.loads(parsed.scripts["data"])["classes"]["count"] == [900, 300, 90, 40, 9, 0]
    assert "loss = eq.BalancedSoftmaxLoss(prior)" in parsed.texts
    assert "img" not in parsed.tags


def test_the_options_are_these() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    options = {name: [o for p in commands[name].params for o in p.opts] for name in ("inspect", "report", "evaluate")}
    assert options == {
        "evaluate": [
            *("predictions", "--counts", "--name", "--label", "--column", "--threshold", "--many", "--few", "--json"),
        ],
        "inspect": ["source", "--column", "--json", "--html"],
        "report": [
            *("predictions", "--counts", "--logits-mean", "--name", "--label", "--column", "--threshold"),
            *("--many", "--few", "--images", "--title", "--out", "--figures", "--json"),
        ],
    }
