"""`ocrstore build --dry-run`: expected sizes in every codec, and what fits disk and page cache."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

from rich.markup import escape
from rich.table import Table

from ocrstore.building.estimate import HEADROOM, Advice, Estimate, advise, estimate
from ocrstore.building.plan import BuildPlan
from ocrstore.cli.console import console, counted, human_bytes
from ocrstore.machine import look_at_memory
from ocrstore.recipe import CODECS


def describe(plan: BuildPlan, *, max_pixels: int) -> dict[str, Any]:
    """Return what a build would do and the expected sizes, for json.dumps."""
    expected, advice, free = _measure(plan, max_pixels)
    return {
        "store": str(plan.target),
        "action": plan.action,
        "reasons": list(plan.reasons),
        "mistaken": plan.mistaken,
        "samples": expected.samples,
        "columns": expected.columns,
        "nbytes": expected.total_nbytes,
        "codecs": {name: dict(sizes) for name, sizes in expected.nbytes.items()},
        "free_nbytes": free,
        "page_cache": {**dataclasses.asdict(advice), "command": advice.command},
        "unfinished": None
        if plan.unfinished is None
        else {**plan.unfinished.to_json(), "obstacle": plan.obstacle},
    }


def print_expected(plan: BuildPlan, *, max_pixels: int) -> None:
    """Print the expected sizes, and whether disk and page cache have room for them."""
    out = console()
    if plan.mistaken:
        out.print(
            f"  [yellow]![/] {escape(plan.mistaken)} a build without --force would be refused"
        )
    expected, advice, free = _measure(plan, max_pixels)
    _print_sizes(expected)
    room = "enough" if free > expected.total_nbytes else "[red]not enough[/]"
    folder = escape(str(plan.target.absolute().parent))
    out.print(f"disk     {human_bytes(free)} free in {folder}: {room}")
    _print_advice(advice)
    out.print("nothing was written")


def _measure(plan: BuildPlan, max_pixels: int) -> tuple[Estimate, Advice, int]:
    expected = estimate(plan.source, plan.views, max_pixels=max_pixels)
    free = shutil.disk_usage(plan.target.absolute().parent).free
    return expected, advise(expected, look_at_memory()), free


def _print_sizes(expected: Estimate) -> None:
    out = console()
    table = Table("column", "codec", "bytes", "per sample", *(f"as {c}" for c in CODECS), box=None)
    for name, nbytes in expected.columns.items():
        each = human_bytes(nbytes / max(1, expected.samples))
        sizes = expected.nbytes[name]
        others = [human_bytes(sizes[codec]) if codec in sizes else "" for codec in CODECS]
        table.add_row(escape(name), expected.chosen[name], human_bytes(nbytes), each, *others)
    out.print(table)
    out.print(
        f"expected [bold]{human_bytes(expected.total_nbytes)}[/] for "
        f"{counted(expected.samples, 'picture')} (measured on {expected.measured})"
    )


def _print_advice(advice: Advice) -> None:
    out = console()
    memory = advice.memory
    out.print(
        f"memory   {human_bytes(memory.available_nbytes)} of {human_bytes(memory.total_nbytes)} "
        f"available ({memory.limited_by}); a store may take {HEADROOM:.0%} of it, "
        f"{human_bytes(advice.limit_nbytes)}"
    )
    if advice.fits_as_asked:
        out.print("[green]✓[/] fits the page cache with these codecs")
        return
    out.print("[yellow]![/] does not fit the page cache; to make it smaller:")
    for step in advice.steps:
        out.print(f"  · {escape(step)}")
    verdict = "fits" if advice.fits_as_advised else "still does not fit"
    out.print(f"  with that it {verdict}: {human_bytes(advice.advised_nbytes)}")
    out.print(f"  {escape(advice.command)}")
    if not advice.fits_as_advised:
        out.print("  also choose a smaller --size, or read from a fast disk", style="dim")
