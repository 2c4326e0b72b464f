"""What a package index shows: the README with links that work there, and where the project lives.

An index has no files beside the README, so links and images need the address of the repository. It is taken from where
the package is built: GitHub's workflows set GITHUB_SERVER_URL and GITHUB_REPOSITORY. Built elsewhere, links become
their texts and images are left out, rather than leading to an address that nobody owns.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?!https?://|#)([^)\s]+)\)")


class Metadata(MetadataHookInterface):
    """Fills the fields that pyproject.toml leaves to this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        version = re.findall(r'__version__ = "(.+)"', (root / "src/equipoise/__init__.py").read_text())[0]
        repository = address(dict(os.environ))
        text = described((root / "README.md").read_text(encoding="utf-8"), repository, f"v{version}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository)


def address(environment: dict[str, str]) -> str:
    """Where the repository is, if that is known."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    return "/".join(environment[name] for name in names) if all(environment.get(name) for name in names) else ""


def urls(repository: str) -> dict[str, str]:
    """What an index lists under "Project links"."""
    if not repository:
        return {}
    server, owner, name = repository.rsplit("/", 2)
    pages = {"Documentation": f"https://{owner.lower()}.github.io/{name}/"} if server == "https://github.com" else {}
    return {
        **pages,
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def described(readme: str, repository: str, tag: str) -> str:
    """The README with absolute links to the files of a release; without an address, with none."""

    def replaced(found: re.Match[str]) -> str:
        image, text, path = found[1], LINK.sub(replaced, found[2]), found[3]
        if not repository:
            return "" if image else text
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/{tag}/{path})"

    return LINK.sub(replaced, readme)
