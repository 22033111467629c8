"""Worker processes that derive samples, and a stand-in that does it in this process.

Results come in the order of the tasks, whichever worker is faster, so that one worker and many
build the same store. Memory is bounded: a fixed number of slots, each with a share of the budget;
a larger picture waits until there is room, or until it is the one that the writer waits for.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import IO, Any

from ocrstore.annotation import Problem
from ocrstore.building.channel import Channel
from ocrstore.building.derive import Derived, Deriver, Job, Task
from ocrstore.building.files import SkippedPictureError
from ocrstore.building.slots import Slot
from ocrstore.building.worker import Done, Failed, Need, Order, Setup, Skipped
from ocrstore.errors import OCRStoreError, WorkerDiedError

BUDGET_NBYTES = 512_000_000
SLOTS_PER_WORKER = 8
_OUTSTANDING = 2  # per worker: one at work, one waiting in its pipe
_CRASHES = {
    -getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")
    if hasattr(signal, name)
}
_TRIES = 2
_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # glibc would hand a picture's memory back after each sample and fault it in again: 5 ms each
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}

Outcome = tuple[Task, "Derived | Problem"]


class Inline:
    """Derives samples in this process: for few of them, and for a debugger."""

    def __init__(self, job: Job) -> None:
        self._deriver = Deriver(job)

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def derive_all(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Derive each task's sample, in order; a problem stands for one that has to be skipped."""
        for task in tasks:
            try:
                yield task, self._deriver.derive(task)
            except SkippedPictureError as exc:
                yield task, exc.problem


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: Channel
    stderr: IO[bytes]
    orders: deque[Order] = field(default_factory=deque)

    def said(self) -> str:
        """Return the end of what it wrote on standard error."""
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")[-2000:].strip()


