"""Owns the persistent private mapping of a column and the leases on its rows.

A lease is an object that numpy and torch keep alive as long as any array, tensor, view or storage
points into its rows. When the last of them is gone the pages that were written are found and
dropped, so the next one who takes those rows sees the file again. Rows that are leased already
are never handed out twice.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque

import numpy as np

from ocrstore.torch._pagemap import Finder, counts_faults, fault_count
from ocrstore.torch._region import MapLimitError, Region
from ocrstore.torch._rows import AnyArray, FileHandle, IntArray, RowLayout, as_rows

_MAX_PIECES = 1024
"""A column in more pieces than this is mapped as it lies in the file, and not row after row."""


class Lease:
    """The right to use some rows of a `ColumnMapping`; ends when the object dies, in any thread."""

    __slots__ = ("__array_interface__", "_faults", "_mapping", "_pid", "count", "first")

    def __init__(self, mapping: ColumnMapping, first: int, count: int) -> None:
        self.first = first
        self.count = count
        self._pid = os.getpid()
        self._mapping = mapping
        self._faults = mapping.count_faults()
        self.__array_interface__ = as_rows(mapping.address_of(first), count, mapping.layout)

    def __del__(self) -> None:
        # A forked child inherits the object, but its mapping is a copy that nobody takes rows from.
        if not sys.is_finalizing() and self._pid == os.getpid():
            self._mapping.end(self.first, self.count, faults=self._faults)


class ColumnMapping:
    """One column mapped private and writable for the life of the process that made it.

    Threads may take rows and end leases at once. Not for use in a forked child: make another one
    there.
    """

    def __init__(self, file: FileHandle, layout: RowLayout, finder: Finder) -> None:
        if not layout.mappable:
            raise ValueError("the rows of this column do not lie on pages of their own")
        self.layout = layout
        self._finder = finder
        self._counts_faults = counts_faults(file.fd)
        self._lock = threading.Lock()
        self._ended: deque[tuple[int, int, bool]] = deque()
        self._leased = bytearray(len(layout))
        self._region, self._positions = _map_column(file, layout)
        gaps = np.diff(self._positions) != layout.pitch
        self._gaps: IntArray | None = np.flatnonzero(gaps) if gaps.any() else None

    def address_of(self, row: int) -> int:
        """Return where a row begins."""
        return self._region.address + int(self._positions[row])

    def take(self, first: int, count: int) -> AnyArray | None:
        """Return rows [first, first + count) as one writable array, or None where that cannot be.

        It cannot be where the rows do not adjoin in the mapping or one of them is leased already.
        """
        if first < 0 or count <= 0 or first + count > len(self._positions):
            raise IndexError(f"rows [{first}, {first + count}) of {len(self._positions)}")
        if self._gaps is not None:
            # rows that another one does not follow at once; none of them may be inside the run
            inside = np.searchsorted(self._gaps, (first, first + count - 1))
            if inside[0] != inside[1]:
                return None
        lease = None
        with self._lock:
            self._settle()
            if self._leased.find(1, first, first + count) < 0:
                self._leased[first : first + count] = b"\1" * count
                lease = Lease(self, first, count)
        self._settle_if_free()
        return None if lease is None else np.asarray(lease)

    def count_faults(self) -> int | None:
        """Return the process's page faults so far; None where they say nothing."""
        return fault_count() if self._counts_faults else None

    def end(self, first: int, count: int, *, faults: int | None = None) -> None:
        """End a lease: called by its finalizer, which may interrupt any code, this class's too.

        If there was no page fault since the lease began (`faults` were counted then), nothing was
        written.
        """
        clean = faults is not None and faults == self.count_faults()
        self._ended.append((first, count, clean))
        self._settle_if_free()

    def _settle_if_free(self) -> None:
        # Whoever holds the lock looks here again after letting go, so nothing is left behind.
        while self._ended and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        while self._ended:
            first, count, clean = self._ended.popleft()
            if not clean:
                self._restore(self.address_of(first), count * self.layout.pitch)
            self._leased[first : first + count] = bytes(count)

    def _restore(self, start: int, nbytes: int) -> None:
        try:
            written = self._finder.written(start, start + nbytes)
        except OSError:
            written = [(start, start + nbytes)]
        # if a page could not be restored, the error shows and its rows stay leased for ever
        for first, last in written:
            self._region.drop(first, last)

    @property
    def leased_rows(self) -> int:
        """Return how many rows are leased now."""
        return sum(self._leased)


def _map_column(file: FileHandle, layout: RowLayout) -> tuple[Region, IntArray]:
    """Map a column row after row if it lies in few pieces, else as it lies in the file."""
    rows = np.arange(len(layout), dtype=np.int64)
    runs = layout.runs(rows)
    if len(runs) <= _MAX_PIECES:
        try:
            region = Region(len(layout) * layout.pitch, len(runs))
            for position, count, offset in runs:
                region.place(position * layout.pitch, count * layout.pitch, file.fd, offset)
            return region, rows * layout.pitch
        except MapLimitError:
            pass  # one mapping always fits
    low = int(layout.offsets.min())
    span = int(layout.offsets.max()) + layout.pitch - low
    region = Region(span, 1)
    region.place(0, span, file.fd, low)
    return region, layout.offsets - low
