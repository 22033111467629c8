"""Write samples: create a store, or add, replace and delete samples of one (FORMAT.md 9)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ocrstore.errors import SchemaError, UnknownSampleError
from ocrstore.format import resume as resuming
from ocrstore.format.attributes import check_schema, to_schema, to_table, unify
from ocrstore.format.columns import Column
from ocrstore.format.index import Rows, build_table
from ocrstore.format.lmdb_update import Environment, Journaled, open_for_change
from ocrstore.format.lmdb_writer import LmdbWriter
from ocrstore.format.lock import FileLock
from ocrstore.format.publish import (
    Publisher,
    check_metadata,
    check_target,
    history_entry,
    partial_path,
    publish_generation,
    rename_into_place,
)
from ocrstore.format.row_groups import Arrays, RowGroupWriter, check_columns, check_key, stored_rows
from ocrstore.format.snapshot import Snapshot


class Writer(Publisher):
    """Collects samples and publishes them together when its `with` block ends.

    Made by `ocrstore.create` and `ocrstore.edit`. Arrays are copied, so the caller may
    reuse them. If the block raises, nothing is published. Not thread-safe; not usable in a forked
    child.
    """

    def __init__(
        self,
        target: Path,
        container: LmdbWriter | Environment | Journaled,
        locks: Sequence[FileLock],
        columns: Mapping[str, Column],
        *,
        base: Snapshot | None,
        partial: Path | None,
        schema: pa.Schema | None,
        metadata: Mapping[str, Any],
        token: str | None = None,
        overwrite: bool = True,
        action: str = "append",
        group_options: Mapping[str, int] | None = None,
    ) -> None:
        self.columns = dict(columns)
        self.metadata: dict[str, Any] = dict(metadata)
        """JSON for the manifest; may be changed until the writer closes."""
        self._container = container
        self._locks = list(locks)
        self._base = base
        self._partial = partial
        self._schema = schema
        self._token = token
        self._overwrite = overwrite
        self._action = action
        super().__init__(target)
        self._keys: list[str] = []  # of the group being filled
        self._records: list[Mapping[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._taken = len(base.index) if base else 0
        keys = base.index.keys if base else []
        self._order: dict[str, int] = {key: row for row, key in enumerate(keys)}
        self._counts = {"appended": 0, "replaced": 0, "deleted": 0}
        self._payload = RowGroupWriter(
            container,
            columns,
            first_group=base.manifest.groups if base else 0,
            record=self._group_record if token is not None else None,
            **(group_options or {}),
        )
        self._resumed_keys: list[str] = []
        self._resumed_tables: list[pa.Table] = []
        self.resumed = 0
        """Samples that an interrupted run had already written."""

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._order

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all samples that will be published, in order."""
        return tuple(self._order)

    def append(
        self, key: str, arrays: Arrays, *, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Add a sample: one array for every column, and its attributes."""
        self._check_open()
        check_key(key)
        if key in self._order:
            raise SchemaError(f"sample {key!r} exists already; use replace() to change it.")
        self._take(key, arrays, attributes)
        self._counts["appended"] += 1

    def replace(
        self, key: str, arrays: Arrays, *, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Replace arrays and attributes of a sample; it keeps its row."""
        self._check_known(key)
        self._take(key, arrays, attributes)
        self._counts["replaced"] += 1

    def delete(self, key: str) -> None:
        """Delete a sample; the row numbers of those after it go down by one."""
        self._check_known(key)
        del self._order[key]
        self._counts["deleted"] += 1

    def reorder(self, keys: Iterable[str]) -> None:
        """Reorder the samples; `keys` has every key once.

        Nothing is moved in the file: until `compact`, slices over rows that are no longer
        contiguous are copies.
        """
        self._check_open()
        order = {key: self._order[key] for key in keys if key in self._order}
        if len(order) != len(self._order):
            missing = next(key for key in self._order if key not in order)
            raise UnknownSampleError(f"{self.path}: the new order lacks sample {missing!r}.")
        self._order = order

    def resumed_attributes(self) -> pa.Table:
        """Return keys and attributes an interrupted run wrote; of equal keys the last counts."""
        keys = pa.array(self._resumed_keys, pa.string())
        if not self._resumed_keys:
            return pa.table({"key": keys})
        return unify(self._resumed_tables, self._schema).add_column(0, "key", keys)

    def close(self) -> None:
        """Publish what was written; calling it again does nothing."""
        if not self._open:
            return
        self._check_open()
        try:
            self._publish()
        except BaseException:
            self.abort()
            raise
        self._release()

    def abort(self) -> None:
        """Close without publishing; resumable work keeps what it has committed."""
        if not self._open:
            return
        if os.getpid() != self._pid:
            self._open = False
            return
        # Do not free the extents that were committed to a published file: an interrupt may arrive
        # right after the commit that published them. The next writer frees what is orphaned.
        try:
            self._container.close()
            if self._partial is not None and self._token is None:
                self._locks[0].remove_file()  # `create` locks the hidden file first
        finally:
            self._release()

    def _take(self, key: str, arrays: Arrays, attributes: Mapping[str, Any] | None) -> None:
        rows = stored_rows(self.columns, key, arrays)
        self._keys.append(key)
        self._records.append(dict(attributes or {}))
        self._order[key] = self._taken
        self._taken += 1
        try:
            if self._payload.add(rows):
                self._finish_group()
        except BaseException:
            self.abort()  # memory and file may disagree now
            raise

    def _finish_group(self) -> None:
        """Keep the attributes of a committed group as an Arrow table: smaller than dicts."""
        if self._token is None:
            self._tables.append(to_table(self._keys, self._records, self._schema))
        self._keys.clear()
        self._records.clear()

    def _group_record(self, group: int, rows: Mapping[str, Rows]) -> dict[bytes, Any]:
        table = to_table(self._keys, self._records, self._schema)
        self._tables.append(table)
        record = build_table(self._keys, self.columns, rows, table)
        return resuming.encode_group(group, record)

    def _adopt(self, groups: Sequence[resuming.ResumedGroup]) -> None:
        for group in groups:
            self._payload.adopt(group.number, group.rows)
            self._tables.append(group.attributes)
            for key in group.keys:
                self._counts["replaced" if key in self._order else "appended"] += 1
                self._order[key] = self._taken
                self._taken += 1
            self._resumed_keys += group.keys
        self._resumed_tables = list(self._tables)
        self.resumed = len(set(self._resumed_keys))

    def _publish(self) -> None:
        base = self._base
        metadata = check_metadata(self.metadata)
        if base and not any(self._counts.values()) and metadata == dict(base.manifest.metadata):
            self._container.close()
            return
        if self._payload.pending:
            self._payload.flush()
            self._finish_group()
        generation = base.newest + 1 if base else 1
        entry = history_entry(self._action, generation, samples=len(self._order), **self._counts)
        publish_generation(
            self._container,
            self._index_table(),
            self.columns,
            generation=generation,
            groups=self._payload.next_group,
            history=[*(base.manifest.history if base else ()), entry],
            metadata=metadata,
            deletes=resuming.leftovers(self._payload.next_group) if self._partial else (),
        )
        if isinstance(self._container, LmdbWriter):
            self._container.finish()
        self._container.close()
        if self._partial is not None:
            check_target(self.path, overwrite=self._overwrite)  # it may have appeared meanwhile
            rename_into_place(self._partial, self.path, locks=self._locks)

    def _index_table(self) -> pa.Table:
        rows = self._payload.rows()
        tables = list(self._tables)
        schema = self._schema
        if self._base:
            index = self._base.index
            rows = {
                name: Rows.concatenate([index.rows[name], rows[name]], len(column.shape))
                for name, column in self.columns.items()
            }
            tables.insert(0, index.table.select(index.attributes.names))
        attributes = unify(tables, schema)
        check_schema(attributes.schema, self.columns)
        order = np.fromiter(self._order.values(), np.int64, len(self._order))
        if not np.array_equal(order, np.arange(self._taken)):
            rows = {
                name: Rows(r.offset[order], r.nbytes[order], r.shape[order], r.hash[order])
                for name, r in rows.items()
            }
            attributes = attributes.take(order) if attributes.num_columns else attributes
        return build_table(list(self._order), self.columns, rows, attributes)

    def _check_known(self, key: str) -> None:
        self._check_open()
        if key not in self._order:
            raise UnknownSampleError(f"{self.path}: no sample {key!r}; use append() to add it.")

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._base = None  # Windows does not replace a file while it is mapped
        self._open = False


def create(
    path: str | os.PathLike[str],
    columns: Mapping[str, Column],
    *,
    attributes: Mapping[str, Any] | pa.Schema | None = None,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    resume: str | None = None,
    start_over: bool = False,
    action: str = "create",
    group_rows: int | None = None,
    group_nbytes: int | None = None,
) -> Writer:
    """Create a store; it appears at `path`, complete, when the writer closes.

    Until then everything is in a hidden file beside the target.

    Args:
        path: The file to make.
        columns: The arrays that every sample has, by name.
        attributes: An Arrow schema, or names with Arrow types; inferred if not given.
        metadata: JSON for the manifest.
        overwrite: Replace a store that exists; on Windows nobody may have it open.
        resume: A name for the work, any str that changes when the work does. An interrupted run is
            continued by the next one with the same name, columns and path; `writer.keys` lists
            what is already written.
        start_over: Do not continue an interrupted run.
        action: What the history calls this.
        group_rows: Samples of a row group at most.
        group_nbytes: Bytes of a row group, about.

    Raises:
        SchemaError: Columns, attributes or metadata cannot be stored.
        StoreExistsError: The target exists.
        StoreBusyError: Another process is writing it.
    """
    target = Path(path)
    columns = check_columns(columns)
    schema = to_schema(attributes)
    if schema is not None:
        schema = check_schema(schema, columns)
    metadata = check_metadata(metadata or {})
    check_target(target, overwrite=overwrite)
    options = {"group_rows": group_rows, "group_nbytes": group_nbytes}
    partial = partial_path(target)
    locks = [FileLock(partial, create=True, store=target)]
    container: LmdbWriter | None = None
    try:
        check_target(target, overwrite=overwrite)  # again: now under the lock
        if target.exists():  # a writer at work on the old store would lose its changes
            locks.append(FileLock(target, create=False, store=target))
        resumed = None
        if resume is not None and not start_over:
            resumed = resuming.load(partial, columns, resume)
        # truncated only under its lock: no other writer can be at work in it
        container = LmdbWriter(partial, resume=resumed.values if resumed else None)
        if resume is not None and resumed is None:
            container.commit(resuming.encode_pending(columns, resume))
    except BaseException:
        if container is not None:
            container.close()
        with suppress(OSError):
            # keep the unfinished work of others, unless it is truncated already
            if (resume is None and container is not None) or partial.stat().st_size == 0:
                locks[0].remove_file()
        for lock in locks:
            lock.release()
        raise
    writer = Writer(
        target,
        container,
        locks,
        columns,
        base=None,
        partial=partial,
        schema=schema,
        metadata=metadata,
        token=resume,
        overwrite=overwrite,
        action=action,
        group_options={name: value for name, value in options.items() if value is not None},
    )
    if resumed:
        writer._adopt(resumed.groups)
    return writer


def edit(
    path: str | os.PathLike[str],
    *,
    resume: str | None = None,
    action: str = "edit",
    group_rows: int | None = None,
    group_nbytes: int | None = None,
) -> Writer:
    """Open a store to add, replace, delete and reorder samples.

    All changes are published together, as a new generation, when the writer closes. Readers that
    have the store open keep seeing the generation they opened.

    Args:
        path: The store.
        resume: A name for the work, as in `create`. An interrupted run is continued by the next
            one with the same name, unless another generation was published since;
            `writer.resumed_attributes()` returns what is already written.
        action: What the history calls this.
        group_rows: Samples of a row group at most.
        group_nbytes: Bytes of a row group, about.

    Raises:
        StoreBusyError: Another process is writing it.
    """
    target = Path(path)
    options = {"group_rows": group_rows, "group_nbytes": group_nbytes}
    change = open_for_change(target, resume=resume)
    base = change.base
    writer = Writer(
        target,
        change.container,
        change.locks,
        base.manifest.columns,
        base=base,
        partial=None,
        schema=base.index.attributes,
        metadata=base.manifest.metadata,
        token=resume if change.is_journaled else None,
        action=action,
        group_options={name: value for name, value in options.items() if value is not None},
    )
    writer._adopt(change.groups)
    return writer
