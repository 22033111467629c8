"""`ocrstore inspect`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from ocrstore.cli.console import STORE, console, human_bytes, print_json
from ocrstore.store import Store
from ocrstore.summary import ColumnSummary, Summary, summarize


@click.command("inspect")
@click.argument("store", type=STORE)
@click.option("--generation", type=int, help="An older generation instead of the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts for programs.")
def inspect_command(store: Path, generation: int | None, as_json: bool) -> None:
    """Say what is in a store and what it costs, without reading its payload.

    \b
    Examples:
      ocrstore inspect val.ocrs
      ocrstore inspect val.ocrs --generation 1
      ocrstore inspect val.ocrs --json | jq .samples
    """
    with Store(store, generation=generation) as opened:
        summary = summarize(opened)
    if as_json:
        print_json(summary.to_json())
    else:
        _print(summary)


def _print(summary: Summary) -> None:
    out = console()
    older = [str(g) for g in summary.generations if g != summary.generation]
    facts = Table.grid(padding=(0, 2))
    facts.add_row("samples", f"[bold]{summary.samples}[/]")
    facts.add_row("file", f"{human_bytes(summary.nbytes)}, format {summary.format_version}")
    if summary.samples:
        facts.add_row("per sample", human_bytes(summary.live_nbytes / summary.samples))
    dead = summary.nbytes - summary.live_nbytes
    facts.add_row("rows", f"{human_bytes(summary.live_nbytes)}, all else {human_bytes(dead)}")
    facts.add_row(
        "generation",
        f"{summary.generation}" + (f" (also readable: {', '.join(older)})" if older else ""),
    )
    facts.add_row("fingerprint", summary.fingerprint[:16] + "…")
    facts.add_row("page cache", _cached(summary))
    for entry in summary.history[-3:]:
        facts.add_row(
            escape(str(entry.get("action"))),
            escape(f"{entry.get('at')} by {entry.get('by')}, {entry.get('samples')} samples"),
        )
    out.print(f"[bold]{escape(summary.path)}[/]")
    out.print(facts)
    columns = Table("column", "dtype", "shape", "codec", "bytes", "per sample", box=None)
    for column in summary.columns:
        each = human_bytes(column.stored_nbytes / summary.samples) if summary.samples else "-"
        columns.add_row(
            escape(column.name),
            column.spec.dtype,
            _shape(column),
            column.spec.codec,
            human_bytes(column.stored_nbytes),
            each,
        )
    out.print(columns)
    if summary.attributes:
        named = ", ".join(f"{name}: {kind}" for name, kind in summary.attributes.items())
        out.print(f"attributes  {escape(named)}", style="dim")


def _shape(column: ColumnSummary) -> str:
    if not column.max_shape:
        return "x".join("?" if size is None else str(size) for size in column.spec.shape) or "()"
    sizes = zip(column.min_shape, column.max_shape)
    return "x".join(str(low) if low == high else f"{low}..{high}" for low, high in sizes)


def _cached(summary: Summary) -> str:
    if summary.resident_nbytes is None:
        return "unknown on this system"
    share = summary.resident_nbytes / summary.nbytes
    return f"{human_bytes(summary.resident_nbytes)} of {human_bytes(summary.nbytes)} ({share:.0%})"
