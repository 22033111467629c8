"""An Arrow IPC file taken apart: its schema and its one record batch, and nothing that inflates.

Arrow itself decompresses what a file says is compressed into memory of the size that the file
claims. The index needs neither compression nor dictionaries (FORMAT.md 6.1), so a file that has
them is refused before a byte is allocated.
"""

from __future__ import annotations

import struct

from ocrstore.format.damage import corrupt
from ocrstore.format.flatbuffers import FlatTable
from ocrstore.quicktuple import QuickTuple

_MAGIC = b"ARROW1"
_TAIL = struct.Struct("<i6s")  # footer nbytes, magic
_BLOCK = struct.Struct("<qi4xq")  # offset, metadata nbytes, body nbytes
_PREFIX = struct.Struct("<Ii")  # continuation mark, metadata nbytes
_BUFFER = struct.Struct("<qq")  # offset in the body, nbytes
_NODE = struct.Struct("<qq")  # length, null count
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3


class ArrowBatch(QuickTuple):
    """A record batch; its buffers lie inside `body`, what they hold is not checked yet."""

    rows: int
    nodes: list[tuple[int, ...]]
    """(length, null count) of every array, parents before their children."""
    buffers: list[tuple[int, ...]]
    """(offset in the body, nbytes), in the order of the nodes."""
    body: memoryview


class ArrowFile(QuickTuple):
    """What an Arrow file consists of."""

    footer: FlatTable
    batch: ArrowBatch | None


def check_arrow_file(payload: memoryview, *, where: str) -> ArrowFile:
    """Refuse anything but an uncompressed file of at most one record batch (FORMAT.md 6.1)."""
    try:
        return _check(payload)
    except (ValueError, struct.error) as exc:
        raise corrupt(where, f"not an Arrow file of the kind an index is: {exc}") from exc


def _check(payload: memoryview) -> ArrowFile:
    if len(payload) < 8 + _TAIL.size or payload[:6] != _MAGIC:
        raise ValueError("it does not start with ARROW1")
    nbytes, magic = _TAIL.unpack_from(payload, len(payload) - _TAIL.size)
    end = len(payload) - _TAIL.size - nbytes
    if magic != _MAGIC or nbytes <= 0 or end < 8:
        raise ValueError("its end is not that of an Arrow file")
    footer = FlatTable.root(payload[end : end + nbytes])
    if footer.structs(2, _BLOCK):
        raise ValueError("it has dictionaries")
    blocks = footer.structs(3, _BLOCK)
    if len(blocks) > 1:
        raise ValueError("it has more than one record batch")
    batch = None
    for offset, metadata_nbytes, body_nbytes in blocks:
        body = offset + metadata_nbytes
        if offset < 8 or metadata_nbytes < _PREFIX.size or not 0 <= body_nbytes <= end - body:
            raise ValueError("its record batch lies outside it")
        batch = _check_batch(payload[offset:body], payload[body : body + body_nbytes])
    return ArrowFile(footer, batch)


def _check_batch(metadata: memoryview, body: memoryview) -> ArrowBatch:
    mark, nbytes = _PREFIX.unpack_from(metadata)
    if mark != _CONTINUATION or not 0 < nbytes <= len(metadata) - _PREFIX.size:
        raise ValueError("its record batch has no proper header")
    message = FlatTable.root(metadata[_PREFIX.size : _PREFIX.size + nbytes])
    batch = message.table(2)
    if message.scalar(1, "<B") != _RECORD_BATCH or batch is None:
        raise ValueError("where its record batch should be is something else")
    if message.scalar(3, "<q") != len(body):
        raise ValueError("its record batch is not as long as its footer says")
    if batch.field(3) is not None:
        raise ValueError("its record batch is compressed")
    buffers = batch.structs(2, _BUFFER)
    for offset, size in buffers:
        if not (0 <= offset <= len(body) and 0 <= size <= len(body) - offset):
            raise ValueError("a buffer lies outside its record batch")
    return ArrowBatch(batch.scalar(0, "<q"), batch.structs(1, _NODE), buffers, body)
