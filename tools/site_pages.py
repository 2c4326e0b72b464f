"""The pages of the site that are not in docs/, and the links to them: what mkdocs.yml calls while it builds.

    README.md, CHANGELOG.md, ...     pages of their own, under the names in PAGES
    a file that a page links to      src/equipoise/losses/focal.py is shown at source/src/equipoise/losses/focal.py
    the commands                     reference/commands.md, from what `equipoise --help` would print

So every link of the repository's Markdown also works on the site, wherever it is served from.
"""

from __future__ import annotations

import inspect
import logging
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]  # this checkout, not an installed copy

from site_docstrings import REFERENCE, pages  # noqa: E402

import equipoise  # noqa: E402

log = logging.getLogger("mkdocs.hooks.site_pages")  # with strict, its warnings are errors
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "results/README.md": "results.md",
}
UNLISTED = {"security.md", "conduct.md"}  # linked, but not in the menu
ALONE = {"index.md", "tutorial.md", "gallery.md", "changelog.md", "contributing.md"}  # no menu of pages beside them
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)]*)?(\))")
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".cff": "yaml", ".yml": "yaml"}


# -------------------------------------------------------------------- what mkdocs calls


def on_config(config: MkDocsConfig) -> None:
    """List the pages that the menu does not name under "More", so that a new page is found before it is sorted."""
    named = set(_leaves(config.nav))
    docs = Path(config.docs_dir)
    more = [name for path in sorted(docs.rglob("*.md")) if (name := path.relative_to(docs).as_posix()) not in named]
    if more:
        config.nav = [*(config.nav or []), {"More": more}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not in docs/, and one for each file that some page links to."""
    for source, page in PAGES.items():
        files.append(_page(config, page, (ROOT / source).read_text(encoding="utf-8"), listed=page not in UNLISTED))
    files.append(_page(config, "reference/commands.md", commands()))
    for name in sorted(set(equipoise.__all__) ^ {name for names, _ in pages().values() for name in names}):
        log.warning("docs/reference: equipoise.%s is public and not shown, or shown and not public", name)
    waiting = {ROOT / source for source in PAGES} | set((ROOT / "docs").rglob("*.md"))
    shown: set[str] = set()
    while waiting:
        path = waiting.pop()
        for target in _targets(path):
            if target not in shown:
                shown.add(target)
                files.append(_page(config, f"source/{target}.md", source_page(target), listed=False))
                waiting |= {ROOT / target} if (ROOT / target).is_dir() else set()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the pages made for them."""
    sources = {made: source for source, made in PAGES.items()}
    uri = page.file.src_uri
    if uri in ALONE:
        page.meta.setdefault("hide", ["navigation"])
    if uri == "reference/index.md":
        markdown += f"\n{index()}"
    if uri.startswith("source/") or uri == "reference/commands.md":
        return markdown
    return linked(markdown, uri, sources.get(uri, f"docs/{uri}"))


# -------------------------------------------------------------------- links


def linked(markdown: str, uri: str, source: str) -> str:
    """`markdown` of the file `source` of the repository with links as the page `uri` of the site needs them.

    >>> linked("[a](docs/idea.md#b) ![c](docs/images/d.png)", "index.md", "README.md")
    '[a](idea.md#b) ![c](images/d.png)'
    >>> linked("[a](../src/equipoise/prior.py) [b](../README.md) [c](idea.md)", "losses.md", "docs/losses.md")
    '[a](source/src/equipoise/prior.py.md) [b](index.md) [c](idea.md)'
    """

    def replaced(found: re.Match[str]) -> str:
        path = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2])))
        return f"{found[1]}{posixpath.relpath(path, posixpath.dirname(uri) or '.')}{found[3] or ''}{found[4]}"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)  # links in code are code
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)


def site_path(path: str) -> str:
    """Where the site has a file of the repository.

    >>> site_path("docs/howto/known-prior.md"), site_path("CHANGELOG.md"), site_path("examples")
    ('howto/known-prior.md', 'changelog.md', 'source/examples.md')
    """
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md")


def _targets(path: Path) -> Iterator[str]:
    """The files and folders outside docs/ that a document, or a listing of a folder, links to."""
    if path.is_dir():
        yield from (child.relative_to(ROOT).as_posix() for child in _listed(path) if child.is_file())
        return
    for found in LINK.finditer(path.read_text(encoding="utf-8")):
        target = Path(posixpath.normpath(path.parent / found[2]))
        if target.exists() and site_path(target.relative_to(ROOT).as_posix()).startswith("source/"):
            yield target.relative_to(ROOT).as_posix()


