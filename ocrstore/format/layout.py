"""Constants, key names, alignment and checked records of the format (FORMAT.md 2 and 4)."""

from __future__ import annotations

import re
import struct

import xxhash

from ocrstore.errors import corrupt

FORMAT_VERSION = (1, 1)
"""(major, minor). A reader refuses another major; a newer minor only adds what may be ignored."""

PAGE_ALIGNMENT = 4096
"""Raw rows of at least this many bytes start on a multiple of it, counted from the file's start."""

ROW_ALIGNMENT = 64
"""All other rows start on a multiple of this."""

VALUE_OFFSET = 16
"""An LMDB 0.9 overflow value starts this many bytes into its first page (the page header)."""

MAX_VALUE_NBYTES = 0xFFFFFFFF
"""LMDB 0.9 stores a value's size in 32 bits."""

MAX_PAGE_NBYTES = 32768
"""LMDB 0.9 has pages of 4096 to this many bytes."""

MAX_ROW_NBYTES = 2**31 - 1
"""A row's decoded size, counting sizes of 0 as 1, so that no reader's arithmetic overflows."""
DEFAULT_MAX_ROW_NBYTES = 600_000_000
"""Decoded bytes of a compressed row that a reader allocates unless told otherwise: a picture of 200
megapixels, far beyond any scan and far below what takes a machine down."""

MAX_DIMENSION = 2**31 - 1
MAX_NDIM = 8
MAX_NAME_NBYTES = 63
MAX_KEY_NBYTES = 4096

GROUP_ROWS = 64
GROUP_NBYTES = 128 * 2**20
GROUP_STEP = 16
"""A row group closed by size ends on a multiple of this, so that usual batches stay inside one."""

EXTENT_PREFIX = b"extent/"
GROUP_PREFIX = b"group/"
INDEX_PREFIX = b"index/"
MANIFEST_PREFIX = b"manifest/"
PENDING_KEY = b"pending"
# The order of these names matters: the last key of the database is the newest manifest
# (FORMAT.md 3.1). `group/` and `pending` name records of an unfinished file only.

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-/]*")


def align_up(position: int, alignment: int) -> int:
    """Return the next multiple of `alignment` at or after `position`."""
    return -(-position // alignment) * alignment


def row_alignment(nbytes: int, *, raw: bool) -> int:
    """Return what a row's file offset must be a multiple of (FORMAT.md 5.3)."""
    return PAGE_ALIGNMENT if raw and nbytes >= PAGE_ALIGNMENT else ROW_ALIGNMENT


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a contiguous array."""
    strides: list[int] = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= size
    return tuple(reversed(strides))


def is_valid_name(name: object) -> bool:
    """Return whether `name` may name a column or an attribute (FORMAT.md 2.3)."""
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and len(name) <= MAX_NAME_NBYTES
        and name != "key"
    )


def extent_key(group: int, column: str) -> bytes:
    """Return the LMDB key of one column's extent in one row group."""
    return EXTENT_PREFIX + f"{group:08d}/{column}".encode("ascii")


def parse_extent_key(key: bytes) -> tuple[int, str] | None:
    """Parse an extent key into (group, column); None if it is not one."""
    match = re.fullmatch(rb"extent/(\d{8})/(.+)", key)
    if match is None:
        return None
    name = match[2].decode("ascii", "replace")
    return (int(match[1]), name) if is_valid_name(name) else None


def numbered_key(prefix: bytes, number: int) -> bytes:
    """Return the LMDB key of a group record, an index or a manifest."""
    return prefix + b"%08d" % number


def parse_numbered_key(prefix: bytes, key: bytes) -> int | None:
    """Parse the number out of such a key; None if it is not one."""
    digits = key[len(prefix) :]
    if key.startswith(prefix) and len(digits) == 8 and digits.isdigit():
        return int(digits)
    return None


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
