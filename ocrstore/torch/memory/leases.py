"""Lend out rows of a persistent private mapping of a column, and undo what was written to them.

A lease is the base object of the numpy array that is returned, so it lives as long as any array,
tensor, view or storage that points into its rows. When it ends, the pages that were written are
found and discarded, and the next taker of those rows sees the file again. A row is never leased
twice at the same time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ocrstore.torch.memory.address_range import AddressRange, MapLimitError
from ocrstore.torch.memory.row_layout import (
    AnyArray,
    FileHandle,
    IntArray,
    RowLayout,
    array_interface,
)
from ocrstore.torch.memory.written_pages import Finder, Range, counts_faults, fault_count

_MAX_PIECES = 1024
"""A column in more pieces than this is mapped in the order of the file, with one mapping."""


class Lease:
    """The right to use rows [first, first + count) of a `ColumnMapping`, until the object dies."""

    __slots__ = ("__array_interface__", "_count", "_faults", "_first", "_mapping", "_pid")

    def __init__(self, mapping: ColumnMapping, first: int, count: int) -> None:
        # All that `__del__` needs comes before anything that may be interrupted: the rows are
        # marked as leased already.
        self._faults: int | None = None
        self._pid = os.getpid()
        self._first = first
        self._count = count
        self._mapping = mapping
        self._faults = mapping.count_faults()
        self.__array_interface__ = array_interface(mapping.address_of(first), count, mapping.layout)

    def __del__(
        self,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
        getpid: Callable[[], int] = os.getpid,
    ) -> None:
        # Bound as defaults, because the names of this module are gone when the interpreter exits.
        # A forked child inherits the object, but takes rows from a mapping of its own: what the
        # child writes to these rows stays in its copy, and there is nothing to free.
        if not is_finalizing() and self._pid == getpid():
            self._mapping.end(self._first, self._count, faults=self._faults)


Seam = Sequence[tuple[FileHandle, RowLayout, IntArray]]
"""Rows of one file, then rows of the next, with their layouts."""


class ColumnMapping:
    """One column, mapped private and writable for the life of the process that made it.

    Threads may take rows and end leases at the same time. A forked child must make its own.
    """

    def __init__(
        self, file: FileHandle, layout: RowLayout, finder: Finder, *, seam: Seam | None = None
    ) -> None:
        """Map a column; with `seam` only the rows about the border to the next file."""
        if not layout.mappable:
            raise ValueError("the rows of this column do not have pages of their own")
        self.layout = layout
        self._finder = finder
        self._counts_faults = counts_faults(file.fd)
        self._lock = threading.Lock()
        self._ended: deque[tuple[int, int, bool]] = deque()
        if seam is None:
            self._range, self._positions = _map_column(file, layout)
        else:
            self._range, self._positions = _map_seam(seam, layout.pitch)
        self._leased = bytearray(len(self._positions))
        gaps = np.diff(self._positions) != layout.pitch
        self._gaps: IntArray | None = np.flatnonzero(gaps) if gaps.any() else None

    def address_of(self, row: int) -> int:
        """Return the address of a row."""
        return self._range.address + int(self._positions[row])

    def take(self, first: int, count: int) -> AnyArray | None:
        """Return rows [first, first + count) as one writable array.

        Returns None if they are not contiguous in the mapping or one of them is leased.
        """
        if first < 0 or count <= 0 or first + count > len(self._positions):
            raise IndexError(f"rows [{first}, {first + count}) of {len(self._positions)}")
        if self._gaps is not None:
            # contiguous if no row with a gap behind it lies inside the run
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
        """Return the page faults of this process so far; None where they prove nothing."""
        return fault_count() if self._counts_faults else None

    def end(self, first: int, count: int, *, faults: int | None = None) -> None:
        """End a lease.

        Called by a finalizer, which may interrupt any code, also the code below while this thread
        holds the lock. So it only appends to a queue, and works on the queue if the lock is free.

        Args:
            first: The first row of the lease.
            count: The number of rows.
            faults: The page faults that were counted when the lease began. If there was none
                since, nothing was written.
        """
        clean = faults is not None and faults == self.count_faults()
        self._ended.append((first, count, clean))
        error = self._settle_if_free()
        if error is not None:
            raise error

    def _settle_if_free(self) -> Exception | None:
        """Settle ended leases unless another thread holds the lock; return the first error."""
        first: Exception | None = None
        # Whoever holds the lock calls this again after releasing it, so nothing is left behind.
        while self._ended and self._lock.acquire(blocking=False):
            try:
                error = self._settle()
            finally:
                self._lock.release()
            first = first or error
        return first

    def _settle(self) -> Exception | None:
        """Restore and free the rows of ended leases; return the first error.

        A row that could not be restored stays leased for ever. The error is returned and not
        raised, because the next taker must not get the error of another one's lease.
        """
        error: Exception | None = None
        while self._ended:
            first, count, clean = self._ended.popleft()
            try:
                if not clean:
                    self._restore(first, count)
                self._leased[first : first + count] = bytes(count)
            except OSError as exc:
                error = error or exc
        return error

    def _restore(self, first: int, count: int) -> None:
        """Discard what was written to rows."""
        start = self.address_of(first)
        for low, high in self._written(start, start + count * self.layout.pitch):
            self._range.discard(low, high)

    def _written(self, start: int, end: int) -> list[Range]:
        try:
            return self._finder.written(start, end)
        except OSError:
            return [(start, end)]

    @property
    def leased_rows(self) -> int:
        """Return how many rows are leased now."""
        return sum(self._leased)


def _map_seam(seam: Seam, pitch: int) -> tuple[AddressRange, IntArray]:
    """Map rows of several files one after another."""
    parts = [(file, len(rows), layout.runs(rows)) for file, layout, rows in seam]
    total = sum(count for _, count, _ in parts)
    mapped = AddressRange(total * pitch, sum(len(runs) for _, _, runs in parts))
    start = 0
    for file, rows, runs in parts:
        for position, count, offset in runs:
            mapped.map_file((start + position) * pitch, count * pitch, file.fd, offset)
        start += rows
    return mapped, np.arange(total, dtype=np.int64) * pitch


def _map_column(file: FileHandle, layout: RowLayout) -> tuple[AddressRange, IntArray]:
    """Map a column in the order of its rows if it has few pieces, else in the order of the file."""
    rows = np.arange(len(layout), dtype=np.int64)
    runs = layout.runs(rows)
    if len(runs) <= _MAX_PIECES:
        try:
            mapped = AddressRange(len(layout) * layout.pitch, len(runs))
            for position, count, offset in runs:
                mapped.map_file(position * layout.pitch, count * layout.pitch, file.fd, offset)
            return mapped, rows * layout.pitch
        except MapLimitError:
            pass  # one mapping always fits
    low = int(layout.offsets.min())
    span = int(layout.offsets.max()) + layout.pitch - low
    mapped = AddressRange(span, 1)
    mapped.map_file(0, span, file.fd, low)
    return mapped, layout.offsets - low
