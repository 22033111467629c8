"""The index as a file for other tools: parquet, arrow, csv."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ocrstore.errors import WriteError
from ocrstore.store import Store
from ocrstore.whole_file import replaced

FORMATS = ("parquet", "arrow", "csv")


def export_index(store: Store, target: Path, *, format: str) -> None:
    """Write the index; the target appears whole or not at all."""
    table = store.index
    try:
        with replaced(target) as partial:
            if format == "parquet":
                pyarrow.parquet.write_table(table, partial)
            elif format == "arrow":
                with pa.ipc.new_file(partial, table.schema) as writer:
                    writer.write_table(table)
            else:
                pyarrow.csv.write_csv(flatten(table), partial)
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
