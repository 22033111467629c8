"""Read what an interrupted writer left in its hidden file, to resume or report it (FORMAT.md 9)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from ocrstore.errors import CorruptStoreError, OCRStoreError, corrupt
from ocrstore.format.columns import Column
from ocrstore.format.extents import extent_value_nbytes, parse_extent
from ocrstore.format.index import Index, Rows, parse_index, serialize
from ocrstore.format.layout import (
    GROUP_MAGIC,
    GROUP_PREFIX,
    PENDING_KEY,
    PENDING_MAGIC,
    VALUE_OFFSET,
    decode_record,
    encode_record,
    extent_key,
    numbered_key,
    record_value_nbytes,
)
from ocrstore.format.lmdb_reader import (
    OVERFLOW_COUNT,
    P_OVERFLOW,
    PAGE_HEADER,
    PageReader,
    Value,
)
from ocrstore.format.lmdb_writer import PAGE_SIZE
from ocrstore.format.manifest import Manifest, decode_json, encode_json, parse_columns
from ocrstore.format.mapped_file import MappedFile
from ocrstore.format.publish import partial_path
from ocrstore.format.row_groups import located
from ocrstore.format.snapshot import Snapshot, take_snapshot


@dataclass(frozen=True, slots=True)
class ResumedGroup:
    """A row group that an interrupted run had written; every row matches its hash."""

    number: int
    keys: list[str]
    rows: dict[str, Rows]
    attributes: pa.Table


@dataclass(slots=True)
class Resumed:
    """The intact part of an unfinished file: its groups, and where its values lie."""

    groups: list[ResumedGroup] = field(default_factory=list)
    values: dict[bytes, Value] = field(default_factory=dict)


def encode_pending(
    columns: Mapping[str, Column], token: str, *, base: Manifest | None = None
) -> dict[bytes, bytes]:
    """Return the pending record: which work this is, on which columns.

    `base` is the generation that is changed in place; None for a new store.
    """
    payload = _pending(columns, token, base)
    return {PENDING_KEY: encode_record(PENDING_MAGIC, 0, payload, page_size=PAGE_SIZE)}


def _pending(columns: Mapping[str, Column], token: str, base: Manifest | None) -> bytes:
    described = [{"name": name, **column.to_json()} for name, column in columns.items()]
    record: dict[str, Any] = {"columns": described, "token": token}
    if base is not None:
        record["base"] = {
            "fingerprint": base.fingerprint,
            "generation": base.generation,
            "groups": base.groups,
        }
    return encode_json(record)


def encode_group(number: int, table: pa.Table) -> dict[bytes, bytes]:
    """Return the group record: its part of the index, with offsets inside its extents."""
    blob = encode_record(GROUP_MAGIC, number, serialize(table), page_size=PAGE_SIZE)
    return {numbered_key(GROUP_PREFIX, number): blob}


def leftovers(groups: int) -> list[bytes]:
    """Return the keys of the records that publication deletes."""
    return [PENDING_KEY, *(numbered_key(GROUP_PREFIX, number) for number in range(groups))]


def load(
    partial: Path, columns: Mapping[str, Column], token: str, *, base: Snapshot | None = None
) -> Resumed | None:
    """Return what an interrupted run of the same work has written; None if it was other work.

    Values are read in the order they were written, and every row is compared with its hash: after
    a power failure any page of the file may be missing. Reading stops at the first group that is
    not intact; that one and all that follow are written again. For changes to `base` the extents
    are in the store; everything else is in the hidden file.
    """
    manifest = base.manifest if base else None
    try:
        scan = Scan(MappedFile(partial).buffer, columns)
        if bytes(scan.pending()) != _pending(columns, token, manifest):
            return None
    except OCRStoreError:
        return None
    store = PageReader(base.mapping.buffer, name=base.mapping.path) if base else None
    first = manifest.groups if manifest else 0
    resumed = Resumed(values={PENDING_KEY: scan.places.pop(PENDING_KEY)})
    while True:
        try:
            group = _load_group(scan, store, first + len(resumed.groups), columns)
        except OCRStoreError:
            return resumed
        resumed.groups.append(group)
        resumed.values.update(scan.places)
        scan.places.clear()


def _load_group(
    scan: Scan, store: PageReader | None, number: int, columns: Mapping[str, Column]
) -> ResumedGroup:
    """Read one group: an extent per column, from `store` or the hidden file, and its record."""
    found = {}
    for name in columns:
        key = extent_key(number, name)
        place = None if store is None else store.find(key)
        if store is not None and place is None:
            raise CorruptStoreError("the extent is no longer in the store")
        data = store.view(place) if store and place else scan.next()
        extent = parse_extent(data, group=number, column=name, where="extent")
        for start, size, digest in extent.entries.tolist():
            if xxhash.xxh3_64_intdigest(data[start : start + size]) != digest:
                raise CorruptStoreError("a row does not match its hash")
        nbytes = extent_value_nbytes(extent.end, page_size=PAGE_SIZE)
        found[name] = (extent, place or scan.take(key, data, nbytes))
    samples = max((len(extent.entries) for extent, _ in found.values()), default=0)
    index = scan.record(number, samples=samples)
    rows: dict[str, Rows] = {}
    for name, (extent, place) in found.items():
        part, entries = index.rows[name], extent.entries
        if not (
            np.array_equal(part.offset, entries["offset"])
            and np.array_equal(part.hash, entries["hash"])
        ):
            raise CorruptStoreError("the record and the extent do not agree")
        rows[name] = located(part, place.offset)
    keys = index.keys
    return ResumedGroup(number, keys, rows, index.table.select(index.attributes.names))


class Scan:
    """Reads the values of a hidden file in sequence: it has no tree yet that leads to them."""

    def __init__(self, buffer: memoryview, columns: Mapping[str, Column]) -> None:
        self.columns = columns
        self._buffer = buffer
        self._page = 2
        self.places: dict[bytes, Value] = {}

    def next(self) -> memoryview:
        """Return the next value, up to the end of its last page; `take` moves past it."""
        start = self._page * PAGE_SIZE
        if start + PAGE_SIZE > len(self._buffer):
            raise CorruptStoreError("the file ends here")
        number, _, flags, _, _ = PAGE_HEADER.unpack_from(self._buffer, start)
        (pages,) = OVERFLOW_COUNT.unpack_from(self._buffer, start + 12)
        end = start + pages * PAGE_SIZE
        if number != self._page or flags != P_OVERFLOW or pages < 1 or end > len(self._buffer):
            raise CorruptStoreError("not a value")
        return self._buffer[start + VALUE_OFFSET : end]

    def take(self, key: bytes, data: memoryview, nbytes: int) -> Value:
        """Record the value just read as that of `key`, and move past it."""
        value = Value(
            self._page,
            (len(data) + VALUE_OFFSET) // PAGE_SIZE,
            self._page * PAGE_SIZE + VALUE_OFFSET,
            nbytes,
        )
        self.places[key] = value
        self._page += value.pages
        return value

    def _blob(self, magic: bytes, number: int, key: bytes) -> memoryview:
        data = self.next()
        payload = decode_record(magic, number, data, what="record")
        self.take(key, data, record_value_nbytes(len(payload), page_size=PAGE_SIZE))
        return payload

    def pending(self) -> memoryview:
        """Read the record every unfinished file starts with."""
        return self._blob(PENDING_MAGIC, 0, PENDING_KEY)

    def record(self, number: int, *, samples: int | None = None) -> Index:
        """Read a group's record; `samples` says how many it must list."""
        record = self._blob(GROUP_MAGIC, number, numbered_key(GROUP_PREFIX, number))
        # the table outlives the mapping, so it is copied
        payload = memoryview(bytes(record))
        return parse_index(payload, self.columns, samples=samples, where="group record")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Unpublished work of a run that was interrupted, or is still running."""

    path: str
    """The hidden file."""
    token: str
    """The name of the work."""
    in_place: bool
    """Whether it changes a published store, which then has its rows; else the hidden file has."""
    columns: tuple[str, ...]
    samples: int
    nbytes: int
    """Of the rows of these samples."""
    obstacle: str
    """Why it cannot be resumed; empty if the same command resumes it."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, without the token."""
        return {name: value for name, value in asdict(self).items() if name != "token"}


