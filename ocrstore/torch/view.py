"""Owns one store as torch sees it: a view's columns as memory.

A `StoreView` is found again by its reference, a small tuple that any process can resolve: from
the views it has open already, or by opening the file.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ocrstore.errors import RecipeMismatchError, StoreChangedError, UnknownColumnError
from ocrstore.store import Store, StoredColumn, open_store
from ocrstore.torch import residency
from ocrstore.torch._rows import AnyArray, FileHandle, IntArray, RowLayout
from ocrstore.torch.memory import ColumnMemory, Strategy

if TYPE_CHECKING:
    from ocrstore.torch.recorded import Recorded

PICTURE = "image"
"""The column of whole pictures."""
_MAX_GROUP = 64
"""Rows that a row group has at most."""
TENSOR = "tensor"
"""The logical name of a view's pictures."""
_ORDER = (TENSOR, "prob_map", "thresh_map", "prob_mask", "thresh_mask", "inverse_matrix")


class ViewRef(NamedTuple):
    """Names a view of a store, wherever it is used."""

    path: str
    generation: int
    fingerprint: str
    view: str | None
    columns: tuple[str, ...] | None
    strategy: Strategy | None

    def __reduce__(self) -> tuple[Any, ...]:
        # once for each batch: the way of dataclasses takes several times as long
        given = (self.path, self.generation, self.fingerprint, self.view)
        return ViewRef, (*given, self.columns, self.strategy)


