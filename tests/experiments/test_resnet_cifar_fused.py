"""The fused kernels are checked in a process of their own: see fused_kernels.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_fused_kernels_are_torchs() -> None:
    pytest.importorskip("triton", "3.7")  # comes with torch on Linux; the interpreter of 3.6 fails with new NumPy
    file = Path(__file__).with_name("fused_kernels.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(file)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=file.parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "43 passed" in done.stdout
