"""A TIFF's first page: its header, and the tags OpenCV must not see as they are."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ocrstore.decode.fields import checked_size
from ocrstore.decode.tiff_tags import ORIENTATION, Entry, orientation_of, read_directory
from ocrstore.errors import DecodeError

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _SAMPLES, _STRIP_NBYTES, _PLANAR = 273, 277, 279, 284
_PREDICTOR, _COLOUR_MAP, _TILE_OFFSETS, _TILE_NBYTES = 317, 320, 324, 325
_EXTRA_SAMPLES, _SAMPLE_FORMAT = 338, 339

WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR = 0, 1, 2, 3, 5, 6
UNSPECIFIED, PREMULTIPLIED, STRAIGHT = 0, 1, 2

# Codings that see a row as bytes, so that its pixels may be counted in another way: none, LZW,
# Deflate (both numbers), PackBits.
_BYTEWISE = (1, 5, 8, 32946, 32773)

# Depths and numbers of channels that OpenCV is known to get right; it takes others for these.
_LAYOUTS = {
    WHITE_IS_ZERO: ((1, 8, 16), (1, 2)),
    BLACK_IS_ZERO: ((1, 8, 16), (1, 2)),
    RGB: ((8, 16), (3, 4)),
    PALETTE: ((1, 4, 8), (1,)),
    CMYK: ((8,), (4,)),
    YCBCR: ((8,), (3,)),
}

Patches = tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class TiffPage:
    """What must be known of a TIFF's first page before and after OpenCV decodes it."""

    width: int
    height: int
    bits: int
    photometric: int
    orientation: int
    extra_sample: int | None
    """0 unspecified, 1 premultiplied alpha, 2 alpha, None when the tag is absent."""
    gray_alpha: bool
    """Shown to OpenCV as a gray picture of twice the width: gray, alpha, gray, alpha, ..."""
    undo_predictor: bool
    """The rows of such a picture are still differences."""
    two_colours: tuple[int, ...]
    """(red 0, red 1, green 0, ...) of a 1-bit palette, else empty."""
    patches: Patches
    """(offset, bytes) that make OpenCV neither rotate nor premultiply nor drop alpha."""


def read_tiff(data: bytes) -> TiffPage:
    """Read the first page's tags, and refuse what OpenCV would decode wrongly."""
    order, entries = read_directory(data)

    def first(tag: int, default: int | None = None) -> int:
        entry = entries.get(tag)
        if entry is not None:
            return entry.values[0]
        if default is None:
            raise DecodeError(f"a TIFF without tag {tag}; it is damaged")
        return default

    width, height = checked_size(first(_WIDTH), first(_HEIGHT), what="TIFF")
    bits, samples, photometric = first(_BITS, 1), first(_SAMPLES, 1), first(_PHOTOMETRIC)
    if _BITS in entries and len(set(entries[_BITS].values)) != 1:
        raise DecodeError(f"TIFF channels of {entries[_BITS].values} bits; save it as PNG")
    if first(_SAMPLE_FORMAT, 1) != 1 or bits > 16:
        raise DecodeError(
            f"TIFF samples that are signed, float or of {bits} bits have no defined white; "
            "save it with 8 or 16 bits unsigned"
        )
    if photometric not in _LAYOUTS:
        raise DecodeError(
            f"TIFF colour space {photometric} is not gray, RGB, palette, CMYK or YCbCr; "
            "save it as RGB"
        )
    depths, channels = _LAYOUTS[photometric]
    if bits not in depths or samples not in channels:
        raise DecodeError(
            f"a TIFF of colour space {photometric} with {samples} channels of {bits} bits; "
            "save it as PNG"
        )
    if first(_PLANAR, 1) != 1 and samples > 1:
        raise DecodeError("a TIFF with one plane per channel; save it with interleaved channels")
    _require_pixels(data, entries)
    extra = entries[_EXTRA_SAMPLES].values[0] if _EXTRA_SAMPLES in entries else None
    orientation = orientation_of(entries)
    patches: list[tuple[int, bytes]] = []
    colours: tuple[int, ...] = ()
    if orientation != 1:
        patches.append(_set(entries[ORIENTATION], 1))
    gray_alpha = photometric in (WHITE_IS_ZERO, BLACK_IS_ZERO) and samples > 1
    undo_predictor = gray_alpha and first(_PREDICTOR, 1) == 2
    if gray_alpha:
        if bits == 1 or first(_COMPRESSION, 1) not in _BYTEWISE:
            raise DecodeError(
                f"a gray TIFF with alpha, {bits} bits and compression {first(_COMPRESSION, 1)}; "
                "save it as PNG"
            )
        if _TILE_OFFSETS in entries or width > 32767:
            raise DecodeError("a gray TIFF with alpha in tiles or over 32767 wide; save it as PNG")
        patches += [
            _set(entries[_WIDTH], 2 * width),
            _set(entries[_SAMPLES], 1),
            _set(entries[_PHOTOMETRIC], BLACK_IS_ZERO),
        ]
        if undo_predictor:
            patches.append(_set(entries[_PREDICTOR], 1))
        if extra is not None:
            # a number nobody knows, in place of the tag: there are no extra samples any more
            patches.append(
                (entries[_EXTRA_SAMPLES].tag_offset, struct.pack(order + "H", _EXTRA_SAMPLES - 2))
            )
    elif photometric == PALETTE and bits == 1:
        # OpenCV takes every 1-bit picture for gray: let it, and colour the result
        patches.append(_set(entries[_PHOTOMETRIC], BLACK_IS_ZERO))
        if len(entries[_COLOUR_MAP].values if _COLOUR_MAP in entries else ()) != 6:
            raise DecodeError("a palette TIFF of 1 bit without a palette of 2 colours")
        colours = tuple(value >> 8 for value in entries[_COLOUR_MAP].values)
    elif extra == STRAIGHT:
        patches.append(_set(entries[_EXTRA_SAMPLES], UNSPECIFIED))
    return TiffPage(
        width,
        height,
        bits,
        photometric,
        orientation,
        extra,
        gray_alpha,
        undo_predictor,
        colours,
        tuple(patches),
    )


def _set(entry: Entry, value: int) -> tuple[int, bytes]:
    try:
        return entry.offset, struct.pack(entry.code, value)
    except struct.error as exc:
        raise DecodeError(f"a TIFF tag of a type that cannot hold {value}; save it as PNG") from exc


def _require_pixels(data: bytes, entries: dict[int, Entry]) -> None:
    """Raise unless every strip or tile of the page lies within the file."""
    for offsets_tag, nbytes_tag in ((_STRIP_OFFSETS, _STRIP_NBYTES), (_TILE_OFFSETS, _TILE_NBYTES)):
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
