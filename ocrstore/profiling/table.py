"""Owns how a profile and its advice look in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ocrstore.profiling.advice import Advice
from ocrstore.profiling.records import Cost, Profile

_SIGNS = {
    "bake": "[green]✓ bake[/]",
    "cannot": "[yellow]· cannot[/]",
    "instead": "[cyan]→ instead[/]",
    "have": "[dim]· have[/]",
}
_KINDS = {
    "bakeable": "[green]bakeable[/]",
    "deterministic": "fixed, but late",
    "random": "[yellow]random[/]",
    "unfit": "[yellow]unfit[/]",
}


def print_profile(profile: Profile, advice: Sequence[Advice], out: Console) -> None:
    """Print table and advice."""
    out.print(make_table(profile))
    out.print(_total(profile))
    for note in profile.notes:
        out.print(f"[dim]· {escape(note)}[/]")
    if profile.busy:
        out.print(
            "[dim]· the clock says much more than the processor: the machine had other work to do, "
            "or waited for the disk. Shares and epochs go by `cpu ms`[/]"
        )
    out.print()
    for one in advice:
        out.print(f"{_SIGNS[one.verdict]}  {escape(one.text)}{escape(saving(one))}")
        if one.how:
            out.print(f"          [bold]{escape(one.how)}[/]")


def make_table(profile: Profile) -> Table:
    """Lay the costs out, those that a sample does not meet below a line."""
    table = Table(
        title=f"{escape(profile.pipeline)}: per sample, median of {profile.repeats} repeats over "
        f"{profile.measured} samples",
        title_justify="left",
    )
    table.add_column("step", overflow="fold", min_width=22)
    for name in ("ms", "min–max", "cpu ms", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    kinds = {step.cost.name: _KINDS[step.kind] for step in profile.steps}
    path = [cost for cost in profile.costs if cost.in_path]
    others = [cost for cost in profile.costs if not cost.in_path]
    for number, cost in enumerate(path):
        kind = kinds.get(cost.name, "") if cost.part == "transform" else ""
        _add(table, profile, cost, kind, last=number == len(path) - 1)
    for cost in others:
        _add(table, profile, cost, "[dim]compare[/]", last=False)
    return table


def saving(advice: Advice) -> str:
    """Say in words what a piece of advice saves and costs."""
    if advice.saves_ms <= 0:
        return ""
    verb = "saved" if advice.verdict == "have" else "saves"
    about = "about " if advice.estimated else ""
    text = (
        f" — {verb} {about}{advice.saves_ms:.2f} ms per sample "
        f"({advice.saves_processor_ms:.2f} of the processor), "
        f"{advice.saves_epoch_s:.1f} s per epoch"
    )
    if advice.costs_nbytes is not None:
        text += f"; takes {_bytes(advice.costs_nbytes)} on disk"
    return text


def _add(table: Table, profile: Profile, cost: Cost, kind: str, *, last: bool) -> None:
    low, high = cost.extremes
    share = profile.share(cost)
    table.add_row(
        escape(cost.name),
        f"{cost.ms:.2f}",
        f"{low:.2f}–{high:.2f}",
        f"{cost.processor_ms:.2f}",
        "" if share is None else f"{share:.0%}",
        kind,
        end_section=last,
    )


def _total(profile: Profile) -> str:
    who = f"{profile.workers} workers" if profile.workers else "no workers"
    limit = ""
    if profile.workers > profile.cpus:
        limit = f", of which {profile.cpus} can run at once"
    return (
        f"[bold]{profile.total_ms:.2f} ms per sample[/] "
        f"({profile.total_processor_ms:.2f} of the processor); an epoch of "
        f"{profile.samples} samples takes {profile.epoch_seconds(profile.weighed_ms):.1f} s with "
        f"{who}{limit}"
    )


def _bytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
