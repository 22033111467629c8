"""What an interrupted build leaves in its hidden file; how it is taken up (FORMAT.md 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
from ocrstore.format.index import Rows, parse_index
from ocrstore.format.indextable import serialize
from ocrstore.format.layout import (
    GROUP_PREFIX,
    PENDING_KEY,
    VALUE_OFFSET,
    extent_key,
    numbered_key,
)
from ocrstore.format.manifest import encode_json
from ocrstore.format.mapping import Mapping as FileMapping
from ocrstore.format.pages import OVERFLOW_COUNT, P_OVERFLOW, PAGE_HEADER, Value
from ocrstore.format.payload import located


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


def encode_pending(columns: Mapping[str, Column], token: str) -> dict[bytes, bytes]:
    """Make the record that marks a file as unfinished and says what is being built."""
    payload = _pending(columns, token)
    return {PENDING_KEY: encode_blob(PENDING_MAGIC, 0, payload, page_size=PAGE_SIZE)}


def _pending(columns: Mapping[str, Column], token: str) -> bytes:
    described = [{"name": name, **column.to_json()} for name, column in columns.items()]
    return encode_json({"columns": described, "token": token})


def encode_group(number: int, table: pa.Table) -> dict[bytes, bytes]:
    """Make the record of one group: its part of the index, with offsets inside its extents."""
    blob = encode_blob(GROUP_MAGIC, number, serialize(table), page_size=PAGE_SIZE)
    return {numbered_key(GROUP_PREFIX, number): blob}


def leftovers(groups: int) -> list[bytes]:
    """Name the records that publication makes superfluous."""
    return [PENDING_KEY, *(numbered_key(GROUP_PREFIX, number) for number in range(groups))]


def load(partial: Path, columns: Mapping[str, Column], token: str) -> Resumed | None:
    """Return what an interrupted run of the same work has written; None if it was other work.

    Every row is compared with its hash: after a power failure the file may hold anything. The
    first thing that is not sound, and all behind it, is written again.
    """
    try:
        scan = _Scan(FileMapping(partial).buffer, columns)
        if bytes(scan.pending()) != _pending(columns, token):
            return None
    except OCRStoreError:
        return None
    resumed = Resumed(values={PENDING_KEY: scan.places.pop(PENDING_KEY)})
    while True:
        try:
            group = scan.group(len(resumed.groups))
        except OCRStoreError:
            return resumed
        resumed.groups.append(group)
        resumed.values.update(scan.places)
        scan.places.clear()


class _Scan:
    """Reads values one behind the other, as they were written."""

    def __init__(self, buffer: memoryview, columns: Mapping[str, Column]) -> None:
        self._buffer = buffer
        self._columns = columns
        self._page = 2
        self.places: dict[bytes, Value] = {}

    def _next(self) -> memoryview:
        start = self._page * PAGE_SIZE
        if start + PAGE_SIZE > len(self._buffer):
            raise CorruptStoreError("the file ends here")
        number, _, flags, _, _ = PAGE_HEADER.unpack_from(self._buffer, start)
        (pages,) = OVERFLOW_COUNT.unpack_from(self._buffer, start + 12)
        end = start + pages * PAGE_SIZE
        if number != self._page or flags != P_OVERFLOW or pages < 1 or end > len(self._buffer):
            raise CorruptStoreError("not a value")
        return self._buffer[start + VALUE_OFFSET : end]

    def _take(self, key: bytes, data: memoryview, nbytes: int) -> Value:
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
        data = self._next()
        payload = decode_blob(magic, number, data, what="record")
        self._take(key, data, blob_value_nbytes(len(payload), page_size=PAGE_SIZE))
        return payload

    def pending(self) -> memoryview:
        """Read the record every unfinished file starts with."""
        return self._blob(PENDING_MAGIC, 0, PENDING_KEY)

    def group(self, number: int) -> ResumedGroup:
        """Read one group: an extent per column, then its record."""
        found = {}
        for name in self._columns:
            data = self._next()
            extent = parse_extent(data, group=number, column=name, where="extent")
            nbytes = extent_value_nbytes(extent.end, page_size=PAGE_SIZE)
            place = self._take(extent_key(number, name), data, nbytes)
            for start, size, digest in extent.entries.tolist():
                if xxhash.xxh3_64_intdigest(data[start : start + size]) != digest:
                    raise CorruptStoreError("a row is not what was written")
            found[name] = (extent, place)
        # the table outlives the mapping, so it gets memory of its own
        record = self._blob(GROUP_MAGIC, number, numbered_key(GROUP_PREFIX, number))
        samples = max((len(extent.entries) for extent, _ in found.values()), default=0)
        index = parse_index(
            memoryview(bytes(record)), self._columns, samples=samples, where="group record"
        )
        rows: dict[str, Rows] = {}
        for name, (extent, place) in found.items():
            part, entries = index.rows[name], extent.entries
            if (part.offset != entries["offset"]).any() or (part.hash != entries["hash"]).any():
                raise CorruptStoreError("the record and the extent do not agree")
            rows[name] = located(part, place.offset)
        keys = list(index.keys)
        return ResumedGroup(number, keys, rows, index.table.select(index.attributes.names))
