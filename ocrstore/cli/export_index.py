"""`ocrstore export-index`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ocrstore.cli.console import STORE, TARGET, console, counted, shown
from ocrstore.errors import WriteError
from ocrstore.store import Store

FORMATS = ("parquet", "arrow", "csv")


@click.command("export-index")
@click.argument("store", type=STORE)
@click.argument("target", type=TARGET)
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="File format; by default from the suffix of TARGET.",
)
@click.option("--generation", type=int, help="Export an older generation.")
@click.option("--overwrite", is_flag=True, help="Replace TARGET if it exists.")
def export_index_command(
    store: Path, target: Path, format_: str | None, generation: int | None, overwrite: bool
) -> None:
    """Export the index (keys, offsets, attributes) as parquet, arrow or csv.

    \b
    Examples:
      ocrstore export-index val.ocrs val.parquet
      ocrstore export-index val.ocrs val.csv
      ocrstore export-index val.ocrs index.bin --format arrow

    In csv, lists and structs are written as JSON.
    """
    format_ = format_ or target.suffix.lstrip(".").lower()
    if format_ not in FORMATS:
        raise click.UsageError(f"{target}: unknown suffix; give --format {' or '.join(FORMATS)}.")
    if target.exists() and not overwrite:
        raise click.UsageError(f"{target}: already exists; replace it with --overwrite.")
    with Store(store, generation=generation) as opened:
        export_index(opened, target, format=format_)
        console().print(f"[green]✓[/] {shown(target)}: {counted(len(opened), 'sample')}")


def export_index(store: Store, target: Path, *, format: str) -> None:
    """Write the index; the target appears whole or not at all."""
    partial = target.parent / f".{target.name}.partial"
    table = store.index
    try:
        if format == "parquet":
            pyarrow.parquet.write_table(table, partial)
        elif format == "arrow":
            with pa.ipc.new_file(partial, table.schema) as writer:
                writer.write_table(table)
        else:
            pyarrow.csv.write_csv(_flatten(table), partial)
        partial.replace(target)
    except (OSError, pa.ArrowException) as exc:
        partial.unlink(missing_ok=True)
        raise WriteError(f"{target}: cannot be written: {exc}.") from exc


def _flatten(table: pa.Table) -> pa.Table:
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
