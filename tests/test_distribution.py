"""What is published: the wheel holds the package and works alone, the sdist has all that the tests need."""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.image_folders import NETWORK, write_splits

import equipoise as eq

ROOT = Path(__file__).parents[1]

if os.environ.get("CI") != "true":  # there it must be installed
    pytest.importorskip("hatchling", reason="builds the package: pip install hatchling")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> object:
    from hatchling import build

    monkeypatch.chdir(ROOT)  # where a build backend is called (PEP 517)
    return build


def test_the_wheel_is_the_package_without_what_rewrites_our_documents(backend: object, tmp_path: Path) -> None:
    build: Callable[[str], str] = backend.build_wheel  # type: ignore[attr-defined]
    with zipfile.ZipFile(tmp_path / build(str(tmp_path))) as wheel:
        content = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = {path.relative_to(source) for path in (source / "equipoise").rglob("*") if path.is_file()}
    ours = {path.as_posix() for path in files if "__pycache__" not in path.parts}
    left_out = {name for name in ours if name.startswith("equipoise/experiments/documents/")}
    assert content.keys() == ours - left_out
    assert {"equipoise/py.typed", "equipoise/report/page_files/page.html"} <= content.keys()
    # what rewrites a document of this repository is among what is left out
    documents = re.compile(rb"def documents\b|<!-- rendered|results/README\.md|docs/lab-notes\.md|docs/images/")
    assert sum(bool(documents.search((source / name).read_bytes())) for name in left_out) >= 9
    assert [name for name, text in content.items() if documents.search(text)] == []