# -------------------------------------------------------------------- pages


def source_page(target: str) -> str:
    """A file of the repository as a page, or a list of what a folder holds."""
    path = ROOT / target
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {target}\n\n"
    if path.is_dir():
        here = posixpath.basename(target)
        return head + "\n".join(f"- [{child.name}]({here}/{child.name}.md)" for child in _listed(path)) + "\n"
    fence = "`" * 8
    language = LANGUAGES.get(path.suffix, "text")
    return f"{head}{fence}{language}\n{path.read_text(encoding='utf-8').rstrip()}\n{fence}\n"


def index() -> str:
    """Every public name with the first sentence of its docstring, in a table per page of the reference."""
    lines = []
    order = re.findall(r"\]\((\w+)\.md\)", (REFERENCE / "index.md").read_text(encoding="utf-8"))
    for page in order:
        if names := pages()[page][0]:
            rows = [f"| [`{name}`][equipoise.{name}] | {_first(name)} |" for name in names]
            title = (REFERENCE / f"{page}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            lines += [f"## {title}", "", "| name | what it is |", "|:---|:---|", *rows, ""]
    return "\n".join(lines)


def _first(name: str) -> str:
    """The first paragraph of a docstring, up to where a sentence ends."""
    text = inspect.getdoc(getattr(equipoise, name)) or ""
    sentence = re.split(r"(?<=[a-z`)])[.:;] |\.$", " ".join(text.split("\n\n")[0].split()))[0]
    return sentence.replace("|", "\\|")


def commands() -> str:
    """Every command with its arguments, options and defaults."""
    from typer.main import get_command

    from equipoise.cli import app

    lines = ["# Commands", "", "What `equipoise COMMAND --help` prints, for every command.", ""]
    root = get_command(app)
    for words, command in _walk(root, ("equipoise",)):
        lines += [f"{'#' * min(len(words), 4)} {' '.join(words)}", "", _plain(command.help or ""), ""]
        shown = [row for parameter in command.params if (row := _row(parameter))]
        if shown:
            lines += ["| argument or option | meaning | default |", "|:---|:---|:---|", *shown, ""]
    return "\n".join(lines)


def _walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if len(words) > 1:
        yield words, command
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from _walk(child, (*words, name))


def _row(parameter: Any) -> str:
    """An argument or an option as a row of a table; nothing for those that every command has."""
    everywhere = {"--help", "--install-completion", "--show-completion"}
    if everywhere & set(parameter.opts) or getattr(parameter, "hidden", False):
        return ""
    option = parameter.param_type_name == "option"
    names = (*parameter.opts, *parameter.secondary_opts) if option else (parameter.name.upper(),)
    shown_names = ", ".join(f"`{name}`" for name in names)
    given = parameter.default
    hidden = given is None or callable(given) or given in ((), []) or not getattr(parameter, "show_default", True)
    shown = "" if hidden else f"`{given}`"
    default = "required" if parameter.required else shown
    meaning = _plain(getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
    return f"| {shown_names} | {meaning} | {default} |"


def _plain(text: str) -> str:
    """Help without Rich's markup; commands, which are marked as not to be wrapped, in a code block."""
    text = re.sub(r"\[/?(bold|dim|italic|cyan|green|red|yellow)\]", "", text.replace("\f", ""))
    paragraphs = [_paragraph(each) for each in re.split(r"\n\s*\n", text.strip())]
    return "\n\n".join(paragraphs)


def _paragraph(text: str) -> str:
    commands = re.match(r"\s*(equipoise|torchrun|python) ", text.replace("\b", ""))
    plain = text.replace("\b\n", "").replace("\b", "")
    return f"```sh\n{plain}\n```" if commands else plain.replace("<", "&lt;")


def _page(config: MkDocsConfig, uri: str, content: str, *, listed: bool = True) -> File:
    level = InclusionLevel.UNDEFINED if listed else InclusionLevel.NOT_IN_NAV
    return File.generated(config, uri, content=content, inclusion=level)


def _listed(folder: Path) -> list[Path]:
    return [
        child for child in sorted(folder.iterdir()) if child.is_file() and not child.name.startswith((".", "__pyc"))
    ]


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for child in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _leaves(child)
