"""`ocrstore export`."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from ocrstore.cli.console import (
    COUNT,
    DATASET,
    NewFile,
    console,
    counted,
    explain_missing,
    fail,
    progress_bar,
    shown,
)
from ocrstore.keys import from_lines

FORMATS = (
    *("webdataset", "hf", "coco", "icdar", "paddleocr", "mmocr", "labelme", "words", "npz"),
    *("parquet", "arrow", "csv"),
)


@click.command("export")
@click.argument("store", type=DATASET)
@click.option("--to", type=click.Choice(FORMATS), required=True, help="Format to write.")
@click.option(
    "--out",
    type=NewFile(),
    required=True,
    help="Folder to make; for parquet, arrow and csv the file.",
)
@click.option(
    "--where", metavar="SQL", help="Only samples that fulfil a condition, as in the viewer."
)
@click.option(
    "--keys",
    type=click.File(encoding="utf-8-sig", errors="replace"),
    help="Only the samples in this file, a key a line.",
)
@click.option(
    "--columns",
    metavar="NAMES",
    help="Columns, with commas: image and those of the view (webdataset), or of the index.",
)
@click.option(
    "--view",
    help="webdataset, npz: the columns of this view; else its pictures instead of the whole ones.",
)
@click.option(
    "--shard-size",
    type=COUNT,
    metavar="MB",
    help="Most MB of a file, unless a sample is larger: webdataset, hf [default: 500].",
)
@click.option("--generation", type=int, help="Export an older generation.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export.")
def export_command(
    store: Path,
    to: str,
    out: Path,
    where: str | None,
    keys: IO[str] | None,
    columns: str | None,
    view: str | None,
    shard_size: int | None,
    generation: int | None,
    overwrite: bool,
) -> int:
    """Write samples in the format of another tool.

    \b
    webdataset             tars: picture, json, an .npy for each array
    hf                     parquet files and a card for Hugging Face datasets
    coco, icdar, paddleocr, mmocr, labelme, words
                           pictures and annotations
    npz                    prob_map and thresh_map of each picture
    parquet, arrow, csv    the index; in csv, lists and structs are JSON

    \b
    Examples:
      ocrstore export val.ocrs --to webdataset --out shards/ --shard-size 200
      ocrstore export val.ocrs --to hf --out hf/ --keys keys.txt
      ocrstore export val.ocrs --to coco --out coco/ --where "polygons_count > 0"
      ocrstore export val.ocrs --to labelme --out labelme/ --view 640
      ocrstore export val.ocrs --to csv --out val.csv --columns key,width,height,texts

    The folder appears when it is complete; the same command resumes an interrupted export.
    `ocrstore build` reads every format with pictures: see docs/build.md.
    """
    with explain_missing("export"):
        from ocrstore.exporting.export import export
        from ocrstore.store import Store
    try:
        with Store(store, generation=generation) as opened, progress_bar("exporting") as progress:
            result = export(
                opened,
                to=to,
                out=out,
                where=where,
                keys=None if keys is None else from_lines(keys.read()),
                columns=None if columns is None else [name.strip() for name in columns.split(",")],
                view=view,
                shard_size=None if shard_size is None else shard_size * 1_000_000,
                overwrite=overwrite,
                progress=progress,
            )
    except KeyboardInterrupt:
        fail(f"interrupted; {shown(out)} is as it was. The same command goes on.")
        return 130
    for note in result.notes:
        console().print(f"[yellow]![/] {shown(note)}")
    resumed = f", {result.resumed:,} of them before" if result.resumed else ""
    console().print(f"[green]✓[/] {shown(out)}: {counted(result.samples, 'sample')}{resumed}")
    return 0
