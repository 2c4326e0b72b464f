"""`equipoise` and `python -m equipoise`."""

from __future__ import annotations

import sys

EXTRAS = dict.fromkeys(("typer", "rich", "sklearn", "scipy"), "cli") | dict.fromkeys(
    ("torchvision", "orjson", "hotcoco", "PIL", "safetensors"), "detection"
)


def main() -> None:
    """Run the command line, or name the extra that it needs."""
    try:
        from equipoise.cli import app

        app(prog_name="equipoise")
    except ImportError as error:
        if "pip install 'equipoise[" in str(error):  # the library's own message names the extra
            sys.exit(str(error))
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        sys.exit(f"This command needs {error.name}, which is not installed: pip install 'equipoise[{extra}]'")


if __name__ == "__main__":
    main()
