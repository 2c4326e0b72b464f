"""The faults of tools/faults.py still apply: each changes text that occurs once."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_fault_finds_its_text_once() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from faults import FAULTS
    finally:
        sys.path.pop(0)
    lost = [
        f"{fault.file}: {fault.old}"
        for fault in FAULTS
        if (ROOT / "src" / "equipoise" / fault.file).read_text().count(fault.old) != 1
    ]
    assert lost == []
    assert len(FAULTS) >= 30
