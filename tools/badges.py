"""Draw the README's badges from pyproject.toml: python tools/badges.py writes docs/images/badge-*.svg.

They are files of the repository, so that they say what pyproject.toml says, a test can compare them, and nobody's
server sees who reads the README.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
HEIGHT, LETTER = 20, 6.6  # pixels; the mean width of a letter at size 11


def badge(label: str, value: str, colour: str) -> str:
    """A label and its value, side by side."""
    left, right = (round(LETTER * len(text) + 12) for text in (label, value))
    whole = left + right
    words = 'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" y="14" textLength="{}" x="{}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{HEIGHT}" role="img">',
        f"<title>{escape(label)}: {escape(value)}</title>",
        f'<rect width="{whole}" height="{HEIGHT}" rx="3" fill="#444c56"/>',
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{colour}"/>',
        f'<text fill="#fff" {words.format(left - 12, 6)}>{escape(label)}</text>',
        f'<text fill="#fff" {words.format(right - 12, left + 6)}>{escape(value)}</text>',
        "</svg>\n",
    ]
    return "\n".join(parts)


def badges() -> dict[str, str]:
    """Every badge by the name of its file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.findall(r"Python :: (3\.\d+)\b", "\n".join(project["classifiers"]))
    torch = next(one for one in project["dependencies"] if one.startswith("torch>="))
    typed = "yes" if "Typing :: Typed" in project["classifiers"] else "no"
    return {
        "badge-python.svg": badge("python", " | ".join(found), "#3670a0"),
        "badge-torch.svg": badge("pytorch", f"≥ {torch.removeprefix('torch>=')}", "#c4391f"),
        "badge-typed.svg": badge("typed", typed, "#2a7f3f"),
        "badge-license.svg": badge("license", project["license"], "#2a7f3f"),
    }


if __name__ == "__main__":
    for name, content in badges().items():
        (IMAGES / name).write_text(content, encoding="utf-8")
