"""The tag directory that TIFF files and EXIF blocks share."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ocrstore.decode.fields import unpack
from ocrstore.errors import DecodeError

ORIENTATION = 274
MAX_ENTRIES = 4096
# A million strips is a row each of the tallest picture worth having; more is an attack.
MAX_VALUES = 1 << 20

# TIFF 6.0 section 2, plus the 8-byte types of BigTIFF; only integers carry what is read here.
_INTEGER_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tag's integer values and where they stand in the bytes."""

    values: tuple[int, ...]
    offset: int
    code: str
    tag_offset: int


def read_directory(data: bytes) -> tuple[str, dict[int, Entry]]:
    """Return the byte order (`<` or `>`) and the first directory's integer tags."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        raise DecodeError(f"not a TIFF block: it starts with {data[:2]!r}, not II or MM")
    (magic,) = unpack(order + "H", data, 2, what="TIFF header")
    if magic == 42:
        offset_code, count_code, entry_size = "I", "H", 12
        (start,) = unpack(order + "I", data, 4, what="TIFF header")
    elif magic == 43:
        offset_code, count_code, entry_size = "Q", "Q", 20
        (start,) = unpack(order + "Q", data, 8, what="BigTIFF header")
    else:
        raise DecodeError(f"not a TIFF block: its magic number is {magic}, not 42 or 43")
    (count,) = unpack(order + count_code, data, start, what="TIFF directory")
    if count > MAX_ENTRIES:
        raise DecodeError(f"a TIFF directory of {count} entries; at most {MAX_ENTRIES} are read")
    first = start + struct.calcsize(order + count_code)
    inline = struct.calcsize(order + offset_code)
    entries: dict[int, Entry] = {}
    for index in range(count):
        at = first + index * entry_size
        tag, kind, number = unpack(order + "HH" + offset_code, data, at, what="TIFF entry")
        code = _INTEGER_TYPES.get(kind)
        if code is None or not 0 < number <= MAX_VALUES or tag in entries:
            continue
        value_at = at + 4 + inline
        if struct.calcsize(order + code) * number > inline:
            (value_at,) = unpack(order + offset_code, data, value_at, what=f"TIFF tag {tag}")
        if value_at + struct.calcsize(order + code) * number > len(data):
            continue  # a tag nobody needs may be broken; one that is needed is missed below
        values = unpack(f"{order}{number}{code}", data, value_at, what=f"TIFF tag {tag}")
        entries[tag] = Entry(values, value_at, order + code, at)
    return order, entries


def orientation_of(entries: dict[int, Entry]) -> int:
    """Return EXIF orientation 1 to 8; anything else counts as 1, as viewers do."""
    entry = entries.get(ORIENTATION)
    return entry.values[0] if entry is not None and 1 <= entry.values[0] <= 8 else 1


def exif_orientation(block: bytes) -> int:
    """Return the orientation in an EXIF block; a broken block says nothing, so 1."""
    if block.startswith(b"Exif\0\0"):
        block = block[6:]
    try:
        return orientation_of(read_directory(block)[1])
    except DecodeError:
        return 1
