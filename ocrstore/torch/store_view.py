"""Open one view of a store: its columns as memory, its rows in the page cache.

`torch/open_views.py` opens and finds them; a `ViewRef` or a `ShardRef` is what is pickled of one.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ocrstore.annotation import AnnotationReader
from ocrstore.errors import (
    OCRStoreError,
    RecipeMismatchError,
    SchemaError,
    StoreChangedError,
    UnknownColumnError,
)
from ocrstore.format.mapped_file import MappedFile
from ocrstore.format.row_groups import group_bounds
from ocrstore.metadata import readable_build
from ocrstore.schema import IMAGE, TENSOR, VIEW_COLUMNS
from ocrstore.store import Store, StoredColumn, is_local_copy, open_store
from ocrstore.torch.memory import page_cache
from ocrstore.torch.memory.column_memory import ColumnMemory, Strategy
from ocrstore.torch.memory.parallel_copy import Job, Source, decode_jobs, run_jobs
from ocrstore.torch.memory.row_layout import AnyArray, FileHandle, IntArray, RowLayout
from ocrstore.views import Described, StoredView, stored_views

if TYPE_CHECKING:
    from ocrstore.remote.presence import Presence


_GOOD_SECONDS = 0.05
"""So long, a shard that was looked at is not looked at again. A batch may come from as many shards
as it has samples, and who reads its tensors later reads them without any check."""


class ViewRef(NamedTuple):
    """Identifies a view of a store in any process."""

    path: str
    generation: int
    fingerprint: str
    view: str | None
    columns: tuple[str, ...] | None
    strategy: Strategy | None
    max_row_nbytes: int | None = None
    normalize: bool = False
    """Pictures are handed out normalised, and maps as float32."""
    numpy: bool = False
    """Arrays are handed out in place of tensors."""


class ShardRef(NamedTuple):
    """Identifies a view of a shard in any process, in a few bytes beside others of its data set."""

    dataset: ViewRef
    """Of the catalog."""
    number: int
    """Of the shard in the catalog."""


class ViewOutline:
    """What is known of a view before its rows are opened: columns, dtypes and recipe."""

    def __init__(self, described: Described, ref: ViewRef) -> None:
        self.ref = ref
        self.path = described.path
        self.all_columns = described.columns
        """Those of the store, by their names there."""
        self.stored_view, self.columns = _resolve(described, ref)
        self.names = tuple(self.columns)
        self.specs = {name: self.all_columns[column] for name, column in self.columns.items()}

    @property
    def mean_and_std(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Return the mean and the standard deviation of the view's recipe, of values 0 to 1."""
        if self.stored_view is None:
            raise SchemaError(
                f"{self.path}: has no view, so no mean and std to normalise by. Leave out"
                " normalize=True, or write the store with `ocrstore build`."
            )
        recipe = self.stored_view.recipe_json
        return tuple(recipe["mean"]), tuple(recipe["std"])

    @property
    def is_remote(self) -> bool:
        """Whether its rows are fetched from a URL."""
        return is_local_copy(self.path)


