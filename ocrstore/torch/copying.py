"""Owns copies of rows into a buffer: flat bytes, and for large batches in several threads.

Threads are worth it because one core cannot use all of the memory's bandwidth. As many work as
torch may use for one operation (`torch.set_num_threads`), at most four; DataLoader workers, where
torch has one, copy alone.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import SimpleQueue

import numpy as np
import torch

from ocrstore.torch._rows import AnyArray, IntArray, RowLayout

Job = tuple[AnyArray, AnyArray]
"""(target, source), both of one shape."""

_FLAT_NBYTES = 64 << 10
"""Rows from this size on are copied each by itself, as plain bytes."""
_MIN_THREADED_NBYTES = 8 << 20
_MAX_THREADS = 4


def copy_rows(data: AnyArray, layout: RowLayout, rows: IntArray, out: AnyArray) -> None:
    """Copy rows from `data`, the file's bytes, into `out` of shape (len(rows), *shape)."""
    if not len(rows) or not layout.nbytes:
        return
    nbytes = layout.nbytes
    if nbytes < _FLAT_NBYTES or not out.flags.c_contiguous:
        run_jobs(_shaped_jobs(data, layout, rows, out), out.nbytes)
        return
    # as bytes numpy makes one memcpy of a row; of several dimensions it makes many
    flat = out.reshape(-1).view(np.uint8)
    starts = range(0, len(rows) * nbytes, nbytes)
    offsets = layout.offsets[rows].tolist()
    jobs = [
        (flat[start : start + nbytes], data[offset : offset + nbytes])
        for start, offset in zip(starts, offsets, strict=True)
    ]
    run_jobs(jobs, out.nbytes)


def _shaped_jobs(data: AnyArray, layout: RowLayout, rows: IntArray, out: AnyArray) -> list[Job]:
    jobs: list[Job] = []
    for position, count, offset in layout.runs(rows):
        # several rows at once where they adjoin: the layout knows their strides
        shape = (count, *layout.shape)
        source: AnyArray = np.ndarray(shape, layout.dtype, data, offset, layout.strides)
        jobs.append((out[position : position + count], source))
    return jobs


def run_jobs(jobs: list[Job], nbytes: int) -> None:
    """Copy each source into its target; returns when all is there."""
    threads = 1
    if nbytes >= _MIN_THREADED_NBYTES and len(jobs) > 1:
        threads = min(torch.get_num_threads(), _MAX_THREADS, len(jobs))
    if threads == 1:
        for target, source in jobs:
            np.copyto(target, source)
        return
    work = _Work(jobs)
    _crew.call(work, threads - 1)
    work.help()
    work.wait()


class _Work:
    """Jobs that threads take one by one: one that comes late, or never, keeps nobody waiting."""

    __slots__ = ("_error", "_finished", "_jobs", "_lock", "_unfinished")

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = deque(jobs)
        self._unfinished = len(jobs)
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._error: BaseException | None = None

    def help(self) -> None:
        """Take jobs until none is left."""
        while True:
            try:
                target, source = self._jobs.popleft()
            except IndexError:
                return
            try:
                np.copyto(target, source)
            except BaseException as exc:
                self._error = exc
            del target, source
            with self._lock:
                self._unfinished -= 1
                last = not self._unfinished
            if last:
                self._finished.set()

    def wait(self) -> None:
        """Return when every job is done."""
        self._finished.wait()
        if self._error is not None:
            raise self._error


class _Crew:
    """Threads that wait for work; a forked child hires its own."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._calls: SimpleQueue[_Work] = SimpleQueue()

    def call(self, work: _Work, count: int) -> None:
        """Ask `count` threads for help; returns at once."""
        with self._lock:
            while self._count < count:
                name = f"ocrstore-copy-{self._count}"
                threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
                self._count += 1
        for _ in range(count):
            self._calls.put(work)


def _serve(calls: SimpleQueue[_Work]) -> None:
    while True:
        work = calls.get()
        work.help()
        del work  # or the buffers would live until the next call


_crew = _Crew()
