"""Derive samples in worker processes, or in this one, and return them in order.

Results come in the order of the tasks, whichever worker is faster, so that any number of workers
builds the same store. Memory is bounded: each worker has a limited number of results that were not
fetched yet, and for them and its picture an equal part of the budget; a picture that does not fit
beside them waits until there is room, or until it is the one that the writer waits for.

This is not `concurrent.futures`: when a worker dies, ProcessPoolExecutor fails every task with
BrokenProcessPool, does not say which task killed the worker, and accepts no more. A build has to
name the picture, replace the worker and go on. Its workers also import the caller's `__main__`,
which a script without `if __name__ == "__main__"` does not survive.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from ocrstore.annotation import Problem
from ocrstore.building.derive import (
    Columns,
    Derived,
    Deriver,
    Job,
    SkippedPictureError,
    Task,
    views_nbytes,
)
from ocrstore.errors import OCRStoreError, WorkerDiedError
from ocrstore.format.columns import Encoded
from ocrstore.machine import memory_shortage, unfinished_nbytes
from ocrstore.shared_slots import (
    Placed,
    SlotReader,
    SlotWriter,
    Ticket,
    needed_nbytes,
    place,
    supported,
)

RESULTS_PER_WORKER = 4
"""Tasks of a worker that are given out, or done and not fetched yet."""
_OUTSTANDING = 2  # per worker: one at work, one waiting in its pipe
CRASHES = {
    -getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")
    if hasattr(signal, name)
}
_TRIES = 2
_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # else glibc returns a picture's memory after each sample and faults it in again: 5 ms each
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}

Outcome = tuple[Task, "Derived | Problem"]


class Inline:
    """Derives samples in this process: for few of them, and for debugging."""

    def __init__(self, job: Job) -> None:
        self._deriver = Deriver(job)

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def derive_all(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Derive each task's sample, in order; a Problem takes the place of a skipped picture."""
        for task in tasks:
            try:
                yield task, self._deriver.derive(task)
            except SkippedPictureError as exc:
                yield task, exc.problem


# --- messages: pickles over the worker's standard input and output. Both ends are this program,
# started by itself; no pickle comes from a file


@dataclass(frozen=True, slots=True)
class _Setup:
    """The first message to a worker."""

    job: Job
    allowance_nbytes: int
    """What a sample and the worker's unfetched results may take together without asking."""
    folder: Path | None
    """For the slots, where there is no anonymous memory."""


@dataclass(frozen=True, slots=True)
class _Order:
    number: int
    task: Task


@dataclass(frozen=True, slots=True)
class _Need:
    """Asks before decoding a picture beyond the allowance; the answer is True, in time."""

    number: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Done:
    number: int
    outcome: Derived | Problem | OCRStoreError | MemoryError | str
    """A sample without its columns; why it is skipped; an error to raise; any other's traceback."""
    ticket: Ticket | None = None
    placed: dict[str, Placed] = field(default_factory=dict)
    """The sample's columns in the slot."""
    encoded: dict[str, Encoded] = field(default_factory=dict)
    """Those that are encoded, without their bytes."""


def send(stream: IO[bytes], message: Any) -> None:
    """Write a message to a pipe."""
    pickle.dump(message, stream, protocol=5)
    stream.flush()


# --- the build's side


