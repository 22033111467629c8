"""Memory in which a worker process leaves arrays for its parent, used again and again.

Fresh shared memory is expensive: the kernel clears and maps each page of it. So a worker keeps its
slots. It writes into a free one and sends a `Ticket`; the parent maps the slot once and keeps it
mapped; when the last array that points into a slot is gone, the parent marks it free. Only the
worker takes slots and only the parent frees them, one byte each, so no lock is shared. A worker's
`notes` are the way back: bytes that its parent may set at any time.

A slot is an anonymous memory file where Linux makes one. Such a file has no name, does not count
against the size of /dev/shm, and ends with its last user. Elsewhere it is a file in a folder that
both sides know. The first page of a slot has its state and its name, the arrays follow.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ocrstore.errors import WriteError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
NOTES_NBYTES = 64
_ALIGNMENT = 64
_FREE, _BUSY = 0, 1

supported = sys.platform == "linux" and Path("/proc/self/fd").exists()
"""Whether a parent can open the anonymous memory files of its workers."""


class Placed(NamedTuple):
    """Where an array lies in a slot."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    def array(self, memory: Any) -> NDArray[Any]:
        """Return the array in a slot's memory, without copying."""
        return np.ndarray(self.shape, self.dtype, memory, self.offset)


def place(arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> dict[str, Placed]:
    """Lay out arrays of these dtypes and shapes one behind the other, aligned."""
    placed: dict[str, Placed] = {}
    end = 0
    for name, (dtype, shape) in arrays.items():
        placed[name] = Placed(end, dtype.str, shape)
        end += _round_up(_nbytes(placed[name]), _ALIGNMENT)
    return placed


def needed_nbytes(placed: Iterable[Placed]) -> int:
    """Return the size of a slot that holds these arrays."""
    return max((at.offset + _nbytes(at) for at in placed), default=0)


def _nbytes(placed: Placed) -> int:
    return math.prod(placed.shape) * np.dtype(placed.dtype).itemsize


def _round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


@dataclass(frozen=True, slots=True)
class Ticket:
    """The message that a slot was filled: the slot of which process, and how to open it."""

    writer: str
    """The name of the `SlotWriter`, unlike that of any other."""
    pid: int
    slot: int
    file: int | str
    """A file descriptor of the worker, or a path."""
    nbytes: int


class SlotWriter:
    """The slots of a worker; their number and sizes grow by need.

    Args:
        folder: Where to put the files; None for anonymous memory, which needs `supported`.
        keep_nbytes: Anonymous memory that grew larger than this shrinks when it is used for less.
    """

    def __init__(self, *, folder: Path | None = None, keep_nbytes: int | None = None) -> None:
        self.pid = os.getpid()
        self.name = f"{self.pid}-{os.urandom(8).hex()}"
        self._folder = folder
        self._keep_nbytes = keep_nbytes
        self._slots: list[_OwnSlot] = []
        self.notes: tuple[Ticket, memoryview] | None = None

    @property
    def busy_nbytes(self) -> int:
        """The size of all slots that the parent has not freed yet."""
        return sum(len(slot.memory) for slot in self._slots if not slot.is_free)

    def has_room(self, nbytes: int, limit: int) -> bool:
        """Return whether all slots stay within `limit` if `take` gets one of `nbytes`."""
        used = next((len(slot.memory) for slot in self._slots if slot.is_free), 0)
        grown = max(used, PAGE + _round_up(nbytes, PAGE))
        return sum(len(slot.memory) for slot in self._slots) - used + grown <= limit

    def take(self, nbytes: int) -> tuple[Ticket, memoryview]:
        """Return a free slot of at least `nbytes` and its memory; a new one if all are in use."""
        free = [slot for slot in self._slots if slot.is_free]
        try:
            if not free:
                free.append(_OwnSlot(self.name, len(self._slots), self._folder))
                self._slots += free
            slot, *unused = free
            slot.resize(nbytes, self._keep_nbytes)
            for other in unused:  # large ones give their memory back
                other.resize(0, self._keep_nbytes)
        except OSError as exc:
            # a limit on file sizes holds for memory without a file, too
            raise WriteError(
                f"{self._folder or 'shared memory'}: no room for {nbytes} bytes from a worker: "
                f"{exc.strerror}. Free some space, raise the limit (`ulimit -f`), or use no workers"
            ) from exc
        slot.memory[0] = _BUSY
        ticket = Ticket(self.name, self.pid, slot.number, slot.file, nbytes)
        return ticket, memoryview(slot.memory)[PAGE:]


class _OwnSlot:
    """A slot in the process that made it."""

    def __init__(self, writer: str, number: int, folder: Path | None) -> None:
        self.number = number
        self.file: int | str
        if folder is None:
            self._fd = self.file = os.memfd_create("ocrstore-slot", os.MFD_CLOEXEC)
        else:
            self.file = str(folder / f"{writer}-{number}")
            self._fd = os.open(self.file, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, _close, self._fd, os.getpid()).atexit = False
        os.ftruncate(self._fd, PAGE)
        self.memory = mmap.mmap(self._fd, PAGE)
        name = _slot_name(writer, number)
        self.memory[1 : 1 + len(name)] = name

    @property
    def is_free(self) -> bool:
        return self.memory[0] == _FREE

    def resize(self, nbytes: int, keep_nbytes: int | None) -> None:
        wanted = PAGE + _round_up(nbytes, PAGE)
        size = len(self.memory)
        # files are not shrunk: Windows refuses that while the parent has them mapped
        keeps = size if keep_nbytes is None or isinstance(self.file, str) else keep_nbytes
        too_large = nbytes <= keeps < size - PAGE
        if wanted <= size and not too_large:
            return
        os.ftruncate(self._fd, wanted)
        if isinstance(self.file, str) and hasattr(os, "posix_fallocate"):
            # a full disk is an error here; writing to a hole would kill the process later
            os.posix_fallocate(self._fd, 0, wanted)
        self.memory = mmap.mmap(self._fd, wanted)


def _close(fd: int, pid: int) -> None:
    if os.getpid() == pid:  # in a forked child the number may by now be another file's
        os.close(fd)


def _slot_name(writer: str, number: int) -> bytes:
    return f"{writer} {number}\n".encode()


class SlotReader:
    """The parent's side of one worker's slots, which stay mapped as long as this object lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._mapped: dict[int, mmap.mmap] = {}

    def receive(self, ticket: Ticket) -> NDArray[np.uint8]:
        """Return the bytes of a slot; it is free again when the last array on it is gone.

        Raises:
            RuntimeError: The worker ended before its slot was opened.
        """
        memory = self._memory(ticket)
        received = np.frombuffer(memory, np.uint8, ticket.nbytes, PAGE)
        # every view of it, and every tensor, has this very array as its base
        weakref.finalize(received, _free, memory, os.getpid()).atexit = False
        return received

    def notes(self, ticket: Ticket) -> memoryview:
        """Return the worker's notes; they are never free. Raises what `receive` does."""
        return memoryview(self._memory(ticket))[PAGE : PAGE + ticket.nbytes]

    def _memory(self, ticket: Ticket) -> mmap.mmap:
        memory = self._mapped.get(ticket.slot)
        if memory is None or len(memory) < PAGE + ticket.nbytes:
            memory = self._mapped[ticket.slot] = _open(ticket)
        return memory

    def close(self) -> None:
        """Unmap all slots but those that arrays still point into; these follow their arrays."""
        self._mapped.clear()


def _open(ticket: Ticket) -> mmap.mmap:
    path = ticket.file if isinstance(ticket.file, str) else f"/proc/{ticket.pid}/fd/{ticket.file}"
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError as exc:
        raise RuntimeError(
            f"worker process {ticket.pid} has ended before its result could be read ({exc});"
            " see its own error above"
        ) from exc
    try:
        memory = mmap.mmap(fd, 0)
    finally:
        os.close(fd)
    name = _slot_name(ticket.writer, ticket.slot)
    if len(memory) < PAGE + ticket.nbytes or memory[1 : 1 + len(name)] != name:
        # the process id, or the descriptor, was reused meanwhile
        raise RuntimeError(f"{path} is not the slot that worker process {ticket.pid} announced")
    return memory


def _free(memory: mmap.mmap, pid: int) -> None:
    # a forked child has a copy of the array, not the right to free the slot
    if os.getpid() == pid:
        memory[0] = _FREE
        _forget_ended_workers()


# For processes that do not start their workers themselves, as with a torch DataLoader: one writer
# in each worker, and in the parent one reader for each worker that sent something.
_writer: SlotWriter | None = None
_readers: dict[str, SlotReader] = {}
_lock = threading.Lock()


def _own_writer() -> SlotWriter:
    global _writer
    if _writer is None or _writer.pid != os.getpid():
        _writer = SlotWriter()
    return _writer


def take_slot(nbytes: int, *, limit: int | None = None) -> tuple[Ticket, memoryview] | None:
    """Return a free slot of this process; None where there are no memory files.

    Args:
        nbytes: What the slot must hold.
        limit: Return None, too, if all slots of this process would have more bytes than this.
    """
    if not supported or (limit is not None and not _own_writer().has_room(nbytes, limit)):
        return None
    try:
        return _own_writer().take(nbytes)
    except OSError:
        return None


def own_notes() -> tuple[Ticket, memoryview] | None:
    """Return the notes of this process, zeros at first; None where there are no memory files."""
    if not supported:
        return None
    writer = _own_writer()
    if writer.notes is None:
        writer.notes = take_slot(NOTES_NBYTES)
    return writer.notes


def receive(ticket: Ticket) -> NDArray[np.uint8]:
    """Return the bytes of a worker's slot; see `SlotReader.receive`."""
    with _lock:
        return _reader(ticket).receive(ticket)


def notes_of(ticket: Ticket) -> memoryview:
    """Return the notes of a worker; see `SlotReader.notes`."""
    with _lock:
        return _reader(ticket).notes(ticket)


def _reader(ticket: Ticket) -> SlotReader:
    reader = _readers.get(ticket.writer)
    if reader is None:
        _prune()
        reader = _readers[ticket.writer] = SlotReader(ticket.pid)
    return reader


def _forget_ended_workers() -> None:
    """Unmap the slots of workers that have ended, except those that arrays still point into."""
    if not _readers or not _lock.acquire(blocking=False):
        return  # called by a finalizer inside `receive`: the next one will do it
    try:
        _prune()
    finally:
        _lock.release()


def _prune() -> None:
    for name in [name for name, reader in _readers.items() if not _is_alive(reader.pid)]:
        del _readers[name]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _readers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
