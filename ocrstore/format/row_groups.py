"""Collect rows into row groups: check, encode, pack into extents, commit full groups; find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ocrstore.errors import CorruptStoreError, SchemaError
from ocrstore.format.codecs import CODECS, decode_row, encode_row, is_picture_file
from ocrstore.format.columns import Column, Encoded
from ocrstore.format.extents import ExtentBuilder
from ocrstore.format.index import Rows
from ocrstore.format.layout import (
    GROUP_NBYTES,
    GROUP_ROWS,
    GROUP_STEP,
    MAX_KEY_NBYTES,
    MAX_ROW_NBYTES,
    extent_key,
    is_valid_name,
)
from ocrstore.format.lmdb_reader import Value

StoredRow = tuple[npt.NDArray[np.uint8], tuple[int, ...]]
"""A row's stored bytes, and the shape they decode to."""

GroupRecord = Callable[[int, Mapping[str, Rows]], dict[bytes, Any]]
"""Maps a group's number and rows (offsets from the start of their extent) to values to commit."""


class Container(Protocol):
    """Where values are written: a new file (`LmdbWriter`) or a published one (`Environment`)."""

    page_size: int

    def commit(
        self, puts: Mapping[bytes, Any], *, deletes: Iterable[bytes] = ()
    ) -> dict[bytes, Value]:
        """Write and delete values; buffers must stay unchanged until the next commit returns."""
        ...


class RowGroupWriter:
    """Writes the rows of some columns, group by group.

    Memory: two row groups, one being filled and one being written, for any number of rows.
    """

    def __init__(
        self,
        container: Container,
        columns: Mapping[str, Column],
        *,
        first_group: int,
        record: GroupRecord | None = None,
        group_rows: int = GROUP_ROWS,
        group_nbytes: int = GROUP_NBYTES,
    ) -> None:
        self._container = container
        self._columns = dict(columns)
        self._record = record
        self._capacity = group_rows
        self._limit = group_nbytes
        self.next_group = first_group
        self.written: list[bytes] = []
        """Database keys of all extents committed here."""
        self._rows: dict[str, list[Rows]] = {name: [] for name in columns}
        self._builders, self._spare = (
            {
                name: ExtentBuilder(name, raw=column.is_raw, capacity=group_rows)
                for name, column in columns.items()
            }
            for _ in range(2)
        )
        self._shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in columns}
        self.pending = 0

    def add(self, rows: Mapping[str, StoredRow]) -> bool:
        """Add one row of every column; return whether that completed and committed a group."""
        for name, (stored, shape) in rows.items():
            self._builders[name].add(stored)
            self._shapes[name].append(shape)
        self.pending += 1
        if self._is_full():
            self.flush()
            return True
        return False

    def adopt(self, group: int, rows: Mapping[str, Rows]) -> None:
        """Add a group that is in the file already."""
        for name, part in rows.items():
            self._rows[name].append(part)
            self.written.append(extent_key(group, name))
        self.next_group = group + 1

    def _is_full(self) -> bool:
        nbytes = sum(builder.nbytes for builder in self._builders.values())
        step_nbytes = nbytes * GROUP_STEP // self.pending
        if step_nbytes > self._limit:  # no usual batch fits into a group, so memory decides
            return nbytes >= self._limit // 8
        if self.pending >= self._capacity or nbytes >= self._limit:
            return True
        return self.pending % GROUP_STEP == 0 and nbytes + step_nbytes > self._limit

    def flush(self) -> None:
        """Commit the rows added since the last commit as one group."""
        if self.pending == 0:
            return
        group = self.next_group
        puts: dict[bytes, Any] = {}
        rows: dict[str, Rows] = {}
        for name, builder in self._builders.items():
            puts[extent_key(group, name)] = builder.finish(
                group, page_size=self._container.page_size
            )
            entries = builder.entries
            shape = np.array(self._shapes[name], np.int32).reshape(self.pending, -1)
            ndim = len(self._columns[name].shape)
            rows[name] = Rows(
                entries["offset"].astype(np.int64),
                entries["nbytes"].astype(np.int64),
                shape[:, :ndim],
                entries["hash"].astype(np.uint64),
            )
        extra = self._record(group, rows) if self._record else {}
        places = self._container.commit({**puts, **extra})
        for name, part in rows.items():
            place = places[extent_key(group, name)]
            self._rows[name].append(located(part, place.offset))
            self.written.append(extent_key(group, name))
            self._spare[name].clear()
            self._shapes[name].clear()
        self._builders, self._spare = self._spare, self._builders
        self.pending = 0
        self.next_group += 1

    def rows(self) -> dict[str, Rows]:
        """Return where all rows committed or adopted lie, in order."""
        return {
            name: Rows.concatenate(parts, len(self._columns[name].shape))
            for name, parts in self._rows.items()
        }


