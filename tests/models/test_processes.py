"""Processes that torchrun starts: they join a group, and leave it together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch
from equipoise.models.processes import join_processes, leave_processes, world
join_processes(torch.device("cpu"))
joined = world()
leave_processes()
print(f"{joined} {world()} {torch.distributed.is_initialized()}\\n", end="", flush=True)  # written at once
"""


def test_processes_leave_the_group_that_they_joined(tmp_path: Path) -> None:
    """One that ends while it is still in its group crashes now and then."""
    (program := tmp_path / "program.py").write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["(2, 0) (1, 0) False", "(2, 1) (1, 0) False"]