class Pool:
    """Worker processes; use in a `with` block, which ends them all."""

    def __init__(self, job: Job, *, workers: int, budget_nbytes: int = BUDGET_NBYTES) -> None:
        self._job = job
        self._slots = [Slot.create() for _ in range(workers * SLOTS_PER_WORKER)]
        self._budget = budget_nbytes
        self._share = budget_nbytes // len(self._slots)
        self._free = list(range(len(self._slots)))[::-1]
        self._events: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._done: dict[int, tuple[Order, Derived | Problem]] = {}
        self._again: deque[Order] = deque()
        self._crashes: dict[int, int] = {}
        self._granted: dict[int, int] = {}  # order number -> bytes, of those larger than a share
        self._asking: dict[int, tuple[_Worker, int]] = {}
        self._next = 0  # the order that the writer waits for
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(self._start())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid for worker in self._workers]

    def derive_all(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Derive each task's sample, in order; a problem stands for one that has to be skipped.

        The arrays of a sample are valid until the next one is asked for.
        """
        coming = enumerate(tasks, start=self._next)
        while True:
            more = self._feed(coming)
            if self._next in self._done:
                order, result = self._done.pop(self._next)
                yield order.task, result
                self._free.append(order.slot)
                self._granted.pop(order.number, None)
                self._next += 1
                self._grant()
            elif more or any(worker.orders for worker in self._workers):
                self._handle(*self._wait())
            else:
                return

    def close(self) -> None:
        """End all workers, kindly at first; slots go with them."""
        for worker in self._workers:
            worker.channel.close_outgoing()
        for worker in self._workers:
            try:
                worker.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                worker.process.kill()  # it holds nothing that could be lost
                worker.process.wait()
            worker.stderr.close()
        self._workers.clear()
        for slot in self._slots:
            slot.close()

    def _start(self) -> _Worker:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its worker
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from ocrstore.building.worker import main; main()"
        )
        inherited = [slot.name.descriptor for slot in self._slots]
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=[fd for fd in inherited if fd is not None],
            env={**os.environ, **_WORKER_ENVIRONMENT},
        )
        assert process.stdin is not None and process.stdout is not None
        worker = _Worker(process, Channel(process.stdout, process.stdin), stderr)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        with suppress(OSError):  # a worker that died already is found by its silence
            names = tuple(slot.name for slot in self._slots)
            worker.channel.send(Setup(self._job, names, self._share))
        return worker

    def _listen(self, worker: _Worker) -> None:
        try:
            while True:
                self._events.put((worker, worker.channel.receive()))
        except (EOFError, OSError, ValueError):
            self._events.put((worker, None))
        finally:
            assert worker.process.stdout is not None
            worker.process.stdout.close()

    def _wait(self) -> tuple[_Worker, Any]:
        while True:
            with suppress(queue.Empty):
                return self._events.get(timeout=1)  # so that Ctrl-C is heard on every system

    def _feed(self, coming: Iterator[tuple[int, Task]]) -> bool:
        """Give out work while there is room; False when there is no more to come."""
        while True:
            worker = min(self._workers, key=lambda w: len(w.orders))
            if len(worker.orders) >= _OUTSTANDING:
                return True
            if self._again:
                order = self._again.popleft()
            elif not self._free:
                return True
            else:
                following = next(coming, None)
                if following is None:
                    return False
                number, task = following
                order = Order(number, self._free.pop(), task)
            worker.orders.append(order)
            with suppress(OSError):  # the listener tells of a worker that is gone
                worker.channel.send(order)

    def _handle(self, worker: _Worker, message: Any) -> None:
        if worker not in self._workers:
            return
        if message is None:
            self._bury(worker)
        elif isinstance(message, Need):
            self._asking[message.number] = (worker, message.nbytes)
            self._grant()
        else:
            order = worker.orders.popleft()
            assert order.number == message.number
            if isinstance(message, Done):
                columns = self._slots[order.slot].get(message.placed)
                self._done[order.number] = (order, replace(message.derived, columns=columns))
            elif isinstance(message, Skipped):
                self._done[order.number] = (order, message.problem)
            elif isinstance(message, Failed):
                raise OCRStoreError(
                    f"{order.task.sample.key}: a worker failed, which is a mistake in ocrstore "
                    f"or in a pipeline's transform; what is done is kept:\n{message.message}"
                )

    def _grant(self) -> None:
        """Let large pictures in while they fit, and always the one that is waited for."""
        for number in sorted(self._asking):
            worker, nbytes = self._asking[number]
            if number == self._next or sum(self._granted.values()) + nbytes <= self._budget:
                del self._asking[number]
                self._granted[number] = nbytes
                with suppress(OSError):
                    worker.channel.send(True)

    def _bury(self, worker: _Worker) -> None:
        """Replace a worker that crashed on a picture; stop where one was killed."""
        code = worker.process.wait()
        current = worker.orders[0] if worker.orders else None
        where = f" at {current.task.sample.key!r}" if current else ""
        crashed = code in _CRASHES or (sys.platform == "win32" and code not in (0, 1))
        if not crashed or current is None:
            raise WorkerDiedError(_obituary(code, where, worker.said()))
        worker.channel.close_outgoing()
        worker.stderr.close()
        self._asking.pop(current.number, None)
        self._crashes[current.number] = self._crashes.get(current.number, 0) + 1
        orders = list(worker.orders)
        if self._crashes[current.number] >= _TRIES:
            message = f"a worker crashed on it, {_TRIES} times ({_signal_name(code)})"
            problem = Problem("crashed", message, key=current.task.sample.key)
            self._done[current.number] = (current, problem)
            orders.pop(0)
        self._again.extendleft(reversed(orders))
        self._workers[self._workers.index(worker)] = self._start()


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def _obituary(code: int, where: str, said: str) -> str:
    how = _signal_name(code) if code < 0 else f"exit code {code}"
    advice = "what is done is kept, build again to go on"
    if code == -getattr(signal, "SIGKILL", 9):
        advice += "; if the system ran out of memory, use fewer --workers"
    tail = f"\nIts last words:\n{said}" if said else ""
    return f"a worker process was ended from outside ({how}){where}; {advice}{tail}"
