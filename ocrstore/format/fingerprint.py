"""The fingerprint: a canonical hash of a store's content, whatever its layout (FORMAT.md 8)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pyarrow as pa

from ocrstore.format.attributes import type_name
from ocrstore.format.index import Index

_INT64 = np.dtype("<i8")


def fingerprint(index: Index) -> str:
    """Return the store's fingerprint: 64 hexadecimal digits.

    Two stores have the same one exactly if they have the same columns, the same samples in the
    same order with the same stored bytes, and the same attributes.
    """
    digest = hashlib.sha256(b"ocrstore-fingerprint-1\n")
    columns = {name: column.to_json() for name, column in index.columns.items()}
    digest.update(json.dumps(columns, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    _feed(digest, index.table["key"].type, _one(index.table["key"]))
    for name in sorted(index.columns):
        rows = index.rows[name]
        digest.update(rows.shape.astype("<i4").tobytes())
        digest.update(rows.hash.astype("<u8").tobytes())
    for name in sorted(index.attributes.names):
        digest.update(name.encode("ascii") + b"\n")
        column = index.table[name]
        _feed(digest, column.type, _one(column))
    return digest.hexdigest()


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.array([], column.type)


def _feed(digest: Any, kind: pa.DataType, array: pa.Array) -> None:
    """Feed one array: type name, length, nulls, then lengths and values (FORMAT.md 8.2)."""
    import pyarrow.compute as pc  # takes 50 ms: not for readers, who never compute a fingerprint

    digest.update(f"{type_name(kind)}:{len(array)}:{array.null_count}\n".encode())
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(valid, np.uint8))
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten()):
            digest.update(field.name.encode() + b"\n")
            _feed(digest, field.type, child)
    elif (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        digest.update(_lengths(pc.list_value_length(array)))
        _feed(digest, kind.value_type, array.flatten())
    elif kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        digest.update(_lengths(pc.binary_length(array)))
        # joining drops nulls and whatever lies under them
        digest.update(b"".join(array.drop_null().cast(_binary(kind)).to_pylist()))
    elif pa.types.is_boolean(kind):
        values = array.fill_null(False).to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(values, np.uint8))
    else:
        values = array.fill_null(0) if array.null_count else array
        numbers = values.to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")))


def _lengths(lengths: pa.Array) -> Any:
    return np.ascontiguousarray(lengths.fill_null(0).to_numpy(zero_copy_only=False), _INT64)


def _binary(kind: pa.DataType) -> pa.DataType:
    return pa.large_binary() if str(kind).startswith("large") else pa.binary()
