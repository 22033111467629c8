"""Owns how rows of a column become memory that its taker may write on, on any system.

Three strategies, chosen at run time: `leases` (Linux: slices of a persistent private mapping,
other orders put together by the page table), `fresh` (any system: a new private mapping
for each run of rows), and `copy`. Under each of them what one taker writes is seen by no other and
never reaches the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ocrstore.errors import StoreChangedError
from ocrstore.torch import _region
from ocrstore.torch._rows import AnyArray, FileHandle, IntArray, RowLayout, first_of_run
from ocrstore.torch.assembly import MIN_ASSEMBLED_NBYTES, assemble, map_fresh

if TYPE_CHECKING:
    from ocrstore.torch._pagemap import FinderName
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
        self._pid = os.getpid()
        self._file: FileHandle | None = None
        self._mapping: ColumnMapping | None = None
        self._is_mapped = False

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
        taken = None
        if self.strategy == "leases" and self.layout.mappable:
            taken = None if first is None else self._lease(first, count)
            if taken is None:
                taken = self._assemble(rows)
        elif self.strategy == "fresh":
            taken = map_fresh(self._opened(), self.layout, rows)
        return self._copy(rows) if taken is None else taken

    def _lease(self, first: int, count: int) -> AnyArray | None:
        """Return a run of rows of the persistent mapping; None where that cannot be."""
        mapping = self._mapped()
        return None if mapping is None else mapping.take(first, count)

    def _assemble(self, rows: IntArray) -> AnyArray | None:
        """Return rows put together by the page table; None where a copy is better, or must do."""
        if self.layout.nbytes < MIN_ASSEMBLED_NBYTES:
            return None
        file = self._opened()
        try:
            return assemble(file, self.layout, rows)
        except (OSError, _region.MapLimitError):
            return None

    def copy(self, rows: IntArray, out: AnyArray) -> None:
        """Copy the rows, as the file has them, into `out` of shape (len(rows), *shape)."""
        from ocrstore.torch.copying import copy_rows  # what is taken by reference needs none of it

        copy_rows(self._data, self.layout, rows, out)

    def _copy(self, rows: IntArray) -> AnyArray:
        out = np.empty((len(rows), *self.layout.shape), self.layout.dtype)
        self.copy(rows, out)
        return out

    def _opened(self) -> FileHandle:
        """Return this process's descriptor, of a file that was long enough when it was opened."""
        if self._pid != os.getpid():
            # A forked child shares nothing of this with its parent: neither lock nor leases.
            self._lock = threading.Lock()
            self._file = self._mapping = None
            self._is_mapped = False
            self._pid = os.getpid()
        with self._lock:
            if self._file is None:
                file = self._open_file()
                nbytes = os.fstat(file.fd).st_size
                if nbytes < self.layout.end:
                    raise StoreChangedError(
                        f"the file has {nbytes} bytes, its rows need {self.layout.end}: it was cut"
                    )
                self._file = file
            return self._file

    def _mapped(self) -> ColumnMapping | None:
        """Return this process's mapping, made when it is needed; None if it cannot be."""
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


def _map(file: FileHandle, layout: RowLayout, finder: FinderName | None) -> ColumnMapping | None:
    # a process that takes one shuffled batch alone needs none of these
    from ocrstore.torch._pagemap import best_finder, make_finder
    from ocrstore.torch.leases import ColumnMapping

    try:
        found = make_finder(finder) if finder else best_finder(file.fd)
        return ColumnMapping(file, layout, found)
    except (OSError, _region.MapLimitError):
        # strict overcommit, or an address space too small for the column: batch by batch then
        return None
