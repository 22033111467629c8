"""Decode JPEGs with libjpeg-turbo, by PyTurboJPEG or simplejpeg; both give the same pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.decode.pillow import warnings_as
from ocrstore.errors import DecodeError

Pixels = npt.NDArray[np.uint8]
Run = Callable[..., Pixels]
"""Decodes once; `strict` makes an error of every warning of the library."""

_STOP_ON_WARNING = 8192  # TJFLAG_STOPONWARNING
_TJPF_RGB, _TJPF_CMYK = 0, 11


def available_backends() -> tuple[str, ...]:
    """Return the JPEG backends present here, the preferred one first."""
    return tuple(name for name, (library, _) in _BACKENDS.items() if library() is not None)


def decode_jpeg(data: bytes, out: Pixels, *, cmyk: bool, backend: str | None = None) -> Pixels:
    """Return the stored (not yet upright) pixels; a truncated or damaged file is a DecodeError.

    They are decoded into `out`, of the size that the header promises.
    """
    present = available_backends()
    if not present or backend not in (None, *present):
        raise DecodeError(
            f"JPEG backend {backend!r} is not present; here are {', '.join(present) or 'none'}; "
            'pip install "ocrstore[build]" brings simplejpeg'
        )
    library, make_run = _BACKENDS[backend or present[0]]
    pixels = _strictly(make_run(library(), data, out, cmyk))
    return _rgb_from_inverted_cmyk(pixels) if cmyk else pixels


@functools.cache
def _turbojpeg() -> Any | None:
    """Return a PyTurboJPEG decoder, or None where it or its library is missing or too old."""
    try:
        return import_module("turbojpeg").TurboJPEG()
    except (ImportError, RuntimeError, OSError, AttributeError):
        return None


@functools.cache
def _simplejpeg() -> Any | None:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


def _run_turbojpeg(decoder: Any, data: bytes, out: Pixels, cmyk: bool) -> Run:
    layout = _TJPF_CMYK if cmyk else _TJPF_RGB

    def run(*, strict: bool) -> Pixels:
        flags = _STOP_ON_WARNING if strict else 0
        if strict and not _warns_when_stopped():
            return np.asarray(decoder.decode(data, pixel_format=layout, flags=flags, dst=out))
        with warnings_as("error" if strict else "ignore"):
            try:
                return np.asarray(decoder.decode(data, pixel_format=layout, flags=flags, dst=out))
            except Warning as exc:
                raise OSError(str(exc)) from exc

    return run


@functools.cache
def _warns_when_stopped() -> bool:
    """Whether a warning that stopped the decoder is a mere Python warning, as in PyTurboJPEG 1."""
    return str(getattr(import_module("turbojpeg"), "__version__", "1")).startswith("1")


def _run_simplejpeg(library: Any, data: bytes, out: Pixels, cmyk: bool) -> Run:
    space = "CMYK" if cmyk else "RGB"
    return functools.partial(library.decode_jpeg, data, colorspace=space, buffer=out)


def _strictly(run: Run) -> Pixels:
    """Run with every warning an error, but forgive the harmless one."""
    try:
        return run(strict=True)
    except (OSError, ValueError) as exc:
        # Bytes between the last scan and the end marker: many phones write them, every pixel is
        # there. It is the last thing the library can warn of, so nothing worse hides behind it.
        if "extraneous bytes before marker 0xd9" not in str(exc):
            raise DecodeError(
                f"truncated or damaged JPEG: {exc}; restore it from its origin"
            ) from exc
    try:
        return run(strict=False)
    except (OSError, ValueError) as exc:
        raise DecodeError(f"damaged JPEG: {exc}; restore it from its origin") from exc


def _rgb_from_inverted_cmyk(cmyk: Pixels) -> Pixels:
    """Convert CMYK as Adobe stores it (255 = no ink), with OpenCV's arithmetic."""
    key = cmyk[..., 3:].astype(np.uint16)
    lost = (255 - cmyk[..., :3]).astype(np.uint16)
    lost *= key
    lost >>= 8
    return np.subtract(key, lost, out=np.empty(lost.shape, np.uint8), casting="unsafe")


_MakeRun = Callable[[Any, bytes, Pixels, bool], Run]
_BACKENDS: dict[str, tuple[Callable[[], Any | None], _MakeRun]] = {
    "turbojpeg": (_turbojpeg, _run_turbojpeg),
    "simplejpeg": (_simplejpeg, _run_simplejpeg),
}
