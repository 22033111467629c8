"""Headers of the formats that know neither EXIF nor chunks: BMP and GIF."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class GifHead:
    """A GIF's screen and first frame, and what OpenCV must not see as it is."""

    width: int
    height: int
    frame: tuple[int, int, int, int]
    """(left, top, width, height) of the first frame on the screen."""
    patches: tuple[tuple[int, bytes], ...]


def read_gif(data: bytes) -> GifHead:
    """Read the screen descriptor and walk to the first frame's."""
    width, height, flags, background = unpack("<HHBB", data, 6, what="GIF header")
    width, height = checked_size(width, height, what="GIF")
    palette = 2 << (flags & 7) if flags & 0x80 else 0
    position = 13 + 3 * palette
    while True:
        (block,) = unpack("B", data, position, what="GIF block")
        if block == 0x2C:
            break
        if block != 0x21:
            raise DecodeError(f"GIF block {block:#04x} where a frame was expected; it is damaged")
        position += 2
        nbytes = 1
        while nbytes:
            (nbytes,) = unpack("B", data, position, what="GIF extension")
            position += 1 + nbytes
    left, top, frame_width, frame_height = unpack("<HHHH", data, position + 1, what="GIF frame")
    checked_size(frame_width, frame_height, what="the GIF's first frame")
    if left + frame_width > width or top + frame_height > height:
        raise DecodeError(
            f"the GIF's first frame, {frame_width} x {frame_height} at ({left}, {top}), "
            f"leaves its screen of {width} x {height}; save it as PNG"
        )
    # The background is transparent, whatever its colour; OpenCV refuses one outside the palette.
    outside = palette and background >= palette
    frame = (left, top, frame_width, frame_height)
    return GifHead(width, height, frame, ((11, b"\0"),) if outside else ())
