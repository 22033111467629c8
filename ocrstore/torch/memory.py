"""Owns how rows of a column become memory that its taker may write on, on any system.

Three strategies, chosen at run time: `leases` (Linux: slices of a persistent private mapping,
other orders put together by the page table), `fresh` (any system: a new private mapping for each
run of rows), and `copy`. Under each of them what one taker writes is seen by no other and never
reaches the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from ocrstore.errors import StoreChangedError
from ocrstore.torch import _region
from ocrstore.torch._pagemap import Finder, FinderName, best_finder, make_finder
from ocrstore.torch._rows import AnyArray, FileHandle, IntArray, RowLayout, first_of_run
from ocrstore.torch.assembly import MIN_ASSEMBLED_NBYTES, assemble, map_fresh
from ocrstore.torch.copying import copy_rows
from ocrstore.torch.leases import ColumnMapping

Strategy = Literal["leases", "fresh", "copy"]


def best_strategy() -> Strategy:
    """Return what this system does best; the variable OCRSTORE_MEMORY overrides it."""
    wish = os.environ.get("OCRSTORE_MEMORY", "")
    if wish:
        return check_strategy("OCRSTORE_MEMORY", wish)
    return "leases" if _region.supported else "fresh"


def check_strategy(name: str, wish: str) -> Strategy:
    """Return a strategy that this system has; `name` is what the wish came by."""
    for strategy in get_args(Strategy):
        if wish == strategy and (wish != "leases" or _region.supported):
            return strategy  # type: ignore[no-any-return]  # get_args is untyped
    raise ValueError(
        f"{name}={wish!r}: expected one of {', '.join(get_args(Strategy))}"
        " (leases: on 64-bit Linux only)"
    )


class ColumnMemory:
    """The rows of one column, as writable memory. For any thread; survives a fork.

    `open_file` gives a descriptor of the same file. `data` is the file's bytes, mapped read-only
    by the caller: copies are made from it, so they are true to the file whatever the takers of
    other rows have written.
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
        self._pid = -1
        self._file: FileHandle | None = None
        self._mapping: ColumnMapping | None = None

    def take(self, rows: IntArray) -> AnyArray:
        """Return the rows as one array, the caller's alone, valid while it is referenced."""
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
        if self.strategy == "copy" or not self.layout.mappable:
            return self._copy(rows)
        file, mapping = self._opened()
        if mapping is None:
            fresh = map_fresh(file, self.layout, rows)
            return self._copy(rows) if fresh is None else fresh
        if first is not None:
            leased = mapping.take(first, count)
            if leased is not None:
                return leased
        if self.layout.nbytes < MIN_ASSEMBLED_NBYTES:
            return self._copy(rows)
        try:
            return assemble(file, self.layout, rows)
        except _region.MapLimitError:
            return self._copy(rows)

    def copy(self, rows: IntArray, out: AnyArray) -> None:
        """Copy the rows, as the file has them, into `out` of shape (len(rows), *shape)."""
        copy_rows(self._data, self.layout, rows, out)

    def _copy(self, rows: IntArray) -> AnyArray:
        out = np.empty((len(rows), *self.layout.shape), self.layout.dtype)
        copy_rows(self._data, self.layout, rows, out)
        return out

    def _opened(self) -> tuple[FileHandle, ColumnMapping | None]:
        if self._pid != os.getpid():
            # A forked child shares nothing of this with its parent: neither lock nor leases.
            self._lock = threading.Lock()
            self._file = self._mapping = None
            self._pid = os.getpid()
        with self._lock:
            if self._file is None:
                file = self._open_file()
                nbytes = os.fstat(file.fd).st_size
                if nbytes < self.layout.end:
                    raise StoreChangedError(
                        f"the file has {nbytes} bytes, its rows need {self.layout.end}: it was cut"
                    )
                if self.strategy == "leases":
                    self._mapping = self._map(file)
                self._file = file
            return self._file, self._mapping

    def _map(self, file: FileHandle) -> ColumnMapping | None:
        try:
            return ColumnMapping(file, self.layout, self._make_finder(file.fd))
        except (OSError, _region.MapLimitError):
            # strict overcommit, or an address space too small for the column: batch by batch then
            return None

    def _make_finder(self, fd: int) -> Finder:
        return make_finder(self._finder_name) if self._finder_name else best_finder(fd)

    @property
    def leased_rows(self) -> int:
        """Return how many rows of the persistent mapping are leased in this process."""
        return self._mapping.leased_rows if self._mapping and self._pid == os.getpid() else 0
