"""The way from encoded bytes to an upright picture: header, limit, decoder, rotation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrstore.decode.header import read_header
from ocrstore.decode.jpeg import decode_jpeg
from ocrstore.decode.other import decode_other
from ocrstore.decode.upright import turn_upright
from ocrstore.errors import DecodeError

DEFAULT_MAX_PIXELS = 200_000_000
"""A picture of 600 MB in memory: far beyond any scan, far below what takes a machine down."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An upright picture, and what was found on the way to it."""

    pixels: npt.NDArray[np.uint8]
    """(height, width, 3) RGB, upright, C-contiguous, owned by the caller."""
    orientation: int
    """The EXIF orientation that was undone, 1 to 8."""
    stored_size: tuple[int, int]
    """(width, height) before rotation."""
    format: str
    """The format found in the bytes, whatever the file is called."""
    decoder: str
    """The family whose pixels these are: `libjpeg-turbo`, `opencv-jpeg` or `opencv`."""


def decode(
    data: bytes,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    name: str = "",
    backend: str | None = None,
) -> Decoded:
    """Decode one picture of any supported format to upright RGB.

    The size in the header is held against `max_pixels` before a decoder runs. `name` goes into
    error messages; `backend` picks a JPEG backend of `available_backends()` and is for tests.
    """
    try:
        return _decode(data, max_pixels, backend)
    except DecodeError as exc:
        if name:
            raise DecodeError(f"{name}: {exc}") from exc
        raise


def _decode(data: bytes, max_pixels: int, backend: str | None) -> Decoded:
    header = read_header(data)
    width, height = header.size
    if width * height > max_pixels:
        raise DecodeError(
            f"{width} x {height} is {width * height} pixels, more than the limit of "
            f"{max_pixels}; raise max_pixels if the picture can be trusted"
        )
    if header.format == "jpeg":
        stored, family = decode_jpeg(data, header, backend=backend)
    else:
        stored, family = decode_other(data, header), "opencv"
    if stored.shape != (height, width, 3):
        raise DecodeError(
            f"the header promises {width} x {height}, the decoder gave "
            f"{stored.shape[1]} x {stored.shape[0]}; the file is damaged"
        )
    pixels = turn_upright(stored, header.orientation)
    return Decoded(pixels, header.orientation, header.size, header.format, family)
