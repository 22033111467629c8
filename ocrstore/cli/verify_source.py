"""`ocrstore verify --source`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from rich.markup import escape

from ocrstore.building.check_source import check_source
from ocrstore.cli.console import console, counted, human_bytes, print_json, progress_bar

_SHOWN = 20


def verify_source(
    store: Path,
    source: Path,
    *,
    sample: int | None,
    annotations: Path | None,
    format: str | None,
    maps: Path | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Hold a store against its source and print the result; returns the exit code."""
    started = time.perf_counter()
    with progress_bar("comparing", quiet=as_json) as advance:
        result = check_source(
            store,
            source,
            annotations=annotations,
            format=format,
            maps=maps,
            sample=sample,
            workers=workers,
            progress=advance,
        )
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"ok": result.ok, **dataclasses.asdict(result)})
        return 0 if result.ok else 1
    out = console()
    for finding in result.findings[:_SHOWN]:
        where = f"sample {finding.sample!r}: " if finding.sample is not None else ""
        where += f"column {finding.column!r}: " if finding.column is not None else ""
        out.print(f"[red]✗[/] {escape(where + finding.message)}")
    if len(result.findings) > _SHOWN:
        out.print(f"[red]✗[/] … and {len(result.findings) - _SHOWN} more (--json lists all)")
    for note in result.notes[:_SHOWN]:
        out.print(f"[dim]· {escape(note)}[/]")
    summary = (
        f"{result.samples} of {counted(result.of, 'sample')} derived again, "
        f"{human_bytes(result.compared_nbytes)} compared in {seconds:.1f} s"
    )
    if result.ok:
        out.print(f"[green]✓[/] {escape(str(store))} is what its source makes: {summary}")
        return 0
    # where nothing could be compared, a build would replace the whole store
    remedy = "`ocrstore build` brings it up to date." if result.samples else ""
    out.print(
        f"[red]✗[/] {escape(str(store))} differs from its source "
        f"({counted(len(result.findings), 'finding')}; {summary}). {remedy}".rstrip()
    )
    return 1
