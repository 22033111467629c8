"""`ocrstore report`."""

from __future__ import annotations

from pathlib import Path

import click

from ocrstore.cli.console import DATASET, TARGET, console, explain_missing, human_bytes, shown

SAMPLES = 48


@click.command("report")
@click.argument("store", type=DATASET)
@click.option(
    "--out",
    required=True,
    type=TARGET,
    help="HTML file to write; an existing one is replaced.",
)
@click.option(
    "--samples",
    type=click.IntRange(0),
    default=SAMPLES,
    show_default=True,
    help="Pictures on the contact sheet.",
)
@click.option(
    "--predictions",
    type=click.Path(exists=True, path_type=Path),
    help="Boxes of a detector to draw, as `predict` writes them; the sheet begins with the worst.",
)
@click.option("--generation", type=int, help="Report on an older generation.")
def report_command(
    store: Path, out: Path, samples: int, predictions: Path | None, generation: int | None
) -> None:
    """Write a report on a store: one self-contained HTML file.

    It has a contact sheet with polygons and maps, distributions, suspicious samples, the problems
    that the build reported, and the columns.

    \b
    Examples:
      ocrstore report val.ocrs --out report.html
      ocrstore report val.ocrs --out report.html --samples 200
      ocrstore report val.ocrs --out report.html --predictions boxes/
    """
    if out.exists() and out.samefile(store):
        raise click.UsageError(f"--out {out} is the store itself: name another file.")
    with explain_missing("report", "build"):
        from ocrstore.report import write_report
        from ocrstore.store import Store
    with Store(store, generation=generation) as opened:
        nbytes = write_report(opened, out, samples=samples, predictions=predictions)
    console().print(f"[green]✓[/] {shown(out)}, {human_bytes(nbytes)}")
