"""PNG, WebP, BMP, TIFF and GIF through OpenCV, and what makes 8-bit RGB of their samples."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.decode.bitmaps import BmpHead
from ocrstore.decode.header import Header
from ocrstore.decode.tiff_page import PREMULTIPLIED, RGB, UNSPECIFIED, WHITE_IS_ZERO, TiffPage
from ocrstore.errors import DecodeError

Pixels = npt.NDArray[np.uint8]


def decode_other(data: bytes, header: Header) -> Pixels:
    """Return the stored (not yet upright) pixels of the first frame or page as RGB."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    if header.patches:
        # OpenCV turns TIFFs whatever it is told, libtiff multiplies by alpha with rounding, ...:
        # they are shown a copy that asks for nothing of the kind.
        buffer = buffer.copy()
        for offset, replacement in header.patches:
            buffer[offset : offset + len(replacement)] = np.frombuffer(replacement, np.uint8)
    samples = _imdecode(buffer, header.format)
    if samples.dtype not in (np.uint8, np.uint16):
        raise DecodeError(f"{header.format} samples of type {samples.dtype}; 8 or 16 bits expected")
    tiff = header.tiff
    if tiff is not None and tiff.gray_alpha:
        return _from_gray_alpha(samples, tiff)
    if samples.ndim == 2:
        return _from_gray(samples, header)
    if samples.dtype == np.uint16:
        samples = _eight_bits(samples)
    if samples.shape[2] == 3:
        if header.frame is not None:
            _clear_around(samples, header.frame)
        if header.bmp is not None:
            _widen(samples, header.bmp)
        return np.asarray(cv2.cvtColor(samples, cv2.COLOR_BGR2RGB), dtype=np.uint8)
    rgb = np.asarray(cv2.cvtColor(samples, cv2.COLOR_BGRA2RGB), dtype=np.uint8)
    if tiff is not None and (tiff.photometric != RGB or tiff.extra_sample == UNSPECIFIED):
        return rgb  # the fourth channel is OpenCV's own filling, or means nothing
    if header.bmp is not None and not header.bmp.alpha:
        return rgb
    premultiplied = tiff is not None and tiff.extra_sample == PREMULTIPLIED
    return _over_white(rgb, samples[..., 3], premultiplied=premultiplied)


def _clear_around(samples: npt.NDArray[Any], frame: tuple[int, int, int, int]) -> None:
    """Make white what a GIF's first frame leaves bare; OpenCV paints it in a palette colour."""
    left, top, width, height = frame
    samples[:top] = samples[top + height :] = 255
    samples[:, :left] = samples[:, left + width :] = 255


def _widen(samples: npt.NDArray[Any], bmp: BmpHead) -> None:
    """Spread 5 and 6 bits over 0 to 255; OpenCV leaves the low bits zero, so white is gray."""
    if bmp.channel_bits != (8, 8, 8):
        samples |= samples >> np.array(bmp.channel_bits[::-1], dtype=np.uint8)


def _from_gray_alpha(samples: npt.NDArray[Any], tiff: TiffPage) -> Pixels:
    if samples.shape != (tiff.height, 2 * tiff.width):
        raise DecodeError("the TIFF's rows have another length than its header says")
    pairs = samples.reshape(tiff.height, tiff.width, 2)
    if tiff.undo_predictor:
        pairs = np.cumsum(pairs, axis=1, dtype=pairs.dtype)
    if pairs.dtype == np.uint16:
        pairs = _eight_bits(pairs)
    gray, alpha = pairs[..., 0], pairs[..., 1]
    if tiff.photometric == WHITE_IS_ZERO:
        gray = 255 - gray
    rgb = np.repeat(gray[..., None], 3, axis=2)
    if tiff.extra_sample == UNSPECIFIED:
        return rgb
    return _over_white(rgb, alpha, premultiplied=tiff.extra_sample == PREMULTIPLIED)


def _from_gray(samples: npt.NDArray[Any], header: Header) -> Pixels:
    if header.tiff is not None and header.tiff.two_colours:
        palette = np.array(header.tiff.two_colours, dtype=np.uint8).reshape(3, 2).T
        return np.ascontiguousarray(palette[(samples > 127).astype(np.intp)])
    key = header.transparent_gray
    hidden = None
    if key is not None:  # OpenCV ignores the transparent value of a gray PNG
        top = (1 << header.bit_depth) - 1
        hidden = samples == (key * (255 // top) if header.bit_depth < 8 else key)
    if samples.dtype == np.uint16:
        samples = _eight_bits(samples)
        if header.tiff is not None and header.tiff.photometric == WHITE_IS_ZERO:
            samples = 255 - samples  # OpenCV heeds "white is zero" up to 8 bits only
    if hidden is not None:
        samples[hidden] = 255
    return np.asarray(cv2.cvtColor(samples, cv2.COLOR_GRAY2RGB), dtype=np.uint8)


@functools.cache
def _eight_bit_table() -> Pixels:
    table = ((np.arange(65536, dtype=np.uint32) + 128) // 257).astype(np.uint8)
    table.flags.writeable = False
    return table


def _eight_bits(samples: npt.NDArray[Any]) -> Pixels:
    """Scale 16 bits to 8: round(v / 257), so that 0 and 65535 become 0 and 255."""
    return np.asarray(_eight_bit_table()[samples], dtype=np.uint8)


def _over_white(rgb: Pixels, alpha: Pixels, *, premultiplied: bool) -> Pixels:
    """Composite over white, rounded to the nearest level."""
    if int(alpha.min()) == 255:
        return rgb
    white = (255 - alpha)[..., None].astype(np.uint16)
    total = rgb.astype(np.uint16)
    if premultiplied:
        total += white
        np.minimum(total, 255, out=total)
    else:
        total *= alpha[..., None]
        total += white * 255 + 127
        total //= 255
    return total.astype(np.uint8)


def _imdecode(buffer: Pixels, kind: str) -> npt.NDArray[Any]:
    try:
        with _quiet():
            samples: npt.NDArray[Any] | None = cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED)
    except cv2.error as exc:
        raise DecodeError(f"OpenCV cannot decode this {kind}: {exc}") from exc
    if samples is None:
        raise DecodeError(
            f"OpenCV cannot decode this {kind}: it is truncated, damaged or of a rare kind; "
            "restore it from its origin, or save it as PNG"
        )
    return samples


@contextmanager
def _quiet() -> Iterator[None]:
    # The error raised here says what OpenCV would print, in the middle of a progress bar.
    logging: Any = getattr(cv2.utils, "logging", cv2)  # it has moved between versions
    level = logging.getLogLevel()
    logging.setLogLevel(0)
    try:
        yield
    finally:
        logging.setLogLevel(level)
