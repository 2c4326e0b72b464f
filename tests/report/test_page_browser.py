"""The parts of the report that a reader works with, in a real browser: by mouse, by keyboard, narrow, and as spoken."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.browser import PATIENCE, Driver, Open, text
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import equipoise as eq
from equipoise.metrics.evaluation import percent
from equipoise.report.changes import signed

K = 60
NAMES = [f"bird {i:02}" for i in range(K - 2)] + ["=cmd|' /C calc'!A0", "<img src=x onerror=alert(1)>"]
PRIOR = eq.Prior.from_counts((800 * 400.0 ** (-np.arange(K) / (K - 1))).astype(int), class_names=NAMES)
TARGET = torch.arange(600) % K


def predictions() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(600, K, generator=generator) + 3 * torch.nn.functional.one_hot(TARGET, K)
    return logits + PRIOR.log(), logits


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> eq.Report:
    photo = tmp_path_factory.mktemp("photos") / "1.png"
    Image.new("RGB", (40, 20), "blue").save(photo)
    judged = [eq.judge(outputs, TARGET, PRIOR, logits_mean="train") for outputs in predictions()]
    return eq.Report({"Plain": judged[0], "Other": judged[1]}, paths=[str(photo)] * 600)


@pytest.fixture(scope="module")
def page(report: eq.Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.save(tmp_path_factory.mktemp("page") / "report.html")


def rows(driver: Driver) -> list[list[str]]:
    """The first lines of the cells of the table of classes: names and numbers."""
    found: list[list[str]] = driver.execute_script(
        "return [...document.querySelectorAll('#class-rows tr')].map(tr => [...tr.children].map(td => "
        "td.className === 'name' ? td.children[1].textContent : td.children[0].textContent))"
    )
    return found


def heads(driver: Driver) -> dict[str, Any]:
    return {head.text.split("\n")[0]: head for head in driver.find_elements(By.CSS_SELECTOR, "#class-heads button")}


# -------------------------------------------------------------------- the conclusion


def test_the_conclusion_comes_first_and_follows_the_choice_of_models(
    open_page: Open, page: Path, report: eq.Report
) -> None:
    driver = open_page(page)
    assert text(driver, "#conclusion-words") == report.conclusion()
    assert text(driver, "#conclusion-how").startswith("Intervals of changes are paired")
    first = driver.execute_script("return document.querySelector('main section').id")
    assert first == "conclusion"
    change = text(driver, '[data-headline="few"] .change')
    Select(driver.find_element(By.ID, "pick-before")).select_by_index(1)
    Select(driver.find_element(By.ID, "pick-after")).select_by_index(0)
    WebDriverWait(driver, PATIENCE).until(lambda d: text(d, "#conclusion-words").startswith("From Other to Plain"))
    turned = text(driver, '[data-headline="few"] .change')
    low, high = change.removeprefix("95 %: ").split(" to ")
    swap = str.maketrans("+−", "−+")
    assert turned == f"95 %: {high.translate(swap)} to {low.translate(swap)}"


def test_a_number_that_did_not_change_is_called_the_same_or_uncertain(open_page: Open, tmp_path: Path) -> None:
    """As many right answers on other items may be a change either way; an interval of nothing but 0 is none."""
    answers = torch.nn.functional.one_hot(TARGET, K).float()
    moved = answers.clone()
    moved[K : 2 * K], answers[:K] = answers[K : 2 * K].roll(1, 0), answers[:K].roll(1, 0)
    single = eq.Report({name: eq.judge(found, TARGET, PRIOR) for name, found in (("A", answers), ("B", moved))})
    several = eq.judge_multilabel(predictions()[0], torch.nn.functional.one_hot(TARGET, K), PRIOR)
    made: dict[str, eq.Report | eq.MultilabelReport] = {
        "may have changed either way": single,
        "the same": eq.MultilabelReport({"A": several, "B": several}, resamples=20),
    }
    for words, report in made.items():
        driver = open_page(report.save(tmp_path / "page.html"))
        found = [card.text for card in driver.find_elements(By.CSS_SELECTOR, ".card .chance")]
        assert len(found) > 3
        assert set(found) == {words}
        assert "chance" not in report.conclusion()
        assert re.search(rf"the mean (accuracy per class|average precision) (is )?{words}", report.conclusion())


def test_every_link_of_the_contents_leads_somewhere(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    links = driver.execute_script("return [...document.querySelectorAll('.contents a')].map(a => a.hash.slice(1))")
    there = driver.execute_script("return [...document.querySelectorAll('main section')].map(s => s.id)")
    assert ["conclusion", *links] == there
    assert len(set(links)) == len(links) == 11
    twice = "const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.length - new Set(ids).size"
    assert driver.execute_script(twice) == 0


def test_the_same_number_is_the_same_text_everywhere(open_page: Open, tmp_path: Path) -> None:
    """333 of 400 is 83.25 %, exactly between two digits: cards, tables, charts and readouts show the same one."""
    prior = eq.Prior.from_counts([900, 5])
    target = np.repeat([0, 1], 200)
    right = np.r_[np.ones(160), np.zeros(40), np.ones(173), np.zeros(27)].astype(bool)
    logits = 4.0 * np.eye(2)[np.where(right, target, 1 - target)]
    made = eq.Report({"A": eq.judge(logits, target, prior, logits_mean="uniform")})
    driver = open_page(made.save(tmp_path / "a.html"))
    assert text(driver, '[data-headline="top1"] .big') == "83.3%"
    assert text(driver, '[data-headline="balanced"] .big') == "83.3%"
    cells = [cell.text for cell in driver.find_elements(By.CSS_SELECTOR, "#numbers td span")]
    assert cells[:2] == ["83.3", "83.3"]
    assert text(driver, '[data-read="after-as-it-is"]') == "83.3 %"
    assert text(driver, '[data-read="after-all"]') == "83.3"
    assert [row[3] for row in rows(driver)] == ["80.0", "86.5"]
    shown = driver.execute_script(
        "return [...document.querySelectorAll('figure[data-chart=\"slopes\"] .mark-text.role-mark text')]"
        ".map(t => t.textContent)"
    )
    assert sorted(shown) == ["80.0", "86.5"]
    assert "is right on 83.3 % of the test items" in text(driver, "#conclusion-words")


# -------------------------------------------------------------------- the table of classes


def test_the_table_shows_the_numbers_of_each_class(open_page: Open, page: Path, report: eq.Report) -> None:
    driver = open_page(page)
    shown = rows(driver)
    assert len(shown) == 25
    before, after = (model.runs[0].per_class for model in report.models)
    for place, row in enumerate(shown):
        was, now = before[place].accuracy or 0.0, after[place].accuracy or 0.0
        assert row[:3] == [NAMES[place], f"{PRIOR.counts[place]:,}", "10"]
        assert row[3:6] == [percent(was), percent(now), signed(now - was)]
    assert text(driver, "#table-count") == "25 of 60 classes shown"
    driver.find_element(By.ID, "table-more").click()
    assert len(rows(driver)) == 60
    assert driver.find_elements(By.CSS_SELECTOR, "#class-table img") == []
    assert rows(driver)[-1][0] == NAMES[-1]


def test_enter_on_a_heading_sorts_and_again_turns_the_order(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    driver.find_element(By.ID, "table-more").click()
    for title, column in (("F1", 7), ("change", 5), ("class", 0)):
        button = heads(driver)[title]
        button.send_keys(Keys.ENTER)
        head = button.find_element(By.XPATH, "..")
        first = head.get_attribute("aria-sort")
        assert first == ("ascending" if title == "class" else "descending")
        found = [row[column].replace("−", "-").replace("±", "") for row in rows(driver)]
        values: list[Any] = found if title == "class" else [float(value) for value in found if value != "–"]
        assert values == sorted(
            values, reverse=first == "descending", key=lambda v: v.lower() if title == "class" else v
        )
        button.send_keys(Keys.ENTER)
        assert head.get_attribute("aria-sort") != first
        sorted_by = driver.execute_script(
            "return [...document.querySelectorAll('#class-heads th')].filter(h => h.ariaSort !== 'none').length"
        )
        assert sorted_by == 1


def test_the_table_is_searched_and_narrowed_to_a_group(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    driver.find_element(By.ID, "table-find").send_keys("BIRD 1")
    assert [row[0] for row in rows(driver)] == [f"bird {i}" for i in range(10, 20)]
    driver.find_element(By.ID, "table-find").clear()
    driver.find_element(By.ID, "table-find").send_keys("no such bird")
    assert text(driver, "#table-count") == "0 classes"
    driver.execute_script(
        "const f = document.getElementById('table-find'); f.value = ''; f.dispatchEvent(new Event('input'))"
    )
    Select(driver.find_element(By.ID, "table-group")).select_by_value("few")
    driver.find_element(By.ID, "table-more").click() if driver.find_element(
        By.ID, "table-more"
    ).is_displayed() else None
    assert {row[0] for row in rows(driver)} == {NAMES[j] for j in PRIOR.groups()["few"]}


def test_the_csv_holds_every_class_and_no_formula(open_page: Open, page: Path, report: eq.Report) -> None:
    driver = open_page(page)
    lines = list(csv.DictReader(io.StringIO(driver.execute_script("return equipoise.csv()"))))
    assert len(lines) == K
    assert [line["class"] for line in lines] == [*NAMES[:-2], f"'{NAMES[-2]}", NAMES[-1]]
    for line, row in zip(lines, report.models[1].runs[0].per_class, strict=True):
        assert line["Other: recall, %"] == percent(row.accuracy)
        assert (line["Other: recall, low"], line["Other: recall, high"]) == (percent(row.low), percent(row.high))
        assert (line["training items"], line["test items"]) == (str(row.count), str(row.items))
    assert float(lines[0]["change, low"]) <= float(lines[0]["change, %"]) <= float(lines[0]["change, high"])


@pytest.fixture(scope="module")
def labels_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    target = (random.random((200, 30)) < 0.3).astype(int)
    prior = eq.Prior.from_counts(50 * np.arange(30, 0, -1), total=10_000, class_names=[f"tag {i}" for i in range(30)])
    judged = [eq.judge_multilabel(random.normal(size=(200, 30)) + k * target, target, prior) for k in (1, 3)]
    report = eq.MultilabelReport({"Cross-entropy": judged[0], "Balanced Sigmoid": judged[1]}, resamples=20)
    return report.save(tmp_path_factory.mktemp("labels") / "report.html")


@pytest.mark.parametrize("width", [1400, 768, 400])
@pytest.mark.parametrize("kind", ["one label", "several"])
def test_no_column_vanishes_however_narrow_the_window(
    open_page: Open, page: Path, labels_page: Path, width: int, kind: str
) -> None:
    driver = open_page(page if kind == "one label" else labels_page, width)
    script = """
        return [...document.querySelectorAll(arguments[0])].map(cell => {
          const box = cell.getBoundingClientRect(), room = cell.closest('.scroll').getBoundingClientRect();
          return [box.width > 8 && box.left >= room.left - 0.5 && box.right <= room.right + 0.5, cell.dataset.label];
        })"""
    number = 8 if kind == "one label" else 9
    for selector in ("#class-rows tr:first-child td", "#numbers tbody tr:first-child > *"):
        cells = driver.execute_script(script, selector)
        assert len(cells) == number
        assert all(inside for inside, _ in cells), (selector, cells)
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    named = driver.execute_script(
        "return [getComputedStyle(document.querySelector('#class-table thead')).display !== 'none',"
        "getComputedStyle(document.querySelector('#class-rows td:nth-child(2)'), '::before').content,"
        "document.getElementById('table-sort').offsetWidth > 0]"
    )
    assert named == ([False, '"training items"', True] if width == 400 else [True, "none", False])


def test_a_long_heading_is_broken_rather_than_printed_over_the_number_beside_it(open_page: Open, page: Path) -> None:
    driver = open_page(page, 400)
    script = """
        const cell = document.querySelector('#class-rows td:nth-child(2)'), was = cell.offsetHeight;
        cell.dataset.label = 'x'.repeat(80);
        return [was, cell.offsetHeight, document.documentElement.scrollWidth]"""
    was, broken, width = driver.execute_script(script)
    assert broken > 2 * was
    assert width == 400


# -------------------------------------------------------------------- the confusion map


def drawn_colours(driver: Driver) -> int:
    return int(
        driver.execute_script(
            "const c = document.querySelector('[data-heat=\"after\"] canvas');"
            "const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const seen = new Set();"
            "for (let i = 0; i < p.length; i += 4) seen.add(p[i] << 16 | p[i + 1] << 8 | p[i + 2]); return seen.size"
        )
    )


def test_the_map_is_read_and_zoomed_by_keys(open_page: Open, page: Path, report: eq.Report) -> None:
    driver = open_page(page)
    canvas = driver.find_element(By.CSS_SELECTOR, '[data-heat="after"] canvas')
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", canvas)
    assert drawn_colours(driver) > 20
    assert "classes 1 to 60 of 60" in (canvas.get_attribute("aria-label") or "")
    matrix = report.models[1].confusions
    assert matrix is not None
    share = matrix.dense() / matrix.dense().sum(1, keepdims=True)
    canvas.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    said = text(driver, '[data-heat="after"] output')
    assert said == f"bird 01 is recognised in {percent(float(share[1, 1]))} % of its test items"
    canvas.send_keys(Keys.ARROW_RIGHT)
    said = text(driver, '[data-heat="after"] output')
    assert said.startswith("bird 01 is mistaken for bird 02 in ")
    canvas.send_keys("+", "+")
    assert "classes 1 to 15 of 60" in (canvas.get_attribute("aria-label") or "")
    canvas.send_keys("-")
    assert "to 30 of 60" in (canvas.get_attribute("aria-label") or "")
    canvas.send_keys(Keys.ESCAPE)
    assert "classes 1 to 60 of 60" in (canvas.get_attribute("aria-label") or "")


def test_the_map_is_zoomed_by_dragging_a_square_and_by_buttons(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    canvas = driver.find_element(By.CSS_SELECTOR, '[data-heat="after"] canvas')
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    ActionChains(driver).move_to_element(canvas).click_and_hold().move_by_offset(100, 100).release().perform()
    label = canvas.get_attribute("aria-label") or ""
    assert "of 60" in label
    assert "classes 1 to 60" not in label
    driver.find_element(By.CSS_SELECTOR, '[data-heat="after"] [data-zoom="all"]').click()
    assert "classes 1 to 60 of 60" in (canvas.get_attribute("aria-label") or "")
    driver.find_element(By.CSS_SELECTOR, '[data-heat="after"] [data-zoom="in"]').click()
    assert "to 45 of 60" in (canvas.get_attribute("aria-label") or "")
    assert driver.get_log("browser") == []


# -------------------------------------------------------------------- as it is spoken, and by keyboard


def accessible(driver: Driver) -> list[tuple[str, str]]:
    """Role and name of everything that a screen reader is told of."""
    driver.execute_cdp_cmd("Accessibility.enable", {})
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [
        (str(node["role"]["value"]), str(node.get("name", {}).get("value", "")))
        for node in nodes
        if not node["ignored"] and "role" in node
    ]


@pytest.mark.parametrize("width", [1400, 400])
def test_everything_that_can_be_used_or_seen_has_a_name(open_page: Open, page: Path, width: int) -> None:
    found = accessible(open_page(page, width))
    spoken = {"button", "link", "searchbox", "combobox", "slider", "image", "table", "navigation", "graphics-document"}
    assert {role for role, _ in found} >= spoken
    assert [(role, name) for role, name in found if role in spoken and not name.strip()] == []
    assert [name for role, name in found if role == "table"] == ["Models", "Classes"]
    assert sum(role == "row" for role, _ in found) >= 25 + 2
    assert sum(role == "cell" for role, _ in found) >= 25 * 8


def test_alternative_texts_tell_class_and_accuracy(open_page: Open, page: Path, report: eq.Report) -> None:
    driver = open_page(page)
    spoken = driver.execute_script(
        'const figure = document.querySelector(\'[data-chart="classes"][data-role="after"]\');'
        "const points = [...figure.querySelectorAll('.mark-symbol.role-mark path')];"
        "return points.map(path => path.getAttribute('aria-label'))"
    )
    expected = [
        f"{row.name}: accuracy {percent(row.accuracy)} %, {row.count:,} training items"
        for row in report.models[1].runs[0].per_class
    ]
    assert sorted(spoken) == sorted(expected)
    pictures = driver.find_elements(By.CSS_SELECTOR, ".picture img")
    assert pictures
    sources = [str(picture.get_attribute("src")) for picture in pictures]
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert all(picture.size["width"] == 112 for picture in pictures)
    row = report.models[0].runs[0].per_class
    for picture in pictures[:3]:
        words = str(picture.get_attribute("alt"))
        name = words.partition(", mistaken for ")[0]
        assert words.endswith(f"accuracy of {name}: {percent(row[NAMES.index(name)].accuracy)} %")
    assert driver.get_log("browser") == []  # the policy lets them be shown


def test_the_keyboard_reaches_everything_in_order_and_shows_where_it_is(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    reached: list[str] = []
    for _ in range(60):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        name, width = driver.execute_script(
            "const e = document.activeElement; const style = getComputedStyle(e);"
            "const outline = e === document.body ? 'body' : style.outlineStyle + style.outlineWidth;"
            "return [e.id || e.tagName + (e.hash || e.dataset.zoom || ''), outline]"
        )
        if width == "body":
            break
        assert width == "solid2px", name
        reached.append(name)
    order = ["theme", "pick-before", "A#numbers", "A#training", "table-find", "table-csv", "table-more", "alpha", "tau"]
    assert [name for name in reached if name in order] == order
    assert reached.count("CANVAS") == 2
    assert sum(name == "BUTTON" for name in reached) == 8  # the headings of the table


def test_printed_it_is_light_without_its_controls_and_with_its_table(open_page: Open, page: Path) -> None:
    driver = open_page(page)
    driver.find_element(By.ID, "theme").click()
    theme = "return document.documentElement.dataset.theme || ''"
    assert driver.execute_script(theme) == "dark"
    assert len(driver.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 100_000
    assert driver.execute_script(theme) == "dark"
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert driver.execute_script(theme) == "light"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        hidden = "return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetWidth > 0).length"
        assert driver.execute_script(hidden, ".picker, .contents, .tools, .zoom, input[type=range], #theme") == 0
        assert driver.execute_script(hidden, "#class-heads button") == 8
        assert driver.execute_script(hidden, "#class-rows tr") == 25
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script(theme) == "dark"
