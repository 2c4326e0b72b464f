"""Printing a table from committed records needs neither torch nor torchvision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = {  # of every table a line that a reader would look for
    "table1": ("CIFAR-100-LT: top-1, %, by imbalance", "Softmax, then LWS"),
    "table2": ("LVIS v1, ResNet-101: average precision, %", "Balanced Sigmoid, released form"),
    "voc2012-lt": ("VOC2012-LT: average precision, %", "AP_mask, best first"),
    "prior-shift": ("Accuracy, %, mean over 5 seeds", "backward, 50"),
}


@pytest.mark.parametrize("table", SHOWN)
def test_a_table_is_printed_where_torch_cannot_be_imported(table: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None\n"
        "from equipoise.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "table", table, "--results", str(ROOT / "results")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for words in SHOWN[table]:
        assert words in result.stdout
