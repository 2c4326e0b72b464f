"""The rooms have an order and there is one wall: imports point one way, and only the commands look behind the wall."""

from __future__ import annotations

import ast
from pathlib import Path

import equipoise

ROOT = Path(equipoise.__file__).parent
ROOMS = [
    "arrays", "compiling", "files", "prior", "data", "losses", "samplers", "models", "metrics", "serving", "training",
    "integrations", "report", "cli",
]  # fmt: skip
FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path, *, lazy: bool) -> set[str]:
    """The rooms that a file imports from; with `lazy` also inside functions and for types only."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if lazy else tree.body
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[1] for name in named if name.startswith("equipoise.")}


def defined(tree: ast.AST) -> set[str]:
    """The private names that a module defines: functions, classes, fields, attributes that it sets."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def read(tree: ast.AST) -> set[str]:
    """The names that a module imports from this package, and the attributes that it reads of anything but itself."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise"):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            names.add(node.attr)
    return names


def test_imports_point_one_way() -> None:
    wrong = []
    for path in FILES:
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room not in ROOMS:  # the package itself, and experiments, which may import everything
            continue
        above = set(ROOMS[ROOMS.index(room) + 1 :])
        behind = set() if room in ("cli", "training") else imported(path, lazy=True) & {"experiments"}
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in imported(path, lazy=False) & above | behind]
    assert wrong == []


def test_nothing_private_is_used_across_modules() -> None:
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}
    ours = {name: defined(tree) for name, tree in trees.items()}
    every = set().union(*ours.values())
    assert len(every) > 100
    assert {name: used for name, tree in trees.items() if (used := (read(tree) & every) - ours[name])} == {}
