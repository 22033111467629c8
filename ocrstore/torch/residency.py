"""Owns the page cache: asks what of a file is there, reads the rest in large runs."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from ocrstore.torch._region import PAGE
from ocrstore.torch._rows import AnyArray, FileHandle

ByteRange = tuple[int, int]
"""(file offset, nbytes)."""

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all)."""

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
    """Return how many pages of a part of a file are in the page cache; None if nobody can tell.

    Linux tells since 6.5, and only those who own the file or may write to it.
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
    """Tell whether a part of a file is surely in the page cache."""
    pages = -(-(offset + nbytes) // PAGE) - offset // PAGE
    found = cached_pages(fd, offset, nbytes)
    return found is not None and found >= pages


def read_through(file: FileHandle, data: AnyArray, ranges: Iterable[ByteRange]) -> None:
    """Read ranges into the page cache, from front to back in large steps.

    By reading and not by advice (`POSIX_FADV_WILLNEED`): what a plain read brings in lies in
    large folios, and those are mapped and unmapped in less than half the time.
    """
    ranges = list(ranges)
    if not ranges:
        return
    if not hasattr(os, "preadv"):
        for offset, nbytes in ranges:
            touch(data, offset, nbytes)
        return
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    # a mapping, because the C library would keep freed memory of this size in every process
    with mmap.mmap(-1, _STEP) as memory, memoryview(memory) as scratch:
        for first, nbytes in ranges:
            offset, end = first, first + nbytes
            while offset < end:
                with scratch[: min(_STEP, end - offset)] as part:
                    got = os.preadv(file.fd, [part], offset)
                if got <= 0:
                    break  # the file was cut; whoever reads the rows says so
                offset += got


def missing_of(file: FileHandle, ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Return the ranges that are not surely in the page cache."""
    return [part for part in ranges if not is_cached(file.fd, *part)]


class Lookout:
    """Decides which columns of some rows to ask the kernel about: asking walks over every page.

    Columns of the same rows are used together, so they leave the page cache together. When nothing
    has been missing for a while, it is enough to ask about one of them, each in turn. The first
    one that is not there makes it ask about all again.
    """

    PATIENCE = 16
    """So many times in a row nothing must be missing."""

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
        """Remember whether anything was missing."""
        self._calm = 0 if missed else self._calm + 1


def ask_for(file: FileHandle, data: AnyArray, missing: list[ByteRange]) -> None:
    """Have these ranges read in the background; returns before they are there."""
    if missing and cached_pages(file.fd, *missing[0]) is not None:
        arguments = (file, data, merge(missing))
        threading.Thread(target=read_through, args=arguments, daemon=True).start()


def touch(data: AnyArray, offset: int, nbytes: int) -> None:
    """Read one byte of each page."""
    if nbytes:
        start = offset // PAGE * PAGE
        np.add.reduce(data[start : offset + nbytes : PAGE], dtype=np.uint64)


def merge(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Sort ranges and join those that adjoin or nearly do."""
    merged: list[ByteRange] = []
    for offset, nbytes in sorted(ranges):
        if merged and offset <= sum(merged[-1]) + _GAP:
            first, before = merged[-1]
            merged[-1] = (first, max(before, offset + nbytes - first))
        else:
            merged.append((offset, nbytes))
    return merged


def warm(
    file: FileHandle, data: AnyArray, ranges: list[ByteRange], *, progress: Progress | None = None
) -> int:
    """Read ranges into the page cache from front to back, and return how many bytes they are."""
    merged = merge(ranges)
    total = sum(nbytes for _, nbytes in merged)
    done = 0
    for first, nbytes in merged:
        for offset in range(first, first + nbytes, _STEP):
            step = min(_STEP, first + nbytes - offset)
            read_through(file, data, missing_of(file, [(offset, step)]))
            done += step
            if progress is not None:
                progress(done, total)
    return total
