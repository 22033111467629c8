"""Return rows of a column as memory that the caller may write to, on any system.

Three strategies, chosen at run time:

- `leases` (64-bit Linux): contiguous rows are slices of a persistent private mapping; scattered
  rows are mapped together.
- `fresh` (any system): a new private mapping for contiguous rows, a copy of scattered ones.
- `copy`.

With each of them a write is private to the caller and never reaches the file.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ocrstore.errors import StoreChangedError
from ocrstore.torch.memory import address_range
from ocrstore.torch.memory.address_range import (
    MIN_MAPPED_NBYTES,
    MapLimitError,
    map_places,
    map_run,
    map_together,
)
from ocrstore.torch.memory.row_layout import (
    AnyArray,
    FileHandle,
    IntArray,
    RowLayout,
    first_of_run,
)

if TYPE_CHECKING:
    from ocrstore.torch.memory.leases import ColumnMapping, Seam
    from ocrstore.torch.memory.parallel_copy import Job
    from ocrstore.torch.memory.written_pages import FinderName

_SEAM_ROWS = 64
"""So many rows on each side of the border of two files are mapped together for good."""

Strategy = Literal["leases", "fresh", "copy"]


def best_strategy() -> Strategy:
    """Return the best strategy for this system; the variable OCRSTORE_MEMORY overrides it."""
    wanted = os.environ.get("OCRSTORE_MEMORY", "")
    if wanted:
        return check_strategy("OCRSTORE_MEMORY", wanted)
    return "leases" if address_range.supported else "fresh"


def check_strategy(name: str, wanted: str) -> Strategy:
    """Return a strategy if this system has it; `name` is the setting to blame if not."""
    for strategy in get_args(Strategy):
        if wanted == strategy and (wanted != "leases" or address_range.supported):
            return strategy  # type: ignore[no-any-return]  # get_args is untyped
    raise ValueError(
        f"{name}={wanted!r}: expected one of {', '.join(get_args(Strategy))}"
        " (leases: on 64-bit Linux only)"
    )


class ColumnMemory:
    """The rows of one column, as writable memory. Thread-safe; works on after a fork.

    Args:
        open_file: Returns a new descriptor of the file.
        data: The file's bytes, mapped read-only by the caller. Copies are made from it, so they
            show the file whatever was written to leased rows.
        layout: Where the rows are.
        strategy: See the module; the best one for this system by default.
        finder: How written pages are found; the best way for this system by default.
    """

    def __init__(
        self,
        open_file: Callable[[], FileHandle],
        data: AnyArray,
        layout: RowLayout,
        *,
        strategy: Strategy | None = None,
        finder: FinderName | None = None,
    ) -> None:
        self.layout = layout
        self.strategy = strategy or best_strategy()
        self._open_file = open_file
        self._data = data
        self._finder_name = finder
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._file: FileHandle | None = None
        self._mapping: ColumnMapping | None = None
        self._is_mapped = False
        self._seam: tuple[weakref.ref[ColumnMemory], ColumnMapping | None] | None = None

    def take(self, rows: IntArray) -> AnyArray:
        """Return rows as one array that only the caller sees, valid while it is referenced."""
        count = len(rows)
        if not count:
            return self._copy(rows)
        first = first_of_run(rows)
        if first is None:
            low, high = int(rows.min()), int(rows.max())
        else:
            low, high = first, first + count - 1
        if low < 0 or high >= len(self.layout):
            raise IndexError(f"rows {low} to {high} of {len(self.layout)}")
        taken = None
        if self.strategy == "leases" and self.layout.mappable:
            taken = None if first is None else self._lease(first, count)
            if taken is None:
                taken = self._map_together(rows)
        elif self.strategy == "fresh":
            taken = map_run(self._opened(), self.layout, rows)
        return self._copy(rows) if taken is None else taken

    def _lease(self, first: int, count: int) -> AnyArray | None:
        """Return consecutive rows of the persistent mapping; None if they are leased already."""
        mapping = self._mapped()
        return None if mapping is None else mapping.take(first, count)

    def _map_together(self, rows: IntArray) -> AnyArray | None:
        """Return rows in a mapping of their own; None if a copy is faster or the kernel refuses."""
        if self.layout.nbytes < MIN_MAPPED_NBYTES:
            return None
        file = self._opened()
        try:
            return map_together(file, self.layout, rows)
        except (OSError, MapLimitError):
            return None

    @property
    def can_map(self) -> bool:
        """Return whether scattered rows are mapped together and not copied."""
        layout = self.layout
        is_large = layout.mappable and layout.nbytes >= MIN_MAPPED_NBYTES
        return is_large and self.strategy == "leases"

    def take_over_seam(self, following: ColumnMemory, before: int, after: int) -> AnyArray | None:
        """Return the last `before` rows and the first `after` rows of the file that follows.

        None if they are leased already, or are more than such batches have.
        """
        kept = min(_SEAM_ROWS, len(self.layout)), min(_SEAM_ROWS, len(following.layout))
        if before > kept[0] or after > kept[1]:
            return None
        file, other = self._opened(), following._opened()
        with self._lock:
            if self._seam is None or self._seam[0]() is not following:
                rows = np.arange(len(self.layout) - kept[0], len(self.layout), dtype=np.int64)
                seam: Seam = (
                    (file, self.layout, rows),
                    (other, following.layout, np.arange(kept[1], dtype=np.int64)),
                )
                mapping = _map(file, self.layout, self._finder_name, seam=seam)
                self._seam = weakref.ref(following), mapping
            mapping = self._seam[1]
        return None if mapping is None else mapping.take(kept[0] - before, before + after)

    def copy(self, rows: IntArray, out: AnyArray) -> None:
        """Copy rows from the file into `out` of shape (len(rows), *shape)."""
        from ocrstore.torch.memory.parallel_copy import run_jobs  # not needed for references

        run_jobs(self.copy_jobs(rows, out))

    def copy_jobs(self, rows: IntArray, out: AnyArray) -> list[Job]:
        """Return what `copy` has to do."""
        from ocrstore.torch.memory.parallel_copy import copy_jobs

        return copy_jobs(self._data, self.layout, rows, out)

    def in_file(self, row: int) -> AnyArray:
        """Return the bytes of a row in the mapped file, read-only."""
        offset = self.layout.offsets.item(row)
        return self._data[offset : offset + self.layout.nbytes]

    def _copy(self, rows: IntArray) -> AnyArray:
        out = np.empty((len(rows), *self.layout.shape), self.layout.dtype)
        self.copy(rows, out)
        return out

    def _opened(self) -> FileHandle:
        """Return this process's descriptor, of a file that was long enough when it was opened."""
        if self._pid != os.getpid():
            # In a forked child the lock may be held by a thread that does not exist here, the
            # leases belong to the parent, and `/proc/self/pagemap` shows the parent's pages.
            self._lock = threading.Lock()
            self._file = self._mapping = self._seam = None
            self._is_mapped = False
            self._pid = os.getpid()
        with self._lock:
            if self._file is None:
                file = self._open_file()
                nbytes = os.fstat(file.fd).st_size
                if nbytes < self.layout.end:
                    raise StoreChangedError(
                        f"the file was truncated: it has {nbytes} bytes, its rows need"
                        f" {self.layout.end}. Restore the file and open it again."
                    )
                self._file = file
            return self._file

    def _mapped(self) -> ColumnMapping | None:
        """Return this process's mapping, made at the first call; None if the kernel refuses."""
        if not self._is_mapped or self._pid != os.getpid():
            file = self._opened()
            with self._lock:
                if not self._is_mapped:
                    self._mapping = _map(file, self.layout, self._finder_name)
                    self._is_mapped = True
        return self._mapping

    @property
    def leased_rows(self) -> int:
        """Return how many rows of the persistent mapping are leased in this process."""
        return self._mapping.leased_rows if self._mapping and self._pid == os.getpid() else 0


