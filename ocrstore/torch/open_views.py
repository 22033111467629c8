"""The views that a process has open, and those of shards, which are opened on first use.

Data sets on the same file, view and columns share one `StoreView`. So do the batches of workers:
they arrive as references, which `find_view` resolves in any process.
"""

from __future__ import annotations

import bisect
import itertools
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

from ocrstore.catalog import Catalog, find_catalog, read_catalog
from ocrstore.errors import StoreChangedError, corrupt
from ocrstore.store import Store, open_store, reopen_store
from ocrstore.store_set import open_shard
from ocrstore.torch.memory.column_memory import Strategy
from ocrstore.torch.memory.page_cache import ProbeSchedule
from ocrstore.torch.store_view import ShardRef, StoreView, ViewOutline, ViewRef

if sys.platform != "win32":
    import resource

_OF_CATALOG = -1
"""The generation in the reference to a catalog, which has none."""
_MAX_RECENT = 4
_MAX_OPEN = 2048


class ShardedView(ViewOutline):
    """One view of a data set of many stores. Of its shards, only those in use are open."""

    def __init__(self, catalog: Catalog, ref: ViewRef) -> None:
        super().__init__(catalog, ref)
        self.catalog = catalog
        self.lengths = [shard.samples for shard in catalog.shards]
        """The samples of each shard."""
        self.opened: OrderedDict[int, StoreView] = OrderedDict()
        """Shards that are open, at most `max_open()`; the last used one is last."""
        self._max_open = max_open()
        self._probes = ProbeSchedule()

    def __len__(self) -> int:
        return sum(self.lengths)

    def shard(self, number: int) -> StoreView:
        """Return the view of a shard, opened before or now."""
        found = self.opened.get(number)
        if found is None or len(self.lengths) > self._max_open:
            # single steps without a lock: a thread of the parent might hold it at a fork
            if self.is_remote:  # the disk has room again when nobody maps what was removed
                for other in [key for key, view in list(self.opened.items()) if view.is_removed]:
                    self.opened.pop(other, None)
            found = self.opened.pop(number, None) or self._open(number)
            self.opened[number] = found
            while len(self.opened) > self._max_open:
                self.opened.popitem(last=False)
        return found

    def _open(self, number: int) -> StoreView:
        """Open a shard and compare it with the catalog."""
        shard = self.catalog.shards[number]
        store = open_shard(self.catalog, shard, max_row_nbytes=self.ref.max_row_nbytes)
        ref = self.ref._replace(
            path=store.path, generation=store.generation, fingerprint=shard.fingerprint
        )
        opened = StoreView(store, ref, sent=ShardRef(self.ref, number), probes=self._probes)
        if (opened.stored_view, opened.columns) != (self.stored_view, self.columns):
            raise corrupt(
                store.path, f"has other views than {self.path} says. Run `ocrstore build` again"
            )
        # the same objects for all shards: batches of several compare them by identity
        opened.stored_view, opened.columns = self.stored_view, self.columns
        opened.names, opened.specs = self.names, self.specs
        return opened

    def nbytes_of(self, names: tuple[str, ...]) -> int:
        """Return the stored bytes of some columns."""
        stored = [self.columns.get(name, name) for name in names]
        return sum(shard.column_nbytes[name] for shard in self.catalog.shards for name in stored)

    def row_groups(self) -> list[tuple[int, int]]:
        """Return [first, last) of the rows of each row group."""
        groups = (group for shard in self.catalog.shards for group in shard.row_groups)
        lengths = (rows for count, rows in groups for _ in range(count))
        return list(itertools.pairwise(itertools.accumulate(lengths, initial=0)))


ViewSet = StoreView | ShardedView
"""What a path of a data set leads to: one store, or the shards of a catalog."""

T = TypeVar("T", StoreView, ShardedView)


