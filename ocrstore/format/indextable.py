"""The index as an Arrow table: how it is made, encoded, and read back by pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ocrstore.errors import SchemaError
from ocrstore.format.attributes import check_schema
from ocrstore.format.columns import Column
from ocrstore.format.damage import corrupt
from ocrstore.format.index import Index, Rows


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


def index_of(table: pa.Table, columns: Mapping[str, Column]) -> Index:
    """Return the index that a table, which was just made, will be read as."""
    rows = {name: _rows(table[name], column) for name, column in columns.items()}
    return Index(columns, rows, table["key"].to_pylist(), lambda: table)


def attributes_of(schema: pa.Schema, columns: Mapping[str, Column]) -> pa.Schema:
    """Return the schema of the attributes alone."""
    known = {"key", *columns}
    return pa.schema([field for field in schema if field.name not in known])


def parse_table(
    payload: memoryview, columns: Mapping[str, Column], *, samples: int, where: str
) -> pa.Table:
    """Read the table of an index that `parse_index` has checked; pyarrow checks it once more."""
    try:
        with pa.ipc.open_file(pa.py_buffer(payload)) as reader:
            check_schema(attributes_of(reader.schema, columns), columns)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError) as exc:
        raise corrupt(where, f"not a valid Arrow table: {exc}") from exc
    if table.num_rows != samples:
        raise corrupt(where, f"{table.num_rows} rows, the manifest says {samples}.")
    if any(column.num_chunks != 1 for column in table.columns):
        table = table.combine_chunks()  # an empty table has no chunks
    return table


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
