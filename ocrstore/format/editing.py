"""Changes to a whole store: a column more, or a file without dead space."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np

from ocrstore.errors import SchemaError, UnknownSampleError
from ocrstore.format.codecs import encode_row
from ocrstore.format.columns import Column
from ocrstore.format.environment import Environment
from ocrstore.format.generations import check_metadata, history_entry, publish_generation
from ocrstore.format.index import Rows, build_table
from ocrstore.format.layout import is_valid_name
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
    add_columns(path, {name: column}, ({name: a} for a in _in_order(path, name, arrays)),
                metadata=metadata)  # fmt: skip


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
    target = Path(path)
    environment, lock, base = open_for_change(target)
    payload = PayloadWriter(environment, columns, first_group=base.manifest.groups)
    try:
        known = {"key", *base.manifest.columns, *base.index.attributes.names}
        for name in columns:
            if not is_valid_name(name) or name in known:
                raise SchemaError(f"{target}: cannot add a column {name!r}: not a name, or taken.")
        keys = base.index.table["key"].to_pylist()
        count = 0
        for count, row in enumerate(rows, 1):
            if count > len(keys):
                raise SchemaError(f"{target}: more arrays than its {len(keys)} samples.")
            payload.add(_stored(columns, row, keys[count - 1]))
        if count != len(keys):
            raise SchemaError(f"{target}: {len(keys)} samples need an array; {count} were given.")
        payload.flush()
        _publish_columns(environment, base, columns, payload, metadata, action)
    except BaseException:
        if payload.written:
            environment.commit({}, deletes=payload.written)
        raise
    finally:
        environment.close()
        lock.release()


def compact(path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Write the newest generation into a new file without dead space, and rename it over.

    Older generations are dropped; the fingerprint stays. Who has the old file open keeps it.
    """
    target = Path(path)
    take_snapshot(target)
    lock = FileLock(target, create=False, store=target)
    partial = partial_path(target)
    try:
        partial_lock = FileLock(partial, create=True, store=target)
        try:
            os.truncate(partial, 0)
            _copy_live(take_snapshot(target), partial, progress)
            publish(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        finally:
            partial_lock.release()
    finally:
        lock.release()


def _copy_live(base: Snapshot, partial: Path, progress: Progress | None) -> None:
    environment = Environment(str(partial), durable=False)
    try:
        columns = base.manifest.columns
        payload = PayloadWriter(environment, columns, first_group=0)
        for row in range(len(base.index)):
            payload.add({name: _stored_bytes(base, name, row) for name in columns})
            if progress is not None:
                progress(row + 1, len(base.index))
        payload.flush()
        index = base.index
        table = build_table(
            index.table["key"].to_pylist(),
            columns,
            payload.rows(),
            index.table.select(index.attributes.names),
        )
        generation = base.newest + 1
        entry = history_entry("compact", generation, samples=len(index))
        publish_generation(
            environment,
            table,
            columns,
            generation=generation,
            groups=payload.next_group,
            history=[*base.manifest.history, entry],
            metadata=base.manifest.metadata,
        )
    finally:
        environment.close()


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
            index.table["key"].to_pylist(),
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


def _stored(
    columns: Mapping[str, Column], row: Mapping[str, Any], key: str
) -> dict[str, StoredRow]:
    stored: dict[str, StoredRow] = {}
    for name, column in columns.items():
        array = column.conform(row[name], where=f"sample {key!r}, column {name!r}")
        stored[name] = (encode_row(column, array), array.shape)
    return stored


def _in_order(
    path: str | os.PathLike[str], name: str, arrays: Iterable[Any] | Mapping[str, Any]
) -> Iterator[Any]:
    keys = take_snapshot(path).index.table["key"].to_pylist()
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
