"""Undoing the eight EXIF orientations on pixels."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

# cv2.flip: 1 swaps left and right, 0 top and bottom
_FLIPS = {2: 1, 4: 0}
_TURNS = {
    3: cv2.ROTATE_180,
    6: cv2.ROTATE_90_CLOCKWISE,
    8: cv2.ROTATE_90_COUNTERCLOCKWISE,
}


def turn_upright(stored: Pixels, orientation: int) -> Pixels:
    """Return the upright picture, C-contiguous; orientation 1 returns `stored` itself."""
    if orientation in _FLIPS:
        return np.ascontiguousarray(cv2.flip(stored, _FLIPS[orientation]), dtype=np.uint8)
    if orientation in _TURNS:
        return np.ascontiguousarray(cv2.rotate(stored, _TURNS[orientation]), dtype=np.uint8)
    if orientation == 5:
        return np.ascontiguousarray(cv2.transpose(stored), dtype=np.uint8)
    if orientation == 7:
        return np.ascontiguousarray(cv2.flip(cv2.transpose(stored), -1), dtype=np.uint8)
    return np.ascontiguousarray(stored)