def find_unfinished(path: str | os.PathLike[str]) -> Unfinished | None:
    """Look for unfinished work on a store, which may not exist yet; no row is read.

    Takes no lock: the answer may be outdated when it is returned. Work without a complete row
    group is not reported.
    """
    for partial in hidden_files(Path(path)):
        try:
            found = _read(partial, Path(path))
        except OCRStoreError:
            continue  # there is none, or nothing usable
        if found is not None:
            return found
    return None


def hidden_files(target: Path) -> Iterator[Path]:
    """Yield the paths of the hidden file, beside the store and beside a link to it."""
    return iter(dict.fromkeys((partial_path(target.resolve()), partial_path(target))))


@dataclass(frozen=True, slots=True)
class _Base:
    generation: int
    fingerprint: str
    groups: int


def _read(partial: Path, target: Path) -> Unfinished | None:
    scan = Scan(MappedFile(partial).buffer, {})
    record = decode_json(scan.pending(), where=str(partial))
    scan.columns = parse_columns(record.get("columns") or [], where=str(partial))
    base = _base(record, where=str(partial))
    records = list(_records(scan, base))
    if not records:
        return None
    obstacle = ""
    if base is not None:
        store = take_snapshot(target)
        if _is_in_store(store, base.groups, records[0], published=True):
            return None  # published; the run was killed before it removed its hidden file
        obstacle = _obstacle(store, base, records)
    return Unfinished(
        path=str(partial),
        token=str(record.get("token")),
        in_place=base is not None,
        columns=tuple(scan.columns),
        samples=len({key for index in records for key in index.keys}),
        nbytes=sum(int(r.nbytes.sum()) for index in records for r in index.rows.values()),
        obstacle=obstacle,
    )


