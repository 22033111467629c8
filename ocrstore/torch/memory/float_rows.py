"""Write stored rows as float32: pictures normalised by mean and std, maps converted.

Pictures go through numpy in tiles that stay in the second-level cache: converted, multiplied and
shifted there, and written to memory once. Several pictures are done at a time by the threads of
`parallel_copy`. Maps are converted by torch, whose float16 is many times as fast as numpy's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from ocrstore.buffers import BufferPool
from ocrstore.torch.memory.parallel_copy import Job, run_jobs
from ocrstore.torch.memory.row_layout import AnyArray

Floats = npt.NDArray[np.float32]

_TILE = 3 << 14
"""Values of a tile, a multiple of the three channels: 192 kB of float32."""
POOL = BufferPool(kept_nbytes=1 << 29)
"""For batches that are handed out, reused when their last tensor is gone."""


def write_normalized(
    pictures: Sequence[AnyArray],
    out: Sequence[Floats],
    *,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> None:
    """Write (value / 255 - mean) / std of uint8 pictures (H, W, 3) into arrays of their shape."""
    scale, shift = _tiles(tuple(mean), tuple(std))

    def write(target: AnyArray, source: AnyArray) -> None:
        flat, values = target.reshape(-1), source.reshape(-1)
        for start in range(0, values.size, _TILE):
            tile = flat[start : start + _TILE]
            np.copyto(tile, values[start : start + _TILE])
            np.multiply(tile, scale[: tile.size], out=tile)
            np.add(tile, shift[: tile.size], out=tile)

    jobs: list[Job] = [(write, *pair) for pair in zip(out, pictures, strict=True)]
    run_jobs(jobs)


def write_floats(rows: Sequence[AnyArray], out: Sequence[Floats]) -> None:
    """Convert float16, uint8 or bool arrays into float32 arrays of their shape."""
    for source, target in zip(rows, out, strict=True):
        torch.from_numpy(target).copy_(_borrow(np.ascontiguousarray(source)))


@lru_cache(maxsize=8)
def _tiles(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Return factors and summands for all values of a tile."""
    spread = np.asarray(std, np.float64)
    factors = (1 / (255 * spread)).astype(np.float32)
    summands = (-np.asarray(mean, np.float64) / spread).astype(np.float32)
    return np.tile(factors, _TILE // 3), np.tile(summands, _TILE // 3)


def _borrow(array: AnyArray) -> torch.Tensor:
    """Return a tensor on the memory of an array, which may be read-only; do not write to it.

    `torch.from_numpy` warns of read-only arrays, and rows of a mapped file are.
    """
    if not array.size:
        return torch.zeros(array.shape)
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    dtype = {"float16": torch.float16, "float32": torch.float32, "bool": torch.bool}
    kind = dtype.get(array.dtype.name, torch.uint8)
    return torch.frombuffer(memory, dtype=kind).view(array.shape)