class StoreView(ViewOutline):
    """The columns of one view of one open store. Thread-safe; works on after a fork.

    Args:
        store: The store.
        ref: Which view of it.
        sent: What is pickled in place of the view; `ref` by default.
        probes: Shared by the shards of a data set, which stay in the page cache together.
    """

    def __init__(
        self,
        store: Store,
        ref: ViewRef,
        *,
        sent: ShardRef | None = None,
        probes: page_cache.ProbeSchedule | None = None,
    ) -> None:
        super().__init__(store, ref)
        self.store = store
        self.sent = ref if sent is None else sent
        mapping = store.snapshot.mapping
        self._mapping = mapping
        self._snapshot = store.snapshot
        self._times = mapping.times
        self._good_until = 0.0
        self._presence = cast("Presence | None", store.presence)  # a view is of one store
        self.mapped_rows = mapping if self._presence is None else self._presence.attached()
        """The mapped file that the rows are in: that of the store unless it is behind a URL."""
        self._data: AnyArray = np.frombuffer(self.mapped_rows.buffer, np.uint8)
        # held from the start: the path may lead to another file later, compacted for example
        self._handle = self._open_own()
        self._handle_pid = os.getpid()
        self._successor: Store | None = None
        self._stored = {name: store[column] for name, column in self.columns.items()}
        self._lock = threading.Lock()
        self._probes = probes or page_cache.ProbeSchedule()
        # weak: a cycle would keep the file open until the garbage collector runs
        self.memory = self._make_memory(
            partial(_called, weakref.WeakMethod(self.open_file)), self._data
        )
        self._fetched = self.mapped_rows, self.memory

    def _make_memory(
        self,
        open_file: Callable[[], FileHandle],
        data: AnyArray,
        *,
        strategy: Strategy | None = None,
    ) -> dict[str, ColumnMemory]:
        strategy = strategy or self.ref.strategy
        return {
            name: ColumnMemory(open_file, data, _layout(column), strategy=strategy)
            for name, column in self._stored.items()
            if self.specs[name].is_raw and self.specs[name].is_fixed
        }

    def memory_of(self, name: str, rows: IntArray) -> ColumnMemory | None:
        """Return the memory that has rows of a column; None if they have to be decoded.

        Behind a URL the rows are fetched first. Call `check` before.
        """
        if self._presence is None:
            return self.memory.get(name)
        column = self.columns.get(name, name)
        return self._memory_in(self._presence.need(column, rows)).get(name)

    def _memory_in(self, mapping: MappedFile) -> dict[str, ColumnMemory]:
        """Return the memory of a file that rows were fetched into.

        It is another file than before if the cache was full: the old one was removed.
        """
        rows, memory = self._fetched
        if mapping is not rows:
            data = np.frombuffer(mapping.buffer, np.uint8)
            handle = _open_same(mapping)
            if handle is None:  # removed as well by now: what is mapped can be copied
                return self._make_memory(self.open_file, data, strategy="copy")
            memory = self._make_memory(lambda: handle, data)
            self.mapped_rows, self._data, self._handle = mapping, data, handle
            self.memory, self._fetched = memory, (mapping, memory)
        return memory

    def __len__(self) -> int:
        return len(self.store)

    @property
    def opened(self) -> dict[int, StoreView]:
        """The stores of this set that are open, by number, as of a `ShardedView`."""
        return {0: self}

    @property
    def lengths(self) -> list[int]:
        """The samples of each store: of this one."""
        return [len(self)]

    def shard(self, number: int) -> StoreView:  # noqa: ARG002  # as of a `ShardedView`
        """Return the view of a store of this set: of the only one."""
        return self

    def column(self, name: str) -> StoredColumn[Any]:
        """Return the stored column behind a logical name."""
        found = self._stored.get(name)
        return self.store[name] if found is None else found

    def check(self) -> None:
        """Raise StoreChangedError if the file was truncated, overwritten or replaced by another.

        A file of equal content in its place, such as `compact` makes, is none of these: this view
        keeps the file that it has open, and other processes open the new one.

        Call this before reading anything of the file, its index too: reading beyond the end of a
        mapped file kills the process (SIGBUS). Writers of the store only add to what was opened,
        so the content is compared again only when the file's times have changed.
        """
        is_shard = self.sent is not self.ref
        if is_shard and time.monotonic() < self._good_until:
            return
        if self._is_unchanged():
            self._good_until = time.monotonic() + _GOOD_SECONDS
            return
        mapping = self._mapping
        try:
            status = os.stat(self.path)  # noqa: PTH116  # once for each column of a batch
        except FileNotFoundError:
            mapping.check()
            return  # removed, not replaced: what is mapped stays readable
        replaced = not _is_at(status, mapping)
        if replaced or status.st_size < mapping.nbytes:
            mapping.check()
        if replaced:
            if self._successor is None or not _is_at(status, self._successor.snapshot.mapping):
                self._check_new_file()
            return
        if (status.st_mtime_ns, status.st_ctime_ns) != self._times:
            self._check_content((status.st_mtime_ns, status.st_ctime_ns))

    def _is_unchanged(self) -> bool:
        """Return whether the open file is as it was, and has a name; False also if that is unknown.

        To ask about a descriptor takes a third of the time of a path, and a batch may come from as
        many files as it has samples. Replacing or removing a file changes the times of the old one.
        """
        handle, mapping = self._handle, self._mapping
        if handle is None or self.mapped_rows is not mapping:  # behind a URL it is another file
            return False
        try:
            status = os.fstat(handle.fd)
        except OSError:  # closed since a fork, or out of reach
            return False
        return (
            _is_at(status, mapping)
            and status.st_nlink > 0
            and status.st_size >= mapping.nbytes
            and (status.st_mtime_ns, status.st_ctime_ns) == self._times
        )

    def _check_new_file(self) -> None:
        """Raise StoreChangedError unless the file at the path now has the same content and view."""
        try:
            store = open_store(self.path)
            equal = store.fingerprint == self.ref.fingerprint and _resolve(store, self.ref) == (
                self.stored_view,
                self.columns,
            )
        except OCRStoreError:
            equal = False
        if not equal:
            raise StoreChangedError(
                f"{self.path}: was replaced by another file while it was in use. Finish or stop the"
                " training, then start it again with the new store."
            )
        # kept open: no other file can have its inode then
        self._successor = store

    def _check_content(self, times: tuple[int, int]) -> None:
        """Raise StoreChangedError unless the file still holds the generation that was opened."""
        try:
            # not `open_file`, which calls `check` while it holds its lock
            file = FileHandle(self.path)
        except FileNotFoundError:
            return  # removed just now: what is mapped stays readable
        if not self._snapshot.is_in(file.fd):
            self._mapping.check()
            raise StoreChangedError(
                f"{self.path}: was overwritten while it was in use: generation"
                f" {self.ref.generation} of the store that was opened is no longer in it. Start the"
                " training again; replace stores by renaming, never in place."
            )
        self._times = times

    def take(self, name: str, rows: IntArray) -> AnyArray | list[AnyArray]:
        """Return rows of a column as writable memory; a list if their shapes differ."""
        self.check()
        memory = self.memory_of(name, rows)
        if memory is not None:
            return memory.take(rows)
        column = self.column(name)
        if not column.spec.is_fixed:
            return [column.decoded(int(row)) for row in rows]
        batch = column.empty_batch(len(rows))
        run_jobs(decode_jobs(column, rows, batch))
        return batch

    def copy_jobs(self, name: str, rows: IntArray, out: AnyArray) -> list[Job]:
        """Return how to copy or decode rows of a column of fixed shape straight into `out`.

        Call `check` before.
        """
        memory = self.memory_of(name, rows)
        if memory is not None:
            return memory.copy_jobs(rows, out)
        return decode_jobs(self.column(name), rows, out)

    def memory_at(self, name: str, row: int) -> ColumnMemory | None:
        """Return what `memory_of` does, for one row."""
        if self._presence is None:
            return self.memory.get(name)
        return self.memory_of(name, np.array([row]))

    def source(self, name: str, row: int) -> Source:
        """Return what `copy_jobs` makes a row of: its bytes, or where to decode it from."""
        memory = self.memory.get(name) if self._presence is None else self.memory_at(name, row)
        if memory is not None:
            return memory.in_file(row)
        return self.column(name), row

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
                found += page_cache.merge(zip(offsets, nbytes, strict=True))
        return found

    def load(self, rows: IntArray) -> None:
        """Read rows into the page cache; returns when they are there."""
        self._fetch(self.names, rows)
        page_cache.load(self.open_file(), self._data, self._not_cached(rows))

    def _fetch(self, names: tuple[str, ...], rows: IntArray) -> None:
        """Have rows of a store behind a URL on this node; returns when they are."""
        if self._presence is not None:
            columns = [self.columns[name] for name in names]
            self._memory_in(self._presence.need_all(columns, rows))

    @property
    def is_remote(self) -> bool:
        """Whether its rows are fetched from a URL."""
        return self._presence is not None

    @property
    def is_removed(self) -> bool:
        """Whether the rows of a store behind a URL were removed, to make room in the cache."""
        return self._presence is not None and self._presence.is_removed

    def fetch_ahead(self, names: tuple[str, ...], rows: IntArray) -> bool:
        """Have rows fetched in the background; return False if all are on this node."""
        if self._presence is None:
            return False
        return self._presence.want([self.columns.get(name, name) for name in names], rows)

    def read_ahead(self, rows: IntArray, *, names: tuple[str, ...] | None = None) -> None:
        """Read rows of all or some columns into the page cache in the background."""
        if self.fetch_ahead(names or self.names, rows):
            return  # what is fetched is in the page cache, too
        page_cache.read_ahead(self.open_file(), self._data, self._not_cached(rows))

    def _not_cached(self, rows: IntArray) -> list[tuple[int, int]]:
        """Return the parts of some rows that are not known to be in the page cache."""
        self.check()
        file = self.open_file()
        first = self._probes.choose(self.names)
        missing = page_cache.not_cached(file, self.ranges(rows, names=first))
        self._probes.note(missed=bool(missing))
        if missing:
            others = tuple(name for name in self.names if name not in first)
            missing += page_cache.not_cached(file, self.ranges(rows, names=others))
        return missing

    def warm(self, names: tuple[str, ...], *, progress: page_cache.Progress | None = None) -> None:
        """Read all rows of some columns into the page cache."""
        rows = np.arange(len(self), dtype=np.int64)
        if len(rows):
            self.check()
            self._fetch(names, rows)
            ranges = self.ranges(rows, names=names)
            page_cache.load(self.open_file(), self._data, ranges, progress=progress)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns of the view."""
        return self.nbytes_of(self.names)

    def nbytes_of(self, names: tuple[str, ...]) -> int:
        """Return the bytes of some columns."""
        return sum(int(self.column(name).nbytes.sum()) for name in names)

    def row_groups(self) -> list[tuple[int, int]]:
        """Return [first, last) of the rows that are together in the file, by the largest column."""
        self.check()
        if not len(self) or not self.columns:
            return []
        name = max(self.columns, key=lambda name: self.nbytes_of((name,)))
        column = self.column(name)
        return group_bounds(column.offsets, column.nbytes)

    def key(self, row: int) -> str:
        """Return a sample's key."""
        return self.store.snapshot.index.key(row)

    def image_path(self, row: int) -> str:
        """Return where the build found a sample's picture; its key where that is not recorded."""
        return os.path.join(self._images, self.key(row))  # noqa: PTH118  # a string is wanted

    @cached_property
    def _images(self) -> str:
        source = readable_build(self.store)[0].get("source", {})
        return str(source.get("images") or "")

    @cached_property
    def annotations(self) -> AnnotationReader:
        """The annotations of samples; reading the index waits for the first use."""
        return AnnotationReader(self.store)

    def open_file(self) -> FileHandle:
        """Return this process's descriptor of the file that was opened."""
        if self._handle_pid != os.getpid():
            self._lock = threading.Lock()  # a thread of the parent may have held it at the fork
            self._handle_pid = os.getpid()
            if self._handle is not None and not self._is_own(self._handle.fd):
                self._handle.fd = -1  # closed since the fork; the number may be another file's
                self._handle = None
        with self._lock:
            if self._handle is None:
                self._handle = self._open_own()
            if self._handle is None:
                self.check()
                raise StoreChangedError(
                    f"{self.path}: was replaced or removed before it was used. Open it again."
                )
            return self._handle

    def _open_own(self) -> FileHandle | None:
        """Open the path; None if it does not lead to the file that is mapped."""
        return _open_same(self.mapped_rows)

    def _is_own(self, descriptor: int) -> bool:
        try:
            status = os.fstat(descriptor)
        except OSError:  # closed
            return False
        return _is_at(status, self.mapped_rows)


