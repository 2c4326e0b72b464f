"""The oldest versions that pyproject.toml allows, one requirement per line: what `make lower-bounds` installs.

    python tools/lower_bounds.py                    every dependency and extra at its lower bound
    python tools/lower_bounds.py torch=2.13.0 ...   the same, with some versions given by hand

`name>=X` becomes `name==X`, also for tools (ruff, mypy). A bound of two parts, such as 0.6, means its first release: to
pip, `==0.6` is 0.6.0.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pins(project: dict[str, object], given: dict[str, str]) -> list[str]:
    """`name==version` for every requirement of the package and its extras; of several bounds, the highest."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    lowest: dict[str, str] = {}
    for requirement in [*project["dependencies"], *(one for extra in extras.values() for one in extra)]:  # type: ignore[misc]
        if requirement.startswith(f"{project['name']}["):
            continue
        found = re.match(r"([A-Za-z0-9_.-]+)>=([0-9.]+)(,<[0-9.]+)?$", requirement)
        if found is None:
            raise ValueError(f"{requirement!r} has no lower bound: write it as name>=version")
        name, bound = found[1], found[2]
        lowest[name] = max(lowest.get(name, "0"), bound, key=lambda text: [int(part) for part in text.split(".")])
    if unknown := given.keys() - lowest.keys():
        raise ValueError(f"no requirement is called {', '.join(sorted(unknown))}: expected some of {', '.join(lowest)}")
    return [f"{name}=={version}" for name, version in sorted((lowest | given).items())]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    print("\n".join(pins(project, given)))


if __name__ == "__main__":
    main()
