"""Owns ranges of address space: placing file pages in them and dropping pages.

Everything here goes through one class that checks bounds before it calls `mmap(MAP_FIXED)`,
because a wrong address there would silently replace somebody else's memory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections import deque
from functools import lru_cache
from pathlib import Path

PAGE = mmap.PAGESIZE

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x02, 0x10, 0x20, 0x4000
_MADV_DONTNEED = 4
_MAP_FAILED = ctypes.c_void_p(-1).value
_DEFAULT_MAX_MAPS = 65530

supported = sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8
"""Whether this system has the private mappings that can be put together and restored page by
page.
"""


class MapLimitError(Exception):
    """So many mappings are alive that the kernel's limit is near; a copy must do."""


class _LibC:
    """The calls with their full types: an int for a pointer would be cut to 32 bits."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.mmap = libc.mmap
        self.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
        self.mmap.restype = pointer
        self.munmap = libc.munmap
        self.munmap.argtypes = [pointer, size]
        self.munmap.restype = number
        self.madvise = libc.madvise
        self.madvise.argtypes = [pointer, size, number]
        self.madvise.restype = number


@lru_cache(maxsize=1)
def _libc() -> _LibC:
    return _LibC()


def _fail(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


class _MapBudget:
    """Counts the mappings of regions, so that a quarter of the kernel's limit is never passed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used = 0
        # finalizers run anywhere, also inside `take` of the same thread: they only append
        self._returned: deque[int] = deque()
        self.limit = _kernel_map_limit() // 4
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it

    def take(self, count: int) -> None:
        with self._lock:
            while self._returned:
                self._used -= self._returned.popleft()
            if self._used + count > self.limit:
                raise MapLimitError(f"{self._used} + {count} mappings of {self.limit}")
            self._used += count

    def give_back(self, count: int) -> None:
        self._returned.append(count)


def _kernel_map_limit() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _DEFAULT_MAX_MAPS


budget = _MapBudget()


def round_up(nbytes: int) -> int:
    """Return the length of the whole pages that hold `nbytes`."""
    return -(-nbytes // PAGE) * PAGE


class Region:
    """A reserved range of addresses; unmapped when the object dies, in the process that made it.

    Whoever points into a region must keep it alive. After a fork the child has its own copy of the
    mappings, and its copy of this object unmaps only those.
    """

    __slots__ = ("_holes", "_maps", "_munmap", "address", "nbytes")

    def __init__(self, nbytes: int, maps: int) -> None:
        """Reserve `nbytes` (whole pages) that will hold at most `maps` placements."""
        self.nbytes = 0
        self._holes: list[tuple[int, int]] = []
        self._maps = 0
        if nbytes <= 0 or nbytes % PAGE:
            raise ValueError(f"a region is a number of whole pages, not {nbytes} bytes")
        libc = _libc()
        self._munmap = libc.munmap
        budget.take(maps + 1)
        self._maps = maps + 1
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        address = libc.mmap(None, nbytes, _PROT_NONE, flags, -1, 0)
        if address is None or address == _MAP_FAILED:
            raise _fail("mmap")
        self.address: int = address
        self.nbytes = nbytes

    def place(self, at: int, nbytes: int, fd: int, offset: int) -> None:
        """Map file pages [offset, offset + nbytes) privately at byte `at` of the region."""
        self._check(at, nbytes)
        if offset % PAGE or offset < 0:
            raise ValueError(f"not on page boundaries: at {at}, {nbytes} bytes, offset {offset}")
        protection = _PROT_READ | _PROT_WRITE
        flags = _MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        address = _libc().mmap(self.address + at, nbytes, protection, flags, fd, offset)
        if address != self.address + at:
            raise self._broken(at, nbytes, _fail("mmap"))

    def _check(self, at: int, nbytes: int) -> None:
        if at < 0 or nbytes <= 0 or at + nbytes > self.nbytes:
            raise ValueError(f"[{at}, {at + nbytes}) is outside a region of {self.nbytes} bytes")
        if at % PAGE or nbytes % PAGE:
            raise ValueError(f"not on page boundaries: at {at}, {nbytes} bytes")

    def _broken(self, at: int, nbytes: int, error: OSError) -> Exception:
        """Return what to raise when the kernel refused to map something over a part of this."""
        # It may have left a hole, and another thread may have mapped something into it: losing the
        # addresses is better than ever unmapping them.
        self._holes.append((at, at + nbytes))
        return MapLimitError(str(error)) if error.errno == errno.ENOMEM else error

    def drop(self, start: int, end: int) -> None:
        """Forget what was written at addresses [start, end): the file's pages show again."""
        if start < self.address or end > self.address + self.nbytes or start > end:
            raise ValueError(f"[{start:#x}, {end:#x}) is outside the region at {self.address:#x}")
        if _libc().madvise(start, end - start, _MADV_DONTNEED):
            raise _fail("madvise")

    def __del__(self) -> None:
        start = 0
        for first, last in (*sorted(self._holes), (self.nbytes, self.nbytes)):
            if first > start:
                self._munmap(self.address + start, first - start)
            start = max(start, last)
        self.nbytes = 0
        if self._maps:
            budget.give_back(self._maps)
            self._maps = 0
