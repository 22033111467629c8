"""What interrupted work leaves in its hidden file; how it is taken up (FORMAT.md 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from ocrstore.errors import CorruptStoreError, OCRStoreError
from ocrstore.format.blobs import (
    GROUP_MAGIC,
    PENDING_MAGIC,
    blob_value_nbytes,
    decode_blob,
    encode_blob,
)
from ocrstore.format.bulk import PAGE_SIZE
from ocrstore.format.columns import Column
from ocrstore.format.extents import extent_value_nbytes, parse_extent
from ocrstore.format.index import Index, Rows, parse_index, serialize
from ocrstore.format.layout import (
    GROUP_PREFIX,
    PENDING_KEY,
    VALUE_OFFSET,
    extent_key,
    numbered_key,
)
from ocrstore.format.manifest import Manifest, encode_json
from ocrstore.format.mapping import Mapping as FileMapping
from ocrstore.format.pages import (
    OVERFLOW_COUNT,
    P_OVERFLOW,
    PAGE_HEADER,
    PageReader,
    Value,
)
from ocrstore.format.payload import located
from ocrstore.format.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ResumedGroup:
    """A row group that an interrupted run had written, checked row by row."""

    number: int
    keys: list[str]
    rows: dict[str, Rows]
    attributes: pa.Table


@dataclass(slots=True)
class Resumed:
    """The sound part of an unfinished file: its groups, and where all its values lie."""

    groups: list[ResumedGroup] = field(default_factory=list)
    values: dict[bytes, Value] = field(default_factory=dict)


def encode_pending(
    columns: Mapping[str, Column], token: str, *, base: Manifest | None = None
) -> dict[bytes, bytes]:
    """Make the record that marks a file as unfinished and says what is being done.

    `base` is the generation that is changed in place; without it a new store is written.
    """
    payload = _pending(columns, token, base)
    return {PENDING_KEY: encode_blob(PENDING_MAGIC, 0, payload, page_size=PAGE_SIZE)}


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
    """Make the record of one group: its part of the index, with offsets inside its extents."""
    blob = encode_blob(GROUP_MAGIC, number, serialize(table), page_size=PAGE_SIZE)
    return {numbered_key(GROUP_PREFIX, number): blob}


def leftovers(groups: int) -> list[bytes]:
    """Name the records that publication makes superfluous."""
    return [PENDING_KEY, *(numbered_key(GROUP_PREFIX, number) for number in range(groups))]


def load(
    partial: Path, columns: Mapping[str, Column], token: str, *, base: Snapshot | None = None
) -> Resumed | None:
    """Return what an interrupted run of the same work has written; None if it was other work.

    Every row is compared with its hash: after a power failure the file may hold anything. The
    first thing that is not sound, and all behind it, is written again. The extents of changes to
    `base` lie in the store, all else in the hidden file.
    """
    manifest = base.manifest if base else None
    try:
        scan = Scan(FileMapping(partial).buffer, columns)
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
    """Read one group: an extent per column, in `store` or in the hidden file, and its record."""
    found = {}
    for name in columns:
        key = extent_key(number, name)
        place = None if store is None else store.find(key)
        if store is not None and place is None:
            raise CorruptStoreError("the extent is not in the store any more")
        data = store.view(place) if store and place else scan.next()
        extent = parse_extent(data, group=number, column=name, where="extent")
        for start, size, digest in extent.entries.tolist():
            if xxhash.xxh3_64_intdigest(data[start : start + size]) != digest:
                raise CorruptStoreError("a row is not what was written")
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
    """Reads the values of a hidden file one behind the other, as they were written."""

    def __init__(self, buffer: memoryview, columns: Mapping[str, Column]) -> None:
        self.columns = columns
        self._buffer = buffer
        self._page = 2
        self.places: dict[bytes, Value] = {}

    def next(self) -> memoryview:
        """Return the next value, up to the end of its last page; `take` goes behind it."""
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
        """Count the value just read as that of `key`, and go behind it."""
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
        payload = decode_blob(magic, number, data, what="record")
        self.take(key, data, blob_value_nbytes(len(payload), page_size=PAGE_SIZE))
        return payload

    def pending(self) -> memoryview:
        """Read the record every unfinished file starts with."""
        return self._blob(PENDING_MAGIC, 0, PENDING_KEY)

    def record(self, number: int, *, samples: int | None = None) -> Index:
        """Read a group's record; `samples` says how many it must list."""
        record = self._blob(GROUP_MAGIC, number, numbered_key(GROUP_PREFIX, number))
        # the table outlives the mapping, so it gets memory of its own
        payload = memoryview(bytes(record))
        return parse_index(payload, self.columns, samples=samples, where="group record")
