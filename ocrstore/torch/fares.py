"""Owns the choice between moving rows and mapping them once more, by what each takes here and now.

To move pages, every core that runs a thread of this process must be told that their addresses
changed. That is next to nothing while the other threads sleep. On a virtual machine whose cores
spin, waiting for work, it may take longer than the page faults of a fresh mapping.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from ocrstore.torch._region import PAGE
from ocrstore.torch._rows import FileHandle, RowLayout
from ocrstore.torch.assembly import assemble

_REST = 48
"""Batches after which moving is tried again."""
_WEIGHT = 0.25
"""Of the latest batch in the running averages: one that was interrupted must not decide alone."""


class Fares:
    """What it takes to move a row and back, against mapping it; for one thread at a time."""

    def __init__(self, mapping: float) -> None:
        """Begin with the seconds that mapping one row takes, and reading each page of it."""
        self._mapping = mapping
        self._rest = 0
        self._averages: dict[str, float] = {}

    def choose_moving(self) -> bool:
        """Tell whether the next batch is to be moved; to be asked once for each."""
        if self._rest:
            self._rest -= 1
            return False
        return True

    def note(self, way: str, seconds: float, rows: int) -> None:
        """Note how long moving so many rows took, one `way` or the other."""
        if self._rest:
            return  # a batch of before, on its way home
        each = seconds / rows
        average = self._averages.get(way, each)
        self._averages[way] = average + _WEIGHT * (each - average)
        # two threads that read a batch share its page faults, but not the moving
        bound = self._mapping / min(2, torch.get_num_threads())
        if len(self._averages) > 1 and sum(self._averages.values()) > bound:
            self._averages.clear()
            self._rest = _REST


def time_mapping(file: FileHandle, layout: RowLayout) -> float:
    """Return the seconds that mapping one row takes, and reading a byte of each of its pages."""
    row = np.zeros(1, np.int64)
    taken = []
    for _ in range(4):  # the first one may have to wait for the disk
        began = time.perf_counter()
        pages = assemble(file, layout, row)[0].reshape(-1).view(np.uint8)[::PAGE]
        np.add.reduce(pages, dtype=np.uint64)
        del pages
        taken.append(time.perf_counter() - began)
    return min(taken[1:])
