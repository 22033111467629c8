"""Make shards on this machine: one after the other, or in worker processes, a whole shard in each.

A process that makes a whole shard passes no pixels on, so that this scales with the cores; the
workers of a single store (`workers.py`) pass every sample on to the one process that writes.
"""

from __future__ import annotations

import pickle
import queue
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from subprocess import TimeoutExpired
from typing import Any

from ocrstore.building.run import FEW, BuildProgress, Options
from ocrstore.building.shard import Made, ShardJob, build_shard
from ocrstore.building.workers import CRASHES, killed, launch, message_pipe, send
from ocrstore.errors import OCRStoreError
from ocrstore.machine import usable_cpus

_SECONDS = 0.2
"""A worker tells its progress so often."""


def run_here(jobs: Sequence[ShardJob], options: Options) -> Iterator[Made]:
    """Make shards on this machine; yield them as they are finished.

    Raises:
        WorkerDiedError: A worker process was killed. Finished shards are kept.
    """
    wanted = usable_cpus() if options.workers is None else options.workers
    code = {name.partition(":")[0] for job in jobs for name in (*job.modules, *job.targets)}
    pictures = sum(len(job.source) for job in jobs)
    if wanted < 2 or len(jobs) < 2 or pictures <= FEW or "__main__" in code:
        yield from _one_by_one(jobs, options)
    else:
        yield from _side_by_side(jobs, options, wanted)


def _one_by_one(jobs: Sequence[ShardJob], options: Options) -> Iterator[Made]:
    overall = _Overall(jobs, options)
    for job in jobs:

        def tell(now: BuildProgress, bucket: str = job.bucket) -> None:
            overall.tell(bucket, now)

        yield build_shard(replace(job, options=replace(options, progress=tell)))


def _side_by_side(jobs: Sequence[ShardJob], options: Options, wanted: int) -> Iterator[Made]:
    overall = _Overall(jobs, options)
    events: queue.Queue[tuple[_Child, Any]] = queue.Queue()
    # the largest first: at the end no core waits long for the others
    waiting = deque(sorted(jobs, key=lambda job: -len(job.source)))
    each = wanted // len(jobs)
    alone = replace(options, workers=each if each > 1 else 0, progress=None, measuring=None)
    crashed: list[ShardJob] = []
    children: list[_Child] = []

    def start() -> None:
        children.append(_Child(events))
        children[-1].give(waiting.popleft(), alone)

    try:
        while waiting and len(children) < wanted:
            start()
        while children:
            try:
                # Windows handles Ctrl-C only between calls, so none may take long
                child, message = events.get(timeout=1)
            except queue.Empty:
                continue
            if child not in children:
                continue  # it was told to end, and has
            if isinstance(message, BuildProgress):
                overall.tell(child.job.bucket, message)
            elif isinstance(message, Made):
                yield message
                if waiting:
                    child.give(waiting.popleft(), alone)
                else:
                    children.remove(child)
                    child.end()
            elif isinstance(message, Exception):
                raise message
            else:
                children.remove(child)
                code, said = child.end()
                if code not in CRASHES:
                    raise killed(code, f" while making shard {child.job.bucket or 'all'}", said)
                crashed.append(child.job)
                if waiting:
                    start()
    finally:
        for child in children:
            child.process.terminate()
        for child in children:
            child.end()
    # probably a picture that crashes its decoder: workers of a single store name it and go on
    yield from _one_by_one(crashed, replace(options, workers=1))


class _Overall:
    """Adds up the progress of shards."""

    def __init__(self, jobs: Sequence[ShardJob], options: Options) -> None:
        self._total = sum(len(job.source) for job in jobs)
        self._progress = options.progress
        self._told: dict[str, BuildProgress] = {}

    def tell(self, bucket: str, now: BuildProgress) -> None:
        self._told[bucket] = now
        if self._progress is not None:
            told = self._told.values()
            done, lost, notes = (
                sum(getattr(one, name) for one in told) for name in ("done", "lost", "notes")
            )
            self._progress(BuildProgress(done, self._total, lost, notes))


class _Child:
    """A worker process, and the thread that passes on its messages; None when it has ended."""

    job: ShardJob

    def __init__(self, events: queue.Queue[tuple[_Child, Any]]) -> None:
        self.process, self._stderr = launch("ocrstore.building.shard_workers", "serve")
        self._events = events
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with suppress(EOFError, OSError, ValueError, pickle.UnpicklingError), self.process.stdout:
            while True:
                self._events.put((self, pickle.load(self.process.stdout)))
        self._events.put((self, None))

    def give(self, job: ShardJob, options: Options) -> None:
        """Send a job; the listener reports a worker that has ended."""
        self.job = job
        assert self.process.stdin is not None
        with suppress(OSError):
            send(self.process.stdin, replace(job, options=options))

    def end(self) -> tuple[int, str]:
        """End the process; return its exit code and its last output on stderr."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            code = self.process.wait(timeout=5)
        except TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        with self._stderr as file:
            file.seek(0)
            return code, file.read().decode("utf-8", "replace")[-2000:].strip()


def serve() -> None:
    """Run a worker process until its standard input ends."""
    # an attempt that is ended from outside removes its own unfinished file
    signal.signal(signal.SIGTERM, _unwind)
    with message_pipe() as (incoming, outgoing):
        told = 0.0

        def tell(now: BuildProgress) -> None:
            nonlocal told
            if now.done == now.total or time.monotonic() - told > _SECONDS:
                told = time.monotonic()
                send(outgoing, now)

        while True:
            job: ShardJob = pickle.load(incoming)
            try:
                outcome: Any = build_shard(
                    replace(job, options=replace(job.options, progress=tell))
                )
            except (OCRStoreError, MemoryError) as exc:
                outcome = exc
            except Exception:  # whatever it is, the build reports it with the traceback
                outcome = RuntimeError(f"a worker process failed:\n{traceback.format_exc()}")
            send(outgoing, outcome)


def _unwind(*_: object) -> None:
    raise SystemExit(143)
