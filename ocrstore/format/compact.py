"""Compact a store: copy its newest generation into a new file without dead space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ocrstore.errors import (
    CorruptStoreError,
    OCRStoreError,
    cannot_write,
)
from ocrstore.format.index import Rows, build_table
from ocrstore.format.lmdb_writer import LmdbWriter
from ocrstore.format.lock import FileLock
from ocrstore.format.publish import (
    history_entry,
    partial_path,
    publish_generation,
    rename_into_place,
)
from ocrstore.format.row_groups import RowGroupWriter, StoredRow
from ocrstore.format.snapshot import Snapshot, take_snapshot

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""


def compact(path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Copy the newest generation into a new file without dead space, and rename it over the store.

    Older generations and unfinished work are dropped; the fingerprint stays. Processes that have
    the old file open keep it. Windows replaces no open file: close all readers first.

    Raises:
        WriteError: The new file cannot be written, or (Windows) the store is open somewhere.
    """
    target = Path(path).resolve()  # replace the file, not a symbolic link to it
    take_snapshot(target)
    partial = partial_path(target)
    locks = [FileLock(target, create=False, store=target)]
    try:
        locks.append(FileLock(partial, create=True, store=target))
        try:
            _copy_live(take_snapshot(target), partial, progress)
            shutil.copymode(target, partial)
            rename_into_place(partial, target, locks=locks)
        except BaseException as exc:
            locks[-1].remove_file()
            if isinstance(exc, OSError) and not isinstance(exc, OCRStoreError):
                raise cannot_write(str(partial), exc) from exc
            raise
    finally:
        for lock in locks:
            lock.release()


def _copy_live(base: Snapshot, partial: Path, progress: Progress | None) -> None:
    container = LmdbWriter(partial)
    try:
        columns = base.manifest.columns
        payload = RowGroupWriter(container, columns, first_group=0)
        for row in range(len(base.index)):
            payload.add({name: _stored_bytes(base, name, row) for name in columns})
            if progress is not None:
                progress(row + 1, len(base.index))
        payload.flush()
        index = base.index
        rows = payload.rows()
        _check_copied(base, rows)
        table = build_table(
            index.keys,
            columns,
            rows,
            index.table.select(index.attributes.names),
        )
        generation = base.newest + 1
        entry = history_entry("compact", generation, samples=len(index))
        publish_generation(
            container,
            table,
            columns,
            generation=generation,
            groups=payload.next_group,
            history=[*base.manifest.history, entry],
            metadata=base.manifest.metadata,
        )
        container.finish()
    finally:
        container.close()


def _check_copied(base: Snapshot, copied: Mapping[str, Rows]) -> None:
    """Raise CorruptStoreError for a damaged row: its copy would get a new, matching hash."""
    for name, rows in copied.items():
        damaged = np.flatnonzero(rows.hash != base.index.rows[name].hash)
        if len(damaged):
            key = base.index.key(int(damaged[0]))
            raise CorruptStoreError(
                f"{base.mapping.path}: sample {key!r}, column {name!r}: its bytes do not match "
                "their hash. Nothing was compacted; run `ocrstore verify`, then replace or delete "
                "the sample."
            )


def _stored_bytes(base: Snapshot, name: str, row: int) -> StoredRow:
    rows = base.index.rows[name]
    data = base.mapping.array(int(rows.offset[row]), np.dtype(np.uint8), (int(rows.nbytes[row]),))
    return data, tuple(rows.shape[row].tolist())
