"""The index as a file for other tools: parquet, arrow, csv."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ocrstore.errors import UnknownColumnError, WriteError
from ocrstore.store import Store
from ocrstore.whole_file import replaced

FORMATS = ("parquet", "arrow", "csv")


def write_index(
    store: Store,
    target: Path,
    *,
    format: str,
    rows: Sequence[int],
    columns: Sequence[str] | None = None,
) -> None:
    """Write rows of the index; the target appears whole or not at all."""
    table = store.index
    for name in columns or ():
        if name not in table.column_names:
            known = ", ".join(table.column_names)
            raise UnknownColumnError(f"{store.path}: the index has no {name!r}; it has {known}.")
    if columns is not None:
        table = table.select(list(columns))
    if len(rows) < len(store):
        table = table.take(pa.array(rows, pa.int64()))
    try:
        with replaced(target) as partial, partial.open("wb") as file:
            # Arrow opens no path that is not valid Unicode
            if format == "parquet":
                pyarrow.parquet.write_table(table, file)
            elif format == "arrow":
                with pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
            else:
                pyarrow.csv.write_csv(flatten(table), file)
    except (OSError, pa.ArrowException) as exc:
        raise WriteError(f"{target}: cannot be written: {exc}.") from exc


def flatten(table: pa.Table) -> pa.Table:
    """Turn what a csv file cannot hold into JSON text."""
    columns = []
    for column in table.columns:
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            columns.append(pa.array([_text(value) for value in column.to_pylist()], pa.string()))
        elif pa.types.is_float16(column.type):
            columns.append(column.cast(pa.float32()))
        else:
            columns.append(column)
    return pa.table(columns, names=table.column_names)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return json.dumps(value, ensure_ascii=False, default=_json_value)


def _json_value(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"cannot write {value!r} as JSON")
