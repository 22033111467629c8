"""Owns pictures of four channels: OpenCV interpolates four in a third of the time of three.

The fourth is never looked at. That the other three come out bit for bit as of a picture of three is
tried out once in each process; where they do not, pictures stay as they are.
"""

from __future__ import annotations

import functools

import cv2
import numpy as np

from ocrstore.fusing import canvas
from ocrstore.fusing.rect import Rect
from ocrstore.fusing.warp import MAX_SIDE, Pixels, noise, trial


def widen(pixels: Pixels, rect: Rect, size: tuple[int, int]) -> Pixels:
    """Return a frame of `size` and four channels; only `rect` of it is filled, with `pixels`."""
    frame: Pixels = canvas.take((*size, 4))
    target = rect.cut(frame)
    canvas.paste(cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA, dst=target), target)
    return frame


def narrow(pixels: Pixels) -> Pixels:
    """Return the three channels that count, as contiguous memory."""
    target: Pixels = canvas.take((*pixels.shape[:2], 3))
    canvas.paste(cv2.cvtColor(pixels, cv2.COLOR_RGBA2RGB, dst=target), target)
    return target


def can_widen(pixels: Pixels, *sizes: tuple[int, int]) -> bool:
    """Return whether pixels may be warped with four channels, from and to frames of these sizes."""
    return (
        pixels.dtype == np.uint8
        and pixels.shape[2:] == (3,)
        and max(max(size) for size in sizes) <= MAX_SIDE
        and _is_exact()
    )


@functools.cache
def _is_exact() -> bool:
    three = noise()
    four = cv2.cvtColor(three, cv2.COLOR_RGB2RGBA)
    for number in range(6):
        matrix, border, fill = trial(number)
        size = (223 + 13 * number, 160 + number)  # (width, height)
        found, expected = (
            cv2.warpAffine(
                picture,
                matrix,
                size,
                flags=cv2.INTER_LINEAR,
                borderMode=border,
                borderValue=fill,
            )
            for picture in (four, three)
        )
        if not np.array_equal(found[..., :3], expected):
            return False
    return True
