"""The cores that a process may use: its own, or what a container grants."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from equipoise.data.cores import granted_cores, usable_cores


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, math.inf),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
        (
            {
                "proc/self/cgroup": "0::/jobs/mine\n",
                "sys/fs/cgroup/jobs/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/jobs/mine/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, math.inf),
    ],
    ids=["nothing", "no limit", "half", "first, none", "first", "a parent's", "nonsense"],
)
def test_what_control_groups_grant(files: dict[str, str], expected: float, tmp_path: Path) -> None:
    assert granted_cores(written(tmp_path, files)) == expected


def test_a_share_of_a_core_is_one_core_and_no_more_than_there_are(tmp_path: Path) -> None:
    assert usable_cores(written(tmp_path / "half", {"sys/fs/cgroup/cpu.max": "50000 100000"})) == 1
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert usable_cores(written(tmp_path / "many", {"sys/fs/cgroup/cpu.max": "99900000 100000"})) == here
    assert usable_cores(tmp_path / "none") == here
