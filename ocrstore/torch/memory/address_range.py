"""Reserve ranges of addresses and map pages of a file into them.

Every `mmap(MAP_FIXED)` goes through `AddressRange`, which checks the bounds first: a wrong address
would silently replace memory of other code.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ocrstore.torch.memory.row_layout import (
    PAGE,
    AnyArray,
    FileHandle,
    IntArray,
    RowLayout,
    array_interface,
)

Place = tuple[int, int]
"""A descriptor, and an offset in its file."""

MIN_MAPPED_NBYTES = 16 * PAGE
"""Shorter rows are copied when they are scattered: a system call for each would take longer."""

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x02, 0x10, 0x20, 0x4000
_MADV_DONTNEED = 4
_MAP_FAILED = ctypes.c_void_p(-1).value
_DEFAULT_MAX_MAPS = 65530

supported = sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8
"""Whether this system has private mappings that can be joined and restored page by page."""


class MapLimitError(Exception):
    """Too many mappings are alive, near the kernel's limit; the caller copies instead."""


class _LibC:
    """The system calls with their full types: ctypes would cut a pointer to 32 bits."""

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


def _os_error(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


class _MapBudget:
    """Counts the mappings of all address ranges; refuses more than a quarter of the limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used = 0
        # A finalizer may run inside `take` of the same thread, so `give_back` cannot take the lock.
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
                raise MapLimitError(f"{self._used} + {count} mappings, the limit is {self.limit}")
            self._used += count

    def give_back(self, count: int) -> None:
        self._returned.append(count)


def _kernel_map_limit() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _DEFAULT_MAX_MAPS


budget = _MapBudget()


class AddressRange:
    """A reserved range of addresses, unmapped when the object dies.

    Whoever points into it must keep it alive. After a fork the child has a copy of the mappings,
    and its copy of this object unmaps only those.
    """

    __slots__ = ("_holes", "_maps", "_munmap", "address", "nbytes")

    def __init__(self, nbytes: int, maps: int) -> None:
        """Reserve `nbytes` (whole pages) for at most `maps` mappings.

        Raises:
            MapLimitError: Too many mappings are alive.
            OSError: The kernel refused.
        """
        self.nbytes = 0
        self._holes: list[tuple[int, int]] = []
        self._maps = 0
        if nbytes <= 0 or nbytes % PAGE:
            raise ValueError(f"{nbytes} bytes: expected a positive number of whole pages")
        libc = _libc()
        self._munmap = libc.munmap
        budget.take(maps + 1)
        self._maps = maps + 1
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        address = libc.mmap(None, nbytes, _PROT_NONE, flags, -1, 0)
        if address is None or address == _MAP_FAILED:
            raise _os_error("mmap")
        self.address: int = address
        self.nbytes = nbytes

    def map_file(self, at: int, nbytes: int, fd: int, offset: int) -> None:
        """Map file pages [offset, offset + nbytes), private and writable, at byte `at`."""
        if at < 0 or nbytes <= 0 or at + nbytes > self.nbytes:
            raise ValueError(f"[{at}, {at + nbytes}) is outside a range of {self.nbytes} bytes")
        if at % PAGE or nbytes % PAGE or offset % PAGE or offset < 0:
            raise ValueError(f"not on page boundaries: at {at}, {nbytes} bytes, offset {offset}")
        protection = _PROT_READ | _PROT_WRITE
        flags = _MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        address = _libc().mmap(self.address + at, nbytes, protection, flags, fd, offset)
        if address != self.address + at:
            # The failed call may have unmapped the target, and another thread may have mapped
            # something there since. To leak the addresses is better than to unmap what is not ours.
            self._holes.append((at, at + nbytes))
            error = _os_error("mmap")
            raise MapLimitError(str(error)) if error.errno == errno.ENOMEM else error

    def discard(self, start: int, end: int) -> None:
        """Discard what was written to addresses [start, end): they show the file again."""
        if start < self.address or end > self.address + self.nbytes or start > end:
            raise ValueError(f"[{start:#x}, {end:#x}) is outside the range at {self.address:#x}")
        if _libc().madvise(start, end - start, _MADV_DONTNEED):
            raise _os_error("madvise")

    def __del__(
        self,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
        give_back: Callable[[int], None] = budget.give_back,
    ) -> None:
        if is_finalizing():
            return  # the process ends, and its mappings with it
        start = 0
        for first, last in (*sorted(self._holes), (self.nbytes, self.nbytes)):
            if first > start:
                self._munmap(self.address + start, first - start)
            start = max(start, last)
        if self._maps:
            give_back(self._maps)


class _MappedRows:
    """The base object of an array of mapped rows; keeps their address range alive."""

    __slots__ = ("__array_interface__", "_range")

    def __init__(self, mapped: AddressRange, count: int, layout: RowLayout) -> None:
        self._range = mapped
        self.__array_interface__ = array_interface(mapped.address, count, layout)


def map_together(file: FileHandle, layout: RowLayout, rows: IntArray) -> AnyArray:
    """Map rows, in any order and also repeated, one after another into private memory.

    Raises:
        MapLimitError: Too many mappings are alive.
        OSError: The kernel refused.
    """
    if not layout.mappable:
        raise ValueError("the rows of this column do not have pages of their own")
    runs = layout.runs(rows)
    mapped = AddressRange(len(rows) * layout.pitch, len(runs))
    for position, count, offset in runs:
        mapped.map_file(position * layout.pitch, count * layout.pitch, file.fd, offset)
    return np.asarray(_MappedRows(mapped, len(rows), layout))


def map_places(places: Sequence[Place], layout: RowLayout) -> AnyArray:
    """Map rows of one layout that lie in several files, one after another into private memory.

    Raises:
        MapLimitError: Too many mappings are alive.
        OSError: The kernel refused.
    """
    pitch = layout.pitch
    starts = [0]
    for position in range(1, len(places)):
        fd, offset = places[position - 1]
        if places[position] != (fd, offset + pitch):
            starts.append(position)
    mapped = AddressRange(len(places) * pitch, len(starts))
    for first, end in itertools.pairwise([*starts, len(places)]):
        mapped.map_file(first * pitch, (end - first) * pitch, *places[first])
    return np.asarray(_MappedRows(mapped, len(places), layout))


def map_run(file: FileHandle, layout: RowLayout, rows: IntArray) -> AnyArray | None:
    """Map contiguous rows with Python's mmap, which every system has.

    Returns None if they are not contiguous in the file or the system refuses.
    """
    if not layout.mappable or len(rows) == 0:
        return None
    runs = layout.runs(rows)
    if len(runs) != 1:
        return None
    offset = runs[0][2]
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    # not to the end of the last page: the file may end before it
    nbytes = (len(rows) - 1) * layout.pitch + layout.nbytes
    try:
        mapping = mmap.mmap(file.fd, offset - start + nbytes, access=mmap.ACCESS_COPY, offset=start)
    except OSError:
        return None  # no address space, or strict overcommit
    array: AnyArray = np.ndarray(
        (len(rows), *layout.shape), layout.dtype, mapping, offset - start, layout.strides
    )
    return array
