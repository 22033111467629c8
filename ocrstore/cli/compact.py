"""`ocrstore compact`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import (
    ONE_STORE,
    console,
    counted,
    explain_missing,
    human_bytes,
    print_json,
    progress_bar,
    shown,
)


@click.command("compact")
@click.argument("store", type=ONE_STORE)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def compact_command(store: Path, as_json: bool) -> None:
    """Rewrite a store without dead space, older generations and interrupted builds.

    The new file is written beside the old one and then renamed, so there must be room for both.
    The fingerprint does not change; processes that have the old file open keep reading it. On
    Windows an open store cannot be replaced: stop its readers first.

    \b
    Example:
      ocrstore compact val.ocrs
    """
    with explain_missing("compact"):
        from ocrstore.format.compact import compact
        from ocrstore.format.resume import find_unfinished
    before = store.stat().st_size
    found = find_unfinished(store)
    with progress_bar("compacting", quiet=as_json) as advance:
        compact(store, progress=advance)
    after = store.stat().st_size
    if as_json:
        dropped = 0 if found is None else found.samples
        record = {"path": str(store), "nbytes_before": before, "nbytes_after": after}
        print_json({**record, "dropped_samples": dropped})
    else:
        if found is not None:
            nbytes = human_bytes(found.nbytes)
            work = counted(found.samples, "sample")
            console().print(f"dropped {work} ({nbytes}) of an interrupted build")
        console().print(
            f"[green]✓[/] {shown(store)}: {human_bytes(before)} -> {human_bytes(after)}"
        )
