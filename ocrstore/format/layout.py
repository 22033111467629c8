"""Constants, key names and alignment arithmetic of the format (FORMAT.md 2)."""

from __future__ import annotations

import re

FORMAT_VERSION = (1, 0)
"""(major, minor). A reader refuses another major; a newer minor only adds what may be ignored."""

KNOWN_FEATURES: frozenset[str] = frozenset()
"""Required features this version understands; a store that needs any other is refused."""

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

MAX_DIMENSION = 2**31 - 1
MAX_NDIM = 8
MAX_NAME_NBYTES = 63
MAX_KEY_NBYTES = 4096

GROUP_ROWS = 64
GROUP_NBYTES = 256 * 2**20
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


def is_valid_name(name: object) -> bool:
    """Tell whether `name` may name a column or an attribute (FORMAT.md 2.3)."""
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
