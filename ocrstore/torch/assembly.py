"""Owns fresh batches of scattered rows, put together by the page table."""

from __future__ import annotations

import mmap

import numpy as np

from ocrstore.torch._region import PAGE, Region
from ocrstore.torch._rows import AnyArray, FileHandle, IntArray, RowLayout, as_rows

MIN_ASSEMBLED_NBYTES = 16 * PAGE
"""Rows shorter than this are copied: a call to the kernel for each would take longer."""


class _Assembled:
    """Keeps a region alive for the arrays that point into it; its pages are nobody else's."""

    __slots__ = ("__array_interface__", "_region")

    def __init__(self, region: Region, count: int, layout: RowLayout) -> None:
        self._region = region
        self.__array_interface__ = as_rows(region.address, count, layout)


def assemble(file: FileHandle, layout: RowLayout, rows: IntArray) -> AnyArray:
    """Map rows, in any order and also repeated, one after another into fresh private memory.

    Raises `MapLimitError` when too many mappings are alive.
    """
    if not layout.mappable:
        raise ValueError("the rows of this column do not lie on pages of their own")
    runs = layout.runs(rows)
    region = Region(len(rows) * layout.pitch, len(runs))
    for position, count, offset in runs:
        region.place(position * layout.pitch, count * layout.pitch, file.fd, offset)
    return np.asarray(_Assembled(region, len(rows), layout))


def map_fresh(file: FileHandle, layout: RowLayout, rows: IntArray) -> AnyArray | None:
    """Map one run of adjoining rows as every system can; None if it is not one run."""
    if not layout.mappable or len(rows) == 0:
        return None
    runs = layout.runs(rows)
    if len(runs) != 1:
        return None
    offset = runs[0][2]
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    # the last row ends inside its last page: what follows it may be the end of the file
    nbytes = (len(rows) - 1) * layout.pitch + layout.nbytes
    try:
        mapping = mmap.mmap(file.fd, offset - start + nbytes, access=mmap.ACCESS_COPY, offset=start)
    except OSError:
        return None  # no address space, or strict overcommit: the caller copies
    whole: AnyArray = np.ndarray(
        (len(rows), *layout.shape),
        layout.dtype,
        buffer=mapping,
        offset=offset - start,
        strides=layout.strides,
    )
    return whole
