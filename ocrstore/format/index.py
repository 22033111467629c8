"""The index: an Arrow table, one row per sample, that says where every row of every column lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ocrstore.errors import SchemaError
from ocrstore.format.arrowfile import check_arrow_file
from ocrstore.format.attributes import check_schema
from ocrstore.format.columns import Column
from ocrstore.format.damage import corrupt
from ocrstore.format.layout import (
    MAX_KEY_NBYTES,
    MAX_ROW_NBYTES,
    PAGE_ALIGNMENT,
    ROW_ALIGNMENT,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of one column lie; all arrays have one entry (or one line) per sample."""

    offset: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int32]
    hash: npt.NDArray[np.uint64]

    @classmethod
    def concatenate(cls, parts: Sequence[Rows], ndim: int) -> Rows:
        """Join the rows of several groups."""
        if not parts:
            return cls(
                np.empty(0, np.int64),
                np.empty(0, np.int64),
                np.empty((0, ndim), np.int32),
                np.empty(0, np.uint64),
            )
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in cls.__slots__))


def column_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column's place in the index (FORMAT.md 6.2)."""
    fields = [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
    ]
    if column.shape:
        item = pa.field("item", pa.int32(), nullable=False)
        fields.append(pa.field("shape", pa.list_(item, len(column.shape)), nullable=False))
    fields.append(pa.field("hash", pa.uint64(), nullable=False))
    return pa.struct(fields)


def rows_array(column: Column, rows: Rows) -> pa.StructArray:
    """Make the Arrow array of a column's place in the index."""
    kind = column_type(column)
    children = [pa.array(rows.offset), pa.array(rows.nbytes)]
    if column.shape:
        values = pa.array(np.ascontiguousarray(rows.shape).reshape(-1))
        children.append(pa.FixedSizeListArray.from_arrays(values, type=kind.field("shape").type))
    children.append(pa.array(rows.hash))
    return pa.StructArray.from_arrays(children, fields=list(kind))


def build_table(
    keys: Sequence[str],
    columns: Mapping[str, Column],
    rows: Mapping[str, Rows],
    attributes: pa.Table,
) -> pa.Table:
    """Make an index table: key, then the columns, then the attributes."""
    fields = [pa.field("key", pa.string(), nullable=False)]
    arrays: list[Any] = [pa.array(keys, pa.string())]
    for name, column in columns.items():
        fields.append(pa.field(name, column_type(column), nullable=False))
        arrays.append(rows_array(column, rows[name]))
    for field in attributes.schema:
        fields.append(field)
        arrays.append(attributes[field.name])
    return pa.table(arrays, schema=pa.schema(fields))


def serialize(table: pa.Table) -> bytes:
    """Encode a table as one Arrow IPC file with at most one record batch."""
    sink = pa.BufferOutputStream()
    table = table.combine_chunks()
    if any(column.num_chunks > 1 for column in table.columns):
        raise SchemaError("The index is larger than 2 GiB in one attribute; split the data set.")
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow is untyped


class Index:
    """A parsed and checked index; its table and arrays point into the buffer it was read from."""

    def __init__(self, table: pa.Table, columns: Mapping[str, Column]) -> None:
        self.table = table
        self.columns = dict(columns)
        self.rows = {name: _rows(table[name], column) for name, column in columns.items()}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def attributes(self) -> pa.Schema:
        """The schema of the attributes alone."""
        known = {"key", *self.columns}
        return pa.schema([field for field in self.table.schema if field.name not in known])


def parse_index(
    payload: memoryview, columns: Mapping[str, Column], *, samples: int | None, where: str
) -> Index:
    """Read an index and check all that can be checked without reading a row (FORMAT.md 6.4).

    It must have `samples` lines; None if nobody has said how many.
    """
    check_arrow_file(payload, where=where)
    try:
        with pa.ipc.open_file(pa.py_buffer(payload)) as reader:
            _check_index_schema(reader.schema, columns, where)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError) as exc:
        raise corrupt(where, f"not a valid Arrow table: {exc}") from exc
    if samples is None:
        samples = table.num_rows
    if table.num_rows != samples:
        raise corrupt(where, f"{table.num_rows} rows, the manifest says {samples}.")
    if any(column.num_chunks != 1 for column in table.columns):
        table = table.combine_chunks()  # an empty table has no chunks
    if table["key"].null_count or any(_has_nulls(table[name]) for name in columns):
        raise corrupt(where, "a key or a place is missing")
    if samples:
        keys = table["key"].chunk(0)
        ends = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + samples + 1]
        lengths = np.diff(ends)
        if lengths.min() < 1 or lengths.max() > MAX_KEY_NBYTES:
            raise corrupt(where, f"a key is empty or longer than {MAX_KEY_NBYTES} bytes")
    # a set, because importing pyarrow.compute would take longer than all else in opening
    if len(set(table["key"].to_pylist())) != samples:
        raise corrupt(where, "two samples have one key.")
    return Index(table, columns)


