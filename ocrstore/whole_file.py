"""Write a file so that it appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME_NBYTES = 255  # what file systems allow


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a hidden file beside `path`, which replaces it at the end.

    After an error nothing is left and an existing file stays as it was. The hidden name depends on
    the target only, so that the next run replaces what a killed one left. A link keeps pointing to
    its file; pipes and devices such as /dev/stdout are no files to replace and yielded themselves.

    Raises:
        OSError: What the file system says.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield Path(path)
        return
    name = f".{target.name}.partial"
    if len(os.fsencode(name)) > _NAME_NBYTES:
        name = f".{hashlib.sha256(os.fsencode(name)).hexdigest()}.partial"
    partial = target.with_name(name)
    try:
        yield partial
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Write a file that appears whole or not at all, and the folders above it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as partial:
        partial.write_bytes(data)
