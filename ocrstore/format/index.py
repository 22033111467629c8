"""The index: an Arrow table that says where every row of every sample lies (FORMAT.md 6)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ocrstore.errors import SchemaError, corrupt
from ocrstore.format.attributes import type_name
from ocrstore.format.columns import Column
from ocrstore.format.layout import (
    MAX_KEY_NBYTES,
    MAX_ROW_NBYTES,
    PAGE_ALIGNMENT,
    ROW_ALIGNMENT,
    is_valid_name,
)

_ARROW_ERRORS = (
    pa.ArrowException,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    MemoryError,
    OverflowError,
    struct.error,
)


class Rows(NamedTuple):
    """Where the rows of one column lie; every array has one entry per sample."""

    offset: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int32]
    """(samples, ndim)"""
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
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts)))


class Index:
    """A checked index; table and arrays point into the buffer it was read from."""

    def __init__(self, table: pa.Table, columns: Mapping[str, Column]) -> None:
        self.table = table
        self.columns = dict(columns)
        self.rows = {
            name: _rows(_one_chunk(table[name]), column) for name, column in columns.items()
        }

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def keys(self) -> list[str]:
        """The keys of all samples, in row order; a new list for every call."""
        return self.table["key"].to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of every key, in row order."""
        return {key: row for row, key in enumerate(self.keys)}

    def key(self, row: int) -> str:
        """Return the key of one sample."""
        return self.table["key"][row].as_py()  # type: ignore[no-any-return]  # pyarrow is untyped

    @property
    def attributes(self) -> pa.Schema:
        """The schema of the attributes alone."""
        known = {"key", *self.columns}
        return pa.schema([field for field in self.table.schema if field.name not in known])


class IndexTable(Protocol):
    """The type of `Store.index`, a `pyarrow.Table`: pyarrow ships no type information.

    Methods that are not declared here are there as well; their results are Any.
    """

    @property
    def num_rows(self) -> int: ...  # noqa: D102  # Arrow's, as all below
    @property
    def column_names(self) -> list[str]: ...  # noqa: D102
    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> IndexColumn: ...
    def select(self, columns: Sequence[str]) -> IndexTable: ...  # noqa: D102
    def slice(self, offset: int = 0, length: int | None = None) -> IndexTable: ...  # noqa: D102
    def to_pylist(self) -> list[dict[str, Any]]: ...  # noqa: D102
    def to_pydict(self) -> dict[str, list[Any]]: ...  # noqa: D102
    def __getattr__(self, name: str, /) -> Any: ...


class IndexColumn(Protocol):
    """One column of the index, a `pyarrow.ChunkedArray`."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Any: ...
    def to_pylist(self) -> list[Any]: ...  # noqa: D102  # Arrow's, as the next
    def to_numpy(self) -> npt.NDArray[Any]: ...  # noqa: D102
    def __getattr__(self, name: str, /) -> Any: ...


# --- writing --------------------------------------------------------------------------------


def column_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column's field in the index (FORMAT.md 6.2)."""
    fields = [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
    ]
    if column.shape:
        item = pa.field("item", pa.int32(), nullable=False)
        fields.append(pa.field("shape", pa.list_(item, len(column.shape)), nullable=False))
    fields.append(pa.field("hash", pa.uint64(), nullable=False))
    return pa.struct(fields)


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
        arrays.append(_rows_array(column, rows[name]))
    for field in attributes.schema:
        fields.append(field)
        arrays.append(attributes[field.name])
    return pa.table(arrays, schema=pa.schema(fields))


def _rows_array(column: Column, rows: Rows) -> pa.StructArray:
    kind = column_type(column)
    children = [pa.array(rows.offset), pa.array(rows.nbytes)]
    if column.shape:
        values = pa.array(np.ascontiguousarray(rows.shape).reshape(-1))
        children.append(pa.FixedSizeListArray.from_arrays(values, type=kind.field("shape").type))
    children.append(pa.array(rows.hash))
    return pa.StructArray.from_arrays(children, fields=list(kind))


def serialize(table: pa.Table) -> bytes:
    """Encode a table as one Arrow IPC file with at most one record batch."""
    sink = pa.BufferOutputStream()
    table = table.combine_chunks()
    if any(column.num_chunks > 1 for column in table.columns):
        raise SchemaError("The index is larger than 2 GiB in one attribute; split the data set.")
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow is untyped


# --- reading --------------------------------------------------------------------------------


def parse_index(
    payload: memoryview, columns: Mapping[str, Column], *, samples: int | None, where: str
) -> Index:
    """Read an index and check all that can be checked without reading a row (FORMAT.md 6.4).

    Args:
        payload: The Arrow file; the index points into it.
        columns: The columns of the manifest.
        samples: How many rows the manifest says there are; None if nothing says so.
        where: The file and the record, for errors.

    Raises:
        CorruptStoreError: For all that rules R30 to R37 of FORMAT.md name.
    """
    try:
        index = Index(_read_table(payload, columns, samples, where), columns)
    except _ARROW_ERRORS as exc:  # the one place where Arrow's errors are translated
        raise corrupt(where, f"not a valid Arrow table: {exc}") from exc
    _check_keys(index, where)
    return index


