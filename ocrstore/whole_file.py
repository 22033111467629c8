"""Write a file so that it appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ocrstore.errors import WriteError, cannot_write

_NAME_NBYTES = 255  # what file systems allow


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a hidden file beside `path`, which replaces it at the end.

    After an error nothing is left and an existing file stays as it was. The hidden name depends on
    the target only, so that the next run replaces what a killed one left. A link keeps pointing to
    its file; pipes and devices such as /dev/stdout are no files to replace and yielded themselves.
    Folders above it are made.

    Raises:
        WriteError: The file system refuses, inside of the `with` block, too.
    """
    target = Path(os.path.realpath(path))
    is_file = target.is_file() or not target.exists()
    name = f".{target.name}.partial"
    if len(os.fsencode(name)) > _NAME_NBYTES:
        name = f".{hashlib.sha256(os.fsencode(name)).hexdigest()}.partial"
    partial = target.with_name(name) if is_file else Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if is_file:
            partial.replace(target)
    except BaseException as exc:
        if is_file:
            with suppress(OSError):
                partial.unlink()
        if isinstance(exc, OSError):
            raise cannot_write(os.fspath(path), exc) from exc
        raise


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Write a file that appears whole or not at all, as `replaced` does."""
    with replaced(path) as partial:
        partial.write_bytes(data)


def require_writable(folder: Path) -> None:
    """Raise WriteError if no file can be written to a folder, or the folder not made.

    Nothing is created: work that is refused for its options leaves no empty folder.
    """
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as exc:
        raise WriteError(
            f"{folder}: cannot be written to: {exc.strerror or exc}. Choose another folder"
        ) from exc