class Views(Sequence[StoreView]):
    """The views of all stores of a data set, in the order of its rows, opened on access."""

    def __init__(self, sets: Sequence[ViewSet]) -> None:
        self.sets = tuple(sets)
        counts = [len(one.lengths) for one in self.sets]
        self._ends = list(itertools.accumulate(counts))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, number: int) -> StoreView: ...
    @overload
    def __getitem__(self, number: slice) -> list[StoreView]: ...
    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        number = range(len(self))[number]  # raises an IndexError, or counts from the end
        place = bisect.bisect_right(self._ends, number)
        return self.sets[place].shard(number - (self._ends[place - 1] if place else 0))

    def at(self, numbers: Iterable[int]) -> list[StoreView]:
        """Return those of some numbers, which are not negative; for every batch, so it is quick."""
        if len(self.sets) == 1:
            return [self.sets[0].shard(number) for number in numbers]
        return [self[number] for number in numbers]


_open_sets: weakref.WeakValueDictionary[ViewRef, ViewSet] = weakref.WeakValueDictionary()
_recent: OrderedDict[ViewRef, ViewSet] = OrderedDict()
"""Those that were opened for a batch, kept open for the next one."""


def max_open() -> int:
    """Return how many shards of a data set a process keeps open.

    Each takes two descriptors; data sets for training and validation leave half of them to others.
    """
    if sys.platform == "win32":
        return _MAX_OPEN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(16, min(_MAX_OPEN, soft // 8))


def open_set(
    path: str,
    *,
    view: str | None = None,
    columns: tuple[str, ...] | None = None,
    strategy: Strategy | None = None,
    max_row_nbytes: int | None = None,
    normalize: bool = False,
    numpy: bool = False,
) -> ViewSet:
    """Open a store, or the catalog of a data set of many stores."""
    path = os.path.abspath(path)  # noqa: PTH100  # keeps symbolic links as they are
    asked = (view, columns, strategy, max_row_nbytes, normalize, numpy)
    if find_catalog(path) is not None or os.path.isdir(path):  # noqa: PTH112  # strings throughout
        catalog = read_catalog(path)
        ref = ViewRef(catalog.path, _OF_CATALOG, catalog.fingerprint, *asked)
        return _open_sets.get(ref) or _keep(ShardedView(catalog, ref))
    store = open_store(path, max_row_nbytes=max_row_nbytes)
    return _shared(store, ViewRef(store.path, store.generation, store.fingerprint, *asked))


def find_set(ref: ViewRef) -> ViewSet:
    """Return the view or the views that a reference of a data set names, opened before or now.

    Raises:
        StoreChangedError: The store or the catalog has other content now.
    """
    found = _open_sets.get(ref)
    if found is None:
        if ref.generation == _OF_CATALOG:
            catalog = read_catalog(ref.path)
            if catalog.fingerprint != ref.fingerprint:
                raise StoreChangedError(
                    f"{ref.path}: the data set was built again while it was in use. Start the"
                    " training again with the new one."
                )
            found = _keep(ShardedView(catalog, ref))
        else:
            store = reopen_store(ref.path, ref.generation, ref.fingerprint, ref.max_row_nbytes)
            found = _shared(store, ref)
        _recent[ref] = found
        while len(_recent) > _MAX_RECENT:
            _recent.popitem(last=False)
    return found


def find_view(ref: ViewRef | ShardRef) -> StoreView:
    """Return the view of a store or a shard that a reference names, opened before or now."""
    if isinstance(ref, ShardRef):
        return find_set(ref.dataset).shard(ref.number)
    return find_set(ref).shard(0)


def _shared(store: Store, ref: ViewRef) -> StoreView:
    found = _open_sets.get(ref)
    mapping = store.snapshot.mapping
    if isinstance(found, StoreView):
        mine = found.store.snapshot.mapping
        same_file = (mine.device, mine.inode) == (mapping.device, mapping.inode)
        # an equal build that overwrote the file may have its rows at other offsets
        if same_file and found.store.snapshot.seals == store.snapshot.seals:
            return found
    return _keep(StoreView(store, ref))


def _keep(made: T) -> T:
    _open_sets[made.ref] = made
    return made
