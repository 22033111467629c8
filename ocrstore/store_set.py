"""Open the shards of a data set of many stores: one of them, or all as one store.

`Store("train/")` is such a store. Its index is that of all shards, one behind the other. To its
columns their files are one file, mapped in parts: shards are mapped when rows of them are read.
"""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ocrstore.catalog import Catalog, Shard, read_catalog
from ocrstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    StoreChangedError,
    UnknownGenerationError,
)
from ocrstore.format.attributes import unify
from ocrstore.format.index import Index, Rows, build_table
from ocrstore.format.manifest import Manifest, needed_version
from ocrstore.format.mapped_file import MappedFile
from ocrstore.format.snapshot import Snapshot
from ocrstore.store import Store, local_path

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_MOST_MAPPED = 64
"""Shards that stay mapped; each takes a descriptor."""
_JOINED = 64
"""Shards whose indexes are copied together: until then each keeps its file mapped."""


def open_shard(catalog: Catalog, shard: Shard, *, max_row_nbytes: int | None = None) -> Store:
    """Open a shard; no row is read.

    Raises:
        CorruptStoreError: It is missing, or not the store that the catalog describes.
    """
    try:
        store = Store(catalog.shard_path(shard), max_row_nbytes=max_row_nbytes)
    except (NotAStoreError, CorruptStoreError) as exc:
        raise _differs(catalog, shard, str(exc)) from exc
    found = {
        "bytes": (store.snapshot.mapping.nbytes, shard.nbytes),
        "samples": (len(store), shard.samples),
        "fingerprint": (store.fingerprint, shard.fingerprint),
        "columns": (dict(store.columns), dict(catalog.columns)),
    }
    for what, (is_, expected) in found.items():
        if is_ != expected:
            raise _differs(catalog, shard, f"expected {what} {expected}, found {is_}.")
    return store


def _differs(catalog: Catalog, shard: Shard, why: str) -> CorruptStoreError:
    return CorruptStoreError(
        f"shard {shard.name} is not as {catalog.path} describes it: {why} `ocrstore verify"
        f" {catalog.folder}` lists all such shards; remove them, and `ocrstore build` makes them"
        " anew."
    )


def catalog_of(store: Store) -> Catalog | None:
    """Return the catalog if a store is a data set of many stores."""
    mapping = store.snapshot.mapping
    return mapping.catalog if isinstance(mapping, MappedShards) else None


def take_set_snapshot(place: str | os.PathLike[str], *, generation: int | None = None) -> Snapshot:
    """Read the indexes of all shards of a data set.

    Raises:
        CorruptStoreError: The catalog is damaged, or a shard is not as it says.
        UnknownGenerationError: Any generation but the only one is asked for.
    """
    catalog = read_catalog(place)
    if generation:
        raise UnknownGenerationError(
            f"{catalog.folder}: has no generation {generation}: a data set of many stores has no"
            " older ones."
        )
    build: dict[str, Any] = {}
    tables: list[pa.Table] = []
    identities = []
    for number, shard in enumerate(catalog.shards):
        with open_shard(catalog, shard) as store:
            mapping = store.snapshot.mapping
            identities.append((mapping.device, mapping.inode))
            tables.append(store.snapshot.index.table)
            build = build or dict(store.metadata.get("build", {}))
        if number % _JOINED == _JOINED - 1:
            tables = [_joined(tables)]
    known = {name: catalog.build[name] for name in ("source", "problems") if name in catalog.build}
    manifest = Manifest(
        generation=0,
        samples=len(catalog),
        groups=sum(count for shard in catalog.shards for count, _ in shard.row_groups),
        columns=catalog.columns,
        fingerprint=catalog.fingerprint,
        history=(),
        metadata={**catalog.metadata, **({"build": {**build, **known}} if build else {})},
        version=needed_version(catalog.columns),
    )
    files = MappedShards(catalog, identities)
    return Snapshot(files, manifest, _index(catalog, tables, files.starts), (0,), ())


def _joined(tables: list[pa.Table]) -> pa.Table:
    return unify(tables, None).combine_chunks()


def _index(catalog: Catalog, tables: list[pa.Table], starts: list[int]) -> Index:
    """Return the index of all shards, with offsets in their files one behind the other."""
    if tables:
        table = _joined(tables)
    else:
        none = {name: Rows.concatenate([], len(c.shape)) for name, c in catalog.columns.items()}
        table = build_table([], catalog.columns, none, unify([], None))
    index = Index(table, catalog.columns)
    shift = np.repeat(np.array(starts, np.int64), [shard.samples for shard in catalog.shards])
    for name, rows in index.rows.items():
        index.rows[name] = rows._replace(offset=rows.offset + shift)
    return index


class MappedShards(MappedFile):
    """The files of all shards as if they were one; each is mapped when it is read. Thread-safe."""

    __slots__ = ("_identities", "_mapped", "catalog", "starts")

    def __init__(self, catalog: Catalog, identities: list[tuple[int, int]]) -> None:
        status = os.stat(catalog.path)  # noqa: PTH116  # strings throughout
        self.path = catalog.folder
        self.device, self.inode = status.st_dev, status.st_ino
        self.times = (status.st_mtime_ns, status.st_ctime_ns)
        self.catalog = catalog
        *self.starts, self.nbytes = accumulate((s.nbytes for s in catalog.shards), initial=0)
        self._identities = identities
        self._mapped: OrderedDict[int, MappedFile] = OrderedDict()

    def part(self, offset: int, nbytes: int) -> memoryview:
        """Return some bytes of a shard, without a copy."""
        file, start = self._find(offset)
        return file.part(offset - start, nbytes)

    def array(
        self,
        offset: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """Return a read-only array in a shard, without a copy."""
        file, start = self._find(offset)
        return file.array(offset - start, dtype, shape, strides=strides)

    def resident_nbytes(self, parts: Iterable[tuple[int, int]] | None = None) -> int | None:
        """Return how many bytes are in the page cache; None if the system does not report it."""
        assert parts is None  # who asks about parts asks about each shard
        total = 0
        for number in range(len(self.starts)):
            found = self._file(number).resident_nbytes()
            if found is None:
                return None
            total += found
        return total

    def has_grown(self) -> bool:
        """Return False: shards do not change."""
        return False

    def check(self) -> None:
        """Do nothing: a shard is checked when a row of it is read."""

    def _find(self, offset: int) -> tuple[MappedFile, int]:
        number = bisect.bisect_right(self.starts, offset) - 1
        file = self._file(number)
        file.check()
        return file, self.starts[number]

    def _file(self, number: int) -> MappedFile:
        # single steps without a lock, as threads may share a store
        file = self._mapped.pop(number, None) or self._open(number)
        self._mapped[number] = file
        while len(self._mapped) > _MOST_MAPPED:
            self._mapped.popitem(last=False)
        return file

    def _open(self, number: int) -> MappedFile:
        shard = self.catalog.shards[number]
        file = MappedFile(local_path(self.catalog.shard_path(shard)))
        if (file.device, file.inode) != self._identities[number] or file.nbytes != shard.nbytes:
            raise StoreChangedError(
                f"{file.path}: was replaced while the data set was open. Open it again."
            )
        return file
