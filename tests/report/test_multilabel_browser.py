"""The page for several labels per item in a real browser: opened without errors or network, moved, and hovered."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.browser import PATIENCE, Open, requests, shown, text, tooltip
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import equipoise as eq

NAMES = ["cat", "<img src=x onerror=alert(1)>", "猫 🦉 жар-птица", "x" * 300, "{{data}} ${1} </script>"]
MODELS = ["<b>BCE</b>", "Balanced & Sigmoid"]
PRIOR = eq.Prior.from_counts([900, 300, 60, 9, 4], total=1000, class_names=NAMES)


@pytest.fixture(scope="module")
def report() -> eq.MultilabelReport:
    generator = torch.Generator().manual_seed(0)
    rate = torch.tensor([0.6, 0.4, 0.3, 0.1, 0.05])
    target = (torch.rand(400, 5, generator=generator) < rate).long()
    logits = torch.randn(400, 5, generator=generator) + 3 * target - 1.5
    logits[:, 2] -= 3 * target[:, 2] * target[:, 0]  # missed where the first is present
    plain = logits + torch.logit(rate)
    results = [eq.judge_multilabel(z, target, PRIOR) for z in (plain, logits)]
    return eq.MultilabelReport(dict(zip(MODELS, results, strict=True)), title="<i>Tags</i>", resamples=40)


@pytest.fixture(scope="module")
def page(report: eq.MultilabelReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.save(tmp_path_factory.mktemp("report") / "report.html")


def percent(value: float | None) -> str:
    return f"{100 * (value or 0):.1f}"


def test_it_opens_from_disk_without_a_message_or_a_request(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    assert driver.get_log("browser") == []
    assert [url for url in requests(driver) if not url.startswith("data:")] == [page.as_uri()]
    drawn = driver.execute_script(
        "return [...document.querySelectorAll('figure[data-chart]')].map(f => f.querySelector('svg path') !== null)"
    )
    assert len(drawn) == 15
    assert all(drawn)
    assert text(driver, "h1") == "<i>Tags</i>"
    assert driver.execute_script("return document.querySelectorAll('img, main b b, h1 i').length") == 0


@pytest.mark.parametrize("width", [1200, 390])
def test_nothing_is_wider_than_the_screen(open_page: Open, page: Path, width: int) -> None:
    driver = open_page(page, width)
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    wide = driver.execute_script(
        "return [...document.querySelectorAll('.chart svg')].filter(s => s.getBoundingClientRect().right > innerWidth)"
    )
    assert wide == []


def test_the_cards_show_the_scores_and_follow_the_pickers(
    open_page: Open, page: Path, report: eq.MultilabelReport
) -> None:
    driver = open_page(page)
    before, after = (model.evaluation.scores() for model in report.models)
    for key in ("map", "map_tail", "micro_ap", "f1_macro", "ece"):
        assert text(driver, f'[data-headline="{key}"] .big') == f"{percent(after[key])}%"
        assert text(driver, f'[data-headline="{key}"] .was').endswith(f"from {percent(before[key])}")
    assert after["f1_macro"] > before["f1_macro"]
    Select(driver.find_element(By.ID, "pick-after")).select_by_index(0)
    expected = f"{percent(before['f1_macro'])}%"
    WebDriverWait(driver, PATIENCE).until(lambda d: text(d, '[data-headline="f1_macro"] .big') == expected)
    assert driver.get_log("browser") == []


def test_the_slider_moves_the_threshold_of_all_classes(
    open_page: Open, page: Path, report: eq.MultilabelReport
) -> None:
    driver = open_page(page)
    slider = driver.find_element(By.ID, "odds")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
    for keys, place, words in (
        ([""], 20, "50 %"),
        ([Keys.HOME], 0, "0.0335 %"),
        ([Keys.ARROW_RIGHT] * 15, 15, "11.9 %"),
    ):
        slider.send_keys(*keys)
        assert text(driver, "#odds-value") == f"threshold {words}"
        for role, model in zip(("before", "after"), report.models, strict=True):
            scores = model.judged.f1_at()[:, place]
            assert shown(driver, f"{role}-all") == percent(scores.mean())
            assert shown(driver, f"{role}-tail") == percent(scores[3:].mean())


def test_hovering_shows_a_class_and_a_missed_pair(open_page: Open, page: Path, report: eq.MultilabelReport) -> None:
    driver = open_page(page)
    for chart, field in (("precision", "average_precision"), ("f1", "f1")):
        figure = driver.find_element(By.CSS_SELECTOR, f'figure[data-chart="{chart}"][data-role="after"]')
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
        points = figure.find_elements(By.CSS_SELECTOR, ".mark-symbol.role-mark path")
        rows = report.models[1].evaluation.per_class
        assert len(points) == len(rows)
        ActionChains(driver).move_to_element(points[1]).perform()
        words = WebDriverWait(driver, PATIENCE, 0.05).until(partial(tooltip, start=NAMES[1]))
        assert f"{percent(getattr(rows[1], field))} %, {rows[1].positives} positives" in words
    figure = driver.find_element(By.CSS_SELECTOR, 'figure[data-chart="missed"][data-role="after"]')
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    pair = report.models[1].judged.misses()[0]
    assert (pair.index, pair.other) == (2, 0)
    name = figure.find_elements(By.CSS_SELECTOR, ".mark-text.role-mark text")[0]
    assert name.text.removeprefix("\u200e") == f"{NAMES[2]} beside {NAMES[0]}"
    ActionChains(driver).move_to_element(name).perform()
    words = WebDriverWait(driver, PATIENCE, 0.05).until(partial(tooltip, start=f"{pair.times} of {pair.items}"))
    assert percent(pair.elsewhere) in words
