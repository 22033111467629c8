"""Changes to a whole store: a column more, or a file without dead space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.errors import CorruptStoreError, OCRStoreError, SchemaError, UnknownSampleError
from ocrstore.format.bulk import BulkFile
from ocrstore.format.column_writer import ColumnWriter
from ocrstore.format.columns import Column
from ocrstore.format.environment import write_error
from ocrstore.format.generations import history_entry, publish_generation
from ocrstore.format.index import Rows, build_table
from ocrstore.format.locking import FileLock
from ocrstore.format.payload import PayloadWriter, StoredRow
from ocrstore.format.publication import partial_path, publish
from ocrstore.format.snapshot import Snapshot, take_snapshot

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""


def add_column(
    path: str | os.PathLike[str],
    name: str,
    column: Column,
    arrays: Iterable[Any] | Mapping[str, Any],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Add a column to a store without rewriting any other.

    `arrays` has one array per sample: in row order, or by key. It may be a generator; only one
    row group is held in memory.
    """

    with ColumnWriter(path, {name: column}, metadata=metadata) as writer:
        for array in _in_order(path, name, arrays, writer.keys):
            writer.add({name: array})


def add_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, Column],
    rows: Iterable[Mapping[str, Any]],
    *,
    metadata: Mapping[str, Any] | None = None,
    action: str = "add_column",
) -> None:
    """Add several columns at once; `rows` has, per sample in row order, an array for each.

    `metadata` replaces the store's own where given.
    """
    with ColumnWriter(path, columns, metadata=metadata, action=action) as writer:
        for row in rows:
            writer.add(row)


def compact(path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Write the newest generation into a new file without dead space, and rename it over.

    Older generations are dropped; the fingerprint stays. Who has the old file open keeps it.
    """
    target = Path(path).resolve()  # a symbolic link goes on pointing to the store
    take_snapshot(target)
    partial = partial_path(target)
    locks = [FileLock(target, create=False, store=target)]
    try:
        locks.append(FileLock(partial, create=True, store=target))
        try:
            _copy_live(take_snapshot(target), partial, progress)
            shutil.copymode(target, partial)
            publish(partial, target, locks=locks)
        except BaseException as exc:
            partial.unlink(missing_ok=True)
            if isinstance(exc, OSError) and not isinstance(exc, OCRStoreError):
                raise write_error(str(partial), exc) from exc
            raise
    finally:
        for lock in locks:
            lock.release()


def _copy_live(base: Snapshot, partial: Path, progress: Progress | None) -> None:
    container = BulkFile(partial)
    try:
        columns = base.manifest.columns
        payload = PayloadWriter(container, columns, first_group=0)
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
    """Make sure that damage is not copied and given a new, matching hash."""
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


def _in_order(
    path: str | os.PathLike[str],
    name: str,
    arrays: Iterable[Any] | Mapping[str, Any],
    keys: Sequence[str],
) -> Iterator[Any]:
    if isinstance(arrays, Mapping):
        missing = [key for key in keys if key not in arrays]
        if missing:
            raise UnknownSampleError(
                f"{path}: column {name!r}: no array for sample {missing[0]!r}."
            )
        unknown = [key for key in arrays if key not in set(keys)]
        if unknown:
            raise UnknownSampleError(f"{path}: column {name!r}: no sample {unknown[0]!r}.")
        return (arrays[key] for key in keys)
    if isinstance(arrays, Sized) and len(arrays) != len(keys):
        raise SchemaError(
            f"{path}: {len(keys)} samples need an array each; {len(arrays)} were given."
        )
    return iter(arrays)
