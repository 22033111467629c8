"""What `ocrstore inspect --diff` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ocrstore.cli.console import console, counted, shown
from ocrstore.inspection.difference import Difference

_SHOWN = 3
_MARKS = {
    "same": "[green]=[/]",
    "changed": "[yellow]≠[/]",
    "respecified": "[yellow]≠[/]",
    "added": "[green]+[/]",
    "removed": "[red]-[/]",
}


def print_difference(difference: Difference) -> None:
    """Print what differs in recipe, samples and content."""
    out = console()
    out.print(f"[bold]{shown(difference.one)}[/] → [bold]{shown(difference.other)}[/]")
    if not difference.any:
        out.print("[green]✓[/] the same recipes, samples and content")
        return
    out.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    _rows(table, "recipe", difference.recipes, "the same")
    samples = [
        _named(mark, word, keys)
        for mark, word, keys in (
            ("[green]+[/]", "added", difference.added),
            ("[red]-[/]", "removed", difference.removed),
            ("[yellow]≠[/]", "changed", difference.changed),
        )
        if keys
    ]
    if difference.reordered:
        samples.append("[yellow]≠[/] in another order")
    _rows(table, "samples", samples, "the same", marked=True)
    _rows(table, "build", difference.build, "the same")
    out.print(table)
    out.print()
    columns = Table("", "content", "kind", "samples that differ", "", box=None)
    same = {"column": 0, "attribute": 0}
    for column in difference.columns:
        if column.state == "same":
            same[column.kind] += 1
            continue
        count = f"{column.changed:,}" if column.state in ("changed", "respecified") else "-"
        columns.add_row(
            _MARKS[column.state],
            shown(column.name),
            f"{column.kind} {column.state}",
            count,
            shown(column.detail),
        )
    if columns.row_count:
        out.print(columns)
    if not difference.shared:
        out.print("no sample is in both", style="dim")
    elif any(same.values()):
        words = (
            f"{counted(same['column'], 'column')} and {counted(same['attribute'], 'attribute')} "
            f"are the same over the {counted(difference.shared, 'sample')} in both"
        )
        out.print(f"{_MARKS['same']} {words}", style="dim")


def _rows(
    table: Table, name: str, lines: Sequence[str], otherwise: str, *, marked: bool = False
) -> None:
    for number, line in enumerate(lines or [otherwise]):
        text = line if marked else shown(line)
        table.add_row(name if number == 0 else "", text)


def _named(mark: str, word: str, keys: Sequence[str]) -> str:
    first = ", ".join(shown(key) for key in keys[:_SHOWN])
    more = f", … (--json lists all {len(keys):,})" if len(keys) > _SHOWN else ""
    return f"{mark} {len(keys):,} {word}: {first}{more}"
