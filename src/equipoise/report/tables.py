"""Tables of results: one formatter of "mean ± standard deviation (n)", and one table for Markdown and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Literal, TypeVar

from equipoise.data.reading import visible

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
UNKNOWN = "–"
STYLES = {"ours": "bold", "paper": "dim", "companion": "dim"}  # styles of a row, by the text of its second cell


# -------------------------------------------------------------------- numbers


def plus_minus(middle: float, deviation: float | None = None, *, digits: int = 1, sign: bool = False) -> str:
    """A mean and its spread, with a typographic minus sign.

    >>> plus_minus(45.0, 0.44), plus_minus(45.0), plus_minus(-0.5, 0.25, digits=2, sign=True)
    ('45.0 ± 0.4', '45.0', '−0.50 ± 0.25')
    """
    spread = "" if deviation is None else f" ± {deviation:.{digits}f}"
    return f"{middle:{'+' if sign else ''}.{digits}f}{spread}".replace("-", "−")


def mean_std(values: Iterable[float | None], *, digits: int = 1, sign: bool = False, n: bool = False) -> str:
    """Mean ± standard deviation of the known values, and their number; a dash if there are none.

    >>> mean_std([20.0, 22.0]), mean_std([20.0]), mean_std([None]), mean_std([45.0, None, 45.6], n=True)
    ('21.0 ± 1.4', '20.0', '–', '45.3 ± 0.4 (2)')
    """
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    text = plus_minus(mean(known), stdev(known) if len(known) > 1 else None, digits=digits, sign=sign)
    return f"{text} ({len(known)})" if n else text


def low_to_high(values: Sequence[float], digits: int = 0) -> str:
    """The range of some values.

    >>> low_to_high([3.2, 60.4]), low_to_high([5.0]), low_to_high([0.04, 75], 1)
    ('3 to 60', '5', '0.0 to 75.0')
    """
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


# -------------------------------------------------------------------- records


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items with the same key together, in the order of their first occurrence.

    >>> grouped(["owl", "cat", "ox"], lambda name: name[0])
    {'o': ['owl', 'ox'], 'c': ['cat']}
    """
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def versions_in_words(versions: Mapping[str, str], **titles: str) -> str:
    """The versions that a run was made with, from its record.

    >>> versions_in_words({"torch": "2.11", "cudnn": "9"}, torch="torch", cudnn="cuDNN", hotcoco="hotcoco")
    'torch 2.11, cuDNN 9'
    """
    return ", ".join(f"{title} {versions[name]}" for name, title in titles.items() if name in versions)


# -------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first `left` and the last `words` columns are aligned left, the others right.

    >>> print(Table(["loss", "top-1"], [["Softmax", "45.0"]]))
    | loss | top-1 |
    |:---|---:|
    | Softmax | 45.0 |
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    title: str = ""  # shown in the terminal; documents have headings
    words: int = 0

    def is_left(self, place: int) -> bool:
        return place < self.left or place >= len(self.header) - self.words

    def __str__(self) -> str:
        """As Markdown."""
        alignment = "|" + "|".join(":---" if self.is_left(i) else "---:" for i in range(len(self.header))) + "|"
        lines = [" | ".join(row).join(("| ", " |")) for row in (self.header, *self.rows)]
        return "\n".join([lines[0], alignment, *lines[1:]])

    def print(self, console: Console) -> None:
        """Print in the terminal. A narrow one may wrap the first column, but cuts off no number."""
        from rich import box
        from rich.measure import Measurement
        from rich.table import Table as Shown
        from rich.text import Text

        shown = Shown(title=Text(visible(self.title)), box=box.SIMPLE, padding=(0, 1, 0, 0))
        for place, name in enumerate(self.header):
            texts = [visible(name), *(visible(row[place]) for row in self.rows)]
            widest = max(map(len, texts)) if place else max(len(word) for text in texts for word in text.split())
            justify: Literal["left", "right"] = "left" if self.is_left(place) else "right"
            shown.add_column(texts[0], justify=justify, no_wrap=place > 0, min_width=widest)
        for row in self.rows:
            heading = len(row) > 1 and not any(row[1:])
            style = "bold" if heading else STYLES.get(row[1]) if len(row) > 1 else None
            shown.add_row(*(Text(visible(cell)) for cell in row), style=style)
        narrow = console.width
        needed = Measurement.get(console, console.options.update(max_width=1000), shown).minimum
        console.width = max(narrow, needed)
        console.print(shown)
        console.width = narrow
