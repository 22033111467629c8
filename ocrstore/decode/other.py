"""PNG, WebP, BMP, TIFF and GIF through OpenCV, and what makes 8-bit RGB of their samples."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.decode.header import Header
from ocrstore.errors import DecodeError

Pixels = npt.NDArray[np.uint8]


def decode_other(data: bytes, header: Header) -> Pixels:
    """Return the stored (not yet upright) pixels of the first frame or page as RGB."""
    tiff = header.tiff
    buffer = np.frombuffer(data, dtype=np.uint8)
    if tiff is not None:
        if tiff.photometric in (0, 1) and tiff.samples > 1:
            raise DecodeError("a gray TIFF with an alpha channel; save it as PNG")
        if tiff.patches:
            # OpenCV turns TIFFs whatever it is told, and libtiff multiplies by alpha with
            # rounding: it is shown a copy that asks for neither.
            buffer = buffer.copy()
            for offset, replacement in tiff.patches:
                buffer[offset : offset + len(replacement)] = np.frombuffer(replacement, np.uint8)
    samples = _imdecode(buffer, header.format)
    if samples.dtype not in (np.uint8, np.uint16):
        raise DecodeError(f"{header.format} samples of type {samples.dtype}; 8 or 16 bits expected")
    if samples.ndim == 2:
        return _from_gray(samples, header)
    if samples.dtype == np.uint16:
        samples = _eight_bits(samples)
    if samples.shape[2] == 3:
        return np.asarray(cv2.cvtColor(samples, cv2.COLOR_BGR2RGB), dtype=np.uint8)
    if samples.shape[2] != 4:
        raise DecodeError(f"{header.format} with {samples.shape[2]} channels; 1, 3 or 4 expected")
    opaque = tiff is not None and (tiff.photometric != 2 or tiff.extra_sample == 0)
    rgb = np.asarray(cv2.cvtColor(samples, cv2.COLOR_BGRA2RGB), dtype=np.uint8)
    if opaque:
        return rgb
    premultiplied = tiff is not None and tiff.extra_sample == 1
    return _over_white(rgb, samples[..., 3], premultiplied=premultiplied)


def _from_gray(samples: npt.NDArray[Any], header: Header) -> Pixels:
    key = header.transparent_gray
    hidden = None
    if key is not None:  # OpenCV ignores the transparent value of a gray PNG
        top = (1 << header.bit_depth) - 1
        hidden = samples == (key * (255 // top) if header.bit_depth < 8 else key)
    if samples.dtype == np.uint16:
        samples = _eight_bits(samples)
        if header.tiff is not None and header.tiff.photometric == 0:
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
