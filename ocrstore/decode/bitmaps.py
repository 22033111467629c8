"""Headers of the formats that know neither EXIF nor chunks: BMP and GIF."""

from __future__ import annotations

from ocrstore.decode.fields import checked_size, unpack
from ocrstore.errors import DecodeError


def read_bmp(data: bytes) -> tuple[int, int, int]:
    """Return width, height and bits per sample."""
    (info_nbytes,) = unpack("<I", data, 14, what="BMP header")
    if info_nbytes == 12:
        width, height, _, depth = unpack("<HHHH", data, 18, what="BMP header")
    elif info_nbytes >= 40:
        width, height, _, depth = unpack("<iiHH", data, 18, what="BMP header")
        height = abs(height)  # negative: rows run from the top
    else:
        raise DecodeError(f"the BMP's header has {info_nbytes} bytes; 12 or at least 40 expected")
    if depth not in (1, 2, 4, 8, 16, 24, 32):
        raise DecodeError(f"the BMP claims {depth} bits per pixel; no such BMP")
    width, height = checked_size(width, height, what="BMP")
    return width, height, min(depth, 8)


def read_gif(data: bytes) -> tuple[int, int, int]:
    """Return the screen's width and height and bits per sample."""
    width, height = unpack("<HH", data, 6, what="GIF header")
    width, height = checked_size(width, height, what="GIF")
    return width, height, 8
