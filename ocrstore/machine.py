"""Processors and memory that this process may use, also in a container; memory of processes."""

from __future__ import annotations

import errno
import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ocrstore.errors import SchemaError

# what libraries say, in exceptions of their own, where there is no memory left
_SHORT = (
    "failed to map segment",
    "cannot allocate memory",
    "insufficient memory",
    "can't start new thread",
    "bad_alloc",
)


def memory_shortage(exc: BaseException) -> str | None:
    """Return what an exception, or the one that led to it, says about missing memory, or None."""
    found: BaseException | None = exc
    said: str | None = None
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        text = str(found)
        short = isinstance(found, MemoryError) or getattr(found, "errno", None) == errno.ENOMEM
        if short or any(phrase in text.lower() for phrase in _SHORT):
            said = text or "no more could be allocated"
        found = found.__cause__ or found.__context__
    return said


def address_space_limit() -> int | None:
    """Return the limit of this process's address space (`ulimit -v`) in bytes; None without one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def usable_cpus(*, root: Path = Path("/")) -> int:
    """Return the number of processors this process may use: affinity and cgroup quota count."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        cpus = os.cpu_count() or 1
    quota = _cgroup_quota(root)
    return max(1, min(cpus, math.ceil(quota)) if quota else cpus)


def unfinished_nbytes(workers: int) -> int:
    """Return the bytes of samples that may be in memory at once: in work, or waiting for a writer.

    Enough for each worker to have a picture of 12 megapixels. With pictures of 3 megapixels two
    workers stay under 500 MB with everything else that a build or an export needs.
    """
    return min(48_000_000 * max(workers, 1), 512_000_000)


def _cgroup_quota(root: Path) -> float | None:
    """Return the processors that the cgroup may use; None if unlimited."""
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


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes, and what limits it."""

    total_nbytes: int
    """Of the machine, or the limit of the cgroup."""
    available_nbytes: int
    """Free or reclaimable: the page cache counts as free."""
    limited_by: str
    """`machine` or `cgroup`."""


def look_at_memory(*, root: Path = Path("/")) -> Memory:
    """Return the memory of the machine, or of a cgroup that limits this process to less."""
    total, available = _machine(root)
    found = Memory(total, available, "machine")
    for limit, used in _cgroups(root):
        free = max(0, limit - used)
        if limit < found.total_nbytes:
            free = min(free, found.available_nbytes)
            found = Memory(limit, free, "cgroup")
        elif free < found.available_nbytes:
            found = Memory(found.total_nbytes, free, "cgroup")
    return found


def _machine(root: Path) -> tuple[int, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        facts = {name: int(rest.split()[0]) * 1024 for name, rest in (x.split(":") for x in lines)}
        return facts["MemTotal"], facts.get("MemAvailable", facts["MemTotal"] // 2)
    except (OSError, ValueError, KeyError, IndexError):
        pass
    if sys.platform != "win32" and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total // 2
    return 8 << 30, 4 << 30  # unknown; assume a small machine


def _cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use that cannot be reclaimed) of each cgroup of this process."""
    base = root / "sys/fs/cgroup"
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for entry in entries:
        _, _, rest = entry.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            yield from _walk(base, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _walk(base / "memory", path, *names)


def _walk(
    base: Path, path: str, limit_name: str, used_name: str, cache_name: str
) -> Iterator[tuple[int, int]]:
    """Yield the same for a cgroup and all its parents: their limits apply to it too."""
    folder = base / path.lstrip("/")
    # inside a container the path is the host's, and only the mount's root can be seen
    for place in dict.fromkeys((folder, *folder.parents, base)):
        if base != place and base not in place.parents:
            continue
        try:
            limit = int((place / limit_name).read_text())  # ValueError for "max": no limit
            used = int((place / used_name).read_text())
            stat = dict(x.split() for x in (place / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        yield limit, max(0, used - int(stat.get(cache_name, 0)) - int(stat.get("active_file", 0)))


def shared_memory_nbytes() -> int | None:
    """Return the size of /dev/shm; None where there is none."""
    try:
        status = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return status.f_blocks * status.f_frsize


_FIELDS = {
    "Rss": "rss",
    "Pss": "pss",
    "Pss_Anon": "pss_anonymous",
    "Pss_File": "pss_file",
    "Pss_Shmem": "pss_shared",
}


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of one process or of several, in bytes.

    RSS counts a page in every process that maps it; PSS divides it by their number, so that the PSS
    of several processes adds up to what they really take.
    """

    rss: int = 0
    pss: int = 0
    pss_anonymous: int = 0
    """Private memory."""
    pss_file: int = 0
    """Mapped pages of the page cache, which the kernel reclaims when it must."""
    pss_shared: int = 0
    """Shared memory, including /dev/shm."""

    def __add__(self, other: ProcessMemory) -> ProcessMemory:
        mine, others = asdict(self), asdict(other)
        return ProcessMemory(**{name: mine[name] + others[name] for name in mine})

    @property
    def own(self) -> int:
        """Return the memory that is not page cache."""
        return self.pss_anonymous + self.pss_shared


def memory_of(pid: int) -> ProcessMemory:
    """Return the memory of one process; Linux splits PSS since 5.4."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(rest.split()[0]) * 1024
    return ProcessMemory(**found)


def parse_nbytes(size: int | str) -> int:
    """Return the bytes of a size such as "512MB" or "1.5 GB" (powers of 1000) or "512MiB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([kMGT]?)(i?)B?", str(size).strip())
    nbytes = 0
    if match is not None:
        base = 1024 if match[3] else 1000
        nbytes = round(float(match[1]) * base ** " kMGT".index(match[2] or " "))
    if nbytes < 1:
        raise SchemaError(f"{size!r} is not a size; use bytes, or as in 512MB or 2GB")
    return nbytes
