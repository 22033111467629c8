"""`ocrstore export-index`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import STORE, TARGET, console, counted
from ocrstore.export import FORMATS, export_index
from ocrstore.store import Store


@click.command("export-index")
@click.argument("store", type=STORE)
@click.argument("target", type=TARGET)
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="What to write; by default what the target's ending says.",
)
@click.option("--generation", type=int, help="An older generation instead of the newest.")
@click.option("--overwrite", is_flag=True, help="Replace the target if it exists.")
def export_index_command(
    store: Path, target: Path, format_: str | None, generation: int | None, overwrite: bool
) -> None:
    """Write the index (keys, places, attributes) as parquet, arrow or csv.

    \b
    Examples:
      ocrstore export-index val.ocrs val.parquet
      ocrstore export-index val.ocrs val.csv
      ocrstore export-index val.ocrs index.bin --format arrow

    In csv, lists and structs are written as JSON.
    """
    format_ = format_ or target.suffix.lstrip(".").lower()
    if format_ not in FORMATS:
        raise click.UsageError(f"{target}: name a format with --format: {', '.join(FORMATS)}.")
    if target.exists() and not overwrite:
        raise click.UsageError(f"{target}: exists; pass --overwrite to replace it.")
    with Store(store, generation=generation) as opened:
        export_index(opened, target, format=format_)
        console().print(f"[green]✓[/] {target}: {counted(len(opened), 'sample')}")
