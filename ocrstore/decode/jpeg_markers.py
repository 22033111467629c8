"""JPEG's markers: size, depth, orientation, and whether the file reaches its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocrstore.decode.fields import checked_size, unpack
from ocrstore.decode.tiff_tags import exif_orientation
from ocrstore.errors import DecodeError

_SOI, _EOI, _SOS, _APP1, _TEM = 0xD8, 0xD9, 0xDA, 0xE1, 0x01
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_RESTARTS = range(0xD0, 0xD8)


@dataclass(frozen=True, slots=True)
class JpegHead:
    """What the segments before the first scan say."""

    width: int
    height: int
    bits: int
    components: int
    orientation: int
    scan_offset: int
    """Where the first scan's marker stands."""


def read_jpeg(data: bytes) -> JpegHead:
    """Walk the segments up to the first scan."""
    frame: tuple[int, int, int, int] | None = None
    orientation = 1
    position = 2
    while True:
        found = data.find(b"\xff", position)
        if found < 0:
            raise DecodeError("truncated: the JPEG ends before its first scan")
        position = found
        while data[position : position + 1] == b"\xff":
            position += 1
        (marker,) = unpack("B", data, position, what="JPEG marker")
        position += 1
        if marker in (0, _TEM, _SOI) or marker in _RESTARTS:
            continue
        if marker == _EOI:
            raise DecodeError("the JPEG ends without a picture")
        (nbytes,) = unpack(">H", data, position, what=f"JPEG segment {marker:#04x}")
        if nbytes < 2:
            raise DecodeError(f"JPEG segment {marker:#04x} at byte {position} has length {nbytes}")
        if marker == _SOS:
            break
        if marker in _FRAMES:
            if frame is not None:
                raise DecodeError("the JPEG has two frame headers")
            frame = unpack(">BHHB", data, position + 2, what="JPEG frame header")
        elif marker == _APP1 and orientation == 1:
            body = data[position + 2 : position + nbytes]
            if body.startswith(b"Exif\0\0"):
                orientation = exif_orientation(body)
        position += nbytes
    if frame is None:
        raise DecodeError("the JPEG's first scan comes before its frame header")
    bits, height, width, components = frame
    width, height = checked_size(width, height, what="JPEG")
    return JpegHead(width, height, bits, components, orientation, position - 2)


def require_end(data: bytes, scan_offset: int) -> None:
    """Raise unless the scans are followed by the end marker.

    OpenCV says nothing about a picture that is cut off after enough of it was read; the other
    decoders check this themselves.
    """
    scans = np.frombuffer(data, dtype=np.uint8)[scan_offset:]
    after = scans[1:]
    # In entropy-coded data FF is followed by 00 or a restart; anything else is the next marker.
    markers = np.flatnonzero((scans[:-1] == 0xFF) & (after != 0) & (after != 0xFF))
    markers = markers[(after[markers] & 0xF8) != 0xD0]
    position = 0
    for at in markers.tolist():
        marker = int(after[at])
        if at < position or marker in (_TEM, _SOI):
            continue  # inside a table between two scans
        if marker == _EOI:
            return
        start = scan_offset + at + 2
        (nbytes,) = unpack(">H", data, start, what=f"JPEG segment {marker:#04x}")
        position = at + 2 + nbytes
    raise DecodeError("truncated: the JPEG has no end marker; restore it from its origin")
