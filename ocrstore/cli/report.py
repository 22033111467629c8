"""`ocrstore report`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from ocrstore.cli.console import STORE, TARGET, console, human_bytes
from ocrstore.report import SAMPLES, write_report
from ocrstore.store import Store


@click.command("report")
@click.argument("store", type=STORE)
@click.option(
    "--out",
    required=True,
    type=TARGET,
    help="The HTML file; one that is there is replaced.",
)
@click.option(
    "--samples",
    type=click.IntRange(0),
    default=SAMPLES,
    show_default=True,
    help="Pictures on the contact sheet, chosen for variety.",
)
@click.option("--generation", type=int, help="An older generation instead of the newest.")
def report_command(store: Path, out: Path, samples: int, generation: int | None) -> None:
    """Write a report on a store: one HTML file to open, send and keep.

    A contact sheet with polygons and maps, distributions, what the build reported, and the samples
    that are worth a look. It needs no network and no other file.

    \b
    Examples:
      ocrstore report val.ocrs --out report.html
      ocrstore report val.ocrs --out report.html --samples 200
    """
    if out.exists() and out.samefile(store):
        raise click.UsageError(f"--out {out} is the store itself; name another file.")
    with Store(store, generation=generation) as opened:
        nbytes = write_report(opened, out, samples=samples)
    console().print(f"[green]✓[/] {escape(str(out))}, {human_bytes(nbytes)}")
