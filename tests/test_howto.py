"""The pages on serving: their tables are those of the record, and each question leads to the others."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
QUESTIONS = ["both-long-tailed", "equal-classes", "known-prior", "multilabel-scores", "unknown-prior"]


def test_there_is_a_page_for_each_question() -> None:
    assert [page.stem for page in PAGES] == QUESTIONS


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_links_to_the_others_and_readme_and_serving_link_to_it(page: Path) -> None:
    links = set(re.findall(r"\]\(([^)#]+)\)", page.read_text()))
    assert {f"{name}.md" for name in QUESTIONS if name != page.stem} | {"../serving.md"} <= links
    assert f"](docs/howto/{page.name})" in (ROOT / "README.md").read_text()
    assert f"](howto/{page.name})" in (ROOT / "docs" / "serving.md").read_text()


def test_the_commands_on_multilabel_scores_give_what_its_code_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "howto" / "multilabel-scores.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    (commands,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for line in commands.splitlines():
        result = CliRunner().invoke(app, line.split()[1:])
        assert result.exit_code == 0, result.output
        assert ("The labels are closer to --source" in result.output) == ("adapt" in line.split())
    adapted = np.load("adapted.npz")["probabilities"]
    np.testing.assert_allclose(adapted, names["adjusted"].sigmoid(), rtol=1e-5)
    as_json = CliRunner().invoke(app, [*commands.splitlines()[1].split()[1:], "--json"])
    told = json.loads(as_json.stdout)["models"][0]["scores"]
    judged = eq.evaluate_multilabel(names["adjusted"], names["labels"], names["training"], threshold=names["best_f1"])
    for score in ("f1_macro", "micro_ap"):
        assert told[score] == pytest.approx(judged.scores()[score], abs=1e-6)


@pytest.mark.parametrize("world", ["equal", "reversed", "training"])
def test_the_table_of_a_world_is_that_of_its_record(world: str) -> None:
    marker = rf"<!-- measured: python benchmarks/serving\.py --table (\S+) {world} -->\n(.*?)<!-- end -->"
    found = [match for page in PAGES for match in re.findall(marker, page.read_text(), re.DOTALL)]
    assert len(found) == 1
    path, shown = found[0]
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "serving.py"))
    assert shown == benchmark["table"](ROOT / path, world) + "\n"


def test_the_record_says_what_the_pages_say() -> None:
    """Served for its world, a model is better there; the pages may say so as long as the record does."""
    runs = json.loads((ROOT / "results" / "benchmarks" / "serving-digits.json").read_text())["runs"]

    def mean(loss: str, world: str, served: bool, what: str) -> float:
        key = (loss, world, served)
        values = [run[what] for run in runs if (run["loss"], run["world"], run["served"]) == key]
        return sum(values) / len(values)

    served = {(run["loss"], run["world"]) for run in runs if run["served"]}
    assert len(served) == 4
    for loss, world in served:
        assert mean(loss, world, True, "log_loss") < mean(loss, world, False, "log_loss")
        assert mean(loss, world, True, "accuracy") > mean(loss, world, False, "accuracy")
    assert mean("balanced", "training", False, "accuracy") < mean("plain", "training", False, "accuracy")
    assert 0 < mean("balanced", "equal", False, "accuracy") - mean("plain", "equal", True, "accuracy") < 0.012
    assert abs(mean("balanced", "training", True, "accuracy") - mean("plain", "training", False, "accuracy")) < 0.006
