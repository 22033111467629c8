"""Publish a generation: commit index and manifest, rename a new file over its target."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from ocrstore.errors import (
    SchemaError,
    StoreClosedError,
    StoreExistsError,
    WriteError,
    cannot_write,
)
from ocrstore.format.columns import Column
from ocrstore.format.fingerprint import fingerprint
from ocrstore.format.index import Index, serialize
from ocrstore.format.layout import (
    INDEX_MAGIC,
    INDEX_PREFIX,
    MANIFEST_MAGIC,
    MANIFEST_PREFIX,
    MAX_VALUE_NBYTES,
    encode_record,
    numbered_key,
)
from ocrstore.format.lock import FileLock
from ocrstore.format.manifest import (
    MAX_JSON_DEPTH,
    MAX_MANIFEST_NBYTES,
    Manifest,
    encode_json,
    json_depth_fits,
    needed_version,
)
from ocrstore.format.row_groups import Container
from ocrstore.version import __version__

_log = logging.getLogger(__name__)


class Publisher(ABC):
    """Publishes when its `with` block ends; if the block raises, nothing is published."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pid = os.getpid()
        self._open = True

    @abstractmethod
    def close(self) -> None:
        """Publish; calling it again does nothing."""

    @abstractmethod
    def abort(self) -> None:
        """Close without publishing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.abort()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosedError(
                f"{self.path}: this writer is closed (by close(), or after an error)."
            )
        if os.getpid() != self._pid:
            raise StoreClosedError(f"{self.path}: a writer cannot be used in a forked child.")


def history_entry(action: str, generation: int, **counts: int) -> dict[str, Any]:
    """Return an entry for the manifest's history.

    The time is all that differs between two equal builds; SOURCE_DATE_EPOCH sets it, as for other
    reproducible builds.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = (
        datetime.fromtimestamp(int(epoch), UTC)
        if re.fullmatch("[0-9]{1,11}", epoch)  # up to the year 5138
        else datetime.now(UTC)
    )
    return {
        "action": action,
        "generation": generation,
        "at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "by": f"ocrstore {__version__}",
        **counts,
    }


def publish_generation(
    container: Container,
    table: pa.Table,
    columns: Mapping[str, Column],
    *,
    generation: int,
    groups: int,
    history: Iterable[Mapping[str, Any]],
    metadata: Mapping[str, Any],
    deletes: Iterable[bytes] = (),
) -> Manifest:
    """Commit index and manifest in one step, which makes the generation visible to readers."""
    index = Index(table.combine_chunks(), columns)
    manifest = Manifest(
        generation=generation,
        samples=len(index),
        groups=groups,
        columns=columns,
        fingerprint=fingerprint(index),
        history=tuple(history),
        metadata=metadata,
        version=needed_version(columns),
    )
    described = manifest.to_json()
    if len(described) > MAX_MANIFEST_NBYTES:
        raise SchemaError(
            f"metadata: the manifest would have {len(described)} bytes; at most "
            f"{MAX_MANIFEST_NBYTES}. Put large things into attributes or columns."
        )
    payload = serialize(index.table)
    if len(payload) > MAX_VALUE_NBYTES - 2**20:
        raise SchemaError("The index is larger than 4 GiB; split the data set into several stores.")
    page_size = container.page_size
    container.commit(
        {
            numbered_key(INDEX_PREFIX, generation): encode_record(
                INDEX_MAGIC, generation, payload, page_size=page_size
            ),
            numbered_key(MANIFEST_PREFIX, generation): encode_record(
                MANIFEST_MAGIC, generation, described, page_size=page_size
            ),
        },
        deletes=deletes,
    )
    _log.info("published generation %d: %d samples", generation, manifest.samples)
    return manifest


def check_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `metadata`; SchemaError if it is not JSON."""
    try:
        encode_json(dict(metadata))
    except (TypeError, ValueError, RecursionError) as exc:
        raise SchemaError(f"metadata: must be JSON: {exc}.") from exc
    if not json_depth_fits({"metadata": metadata}):
        raise SchemaError(f"metadata: nested deeper than {MAX_JSON_DEPTH} levels.")
    return dict(metadata)


def partial_path(target: Path) -> Path:
    """Return the hidden file in which a store is written until it is published."""
    return target.parent / f".{target.name}.partial"


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise an error if the target exists and may not be overwritten, or its folder does not."""
    if target.is_dir():
        raise StoreExistsError(f"{target}: is a directory; name a file, such as data.ocrs.")
    if target.exists() and not overwrite:
        raise StoreExistsError(
            f"{target}: exists. Pass overwrite=True to replace it, or use "
            "ocrstore.edit to add samples."
        )
    if not target.parent.is_dir():
        raise WriteError(f"{target}: the folder {target.parent} does not exist. Make it first.")


def rename_into_place(partial: Path, target: Path, *, locks: Iterable[FileLock]) -> None:
    """Rename the hidden file, which is synced, over the target; open readers keep the old file.

    Windows neither renames an open file nor replaces one: locks are let go of, and a reader of the
    target is an error.
    """
    if sys.platform == "win32":
        for lock in locks:
            lock.release()
    try:
        partial.replace(target)
    except OSError as exc:
        if sys.platform == "win32" and isinstance(exc, PermissionError):
            raise WriteError(
                f"{target}: cannot be replaced, because a process has it open and Windows does not "
                "replace open files. Close the trainings, viewers and Store objects that read it, "
                "then do the same again; the old store is unchanged."
            ) from exc
        raise cannot_write(str(target), exc) from exc
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
        # some file systems or users cannot sync a directory; the rename itself has succeeded
        if exc.errno not in (errno.EIO, errno.ENOSPC):
            return
        raise WriteError(
            f"{target}: is published, but its folder could not be synced: "
            f"{exc.strerror}. It may be missing after a power failure; check the disk."
        ) from exc
