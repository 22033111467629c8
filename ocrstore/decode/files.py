"""From a path to a picture's bytes: what cannot be read is a DecodeError too."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePath

from ocrstore.errors import DecodeError

SUFFIXES = {
    ".bmp": "bmp",
    ".dib": "bmp",
    ".gif": "gif",
    ".jpe": "jpeg",
    ".jpeg": "jpeg",
    ".jfif": "jpeg",
    ".jpg": "jpeg",
    ".png": "png",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".webp": "webp",
}
"""What a picture's name promises; `Decoded.format` says what it is."""


def format_by_name(path: str | PurePath) -> str | None:
    """Return the format that a file's suffix promises, or None for another kind of file."""
    return SUFFIXES.get(PurePath(path).suffix.lower())


def read_picture(path: Path) -> bytes:
    """Read a whole file; missing, forbidden and special files raise DecodeError."""
    try:
        # not blocking: opening a pipe that nobody writes to would wait for ever
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DecodeError(f"{path}: not a regular file; point to a picture")
            return file.read()
    except FileNotFoundError as exc:
        raise DecodeError(f"{path}: there is no such file; it vanished or was never there") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise DecodeError(f"{path}: cannot be read: {reason}; check its permissions") from exc