def take_together(memories: Sequence[ColumnMemory | None], rows: IntArray) -> AnyArray | None:
    """Return rows of several files as one array, each mapped from its own; None if not possible.

    Args:
        memories: That of each row; None where rows cannot be mapped.
        rows: The row in each memory.
    """
    known = [memory for memory in memories if memory is not None and memory.can_map]
    if not known or len(known) != len(memories):
        return None
    try:
        leased = _lease_seam(known, rows)
        if leased is not None:
            return leased
        places = [
            (memory._opened().fd, int(memory.layout.offsets[row]))
            for memory, row in zip(known, rows.tolist(), strict=True)
        ]
        return map_places(places, known[0].layout)
    except (OSError, MapLimitError):
        return None


def _lease_seam(memories: Sequence[ColumnMemory], rows: IntArray) -> AnyArray | None:
    """Return the last rows of a file and the first of another from a mapping that stays.

    Without it every sequential batch over the border of two shards would be mapped anew.
    """
    first, last = memories[0], memories[-1]
    count = memories.index(last)
    if memories != [first] * count + [last] * (len(rows) - count):
        return None
    before, after = first_of_run(rows[:count]), first_of_run(rows[count:])
    if before is None or before + count != len(first.layout) or after != 0:
        return None
    return first.take_over_seam(last, count, len(rows) - count)


def _map(
    file: FileHandle, layout: RowLayout, finder: FinderName | None, *, seam: Seam | None = None
) -> ColumnMapping | None:
    # imported here, because a process that takes only shuffled batches needs neither
    from ocrstore.torch.memory.leases import ColumnMapping
    from ocrstore.torch.memory.written_pages import best_finder, make_finder

    try:
        found = make_finder(finder) if finder else best_finder(file.fd)
        return ColumnMapping(file, layout, found, seam=seam)
    except (OSError, MapLimitError):
        return None  # strict overcommit, or not enough address space for the column
