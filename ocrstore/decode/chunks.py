"""Headers of the chunked formats: PNG and WebP."""

from __future__ import annotations

from dataclasses import dataclass

from ocrstore.decode.fields import checked_size, unpack
from ocrstore.decode.tiff_tags import exif_orientation
from ocrstore.errors import DecodeError

_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


@dataclass(frozen=True, slots=True)
class ChunkedHead:
    """What a PNG or WebP says of itself."""

    width: int
    height: int
    bits: int
    orientation: int
    transparent_gray: int | None = None
    """The gray sample (at the file's depth) that a PNG declares transparent."""


def read_png(data: bytes) -> ChunkedHead:
    """Walk the chunks from IHDR to IEND."""
    nbytes, kind = unpack(">I4s", data, 8, what="PNG header")
    if (nbytes, kind) != (13, b"IHDR"):
        raise DecodeError(f"the PNG starts with chunk {kind!r} of {nbytes} bytes, not IHDR of 13")
    width, height, bits, colour = unpack(">IIBB", data, 16, what="PNG header")
    checked_size(width, height, what="PNG")
    if bits not in _PNG_DEPTHS.get(colour, ()):
        raise DecodeError(f"the PNG claims colour type {colour} with {bits} bits; no such PNG")
    orientation, transparent = 1, None
    position = 33
    pixels = False
    while True:
        nbytes, kind = unpack(">I4s", data, position, what="PNG chunk")
        body, position = position + 8, position + 12 + nbytes
        if position > len(data):
            raise DecodeError(
                f"truncated: PNG chunk {kind!r} reaches to byte {position}, the file has "
                f"{len(data)}; restore it from its origin"
            )
        if kind == b"IEND":
            break
        if kind == b"IDAT":
            pixels = True
        elif kind == b"eXIf":
            orientation = exif_orientation(data[body : body + nbytes])
        elif kind == b"tRNS" and colour == 0 and nbytes == 2:
            (transparent,) = unpack(">H", data, body, what="PNG transparency")
    if not pixels:
        raise DecodeError("the PNG ends without a picture")
    return ChunkedHead(width, height, bits, orientation, transparent)


def read_webp(data: bytes) -> ChunkedHead:
    """Read the canvas size and, of an extended file, the EXIF chunk."""
    (riff_nbytes,) = unpack("<I", data, 4, what="WebP header")
    end = riff_nbytes + 8
    if end > len(data):
        raise DecodeError(
            f"truncated: the WebP reaches to byte {end}, the file has {len(data)}; "
            "restore it from its origin"
        )
    kind, nbytes = unpack("<4sI", data, 12, what="WebP chunk")
    orientation = 1
    if kind == b"VP8 ":
        tag, start, width, height = unpack("<3s3sHH", data, 20, what="WebP frame")
        if start != b"\x9d\x01\x2a" or tag[0] & 1:
            raise DecodeError("the WebP does not start with a key frame")
        width, height = width & 0x3FFF, height & 0x3FFF
    elif kind == b"VP8L":
        signature, packed = unpack("<BI", data, 20, what="WebP frame")
        if signature != 0x2F:
            raise DecodeError(f"the lossless WebP has signature {signature:#04x}, not 0x2f")
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"VP8X":
        low_w, high_w, low_h, high_h = unpack("<HBHB", data, 24, what="WebP canvas")
        width, height = (high_w << 16 | low_w) + 1, (high_h << 16 | low_h) + 1
        position = 20 + nbytes + (nbytes & 1)
        while position + 8 <= end:
            kind, nbytes = unpack("<4sI", data, position, what="WebP chunk")
            if kind == b"EXIF":
                orientation = exif_orientation(data[position + 8 : position + 8 + nbytes])
                break
            position += 8 + nbytes + (nbytes & 1)
    else:
        raise DecodeError(f"the WebP starts with chunk {kind!r}; expected VP8, VP8L or VP8X")
    checked_size(width, height, what="WebP")
    return ChunkedHead(width, height, 8, orientation)
