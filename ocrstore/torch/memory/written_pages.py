"""Find the pages of a private mapping that were written to.

A page of a private file mapping belongs to the page cache until it is written to; then it is an
anonymous copy. Linux distinguishes them by the `PAGEMAP_SCAN` ioctl (6.7) or, slower, in
`/proc/self/pagemap`. Where neither works every page counts as written, which is always safe.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from ocrstore.torch.memory.row_layout import PAGE

if sys.platform != "win32":  # at import, because every lease needs them
    import fcntl
    import resource

Range = tuple[int, int]
"""Addresses [start, end) of whole pages."""

FinderName = Literal["scan", "read", "all"]

_PAGEMAP = "/proc/self/pagemap"
_PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
_IS_FILE, _IS_PRESENT, _IS_SWAPPED = 1 << 2, 1 << 3, 1 << 4
_MAX_RANGES = 512
"""Ranges that one call of the ioctl returns."""

# /proc/self/pagemap, one 64-bit word for each page
_WORD_PRESENT, _WORD_SWAPPED, _WORD_FILE = (
    np.uint64(1 << 63),
    np.uint64(1 << 62),
    np.uint64(1 << 61),
)


class Finder(Protocol):
    """Finds written pages."""

    name: FinderName

    def written(self, start: int, end: int) -> list[Range]:
        """Return the written parts of a private mapping; may return more, never less."""


class _ScanArg(ctypes.Structure):
    """`struct pm_scan_arg` of linux/fs.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size",
            "flags",
            "start",
            "end",
            "walk_end",
            "vec",
            "vec_len",
            "max_pages",
            "category_inverted",
            "category_mask",
            "category_anyof_mask",
            "return_mask",
        )
    ]


class _PagemapFile:
    """`/proc/self/pagemap`, opened again after a fork.

    A descriptor keeps showing the process that opened it: in a forked child it would show the
    parent's pages.
    """

    def __init__(self) -> None:
        self._fd: int | None = None
        self._pid = -1

    def fd(self) -> int:
        """Return a descriptor for the calling process."""
        pid = os.getpid()
        if self._fd is None or self._pid != pid:
            if self._fd is not None:
                os.close(self._fd)
            self._fd = os.open(_PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
            self._pid = pid
        return self._fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._fd is not None:
            close(self._fd)


class ScanFinder:
    """Asks `PAGEMAP_SCAN` for pages that are present or swapped out and not of a file."""

    name: FinderName = "scan"

    def __init__(self) -> None:
        self._file = _PagemapFile()

    def written(self, start: int, end: int) -> list[Range]:
        """Return exactly the written parts."""
        found: list[Range] = []
        ranges = (ctypes.c_uint64 * (3 * _MAX_RANGES))()
        argument = _ScanArg(
            size=ctypes.sizeof(_ScanArg),
            start=start,
            end=end,
            vec=ctypes.addressof(ranges),
            vec_len=_MAX_RANGES,
            category_inverted=_IS_FILE,
            category_mask=_IS_FILE,
            category_anyof_mask=_IS_PRESENT | _IS_SWAPPED,
            return_mask=_IS_PRESENT | _IS_SWAPPED,
        )
        while argument.start < end:
            count = fcntl.ioctl(self._file.fd(), _PAGEMAP_SCAN, argument, True)
            found += [(ranges[3 * i], ranges[3 * i + 1]) for i in range(count)]
            if argument.walk_end <= argument.start:
                raise OSError(f"PAGEMAP_SCAN stopped at {argument.walk_end:#x} before {end:#x}")
            argument.start = argument.walk_end
        return found


class ReadFinder:
    """Reads `/proc/self/pagemap`."""

    name: FinderName = "read"

    def __init__(self) -> None:
        self._file = _PagemapFile()

    def written(self, start: int, end: int) -> list[Range]:
        """Return exactly the written parts."""
        count = (end - start) // PAGE
        data = os.pread(self._file.fd(), 8 * count, 8 * (start // PAGE))
        if len(data) != 8 * count:
            raise OSError(f"{_PAGEMAP}: expected {8 * count} bytes, read {len(data)}")
        words = np.frombuffer(data, np.uint64)
        exists = (words & (_WORD_PRESENT | _WORD_SWAPPED)) != 0
        anonymous = exists & ((words & _WORD_FILE) == 0)
        edges = np.flatnonzero(np.diff(anonymous, prepend=False, append=False))
        return [
            (start + PAGE * int(first), start + PAGE * int(last))
            for first, last in zip(edges[::2], edges[1::2], strict=True)
        ]


class AllFinder:
    """Takes every page for written: correct everywhere, but all pages must be mapped again."""

    name: FinderName = "all"

    def written(self, start: int, end: int) -> list[Range]:
        """Return the whole range."""
        return [(start, end)]


def fault_count() -> int:
    """Return the page faults of this process so far.

    The first write to a page of a private mapping is a fault: without one, nothing was written.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def counts_faults(fd: int) -> bool:
    """Try whether the system counts the page fault of a first write (some sandboxes do not)."""
    with mmap.mmap(fd, PAGE, access=mmap.ACCESS_COPY) as probe:
        first = probe[0]
        before = fault_count()
        probe[0] = first
        return fault_count() > before


def make_finder(name: FinderName) -> Finder:
    """Return a finder by name, whether or not it works on this system."""
    if name == "scan":
        return ScanFinder()
    return ReadFinder() if name == "read" else AllFinder()


def works(finder: Finder, fd: int) -> bool:
    """Try a finder on a private mapping of a file with one page read and one page written."""
    if os.fstat(fd).st_size < 2 * PAGE:
        return finder.name == "all"
    with mmap.mmap(fd, 2 * PAGE, access=mmap.ACCESS_COPY) as probe:
        start = ctypes.addressof(ctypes.c_char.from_buffer(probe))
        sum(probe[::PAGE])
        probe[PAGE] = probe[PAGE] ^ 1
        try:
            found = finder.written(start, start + 2 * PAGE)
        except OSError:
            return False
    return found == [(start + PAGE, start + 2 * PAGE)] or finder.name == "all"


def best_finder(fd: int) -> Finder:
    """Return the fastest finder that works on the file behind `fd`."""
    names: tuple[FinderName, ...] = ("scan", "read")
    for name in names:
        finder = make_finder(name)
        if works(finder, fd):
            return finder
    return AllFinder()
