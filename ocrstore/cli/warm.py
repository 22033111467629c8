"""`ocrstore warm`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ocrstore.cli.console import (
    DATASET,
    console,
    explain_missing,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)


@click.command("warm")
@click.argument("store", type=DATASET)
@click.option("--view", help="View to read; by default the store's default view.")
@click.option("--column", "columns", multiple=True, help="Column to read; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def warm_command(store: Path, view: str | None, columns: tuple[str, ...], as_json: bool) -> int:
    """Read the columns of a view into the page cache, so that the first epoch is fast, too.

    \b
    Examples:
      ocrstore warm val.ocrs
      ocrstore warm train.ocrs --column image
    """
    with explain_missing("warm", "torch"):
        from ocrstore.torch.dataset import OCRStoreDataset
    from ocrstore.remote.cache import given_place

    dataset = OCRStoreDataset(store, view=view, columns=columns or None)
    started = time.perf_counter()
    with progress_bar("warming", in_bytes=True, quiet=as_json) as advance:
        nbytes = dataset.warm(progress=advance)
    seconds = time.perf_counter() - started
    place = given_place(store)
    if as_json:
        print_json({"path": place, "nbytes": nbytes, "seconds": seconds})
    else:
        out = console()
        out.print(
            f"[green]✓[/] {human_bytes(nbytes)} of {shown(place)} are in the page cache"
            f" ({seconds:.1f} s)"
        )
    return 0