def _base(record: Mapping[str, Any], *, where: str) -> _Base | None:
    if "base" not in record:
        return None
    try:
        base = _Base(**record["base"])
    except TypeError as exc:
        raise corrupt(where, f"not a pending record: {exc}") from exc
    if not isinstance(base.groups, int):
        raise corrupt(where, "not a pending record")
    return base


def _records(scan: Scan, base: _Base | None) -> Iterator[Index]:
    """Yield the group records, up to the first group that is incomplete."""
    number = base.groups if base else 0
    while True:
        try:
            for name in scan.columns if base is None else ():
                data = scan.next()
                scan.take(extent_key(number, name), data, len(data))
            index = scan.record(number)
        except OCRStoreError:
            return
        yield index
        number += 1


def _obstacle(store: Snapshot, base: _Base, records: list[Index]) -> str:
    now = store.manifest
    if (now.generation, now.fingerprint) != (base.generation, base.fingerprint):
        return (
            f"the store has changed since (generation {now.generation} now, "
            f"{base.generation} when the work began)"
        )
    for number, index in enumerate(records, base.groups):
        if not _is_in_store(store, number, index, published=False):
            return "another writer has freed its row groups, or they are damaged"
    return ""


def _is_in_store(store: Snapshot, number: int, index: Index, *, published: bool) -> bool:
    """Return whether the store has the extents that a group record describes."""
    if (number < store.manifest.groups) != published:
        return False
    pages = PageReader(store.mapping.buffer, name=store.mapping.path)
    columns: Mapping[str, Column] = index.columns
    for name in columns:
        try:
            value = pages.find(extent_key(number, name))
            if value is None:
                return False
            extent = parse_extent(pages.view(value), group=number, column=name, where="extent")
        except OCRStoreError:
            return False
        if not np.array_equal(extent.entries["hash"], index.rows[name].hash):
            return False
    return True
