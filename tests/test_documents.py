"""The code of the README and the documents runs, and their links lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from badges import badges

from equipoise.cli.table import EXPERIMENTS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]


def code(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


# a script per stack: tests/integrations/test_scripts.py; with its commands: tests/test_tutorial.py
RUN_APART = {"integrations.md", "tutorial.md"}


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if code(p) and p.name not in RUN_APART], ids=lambda p: p.name)
def test_the_python_of_a_document_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    namespace: dict[str, Any] = {}
    for number, block in enumerate(code(path)):
        exec(compile(block, f"{path.name}, block {number + 1}", "exec"), namespace)
    assert namespace["eq"].__name__ == "equipoise"


def test_the_readme_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """No item is within 0.03 of a tie between two classes, so that no rounding changes a number."""
    readme = (ROOT / "README.md").read_text()
    exec(code(ROOT / "README.md")[0], {})
    assert f"```\n\n```text\n{capsys.readouterr().out}```\n" in readme
    assert "eq.BalancedSoftmaxLoss(prior)):  # 2. swap the loss" in readme


def test_the_guide_to_the_results_has_every_folder_and_every_table() -> None:
    text = (ROOT / "results" / "README.md").read_text()
    guide, rest = text.partition("\n## ")[::2]
    folders = {path.name for path in (ROOT / "results").iterdir() if path.is_dir()}
    rows = "".join(re.findall(r"^\| .*\n", guide, re.MULTILINE))
    assert folders - set(re.findall(r"`([\w-]+)/", rows)) == set()
    named = re.search(r"`equipoise table (\S+) --write`, and the same with (.*?);", guide, re.DOTALL)
    assert named is not None
    rendered = set(re.findall(r"<!-- rendered: (\S+) -->", rest)) & set(EXPERIMENTS)
    assert {named[1], *re.findall(r"`(\S+)`", named[2])} == rendered
    assert set(EXPERIMENTS) - rendered == {"record"}


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "results" / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_the_badges_say_what_pyproject_says() -> None:
    for name, content in badges().items():
        assert (ROOT / "docs" / "images" / name).read_text() == content
        assert f"](docs/images/{name})" in (ROOT / "README.md").read_text()
    assert "3.11 | 3.12 | 3.13" in badges()["badge-python.svg"]


MEASURED = [
    ("losses.py", "overhead.md"),
    ("report.py", "report.md"),
    ("intervals.py", "lab-notes.md"),
    ("sklearn_imbalanced.py", "sklearn.md"),
    ("multilabel.py", "multilabel.md"),
    ("train_throughput.py", "scale.md"),
    ("scale.py", "scale.md"),
]


@pytest.mark.parametrize(("script", "document"), MEASURED)
def test_a_measured_table_is_that_of_its_record(script: str, document: str) -> None:
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / script))
    text = (ROOT / "docs" / document).read_text()
    found = re.findall(
        rf"<!-- measured: python benchmarks/{script} --table (\S+) -->\n(.*?)\n<!-- end -->", text, re.DOTALL
    )
    assert found
    for record, shown in found:
        assert shown == benchmark["table"](ROOT / record)


def test_several_labels_are_judged_no_slower_and_in_less_memory_than_by_torchmetrics() -> None:
    record = json.loads((ROOT / "results" / "benchmarks" / "multilabel-cpu.json").read_text())
    assert [row["kind"] for row in record["runs"]].count("kept") == 2
    for row in record["runs"]:
        ours, theirs = row["equipoise"], row["torchmetrics"]
        assert ours["cpu_seconds"] <= theirs["cpu_seconds"]
        assert ours["memory_mb"] <= theirs["memory_mb"]
        if row["kind"] == "kept":  # torchmetrics sums in single precision
            assert ours["scores"] == pytest.approx(theirs["scores"], rel=1e-5)


def test_a_million_items_of_a_thousand_labels_were_judged_in_a_fraction_of_their_size() -> None:
    record = json.loads((ROOT / "results" / "benchmarks" / "multilabel-million-cpu.json").read_text())
    (row,) = record["runs"]
    assert (row["rows"], row["classes"], row["kind"]) == (1_000_000, 1_000, "streamed")
    size = row["rows"] * row["classes"] * (4 + 8) / 1e6  # MB of logits and labels
    assert row["equipoise"]["memory_mb"] < size / 8
    assert max(row["equipoise"]["errors"].values()) < 0.005


def test_the_report_of_a_million_predictions_stays_within_its_limits() -> None:
    limits = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["LIMITS"]
    record = json.loads((ROOT / "results" / "benchmarks" / "report-cpu.json").read_text())
    assert (record["rows"], record["classes"], record["machine"]["threads"]) == (1_000_000, 1203, 2)
    assert sorted(record["runs"]) == [".npz", ".parquet"]
    over = [(kind, key) for kind, run in record["runs"].items() for key, most in limits.items() if run[key] > most]
    assert over == []
