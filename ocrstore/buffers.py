"""Reuse memory of arrays that are no longer referenced.

Fresh memory is expensive: the kernel clears every page at its first touch, which for the maps of
one picture takes longer than drawing them. Whether `malloc` returns memory to the kernel in
between depends on what else the process allocates, so it is kept here.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[np.uint8]

_KEPT_NBYTES = 1 << 26
_HUGE_NBYTES = 6 << 20
"""From 4 MiB on numpy asks for huge pages, which are faster; untouched pages cost nothing."""


class BufferPool:
    """Hands out arrays of bytes, and reuses the memory of one when its last view is gone.

    Keeps at most `kept_nbytes` of unused memory. Thread-safe without a lock, which a finalizer
    could not take: every step is one atomic operation on a dict or a list.
    """

    def __init__(self, *, kept_nbytes: int = _KEPT_NBYTES) -> None:
        self._kept_nbytes = kept_nbytes
        self._free: dict[int, list[Buffer]] = {}
        self._lent: dict[int, tuple[weakref.ref[Buffer], Buffer]] = {}

    @property
    def free_nbytes(self) -> int:
        """The memory that is kept and not in use."""
        return sum([nbytes * len(blocks) for nbytes, blocks in list(self._free.items())])

    def take(self, nbytes: int) -> Buffer:
        """Return an uninitialized array of `nbytes` bytes."""
        try:
            block = self._free[nbytes].pop()
        except (KeyError, IndexError):
            room = max(nbytes, _HUGE_NBYTES) if nbytes > _HUGE_NBYTES // 3 else nbytes
            block = np.empty(room, np.uint8)[:nbytes]
        # numpy makes a view of a view refer to the owner of the memory; the memoryview between
        # makes this array the owner, so that all views keep it alive
        lease = np.frombuffer(block.data, np.uint8)
        # `weakref.finalize` would take ten times as long
        gone = weakref.ref(lease, self._give_back)
        self._lent[id(gone)] = (gone, block)
        return lease

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an uninitialized array, as `numpy.empty` does."""
        kind = np.dtype(dtype)
        return self.take(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)

    def _give_back(self, gone: weakref.ref[Buffer]) -> None:
        _, block = self._lent.pop(id(gone))
        if self.free_nbytes + block.nbytes > self._kept_nbytes:
            # most likely other sizes are in use now, and the old ones are not needed again
            self._free.clear()
        if block.nbytes <= self._kept_nbytes:
            self._free.setdefault(block.nbytes, []).append(block)


POOL = BufferPool()
"""For the maps of this process. After a fork, parent and child each have a copy."""


_SCRATCH_STEP = 1 << 20
"""Sizes are rounded up to it, so that pictures and parts of many sizes share blocks."""
_SCRATCH = BufferPool()


def scratch_bytes(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return an uninitialised, contiguous uint8 array; reused once no view of it is left."""
    nbytes = math.prod(shape)
    return _SCRATCH.take(-(-nbytes // _SCRATCH_STEP) * _SCRATCH_STEP)[:nbytes].reshape(shape)


def scratch_floats(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return an uninitialised float32 array in the same way."""
    return scratch_bytes((*shape[:-1], 4 * shape[-1])).view(np.float32)


def paste(drawn: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Copy `drawn` into `target` unless OpenCV already drew it there (`dst=` is only a hint)."""
    if not np.may_share_memory(drawn, target):
        target[...] = drawn
