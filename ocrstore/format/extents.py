"""Extents, the rows of one column in one row group: building and parsing them (FORMAT.md 5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.errors import corrupt
from ocrstore.format.layout import EXTENT_MAGIC as MAGIC
from ocrstore.format.layout import (
    MAX_NAME_NBYTES,
    ROW_ALIGNMENT,
    VALUE_OFFSET,
    align_up,
    is_valid_name,
    row_alignment,
)

# magic, group, rows, capacity of the directory, zero, bytes from the value's start to the end of
# the last row, zero, name length, name
_HEADER = struct.Struct(f"<8sIIIIQQB{MAX_NAME_NBYTES}s")
_HASH = struct.Struct("<Q")
HEADER_NBYTES = _HEADER.size + _HASH.size
ENTRY = np.dtype([("offset", "<u8"), ("nbytes", "<u8"), ("hash", "<u8")])


@dataclass(frozen=True, slots=True)
class Extent:
    """A parsed extent; `entries` has one record (offset within the value, nbytes, hash) a row."""

    group: int
    column: str
    entries: npt.NDArray[Any]
    start: int
    """Where the directory ends, from the value's start; only padding and rows follow."""
    end: int
    """Where the last row ends, from the value's start."""


def directory_end(capacity: int) -> int:
    """Return the first byte behind the directory, from the value's start."""
    return HEADER_NBYTES + capacity * ENTRY.itemsize


def extent_value_nbytes(end: int, *, page_size: int) -> int:
    """Return the size of the whole value of an extent whose last row ends at `end`."""
    return max(end, page_size - VALUE_OFFSET)


class ExtentBuilder:
    """Packs the rows of one column, aligned, into a buffer that is reused for the next extent."""

    def __init__(self, column: str, *, raw: bool, capacity: int) -> None:
        self._column = column
        self._raw = raw
        self._capacity = capacity
        self._buffer = np.empty(0, np.uint8)
        self._entries = np.zeros(capacity, ENTRY)
        self.clear()

    def clear(self) -> None:
        """Start the next extent; the buffer is kept."""
        self.rows = 0
        self._end = directory_end(self._capacity)
        self._entries[:] = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the extent so far."""
        return self._end

    def add(self, row: npt.NDArray[np.uint8]) -> None:
        """Append a copy of a row's stored bytes, and hash it."""
        alignment = row_alignment(row.nbytes, raw=self._raw)
        # FORMAT.md 5.3: alignment is counted from the file's start, where the value starts at +16
        start = align_up(VALUE_OFFSET + self._end, alignment) - VALUE_OFFSET
        end = start + row.nbytes
        self._reserve(end, row.nbytes)
        self._buffer[self._end : start] = 0
        self._buffer[start:end] = row
        digest = xxhash.xxh3_64_intdigest(self._buffer[start:end].data)
        self._entries[self.rows] = (start, row.nbytes, digest)
        self.rows += 1
        self._end = end

    def finish(self, group: int, *, page_size: int) -> npt.NDArray[np.uint8]:
        """Return the whole value; it is valid until the next `clear` or `add`."""
        size = extent_value_nbytes(self._end, page_size=page_size)
        self._reserve(size, 0)
        self._buffer[self._end : size] = 0
        name = self._column.encode("ascii")
        header = _HEADER.pack(
            MAGIC, group, self.rows, self._capacity, 0, self._end, 0, len(name), name
        )
        directory = self._entries.tobytes()
        digest = xxhash.xxh3_64_intdigest(header + directory)
        head = header + _HASH.pack(digest) + directory
        self._buffer[: len(head)] = np.frombuffer(head, np.uint8)
        return self._buffer[:size]

    @property
    def entries(self) -> npt.NDArray[Any]:
        """The directory of the rows so far (a copy)."""
        return self._entries[: self.rows].copy()

    def _reserve(self, size: int, row_nbytes: int) -> None:
        if size <= self._buffer.nbytes:
            return
        # room for a whole group of rows like this one; memory that is not touched costs nothing
        guess = size + (self._capacity - self.rows) * align_up(row_nbytes, ROW_ALIGNMENT)
        grown = np.empty(
            max(size, min(guess, size + 2**28), self._buffer.nbytes * 5 // 4), np.uint8
        )
        kept = min(self._end, self._buffer.nbytes)
        grown[:kept] = self._buffer[:kept]
        self._buffer = grown


def parse_extent(value: memoryview, *, group: int, column: str, where: str) -> Extent:
    """Parse and check an extent's header and directory; rows are not read."""
    if len(value) < HEADER_NBYTES:
        raise corrupt(where, f"{len(value)} bytes are too few for an extent.")
    (magic, found_group, rows, capacity, zero, end, zero_too, name_nbytes, name) = (
        _HEADER.unpack_from(value)
    )
    if magic != MAGIC:
        raise corrupt(where, f"starts with {magic!r}, expected {MAGIC!r}.")
    start = directory_end(capacity)
    if rows > capacity or not start <= end <= len(value):
        raise corrupt(where, "impossible sizes in its header.")
    (digest,) = _HASH.unpack_from(value, _HEADER.size)
    directory = value[HEADER_NBYTES:start]
    if digest != xxhash.xxh3_64_intdigest(bytes(value[: _HEADER.size]) + bytes(directory)):
        raise corrupt(where, "its header or directory does not match its hash.")
    found = name[:name_nbytes].decode("ascii", "replace") if name_nbytes <= len(name) else ""
    if (found_group, found) != (group, column) or zero or zero_too or not is_valid_name(found):
        raise corrupt(
            where,
            f"says it is column {found!r} of group {found_group}, expected column "
            f"{column!r} of group {group}.",
        )
    entries = np.frombuffer(directory, ENTRY)
    if entries[rows:].tobytes().strip(b"\0"):
        raise corrupt(where, "entries behind the last row are not zero.")
    entries = entries[:rows]
    ends = entries["offset"] + entries["nbytes"]
    if rows and (
        (entries["offset"] > end).any()
        or (entries["nbytes"] > end).any()
        or (ends > end).any()
        or (entries["offset"] < start).any()
        or (entries["offset"][1:] < ends[:-1]).any()
    ):
        raise corrupt(where, "its rows overlap or leave the extent.")
    return Extent(group, column, entries, start, end)
