"""The one screen of `ocrstore inspect`: a store's facts in words."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from ocrstore.cli.console import console, counted, human_bytes, shown
from ocrstore.format.resume import Unfinished
from ocrstore.inspection.facts import Facts
from ocrstore.inspection.freshness import NEWER, UP_TO_DATE
from ocrstore.inspection.views import recipe_in_words
from ocrstore.summary import ColumnSummary, Summary
from ocrstore.verification import Verification

_SHOWN = 5


def print_facts(facts: Facts, verification: Verification | None) -> None:
    """Print what a store is, where it came from, whether it is sound and what it costs."""
    out = console()
    summary = facts.summary
    out.print(f"[bold]{shown(summary.path)}[/]  [dim]{_what(summary)}[/]")
    out.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in _lines(facts, verification):
        table.add_row(name, text)
    out.print(table)
    out.print()
    out.print(_columns(summary))
    if summary.attributes:
        named = Table.grid(padding=(0, 2))
        named.add_row("[dim]attributes[/]", f"[dim]{shown(', '.join(summary.attributes))}[/]")
        out.print(named)


def _lines(facts: Facts, verification: Verification | None) -> Iterator[tuple[str, str]]:
    summary = facts.summary
    yield "samples", f"[bold]{summary.samples:,}[/]"
    if facts.polygons is not None:
        yield "polygons", _polygons(facts)
    for entry in summary.history[-3:]:
        at = str(entry.get("at")).replace("T", " ").replace("Z", " UTC")
        words = f"{at} by {entry.get('by')}, {entry.get('samples')} samples"
        yield shown(entry.get("action")), shown(words)
    if facts.source:
        yield "built from", shown(facts.source.get("images"))
        if facts.source.get("annotations"):
            yield "", shown(f"annotations in {facts.source['annotations']}")
    if facts.views:
        mark = {UP_TO_DATE: "[green]✓[/] ", NEWER: "[yellow]![/] newer: "}
        words = shown(facts.freshness.in_words())
        yield "source", mark.get(facts.freshness.state, "[yellow]?[/] ") + words
    if facts.problems:
        counted = ", ".join(f"{count} {kind}" for kind, count in facts.problems.items())
        yield "problems", shown(counted)
    for view in facts.views:
        words = shown(" ".join(recipe_in_words(view.recipe)))
        yield f"view {shown(view.name)}", words
        yield "recipe", f"fingerprint {shown(view.fingerprint)}"
    yield "content", f"fingerprint {summary.fingerprint[:32]}…"
    yield "generation", _generation(summary)
    yield from _soundness(facts, verification)
    if facts.unfinished is not None:
        yield "unfinished", _unfinished(facts.unfinished)
    yield "page cache", _cached(summary)
    yield "cost", _cost(summary)


def _what(summary: Summary) -> str:
    return f"an ocrstore file, format {summary.format_version}, {human_bytes(summary.nbytes)}"


def _polygons(facts: Facts) -> str:
    found = facts.polygons
    assert found is not None
    text = f"[bold]{found.total:,}[/]"
    if found.total:
        each = found.total / facts.summary.samples
        text += (
            f", {each:.1f} a sample, {found.ignored:,} ignored ({found.ignored / found.total:.0%})"
        )
    limits = {view.name: view.min_size for view in facts.views}
    for name, count in found.too_small.items():
        if count:
            text += f", {count:,} more under {limits[name]:g} px in view {shown(name)}"
    if found.samples_without:
        plural = "" if found.samples_without == 1 else "s"
        text += f"; {found.samples_without:,} sample{plural} without any"
    return text


def _generation(summary: Summary) -> str:
    older = [str(g) for g in summary.generations if g != summary.generation]
    return f"{summary.generation}" + (f" (also readable: {', '.join(older)})" if older else "")


def _soundness(facts: Facts, verification: Verification | None) -> Iterator[tuple[str, str]]:
    if verification is not None:
        findings = [
            "".join(f"{part}: " for part in (found.sample, found.column) if part) + found.message
            for found in verification.findings
        ]
        sound = (
            f"every byte is as it was written: {counted(verification.rows, 'row')}, "
            f"{human_bytes(verification.checked_nbytes)}"
        )
    else:
        findings = list(facts.integrity.findings)
        sound = (
            f"headers of {facts.integrity.extents:,} extents agree with the index "
            "[dim](--full: all)[/]"
        )
    if not findings:
        yield "integrity", f"[green]✓[/] {sound}"
        return
    yield (
        "integrity",
        f"[red]✗ damaged: {counted(len(findings), 'finding')}[/]; restore or build it again",
    )
    for finding in findings[:_SHOWN]:
        yield "", f"[red]✗[/] {shown(finding)}"
    if len(findings) > _SHOWN:
        yield "", f"… and {len(findings) - _SHOWN} more (--json lists all)"


def _unfinished(found: Unfinished) -> str:
    work = f"{counted(found.samples, 'sample')}, {human_bytes(found.nbytes)}"
    what = f"[yellow]![/] {work}, not published; "
    if found.obstacle:
        return what + f"no use any more: {shown(found.obstacle)}"
    return what + "the command that was interrupted goes on with it, `ocrstore compact` drops it"


def _cached(summary: Summary) -> str:
    if summary.resident_nbytes is None:
        return "unknown on this system"
    share = summary.resident_nbytes / summary.nbytes
    return f"{human_bytes(summary.resident_nbytes)} of {human_bytes(summary.nbytes)} ({share:.0%})"


def _cost(summary: Summary) -> str:
    dead = summary.nbytes - summary.live_nbytes
    rows = f"rows {human_bytes(summary.live_nbytes)}, all else {human_bytes(dead)}"
    if not summary.samples:
        return rows
    return f"[bold]{human_bytes(summary.live_nbytes / summary.samples)}[/] per sample; {rows}"


def _columns(summary: Summary) -> Table:
    table = Table("column", "dtype", "shape", "codec", box=None, padding=(0, 2, 0, 0))
    for name in ("bytes", "per sample"):
        table.add_column(name, justify="right")
    for column in summary.columns:
        each = human_bytes(column.stored_nbytes / summary.samples) if summary.samples else "-"
        codec = column.spec.codec
        if codec != "raw" and column.stored_nbytes:
            codec += f" {column.decoded_nbytes / column.stored_nbytes:.1f}x"
        table.add_row(
            shown(column.name),
            column.spec.dtype,
            _shape(column),
            codec,
            human_bytes(column.stored_nbytes),
            each,
        )
    return table


def _shape(column: ColumnSummary) -> str:
    if not column.max_shape:
        return "x".join("?" if size is None else str(size) for size in column.spec.shape) or "()"
    sizes = zip(column.min_shape, column.max_shape)
    return "x".join(str(low) if low == high else f"{low}..{high}" for low, high in sizes)
