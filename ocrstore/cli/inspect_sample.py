"""What `ocrstore inspect STORE KEY` prints: one sample's facts, and its picture if possible."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ocrstore.cli.console import console, human_bytes, shown
from ocrstore.errors import DecodeError
from ocrstore.inspection import graphics, terminal
from ocrstore.inspection.sample import SampleFacts, picture_of
from ocrstore.inspection.shrinking import draw_outlines, fit, shrink
from ocrstore.store import Store

_POLYGONS_SHOWN = 12
_LINES_LEFT = 4
# shown in words above, or too long for one line
_NOT_REPEATED = ("width", "height", "orientation", "polygons", "ignored", "texts", "languages")


def print_sample(store: Store, facts: SampleFacts, *, picture: bool | None) -> None:
    """Print one sample; `picture` None means: if the output is a terminal."""
    out = console()
    out.print(f"[bold]{shown(facts.key)}[/]  [dim]row {facts.row} of {shown(facts.path)}[/]")
    if picture or (picture is None and sys.stdout.isatty()):
        try:
            _show(store, facts)
        except DecodeError as exc:
            out.print(f"[yellow]no picture:[/] {shown(exc)}")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in _lines(facts):
        table.add_row(name, text)
    out.print(table)
    out.print()
    columns = Table("column", "dtype", "shape", "codec", box=None, padding=(0, 2, 0, 0))
    columns.add_column("bytes", justify="right")
    columns.add_column("offset", justify="right")
    columns.add_column("xxh3")
    for row in facts.rows:
        columns.add_row(
            shown(row.column),
            row.dtype,
            "x".join(map(str, row.shape)) or "()",
            row.codec,
            human_bytes(row.nbytes),
            str(row.offset),
            row.hash[:8] + "…",
        )
    out.print(columns)


def _lines(facts: SampleFacts) -> Iterator[tuple[str, str]]:
    attributes = facts.attributes
    if attributes.get("width") and attributes.get("height"):
        text = f"{attributes['width']} x {attributes['height']} (width x height)"
        if attributes.get("orientation") not in (None, 1):
            text += f", EXIF orientation {attributes['orientation']} undone"
        yield "picture", text
    if isinstance(attributes.get("polygons"), list):
        polygons, ignored = facts.polygons, facts.ignored
        yield "polygons", f"{len(polygons)}, {sum(ignored)} ignored"
        for points, skip, word in list(zip(polygons, ignored, facts.texts))[:_POLYGONS_SHOWN]:
            yield "", _polygon(points, skip, word)
        if len(polygons) > _POLYGONS_SHOWN:
            yield "", f"[dim]… and {len(polygons) - _POLYGONS_SHOWN} more (--json lists all)[/]"
    for name, value in attributes.items():
        if name in _NOT_REPEATED and "polygons" in attributes:
            continue
        if value is None or value == []:
            continue
        yield shown(name), shown(_short(name, value))


def _polygon(points: Any, ignored: bool, text: str | None) -> str:
    if not len(points):
        return "[red]without points[/]"
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    place = f"{right - left:.0f} x {bottom - top:.0f} px at {left:.0f}, {top:.0f}"
    words = "[red]ignored[/] " if ignored else "[green]counted[/] "
    return words + shown(f"{place}" + (f"  {text!r}" if text else ""))


def _short(name: str, value: Any) -> str:
    text = str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("_hash"):
            text = f"{value:016x}"
        elif name.endswith("_mtime_ns"):
            text = f"{datetime.fromtimestamp(value / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
        elif name.endswith("_nbytes"):
            text = human_bytes(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _show(store: Store, facts: SampleFacts) -> None:
    found = picture_of(store, facts.row)
    if found is None:
        return
    way = terminal.BLOCKS
    if sys.stdout.isatty():
        way = terminal.detect(os.environ)
    columns, lines = shutil.get_terminal_size((80, 24))
    columns, lines = min(columns, 160), max(8, lines - _LINES_LEFT)
    cell = (2, 1) if way == terminal.BLOCKS else terminal.cell_pixels()
    size = found.pixels.shape[0], found.pixels.shape[1]
    height, width = fit(size, (lines * cell[0], columns * cell[1]))
    small = shrink(found.pixels, height, width)
    matrix = np.diag((width / size[1], height / size[0], 1.0)) @ found.to_pixels
    drawn = draw_outlines(small, facts.polygons, facts.ignored, matrix=matrix)
    cells = max(1, round(width / cell[1]))
    if way == terminal.BLOCKS:
        if sys.stdout.isatty():
            out = Console(highlight=False)
        else:  # asked for a picture, a file or a pipe gets its colours as well
            out = Console(
                highlight=False, color_system="truecolor", force_terminal=True, width=columns
            )
        out.print(graphics.to_blocks(drawn), soft_wrap=True)
        return
    encoded = {
        terminal.KITTY: lambda: graphics.to_kitty(drawn, columns=cells),
        terminal.ITERM: lambda: graphics.to_iterm(drawn, columns=cells),
        terminal.SIXEL: lambda: graphics.to_sixel(drawn),
    }[way]()
    sys.stdout.write(encoded)
    sys.stdout.flush()
