"""Headers of the formats that know neither EXIF nor chunks: BMP and GIF."""

from __future__ import annotations

from dataclasses import dataclass

from ocrstore.decode.fields import checked_size, unpack
from ocrstore.errors import DecodeError

_BITFIELDS = 3
_MASKS = {
    16: {(0x7C00, 0x03E0, 0x001F): (5, 5, 5), (0xF800, 0x07E0, 0x001F): (5, 6, 5)},
    32: {(0xFF0000, 0x00FF00, 0x0000FF): (8, 8, 8)},
}


@dataclass(frozen=True, slots=True)
class BmpHead:
    """A BMP's size and the meaning of its samples, which OpenCV guesses."""

    width: int
    height: int
    channel_bits: tuple[int, int, int]
    """Bits of red, green and blue."""
    alpha: bool
    """Whether the header declares an alpha channel."""


def read_bmp(data: bytes) -> BmpHead:
    """Read the information header; refuse layouts that OpenCV takes for others."""
    (info_nbytes,) = unpack("<I", data, 14, what="BMP header")
    compression = 0
    if info_nbytes == 12:
        width, height, _, depth = unpack("<HHHH", data, 18, what="BMP header")
    elif info_nbytes >= 40:
        width, height, _, depth, compression = unpack("<iiHHI", data, 18, what="BMP header")
        height = abs(height)  # negative: rows run from the top
    else:
        raise DecodeError(f"the BMP's header has {info_nbytes} bytes; 12 or at least 40 expected")
    if depth not in (1, 4, 8, 16, 24, 32) or compression > _BITFIELDS:
        raise DecodeError(
            f"a BMP of {depth} bits per pixel with compression {compression}; save it as PNG"
        )
    bits, alpha = (8, 8, 8) if depth != 16 else (5, 5, 5), False
    if compression == _BITFIELDS:
        masks = unpack("<III", data, 54, what="BMP channel masks")
        known = _MASKS.get(depth, {})
        if masks not in known:
            raise DecodeError(f"a BMP with channel masks {masks}; save it as PNG")
        bits = known[masks]
        # the alpha mask belongs to headers of 56 bytes and more
        alpha = info_nbytes >= 56 and unpack("<I", data, 66, what="BMP alpha mask") != (0,)
    width, height = checked_size(width, height, what="BMP")
    return BmpHead(width, height, bits, alpha)


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
