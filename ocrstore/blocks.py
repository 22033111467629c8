"""Owns memory that is used again when nobody holds it any more; hides how that is noticed.

Fresh memory is expensive: the system clears it page by page as it is touched, which for the maps of
one picture takes longer than drawing them. Whether `malloc` gives memory back in between depends
on what else the process allocates, so this is not left to it.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt

Block = npt.NDArray[np.uint8]

_KEPT_NBYTES = 1 << 26
_HUGE_NBYTES = 6 << 20
"""From 4 MiB on numpy asks for huge pages, which are faster; what is not touched takes nothing."""


class BlockPool:
    """Hands out arrays of bytes; takes them back when the last view of one is gone.

    Keeps at most `kept_nbytes` that nobody uses. There is no lock, because a block may come back in
    the middle of anything: every step is one atomic operation on a dict or list.
    """

    def __init__(self, *, kept_nbytes: int = _KEPT_NBYTES) -> None:
        self._kept_nbytes = kept_nbytes
        self._free: dict[int, list[Block]] = {}
        self._lent: dict[int, tuple[weakref.ref[Block], Block]] = {}

    @property
    def free_nbytes(self) -> int:
        """What is kept and not in use."""
        return sum([nbytes * len(blocks) for nbytes, blocks in list(self._free.items())])

    def take(self, nbytes: int) -> Block:
        """Return an array of so many bytes, with anything in them."""
        try:
            block = self._free[nbytes].pop()
        except (KeyError, IndexError):
            room = max(nbytes, _HUGE_NBYTES) if nbytes > _HUGE_NBYTES // 3 else nbytes
            block = np.empty(room, np.uint8)[:nbytes]
        # views refer to the array below and not to the block, since a memoryview stands between
        lease = np.frombuffer(block.data, np.uint8)
        # a bare reference: `weakref.finalize` would do the same in ten times the time
        gone = weakref.ref(lease, self._give_back)
        self._lent[id(gone)] = (gone, block)
        return lease

    def _give_back(self, gone: weakref.ref[Block]) -> None:
        _, block = self._lent.pop(id(gone))
        if self.free_nbytes + block.nbytes > self._kept_nbytes:
            # most likely other sizes are in use now
            self._free.clear()
        if block.nbytes <= self._kept_nbytes:
            self._free.setdefault(block.nbytes, []).append(block)


POOL = BlockPool()
"""The one for maps of this process. After a fork, parent and child each have their own copy."""
