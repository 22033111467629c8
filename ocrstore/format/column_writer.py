"""Add columns to a published store: one array per sample, published as a new generation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import pyarrow as pa

from ocrstore.errors import CorruptStoreError, SchemaError, UnknownSampleError
from ocrstore.format import resume as resuming
from ocrstore.format.attributes import to_table
from ocrstore.format.columns import Column
from ocrstore.format.index import Rows, build_table
from ocrstore.format.lmdb_update import open_for_change
from ocrstore.format.publish import Publisher, check_metadata, history_entry, publish_generation
from ocrstore.format.row_groups import RowGroupWriter, check_columns, stored_rows


class ColumnWriter(Publisher):
    """Writes new columns, sample by sample in row order, and publishes them together.

    It holds the store's lock, so samples and their order cannot change meanwhile. `resume` names
    the work: the next run with the same name and columns continues an interrupted one, unless
    another generation was published since; the first `resumed` samples are then written already.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Mapping[str, Column],
        *,
        metadata: Mapping[str, Any] | None = None,
        resume: str | None = None,
        action: str = "add_column",
        group_rows: int | None = None,
    ) -> None:
        self.columns = check_columns(columns)
        self._metadata = metadata
        self._action = action
        self._remarks: list[Sequence[str]] = []  # of the group being filled
        self._remarks_name = "remarks"
        while self._remarks_name in self.columns:
            self._remarks_name += "_"
        self._change = open_for_change(Path(path), resume=resume, columns=self.columns)
        super().__init__(Path(path))
        try:
            base = self._change.base
            known = {*base.manifest.columns, *base.index.attributes.names}
            for name in columns:
                if name in known:
                    raise SchemaError(
                        f"{self.path}: cannot add a column {name!r}: the name is already used."
                    )
            self.keys: tuple[str, ...] = tuple(base.index.keys)
            """The keys of all samples, in row order."""
            self.generation = base.newest
            """The generation that gets the columns."""
            self._payload = RowGroupWriter(
                self._change.container,
                self.columns,
                first_group=base.manifest.groups,
                record=self._group_record if self._change.is_journaled else None,
                **({} if group_rows is None else {"group_rows": group_rows}),
            )
            self.resumed = 0
            """How many samples, from the first on, an interrupted run had already written."""
            self.resumed_remarks: dict[str, list[str]] = {}
            """The remarks on them, by key."""
            for group in self._change.groups:
                self._adopt(group)
        except BaseException:
            self.abort()
            raise
        self._count = self.resumed

    def add(self, arrays: Mapping[str, Any], *, remarks: Sequence[str] = ()) -> None:
        """Write the next sample's arrays; a resumed run gets the `remarks` back."""
        self._check_open()
        if self._count == len(self.keys):
            raise SchemaError(f"{self.path}: more arrays than its {len(self.keys)} samples.")
        rows = stored_rows(self.columns, self.keys[self._count], arrays)
        self._remarks.append(remarks)
        self._count += 1
        try:
            if self._payload.add(rows):
                self._remarks.clear()
        except BaseException:
            self.abort()  # memory and file may disagree now
            raise

    def close(self) -> None:
        """Publish the columns; calling it again does nothing."""
        if not self._open:
            return
        self._check_open()
        try:
            if self._count != len(self.keys):
                raise SchemaError(
                    f"{self.path}: {len(self.keys)} samples need an array; {self._count} were "
                    "given."
                )
            self._payload.flush()
            self._publish()
        finally:
            self.abort()

    def abort(self) -> None:
        """Close without publishing; resumable work keeps what it has committed."""
        if self._open and os.getpid() == self._pid:
            self._change.close()
        self._open = False

    def _group_record(self, group: int, rows: Mapping[str, Rows]) -> dict[bytes, Any]:
        keys = self.keys[self._count - len(self._remarks) : self._count]
        schema = pa.schema([(self._remarks_name, pa.list_(pa.string()))])
        remarks = [{self._remarks_name: list(lines)} for lines in self._remarks]
        table = build_table(keys, self.columns, rows, to_table(keys, remarks, schema))
        return resuming.encode_group(group, table)

    def _adopt(self, group: resuming.ResumedGroup) -> None:
        end = self.resumed + len(group.keys)
        if tuple(group.keys) != self.keys[self.resumed : end]:
            raise CorruptStoreError(
                f"{self.path}: the unfinished work beside it has samples in another order. Run "
                "`ocrstore compact`, which drops it."
            )
        self._payload.adopt(group.number, group.rows)
        self.resumed = end
        if self._remarks_name in group.attributes.column_names:
            lines = group.attributes[self._remarks_name].to_pylist()
            self.resumed_remarks.update(zip(group.keys, lines))

    def _publish(self) -> None:
        base = self._change.base
        index, manifest = base.index, base.manifest
        merged = {**manifest.columns, **self.columns}
        rows: dict[str, Rows] = {**index.rows, **self._payload.rows()}
        generation = base.newest + 1
        counts = {"samples": len(index), "columns": len(self.columns)}
        metadata = manifest.metadata if self._metadata is None else self._metadata
        publish_generation(
            self._change.container,
            build_table(self.keys, merged, rows, index.table.select(index.attributes.names)),
            merged,
            generation=generation,
            groups=self._payload.next_group,
            history=[*manifest.history, history_entry(self._action, generation, **counts)],
            metadata=check_metadata(metadata),
        )


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
    """Add several columns at once; `rows` yields, in row order, one array for each of them.

    `metadata`, if given, replaces the store's.
    """
    with ColumnWriter(path, columns, metadata=metadata, action=action) as writer:
        for row in rows:
            writer.add(row)


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
