"""Owns the way of computed batches from a worker to its parent: slots of reused memory.

Torch makes fresh shared memory for every tensor a worker sends, and the kernel must clear and map
each page of it. Here each worker has one memory file with slots. It stacks a batch into a free
slot and sends the slot's number; when the last tensor that points into the slot is gone, the
parent marks it free. The file has no name, so it does not count against the size of /dev/shm, and
it is gone with its last user.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.torch.memory.row_layout import PAGE, round_up

AnyArray = np.typing.NDArray[Any]

supported = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether this system has nameless memory files; elsewhere torch's own sharing does the work."""

_NAME_NBYTES = 64
_MAX_SLOTS = PAGE - _NAME_NBYTES
_FREE, _BUSY = 0, 1


@dataclass(frozen=True, slots=True)
class SlotTicket:
    """What travels: whose file, which slot."""

    ring: str
    pid: int
    fd: int
    slot: int
    slot_nbytes: int


class SlotWriter:
    """A worker's memory file; its first page holds a name and a byte for each slot.

    Only the worker takes slots and only the parent frees them, one byte each, so no lock is shared.
    """

    _numbers = itertools.count()

    def __init__(self, slot_nbytes: int) -> None:
        self.slot_nbytes = round_up(slot_nbytes)
        self._fd = os.memfd_create("ocrstore-batches", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, PAGE)
        self._states = mmap.mmap(self._fd, PAGE)
        self._slots: list[mmap.mmap] = []
        self.pid = os.getpid()
        self._name = f"{self.pid}-{next(self._numbers)}-{os.urandom(8).hex()}"
        self._states[_MAX_SLOTS:] = self._name.encode().ljust(_NAME_NBYTES, b"\0")

    def take(self) -> tuple[SlotTicket, mmap.mmap]:
        """Return a slot that nobody uses and its memory; the file grows when all are busy."""
        slot = self._states.find(bytes([_FREE]), 0, len(self._slots))
        if slot < 0:
            slot = len(self._slots)
            if slot == _MAX_SLOTS:
                raise OSError(f"{slot} batches are in use")
            end = PAGE + (slot + 1) * self.slot_nbytes
            os.ftruncate(self._fd, end)
            self._slots.append(mmap.mmap(self._fd, self.slot_nbytes, offset=end - self.slot_nbytes))
        self._states[slot] = _BUSY
        ticket = SlotTicket(self._name, self.pid, self._fd, slot, self.slot_nbytes)
        return ticket, self._slots[slot]

    @property
    def idle(self) -> bool:
        """Return whether no slot is in use or on its way."""
        return self._states.find(bytes([_BUSY]), 0, len(self._slots)) < 0

    def __del__(self) -> None:
        # in a forked child the number may by now be another file's
        if getattr(self, "pid", None) == os.getpid():
            os.close(self._fd)


class _Ring:
    """The parent's side of one worker's memory file: slots stay mapped between batches."""

    def __init__(self, ticket: SlotTicket) -> None:
        path = f"/proc/{ticket.pid}/fd/{ticket.fd}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as exc:
            raise RuntimeError(
                f"the worker process {ticket.pid} is gone, and with it the batch that it announced;"
                " see its own error above, or start the loader again"
            ) from exc
        self.worker = ticket.pid
        self._fd = fd
        self._states = mmap.mmap(fd, PAGE)
        if not self._states[_MAX_SLOTS:].startswith(ticket.ring.encode() + b"\0"):
            raise RuntimeError(f"{path} is not the memory of the batch that was announced")
        self._slots: dict[int, mmap.mmap] = {}

    def slot(self, ticket: SlotTicket) -> mmap.mmap:
        if ticket.slot not in self._slots:
            offset = PAGE + ticket.slot * ticket.slot_nbytes
            self._slots[ticket.slot] = mmap.mmap(self._fd, ticket.slot_nbytes, offset=offset)
        return self._slots[ticket.slot]

    def free(self, slot: int) -> None:
        self._states[slot] = _FREE

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


class _SlotLease:
    """Keeps a slot busy for the arrays that point into it; dies with the last of them."""

    __slots__ = ("__array_interface__", "_memory", "_pid", "_ring", "_slot")

    def __init__(self, ring: _Ring, ticket: SlotTicket) -> None:
        self._ring = ring
        self._slot = ticket.slot
        self._pid = os.getpid()
        self._memory = ring.slot(ticket)
        address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": (ticket.slot_nbytes,),
        }

    def __del__(self) -> None:
        # a forked child holds a copy of this object, not of the right to free the slot
        if self._pid == os.getpid():
            self._ring.free(self._slot)
            if not sys.is_finalizing():
                _forget_dead_workers()


_rings: dict[str, _Ring] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _rings.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def receive(ticket: SlotTicket) -> AnyArray:
    """Return a slot's bytes; it is free again when the last array on it is gone."""
    with _lock:
        ring = _rings.get(ticket.ring)
        if ring is None:
            _prune()
            ring = _rings[ticket.ring] = _Ring(ticket)
        lease = _SlotLease(ring, ticket)
    return np.asarray(lease)


def _forget_dead_workers() -> None:
    """Let go of the memory of workers that have ended; what is still in use stays."""
    if not _lock.acquire(blocking=False):
        return  # called by a finalizer inside `receive`: the next one will do it
    try:
        _prune()
    finally:
        _lock.release()


def _prune() -> None:
    for name in [name for name, ring in _rings.items() if not _is_alive(ring.worker)]:
        del _rings[name]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


_writers: list[SlotWriter] = []


def take_slot(nbytes: int) -> tuple[SlotTicket, mmap.mmap] | None:
    """Return a free slot of this process for `nbytes`, or None where there is no such memory."""
    if not supported:
        return None
    pid = os.getpid()
    try:
        if not _writers or _writers[-1].pid != pid or _writers[-1].slot_nbytes < nbytes:
            # smaller ones stay until the parent has let go of their last slot
            _writers[:] = [w for w in _writers if w.pid == pid and not w.idle]
            _writers.append(SlotWriter(nbytes))
        return _writers[-1].take()
    except OSError:
        return None
