"""`equipoise` and `python -m equipoise`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from equipoise.cli import app
    except ModuleNotFoundError as error:
        sys.exit(f"The command line needs {error.name}, which is not installed: pip install 'equipoise[cli]'")
    app(prog_name="equipoise")


if __name__ == "__main__":
    main()
