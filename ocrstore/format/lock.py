"""An advisory lock on the file itself, for one writer at a time; it ends with its process."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from ocrstore.errors import StoreBusyError, WriteError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 2**43  # Windows locks are mandatory: lock a byte far behind the end of any store


class FileLock:
    """An exclusive `flock` (Windows: a locked byte) on an open file; readers never take it.

    With `shared` several may hold it at once, and exclude who wants it for himself (on Windows,
    which has no such lock for Python, it is exclusive).
    """

    def __init__(self, path: Path, *, create: bool, store: Path, shared: bool = False) -> None:
        self.path = path
        self._pid = os.getpid()
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        while True:
            try:
                self._descriptor = os.open(path, flags | (os.O_CREAT if create else 0), 0o644)
            except OSError as exc:
                raise WriteError(f"{store}: cannot be opened for writing: {exc.strerror}.") from exc
            try:
                _lock(self._descriptor, shared=shared)
            except OSError as exc:
                os.close(self._descriptor)
                if exc.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    raise StoreBusyError(
                        f"{store}: another process is writing to it. Wait until it has finished, "
                        "or stop it: nothing that was published is lost."
                    ) from exc
                raise WriteError(f"{path}: cannot be locked: {exc.strerror}.") from exc
            if self._is_current():
                _held.add(self)
                return
            os.close(self._descriptor)  # the path was renamed over or removed since: try again

    def _is_current(self) -> bool:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(self._descriptor)
        return (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)

    def release(self) -> None:
        """Release the lock; calling it again, or in a forked child, does nothing."""
        if self._descriptor >= 0:
            if self._pid == os.getpid():
                # closing is not enough: a child that was just forked has the same open file
                _unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def remove_file(self) -> None:
        """Remove the locked file; a FileLock that waits for it notices that it is gone."""
        if sys.platform == "win32":  # an open file cannot be removed there
            self.release()
        with suppress(OSError):  # if it stays, the next writer truncates it
            self.path.unlink(missing_ok=True)


_held: WeakSet[FileLock] = WeakSet()


def _release_in_child() -> None:
    """Close the inherited descriptors: a flock lasts until the last copy of it is closed."""
    for lock in _held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def _lock(descriptor: int, *, shared: bool) -> None:
    if sys.platform == "win32":
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)


def _unlock(descriptor: int) -> None:
    if sys.platform != "win32":  # where descriptors are not inherited by a fork
        fcntl.flock(descriptor, fcntl.LOCK_UN)
