"""Reused memory that augmentation steps draw into.

Fresh memory is cleared page by page when it is first touched, which takes longer than flipping a
picture.
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
    """Return an uninitialised, contiguous uint8 array; reused once no view of it is left."""
    nbytes = math.prod(shape)
    return _POOL.take(-(-nbytes // _STEP) * _STEP)[:nbytes].reshape(shape)


def take_floats(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return an uninitialised float32 array in the same way."""
    return take((*shape[:-1], 4 * shape[-1])).view(np.float32)


def paste(drawn: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Copy `drawn` into `target` unless OpenCV already drew it there (`dst=` is only a hint)."""
    if not np.may_share_memory(drawn, target):
        target[...] = drawn
