"""`equipoise` and `python -m equipoise`."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from equipoise.data.cores import granted_cores, processes_together, usable_cores

EXTRAS = dict.fromkeys(("typer", "rich", "sklearn", "scipy"), "cli") | dict.fromkeys(
    ("torchvision", "orjson", "hotcoco", "PIL", "safetensors"), "detection"
)


def share_the_machine(settings: MutableMapping[str, str]) -> None:
    """What torch's threads read when it is imported, unless the user has set it.

    Threads that wait for another spin for milliseconds before they sleep. Where the cores are shared with other
    processes, they take the time of the very thread that they wait for. Results are the same however they wait.
    """
    if "OMP_WAIT_POLICY" not in settings:
        settings.setdefault("GOMP_SPINCOUNT", "1000")  # GNU's OpenMP, in torch's wheels for Linux: 300,000 by default
        settings.setdefault("KMP_BLOCKTIME", "1")  # LLVM's and Intel's: milliseconds, 200 by default
    if granted_cores() < float("inf"):  # torch looks at the cores, not at what a container grants
        settings.setdefault("OMP_NUM_THREADS", str(usable_cores()))


def main() -> None:
    """Run the command line, or name the extra that it needs."""
    share_the_machine(os.environ)
    try:
        from equipoise.cli import app

        app(prog_name="equipoise")
    except SystemExit as ended:
        if processes_together() == 1:
            raise
        # Under torchrun, threads of the process group may outlive it (torch keeps groups alive that its compiler has
        # seen). One that lets go of a tensor while Python shuts down aborts the process: so do not shut down.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(int(ended.code or 0))
    except ImportError as error:
        if "pip install 'equipoise[" in str(error):  # the library's own message names the extra
            sys.exit(str(error))
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None and sys.argv[1:2] in (["train"], ["predict"]):
            extra = "train"  # which has all that these two need
        if extra is None:
            raise
        sys.exit(f"This command needs {error.name}, which is not installed: pip install 'equipoise[{extra}]'")


if __name__ == "__main__":
    main()
