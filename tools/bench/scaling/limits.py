"""Makes a memory limit for one process and its children, where this machine lets us.

The page cache counts against a control group's limit; it does not count against `ulimit -v`
(RLIMIT_AS limits addresses, and a mapped store is many) or `ulimit -m` (ignored by Linux). So a limit
is a control group, nested in the one this process is in, so that whatever limits that one has go on
to hold:

* version 1: a folder below our own group's, with `memory.limit_in_bytes`;
* version 2: the same with `memory.max`, where our group hands the memory controller on;
* else `systemd-run --scope -p MemoryMax=...`, where systemd runs.

Where none of them can be made there is no limit; cells then begin with an empty page cache for their
file (`posix_fadvise`), and are marked as cold, not limited.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def own_groups() -> list[tuple[str, Path]]:
    """Return (version, folder) of the memory groups this process is in."""
    found = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append(("v1", ROOT / "memory" / path.lstrip("/")))
        elif not controllers:
            found.append(("v2", ROOT / path.lstrip("/")))
    return sorted(found)


@contextlib.contextmanager
def limited(nbytes: int | None) -> Iterator[tuple[list[str], Path | None, str]]:
    """Give (words before a command, group that the command must join, what kind of limit it is)."""
    if nbytes is None:
        yield [], None, "none"
        return
    for version, parent in own_groups():
        group = _make(version, parent, nbytes)
        if group is not None:
            try:
                yield [], group, f"cgroup {version}"
            finally:
                _remove(group)
            return
    if _systemd_works():
        words = ["systemd-run", "--scope", "--quiet", "-p", f"MemoryMax={nbytes}"]
        yield [*words, "-p", "MemorySwapMax=0"], None, "systemd scope"
        return
    yield [], None, "cold, not limited"


def join(group: str) -> None:
    """Put this process, and all it starts from now on, into a group."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def evict(path: Path) -> None:
    """Drop a file's pages from the page cache, so that who reads them next is charged for them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _make(version: str, parent: Path, nbytes: int) -> Path | None:
    group = parent / f"ocrstore-scale-{os.getpid()}"
    if version == "v2":
        try:
            if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                return None  # our group holds processes itself, so it cannot hand memory on
        except OSError:
            return None
    limit = "memory.limit_in_bytes" if version == "v1" else "memory.max"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / limit).write_text(str(nbytes))
    except OSError:
        _remove(group)
        return None
    return group


def _remove(group: Path) -> None:
    """Remove a group; its last process may still be on its way out."""
    for _ in range(50):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    print(f"could not remove {group}; it is empty or its processes hang")


def _systemd_works() -> bool:
    if shutil.which("systemd-run") is None:
        return False
    command = ["systemd-run", "--scope", "--quiet", "-p", "MemoryMax=1G", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
