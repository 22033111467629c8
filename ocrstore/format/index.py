"""The index as a reader holds it: where every row of every column lies, the keys, the table.

Places and keys are read and checked without pyarrow, whose import takes longer than opening; the
table is Arrow's, made when it is first asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ocrstore.format.arrowarrays import ArrowArray, Texts, read_arrays
from ocrstore.format.arrowfile import check_arrow_file
from ocrstore.format.arrowtypes import ArrowField, UnknownTypeError, read_fields
from ocrstore.format.columns import Column
from ocrstore.format.damage import corrupt
from ocrstore.format.layout import (
    MAX_KEY_NBYTES,
    MAX_ROW_NBYTES,
    PAGE_ALIGNMENT,
    ROW_ALIGNMENT,
    is_valid_name,
)
from ocrstore.quicktuple import QuickTuple

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa


class Rows(QuickTuple):
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
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts)))


class Index:
    """A checked index; its arrays point into the buffer it was read from."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        rows: Mapping[str, Rows],
        keys: Sequence[str],
        read_table: Callable[[], pa.Table],
    ) -> None:
        self.columns = dict(columns)
        self.rows = dict(rows)
        self.keys = keys
        """The keys of all samples, in row order; decoded as they are asked for."""
        self._read_table = read_table
        self._table: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def table(self) -> pa.Table:
        """The whole index as an Arrow table; imports pyarrow."""
        if self._table is None:
            self._table = self._read_table()
        return self._table

    @property
    def attributes(self) -> pa.Schema:
        """The schema of the attributes alone."""
        from ocrstore.format.indextable import attributes_of

        return attributes_of(self.table.schema, self.columns)


def parse_index(
    payload: memoryview, columns: Mapping[str, Column], *, samples: int | None, where: str
) -> Index:
    """Read an index and check all that can be checked without reading a row (FORMAT.md 6.4).

    It must have `samples` lines; None if nobody has said how many.
    """
    file = check_arrow_file(payload, where=where)
    try:
        fields = read_fields(file.footer)
    except UnknownTypeError as exc:
        raise corrupt(where, f"a field cannot be an attribute: {exc}") from exc
    except (ValueError, struct.error) as exc:
        raise corrupt(where, f"not a valid Arrow table: {exc}") from exc
    _check_fields({field.name: field for field in fields}, len(fields), columns, where)
    count, arrays = 0, {}
    if file.batch is not None:
        count = file.batch.rows
        try:
            arrays = read_arrays(fields, file.batch)
        except ValueError as exc:
            raise corrupt(where, f"not a valid Arrow table: {exc}") from exc
    if samples is not None and count != samples:
        raise corrupt(where, f"{count} rows, the manifest says {samples}.")
    if any(arrays[name].has_nulls() for name in ("key", *columns) if name in arrays):
        raise corrupt(where, "a key or a place is missing")
    keys: Sequence[str] = _check_keys(Texts(arrays["key"]), where) if count else []
    rows = {name: _rows(arrays.get(name), column) for name, column in columns.items()}

    def read_table() -> pa.Table:
        from ocrstore.format.indextable import parse_table

        return parse_table(payload, columns, samples=count, where=where)

    return Index(columns, rows, keys, read_table)


def _check_fields(
    fields: Mapping[str, ArrowField], count: int, columns: Mapping[str, Column], where: str
) -> None:
    if len(fields) != count:
        raise corrupt(where, "two fields have one name.")
    if "key" not in fields or fields["key"].kind != "utf8":
        raise corrupt(where, "there is no field `key` of type string.")
    for name, column in columns.items():
        if name not in fields or not _is_place(fields[name], column):
            raise corrupt(where, f"no place is recorded for column {name!r}.")
    for name in fields:
        if name != "key" and name not in columns and not is_valid_name(name):
            raise corrupt(where, f"attribute {name!r:.80} has a name that no attribute may have")


def _is_place(field: ArrowField, column: Column) -> bool:
    """Tell whether a field has the type of a column's place (FORMAT.md 6.2)."""
    found = [(child.name, child.kind, child.size) for child in field.children]
    want = [("offset", "int64", 0), ("nbytes", "int64", 0), ("hash", "uint64", 0)]
    parts = list(field.children)
    if column.shape:
        want.insert(2, ("shape", "fixed_size_list", len(column.shape)))
        if len(parts) > 2:
            parts += parts[2].children
    sizes_fit = not column.shape or [part.kind for part in parts[4:]] == ["int32"]
    return (
        field.kind == "struct"
        and found == want
        and sizes_fit
        and not any(part.nullable for part in parts)
    )


def _check_keys(keys: Texts, where: str) -> Texts:
    lengths = keys.lengths()
    if lengths.min() < 1 or lengths.max() > MAX_KEY_NBYTES:
        raise corrupt(where, f"a key is empty or longer than {MAX_KEY_NBYTES} bytes")
    if len(set(keys.encoded())) != len(keys):
        raise corrupt(where, "two samples have one key.")
    return keys


def _rows(array: ArrowArray | None, column: Column) -> Rows:
    ndim = len(column.shape)
    if array is None:  # a store without samples
        return Rows.concatenate([], ndim)
    count, parts = array.length, array.children
    shape = np.empty((count, 0), np.int32)
    if ndim:
        shape = parts[2].children[0].numbers("<i4", count * ndim).reshape(count, ndim)
    return Rows(
        parts[0].numbers("<i8", count),
        parts[1].numbers("<i8", count),
        shape,
        parts[-1].numbers("<u8", count),
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
        key = index.keys[int(np.argmax(bad))]
        raise corrupt(where, f"sample {key!r}, column {column!r}: its row {why}")
