"""Records: a header with hashes around manifest, index, group and pending record (FORMAT.md 4)."""

from __future__ import annotations

import struct

import xxhash

from ocrstore.errors import corrupt
from ocrstore.format.layout import MAX_PAGE_NBYTES, VALUE_OFFSET

MANIFEST_MAGIC = b"OCRSMAN1"
INDEX_MAGIC = b"OCRSIDX1"
GROUP_MAGIC = b"OCRSGRP1"
PENDING_MAGIC = b"OCRSPND1"
EXTENT_MAGIC = b"OCRSEXT1"
"""Extents have headers of their own (extents.py); reading rows never parses them."""

_HEADER = struct.Struct("<8sQQQQ")  # magic, payload nbytes, payload hash, number, zero
_HASH = struct.Struct("<Q")
HEADER_NBYTES = _HEADER.size + _HASH.size
"""48: with the page header before it, the payload starts on a multiple of 64 in the file."""


def encode_record(magic: bytes, number: int, payload: bytes, *, page_size: int) -> bytes:
    """Return `payload` with a header; `number` is its generation or group.

    The result fills at least one page: LMDB would store a smaller value inside a tree page, which
    moves, and the value would have no fixed offset in the file.
    """
    header = _HEADER.pack(magic, len(payload), xxhash.xxh3_64_intdigest(payload), number, 0)
    value = header + _HASH.pack(xxhash.xxh3_64_intdigest(header)) + payload
    return value.ljust(record_value_nbytes(len(payload), page_size=page_size), b"\0")


def record_value_nbytes(payload_nbytes: int, *, page_size: int) -> int:
    """Return the size of the whole value for a payload of this size."""
    return max(HEADER_NBYTES + payload_nbytes, page_size - VALUE_OFFSET)


def decode_record(magic: bytes, number: int, value: memoryview, *, what: str) -> memoryview:
    """Check a record's header and hashes and return its payload, without copying it.

    `what` names the record in errors.
    """
    if len(value) < HEADER_NBYTES:
        raise corrupt(what, f"{len(value)} bytes are too few for its header.")
    found_magic, nbytes, payload_hash, found_number, zero = _HEADER.unpack_from(value)
    (header_hash,) = _HASH.unpack_from(value, _HEADER.size)
    if found_magic != magic:
        raise corrupt(what, f"starts with {found_magic!r}, expected {magic!r}.")
    if header_hash != xxhash.xxh3_64_intdigest(value[: _HEADER.size]):
        raise corrupt(what, "its header does not match the header's hash.")
    if found_number != number:
        raise corrupt(what, f"says it is number {found_number}, expected {number}.")
    if zero:
        raise corrupt(what, "a reserved field of its header is not zero")
    if nbytes > len(value) - HEADER_NBYTES:
        raise corrupt(
            what, f"claims {nbytes} bytes, but only {len(value) - HEADER_NBYTES} are there."
        )
    payload = value[HEADER_NBYTES : HEADER_NBYTES + nbytes]
    if xxhash.xxh3_64_intdigest(payload) != payload_hash:
        raise corrupt(what, f"its {nbytes} bytes do not match their hash.")
    padding = value[HEADER_NBYTES + nbytes :]
    if len(padding) > MAX_PAGE_NBYTES or any(padding):
        raise corrupt(what, "the padding behind it is too long or not zero.")
    return payload
