"""Documents are rendered from records, between two comments that mark the place:

<!-- rendered: NAME -->
...
<!-- end: NAME -->
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def fill(text: str, name: str, content: str) -> str:
    """`text` with `content` in the place marked for `name`, instead of what stood there.

    >>> fill("a\\n<!-- rendered: x -->old<!-- end: x -->", "x", "new")
    'a\\n<!-- rendered: x -->\\n\\nnew\\n\\n<!-- end: x -->'
    """
    first, last = f"<!-- rendered: {name} -->", f"<!-- end: {name} -->"
    if text.count(first) != 1 or text.count(last) != 1 or text.index(first) > text.index(last):
        raise ValueError(f"the document has no place for {name!r}: it needs the lines {first} and {last}, once each")
    before, after = text[: text.index(first)], text[text.index(last) :]
    return f"{before}{first}\n\n{content.strip()}\n\n{after}"


def filled(root: Path, parts: Mapping[str, Mapping[str, str]]) -> dict[Path, str]:
    """The documents under `root` as they should read: of each, `parts` has the contents by the name of their place."""
    texts = {}
    for document, contents in parts.items():
        text = (root / document).read_text(encoding="utf-8")
        for name, content in contents.items():
            text = fill(text, name, content)
        texts[root / document] = text
    return texts