def located(rows: Rows, offset: int) -> Rows:
    """Convert offsets inside an extent to file offsets."""
    return Rows(rows.offset + offset, rows.nbytes, rows.shape, rows.hash)


Arrays = Mapping[str, "npt.ArrayLike | Encoded"]
"""A sample's arrays by column."""


def group_bounds(
    offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Return [first, last) of the rows of a column that are together in the file."""
    if not len(offsets):
        return []
    gaps = np.diff(offsets) - nbytes[:-1]
    # rows of one extent are less than a page apart; else another column's extent is between
    breaks = np.flatnonzero((gaps < 0) | (gaps >= 4096)) + 1
    edges = [0, *breaks.tolist(), len(offsets)]
    return [
        (start, min(start + GROUP_ROWS, last))
        for first, last in pairwise(edges)
        for start in range(first, last, GROUP_ROWS)
    ]


def check_columns(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Raise SchemaError for a column that cannot be stored."""
    if not isinstance(columns, Mapping):
        raise SchemaError(
            f"columns={columns!r}: expected a mapping of names to ocrstore.Column(...)."
        )
    for name, column in columns.items():
        if not is_valid_name(name):
            raise SchemaError(
                f"column {name!r}: a name has letters, digits and _ . - /, at most 63 of them, and "
                "is not `key`."
            )
        if not isinstance(column, Column):
            raise SchemaError(f"column {name!r}: expected ocrstore.Column(...), found {column!r}.")
    return dict(columns)


def check_key(key: str) -> None:
    """Raise SchemaError for a key that is not 1 to 4096 bytes of UTF-8."""
    if not isinstance(key, str) or not key:
        raise SchemaError(f"A sample's key is a non-empty str, not {key!r}.")
    try:
        nbytes = len(key.encode("utf-8"))
    except UnicodeEncodeError as exc:
        raise SchemaError(f"The key {key!r} is not valid Unicode.") from exc
    if nbytes > MAX_KEY_NBYTES:
        raise SchemaError(f"The key {key[:40]!r}… has {nbytes} bytes; at most {MAX_KEY_NBYTES}.")


def stored_rows(columns: Mapping[str, Column], key: str, arrays: Arrays) -> dict[str, StoredRow]:
    """Encode a sample's arrays; SchemaError names the one that does not fit its column."""
    odd = set(arrays) ^ set(columns)
    if odd:
        raise SchemaError(
            f"sample {key!r}: needs one array for each of {sorted(columns)}; "
            f"missing or unknown: {sorted(odd)}."
        )
    rows: dict[str, StoredRow] = {}
    for name, column in columns.items():
        value = arrays[name]
        where = f"sample {key!r}, column {name!r}"
        if isinstance(value, Encoded):
            rows[name] = _encoded(column, value, where)
            continue
        if CODECS[column.codec].encode is None:
            raise SchemaError(
                f"{where}: a jpeg column takes ocrstore.Encoded(bytes, shape), the source's "
                "own bytes, so that nothing is lost by encoding again; a file column takes both."
            )
        array = column.conform(value, where=where)
        rows[name] = (encode_row(column, array), array.shape)
    return rows


def _encoded(column: Column, row: Encoded, where: str) -> StoredRow:
    shape = tuple(int(size) for size in row.shape)
    if not column.accepts(shape) or min(shape, default=0) < 0:
        raise SchemaError(f"{where}: expected shape {column.shape}, found {shape}.")
    if not column.fits(shape) or len(row.data) > MAX_ROW_NBYTES:
        raise SchemaError(
            f"{where}: shape {shape}; a row may have at most 2 GiB. Split the sample."
        )
    data = memoryview(row.data)
    try:
        if column.is_raw and data.nbytes != column.nbytes_of(shape):
            raise ValueError(f"{data.nbytes} bytes for shape {shape}")
        if not (column.is_raw or row.trusted or is_picture_file(column, data)):
            decode_row(column, data, shape, where=where, limit=MAX_ROW_NBYTES)
    except (ValueError, CorruptStoreError) as exc:
        raise SchemaError(f"{where}: not a row of codec {column.codec}: {exc}") from exc
    return np.frombuffer(data, np.uint8), shape
