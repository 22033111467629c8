"""The hidden file beside a target, and the rename that makes it the store."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from ocrstore.errors import StoreExistsError, WriteError
from ocrstore.format.environment import write_error


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


def sync_file(path: Path) -> None:
    """Bring a file's bytes onto the disk."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise write_error(str(path), exc) from exc


def publish(partial: Path, target: Path) -> None:
    """Make the hidden file the store, atomically; readers of the old one keep it."""
    sync_file(partial)
    try:
        partial.replace(target)
    except OSError as exc:
        raise write_error(str(target), exc) from exc
    if sys.platform != "win32":  # a directory cannot be synced there
        # the rename has happened: a file system that cannot sync a directory does not undo it
        with suppress(OSError):
            descriptor = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
