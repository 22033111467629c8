"""`ocrstore export-index`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import STORE, TARGET, console, counted, explain_missing, shown

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
    with explain_missing("export-index"):
        from ocrstore.export import export_index
        from ocrstore.store import Store
    with Store(store, generation=generation) as opened:
        export_index(opened, target, format=format_)
        console().print(f"[green]✓[/] {shown(target)}: {counted(len(opened), 'sample')}")
