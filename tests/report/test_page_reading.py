"""Both pages as they are read, in a real browser: names of models, contrast, as spoken, and on paper."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import PATIENCE, Driver, Open, text
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import equipoise as eq

K = 27
MODELS = ["Cross-entropy", "Balanced & <b>Softmax</b>, which is a long name of a model"]
PRIOR = eq.Prior.from_counts(
    [round(600 * 0.8**i) + 2 for i in range(K)], total=4000, class_names=[f"a weed, {i}" for i in range(K)]
)


def one_label(photos: list[str]) -> eq.Report:
    random, target = np.random.default_rng(0), np.arange(540) % K
    logits = random.normal(size=(540, K)) + 2.5 * np.eye(K)[target]
    judged = [eq.judge(z, target, PRIOR, logits_mean="train") for z in (logits + PRIOR.log().numpy(), logits)]
    return eq.Report(dict(zip(MODELS, judged, strict=True)), paths=photos * 18)


def several_labels(photos: list[str]) -> eq.MultilabelReport:
    random = np.random.default_rng(0)
    target = (random.random((300, K)) < 0.2).astype(int)
    target[:, 0] = random.random(300) < 0.5
    logits = random.normal(size=(300, K)) + 3 * target - 1.5
    logits[:, 9] -= 4 * target[:, 9] * target[:, 0]  # missed where the first is present
    judged = [eq.judge_multilabel(z, target, PRIOR) for z in (logits + PRIOR.logit().numpy(), logits)]
    named = dict(zip(MODELS, judged, strict=True))
    return eq.MultilabelReport(named, resamples=20, many=200, few=50, paths=photos * 10)


@pytest.fixture(scope="module", params=[one_label, several_labels])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    photos = [str(folder / f"{i}.png") for i in range(30)]
    for i, photo in enumerate(photos):
        Image.new("RGB", (40, 20), (8 * i, 99, 99)).save(photo)
    saved: Path = request.param(photos).save(folder / f"{request.param.__name__}.html")
    return saved


def models_in(driver: Driver, kind: str) -> list[int]:
    """The places of the models that a chart writes out, in its order; names may be cut."""
    script = "return [...document.querySelectorAll(arguments[0])].map(words => words.textContent)"
    texts = driver.execute_script(script, f'figure[data-chart="{kind}"] svg text')
    return [place for words in texts for place, name in enumerate(MODELS) if words.startswith(name[:13])]


def test_models_are_called_by_their_names_in_charts_and_headings(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    kinds = ("slopes", "marginal", "world") if page.stem == "one_label" else ("precision_slopes", "f1_slopes")
    for kind in kinds:
        assert models_in(driver, kind) == [0, 1]
    score = "recall" if page.stem == "one_label" else "AP"
    cut = f"{MODELS[1][:23]}…"
    heads = [head.text for head in driver.find_elements(By.CSS_SELECTOR, "#class-heads button")]
    assert heads[3:6] == [f"{score}, {MODELS[0]}", f"{score}, {cut}", "change"]
    assert f"Columns without the name of a model belong to {MODELS[1]}." in text(driver, "#table .how")
    header = driver.execute_script("return equipoise.csv()").splitlines()[0]
    assert f'"{MODELS[0]}: {score}, %"' in header
    assert f'"{MODELS[1]}: {score}, %"' in header
    for selector in ("main", "#class-heads", "#table-sort"):
        words = driver.execute_script("return document.querySelector(arguments[0]).textContent", selector)
        assert re.search(r"\b(before|after)\b", words) is None
    Select(driver.find_element(By.ID, "pick-after")).select_by_index(0)
    Select(driver.find_element(By.ID, "pick-before")).select_by_index(1)
    for kind in kinds:
        WebDriverWait(driver, PATIENCE).until(lambda d, kind=kind: models_in(d, kind) == [1, 0])
    heads = [head.text for head in driver.find_elements(By.CSS_SELECTOR, "#class-heads button")]
    assert heads[3:5] == [f"{score}, {cut}", f"{score}, {MODELS[0]}"]


def test_a_few_classes_more_are_shown_without_a_button(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    assert text(driver, "#table-count") == "27 classes"
    assert len(driver.find_elements(By.CSS_SELECTOR, "#class-rows tr")) == K
    assert not driver.find_element(By.ID, "table-more").is_displayed()


CONTRASTS = """
const linear = v => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
const light = c => { const [r, g, b] = c.map(linear); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const parsed = s => { const m = s.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
const over = (f, b) => b.map((v, i) => f[i] * f[3] + v * (1 - f[3]));
const up = e => { const all = []; for (let n = e; n; n = n.parentElement) all.push(n); return all; };
const found = [];
for (const e of document.querySelectorAll("body *")) {
  const drawn = e.tagName === "text";
  if (e.closest("svg") && !drawn || e.closest('[data-chart="flow"]') && drawn) continue; // on bars: see the colours
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
  const style = getComputedStyle(e);
  const seen = parsed(drawn ? style.fill : style.color);
  seen[3] *= up(e).reduce((all, n) => all * getComputedStyle(n).opacity, 1) * (drawn ? style.fillOpacity : 1);
  const behind = up(drawn ? e.closest(".chart") : e).reverse().map(n => parsed(getComputedStyle(n).backgroundColor));
  const ground = behind.reduce((b, colour) => over(colour, b), [255, 255, 255]);
  const [high, low] = [light(over(seen, ground)), light(ground)].sort((a, b) => b - a);
  found.push([(high + 0.05) / (low + 0.05), e.textContent.slice(0, 40)]);
}
return found"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast(open_page: Open, page: Path, theme: str) -> None:
    driver = open_page(page)
    driver.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    found = driver.execute_script(CONTRASTS)
    assert len(found) > 300
    assert [each for each in found if each[0] < 4.5] == []


def test_headings_sort_by_keyboard_and_say_how(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    heads = driver.find_elements(By.CSS_SELECTOR, "#class-heads th")
    state = [head.get_attribute("aria-sort") for head in heads]
    assert state == ["none", "descending", *["none"] * (len(heads) - 2)]
    for way in ("descending", "ascending"):
        heads[3].find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
        assert [head.get_attribute("aria-sort") for head in heads].index(way) == 3
        cells = driver.find_elements(By.CSS_SELECTOR, "#class-rows td:nth-child(4) span")
        values = [float(cell.text) for cell in cells if cell.text != "–"]
        assert values == sorted(values, reverse=way == "descending")


def test_everything_of_both_pages_has_a_name(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    driver.execute_cdp_cmd("Accessibility.enable", {})
    nodes: list[dict[str, Any]] = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    spoken = {"button", "link", "searchbox", "combobox", "slider", "image", "table", "navigation", "graphics-document"}
    found = [
        (node["role"]["value"], str(node.get("name", {}).get("value", "")))
        for node in nodes
        if not node["ignored"] and node.get("role", {}).get("value") in spoken
    ]
    assert {role for role, _ in found} == spoken
    assert [role for role, name in found if not name.strip()] == []


def test_marks_are_spoken_in_words_and_lines_not_at_all(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    script = """return [...document.querySelectorAll('.chart [role="graphics-symbol"]')]
        .filter(mark => !mark.closest('[aria-hidden="true"]') && !mark.closest('.role-axis, .role-legend'))
        .map(mark => [mark.closest('figure').dataset.chart, mark.getAttribute('aria-label') || ''])"""
    spoken = driver.execute_script(script)
    charts = driver.execute_script(
        "return [...document.querySelectorAll('figure[data-chart]')].map(f => f.dataset.chart)"
    )
    assert {chart for chart, _ in spoken} == set(charts)
    unsaid = re.compile(r"role: |line: |\.\d{6}|\b(before|after)\b")
    assert [words for _, words in spoken if not words or unsaid.search(words)] == []
    kind = "slopes" if page.stem == "one_label" else "f1_slopes"
    groups = ("many", "few") if page.stem == "one_label" else ("head", "tail")
    for group in groups:
        for name in MODELS:
            (words,) = [words for chart, words in spoken if chart == kind and words.startswith(f"{group}, {name}: ")]
            assert re.search(r": [\d.]+ \([\d.]+ to [\d.]+\) %$", words)


def test_pictures_show_what_is_missed_with_its_recall(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    pictures = driver.find_elements(By.CSS_SELECTOR, '[data-pictures="after"] .picture')
    assert len(pictures) > 4
    missed = page.stem == "several_labels"
    for picture in pictures:
        alt = str(picture.find_element(By.TAG_NAME, "img").get_attribute("alt"))
        assert re.search(r"recall of .+: [\d.]+ %$" if missed else r"accuracy of .+: [\d.]+ %$", alt)
        name, said, sure = (part.text for part in picture.find_elements(By.CSS_SELECTOR, "figcaption > *"))
        assert alt.startswith(f"{name}, {'missed with a' if missed else said}")
        assert said in alt
        assert re.fullmatch(r"probability [\d.]+ %" if missed else r"confidence [\d.]+ %", sure)
    title = "What is missed most" if missed else "The most confident mistakes"
    assert text(driver, "#pictures h2") == title
    assert title in text(driver, ".contents")
    assert driver.get_log("browser") == []


def test_on_paper_tables_are_tables_and_models_stand_side_by_side(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    pdf = base64.b64decode(
        driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"]
    )
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 14  # stacked as on a phone, it was twice as many
    driver = open_page(page, 717)  # the width of that paper without its margins
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        display, wide, columns, beyond = driver.execute_script(
            "const rows = document.querySelector('#class-rows tr');"
            "const wide = [...document.querySelectorAll('#class-table, #numbers table')].map(t => t.scrollWidth);"
            "return [getComputedStyle(rows).display, Math.max(...wide),"
            "getComputedStyle(document.querySelector('.pair')).gridTemplateColumns.split(' ').length,"
            "document.documentElement.scrollWidth]"
        )
        assert (display, columns) == ("table-row", 2)
        assert wide <= 717
        assert beyond <= 717
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
