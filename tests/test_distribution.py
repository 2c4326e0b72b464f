"""What is published: the wheel holds the package and nothing else, the sdist all that the tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

if os.environ.get("CI") != "true":  # there it must be installed
    pytest.importorskip("hatchling", reason="builds the package: pip install hatchling")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> object:
    from hatchling import build

    monkeypatch.chdir(ROOT)  # where a build backend is called (PEP 517)
    return build


def test_the_wheel_is_the_package_whole_and_nothing_else(backend: object, tmp_path: Path) -> None:
    build: Callable[[str], str] = backend.build_wheel  # type: ignore[attr-defined]
    with zipfile.ZipFile(tmp_path / build(str(tmp_path))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = {path.relative_to(source) for path in (source / "equipoise").rglob("*") if path.is_file()}
    assert names == {path.as_posix() for path in files if "__pycache__" not in path.parts}
    assert {"equipoise/py.typed", "equipoise/report/page_files/page.html"} <= names


def test_the_sdist_has_every_tracked_file(backend: object, tmp_path: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():  # below another repository git would list nothing
        pytest.skip("not a git checkout: nothing says which files are tracked")
    build: Callable[[str], str] = backend.build_sdist  # type: ignore[attr-defined]
    with tarfile.open(tmp_path / build(str(tmp_path))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert sorted(tracked - names) == [".ci/run"]