class StoreView:
    """The columns of one view of one open store. For any thread; survives a fork."""

    def __init__(self, store: Store, ref: ViewRef) -> None:
        self.store = store
        self.ref = ref
        self.path = store.path
        self.recipe, self.columns = _resolve(store, ref)
        self.names = tuple(self.columns)
        self.specs = {name: store.columns[column] for name, column in self.columns.items()}
        mapping = store.snapshot.mapping
        self._mapping = mapping
        self._snapshot = store.snapshot
        self._times = mapping.times
        self._data: AnyArray = np.frombuffer(mapping.buffer, np.uint8)
        self._handle: FileHandle | None = None
        self._handle_pid = -1
        self._lock = threading.Lock()
        self._lookout = residency.Lookout()
        self.memory = {
            name: ColumnMemory(
                self.open_file, self._data, _layout(store[column]), strategy=ref.strategy
            )
            for name, column in self.columns.items()
            if store.columns[column].is_raw and store.columns[column].is_fixed
        }

    def __len__(self) -> int:
        return len(self.store)

    def column(self, name: str) -> StoredColumn:
        """Return the stored column behind a logical name."""
        return self.store[self.columns.get(name, name)]

    def check(self) -> None:
        """Raise StoreChangedError if the file was cut, or other data took its place.

        To be called before anything of the file is read, its index too: reading behind the end of a
        mapped file kills the process. Writers of the store only add to what was opened, so a file
        that was written to is looked at once for each time that it was.
        """
        mapping = self._mapping
        try:
            status = os.stat(self.path)  # noqa: PTH116  # for each column of a batch: no Path for it
        except FileNotFoundError:
            mapping.check()
            return  # removed, not replaced: what is open stays whole
        replaced = status.st_ino != mapping.inode or status.st_dev != mapping.device
        if replaced or status.st_size < mapping.nbytes:
            mapping.check()
        if replaced:
            raise StoreChangedError(
                f"{self.path}: another file took its place while it was in use. Finish or stop the"
                " training, then start it again with the new store."
            )
        if (status.st_mtime_ns, status.st_ctime_ns) != self._times:
            self._check_content((status.st_mtime_ns, status.st_ctime_ns))

    def _check_content(self, times: tuple[int, int]) -> None:
        """Raise StoreChangedError unless the file still holds the generation that was opened."""
        try:
            # not `open_file`: it calls `check` under its lock
            file = FileHandle(self.path)
        except FileNotFoundError:
            return  # removed just now: what is open stays whole
        if not self._snapshot.is_in(file.fd):
            self._mapping.check()
            raise StoreChangedError(
                f"{self.path}: was overwritten while it was in use: generation"
                f" {self.ref.generation} of the store that was opened is no longer in it. Start the"
                " training again; replace stores by renaming, never in place."
            )
        self._times = times

    def take(self, name: str, rows: IntArray) -> AnyArray | list[AnyArray]:
        """Return rows of a column as memory that is the caller's; a list if their shapes differ."""
        self.check()
        memory = self.memory.get(name)
        if memory is not None:
            return memory.take(rows)
        column = self.column(name)
        taken = [self.decoded(column, int(row)) for row in rows]
        if column.spec.is_fixed and taken:
            return np.stack(taken)
        return taken

    def decoded(self, column: StoredColumn, row: int) -> AnyArray:
        """Return one row of any column as an array that may be written on."""
        array: AnyArray = column[row]
        return array if array.flags.writeable and array.flags.owndata else array.copy()

    def copy(self, name: str, rows: IntArray, out: AnyArray) -> None:
        """Copy rows of a column, as the file has them, into `out`."""
        self.check()
        memory = self.memory.get(name)
        if memory is not None:
            memory.copy(rows, out)
            return
        column = self.column(name)
        for position, row in enumerate(rows.tolist()):
            np.copyto(out[position], column[row])

    def ranges(
        self, rows: IntArray, *, names: tuple[str, ...] | None = None
    ) -> list[tuple[int, int]]:
        """Return where the rows lie in the file: (offset, nbytes) of each run."""
        found: list[tuple[int, int]] = []
        for name in self.columns if names is None else names:
            memory = self.memory.get(name)
            if memory is not None and memory.layout.mappable:
                pitch = memory.layout.pitch
                found += [
                    (offset, (count - 1) * pitch + memory.layout.nbytes)
                    for _, count, offset in memory.layout.runs(rows)
                ]
            else:
                column = self.column(name)
                offsets, nbytes = column.offsets[rows].tolist(), column.nbytes[rows].tolist()
                found += residency.merge(zip(offsets, nbytes, strict=True))
        return found

    def bring_in(self, rows: IntArray, *, names: tuple[str, ...] | None = None) -> None:
        """Wait until the rows are in the page cache."""
        missing = self._missing(rows, self.names if names is None else names)
        residency.read_through(self.open_file(), self._data, residency.merge(missing))

    def ask_for(self, rows: IntArray) -> None:
        """Ask the system to read the rows; returns before they are there."""
        residency.ask_for(self.open_file(), self._data, self._missing(rows, self.names))

    def _missing(self, rows: IntArray, names: tuple[str, ...]) -> list[tuple[int, int]]:
        """Return what of these columns is not surely in the page cache."""
        self.check()
        file = self.open_file()
        first = self._lookout.choose(names)
        missing = residency.missing_of(file, self.ranges(rows, names=first))
        self._lookout.note(missed=bool(missing))
        if missing:
            others = tuple(name for name in names if name not in first)
            missing += residency.missing_of(file, self.ranges(rows, names=others))
        return missing

    def warm(
        self,
        *,
        names: tuple[str, ...] | None = None,
        progress: residency.Progress | None = None,
    ) -> int:
        """Read columns, by default all of the view, into the page cache; return their bytes."""
        rows = np.arange(len(self), dtype=np.int64)
        if not len(rows):
            return 0
        self.check()
        ranges = self.ranges(rows, names=names)
        return residency.warm(self.open_file(), self._data, ranges, progress=progress)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns of the view."""
        return self.nbytes_of(self.names)

    def nbytes_of(self, names: tuple[str, ...]) -> int:
        """Return the bytes of some columns."""
        return sum(int(self.column(name).nbytes.sum()) for name in names)

    def row_groups(self) -> list[tuple[int, int]]:
        """Return [first, last) of the rows that lie together, by the largest column."""
        self.check()
        if not len(self) or not self.columns:
            return []
        name = max(self.columns, key=lambda name: int(self.column(name).nbytes[0]))
        column = self.column(name)
        gaps = np.diff(column.offsets) - column.nbytes[:-1]
        # rows of one extent lie less than a page apart; another column's extent is in between else
        breaks = np.flatnonzero((gaps < 0) | (gaps >= 4096)) + 1
        edges = [0, *breaks.tolist(), len(self)]
        pairs = [
            (start, min(start + _MAX_GROUP, last))
            for first, last in itertools.pairwise(edges)
            for start in range(first, last, _MAX_GROUP)
        ]
        return [(int(first), int(last)) for first, last in pairs]

    def key(self, row: int) -> str:
        """Return a sample's key."""
        return self.store.snapshot.index.key(row)

    @cached_property
    def recorded(self) -> Recorded:
        """What the index records of samples; read, and Arrow imported, when it is asked for."""
        from ocrstore.torch.recorded import Recorded

        return Recorded(self.store)

    def open_file(self) -> FileHandle:
        """Return a descriptor of the file, this process's own."""
        if self._handle_pid != os.getpid():
            self._lock = threading.Lock()  # a forked child's own
            self._handle = None
            self._handle_pid = os.getpid()
        with self._lock:
            if self._handle is None:
                handle = FileHandle(self.path)
                status = os.fstat(handle.fd)
                if (status.st_dev, status.st_ino) != (self._mapping.device, self._mapping.inode):
                    self.check()
                self._handle = handle
            return self._handle


