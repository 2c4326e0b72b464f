"""Parts of Markdown documents that are rendered from records, between two comments that mark their place.

<!-- rendered: NAME -->
...
<!-- end: NAME -->
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first `left` columns are aligned left, the others right.

    >>> print(table(["loss", "top-1"], [["Softmax", "45.0"]]))
    | loss | top-1 |
    |:---|---:|
    | Softmax | 45.0 |
    """
    alignment = "|" + "".join(":---|" if column < left else "---:|" for column in range(len(header)))
    lines = [" | ".join(row).join(("| ", " |")) for row in (header, *rows)]
    return "\n".join([lines[0], alignment, *lines[1:]])


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
        text = (root / document).read_text()
        for name, content in contents.items():
            text = fill(text, name, content)
        texts[root / document] = text
    return texts
