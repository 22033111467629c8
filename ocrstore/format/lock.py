"""One writer at a time: an advisory lock on the file itself, gone with the process that held it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from weakref import WeakSet

from ocrstore.errors import StoreBusyError, WriteError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 2**43  # Windows locks are mandatory: lock a byte that no store ever has


class FileLock:
    """An exclusive lock on an open file; readers never take it."""

    def __init__(self, path: Path, *, create: bool, store: Path) -> None:
        self.path = path
        self._pid = os.getpid()
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        while True:
            try:
                self._descriptor = os.open(path, flags | (os.O_CREAT if create else 0), 0o644)
            except OSError as exc:
                raise WriteError(f"{store}: cannot be opened for writing: {exc.strerror}.") from exc
            try:
                _lock(self._descriptor)
            except OSError as exc:
                os.close(self._descriptor)
                if exc.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    raise StoreBusyError(
                        f"{store}: another process is writing to it. Wait until it has finished, "
                        "or stop it; nothing is lost by that."
                    ) from exc
                raise WriteError(f"{path}: cannot be locked: {exc.strerror}.") from exc
            if self._is_current():
                _held.add(self)
                return
            os.close(self._descriptor)  # replaced or removed since it was opened

    def _is_current(self) -> bool:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(self._descriptor)
        return (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)

    def release(self) -> None:
        """Give the lock back; calling it again, or in a forked child, does nothing."""
        if self._descriptor >= 0:
            if self._pid == os.getpid():
                # closing is not enough while a child that was just forked has it open, too
                _unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


_held: WeakSet[FileLock] = WeakSet()


def _let_go_in_child() -> None:
    """Close the inherited descriptors: else a lock would last as long as any forked child."""
    for lock in _held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(descriptor: int) -> None:
    if sys.platform != "win32":  # where descriptors are not inherited by a fork
        fcntl.flock(descriptor, fcntl.LOCK_UN)
