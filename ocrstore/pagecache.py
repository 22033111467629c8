"""How much of a file the system holds in memory; asks Linux and macOS, says None elsewhere."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import sys

import numpy as np

from ocrstore.format.mapped_file import MappedFile

_CHUNK = 2**30


def resident_nbytes(mapping: MappedFile) -> int | None:
    """Return how many of a mapped file's bytes are in the page cache; None if nobody can tell."""
    mincore = _mincore()
    if mincore is None:
        return None
    page = mmap.PAGESIZE
    resident = 0
    for start in range(0, mapping.nbytes, _CHUNK):
        nbytes = min(_CHUNK, mapping.nbytes - start)
        flags = np.zeros(-(-nbytes // page), np.uint8)
        if mincore(mapping.address + start, nbytes, flags.ctypes.data) != 0:
            return None
        resident += int(np.count_nonzero(flags & 1)) * page
    return min(resident, mapping.nbytes)


def _mincore() -> ctypes._NamedFuncPointer | None:
    if sys.platform == "win32":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
