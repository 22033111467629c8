"""Owns reading ahead: a thread makes the next batches ready while the loop uses this one."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from ocrstore.torch.staging import Resolve, Stage

_JOIN_SECONDS = 30.0
"""How long closing waits for a batch that is being made; then the thread is left to end alone."""


class _Shared:
    """What the thread and its consumer share; the thread must not keep the consumer alive."""

    __slots__ = ("ended", "ready", "room", "stopped")

    def __init__(self, ahead: int) -> None:
        self.ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.room = threading.Semaphore(ahead)
        self.stopped = False
        self.ended = False


def _make_ready(source: Iterator[Any], stage: Stage, shared: _Shared) -> None:
    try:
        while True:
            shared.room.acquire()
            if shared.stopped:
                return
            try:
                batch = next(source)
            except StopIteration:
                shared.ready.put(("end", None))
                shared.ended = True
                return
            begun = stage.begin(batch)
            # the batch is the consumer's alone: what it drops must not live on here
            del batch
            shared.ready.put(("batch", begun))
            del begun
    except BaseException as exc:
        shared.ready.put(("error", exc))


class Prefetcher(Iterator[Any]):
    """One pass over a loader (or anything that gives batches), `ahead` batches ahead of the loop.

    Ends as its source does; an exception of the source is raised where its batch would have come.
    Dropped or closed in the middle, it stops its thread first. One consumer at a time. What the
    source does at each batch it does in the thread: random numbers that it draws from torch's
    global generator are drawn there.
    """

    def __init__(
        self, source: Iterable[Any], *, stage: Stage | None = None, ahead: int = 2
    ) -> None:
        """Start at once; `iter(source)` is called here, in the caller's thread.

        `stage` says what is done to a batch ahead of time; by default its tensors are taken.
        """
        if ahead < 1:
            raise ValueError(f"ahead={ahead}: expected at least one batch")
        self.waited = 0.0
        """Seconds that the consumer has waited for batches."""
        self.handed = 0
        """Batches that the consumer has got."""
        self.stage = stage or Resolve()
        self._pid = os.getpid()
        self._done = False
        self._shared = _Shared(ahead)
        self._thread = threading.Thread(
            target=_make_ready,
            args=(iter(source), self.stage, self._shared),
            name="ocrstore-prefetch",
            daemon=True,
        )
        self._thread.start()
        _alive.add(self)

    def __next__(self) -> Any:
        if self._done:
            raise StopIteration
        began = time.perf_counter()
        try:
            kind, value = self._shared.ready.get()
            self._shared.room.release()
            if kind == "batch":
                value = self.stage.finish(value)
        except BaseException:  # Ctrl-C while waiting: nobody will come back for the rest
            self.close()
            raise
        finally:
            self.waited += time.perf_counter() - began
        if kind == "batch":
            self.handed += 1
            return value
        self.close()
        if kind == "error":
            try:
                raise value
            finally:
                del value  # its traceback would point to itself
        raise StopIteration

    @property
    def ended(self) -> bool:
        """Return whether the source has ended and everything it gave was handed out."""
        return self._shared.ended and self._shared.ready.qsize() <= 1

    def wait_for_end(self) -> None:
        """Wait until the source has ended; to be called when its last batch was handed out."""
        self._thread.join()

    def close(self) -> None:
        """Stop, and drop what was made ready; waits for a batch that is being made."""
        self._done = True
        if self._pid != os.getpid():
            return  # a forked child has no such thread, and its locks may be held for ever
        self._shared.stopped = True
        self._shared.room.release()
        # a garbage collection in the thread itself may have brought us here
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        while not self._shared.ready.empty():
            self._shared.ready.get()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


_alive: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


def _close_all() -> None:
    """Stop all threads before the interpreter goes: one inside of torch then could crash it."""
    for prefetcher in list(_alive):
        prefetcher.close()


atexit.register(_close_all)
