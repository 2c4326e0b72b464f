"""Docstrings of src/ as the reference shows them: what mkdocstrings calls for each object (a Griffe extension).

A docstring here is plain text that reads well in a terminal. For the site, examples become code blocks, and a list

    beta    how much a further item of a class adds: 0 is nothing, 1 as much as the first
    base    "cross_entropy" or "focal"

becomes rows of the table of parameters, beside types and defaults from the signature. Arguments that mean the same for
every name of a page (`reduction`, `ignore_index`) are described once, in the table at its top. Fields of a dataclass
are described by the comments behind them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
NAME = re.compile(r"^::: equipoise\.(?P<name>\w+)$", re.MULTILINE)
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.+) \|$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of what the reference shows."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        owner = func.parent.name if func.parent and func.parent.is_class else func.name
        if func.name == "forward" and func.docstring is None and any(owner in names for names, _ in pages().values()):
            func.docstring = griffe.Docstring("What calling the module does.", parent=func)
        _rewrite(func, [parameter.name for parameter in func.parameters], common(owner), "Parameters")

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if "dataclass" in cls.labels:  # what functions return: fields to read, not arguments to give
            lines = "\n".join(cls.lines)
            _rewrite(cls, list(fields(lines)), fields(lines), "Attributes")
        else:
            _rewrite(cls, [parameter.name for parameter in cls.parameters], common(cls.name), "Parameters")

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.docstring:
            mod.docstring.value = fenced(mod.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Leave out how the dataclasses are built, once Griffe has written that down."""
        waiting: list[Any] = [pkg]
        while waiting:
            for member in waiting.pop().members.values():
                if member.is_alias:
                    continue
                if member.is_class and "dataclass" in member.labels:
                    member.members.pop("__init__", None)
                waiting += [member] if member.is_module or member.is_class else []


def _rewrite(thing: griffe.Function | griffe.Class, names: list[str], shared: dict[str, str], section: str) -> None:
    if thing.docstring is not None:
        named = [name for name in names if name not in ("self", "cls")]
        thing.docstring.value = rewritten(thing.docstring.value, named, shared, section)


# -------------------------------------------------------------------- docstrings


def rewritten(text: str, names: list[str], shared: dict[str, str], section: str = "Parameters") -> str:
    """A docstring with its examples fenced and its parameters, or attributes, in a section that the parser knows.

    >>> text = "Add.\\n\\na   the first\\nb   the\\n    second\\n\\n>>> add(1, 2)"
    >>> rewritten(text, ["a", "b"], {}).split("\\n\\n")
    ['Add.', 'Parameters:\\n    a: the first\\n    b: the second', '```pycon\\n>>> add(1, 2)\\n```']
    """
    described, rest = split(plain(text), names)
    found = {name: described.get(name) or shared.get(name, "") for name in names}
    rows = [f"    {name}: {words}" for name, words in found.items() if words]
    prose, example = _parts(fenced(rest))
    table = [f"{section}:\n" + "\n".join(rows)] if rows else []
    return "\n\n".join(part for part in (prose, *table, example) if part)


def plain(text: str) -> str:
    """A docstring in scikit-learn's form, with underlined headings, as the others are written.

    >>> plain("Fit.\\n\\nParameters\\n----------\\na : the\\n    first\\n\\nExamples\\n--------\\n>>> fit(1)")
    'Fit.\\n\\na   the\\n    first\\n\\n>>> fit(1)'
    """
    text = re.sub(r"^(Parameters|Examples)\n-+\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^Attributes\n-+\n((?:.+\n)+)", _listed, text, flags=re.MULTILINE)
    return re.sub(r"^(\w+) : ", r"\1   ", text, flags=re.MULTILINE)


def _listed(found: re.Match[str]) -> str:
    """What a fitted estimator has, as a list of Markdown."""
    rows = re.sub(r"^(\S.*?) : ", r"- `\1`: ", found[1], flags=re.MULTILINE)
    return f"Once fitted, it has:\n\n{rows}"


def split(text: str, names: list[str]) -> tuple[dict[str, str], str]:
    """What a docstring lists of its parameters, and the docstring without the list."""
    described: dict[str, str] = {}
    rest, current = [], ""
    for line in text.splitlines():
        found = re.match(r"(\w+(?:, \w+)*) {2,}(\S.*)$", line)
        if found and set(listed := found[1].split(", ")) <= set(names):
            described |= dict.fromkeys(listed, found[2])
            current = found[1]
        elif current and re.match(r" {2,}\S", line):
            described |= {name: f"{described[name]} {line.strip()}" for name in current.split(", ")}
        else:
            current = ""
            rest.append(line)
    return described, re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip()


def fields(source: str) -> dict[str, str]:
    """The public fields of a dataclass by name, each with the comment behind it.

    >>> fields("class A:\\n    hits: IntArray  # [K] found\\n    _own: int = 0\\n    most: int = 3")
    {'hits': '[K] found', 'most': ''}
    """
    body = re.sub(r'"""(.*?)"""', "", source, flags=re.DOTALL)
    found = re.findall(r"^ {4}([a-z]\w*): [^#\n]+?(?:  # (.+))?$", body, re.MULTILINE)
    return dict(found)


def fenced(text: str) -> str:
    """Examples as code blocks.

    >>> fenced("One.\\n\\n>>> 1\\n1")
    'One.\\n\\n```pycon\\n>>> 1\\n1\\n```'
    """
    blocks = re.split(r"\n[ ]*\n", text)
    return "\n\n".join(f"```pycon\n{block}\n```" if block.lstrip().startswith(">>> ") else block for block in blocks)


def _parts(text: str) -> tuple[str, str]:
    """What comes before the first example, and the rest."""
    place = text.find("```pycon")
    return (text, "") if place < 0 else (text[:place].strip(), text[place:])


# -------------------------------------------------------------------- pages


@cache
def pages() -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Of each page of the reference: the names that it shows, and what the table at its top says of their arguments."""
    found = {}
    for path in sorted(REFERENCE.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        rows = [(name, words) for names, words in ROW.findall(text) for name in re.findall(r"\w+", names)]
        found[path.stem] = tuple(match["name"] for match in NAME.finditer(text)), dict(rows)
    return found


def common(name: str) -> dict[str, str]:
    """The arguments that mean the same for every name of the page that shows `name`."""
    return next((shared for names, shared in pages().values() if name in names), {})