def test_the_sdist_has_every_tracked_file(backend: object, tmp_path: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():  # below another repository git would list nothing
        pytest.skip("not a git checkout: nothing says which files are tracked")
    build: Callable[[str], str] = backend.build_sdist  # type: ignore[attr-defined]
    with tarfile.open(tmp_path / build(str(tmp_path))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert sorted(tracked - names) == []


# -------------------------------------------------------------------- the wheel, installed where the checkout is not


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fresh environment: the wheel, installed by pip, and the libraries that are installed here."""
    root = tmp_path_factory.mktemp("installed")
    built = subprocess.run(
        [sys.executable, "-c", f"from hatchling.build import build_wheel; print(build_wheel({str(root)!r}))"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    command += ["--disable-pip-version-check", str(root / built.stdout.split()[-1])]
    subprocess.run(command, check=True, env=outside())
    packages = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], root).stdout.strip())
    # a path in a .pth file is searched, but the .pth files in it, such as an editable install's, are not read
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root


def outside() -> dict[str, str]:
    """The environment without what leads back to the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(command: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    result = subprocess.run(words, cwd=folder, env=outside(), capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result


def has_pip() -> bool:
    """Not find_spec("pip"), after which setuptools no longer brings its own distutils into this process, which torch's
    compiler needs."""
    return any(found.name == "pip" for found in importlib.metadata.distributions())


needs_pip = pytest.mark.skipif(os.environ.get("CI") != "true" and not has_pip(), reason="installs a wheel: needs pip")


@needs_pip
def test_what_is_imported_is_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import equipoise, sys; print(equipoise.__file__); print(*sys.path, sep='\\n')"
    file, *paths = run([installed / "bin" / "python", "-c", code], tmp_path).stdout.splitlines()
    assert Path(file).is_relative_to(installed)
    assert [path for path in paths if Path(path).is_relative_to(ROOT) and "site-packages" not in path] == []


@needs_pip
def test_the_installed_wheel_prints_a_table_and_says_that_documents_are_written_in_a_checkout(
    installed: Path, tmp_path: Path
) -> None:
    command = [installed / "bin" / "equipoise", "table", "prior-shift", "--results", ROOT / "results"]
    assert "Accuracy, %, mean over 5 seeds" in run(command, tmp_path).stdout
    words = [*map(str, command), "--write"]
    result = subprocess.run(words, cwd=tmp_path, env=outside(), capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "run it in a checkout of the repository" in " ".join(result.stderr.replace("│", "").split())


@needs_pip
def test_the_installed_wheel_runs_the_commands(installed: Path, tmp_path: Path) -> None:
    for library in ("torchvision", "vl_convert", "onnxruntime", "sklearn"):
        pytest.importorskip(library)
    write_splits(tmp_path / "photos")
    random = np.random.default_rng(0)
    labels = np.arange(200) % 4
    for name in ("before", "after"):
        logits = random.normal(size=(200, 4)) + 2 * np.eye(4)[labels]
        np.savez(
            tmp_path / f"{name}.npz", logits=logits, labels=labels, class_names=["class0", "class1", "class2", "class3"]
        )

    assert "class3" in run([installed / "bin" / "equipoise", "inspect", "photos/train"], tmp_path).stdout
    commands = (
        "demo --out demo --iterations 2 --seeds 1",
        "report before.npz after.npz --counts photos/train --out report.html",
        "adapt before.npz --source photos/train --target uniform --out adapted.npz",
        f"train photos --out run --model {NETWORK} --size 32 --epochs 1 --device cpu",
    )
    several = f"from equipoise.cli import app\nfor words in {commands}: app(words.split(), standalone_mode=False)"
    assert "Balanced Softmax" in run([installed / "bin" / "python", "-c", several], tmp_path).stdout
    for page in ("demo/report.html", "report.html", "run/report.html"):
        assert "</html>" in (tmp_path / page).read_text()
    with np.load(tmp_path / "adapted.npz") as adapted, np.load(tmp_path / "before.npz") as before:
        assert adapted["logits"].shape == before["logits"].shape
        assert not np.allclose(adapted["logits"], before["logits"])
    assert (tmp_path / "run" / "balanced_softmax" / "model.safetensors").stat().st_size > 0


# -------------------------------------------------------------------- what an index shows


def test_links_of_the_description_are_absolute_where_the_address_is_known() -> None:
    described = hook()["described"]
    text = described((ROOT / "README.md").read_text(), "https://example.org/owner/name", "v0.1.0")
    absolute = re.findall(r"\((https://example\.org/owner/name/(?:raw|blob)/v0\.1\.0/[^)#\s]+)", text)
    assert len(absolute) > 20
    assert [link for link in absolute if not (ROOT / link.split("/v0.1.0/")[1]).exists()] == []
    assert [link for link in absolute if ("/raw/" in link) != link.endswith((".png", ".svg"))] == []
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", text) == []


def test_a_description_without_an_address_has_no_relative_links() -> None:
    readme = "[![picture](a.png)](b.md) [text](c.md#part) [web](https://example.org) [here](#part) ![alone](d.png)"
    assert hook()["described"](readme, "", "v1") == " text [web](https://example.org) [here](#part) "
    assert hook()["urls"]("") == {}
    assert hook()["address"]({"GITHUB_SERVER_URL": "https://github.com"}) == ""


def test_the_addresses_are_those_of_the_repository_that_builds(
    backend: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (ROOT / "PKG-INFO").exists():
        pytest.skip("an unpacked sdist keeps the addresses that it was built with")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.com")
    monkeypatch.setenv("GITHUB_REPOSITORY", "Owner/name")
    build: Callable[[str], str] = backend.prepare_metadata_for_build_wheel  # type: ignore[attr-defined]
    lines = (tmp_path / build(str(tmp_path)) / "METADATA").read_text().splitlines()
    assert "Project-URL: Documentation, https://owner.github.io/name/" in lines
    assert "Project-URL: Source, https://github.com/Owner/name" in lines
    assert "Description-Content-Type: text/markdown" in lines
    assert "# Equipoise" in lines


def test_the_release_has_one_version_and_the_workflows_run_its_pythons() -> None:
    yaml = pytest.importorskip("yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == eq.__version__
    assert f"version = {{{eq.__version__}}}" in (ROOT / "README.md").read_text()
    assert f"## {eq.__version__} ({citation['date-released']})\n" in (ROOT / "CHANGELOG.md").read_text()
    named = [line.split(" :: ")[-1] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    workflows = ROOT / ".github" / "workflows"
    tests, docs = (yaml.safe_load((workflows / f"{name}.yml").read_text())["jobs"] for name in ("tests", "docs"))
    assert tests["newest"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    assert [commands(job)[-1] for job in (tests["newest"], tests["oldest"], docs["build"])] == [
        ".ci/run", "make lower-bounds", "make docs",
    ]  # fmt: skip
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()


def hook() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]
