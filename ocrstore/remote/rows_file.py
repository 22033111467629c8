"""Write rows into a rows file, and choose which ranges of an object to download for which rows."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.format.index import Index
from ocrstore.remote.cache import (
    HEADER_NBYTES,
    PRESENT,
    REMOVED_OFFSET,
    UNCHECKED,
    header_start,
    is_rows_header,
    marks_start,
    rows_header,
)

_BLOCK_NBYTES = 1 << 20
GAP_NBYTES = 128 << 10
"""Ranges nearer to each other than this are downloaded as one, with what is between them, as long
as that is at most a fiftieth."""
RANGE_NBYTES = 4 << 20
"""Ranges are joined up to this size. Many at once are as fast as larger ones, and a batch waits for
less."""

IntArray = npt.NDArray[np.int64]


class Blocks:
    """The rows of an object in the order of the file, in blocks that are downloaded as a whole.

    A block is about 1 MiB of consecutive rows of one column, or one larger row: a row of a few
    kilobytes is not worth a request of its own, and in an epoch its neighbours are needed as well.

    A cell is a row of a column: its number is column * samples + row. Cells are sorted by offset
    here; `cells` has their numbers.
    """

    def __init__(self, index: Index) -> None:
        columns = list(index.rows.values())
        self.index = index
        offset = np.concatenate([rows.offset for rows in columns] or [np.empty(0, np.int64)])
        order = np.argsort(offset, kind="stable")
        self.cells: IntArray = order
        self.offset: IntArray = offset[order]
        self.end: IntArray = self.offset + np.concatenate([r.nbytes for r in columns])[order]
        self.hash = np.concatenate([rows.hash for rows in columns])[order]
        column = order // max(1, len(index))
        is_first = np.ones(len(order), bool)
        gap = self.offset[1:] - self.end[:-1]
        is_first[1:] = (gap >= GAP_NBYTES) | (column[1:] != column[:-1])
        run = np.maximum.accumulate(np.where(is_first, self.offset, 0))
        part = (self.offset - run) // _BLOCK_NBYTES
        is_first[1:] |= part[1:] != part[:-1]
        self.first: IntArray = np.append(np.flatnonzero(is_first), len(order))
        """Where each block starts among the cells; the last entry is their number."""
        self._block_of: IntArray = np.empty(len(order), np.int64)
        self._block_of[order] = np.cumsum(is_first) - 1

    def of(self, cells: IntArray) -> list[int]:
        """Return the blocks that hold some cells, in the order of the file."""
        return np.unique(self._block_of[cells]).tolist()  # type: ignore[no-any-return]  # numpy's Any

    def nbytes(self, start: int, stop: int) -> int:
        """Return the bytes from the first of some blocks to the end of the last."""
        return int(self.end[self.first[stop] - 1] - self.offset[self.first[start]])

    def joined(self, blocks: list[int]) -> list[range]:
        """Return blocks in ranges that are worth one request each."""
        found: list[range] = []
        unused = 0
        for block in blocks:
            if found:
                last = found[-1]
                gap = int(self.offset[self.first[block]] - self.end[self.first[last.stop] - 1])
                nbytes = self.nbytes(last.start, block + 1)
                if gap < GAP_NBYTES and nbytes <= RANGE_NBYTES and unused + gap <= nbytes // 50:
                    found[-1] = range(last.start, block + 1)
                    unused += gap
                    continue
            found.append(range(block, block + 1))
            unused = 0
        return found

    def name(self, position: int) -> str:
        """Name a cell, by its position here, in an error message."""
        column, row = divmod(int(self.cells[position]), len(self.index))
        names = list(self.index.rows)
        return f"sample {self.index.key(row)!r} (row {row}), column {names[column]!r}"


class RowsFile:
    """A rows file, open for the one process that writes to it. The caller has the lock.

    Args:
        path: The file; made if it is not there. It may be a link to `real`.
        nbytes: The size of the object.
        cells: The number of marks.
        real: Where the file lies if not at `path`: in memory, when the disk is full.
    """

    def __init__(self, path: Path, nbytes: int, cells: int, *, real: Path | None = None) -> None:
        self.path = path
        self._marks_start = marks_start(nbytes)
        self._header_start = header_start(nbytes)
        size = self._marks_start + max(1, cells)
        self._descriptor = self._open(size, real)
        status = os.fstat(self._descriptor)
        self.inode = status.st_ino
        self.nbytes = status.st_blocks * 512
        """Bytes on the disk."""
        stored = os.pread(self._descriptor, cells, self._marks_start)
        self.marks = np.frombuffer(stored, np.uint8).copy()
        self._forget_other_boots()
        self.pending: dict[int, Any] = {}
        """The job of each block that is being downloaded, or will be."""
        self.wrong: dict[int, str] = {}
        """Cells that could not be fetched as they should be, and why."""
        self.is_dropped = False
        self.last_use = 0

    def _open(self, size: int, real: Path | None) -> int:
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            header = os.pread(descriptor, HEADER_NBYTES, self._header_start)
            if os.fstat(descriptor).st_size == size and is_rows_header(header):
                return descriptor
            os.close(descriptor)
        # complete before it has its name
        made = (real or self.path).with_suffix(".partial")
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, rows_header(), self._header_start)
        made.replace(real or self.path)
        if real is not None:
            link = self.path.with_suffix(".partial")
            link.unlink(missing_ok=True)
            link.symlink_to(real)
            link.replace(self.path)
        return descriptor

    def _forget_other_boots(self) -> None:
        """Have rows checked again that were marked before the machine was started."""
        header = os.pread(self._descriptor, HEADER_NBYTES, self._header_start)
        if header != rows_header():
            self.marks[self.marks == PRESENT] = UNCHECKED
            os.pwrite(self._descriptor, self.marks.tobytes(), self._marks_start)
            os.pwrite(self._descriptor, rows_header(), self._header_start)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._descriptor)

    def is_there(self) -> bool:
        """Return whether the path still leads to this file."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def drop(self) -> None:
        """Remove the file; who has mapped it keeps what is in it."""
        self.is_dropped = True
        with suppress(OSError):
            os.pwrite(self._descriptor, b"\1", self._header_start + REMOVED_OFFSET)
            if self.path.is_symlink():
                self.path.readlink().unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def check(self, blocks: Blocks, positions: IntArray) -> IntArray:
        """Mark rows that are there, but were not checked since the start; return the others."""
        old = positions[self.marks[blocks.cells[positions]] == UNCHECKED]
        good = [
            position
            for position in old.tolist()
            if xxhash.xxh3_64_intdigest(
                os.pread(
                    self._descriptor,
                    int(blocks.end[position] - blocks.offset[position]),
                    int(blocks.offset[position]),
                )
            )
            == blocks.hash[position]
        ]
        self._mark(blocks.cells[good])
        rest: IntArray = np.setdiff1d(positions, np.array(good, np.int64))
        return rest

    def keep(self, blocks: Blocks, positions: IntArray, data: memoryview) -> IntArray:
        """Write rows that match their hashes and mark them; return the others.

        Only rows that are not marked are given: a marked one may be being read.

        Args:
            blocks: The rows of the object.
            positions: The positions of the rows in it, in order.
            data: The object's bytes from the first of the rows on.
        """
        if not len(positions):
            return positions
        start = int(blocks.offset[positions[0]])
        spans = zip(
            (blocks.offset[positions] - start).tolist(),
            (blocks.end[positions] - start).tolist(),
            blocks.hash[positions].tolist(),
            strict=True,
        )
        good = np.array(
            [xxhash.xxh3_64_intdigest(data[first:end]) == digest for first, end, digest in spans]
        )
        for run in _runs(positions[good]):
            first, end = int(blocks.offset[run[0]]), int(blocks.end[run[-1]])
            self._write(data[first - start : end - start], first)
        self._mark(blocks.cells[positions[good]])
        wrong: IntArray = positions[~good]
        return wrong

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            count = os.pwrite(self._descriptor, data, offset)
            data, offset = data[count:], offset + count

    def _mark(self, cells: IntArray) -> None:
        """Mark cells, whose rows were written before."""
        for run in _runs(np.sort(cells)):
            self._write(memoryview(bytes([PRESENT]) * len(run)), self._marks_start + int(run[0]))
        self.marks[cells] = PRESENT


def _runs(numbers: IntArray) -> list[IntArray]:
    """Split sorted numbers into runs of consecutive ones."""
    if not len(numbers):
        return []
    runs: list[IntArray] = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return runs
