"""Owns the persistent private mapping of a column and the leases on its rows.

A lease is an object that numpy and torch keep alive as long as any array, tensor, view or storage
points into its rows. When the last of them is gone the pages that were written are found and
dropped, so the next one who takes those rows sees the file again. Rows that are leased already
are never handed out twice.

Rows that adjoin are handed out where they are at home. Others are moved next to each other, page
table entries and all, and home again: a page fault for each 16 pages of a batch takes several
times as long.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from ocrstore.torch._pagemap import Finder, Range, counts_faults, fault_count
from ocrstore.torch._region import MapLimitError, Region, can_move
from ocrstore.torch._rows import AnyArray, FileHandle, IntArray, RowLayout, as_rows
from ocrstore.torch.fares import Fares, time_mapping

Rows = Sequence[int]
_MAX_PIECES = 1024
"""A column in more pieces than this is mapped as it lies in the file, and not row after row."""


class Lease:
    """The right to use some rows of a `ColumnMapping`; ends when the object dies, in any thread."""

    __slots__ = ("__array_interface__", "_away", "_faults", "_mapping", "_pid", "_rows")

    def __init__(self, mapping: ColumnMapping, rows: Rows, away: Region | None) -> None:
        """Hand out rows where they are at home, or in a region that they were moved to."""
        self._faults: int | None = None  # should the constructor be interrupted, it ends as any
        self._rows = rows
        self._away = away
        self._pid = os.getpid()
        self._mapping = mapping
        self._faults = mapping.count_faults()
        address = mapping.address_of(rows[0]) if away is None else away.address
        self.__array_interface__ = as_rows(address, len(rows), mapping.layout)

    def __del__(self) -> None:
        # A forked child inherits the object, but its mapping is a copy that nobody takes rows from.
        if not sys.is_finalizing() and self._pid == os.getpid():
            self._mapping.end(self._rows, self._away, faults=self._faults)


class ColumnMapping:
    """One column mapped private and writable for the life of the process that made it.

    Threads may take rows and end leases at once. Not for use in a forked child: make another one
    there.
    """

    def __init__(self, file: FileHandle, layout: RowLayout, finder: Finder) -> None:
        if not layout.mappable:
            raise ValueError("the rows of this column do not lie on pages of their own")
        self.layout = layout
        self._file = file
        self._finder = finder
        self._counts_faults = counts_faults(file.fd)
        self._fares: Fares | None = None
        self._has_tried = False
        self._lock = threading.Lock()
        self._ended: deque[tuple[Rows, Region | None, bool]] = deque()
        self._leased = bytearray(len(layout))
        self._region, self._positions = _map_column(file, layout)
        gaps = np.diff(self._positions) != layout.pitch
        self._gaps: IntArray | None = np.flatnonzero(gaps) if gaps.any() else None

    def address_of(self, row: int) -> int:
        """Return where a row is at home."""
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
                lease = Lease(self, range(first, first + count), None)
        self._settle_if_free()
        return None if lease is None else np.asarray(lease)

    def gather(self, rows: IntArray) -> AnyArray | None:
        """Return rows in any order as one writable array, or None where that cannot be.

        Their pages are moved into one region, and home when the lease ends. Only a page that is
        used for the first time has to be looked up in the page cache. It cannot be where a row
        comes twice or is leased already, or where the system does not move pages, or takes longer
        for that than for mapping them once more.
        """
        numbers = rows.tolist()
        if len(set(numbers)) != len(numbers):
            return None
        lease = None
        with self._lock:
            self._settle()
            if not self._has_tried:
                self._fares = _find_fares(self._file, self.layout, self._finder)
                self._has_tried = True
            free = not any(self._leased[row] for row in numbers)
            if free and self._fares is not None and self._fares.choose_moving():
                away = self._move_away(numbers, self._fares)
                if away is not None:
                    lease = Lease(self, numbers, away)
        self._settle_if_free()
        return None if lease is None else np.asarray(lease)

    def _move_away(self, rows: list[int], fares: Fares) -> Region | None:
        """Move rows into a region of their own; None, and all free, if the kernel refuses."""
        pitch = self.layout.pitch
        try:
            away = Region(len(rows) * pitch, len(rows))
        except (OSError, MapLimitError):
            return None
        began = time.perf_counter()
        done = 0
        try:
            for row in rows:
                self._leased[row] = 1
                self._region.move(int(self._positions[row]), pitch, away, done * pitch)
                done += 1
        except BaseException as exc:
            # what was moved ends with `away`; at home are the file's pages
            self._release(rows[: done + 1])
            if not isinstance(exc, (OSError, MapLimitError)):
                raise
            self._fares = None  # it would refuse again
            return None
        fares.note("away", time.perf_counter() - began, len(rows))
        return away

    def _move_home(self, rows: Rows, away: Region, written: set[int]) -> None:
        """Move rows back and free them; but not those at the places `written`.

        The pages of those end with `away`. Their homes were mapped all the time, and show the file.
        """
        pitch = self.layout.pitch
        began = time.perf_counter()
        lost = -1
        try:
            for place, row in enumerate(rows):
                if place not in written:
                    lost = row  # a call that failed may have left a hole there
                    away.move(place * pitch, pitch, self._region, int(self._positions[row]))
                    lost = -1
        finally:
            self._release([row for row in rows if row != lost])
        if self._fares is not None and not written:
            self._fares.note("home", time.perf_counter() - began, len(rows))

    def _written_places(self, rows: Rows, away: Region) -> set[int]:
        """Return which of the rows in a region were written, and those that are one with them."""
        pitch = self.layout.pitch
        found = self._written(away.address, len(rows) * pitch)
        places = {
            place
            for first, last in found
            for place in range(
                (first - away.address) // pitch, (last - away.address - 1) // pitch + 1
            )
        }
        # Rows that follow each other in the file, too, are one piece to the kernel. Of a piece that
        # was written to, older kernels never join the rest with its neighbours at home again.
        offsets = self.layout.offsets[list(rows)]
        joined = np.diff(offsets) == pitch
        for place in range(1, len(rows)):
            if joined[place - 1] and place - 1 in places:
                places.add(place)
        for place in range(len(rows) - 1, 0, -1):
            if joined[place - 1] and place in places:
                places.add(place - 1)
        return places

    def count_faults(self) -> int | None:
        """Return the process's page faults so far; None where they say nothing."""
        return fault_count() if self._counts_faults else None

    def end(self, rows: Rows, away: Region | None, *, faults: int | None = None) -> None:
        """End a lease: called by its finalizer, which may interrupt any code, this class's too.

        If there was no page fault since the lease began (`faults` were counted then), nothing was
        written.
        """
        clean = faults is not None and faults == self.count_faults()
        self._ended.append((rows, away, clean))
        error = self._settle_if_free()
        if error is not None:
            raise error

    def _settle_if_free(self) -> Exception | None:
        """Settle what has ended, unless somebody else does; return the first error of that."""
        first: Exception | None = None
        # Whoever holds the lock looks here again after letting go, so nothing is left behind.
        while self._ended and self._lock.acquire(blocking=False):
            try:
                error = self._settle()
            finally:
                self._lock.release()
            first = first or error
        return first

    def _settle(self) -> Exception | None:
        """Make rows whose leases have ended free again; return the first error of that.

        A row that could not be restored stays leased for ever. The error is for the one whose lease
        has ended, and not for the next taker.
        """
        first: Exception | None = None
        while self._ended:
            rows, away, clean = self._ended.popleft()
            try:
                if away is not None:
                    written = set() if clean else self._written_places(rows, away)
                    self._move_home(rows, away, written)
                else:
                    if not clean:
                        self._restore(rows)
                    self._release(rows)
            except (OSError, MapLimitError) as exc:
                first = first or exc
        return first

    def _restore(self, rows: Rows) -> None:
        """Forget what was written to rows at home."""
        for first, last in self._written(self.address_of(rows[0]), len(rows) * self.layout.pitch):
            self._region.drop(first, last)

    def _release(self, rows: Rows) -> None:
        if isinstance(rows, range):
            self._leased[rows.start : rows.stop] = bytes(len(rows))
        else:
            for row in rows:
                self._leased[row] = 0

    def _written(self, start: int, nbytes: int) -> list[Range]:
        try:
            return self._finder.written(start, start + nbytes)
        except OSError:
            return [(start, start + nbytes)]

    @property
    def leased_rows(self) -> int:
        """Return how many rows are leased now."""
        return sum(self._leased)


def _find_fares(file: FileHandle, layout: RowLayout, finder: Finder) -> Fares | None:
    """Return what moving is to be held against; None where the system cannot move pages."""
    if finder.name == "all":
        return None  # all would count as written, and none come home
    try:
        return Fares(time_mapping(file, layout)) if can_move(file.fd) else None
    except (OSError, MapLimitError):
        return None  # near the limit of mappings: nothing can be moved either


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
