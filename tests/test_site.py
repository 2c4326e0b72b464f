"""The documentation site: every public name is explained, and what is broken does not build."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import equipoise as eq

ROOT = Path(__file__).parents[1]

if os.environ.get("CI") != "true":  # there it must be installed
    pytest.importorskip("mkdocstrings_handlers.python", reason="builds the site: pip install 'equipoise[docs]'")

import gallery  # noqa: E402
import site_docstrings  # noqa: E402
import site_pages  # noqa: E402
from helpers.browser import PATIENCE, requests, start  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(out)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def own_methods(thing: Any) -> dict[str, Any]:
    """The public functions and properties that a class defines itself."""
    found = {}
    for name, member in vars(thing).items():
        unbound = getattr(member, "__func__", member)
        if not name.startswith("_") and (inspect.isfunction(unbound) or isinstance(member, property)):
            found[name] = member
    return found


# -------------------------------------------------------------------- the reference


def test_every_public_name_is_in_the_reference_once() -> None:
    shown = [name for names, _ in site_docstrings.pages().values() for name in names]
    assert sorted(shown) == eq.__all__


def test_every_public_name_has_an_example() -> None:
    assert [name for name in eq.__all__ if "\n>>> " not in (inspect.getdoc(getattr(eq, name)) or "")] == []


def test_every_argument_of_a_public_name_is_described() -> None:
    lacking = []
    for name in eq.__all__:
        thing = getattr(eq, name)
        if dataclasses.is_dataclass(thing):
            described = site_docstrings.fields(inspect.getsource(thing))  # type: ignore[arg-type]
            arguments = [field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")]
            assert arguments, name
        else:
            arguments = list(inspect.signature(thing).parameters)
            listed, _ = site_docstrings.split(inspect.getdoc(thing) or "", arguments)
            described = site_docstrings.common(name) | listed
        lacking += [f"{name}({argument})" for argument in arguments if not described.get(argument)]
    assert lacking == []


def test_every_public_method_has_a_docstring() -> None:
    classes = {name: thing for name in eq.__all__ if inspect.isclass(thing := getattr(eq, name))}
    bare = [
        f"{name}.{method}"
        for name, thing in classes.items()
        for method, member in own_methods(thing).items()
        if method not in ("forward", "extra_repr") and not member.__doc__  # explained by the class, for torch
    ]
    assert len(classes) > 25
    assert bare == []


def test_the_argument_tables_describe_arguments_that_exist() -> None:
    for page, (names, shared) in site_docstrings.pages().items():
        things = [getattr(eq, name) for name in names]
        methods = [m for thing in things if inspect.isclass(thing) for m in vars(thing).values()]
        callables = [getattr(m, "__func__", m) for m in methods if inspect.isfunction(getattr(m, "__func__", m))]
        known = {argument for thing in (*things, *callables) for argument in inspect.signature(thing).parameters}
        assert shared.keys() - known == set(), page


def test_a_listed_argument_becomes_a_row_and_an_example_a_block() -> None:
    for module in (site_docstrings, site_pages):
        found = doctest.testmod(module)
        assert found.attempted > 1
        assert found.failed == 0


def test_the_gallery_has_every_figure() -> None:
    """Drawn by tools/gallery.py, from models that have something to show."""
    prior = eq.Prior.from_counts([500, 50, 5], total=600)
    target = torch.arange(60) % 3
    logits = torch.eye(3)[target] + torch.tensor([2.0, 1.0, 0.0])
    one = eq.Report({"a": eq.judge(logits, target, prior, logits_mean="train")})
    several = eq.MultilabelReport({"a": eq.judge_multilabel(logits, torch.eye(3)[target].int(), prior)})
    page = (ROOT / "docs" / "gallery.md").read_text()
    for folder, report in (("gallery", one), ("gallery-multilabel", several)):
        drawn = {path.stem for path in (ROOT / "docs" / "images" / folder).glob("*.png")}
        assert gallery.chosen(report.figures()).keys() <= drawn, "run: python tools/gallery.py"
        assert drawn == set(re.findall(rf"images/{folder}/([\w-]+)\.png", page))


# -------------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    result = build(ROOT, out)
    assert result.returncode == 0, result.stderr
    return out


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    everything = "\n".join(pages.values())
    assert [name for name in eq.__all__ if f'id="equipoise.{name}"' not in everything] == []
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?:[^>]*>', everything) == []
    assert "source/src/equipoise/losses/focal.py.html" in pages  # what docs/losses.md links to
    for name, text in pages.items():  # mkdocs does not look into HTML that a page has of its own
        images = re.findall(r'<img[^>]+src="([^":]+)"', text)
        assert [image for image in images if not (site / name).parent.joinpath(image).exists()] == [], name
    assert "equipoise inspect" in pages["reference/commands.html"]


def test_links_and_search_work_in_a_site_opened_from_disk(site: Path) -> None:
    driver = start()
    try:
        driver.set_window_size(1280, 900)  # wide: with tabs and a search field
        driver.get((site / "index.html").as_uri())
        driver.find_element(By.LINK_TEXT, "Tutorial").click()
        WebDriverWait(driver, PATIENCE).until(lambda page: "Tutorial" in page.title)
        driver.get((site / "howto" / "known-prior.html").as_uri())
        driver.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys("adjust_logits")
        first = (By.CSS_SELECTOR, 'a.md-search-result__link[href*="#equipoise.adjust_logits"]')
        WebDriverWait(driver, PATIENCE).until(lambda page: page.find_elements(*first))
        assert [url for url in requests(driver) if not url.startswith(("file:", "data:", "about:"))] == []
    finally:
        driver.quit()


def test_a_page_that_the_menu_does_not_name_is_listed_under_more(tmp_path: Path) -> None:
    for name in ("idea.md", "howto/new.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    config = SimpleNamespace(docs_dir=str(tmp_path), nav=[{"Explanation": [{"The idea": "idea.md"}]}])
    site_pages.on_config(config)  # type: ignore[arg-type]
    assert config.nav == [{"Explanation": [{"The idea": "idea.md"}]}, {"More": ["howto/new.md"]}]


def test_a_broken_link_and_a_name_without_a_page_stop_the_build(tmp_path: Path) -> None:
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for name in ("src", "results", "examples", "benchmarks", *(path.name for path in ROOT.glob("[A-Z]*"))):
        (tmp_path / name).symlink_to(ROOT / name)
    with open(tmp_path / "docs" / "idea.md", "a") as page:
        page.write("\n[nowhere](nowhere.md) [no such part](prior.md#nowhere)\n")
    reference = tmp_path / "docs" / "reference" / "losses.md"
    reference.write_text(reference.read_text().replace("::: equipoise.LDAMLoss\n", ""))
    result = build(tmp_path, tmp_path / "site")
    assert result.returncode != 0
    assert "nowhere.md" in result.stderr
    assert "prior.md#nowhere" in result.stderr
    assert "equipoise.LDAMLoss is public and not shown" in result.stderr
    assert len(re.findall("^WARNING", result.stderr, re.MULTILINE)) == 3, result.stderr
