"""A look at an Arrow IPC file before Arrow reads it: its blocks, and nothing that inflates.

Arrow checks offsets and types itself, but it decompresses what the file says is compressed into
memory of the size that the file claims. The index needs neither compression nor dictionaries
(FORMAT.md 6.1), so a file that has them is refused before a byte is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ocrstore.format.damage import corrupt

_MAGIC = b"ARROW1"
_TAIL = struct.Struct("<i6s")  # footer nbytes, magic
_BLOCK = struct.Struct("<qi4xq")  # offset, metadata nbytes, body nbytes
_PREFIX = struct.Struct("<Ii")  # continuation mark, metadata nbytes
_BUFFER = struct.Struct("<qq")  # offset in the body, nbytes
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3


@dataclass(frozen=True, slots=True)
class _Table:
    """A Flatbuffers table: fields by number, every position checked by struct."""

    data: memoryview
    position: int

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, _number("<I", data, 0))

    def field(self, number: int) -> int | None:
        """Return where a field lies; None if the table does not have it."""
        vtable = self.position - _number("<i", self.data, self.position)
        slot = 4 + 2 * number
        if slot + 2 > _number("<H", self.data, vtable):
            return None
        offset = _number("<H", self.data, vtable + slot)
        return self.position + offset if offset else None

    def scalar(self, number: int, kind: str) -> int:
        position = self.field(number)
        return 0 if position is None else _number(kind, self.data, position)

    def table(self, number: int) -> _Table | None:
        position = self.field(number)
        if position is None:
            return None
        return _Table(self.data, position + _number("<I", self.data, position))

    def structs(self, number: int, kind: struct.Struct) -> list[tuple[int, ...]]:
        """Return a vector of structs; it must lie inside the data."""
        position = self.field(number)
        if position is None:
            return []
        position += _number("<I", self.data, position)
        count = _number("<I", self.data, position)
        start, end = position + 4, position + 4 + count * kind.size
        if end > len(self.data):
            raise ValueError(f"a list of {count} leaves it")
        return list(kind.iter_unpack(self.data[start:end]))


def _number(kind: str, data: memoryview, position: int) -> int:
    if position < 0:  # struct would count from the end
        raise ValueError("a position before its start")
    return int(struct.unpack_from(kind, data, position)[0])


def check_arrow_file(payload: memoryview, *, where: str) -> None:
    """Refuse anything but an uncompressed file of at most one record batch (FORMAT.md 6.1)."""
    try:
        _check(payload)
    except (ValueError, struct.error) as exc:
        raise corrupt(where, f"not an Arrow file of the kind an index is: {exc}") from exc


def _check(payload: memoryview) -> None:
    if len(payload) < 8 + _TAIL.size or payload[:6] != _MAGIC:
        raise ValueError("it does not start with ARROW1")
    nbytes, magic = _TAIL.unpack_from(payload, len(payload) - _TAIL.size)
    end = len(payload) - _TAIL.size - nbytes
    if magic != _MAGIC or nbytes <= 0 or end < 8:
        raise ValueError("its end is not that of an Arrow file")
    footer = _Table.root(payload[end : end + nbytes])
    if footer.structs(2, _BLOCK):
        raise ValueError("it has dictionaries")
    blocks = footer.structs(3, _BLOCK)
    if len(blocks) > 1:
        raise ValueError("it has more than one record batch")
    for offset, metadata_nbytes, body_nbytes in blocks:
        body = offset + metadata_nbytes
        if offset < 8 or metadata_nbytes < _PREFIX.size or not 0 <= body_nbytes <= end - body:
            raise ValueError("its record batch lies outside it")
        _check_batch(payload[offset:body], body_nbytes)


def _check_batch(metadata: memoryview, body_nbytes: int) -> None:
    mark, nbytes = _PREFIX.unpack_from(metadata)
    if mark != _CONTINUATION or not 0 < nbytes <= len(metadata) - _PREFIX.size:
        raise ValueError("its record batch has no proper header")
    message = _Table.root(metadata[_PREFIX.size : _PREFIX.size + nbytes])
    batch = message.table(2)
    if message.scalar(1, "<B") != _RECORD_BATCH or batch is None:
        raise ValueError("where its record batch should be is something else")
    if message.scalar(3, "<q") != body_nbytes:
        raise ValueError("its record batch is not as long as its footer says")
    if batch.field(3) is not None:
        raise ValueError("its record batch is compressed")
    for offset, size in batch.structs(2, _BUFFER):
        if not (0 <= offset <= body_nbytes and 0 <= size <= body_nbytes - offset):
            raise ValueError("a buffer lies outside its record batch")