def _read_table(
    payload: memoryview, columns: Mapping[str, Column], samples: int | None, where: str
) -> pa.Table:
    buffer = pa.py_buffer(payload)
    reader = pa.ipc.open_file(buffer)
    message = _record_batch_message(payload, buffer, reader.num_record_batches)
    _check_fields(reader.schema, columns, where)
    if message is None:  # a store without samples
        table = reader.schema.empty_table()
    else:
        table = pa.Table.from_batches([pa.ipc.read_record_batch(message, reader.schema)])
    if samples is not None and table.num_rows != samples:
        raise corrupt(where, f"{table.num_rows} rows, the manifest says {samples}.")
    table.validate(full=True)
    if any(_has_nulls(_one_chunk(table[name])) for name in ("key", *columns)):
        raise corrupt(where, "a key or the place of a row is missing (null)")
    return table


def _record_batch_message(
    payload: memoryview, buffer: pa.Buffer, batches: int
) -> pa.ipc.Message | None:
    """Return the message of the one record batch, if it may be read (FORMAT.md 6.1).

    Arrow inflates a compressed batch into as much memory as the batch claims to need, and pyarrow
    does not report whether a batch is compressed before it has done so. Therefore two fields are
    looked up here in the Flatbuffers tables themselves: where the footer says the batch lies, and
    whether the batch names a compression. Both tables have passed Arrow's verifier by then.
    """
    (footer_nbytes,) = struct.unpack_from("<i", payload, len(payload) - 10)
    footer = payload[len(payload) - 10 - footer_nbytes : len(payload) - 10]
    root = _indirect(footer, 0)
    if _vector(footer, root, 2)[1]:
        raise ValueError("it has dictionaries")
    if batches > 1:
        raise ValueError("it has more than one record batch")
    if batches == 0:
        return None
    start, _ = _vector(footer, root, 3)
    offset, metadata_nbytes, body_nbytes = struct.unpack_from("<qi4xq", footer, start)
    end = offset + metadata_nbytes + body_nbytes
    if min(offset, metadata_nbytes, body_nbytes) < 0 or end > len(payload):
        raise ValueError("its record batch lies outside it")
    if offset % 8 or metadata_nbytes % 8:  # Arrow's loops expect aligned numbers
        raise ValueError("its record batch is not aligned")
    message = pa.ipc.read_message(buffer.slice(offset, end - offset))
    if message.type != "record batch":
        raise ValueError(f"its record batch is a {message.type}")
    # 8: the length of the metadata, and the mark before it
    if (message.metadata.size + 8, message.body.size) != (metadata_nbytes, body_nbytes):
        raise ValueError("its record batch is not as long as its footer says")
    metadata = memoryview(message.metadata)
    header = _field(metadata, _indirect(metadata, 0), 2)
    if header is None or _field(metadata, _indirect(metadata, header), 3) is not None:
        raise ValueError("its record batch is compressed")
    return message


def _indirect(data: memoryview, position: int) -> int:
    """Follow the Flatbuffers offset at a position."""
    return position + int(struct.unpack_from("<I", data, position)[0])


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Return the position of a field of a Flatbuffers table; None if the table lacks it."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    (vtable_nbytes,) = struct.unpack_from("<H", data, vtable)
    if 6 + 2 * number > vtable_nbytes:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
    return table + int(offset) if offset else None


def _vector(data: memoryview, table: int, number: int) -> tuple[int, int]:
    """Return the position of a vector's first item, and how many items there are."""
    position = _field(data, table, number)
    if position is None:
        return 0, 0
    start = _indirect(data, position)
    return start + 4, int(struct.unpack_from("<I", data, start)[0])


def _check_fields(schema: pa.Schema, columns: Mapping[str, Column], where: str) -> None:
    fields = {field.name: field.type for field in schema}
    if len(fields) != len(schema):
        raise corrupt(where, "two fields have one name.")
    if fields.get("key") != pa.string():
        raise corrupt(where, "there is no field `key` of type string.")
    for name, column in columns.items():
        if fields.get(name) != column_type(column):
            raise corrupt(where, f"no place is recorded for column {name!r}.")
    for name, kind in fields.items():
        if name == "key" or name in columns:
            continue
        if not is_valid_name(name):
            raise corrupt(where, f"attribute {name!r:.80} has a name that no attribute may have")
        try:
            type_name(kind)
        except SchemaError as exc:
            raise corrupt(where, f"attribute {name!r}: {exc}") from exc


def _has_nulls(array: pa.Array) -> bool:
    """Return whether a value is null, here or in any part."""
    if pa.types.is_struct(array.type):
        parts = [array.field(number) for number in range(array.type.num_fields)]
    else:
        parts = [array.values] if pa.types.is_fixed_size_list(array.type) else []
    return array.null_count > 0 or any(_has_nulls(part) for part in parts)


def _check_keys(index: Index, where: str) -> None:
    keys = index.keys
    # a character has 1 to 4 bytes: only keys of many characters need to be encoded
    if not all(keys) or any(
        len(key) > MAX_KEY_NBYTES // 4 and len(key.encode()) > MAX_KEY_NBYTES for key in keys
    ):
        raise corrupt(where, f"a key is empty or longer than {MAX_KEY_NBYTES} bytes")
    if len(set(keys)) != len(keys):
        raise corrupt(where, "two samples have one key.")


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _rows(array: pa.StructArray, column: Column) -> Rows:
    ndim = len(column.shape)
    shape = np.empty((len(array), 0), np.int32)
    if ndim:
        flat = array.field("shape").values.to_numpy(zero_copy_only=True)
        shape = flat[: len(array) * ndim].reshape(len(array), ndim)
    return Rows(
        array.field("offset").to_numpy(zero_copy_only=True),
        array.field("nbytes").to_numpy(zero_copy_only=True),
        shape,
        array.field("hash").to_numpy(zero_copy_only=True),
    )


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
        key = index.key(int(np.argmax(bad)))
        raise corrupt(where, f"sample {key!r}, column {column!r}: its row {why}")
