"""JPEG through whichever build of libjpeg-turbo is present; all give the same pixels."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from importlib import import_module, util
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.decode.header import Header
from ocrstore.decode.jpeg_markers import require_end
from ocrstore.errors import DecodeError

Pixels = npt.NDArray[np.uint8]

_STOP_ON_WARNING = 8192  # TJFLAG_STOPONWARNING
_TJPF_RGB, _TJPF_CMYK = 0, 11


def available_backends() -> tuple[str, ...]:
    """Return the JPEG backends present here, the preferred one first."""
    present = []
    if _turbojpeg() is not None:
        present.append("turbojpeg")
    if _simplejpeg() is not None:
        present.append("simplejpeg")
    return (*present, "opencv")


def decode_jpeg(data: bytes, header: Header, *, backend: str | None = None) -> tuple[Pixels, str]:
    """Return the stored (not yet upright) pixels and the decoder family."""
    if header.bit_depth != 8 or header.components not in (1, 3, 4):
        raise DecodeError(
            f"a JPEG of {header.components} channels with {header.bit_depth} bits; "
            "1, 3 or 4 channels with 8 bits can be decoded"
        )
    chosen = available_backends()[0] if backend is None else backend
    if chosen not in _BACKENDS or chosen not in available_backends():
        raise DecodeError(
            f"JPEG backend {chosen!r} is not present; here are {', '.join(available_backends())}"
        )
    pixels = _BACKENDS[chosen](data, header)
    return pixels, opencv_family() if chosen == "opencv" else "libjpeg-turbo"


@functools.cache
def opencv_family() -> str:
    """Return `libjpeg-turbo` where OpenCV was built with it, else `opencv-jpeg`."""
    for line in cv2.getBuildInformation().splitlines():
        name, _, value = line.strip().partition(":")
        if name == "JPEG":
            return "libjpeg-turbo" if "turbo" in value else "opencv-jpeg"
    return "opencv-jpeg"


@functools.cache
def _turbojpeg() -> Any | None:
    """Return a PyTurboJPEG decoder, or None where it or its library is missing or too old."""
    if util.find_spec("turbojpeg") is None:
        return None
    try:
        return import_module("turbojpeg").TurboJPEG()
    except (RuntimeError, OSError, AttributeError):
        return None


@functools.cache
def _simplejpeg() -> Any | None:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


def _is_harmless(message: str) -> bool:
    # Bytes between the last scan and the end marker: many phones write them, every pixel is
    # there. It is the last thing the library can complain of, so nothing worse hides behind it.
    return "extraneous bytes before marker 0xd9" in message


def _with_turbojpeg(data: bytes, header: Header) -> Pixels:
    decoder = _turbojpeg()
    assert decoder is not None  # checked by decode_jpeg
    layout = _TJPF_CMYK if header.components == 4 else _TJPF_RGB

    def run(*, strict: bool) -> Pixels:
        flags = _STOP_ON_WARNING if strict else 0
        with warnings.catch_warnings():
            # PyTurboJPEG 1 turns even a warning that stopped the decoder into a Python warning
            warnings.simplefilter("error" if strict else "ignore")
            try:
                pixels: Pixels = decoder.decode(data, pixel_format=layout, flags=flags)
            except Warning as exc:
                raise OSError(str(exc)) from exc
        return pixels

    pixels = _strictly(run, OSError)
    return _rgb_from_inverted_cmyk(pixels) if header.components == 4 else pixels


def _with_simplejpeg(data: bytes, header: Header) -> Pixels:
    library = _simplejpeg()
    assert library is not None  # checked by decode_jpeg
    layout = "CMYK" if header.components == 4 else "RGB"

    def run(*, strict: bool) -> Pixels:
        pixels: Pixels = library.decode_jpeg(data, colorspace=layout, strict=strict)
        return pixels

    pixels = _strictly(run, ValueError)
    return _rgb_from_inverted_cmyk(pixels) if header.components == 4 else pixels


def _strictly(run: Callable[..., Pixels], error: type[Exception]) -> Pixels:
    """Run with every warning an error, but forgive the harmless one."""
    try:
        return run(strict=True)
    except error as exc:
        if not _is_harmless(str(exc)):
            raise DecodeError(
                f"truncated or damaged JPEG: {exc}; restore it from its origin"
            ) from exc
    try:
        return run(strict=False)
    except error as exc:
        raise DecodeError(f"damaged JPEG: {exc}; restore it from its origin") from exc


def _with_opencv(data: bytes, header: Header) -> Pixels:
    require_end(data, header.scan_offset)
    try:
        pixels = cv2.imdecode(
            np.frombuffer(data, dtype=np.uint8),
            cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION,
        )
    except cv2.error as exc:
        raise DecodeError(f"damaged JPEG: {exc}; restore it from its origin") from exc
    if pixels is None:
        raise DecodeError("truncated or damaged JPEG; restore it from its origin")
    return np.asarray(pixels, dtype=np.uint8)


def _rgb_from_inverted_cmyk(cmyk: Pixels) -> Pixels:
    """Convert CMYK as Adobe stores it (255 = no ink), with OpenCV's own arithmetic."""
    key = cmyk[..., 3:].astype(np.uint16)
    lost = (255 - cmyk[..., :3]).astype(np.uint16)
    lost *= key
    lost >>= 8
    return np.subtract(key, lost, out=np.empty(lost.shape, np.uint8), casting="unsafe")


_BACKENDS: dict[str, Callable[[bytes, Header], Pixels]] = {
    "turbojpeg": _with_turbojpeg,
    "simplejpeg": _with_simplejpeg,
    "opencv": _with_opencv,
}