def launch(module: str, function: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start a worker process that runs a function; return it with the file of its stderr."""
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its worker
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import {function}; {function}()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **_WORKER_ENVIRONMENT},
    )
    return process, stderr


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    slots: SlotReader
    orders: deque[_Order] = field(default_factory=deque)
    unfetched: int = 0

    def send(self, message: Any) -> None:
        with suppress(OSError):  # the listener reports a worker that has ended
            send(self.stdin, message)

    def close_stdin(self) -> None:
        with suppress(OSError):  # it has ended already
            self.stdin.close()

    def last_output(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read().decode("utf-8", "replace")[-2000:].strip()


class Pool:
    """Worker processes; use in a `with` block, which ends them all."""

    def __init__(self, job: Job, *, workers: int, budget_nbytes: int | None = None) -> None:
        self._folder = None
        if not supported:
            self._folder = tempfile.TemporaryDirectory(
                prefix="ocrstore-slots-", ignore_cleanup_errors=True
            )
        folder = None if self._folder is None else Path(self._folder.name)
        self._budget = unfinished_nbytes(workers) if budget_nbytes is None else budget_nbytes
        self._setup = _Setup(job, self._budget // workers, folder)
        self._events: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._done: dict[int, tuple[_Worker, Task, Derived | Problem]] = {}
        self._again: deque[_Order] = deque()
        self._crashes: dict[int, int] = {}
        self._granted: dict[int, int] = {}  # order number -> bytes, of those that were asked for
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

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid for worker in self._workers]

    def derive_all(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Derive each task's sample, in order; a Problem takes the place of a skipped picture.

        A sample's arrays are in shared memory, which is used again when they are gone: drop them
        before asking for many more.
        """
        coming = enumerate(tasks, start=self._next)
        while True:
            more = self._feed(coming)
            if self._next in self._done:
                worker = self._done[self._next][0]
                yield self._done.pop(self._next)[1:]  # no name here keeps its slot busy
                worker.unfetched -= 1
                self._granted.pop(self._next, None)
                self._next += 1
                self._grant()
            elif more or any(worker.orders for worker in self._workers):
                self._handle(*self._wait())
            else:
                return

    def close(self) -> None:
        """End all workers; those that do not end by themselves are killed."""
        for worker in self._workers:
            worker.close_stdin()
        for worker in self._workers:
            try:
                worker.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                worker.process.kill()  # it holds nothing that could be lost
                worker.process.wait()
            worker.stderr.close()
            worker.slots.close()  # Windows removes no file that is mapped
        self._workers.clear()
        self._done.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def _start(self) -> _Worker:
        process, stderr = launch("ocrstore.building.workers", "serve")
        assert process.stdin is not None and process.stdout is not None
        slots = SlotReader(process.pid)
        worker = _Worker(process, process.stdin, process.stdout, stderr, slots)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        worker.send(self._setup)
        return worker

    def _listen(self, worker: _Worker) -> None:
        """Pass on a worker's messages, and None when there are no more; runs in a thread."""
        try:
            while True:
                self._events.put((worker, pickle.load(worker.stdout)))
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # ended within a message
            self._events.put((worker, None))
        finally:
            worker.stdout.close()

    def _wait(self) -> tuple[_Worker, Any]:
        while True:
            with suppress(queue.Empty):
                # Windows handles Ctrl-C only between calls, so none may take long
                return self._events.get(timeout=1)

    def _feed(self, coming: Iterator[tuple[int, Task]]) -> bool:
        """Give out tasks while there is room; False when there are no more."""
        while True:
            worker = min(self._workers, key=lambda w: (len(w.orders), w.unfetched))
            if len(worker.orders) >= _OUTSTANDING:
                return True
            if self._again:  # never held up by results: it may be the one that is waited for
                order = self._again.popleft()
            elif len(worker.orders) + worker.unfetched >= RESULTS_PER_WORKER:
                return True
            else:
                following = next(coming, None)
                if following is None:
                    return False
                order = _Order(*following)
            worker.orders.append(order)
            worker.send(order)

    def _handle(self, worker: _Worker, message: Any) -> None:
        if worker not in self._workers:
            return
        if message is None:
            self._replace(worker)
        elif isinstance(message, _Need):
            self._asking[message.number] = (worker, message.nbytes)
            self._grant()
        else:
            order = worker.orders.popleft()
            assert order.number == message.number
            self._take(worker, order, message)

    def _take(self, worker: _Worker, order: _Order, message: _Done) -> None:
        outcome = message.outcome
        if isinstance(outcome, OCRStoreError | MemoryError):
            raise outcome
        if isinstance(outcome, str):
            raise OCRStoreError(
                f"{order.task.sample.key}: a worker failed, which is a bug in ocrstore or in a "
                f"transform of the pipeline; finished row groups are kept:\n{outcome}"
            )
        if order.number in self._granted:  # its picture is gone, what was derived is left
            self._granted[order.number] = 0 if message.ticket is None else message.ticket.nbytes
            self._grant()
        if message.ticket is not None and isinstance(outcome, Derived):
            try:
                memory = worker.slots.receive(message.ticket)
            except RuntimeError:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(timeout=10)
                if worker.process.returncode is None:
                    raise
                self._again.append(order)  # it crashed on the next picture, and this one is lost
                return
            outcome = replace(outcome, columns=_columns(message, memory))
        self._done[order.number] = (worker, order.task, outcome)
        worker.unfetched += 1

    def _grant(self) -> None:
        """Let large pictures in while they fit, and always the one that is waited for."""
        for number in sorted(self._asking):
            worker, nbytes = self._asking[number]
            if number == self._next or sum(self._granted.values()) + nbytes <= self._budget:
                del self._asking[number]
                self._granted[number] = nbytes
                worker.send(True)

    def _replace(self, worker: _Worker) -> None:
        """Replace a worker that crashed; raise WorkerDiedError for one that was killed."""
        code = worker.process.wait()
        current = worker.orders[0] if worker.orders else None
        crashed = code in CRASHES or (sys.platform == "win32" and code not in (0, 1))
        if not crashed or current is None:
            where = f" while deriving {current.task.sample.key!r}" if current else ""
            raise killed(code, where, worker.last_output())
        worker.close_stdin()
        worker.stderr.close()
        self._asking.pop(current.number, None)
        self._crashes[current.number] = self._crashes.get(current.number, 0) + 1
        orders = list(worker.orders)
        if self._crashes[current.number] >= _TRIES:
            message = f"the decoder crashed {_TRIES} times ({_signal_name(code)})"
            problem = Problem("crashed", message, key=current.task.sample.key)
            self._done[current.number] = (worker, current.task, problem)
            orders.pop(0)
        self._again.extendleft(reversed(orders))
        self._workers[self._workers.index(worker)] = self._start()


def _columns(message: _Done, memory: Any) -> Columns:
    columns: Columns = {name: at.array(memory) for name, at in message.placed.items()}
    for name, row in message.encoded.items():
        columns[name] = row._replace(data=message.placed[name].array(memory).data)
    return columns


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def killed(code: int, where: str, last_output: str) -> WorkerDiedError:
    """Return the error for a worker process that somebody else ended."""
    advice = "Finished row groups are kept; build again to resume."
    if code == -getattr(signal, "SIGKILL", 9):
        advice += " If the system ran out of memory, use fewer --workers."
    tail = f"\nLast output on stderr:\n{last_output}" if last_output else ""
    return WorkerDiedError(
        f"a worker process was killed ({_signal_name(code)}){where}. {advice}{tail}"
    )


# --- the worker's side


@contextmanager
def message_pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Prepare a worker process; yield the pipes from and to the build, until one ends."""
    import cv2

    cv2.setNumThreads(1)  # the workers are the parallelism
    # Ctrl-C reaches the whole process group; the build decides, and closes the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # messages have the pipe to themselves; what libraries print to stdout goes to stderr
    outgoing = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        yield sys.stdin.buffer, outgoing
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        pass  # the build has ended, or was killed
    finally:
        with suppress(OSError):
            outgoing.close()


def serve() -> None:
    """Run a worker process until its standard input ends."""
    with message_pipe() as (incoming, outgoing):
        _serve(incoming, outgoing)


def _serve(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    setup: _Setup = pickle.load(incoming)
    slots = SlotWriter(
        folder=setup.folder, keep_nbytes=setup.allowance_nbytes // RESULTS_PER_WORKER
    )
    deriver = Deriver(setup.job)
    besides = views_nbytes(setup.job)
    waiting: deque[_Order] = deque()
    while True:
        order: _Order = waiting.popleft() if waiting else pickle.load(incoming)

        def reserve(nbytes: int, number: int = order.number) -> None:
            nbytes += besides
            if nbytes + slots.busy_nbytes > setup.allowance_nbytes:
                send(outgoing, _Need(number, nbytes))
                # the next order may be in the pipe already, before the answer
                while isinstance(message := pickle.load(incoming), _Order):
                    waiting.append(message)

        send(outgoing, _work(order, deriver, reserve, slots))


def _work(
    order: _Order, deriver: Deriver, reserve: Callable[[int], None], slots: SlotWriter
) -> _Done:
    try:
        derived = deriver.derive(order.task, reserve=reserve)
        return _fill_slot(order.number, derived, slots)
    except SkippedPictureError as exc:
        return _Done(order.number, exc.problem)
    except (EOFError, BrokenPipeError):
        raise
    except OCRStoreError as exc:
        return _Done(order.number, exc)
    except Exception as exc:  # whatever it is, the build reports it with the traceback
        said = memory_shortage(exc)
        if said is not None:
            return _Done(order.number, MemoryError(f"{order.task.sample.key}: {said}"))
        return _Done(order.number, traceback.format_exc())


def _fill_slot(number: int, derived: Derived, slots: SlotWriter) -> _Done:
    arrays: dict[str, Any] = dict(derived.columns)
    encoded = {}
    for name, value in derived.columns.items():
        if isinstance(value, Encoded):
            arrays[name] = np.frombuffer(value.data, np.uint8)
            encoded[name] = value._replace(data=b"")
    placed = place({name: (array.dtype, array.shape) for name, array in arrays.items()})
    ticket, memory = slots.take(needed_nbytes(placed.values()))
    for name, at in placed.items():
        np.copyto(at.array(memory), arrays[name])
    return _Done(number, derived.without_columns(), ticket, placed, encoded)