def _layout(column: StoredColumn) -> RowLayout:
    shape = tuple(int(size or 0) for size in column.spec.shape)
    offsets = np.asarray(column.offsets, np.int64)
    return RowLayout(offsets, shape, column.spec.numpy_dtype)


def _resolve(store: Store, ref: ViewRef) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return a view's record and its columns by logical name, in the order asked for."""
    views = store.metadata.get("views") or {}
    record: dict[str, Any] | None = None
    available: dict[str, str] = {}
    if ref.view is not None and ref.view not in views:
        known = ", ".join(views) or "none"
        raise RecipeMismatchError(
            f"{store.path}: no view {ref.view!r}; it has {known}. Build it with that view."
        )
    if views:
        name = ref.view or str(store.metadata.get("default_view") or next(iter(views)))
        record = views[name]
        available = {key: value for key, value in record["columns"].items() if key != PICTURE}
    elif TENSOR in store.columns:
        available = {name: name for name in store.columns if name != PICTURE}
    if not available:
        available = {name: name for name in store.columns}
    if ref.columns is None:
        order = {name: place for place, name in enumerate(_ORDER)}
        names = sorted(available, key=lambda name: (order.get(name, len(order)), name))
        return record, {name: available[name] for name in names}
    chosen: dict[str, str] = {}
    for name in ref.columns:
        if name in available:
            chosen[name] = available[name]
        elif name in store.columns:
            chosen[name] = name
        else:
            known = ", ".join(sorted({*available, *store.columns}))
            raise UnknownColumnError(f"{store.path}: no column {name!r}; it has {known}.")
    return record, chosen


_open_views: weakref.WeakValueDictionary[ViewRef, StoreView] = weakref.WeakValueDictionary()
_recent: OrderedDict[ViewRef, StoreView] = OrderedDict()
"""Views that were opened for a batch alone, kept for the next one."""
_MAX_RECENT = 4


def open_view(
    path: str,
    *,
    view: str | None = None,
    columns: tuple[str, ...] | None = None,
    strategy: Strategy | None = None,
) -> StoreView:
    """Open a store; data sets on the same file, view and columns share one mapping."""
    store = open_store(os.path.abspath(path))  # noqa: PTH100  # keeps symbolic links as they are
    ref = ViewRef(store.path, store.generation, store.fingerprint, view, columns, strategy)
    return _shared(store, ref)


def find_view(ref: ViewRef) -> StoreView:
    """Return the view that a reference names, opened before or now."""
    found = _open_views.get(ref)
    if found is None:
        store = open_store(ref.path, generation=ref.generation)
        if store.fingerprint != ref.fingerprint:
            raise StoreChangedError(
                f"{ref.path}: was replaced by a store with other content while in use (expected"
                f" fingerprint {ref.fingerprint[:12]}, found {store.fingerprint[:12]})."
                " Start the training again."
            )
        found = _shared(store, ref)
        _recent[ref] = found
        while len(_recent) > _MAX_RECENT:
            _recent.popitem(last=False)
    return found


def _shared(store: Store, ref: ViewRef) -> StoreView:
    found = _open_views.get(ref)
    mapping = store.snapshot.mapping
    if found is not None:
        mine = found.store.snapshot.mapping
        same_file = (mine.device, mine.inode) == (mapping.device, mapping.inode)
        # a file overwritten in place by an equal build has its rows elsewhere
        if same_file and found.store.snapshot.seals == store.snapshot.seals:
            return found
    fresh = StoreView(store, ref)
    _open_views[ref] = fresh
    return fresh
