"""`ocrstore warm`."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.markup import escape

from ocrstore.cli.console import (
    STORE,
    console,
    explain_missing,
    human_bytes,
    print_json,
    progress_bar,
)


@click.command("warm")
@click.argument("store", type=STORE)
@click.option("--view", help="The view to read; the default one if not given.")
@click.option("--column", "columns", multiple=True, help="A column to read; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the result for programs.")
def warm_command(store: Path, view: str | None, columns: tuple[str, ...], as_json: bool) -> int:
    """Read a view's columns into the page cache, so that the first epoch is as fast as the others.

    \b
    Examples:
      ocrstore warm val.ocrs
      ocrstore warm train.ocrs --column image
    """
    with explain_missing("warm", "torch"):
        from ocrstore.torch.dataset import OCRStoreDataset
    dataset = OCRStoreDataset(store, view=view, columns=columns or None)
    started = time.perf_counter()
    with progress_bar("warming", in_bytes=True, quiet=as_json) as advance:
        nbytes = dataset.warm(progress=advance)
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"path": str(store), "nbytes": nbytes, "seconds": seconds})
    else:
        out = console()
        out.print(
            f"[green]✓[/] {human_bytes(nbytes)} of {escape(str(store))} are in the page cache"
            f" ({seconds:.1f} s)"
        )
    return 0
