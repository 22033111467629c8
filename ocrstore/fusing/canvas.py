"""Owns the memory that steps draw into, used again for the next picture; hides where it is from.

Fresh memory is cleared page by page as it is touched, which takes longer than flipping a picture.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.buffers import BufferPool

_STEP = 1 << 20
"""Sizes are rounded up to it, so that pictures and parts of many sizes share blocks."""
_POOL = BufferPool()


def take(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return contiguous uint8 of a shape, with anything in it; it lives as long as its views."""
    nbytes = math.prod(shape)
    return _POOL.take(-(-nbytes // _STEP) * _STEP)[:nbytes].reshape(shape)


def take_floats(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return float32 in the same way."""
    return take((*shape[:-1], 4 * shape[-1])).view(np.float32)


def paste(drawn: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Bring into `target` what OpenCV was asked to draw there: it need not have used it."""
    if not np.may_share_memory(drawn, target):
        target[...] = drawn
