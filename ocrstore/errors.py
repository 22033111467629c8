"""The exceptions of ocrstore.

::

    OCRStoreError
    ├── NotAStoreError            the file is something else, or nothing
    ├── UnsupportedFormatError    a store, but of a format this version does not read
    ├── CorruptStoreError         damaged: hashes or records do not match
    ├── UnknownSampleError        no such key                  (also a KeyError)
    ├── UnknownRowError           no such row                  (also an IndexError)
    ├── UnknownColumnError        no such column               (also a KeyError)
    ├── UnknownGenerationError    no such generation           (also a KeyError)
    ├── SchemaError               data that does not fit       (also a ValueError)
    │   └── CheckpointError       a checkpoint that cannot be used
    ├── RecipeMismatchError       a view made by another recipe
    ├── SourceError               pictures or annotations that cannot be used
    ├── DecodeError               a picture that cannot be decoded
    ├── WorkerDiedError           a worker process of a build was killed
    ├── FilterError               a condition on samples that cannot be run
    ├── MissingPackageError       an extra is not installed    (also a ModuleNotFoundError)
    ├── StoreExistsError          refusing to overwrite        (also a FileExistsError)
    ├── StoreBusyError            another process is writing
    ├── StoreChangedError         the file was replaced or truncated while in use
    ├── StoreClosedError          the handle was closed
    ├── RemoteError               the object store cannot be reached, or refuses (also an OSError)
    └── WriteError                the file system failed       (also an OSError)

A message says what is wrong, where (file, sample, column), what was expected and what was found,
and what to do about it. Errors of lmdb, Arrow and the decoders are translated where they enter.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class OCRStoreError(Exception):
    """Base of every error raised by ocrstore."""


class NotAStoreError(OCRStoreError):
    """The file is not an ocrstore file."""


class UnsupportedFormatError(OCRStoreError):
    """The file needs a newer ocrstore, or a feature this one does not have."""


class CorruptStoreError(OCRStoreError):
    """The file is damaged: its bytes do not match its own hashes and records."""


class _LookupError(OCRStoreError, KeyError):
    def __str__(self) -> str:
        # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class UnknownSampleError(_LookupError):
    """The store has no such sample."""


class UnknownRowError(OCRStoreError, IndexError):
    """The store has no such row."""


class UnknownColumnError(_LookupError):
    """The store has no such column."""


class UnknownGenerationError(_LookupError):
    """The store has no such generation."""


class SchemaError(OCRStoreError, ValueError):
    """Data does not fit the columns or attributes of the store."""


class CheckpointError(SchemaError):
    """A checkpoint is missing, damaged, or not one of `ocrstore train`."""


class RecipeMismatchError(OCRStoreError):
    """A view was made by another recipe than the given one."""


class SourceError(OCRStoreError):
    """Pictures or annotations cannot be used."""


class DecodeError(OCRStoreError):
    """A picture cannot be decoded."""


class WorkerDiedError(OCRStoreError):
    """A worker process of a build was killed or crashed."""


class MissingPackageError(OCRStoreError, ModuleNotFoundError):
    """A package of an extra is not installed."""


class StoreExistsError(OCRStoreError, FileExistsError):
    """The target exists and may not be overwritten."""


class StoreBusyError(OCRStoreError):
    """Another process is writing to this store."""


class FilterError(OCRStoreError):
    """A filter that cannot be run; `position` is the character where the trouble is, if known."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class StoreChangedError(OCRStoreError):
    """The file was replaced or truncated while it was in use."""


class StoreClosedError(OCRStoreError):
    """The store or writer has been closed."""


class WriteError(OCRStoreError, OSError):
    """Writing failed; nothing that was published is lost."""


class RemoteError(OCRStoreError, OSError):
    """An object store cannot be reached, refuses, or answers wrongly."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a package that is not installed into MissingPackageError; wrap only imports in it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        name = (exc.name or "").partition(".")[0]
        if isinstance(exc, MissingPackageError) or name == "ocrstore":
            raise
        raise MissingPackageError(
            f'{name} is not installed: pip install "ocrstore[{extra}]"', name=name
        ) from exc


def corrupt(where: str, why: str) -> CorruptStoreError:
    """Return the error for damage: `where` names file and part, `why` says what is wrong."""
    return CorruptStoreError(
        f"{where}: {why.rstrip('.')}. The file is damaged or truncated: restore it from a copy, "
        "or delete it and build it again."
    )


def cannot_write(path: str, exc: Exception) -> WriteError:
    """Return the error for a failed write, by LMDB or the system, with what to do about it."""
    text = str(exc)
    remedy = "Nothing that was published is lost."
    if "No space left" in text or "File too large" in text or "quota" in text.lower():
        remedy = "Free some space and run it again. " + remedy
    elif "Input/output error" in text:  # also what LMDB reports for a short write to a full disk
        remedy = "The disk is full or fails: free some space or replace it, run it again. " + remedy
    return WriteError(f"{path}: cannot be written: {text}. {remedy}")
