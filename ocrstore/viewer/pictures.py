"""Arrays become what a browser shows: JPEG and PNG bytes, maps as coloured, see-through layers."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.errors import OCRStoreError

Pixels = npt.NDArray[np.uint8]

MAX_SIDE = 8192
"""Larger pictures are shown smaller: browsers refuse them."""
_LOSSLESS_PIXELS = 1_500_000

# RGB; the legend of the page has the same ones
_TINTS = {
    "prob_map": (255, 176, 0),
    "thresh_map": (0, 190, 255),
    "prob_mask": (255, 45, 85),
    "thresh_mask": (170, 90, 255),
}


def encode_picture(pixels: Pixels) -> tuple[bytes, str]:
    """Encode a picture to be looked at closely; returns bytes and media type."""
    pixels = shrink(pixels, MAX_SIDE)
    bgr = np.ascontiguousarray(pixels[..., ::-1])
    if bgr.shape[0] * bgr.shape[1] <= _LOSSLESS_PIXELS:
        return _encode(".png", bgr, [cv2.IMWRITE_PNG_COMPRESSION, 1]), "image/png"
    options = [cv2.IMWRITE_JPEG_QUALITY, 94]
    options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return _encode(".jpg", bgr, options), "image/jpeg"


def encode_thumbnail(pixels: Pixels) -> bytes:
    """Encode a small picture as JPEG."""
    return _encode(".jpg", np.ascontiguousarray(pixels[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 84])


def encode_map(name: str, values: npt.NDArray[Any]) -> bytes:
    """Encode a map or mask as a PNG in one colour that is as opaque as the map is high.

    The threshold map is stretched over its own range, so that its ramp is visible. Of the
    probability mask the part that does not count is shown, of the threshold mask the one that does.
    """
    strength = np.nan_to_num(np.asarray(values, np.float32), posinf=0.0, neginf=0.0)
    if name == "thresh_map" and strength.size:
        low, high = float(strength.min()), float(strength.max())
        strength = (strength - low) / (high - low) if high > low else np.zeros_like(strength)
    elif name == "prob_mask":
        strength = (strength == 0) * np.float32(0.8)
    elif name == "thresh_mask":
        strength = (strength != 0) * np.float32(0.8)
    layer = np.empty((*strength.shape, 4), np.uint8)
    layer[..., :3] = _TINTS[name][::-1]
    layer[..., 3] = np.clip(strength, 0, 1) * 255
    return _encode(".png", layer, [cv2.IMWRITE_PNG_COMPRESSION, 1])


def shrink(pixels: Pixels, side: int) -> Pixels:
    """Return a picture whose longer side is at most `side`."""
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def _encode(suffix: str, pixels: Pixels, options: list[int]) -> bytes:
    if not pixels.size:
        pixels = np.full((1, 1, pixels.shape[2]), 128, np.uint8)
    done, data = cv2.imencode(suffix, pixels, options)
    if not done:
        raise OCRStoreError(f"OpenCV could not encode a picture of shape {pixels.shape}.")
    return bytes(data)
