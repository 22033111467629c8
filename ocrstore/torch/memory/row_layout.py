"""Describe where the rows of a column lie in a file, and which of them are contiguous."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

IntArray: TypeAlias = "npt.NDArray[np.int64]"
AnyArray: TypeAlias = "npt.NDArray[Any]"

PAGE = mmap.PAGESIZE


def round_up(nbytes: int) -> int:
    """Return the length of the whole pages that hold `nbytes`."""
    return -(-nbytes // PAGE) * PAGE


class FileHandle:
    """A read-only descriptor that is closed when the object dies."""

    __slots__ = ("fd",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.fd = -1
        self.fd = os.open(
            path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        )

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)


class RowLayout:
    """The offsets, the shape and the dtype of the rows of one raw column of fixed shape."""

    __slots__ = ("breaks", "dtype", "mappable", "nbytes", "offsets", "pitch", "shape", "strides")

    def __init__(self, offsets: IntArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.offsets = offsets
        self.shape = shape
        self.dtype = dtype
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        """Bytes of one row."""
        self.pitch = round_up(self.nbytes)
        """Distance of contiguous rows: whole pages."""
        self.breaks: IntArray = (offsets[1:] - offsets[:-1] != self.pitch).nonzero()[0]
        """Rows whose successor does not follow them in the file."""
        inner: list[int] = []
        step = dtype.itemsize
        for length in reversed(shape):
            inner.insert(0, step)
            step *= length
        self.strides = (self.pitch, *inner)
        """Strides of an array of contiguous rows."""
        aligned = bool(len(offsets)) and not bool((offsets % PAGE).any())
        # rows that share a page, or are the same, must not be lent out by reference
        apart = aligned and bool((np.diff(np.sort(offsets)) >= self.pitch).all())
        self.mappable = self.nbytes >= PAGE and aligned and apart
        """Whether every row has pages of its own, so that it can be leased and mapped."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def end(self) -> int:
        """Return the file size that all rows need."""
        return int(self.offsets.max()) + self.nbytes if len(self.offsets) else 0

    def runs(self, rows: IntArray) -> list[tuple[int, int, int]]:
        """Split rows into runs that are contiguous in the file: (position, count, file offset)."""
        if not len(rows):
            return []
        first = first_of_run(rows)
        if first is not None and self._contiguous(first, len(rows)):
            return [(0, len(rows), int(self.offsets[first]))]
        offsets = self.offsets[rows]
        breaks = (offsets[1:] - offsets[:-1] != self.pitch).nonzero()[0].tolist()
        starts = [0, *[position + 1 for position in breaks]]
        ends = [*starts[1:], len(rows)]
        return [(a, b - a, int(offsets[a])) for a, b in zip(starts, ends, strict=True)]

    def _contiguous(self, first: int, count: int) -> bool:
        if not len(self.breaks):
            return True
        inside = self.breaks.searchsorted((first, first + count - 1))
        return bool(inside[0] == inside[1])


def first_of_run(rows: IntArray) -> int | None:
    """Return the first of consecutive row numbers; None if they are not consecutive or empty."""
    count = len(rows)
    if not count:
        return None
    first = int(rows[0])
    if count == 1:
        return first
    # both ends first: they rule out almost every shuffled batch
    if int(rows[-1]) - first != count - 1:
        return None
    return first if rows.tolist() == list(range(first, first + count)) else None


def array_interface(address: int, count: int, layout: RowLayout) -> dict[str, Any]:
    """Return the numpy array interface of `count` contiguous rows at an address."""
    return {
        "version": 3,
        "typestr": layout.dtype.str,
        "data": (address, False),
        "shape": (count, *layout.shape),
        "strides": layout.strides,
    }
