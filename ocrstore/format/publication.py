"""The hidden file beside a target, and the rename that makes it the store."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ocrstore.errors import StoreExistsError, WriteError
from ocrstore.format.environment import write_error
from ocrstore.format.locking import FileLock


def partial_path(target: Path) -> Path:
    """Return where a store is written until it is published."""
    return target.parent / f".{target.name}.partial"


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that exists, or a folder that does not."""
    if target.is_dir():
        raise StoreExistsError(f"{target}: is a directory; name a file, such as data.ocrs.")
    if target.exists() and not overwrite:
        raise StoreExistsError(
            f"{target}: exists. Pass overwrite=True (--overwrite) to replace it, or use append to "
            "add samples."
        )
    if not target.parent.is_dir():
        raise WriteError(f"{target}: the folder {target.parent} does not exist. Make it first.")


def publish(partial: Path, target: Path, *, locks: Iterable[FileLock]) -> None:
    """Make the hidden file, synced before, the store; readers of the old one keep it."""
    if sys.platform == "win32":  # an open file cannot be renamed there
        for lock in locks:
            lock.release()
    try:
        partial.replace(target)
    except OSError as exc:
        raise write_error(str(target), exc) from exc
    if sys.platform != "win32":  # a directory cannot be synced there
        _sync_directory(target)


def _sync_directory(target: Path) -> None:
    try:
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        # some file systems cannot sync a directory, or not for everyone; the rename has happened
        if exc.errno not in (errno.EIO, errno.ENOSPC):
            return
        raise WriteError(
            f"{target}: is published whole, but its folder could not be brought onto the disk: "
            f"{exc.strerror}. It may be missing after a power failure; check the disk."
        ) from exc