def _open_same(mapping: MappedFile) -> FileHandle | None:
    """Open the file that is mapped; None if its path does not lead to it any more."""
    try:
        handle = FileHandle(mapping.path)
    except FileNotFoundError:
        return None
    return handle if _is_at(os.fstat(handle.fd), mapping) else None


def _is_at(status: os.stat_result, mapping: MappedFile) -> bool:
    """Return whether a file is the one that is mapped."""
    return status.st_ino == mapping.inode and status.st_dev == mapping.device


def _layout(column: StoredColumn[Any]) -> RowLayout:
    shape = tuple(int(size or 0) for size in column.spec.shape)
    offsets = np.asarray(column.offsets, np.int64)
    return RowLayout(offsets, shape, column.spec.numpy_dtype)


def _called(method: weakref.WeakMethod[Callable[[], FileHandle]]) -> FileHandle:
    found = method()
    assert found is not None  # whoever uses the memory of a view has the view
    return found()


def _resolve(store: Described, ref: ViewRef) -> tuple[StoredView | None, dict[str, str]]:
    """Return a view and its columns by logical name, in the order asked for."""
    views = stored_views(store)  # the default view is the first
    found = next((view for view in views if ref.view in (None, view.name)), None)
    available: dict[str, str] = {}
    if ref.view is not None and found is None:
        known = ", ".join(view.name for view in views) or "none"
        raise RecipeMismatchError(
            f"{store.path}: no view {ref.view!r}; it has {known}. Add it with `ocrstore add-view`."
        )
    if found is not None:
        available = dict(found.columns)
    elif TENSOR in store.columns:
        available = {name: name for name in store.columns if name != IMAGE}
    if not available:
        available = {name: name for name in store.columns}
    if ref.columns is None:
        order = {name: place for place, name in enumerate(VIEW_COLUMNS)}
        names = sorted(available, key=lambda name: (order.get(name, len(order)), name))
        return found, {name: available[name] for name in names}
    chosen: dict[str, str] = {}
    for name in ref.columns:
        if name in available:
            chosen[name] = available[name]
        elif name in store.columns:
            chosen[name] = name
        else:
            known = ", ".join(sorted({*available, *store.columns}))
            raise UnknownColumnError(f"{store.path}: no column {name!r}; it has {known}.")
    return found, chosen
