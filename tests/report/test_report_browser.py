"""The report in a real browser: opened from disk without errors or network, moved, hovered, and read."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.browser import PATIENCE, Driver, Open, ready, requests, shown, text, tooltip
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import equipoise as eq
from equipoise.data.sources import read_source
from equipoise.report.inspection import look
from equipoise.report.page import save_inspection

NAMES = [
    "cat",
    "<img src=x onerror=alert(1)>",
    "a,b \"c\" 'd' &amp;",
    "猫 🦉 жар-птица",
    "x" * 300,
    "{{data}} ${1} </script>",
]
PRIOR = eq.Prior.from_counts([900, 300, 90, 40, 9, 2], class_names=NAMES)
COUNTS, BARS = 'figure[data-chart="counts"]', ".mark-rect path"
MODELS = ["<b>Softmax</b>", "Balanced & Softmax"]


@pytest.fixture(scope="module")
def report() -> eq.Report:
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(300) % 6
    logits = torch.randn(300, 6, generator=generator) + 1.5 * torch.nn.functional.one_hot(target, 6)
    plain = logits + PRIOR.log()
    means: dict[str, Any] = dict(zip(MODELS, ("train", "uniform"), strict=True))
    return eq.Report.from_predictions(
        dict(zip(MODELS, (plain, logits), strict=True)), target, PRIOR, logits_mean=means, title="<i>The</i> tail"
    )


@pytest.fixture(scope="module")
def page(report: eq.Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.save(tmp_path_factory.mktemp("report") / "report.html")


def marker(driver: Driver) -> float:
    """Where the line that marks the chosen world stands."""
    return float(driver.find_element(By.CSS_SELECTOR, 'figure[data-chart="world"] .mark-rule.role-mark line').rect["x"])


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


# -------------------------------------------------------------------- opening


def test_it_opens_from_disk_without_a_message_or_a_request(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    assert driver.get_log("browser") == []
    assert [url for url in requests(driver) if not url.startswith("data:")] == [page.as_uri()]
    drawn = driver.execute_script(
        "return [...document.querySelectorAll('figure[data-chart]')].map(f => f.querySelector('svg path') !== null)"
    )
    assert len(drawn) == 14
    assert all(drawn)


def test_the_page_forbids_eval_and_every_script_and_style_but_its_own(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    tried = "try { window.found = new Function('return 1')(); } catch (error) { window.found = error.name; }"
    driver.execute_script(f"setTimeout(() => {{ {tried} }}, 0)")  # later: what the driver runs itself may do anything
    assert WebDriverWait(driver, 10).until(lambda d: d.execute_script("return window.found")) == "EvalError"
    added = (
        "const s = document.createElement('script'); s.textContent = 'window.evil = 1'; document.body.append(s);"
        "const c = document.createElement('style'); c.textContent = 'body { margin: 77px }'; document.head.append(c);"
        "return [window.evil === undefined, getComputedStyle(document.body).marginTop];"
    )
    assert driver.execute_script(added) == [True, "0px"]
    assert len(driver.get_log("browser")) == 2  # the browser tells of the script and of the style


@pytest.mark.parametrize("width", [1200, 390])
def test_nothing_is_wider_than_the_screen(open_page: Open, page: Path, width: int) -> None:
    driver = open_page(page, width)
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    wide = driver.execute_script(
        "return [...document.querySelectorAll('.chart svg')].filter(s => s.getBoundingClientRect().right > innerWidth)"
    )
    assert wide == []
    columns = driver.execute_script("return getComputedStyle(document.querySelector('.pair')).gridTemplateColumns")
    assert len(columns.split()) == (2 if width == 1200 else 1)


def test_names_are_text_everywhere(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    assert text(driver, "h1") == "<i>The</i> tail"
    assert driver.execute_script("return document.querySelectorAll('img, main b b, h1 i').length") == 0
    options = Select(driver.find_element(By.ID, "pick-before")).options
    assert [option.text for option in options] == MODELS
    labels = driver.execute_script(
        "return [...document.querySelectorAll('figure[data-chart=\"marginal\"] svg text')].map(t => t.textContent)"
    )
    assert [name for name in NAMES[:4] if not any(label[:9] == name[:9] for label in labels)] == []


def test_a_pair_shows_both_of_its_names_however_long(open_page: Open, tmp_path: Path) -> None:
    names = ["great white shark, man-eater, Carcharodon carcharias" * 5, "tiger shark, Galeocerdo cuvieri" * 5]
    prior = eq.Prior.from_counts([900, 5], class_names=names)
    path = eq.Report(eq.judge([[1.0, 0.0]] * 4, [0, 0, 1, 1], prior)).save(tmp_path / "a.html")
    driver = open_page(path, 390)
    words = text(driver, 'figure[data-chart="swallowed"] .mark-text.role-mark')
    assert words == "tiger shark, Galeocer… → great white shark, ma…"


def test_numbers_beside_the_slopes_stay_within_the_chart(open_page: Open, tmp_path: Path) -> None:
    perfect = eq.evaluate([[9.0, 0, 0], [0, 9.0, 0], [0, 0, 9.0]], [0, 1, 2], eq.Prior.from_counts([900, 60, 5]))
    driver = open_page(eq.Report([perfect, perfect]).save(tmp_path / "a.html"))
    boxes = driver.execute_script(
        "return [...document.querySelectorAll('figure[data-chart=\"slopes\"] .mark-text.role-mark text')]"
        ".map(t => t.getBoundingClientRect())"
    )
    legend = driver.execute_script(
        "return document.querySelector('figure[data-chart=\"slopes\"] .role-legend').getBoundingClientRect().bottom"
    )
    assert len(boxes) == 6
    assert min(box["top"] for box in boxes) > legend
    tops = sorted({round(box["top"]) for box in boxes})
    assert len(tops) == 3
    assert min(tops[1] - tops[0], tops[2] - tops[1]) > 14


# -------------------------------------------------------------------- moving


def test_the_world_slider_changes_the_number_to_that_of_the_sweep(
    open_page: Open, page: Path, report: eq.Report
) -> None:
    driver = open_page(page)
    before, after = (model.sweep for model in report.models)
    assert before is not None
    assert after is not None
    assert shown(driver, "after-as-it-is") == f"{percent(after.accuracy()[20, 20])} %"
    start = marker(driver)
    slider = driver.find_element(By.ID, "alpha")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
    slider.send_keys(Keys.HOME)
    assert "alpha 1.00" in text(driver, "#alpha-value")
    assert "450 times" in text(driver, "#alpha-value")
    for place, keys in ((0, []), (3, [Keys.ARROW_RIGHT] * 3)):
        slider.send_keys(*keys or [""])
        assert shown(driver, "before-as-it-is") == f"{percent(before.accuracy()[place, 0])} %"
        assert shown(driver, "before-told") == f"{percent(before.accuracy()[place, place])} %"
        assert shown(driver, "after-as-it-is") == f"{percent(after.accuracy()[place, 20])} %"
        assert shown(driver, "after-both") == f"{percent(after.accuracy()[place, 20])} %"
    WebDriverWait(driver, PATIENCE).until(lambda _: marker(driver) < start - 50)


def test_the_tau_slider_changes_the_groups(open_page: Open, page: Path, report: eq.Report) -> None:
    driver = open_page(page)
    sweep = report.models[0].sweep
    assert sweep is not None
    slider = driver.find_element(By.ID, "tau")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
    for key, place in ((Keys.HOME, 0), (Keys.END, 40), (Keys.ARROW_LEFT, 39)):
        slider.send_keys(key)
        for group, accuracy in sweep.groups().items():
            assert shown(driver, f"before-{group}") == percent(accuracy[place])
        assert shown(driver, "before-both") == f"{percent(sweep.accuracy()[20, place])} %"


def test_the_pickers_change_every_number(open_page: Open, page: Path, report: eq.Report) -> None:
    driver = open_page(page)
    few = [model.runs[0].few or 0 for model in report.models]
    assert text(driver, '[data-headline="few"] .big') == f"{percent(few[1])}%"
    assert text(driver, '[data-headline="few"] .was').endswith(f"from {percent(few[0])}")
    Select(driver.find_element(By.ID, "pick-after")).select_by_index(0)
    WebDriverWait(driver, PATIENCE).until(lambda d: text(d, '[data-headline="few"] .big') == f"{percent(few[0])}%")
    assert text(driver, '[data-name="after"]') == MODELS[0]
    assert text(driver, '[data-headline="few"] .was').startswith("±0.0")
    assert driver.get_log("browser") == []


def test_light_and_dark_are_one_button_apart(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    paper = "return getComputedStyle(document.body).backgroundColor"
    point = "return getComputedStyle(document.querySelector('figure[data-chart=\"classes\"] .mark-symbol path')).fill"
    light = driver.execute_script(paper), driver.execute_script(point)
    driver.find_element(By.ID, "theme").click()
    dark = driver.execute_script(paper), driver.execute_script(point)
    assert light[0] != dark[0]
    assert light[1] != dark[1]  # the charts follow without being drawn anew
    driver.find_element(By.ID, "theme").click()
    assert (driver.execute_script(paper), driver.execute_script(point)) == light


# -------------------------------------------------------------------- hovering


def test_hovering_a_class_shows_its_name_number_and_interval(open_page: Open, page: Path, report: eq.Report) -> None:
    driver = open_page(page)
    figure = driver.find_element(By.CSS_SELECTOR, 'figure[data-chart="classes"][data-role="after"]')
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    points = figure.find_elements(By.CSS_SELECTOR, ".mark-symbol.role-mark path")
    assert len(points) == len(NAMES)
    for point, row in zip(points, report.models[1].runs[0].per_class, strict=True):
        ActionChains(driver).move_to_element(point).perform()
        words = WebDriverWait(driver, PATIENCE, 0.05).until(partial(tooltip, start=row.name[:60]))
        assert str(row.count) in words.split()
        assert f"{percent(row.accuracy or 0)} % of {row.items}" in words
        assert f"{percent(row.low)} to {percent(row.high)}" in words
    assert driver.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element img") == []


# -------------------------------------------------------------------- other pages


def test_the_frame_of_a_notebook_works(open_page: Open, driver: Driver, report: eq.Report, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    frame = f"<!doctype html><meta charset=utf-8><html data-ready=yes><body>{report._repr_html_()}</body></html>"
    path.write_text(frame, encoding="utf-8")
    open_page(path)
    driver.switch_to.frame(driver.find_element(By.TAG_NAME, "iframe"))
    WebDriverWait(driver, PATIENCE).until(ready)
    assert text(driver, "h1") == "<i>The</i> tail"
    driver.switch_to.default_content()


def test_the_page_of_a_training_set_opens_too(open_page: Open, tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text(json.dumps(dict(zip(NAMES, PRIOR.counts.tolist(), strict=True))))
    path = save_inspection(look(read_source(tmp_path / "counts.json")), tmp_path / "tail.html")
    driver = open_page(path, 390)
    assert driver.get_log("browser") == []
    names = [label.text for label in driver.find_elements(By.CSS_SELECTOR, f"{COUNTS} .role-axis-label text")]
    assert [name in names for name in (NAMES[0], NAMES[2], NAMES[3])] == [True, True, True]
    spoken = [bar.get_attribute("aria-label") for bar in driver.find_elements(By.CSS_SELECTOR, f"{COUNTS} {BARS}")]
    assert spoken == [f"{name}: {n} training items" for name, n in zip(NAMES, PRIOR.counts, strict=True)]
    assert "BalancedSoftmaxLoss" in text(driver, ".advice")
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(("width", "least"), [(390, 3), (1280, 9)])
def test_names_of_many_classes_do_not_overlap(open_page: Open, tmp_path: Path, width: int, least: int) -> None:
    counts = {f"bird no. {number}": 400 - number for number in range(200)}
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    driver = open_page(save_inspection(look(read_source(tmp_path / "counts.json")), tmp_path / "tail.html"), width)
    assert len(driver.find_elements(By.CSS_SELECTOR, f"{COUNTS} {BARS}")) == 200
    boxes = driver.execute_script(
        f"const found = [...document.querySelectorAll('{COUNTS} .role-axis-label text')];"
        "const seen = found.filter(label => label.getAttribute('opacity') !== '0' && /no/.test(label.textContent));"
        "return seen.map(label => [label.textContent, label.getBoundingClientRect()])"
    )
    assert [boxes[0][0], boxes[-1][0]] == ["bird no. 0", "bird no. 199"]
    assert len(boxes) >= least
    assert all(left["right"] < right["left"] for (_, left), (_, right) in pairwise(boxes))
    assert boxes[0][1]["left"] >= 0
    assert boxes[-1][1]["right"] <= width
