"""Changes to a whole store: a column more, or a file without dead space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.errors import CorruptStoreError, OCRStoreError, SchemaError, UnknownSampleError
from ocrstore.format.acceptance import check_columns, stored_rows
from ocrstore.format.bulk import BulkFile
from ocrstore.format.columns import Column
from ocrstore.format.environment import Environment, write_error
from ocrstore.format.generations import check_metadata, history_entry, publish_generation
from ocrstore.format.index import Rows
from ocrstore.format.indextable import build_table
from ocrstore.format.locking import FileLock
from ocrstore.format.payload import PayloadWriter, StoredRow
from ocrstore.format.publication import partial_path, publish
from ocrstore.format.snapshot import Snapshot, take_snapshot
from ocrstore.format.writer import open_for_change

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

    def rows(keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        return ({name: array} for array in _in_order(path, name, arrays, keys))

    _add(Path(path), {name: column}, rows, metadata, "add_column")


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
    _add(Path(path), columns, lambda _keys: rows, metadata, action)


def _add(
    target: Path,
    columns: Mapping[str, Column],
    rows_of: Callable[[Sequence[str]], Iterable[Mapping[str, Any]]],
    metadata: Mapping[str, Any] | None,
    action: str,
) -> None:
    """Add columns; `rows_of` is told the keys in row order, which the lock keeps as they are."""
    columns = check_columns(columns)
    environment, lock, base = open_for_change(target)
    try:
        known = {*base.manifest.columns, *base.index.attributes.names}
        for name in columns:
            if name in known:
                raise SchemaError(f"{target}: cannot add a column {name!r}: the name is taken.")
        payload = PayloadWriter(environment, columns, first_group=base.manifest.groups)
        keys = list(base.index.keys)
        count = 0
        for count, row in enumerate(rows_of(keys), 1):
            if count > len(keys):
                raise SchemaError(f"{target}: more arrays than its {len(keys)} samples.")
            payload.add(stored_rows(columns, keys[count - 1], row))
        if count != len(keys):
            raise SchemaError(f"{target}: {len(keys)} samples need an array; {count} were given.")
        payload.flush()
        _publish_columns(environment, base, columns, payload, metadata, action)
    finally:
        # what was committed but not published is freed by the next writer
        environment.close()
        lock.release()


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
            list(index.keys),
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
            key = base.index.keys[int(damaged[0])]
            raise CorruptStoreError(
                f"{base.mapping.path}: sample {key!r}, column {name!r}: its bytes do not match "
                "their hash. Nothing was compacted; run `ocrstore verify`, then replace or delete "
                "the sample."
            )


def _stored_bytes(base: Snapshot, name: str, row: int) -> StoredRow:
    rows = base.index.rows[name]
    data = base.mapping.array(int(rows.offset[row]), np.dtype(np.uint8), (int(rows.nbytes[row]),))
    return data, tuple(rows.shape[row].tolist())


def _publish_columns(
    environment: Environment,
    base: Snapshot,
    columns: Mapping[str, Column],
    payload: PayloadWriter,
    metadata: Mapping[str, Any] | None,
    action: str,
) -> None:
    index, manifest = base.index, base.manifest
    merged = {**manifest.columns, **columns}
    rows: dict[str, Rows] = {**index.rows, **payload.rows()}
    generation = base.newest + 1
    entry = history_entry(action, generation, samples=len(index), columns=len(columns))
    publish_generation(
        environment,
        build_table(
            list(index.keys),
            merged,
            rows,
            index.table.select(index.attributes.names),
        ),
        merged,
        generation=generation,
        groups=payload.next_group,
        history=[*manifest.history, entry],
        metadata=check_metadata(manifest.metadata if metadata is None else metadata),
    )


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
