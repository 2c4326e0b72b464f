"""The faults of tools/faults.py still apply: each changes text that occurs once."""

from __future__ import annotations

from pathlib import Path

from faults import FAULTS

ROOT = Path(__file__).parents[1]


def test_every_fault_finds_its_text_once() -> None:
    lost = [
        f"{fault.file}: {fault.old}"
        for fault in FAULTS
        if (ROOT / "src" / "equipoise" / fault.file).read_text().count(fault.old) != 1
    ]
    assert lost == []
    assert len(FAULTS) >= 30
