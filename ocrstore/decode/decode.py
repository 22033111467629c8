"""Decode a picture: detect its format, check its size, decode, turn upright."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.decode.jpeg import decode_jpeg
from ocrstore.decode.pillow import EncodedPicture, decode_other, read_header
from ocrstore.errors import DecodeError
from ocrstore.format.layout import DEFAULT_MAX_ROW_NBYTES
from ocrstore.geometry import turn_upright

DEFAULT_MAX_PIXELS = DEFAULT_MAX_ROW_NBYTES // 3
"""A picture as large as the largest row that is decoded by default."""

SUFFIXES = {
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "png": (".png",),
    "webp": (".webp",),
    "bmp": (".bmp", ".dib"),
    "tiff": (".tif", ".tiff"),
    "gif": (".gif",),
    "avif": (".avif",),
    "heif": (".heic", ".heif"),
}
"""The formats, and how the names of their files end, in lower case."""

DECODER_FAMILIES = {
    "jpeg": "libjpeg-turbo",
    "png": "opencv",
    "webp": "opencv",
    "bmp": "pillow",
    "tiff": "pillow",
    "gif": "opencv",
    "avif": "pillow",
    "heif": "libheif",
}
"""Whose pixels each format's are: decoders that give the same pixels, bit by bit, are one family.

Builds record it, and decode again when it has changed. Pillow gives OpenCV's pixels for PNG, WebP
and GIF, which OpenCV once decoded here, so these keep the older name.
"""

# The first bytes of each format; of a WebP and of the formats in an ISO container, some more.
_SIGNATURES = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
}
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_HEIF_BRANDS = frozenset(
    {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
)


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
    """The decoder family of these pixels, of `DECODER_FAMILIES`."""


def format_by_name(path: str | PurePath) -> str | None:
    """Return the format that a file's suffix promises, or None for another kind of file."""
    suffix = PurePath(path).suffix.lower()
    return next((kind for kind, suffixes in SUFFIXES.items() if suffix in suffixes), None)


def read_picture(path: Path) -> bytes:
    """Read a whole file; missing, forbidden and special files raise DecodeError."""
    try:
        # not blocking: opening a pipe without a writer would wait forever
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DecodeError(f"{path}: not a regular file; point to a picture")
            return file.read()
    except FileNotFoundError as exc:
        raise DecodeError(f"{path}: there is no such file; it vanished or was never there") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise DecodeError(f"{path}: cannot be read: {reason}; check its permissions") from exc


def open_picture(data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> EncodedPicture:
    """Read a picture's header; no pixel is decoded.

    Raises:
        TooManyPixelsError: the header promises more than `max_pixels`.
        DecodeError: it is no picture, or not one that can be decoded.
    """
    return read_header(data, sniff(data), max_pixels)


def decode(
    picture: bytes | EncodedPicture,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    name: str = "",
    backend: str | None = None,
    empty: Callable[..., npt.NDArray[Any]] = np.empty,
) -> Decoded:
    """Decode one picture of any supported format to upright RGB.

    Args:
        picture: its bytes, or the result of `open_picture`, so that its header is read only once.
        max_pixels: the limit for bytes, compared with the header before a decoder runs.
        name: goes into error messages.
        backend: a JPEG backend of `available_backends()`; for tests.
        empty: like `numpy.empty`; where the decoder can write into given memory (JPEG), it is
            this one's.
    """
    try:
        if isinstance(picture, bytes):
            picture = open_picture(picture, max_pixels=max_pixels)
        return _decode(picture, backend, empty)
    except DecodeError as exc:
        if name:
            raise type(exc)(f"{name}: {exc}") from exc
        raise


def _decode(
    picture: EncodedPicture, backend: str | None, empty: Callable[..., npt.NDArray[Any]]
) -> Decoded:
    width, height = picture.size
    if picture.format == "jpeg":
        cmyk = picture.image.mode == "CMYK"
        out = empty((height, width, 4 if cmyk else 3), np.dtype(np.uint8))
        stored = decode_jpeg(picture.data, out, cmyk=cmyk, backend=backend)
    else:
        stored = decode_other(picture)
    if stored.shape != (height, width, 3):
        raise DecodeError(
            f"the header promises {width} x {height}, the decoder gave "
            f"{stored.shape[1]} x {stored.shape[0]}; the file is damaged"
        )
    pixels = turn_upright(stored, picture.orientation)
    family = DECODER_FAMILIES[picture.format]
    return Decoded(pixels, picture.orientation, picture.size, picture.format, family)


def sniff(data: bytes) -> str:
    """Return the format that the first bytes (256 are enough) announce; DecodeError if none."""
    if not data:
        raise DecodeError("the file is empty (0 bytes); restore it from its origin")
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        box = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
        brands = {box[at : at + 4] for at in range(0, len(box), 4)}
        if brands & _AVIF_BRANDS:  # first: such a file may call itself mif1, too
            return "avif"
        if brands & _HEIF_BRANDS:
            return "heif"
    raise DecodeError(
        f"not a picture that can be read: it starts with {data[:12]!r}; "
        "JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF and HEIF (HEIC) are"
    )
