"""What a writer accepts: columns, keys, and arrays that fit, turned into the bytes to store."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError
from ocrstore.format.codecs import encode_row
from ocrstore.format.columns import Column, Encoded
from ocrstore.format.layout import MAX_KEY_NBYTES, MAX_ROW_NBYTES, is_valid_name
from ocrstore.format.payload import StoredRow

Arrays = Mapping[str, "npt.ArrayLike | Encoded"]
"""A sample's arrays by column."""


def check_columns(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Refuse columns whose name or description cannot be stored."""
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
    """Refuse a key that cannot name a sample."""
    if not isinstance(key, str) or not key:
        raise SchemaError(f"A sample's key is a non-empty text, not {key!r}.")
    try:
        nbytes = len(key.encode("utf-8"))
    except UnicodeEncodeError as exc:
        raise SchemaError(f"The key {key!r} is not valid Unicode.") from exc
    if nbytes > MAX_KEY_NBYTES:
        raise SchemaError(f"The key {key[:40]!r}… has {nbytes} bytes; at most {MAX_KEY_NBYTES}.")


def stored_rows(columns: Mapping[str, Column], key: str, arrays: Arrays) -> dict[str, StoredRow]:
    """Turn a sample's arrays into the bytes to store, or say which one does not fit."""
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
        if column.codec == "jpeg":
            raise SchemaError(
                f"{where}: a jpeg column takes ocrstore.Encoded(bytes, shape), the source's "
                "own bytes, so that nothing is lost by encoding again."
            )
        array = column.conform(value, where=where)
        rows[name] = (encode_row(column, array), array.shape)
    return rows


def _encoded(column: Column, row: Encoded, where: str) -> StoredRow:
    shape = tuple(int(size) for size in row.shape)
    if not column.accepts(shape) or min(shape, default=0) < 0:
        raise SchemaError(f"{where}: expected shape {column.shape}, found {shape}.")
    if column.codec != "jpeg":
        raise SchemaError(f"{where}: Encoded is for jpeg columns; this one is {column.codec}.")
    if not column.fits(shape) or len(row.data) > MAX_ROW_NBYTES:
        raise SchemaError(
            f"{where}: shape {shape}; a row may have at most 2 GiB. Split the sample."
        )
    return np.frombuffer(row.data, np.uint8), shape
