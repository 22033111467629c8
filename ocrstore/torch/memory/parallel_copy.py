"""Copy rows into a buffer, or decode them into it, large batches with several threads.

One core cannot use all of the memory's bandwidth. As many threads work as torch may use for one
operation (`torch.set_num_threads`), at most four; in DataLoader workers torch has one thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

from ocrstore.store import StoredColumn
from ocrstore.torch.memory.row_layout import AnyArray, IntArray, RowLayout

Work: TypeAlias = "Callable[[AnyArray, Any], None]"
Job: TypeAlias = "tuple[Work, AnyArray, Any]"
"""What to do with a target and the source to copy or decode into it."""
Source: TypeAlias = "AnyArray | tuple[StoredColumn[Any], int]"
"""The bytes of a row in the file, or a compressed column and the row of it to decode."""

_FLAT_NBYTES = 64 << 10
"""Rows of at least this size are copied one by one, as plain bytes."""
_MIN_THREADED_NBYTES = 8 << 20
_MAX_THREADS = 4


def copy_jobs(data: AnyArray, layout: RowLayout, rows: IntArray, out: AnyArray) -> list[Job]:
    """Return how to copy rows of the file's bytes into `out` of shape (len(rows), *shape)."""
    if not len(rows) or not layout.nbytes:
        return []
    nbytes = layout.nbytes
    if nbytes < _FLAT_NBYTES or not out.flags.c_contiguous:
        return _shaped_jobs(data, layout, rows, out)
    # numpy copies bytes by one memcpy, an array of several dimensions and a pitch by many
    flat = out.reshape(-1).view(np.uint8)
    starts = range(0, len(rows) * nbytes, nbytes)
    offsets = layout.offsets[rows].tolist()
    return [
        (np.copyto, flat[start : start + nbytes], data[offset : offset + nbytes])
        for start, offset in zip(starts, offsets, strict=True)
    ]


def decode_jobs(column: StoredColumn[Any], rows: IntArray, out: AnyArray) -> list[Job]:
    """Return how to decode rows of a compressed column into `out` of shape (len(rows), *shape)."""
    if len(out) and not out[0].flags.c_contiguous:
        decoded = column.empty_batch(len(rows))  # a buffer of another layout
        run_jobs(decode_jobs(column, rows, decoded))
        return [(np.copyto, out, decoded)]
    return [
        (_decode, out[position, ...], (column, row)) for position, row in enumerate(rows.tolist())
    ]


def fill_jobs(sources: Sequence[Source], out: AnyArray) -> list[Job]:
    """Return how to copy or decode a row of any store into each row of `out`."""
    if not out.flags.c_contiguous:
        filled = np.empty_like(out, order="C")  # a buffer of another layout
        run_jobs(fill_jobs(sources, filled))
        return [(np.copyto, out, filled)]
    nbytes = out.nbytes // max(1, len(out))
    flat = out.reshape(-1).view(np.uint8)
    starts = range(0, len(out) * nbytes, nbytes) if nbytes else [0] * len(out)
    return [
        (_decode if isinstance(source, tuple) else np.copyto, flat[start : start + nbytes], source)
        for start, source in zip(starts, sources)
    ]


def _decode(target: AnyArray, source: tuple[StoredColumn[Any], int]) -> None:
    column, row = source
    column.decode_into(row, target)


def _shaped_jobs(data: AnyArray, layout: RowLayout, rows: IntArray, out: AnyArray) -> list[Job]:
    jobs: list[Job] = []
    for position, count, offset in layout.runs(rows):
        shape = (count, *layout.shape)
        source: AnyArray = np.ndarray(shape, layout.dtype, data, offset, layout.strides)
        jobs.append((np.copyto, out[position : position + count], source))
    return jobs


def run_jobs(jobs: list[Job]) -> None:
    """Do all jobs; returns when they are done.

    All columns of a batch at once take less time than one after another: threads wait for each
    other at the end only.
    """
    threads = 1
    if sum(target.nbytes for _, target, _ in jobs) >= _MIN_THREADED_NBYTES and len(jobs) > 1:
        threads = min(torch.get_num_threads(), _MAX_THREADS, len(jobs))
    left = deque(jobs)
    helpers: list[Future[None]] = []
    try:
        for _ in range(threads - 1):
            helpers.append(_executor().submit(_work_off, left))
    except RuntimeError:
        pass  # the interpreter exits and starts no more threads: work alone
    try:
        _work_off(left)
    finally:
        for helper in helpers:
            # do not wait for helper threads that were not scheduled yet
            if not helper.cancel():
                helper.result()


def _work_off(left: deque[Job]) -> None:
    """Work until no job is left; several threads may share the queue."""
    while True:
        try:
            work, target, source = left.popleft()
        except IndexError:
            return
        work(target, source)


@lru_cache(maxsize=1)
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS - 1, thread_name_prefix="ocrstore-copy")


if hasattr(os, "register_at_fork"):
    # a forked child inherits the executor without its threads
    os.register_at_fork(after_in_child=_executor.cache_clear)
