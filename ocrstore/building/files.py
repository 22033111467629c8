"""Reading a picture's file as it is at one moment, with what tells later whether it changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ocrstore.annotation import Problem
from ocrstore.errors import SourceError

_TRIES = 3


class SkippedPictureError(SourceError):
    """A picture has to be left out; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem

    def __reduce__(self) -> tuple[type[SkippedPictureError], tuple[Problem]]:
        return SkippedPictureError, (self.problem,)


@dataclass(frozen=True, slots=True)
class FileState:
    """What identifies a state of a file."""

    nbytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture's bytes, all from one state of its file."""

    data: bytes
    state: FileState

    @property
    def hash(self) -> int:
        """xxh3_64 of the bytes, an unsigned number of 64 bits."""
        return xxhash.xxh3_64_intdigest(self.data)


def file_state(path: Path) -> FileState:
    """Look at a file without reading it; OSError where that is not possible."""
    found = path.stat()
    return FileState(found.st_size, found.st_mtime_ns)


def read_picture(path: Path, key: str) -> PictureFile:
    """Read a picture's file whole; again if it changed meanwhile, and give up on the third time."""
    try:
        for _ in range(_TRIES):
            with path.open("rb") as file:
                before = os.fstat(file.fileno())
                data = file.read()
                after = os.fstat(file.fileno())
            state = FileState(after.st_size, after.st_mtime_ns)
            if len(data) == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                return PictureFile(data, state)
    except FileNotFoundError as exc:
        message = "it was there when the build began and is gone"
        raise SkippedPictureError(Problem("vanished", message, key=key)) from exc
    except OSError as exc:
        message = f"its file cannot be read: {exc.strerror or exc}"
        raise SkippedPictureError(Problem("unreadable", message, key=key)) from exc
    message = f"its file changed each of the {_TRIES} times it was read; build again when it rests"
    raise SkippedPictureError(Problem("changing", message, key=key))
