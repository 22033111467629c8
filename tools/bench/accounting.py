"""What a process and its descendants take, as Linux accounts for it; the standard library only."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
DISTURBED = 0.08
"""The share of all cores' time that others may take from a cell before it is marked."""


def descendants(pid: int | None = None) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = _stat(int(entry.name))
            except OSError:
                continue  # it ended meanwhile
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid or os.getpid()]
    for one in found:
        found.extend(parents.get(one, ()))
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name, the state first."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time of processes, and of their children that have ended."""
    total = 0.0
    for pid in pids:
        try:
            fields = _stat(pid)
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / TICK
    return total


@dataclass(frozen=True)
class Memory:
    """PSS in bytes: what several processes share is divided between them."""

    own: int
    """anonymous and shared memory"""
    files: int
    """mapped pages of files: the page cache"""


def memory(pids: list[int]) -> Memory:
    """Return the PSS of processes together."""
    found = {"Pss_Anon": 0, "Pss_Shmem": 0, "Pss_File": 0}
    for pid in pids:
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, rest = line.partition(":")
            if name in found:
                found[name] += int(rest.split()[0]) * 1024
    return Memory(found["Pss_Anon"] + found["Pss_Shmem"], found["Pss_File"])


@dataclass(frozen=True)
class Moment:
    """One reading of all clocks."""

    clock: float
    own: float
    """processor time of this process and its descendants"""
    busy: float
    """processor time of the whole machine"""
    stolen: float
    """time in which the hypervisor ran somebody else"""


def moment(pids: list[int] | None = None) -> Moment:
    """Read all clocks; name the processes to save the search for them."""
    fields = [int(field) / TICK for field in (PROC / "stat").read_text().split(None, 9)[1:9]]
    user, nice, system, _idle, _wait, hard, soft, stolen = fields
    own = cpu_seconds(pids or descendants())
    return Moment(time.perf_counter(), own, user + nice + system + hard + soft, stolen)


def disturbance(before: Moment, after: Moment, *, cores: int | None = None) -> float:
    """Return the share of all cores' time that went to others between two moments.

    The kernel counts in ticks; less than two of them on each side are not told from nothing.
    """
    cores = cores or os.cpu_count() or 1
    others = (after.busy - before.busy) - (after.own - before.own)
    taken = max(0.0, others) + (after.stolen - before.stolen)
    if taken <= 4 / TICK:
        return 0.0
    return min(1.0, taken / (cores * (after.clock - before.clock)))


def drop_from_cache(files: list[Path]) -> float:
    """Ask the kernel to forget files; return the share of their pages that is cached after it."""
    cached = total = 0
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # only clean pages can be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(file.fileno()).st_size
            if size:
                pages = _resident(file.fileno(), size)
                cached += pages
                total += -(-size // mmap.PAGESIZE)
    return cached / total if total else 0.0


def _resident(descriptor: int, size: int) -> int:
    """Count the pages of a file that are in the page cache, by mincore."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    protection = mmap.PROT_READ | mmap.PROT_WRITE  # ctypes wants it writable; private: no harm
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, protection) as mapping:
        state = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        handle = ctypes.c_char.from_buffer(mapping)
        failed = libc.mincore(ctypes.addressof(handle), size, state)
        del handle
        if failed:
            raise OSError(ctypes.get_errno(), "mincore failed")
        return len(state.raw) - state.raw.count(b"\0")


def read_into_cache(files: list[Path]) -> None:
    """Read what is not in the page cache of files, so that no cell waits for the disk."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size and _resident(file.fileno(), size) < -(-size // mmap.PAGESIZE):
                while file.read(1 << 22):
                    pass


def process_age() -> float:
    """Return the seconds since this process was started, to a tick."""
    started = int(_stat(os.getpid())[19]) / TICK
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
