"""`ocrstore verify`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click
from rich.markup import escape

from ocrstore.cli.console import STORE, console, counted, human_bytes, print_json, progress_bar
from ocrstore.cli.extras import explain_missing
from ocrstore.verification import verify

_SHOWN = 20
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("verify")
@click.argument("store", type=STORE)
@click.option("--source", type=FOLDER, help="The pictures: derive every sample again and compare.")
@click.option("--sample", type=click.IntRange(1), help="With --source: only so many samples.")
@click.option("--annotations", type=click.Path(exists=True, path_type=Path), help="As in build.")
@click.option("--format", "format_", help="As in build.")
@click.option("--maps", type=FOLDER, help="As in build.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="With --source: worker processes; by default all cores.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result for programs.")
def verify_command(
    store: Path,
    source: Path | None,
    sample: int | None,
    annotations: Path | None,
    format_: str | None,
    maps: Path | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Read the whole file and prove that every byte is as it was written.

    Names the sample and the column of any damaged row. Dead space is noted, not a problem.

    With --source every sample is derived from its picture again, by the live pipeline, and
    compared bit by bit with what is stored.

    \b
    Examples:
      ocrstore verify val.ocrs
      ocrstore verify val.ocrs --source images/
      ocrstore verify val.ocrs --source images/ --sample 50
      ocrstore verify val.ocrs --json | jq .findings

    Exit code 1 if anything is wrong.
    """
    if source is not None:
        with explain_missing("verify --source", "build"):  # decoders are needed for this only
            from ocrstore.cli.verify_source import verify_source

        return verify_source(
            store,
            source,
            sample=sample,
            annotations=annotations,
            format=format_,
            maps=maps,
            workers=workers,
            as_json=as_json,
        )
    if sample or annotations or format_ or maps or workers is not None:
        raise click.UsageError(
            "--sample, --annotations, --format, --maps and --workers go with --source."
        )
    started = time.perf_counter()
    with progress_bar("verifying", in_bytes=True, quiet=as_json) as advance:
        result = verify(store, progress=advance)
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"ok": result.ok, **dataclasses.asdict(result)})
        return 0 if result.ok else 1
    out = console()
    for finding in result.findings[:_SHOWN]:
        where = "".join(
            f"{name} {value!r}: "
            for name, value in (("sample", finding.sample), ("column", finding.column))
            if value is not None
        )
        out.print(f"[red]✗[/] {escape(where + finding.message)}")
    if len(result.findings) > _SHOWN:
        out.print(f"[red]✗[/] … and {len(result.findings) - _SHOWN} more (--json lists all)")
    for note in result.notes:
        out.print(f"[dim]· {escape(note)}[/]")
    summary = (
        f"{counted(result.rows, 'row')} of {counted(result.samples, 'sample')}, "
        f"{human_bytes(result.checked_nbytes)} checked in {seconds:.1f} s"
    )
    if result.ok:
        out.print(f"[green]✓[/] {escape(str(store))} is sound: {summary}")
        return 0
    out.print(
        f"[red]✗[/] {escape(str(store))} is damaged "
        f"({counted(len(result.findings), 'finding')}; {summary}). "
        "Restore it from a copy, or build it again."
    )
    return 1