def _check_index_schema(schema: pa.Schema, columns: Mapping[str, Column], where: str) -> None:
    names = set(schema.names)
    if len(names) != len(schema):
        raise corrupt(where, "two fields have one name.")
    if "key" not in names or schema.field("key").type != pa.string():
        raise corrupt(where, "there is no field `key` of type string.")
    for name, column in columns.items():
        if name not in names or schema.field(name).type != column_type(column):
            raise corrupt(where, f"no place is recorded for column {name!r}.")
    known = {"key", *columns}
    try:
        check_schema(pa.schema([f for f in schema if f.name not in known]), columns)
    except SchemaError as exc:
        raise corrupt(where, f"{exc}") from exc


def check_places(index: Index, *, first: int, end: int, where: str) -> None:
    """Check that every row lies in the file, is aligned, fits its shape and overlaps no other.

    `first` and `end` bound the bytes that may hold rows.
    """
    starts, sizes = [], []
    for name, column in index.columns.items():
        rows = index.rows[name]
        bad = (
            (rows.nbytes < 0)
            | (rows.offset < first)
            | (rows.nbytes > MAX_ROW_NBYTES)
            | (rows.offset > end - np.maximum(rows.nbytes, 0))
        )
        _refuse(index, bad, where, name, "lies outside the file; is the file cut off?")
        alignment = np.full(len(rows.offset), ROW_ALIGNMENT)
        if column.is_raw:
            alignment[rows.nbytes >= PAGE_ALIGNMENT] = PAGE_ALIGNMENT
        _refuse(index, rows.offset % alignment != 0, where, name, "is not aligned")
        want = np.array([-1 if size is None else size for size in column.shape], np.int64)
        bad = (rows.shape < 0).any(axis=1) | ((want >= 0) & (rows.shape != want)).any(axis=1)
        # float64 cannot overflow, and is exact up to the 2**53 that the bound below excludes
        shape = rows.shape.astype(np.float64)
        itemsize = column.numpy_dtype.itemsize
        bad |= np.prod(np.maximum(shape, 1), axis=1) * itemsize > MAX_ROW_NBYTES
        decoded = np.prod(shape, axis=1) * itemsize
        if column.is_raw:
            bad |= decoded != rows.nbytes
        _refuse(index, bad, where, name, "has an impossible shape")
        starts.append(rows.offset)
        sizes.append(rows.nbytes)
    if not starts:
        return
    start, size = np.concatenate(starts), np.concatenate(sizes)
    start, size = start[size > 0], size[size > 0]
    order = np.argsort(start, kind="stable")
    start, size = start[order], size[order]
    if (start[1:] < start[:-1] + size[:-1]).any():
        raise corrupt(where, "rows overlap each other")


def _refuse(index: Index, bad: npt.NDArray[Any], where: str, column: str, why: str) -> None:
    if bad.any():
        key = index.table["key"][int(np.argmax(bad))].as_py()
        raise corrupt(where, f"sample {key!r}, column {column!r}: its row {why}")


def _has_nulls(chunked: pa.ChunkedArray) -> bool:
    """Tell whether a place is missing as a whole, or in any of its parts."""
    pending = list(chunked.chunks)
    while pending:
        array = pending.pop()
        if array.null_count:
            return True
        if pa.types.is_struct(array.type):
            pending += [array.field(i) for i in range(array.type.num_fields)]
        elif pa.types.is_fixed_size_list(array.type):
            pending.append(array.values)
    return False


def _rows(chunked: pa.ChunkedArray, column: Column) -> Rows:
    array = chunked.chunk(0) if chunked.num_chunks else pa.array([], chunked.type)
    ndim = len(column.shape)
    if ndim:
        flat = array.field("shape").values.to_numpy(zero_copy_only=True)
        shape = flat[: len(array) * ndim].reshape(len(array), ndim)
    else:
        shape = np.empty((len(array), 0), np.int32)
    return Rows(
        array.field("offset").to_numpy(zero_copy_only=True),
        array.field("nbytes").to_numpy(zero_copy_only=True),
        shape,
        array.field("hash").to_numpy(zero_copy_only=True),
    )
