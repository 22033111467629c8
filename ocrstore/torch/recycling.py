"""Owns arrays that are used again: a batch's worth of fresh memory costs more than drawing into it.

The kernel clears every page it gives out. What the samples of one batch were computed into serves
the next batch, once they have been stacked.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ocrstore.torch._rows import AnyArray

if TYPE_CHECKING:
    import numpy.typing as npt

_MAX_SPARE = 64
"""Arrays of one shape and type that wait at most."""

_Kind = tuple[tuple[int, ...], np.dtype[Any]]
_spare: defaultdict[_Kind, list[AnyArray]] = defaultdict(list)


def keep(array: AnyArray) -> AnyArray:
    """Return a copy in memory that may have been used before; give it back when it is stacked.

    For any thread; what is never given back is freed as any array is.
    """
    target = _take(array.shape, array.dtype)
    np.copyto(target, array)
    return target


def keep_half(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Return a copy as `keep` does, rounded to float16 as numpy rounds; torch is quicker at it."""
    target = _take(array.shape, np.dtype(np.float16))
    torch.from_numpy(target).copy_(torch.from_numpy(array))
    return target


def _take(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
    try:
        return _spare[shape, dtype].pop()
    except IndexError:
        return np.empty(shape, dtype)


def give_back(array: AnyArray) -> None:
    """Let others use an array of `keep`, to which nobody must point any more."""
    waiting = _spare[array.shape, array.dtype]
    if array.base is None and len(waiting) < _MAX_SPARE:
        waiting.append(array)
