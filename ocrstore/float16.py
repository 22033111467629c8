"""float32 to float16, bit for bit as numpy does it, several times faster for the values of maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_SMALLEST_NORMAL = float(2.0**-14)
_LARGEST = 65504.0
_ONE = np.float32(1).view(np.uint32)
# moves the exponent's bias from 127 to 15, and adds what rounds a tie to the even neighbour
_SHIFT = np.uint32((0xFFF - (112 << 23)) & 0xFFFFFFFF)


def to_float16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Round to the nearest float16, ties to even, as `values.astype(np.float16)` does."""
    if values.dtype != np.float32 or not values.size:
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    low, high = float(values.min()), float(values.max())
    if low >= _SMALLEST_NORMAL and high <= _LARGEST:  # false for NaN, too
        halves: npt.NDArray[Any] = bits >> 13
        halves &= 1
        halves += bits
        halves += _SHIFT
        halves >>= 13
        return halves.astype(np.uint16).view(np.float16)
    if low == 0 and high <= 1:
        ones = bits == _ONE
        if np.count_nonzero(ones) == np.count_nonzero(bits):  # nothing but +0 and 1
            halves = ones.astype(np.uint16) * np.uint16(0x3C00)
            return np.asarray(halves.view(np.float16))
    return values.astype(np.float16)
