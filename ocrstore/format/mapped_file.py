"""A read-only memory map of a whole file, arrays in it, and what of a file the page cache keeps."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ocrstore.errors import NotAStoreError, OCRStoreError, StoreChangedError

if TYPE_CHECKING:
    import numpy.typing as npt

_MINCORE_NBYTES = 2**30
"""Bytes of the file per call: each needs one byte of memory per page."""


class MappedFile:
    """A file, mapped whole at the size it had when it was opened.

    Every array and buffer taken from it keeps the map alive; it is unmapped when the last of them
    is freed. Nothing is copied; no lock and no writable directory are needed. Thread-safe; a forked
    child inherits it.
    """

    __slots__ = ("_bytes", "_map", "device", "inode", "nbytes", "path", "times")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            # O_NONBLOCK: opening a named pipe would wait for a writer
            flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(self.path, flags)
        except FileNotFoundError as exc:
            raise NotAStoreError(
                f"{self.path}: no such file. Check the path; `ocrstore build` makes a store."
            ) from exc
        except PermissionError as exc:
            if os.path.isdir(self.path):  # noqa: PTH112  # Windows refuses to open a directory
                raise _directory(self.path) from exc
            raise OCRStoreError(
                f"{self.path}: no permission to read it. Ask its owner for read access."
            ) from exc
        except ValueError as exc:
            raise NotAStoreError(f"{self.path!r}: not a path ({exc}). Check it.") from exc
        except OSError as exc:
            raise OCRStoreError(
                f"{self.path}: cannot be opened: {exc.strerror}. Check the path."
            ) from exc
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise _directory(self.path)
            if not stat.S_ISREG(status.st_mode):
                raise NotAStoreError(
                    f"{self.path}: not a regular file (a pipe, a device, a socket). Copy its "
                    "content into a file and open that."
                )
            if status.st_size == 0:
                raise NotAStoreError(
                    f"{self.path}: the file is empty. Copy it again, or delete and rebuild it."
                )
            self.nbytes = status.st_size
            self.device, self.inode = status.st_dev, status.st_ino
            self.times = (status.st_mtime_ns, status.st_ctime_ns)
            try:
                self._map = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as exc:
                raise OCRStoreError(f"{self.path}: cannot be mapped: {exc}.") from exc
        finally:
            os.close(descriptor)
        # exports the map's buffer for good: mmap.close() would otherwise unmap below an array
        self._bytes = np.frombuffer(self._map, np.uint8)

    @property
    def buffer(self) -> memoryview:
        """The whole file as a read-only buffer."""
        return memoryview(self._map)

    def part(self, offset: int, nbytes: int) -> memoryview:
        """Return some bytes at a file offset, without a copy."""
        return memoryview(self._map)[offset : offset + nbytes]

    @property
    def address(self) -> int:
        """The map's address in this process."""
        return int(self._bytes.ctypes.data)

    def array(
        self,
        offset: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """Return a read-only array at a file offset, without a copy; numpy checks the bounds."""
        return np.ndarray(shape, dtype, self._bytes, offset, strides)

    def resident_nbytes(self, parts: Iterable[tuple[int, int]] | None = None) -> int | None:
        """Return how many bytes are in the page cache; None if the system does not report it.

        Args:
            parts: (offset, nbytes) of each part that is asked about; the whole file by default.
        """
        mincore = _mincore()
        if mincore is None:
            return None
        resident = total = 0
        for offset, part in ((0, self.nbytes),) if parts is None else parts:
            total += part
            for start in range(offset - offset % mmap.PAGESIZE, offset + part, _MINCORE_NBYTES):
                nbytes = min(_MINCORE_NBYTES, offset + part - start)
                flags = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
                if mincore(self.address + start, nbytes, flags.ctypes.data) != 0:
                    return None
                resident += int(np.count_nonzero(flags & 1)) * mmap.PAGESIZE
        return min(resident, total)

    def has_grown(self) -> bool:
        """Return whether the file is larger now than when it was mapped."""
        return self._map.size() > self.nbytes

    def check(self) -> None:
        """Raise StoreChangedError if the file was truncated since.

        Reading a mapped page behind the end of the file kills the process with SIGBUS, so this is
        called before every access.
        """
        if self._map.size() < self.nbytes:
            raise StoreChangedError(
                f"{self.path}: was truncated from {self.nbytes} to {self._map.size()} bytes. "
                "Restore the file and open it again; replace stores by renaming, never in place."
            )


def leave_page_cache(fd: int, start: int, end: int) -> None:
    """Drop a part of a file from the page cache, where the system can; what is not synced stays."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # a file system without this advice
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)


def _directory(path: str) -> NotAStoreError:
    return NotAStoreError(f"{path}: is a directory; a store is one file. Name the file in it.")


def _mincore() -> ctypes._NamedFuncPointer | None:
    """Return the system call of Linux and macOS that reports which pages are in memory."""
    if sys.platform == "win32":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
