"""How many processors this process may use: affinity and cgroup quota count."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus(*, root: Path = Path("/")) -> int:
    """Return the number of processors to use, at least 1."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        cpus = os.cpu_count() or 1
    quota = _cgroup_quota(root)
    return max(1, min(cpus, math.ceil(quota)) if quota else cpus)


def _cgroup_quota(root: Path) -> float | None:
    """Return the processors that a container may use, where it is limited."""
    try:
        limit, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = root / "sys/fs/cgroup/cpu"
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period_us if quota > 0 and period_us > 0 else None
    except (OSError, ValueError):
        return None
