"""The tag directory that TIFF files and EXIF blocks share."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ocrstore.decode.fields import checked_size, unpack
from ocrstore.errors import DecodeError

ORIENTATION = 274
EXTRA_SAMPLES = 338
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


@dataclass(frozen=True, slots=True)
class TiffPage:
    """What must be known of a TIFF's first page before and after OpenCV decodes it."""

    width: int
    height: int
    bits: int
    photometric: int
    samples: int
    extra_sample: int | None
    """ExtraSamples: 0 unspecified, 1 premultiplied alpha, 2 alpha, None when the tag is absent."""
    patches: tuple[tuple[int, bytes], ...]
    """(offset, bytes) that make OpenCV neither rotate nor premultiply."""
    orientation: int


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
        entries[tag] = Entry(values, value_at, order + code)
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


def read_tiff(data: bytes) -> TiffPage:
    """Read the first page's tags, and refuse what OpenCV would decode wrongly."""
    _, entries = read_directory(data)

    def first(tag: int, default: int | None = None) -> int:
        entry = entries.get(tag)
        if entry is not None:
            return entry.values[0]
        if default is None:
            raise DecodeError(f"a TIFF without tag {tag}; it is damaged")
        return default

    width, height = checked_size(first(256), first(257), what="TIFF")
    bits, samples = first(258, 1), first(277, 1)
    photometric = first(262)
    extra = entries.get(EXTRA_SAMPLES)
    if len(set(entries[258].values if 258 in entries else (1,))) != 1:
        raise DecodeError(f"TIFF samples of different depth {entries[258].values}; save it as PNG")
    if first(339, 1) != 1 or bits > 16:
        raise DecodeError(
            f"TIFF samples that are signed, float or of {bits} bits have no defined white; "
            "save it with 8 or 16 bits unsigned"
        )
    if photometric not in (0, 1, 2, 3, 5, 6):
        raise DecodeError(
            f"TIFF colour space {photometric} is not gray, RGB, palette, CMYK or YCbCr; "
            "save it as RGB"
        )
    if first(284, 1) != 1 and samples > 1:
        raise DecodeError("a TIFF with one plane per channel; save it with interleaved channels")
    _require_strips(data, entries)
    orientation = orientation_of(entries)
    patches: list[tuple[int, bytes]] = []
    if orientation != 1:
        entry = entries[ORIENTATION]
        patches.append((entry.offset, struct.pack(entry.code, 1)))
    if extra is not None and extra.values[0] == 2:
        patches.append((extra.offset, struct.pack(extra.code, 0)))
    return TiffPage(
        width,
        height,
        bits,
        photometric,
        samples,
        None if extra is None else extra.values[0],
        tuple(patches),
        orientation,
    )


def _require_strips(data: bytes, entries: dict[int, Entry]) -> None:
    """Raise unless every strip or tile of the page lies within the file."""
    for offsets_tag, nbytes_tag in ((273, 279), (324, 325)):
        if offsets_tag not in entries or nbytes_tag not in entries:
            continue
        pairs = zip(entries[offsets_tag].values, entries[nbytes_tag].values, strict=False)
        end = max(offset + nbytes for offset, nbytes in pairs)
        if end > len(data):
            raise DecodeError(
                f"truncated: the TIFF's pixels reach to byte {end}, the file has {len(data)}; "
                "restore it from its origin"
            )
        return
    raise DecodeError("a TIFF without strips or tiles; it is truncated or damaged")
