"""Owns the description of a column's rows in a file: where each lies, and which of them adjoin."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ocrstore.torch._region import PAGE, round_up

if TYPE_CHECKING:
    import numpy.typing as npt

IntArray: TypeAlias = "npt.NDArray[np.int64]"
AnyArray: TypeAlias = "npt.NDArray[Any]"


class FileHandle:
    """A read-only descriptor that is closed when nobody needs it; made anew in each process."""

    __slots__ = ("fd",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.fd = -1
        self.fd = os.open(
            path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        )

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class RowLayout:
    """Where the equal-shaped rows of one raw column lie in the file."""

    __slots__ = ("breaks", "dtype", "mappable", "nbytes", "offsets", "pitch", "shape", "strides")

    def __init__(self, offsets: IntArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.offsets = offsets
        self.shape = shape
        self.dtype = dtype
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        """Bytes of one row."""
        self.pitch = round_up(self.nbytes)
        """Distance of adjoining rows: whole pages."""
        self.breaks: IntArray = (offsets[1:] - offsets[:-1] != self.pitch).nonzero()[0]
        """Rows that the next one does not adjoin."""
        inner: list[int] = []
        step = dtype.itemsize
        for length in reversed(shape):
            inner.insert(0, step)
            step *= length
        self.strides = (self.pitch, *inner)
        """Of rows that lie a pitch apart."""
        aligned = bool(len(offsets)) and not bool((offsets % PAGE).any())
        # rows that share a page, or repeat, are never handed out by reference
        apart = aligned and bool((np.diff(np.sort(offsets)) >= self.pitch).all())
        self.mappable = self.nbytes >= PAGE and aligned and apart
        """Whether each row has pages of its own, so that it can be leased and put together by
        page.
        """

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def end(self) -> int:
        """Return the file size that all rows need."""
        return int(self.offsets.max()) + self.nbytes if len(self.offsets) else 0

    def runs(self, rows: IntArray) -> list[tuple[int, int, int]]:
        """Split rows into runs that adjoin in the file: (position, count, file offset)."""
        if not len(rows):
            return []
        first = first_of_run(rows)
        if first is not None and self.adjoin(first, len(rows)):
            return [(0, len(rows), int(self.offsets[first]))]
        offsets = self.offsets[rows]
        breaks = (offsets[1:] - offsets[:-1] != self.pitch).nonzero()[0].tolist()
        starts = [0, *[position + 1 for position in breaks]]
        ends = [*starts[1:], len(rows)]
        return [(a, b - a, int(offsets[a])) for a, b in zip(starts, ends, strict=True)]

    def adjoin(self, first: int, count: int) -> bool:
        """Tell whether rows [first, first + count) lie in the file one after another."""
        if not len(self.breaks):
            return True
        inside = self.breaks.searchsorted((first, first + count - 1))
        return bool(inside[0] == inside[1])


def first_of_run(rows: IntArray) -> int | None:
    """Return the first of consecutive rows; None if they are not consecutive, or none at all."""
    count = len(rows)
    if not count:
        return None
    first = int(rows[0])
    if count == 1:
        return first
    # the ends first: of a shuffled batch they tell already
    if int(rows[-1]) - first != count - 1:
        return None
    return first if rows.tolist() == list(range(first, first + count)) else None


def as_rows(address: int, count: int, layout: RowLayout) -> dict[str, Any]:
    """Return the numpy array interface of `count` rows at `address`, a pitch apart."""
    return {
        "version": 3,
        "typestr": layout.dtype.str,
        "data": (address, False),
        "shape": (count, *layout.shape),
        "strides": layout.strides,
    }
