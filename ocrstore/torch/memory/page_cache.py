"""Tell which parts of a file are in the page cache, and read the others into it.

`load` returns when everything is there, `read_ahead` immediately.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from ocrstore.torch.memory.row_layout import PAGE, AnyArray, FileHandle

ByteRange = tuple[int, int]
"""(file offset, nbytes)."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_CACHESTAT = 451  # the same number on every architecture that has it
_GAP = 1 << 20
"""Ranges nearer to each other than this are read as one."""
_STEP = 8 << 20


@lru_cache(maxsize=1)
def _syscall() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint,
    ]
    call.restype = ctypes.c_long
    return call


def cached_pages(fd: int, offset: int, nbytes: int) -> int | None:
    """Return how many pages of a part of a file are in the page cache.

    Returns None if the system does not report it: Linux does since 6.5, to the owner of a file and
    to those who may write to it.
    """
    call = _syscall()
    if call is None:
        return None
    part = (ctypes.c_uint64 * 2)(offset, nbytes)
    counts = (ctypes.c_uint64 * 5)()
    if call(_CACHESTAT, fd, ctypes.addressof(part), ctypes.addressof(counts), 0):
        return None
    return int(counts[0])


def is_cached(fd: int, offset: int, nbytes: int) -> bool:
    """Return whether a part of a file is known to be in the page cache."""
    pages = -(-(offset + nbytes) // PAGE) - offset // PAGE
    found = cached_pages(fd, offset, nbytes)
    return found is not None and found >= pages


def not_cached(file: FileHandle, ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Return the ranges that are not known to be in the page cache."""
    return [part for part in ranges if not is_cached(file.fd, *part)]


def load(
    file: FileHandle,
    data: AnyArray,
    ranges: Iterable[ByteRange],
    *,
    progress: Progress | None = None,
) -> None:
    """Read what is not cached of some ranges into the page cache, in the order of the file.

    Args:
        file: The file.
        data: The file's bytes, mapped; pages are touched there on systems without `preadv`.
        ranges: What to read, in any order.
        progress: Called after each step.
    """
    merged = merge(ranges)
    total = sum(nbytes for _, nbytes in merged)
    done = 0
    for first, nbytes in merged:
        for offset in range(first, first + nbytes, _STEP):
            step = min(_STEP, first + nbytes - offset)
            if not is_cached(file.fd, offset, step):
                _read(file, data, offset, step)
            done += step
            if progress is not None:
                progress(done, total)


def _read(file: FileHandle, data: AnyArray, offset: int, nbytes: int) -> None:
    # By reading and not by `POSIX_FADV_WILLNEED`: the kernel then uses large folios, which are
    # mapped and unmapped in less than half the time.
    if not hasattr(os, "preadv"):
        _touch(data, offset, nbytes)
        return
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    end = offset + nbytes
    # a mapping, because malloc would keep freed memory of this size in every worker
    with mmap.mmap(-1, nbytes) as memory, memoryview(memory) as scratch:
        while offset < end:
            with scratch[: end - offset] as part:
                count = os.preadv(file.fd, [part], offset)
            if count <= 0:
                return  # the file was truncated; the reader of the rows reports it
            offset += count


def _touch(data: AnyArray, offset: int, nbytes: int) -> None:
    """Read one byte of each page."""
    start = offset // PAGE * PAGE
    np.add.reduce(data[start : offset + nbytes : PAGE], dtype=np.uint64)


def read_ahead(file: FileHandle, data: AnyArray, missing: list[ByteRange]) -> None:
    """Load ranges in a background thread.

    Does nothing where the system does not report what is cached: it would read everything again and
    again.
    """
    if missing and cached_pages(file.fd, *missing[0]) is not None:
        threading.Thread(target=load, args=(file, data, missing), daemon=True).start()


def merge(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Sort ranges and join those that are contiguous or nearly so."""
    merged: list[ByteRange] = []
    for offset, nbytes in sorted(ranges):
        if merged and offset <= sum(merged[-1]) + _GAP:
            first, before = merged[-1]
            merged[-1] = (first, max(before, offset + nbytes - first))
        else:
            merged.append((offset, nbytes))
    return merged


class ProbeSchedule:
    """Chooses the columns of some rows to ask the kernel about, since asking walks every page.

    Columns of the same rows are used together, so they leave the page cache together. When nothing
    was missing for a while, one column at a time is asked about, until something is missing.
    """

    PATIENCE = 16
    """How many times in a row nothing must be missing."""

    def __init__(self) -> None:
        self._calm = 0
        self._turn = 0

    def choose(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns to ask about first."""
        if self._calm < self.PATIENCE or not names:
            return names
        self._turn += 1
        return (names[self._turn % len(names)],)

    def note(self, *, missed: bool) -> None:
        """Record whether anything was missing."""
        self._calm = 0 if missed else self._calm + 1
