"""Prepare the next batches in a thread while the loop uses the current one."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from ocrstore.torch.batch import Batch
from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.device import Resolve, Stage, stage_for
from ocrstore.torch.samplers import ResumableSampler

_JOIN_SECONDS = 30.0
"""How long `close` waits for a batch that is being made; then the thread is left to end alone."""


class _Shared:
    """What the thread and its consumer share.

    Not the `Prefetcher` itself: a reference in the thread would keep it from being finalized.
    """

    __slots__ = ("ended", "ready", "room", "stopped")

    def __init__(self, ahead: int) -> None:
        self.ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.room = threading.Semaphore(ahead)
        self.stopped = False
        self.ended = False


def _prepare(source: Iterator[Any], stage: Stage, shared: _Shared) -> None:
    try:
        stage.enter_thread()
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
            # the consumer must hold the only reference, so that what it drops is freed at once
            del batch
            shared.ready.put(("batch", begun))
            del begun
    except BaseException as exc:
        shared.ready.put(("error", exc))


class Prefetcher(Iterator[Any]):
    """One pass over a loader (or any iterable of batches), `ahead` batches ahead of the loop.

    An exception of the source is raised in place of its batch. Closing or dropping it stops the
    thread. One consumer at a time. The source runs in the thread: random numbers from torch's
    global generator are drawn there.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        stage: Stage | None = None,
        ahead: int = 2,
        unused_stages: list[Stage] | None = None,
    ) -> None:
        """Start the thread; `iter(source)` is called here, in the caller's thread.

        Args:
            source: Yields batches.
            stage: What is done to each batch; by default its tensors are made.
            ahead: How many batches to prepare.
            unused_stages: Where to put the stage when this is closed, for another pass.
        """
        if ahead < 1:
            raise ValueError(f"ahead={ahead}: expected at least one batch")
        self.waited = 0.0
        """Seconds that the consumer waited for batches."""
        self.handed = 0
        """Batches that the consumer received."""
        self.stage = stage or Resolve()
        self._unused_stages = unused_stages
        self._pid = os.getpid()
        self._done = False
        self._shared = _Shared(ahead)
        self._thread = threading.Thread(
            target=_prepare,
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
        except BaseException:  # Ctrl-C while waiting: the loop will not continue
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
                del value  # breaks the cycle of the exception and its traceback
        raise StopIteration

    @property
    def ended(self) -> bool:
        """Return whether the source has ended and all its batches were handed out."""
        return self._shared.ended and self._shared.ready.qsize() <= 1

    def wait_for_end(self) -> None:
        """Wait until the source has ended; call it after the last batch was handed out."""
        self._thread.join()

    def close(self) -> None:
        """Stop the thread and drop the prepared batches; waits for a batch that is being made."""
        self._done = True
        if self._pid != os.getpid():
            return  # a forked child has no such thread, and its locks may be held forever
        self._shared.stopped = True
        self._shared.room.release()
        # the finalizer may run in the thread itself
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        with contextlib.suppress(queue.Empty):
            while True:  # a second thread may drain it too: `empty()` and `get()` could block
                self._shared.ready.get_nowait()
        unused, self._unused_stages = self._unused_stages, None
        if unused is not None and not self._thread.is_alive():
            unused.append(self.stage)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # bound as a default, because the names of this module are gone when the interpreter exits
        if not is_finalizing() and hasattr(self, "_thread"):
            self.close()


_alive: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


def _close_all() -> None:
    """Stop all threads before the interpreter exits; one inside torch could crash it."""
    for prefetcher in list(_alive):
        prefetcher.close()


atexit.register(_close_all)


class PrefetchLoader(DataLoader[Any]):
    """A DataLoader whose batches are prepared `ahead` of the loop by a thread.

    The thread makes the tensors of each batch and, with a `device`, sends them there through
    page-locked buffers. Lightning treats it as any DataLoader. Batches of stored columns need no
    worker processes: with `num_workers=0` the thread does everything, and starts the next epoch
    while the loop uses the last batch of this one, if the order of that epoch is known (in stored
    order, and with a `ResumableSampler`).

    With a transform use workers: in the thread it would draw its random numbers in between those of
    the loop, in an order that differs from run to run.
    """

    def __init__(
        self,
        dataset: Any,
        *args: Any,
        ahead: int = 2,
        device: torch.device | str | None = None,
        lists: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take the arguments of a DataLoader and these.

        Args:
            dataset: The data set.
            *args: Passed to DataLoader.
            ahead: How many batches to prepare.
            device: Where to send them.
            lists: Also prepare polygons, texts and names, for loops that use them in every batch;
                else they are made at first access.
            **kwargs: Passed to DataLoader.
        """
        super().__init__(dataset, *args, **kwargs)
        if ahead < 1:
            raise ValueError(f"ahead={ahead}: expected at least one batch")
        self.ahead = ahead
        self.device = device
        self.lists = lists
        self._waiting: Prefetcher | None = None
        self._active: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
        # a stage has a stream, device memory and page-locked buffers: passes use it in turn
        self._unused_stages: list[Stage] = []

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch's is a class of its own
        # nothing starts before the first batch: Lightning makes iterators that it does not use
        return _Pass(self)

    def begin(self) -> Prefetcher:
        """Start a pass, or continue the one that was started ahead; for the iterators."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            return waiting
        if self.persistent_workers:
            self._close_active()  # this pass needs their workers
        return self._start()

    def was_last(self, prefetcher: Prefetcher) -> bool:
        """Return whether a pass is known to have handed out its last batch; for the iterators."""
        return prefetcher.ended or (self._knows_next_epoch() and prefetcher.handed == len(self))

    def finish(self, prefetcher: Prefetcher) -> None:
        """Record that a pass has handed out its last batch; for the iterators."""
        prefetcher.wait_for_end()
        prefetcher.close()
        if self._waiting is None and self._knows_next_epoch():
            if isinstance(self.sampler, ResumableSampler):
                self.sampler.call_before_change(self._drop_waiting)
            self._waiting = self._start()

    def close(self) -> None:
        """Stop the threads, drop prepared batches, and free the buffers; can be used again."""
        self._drop_waiting()
        self._close_active()
        self._unused_stages.clear()

    def _close_active(self) -> None:
        for prefetcher in list(self._active):
            prefetcher.close()

    def _drop_waiting(self) -> None:
        """Drop the pass that was started ahead of its epoch."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.close()

    def _start(self) -> Prefetcher:
        prefetcher = Prefetcher(
            super().__iter__(),
            stage=self._unused_stages.pop() if self._unused_stages else self.make_stage(),
            ahead=self.ahead,
            unused_stages=self._unused_stages,
        )
        self._active.add(prefetcher)
        return prefetcher

    def make_stage(self) -> Stage:
        """Return what is done to each batch; override it to do something else."""
        return stage_for(self.device, lists=self.lists)

    def _knows_next_epoch(self) -> bool:
        # if all of an epoch were drawn ahead, the sampler's state would be one epoch too far
        return (
            self.num_workers == 0
            and isinstance(self.dataset, OCRStoreDataset)
            and self.dataset.transform is None
            and type(self.batch_sampler) is BatchSampler
            and isinstance(self.sampler, (ResumableSampler, SequentialSampler))
            and len(self) > self.ahead
        )


class _Pass(Iterator[Batch]):
    """One pass over a loader; starts at its first batch."""

    def __init__(self, loader: PrefetchLoader) -> None:
        self._loader = loader
        self._prefetcher: Prefetcher | None = None
        self._finished = False

    def __next__(self) -> Batch:
        if self._finished:
            raise StopIteration
        if self._prefetcher is None:
            self._prefetcher = self._loader.begin()
        try:
            batch: Batch = next(self._prefetcher)
        except StopIteration:
            self._finish()
            raise
        # not only at StopIteration: Lightning does not ask for more than the last batch
        if self._loader.was_last(self._prefetcher):
            self._finish()
        return batch

    def _finish(self) -> None:
        self._finished = True
        if self._prefetcher is not None:
            prefetcher, self._prefetcher = self._prefetcher, None
            self._loader.finish(prefetcher)

    def __len__(self) -> int:
        return len(self._loader)
