"""How many processor cores this process may use: those it may run on, or the share of time that a container grants;
and how many processes run with it."""

from __future__ import annotations

import math
import os
from pathlib import Path


def processes_together() -> int:
    """How many processes torchrun started, this one included; 1 without it."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def usable_cores(system: Path = Path("/")) -> int:
    """At least 1. `system` is the root of the operating system's files."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(here, granted_cores(system))))


def granted_cores(system: Path = Path("/")) -> float:
    """What the control groups of this process grant, as a number of cores; inf if they set no limit."""
    groups = system / "sys/fs/cgroup"
    limits = [_first_version(groups / "cpu"), _second_version(groups)]
    for line in _text(system / "proc/self/cgroup").splitlines():
        if line.startswith("0::/"):  # of the second version; its parents' limits hold, too
            own = groups / line.removeprefix("0::/")
            limits += [_second_version(place) for place in (own, *own.parents) if place.is_relative_to(groups)]
    return min(limits)


def _second_version(group: Path) -> float:
    quota, _, period = _text(group / "cpu.max").partition(" ")
    return _share(quota, period)


def _first_version(group: Path) -> float:
    return _share(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))


def _share(quota: str, period: str) -> float:
    """
    >>> _share("150000", "100000"), _share("max", "100000"), _share("-1", "100000")
    (1.5, inf, inf)
    """
    if not (quota.isdigit() and period.isdigit() and int(quota) and int(period)):
        return math.inf
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
