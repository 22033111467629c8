"""HTML elements, and charts as inline SVG: histograms, named bars, bubbles."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# characters that XML and HTML do not allow, and those that reorder text
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
_VOID = {"br", "hr", "img", "input", "link", "meta"}
WIDTH, HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 8, 14, 26


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Escape text for HTML; markup is returned unchanged."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_UNPRINTABLE.sub("�", str(value)), quote=True))


def tag(name: str, /, *children: Any, **attributes: object) -> Markup:
    """Return an element; attributes that are None are left out, `class_` becomes `class`."""
    written = "".join(
        f' {attribute.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for attribute, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Markup:
    """Concatenate children, leaving out None."""
    return Markup("".join(escape(child) for child in children if child is not None))


@dataclass(frozen=True, slots=True)
class Bar:
    """One bin: count, tooltip, and whether it is drawn as a warning."""

    count: int
    title: str
    warn: bool = False


def bars(
    bins: Sequence[Bar],
    ticks: Sequence[tuple[float, str]],
    *,
    label: str,
    line: float | None = None,
) -> Markup:
    """Draw a histogram; ticks and line are positions in bins, from 0 to their number."""
    top = nice_ceiling(max((bar.count for bar in bins), default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(bins))
    base = HEIGHT - _BOTTOM
    parts = [_grid(top)]
    for number, bar in enumerate(bins):
        if not bar.count:
            continue
        # whatever is there stays visible beside what is frequent
        high = max(1.5, (base - _TOP) * bar.count / top)
        parts.append(
            tag(
                "rect",
                tag("title", f"{bar.title}: {bar.count:,}"),
                x=_n(_LEFT + number * step + step * 0.06),
                y=_n(base - high),
                width=_n(step * 0.88),
                height=_n(high),
                class_="bar warn" if bar.warn else "bar",
            )
        )
    for position, text in ticks:
        x = _n(_LEFT + position * step)
        parts.append(tag("line", x1=x, x2=x, y1=base, y2=base + 3, class_="axis"))
        parts.append(tag("text", text, x=x, y=base + 15, class_="tick mid"))
    if line is not None:
        x = _n(_LEFT + line * step)
        parts.append(tag("line", x1=x, x2=x, y1=_TOP - 8, y2=base, class_="limit"))
    parts.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=base, y2=base, class_="axis"))
    return _svg(parts, HEIGHT, label)


def named_bars(rows: Sequence[tuple[str, int, bool]], *, label: str) -> Markup:
    """Draw horizontal bars, each with its name, its count and its share."""
    total = sum(count for _, count, _ in rows) or 1
    top = max((count for _, count, _ in rows), default=1) or 1
    pitch = 24
    parts: list[Markup] = []
    for number, (name, count, warn) in enumerate(rows):
        y = 8 + number * pitch
        wide = (WIDTH - 160 - 92) * count / top
        parts.append(tag("text", name, x=150, y=y + 12, class_="tick end"))
        parts.append(
            tag(
                "rect",
                x=158,
                y=y,
                width=_n(max(wide, 1.5 if count else 0)),
                height=16,
                class_="bar warn" if warn else "bar",
            )
        )
        share = f"{count:,} ({percent(count, total)})"
        parts.append(tag("text", share, x=_n(164 + wide), y=y + 12, class_="tick"))
    return _svg(parts, 16 + pitch * len(rows), label, kind="chart low")


def bubbles(points: Sequence[tuple[float, float, int]], *, label: str) -> Markup:
    """Draw circles with areas in proportion to counts, on two axes from 0 with one scale."""
    widest = max((x for x, _, _ in points), default=1)
    tallest = max((y for _, y, _ in points), default=1)
    most = max((count for _, _, count in points), default=1)
    right, top = nice_ceiling(widest), nice_ceiling(tallest)
    base = HEIGHT - _BOTTOM
    parts = [_grid(top)]
    for share in (0.0, 0.5, 1.0):
        x = _LEFT + share * (WIDTH - _LEFT - _RIGHT - 14)
        text = f"{right * share:,.0f}"
        parts.append(tag("text", text, x=_n(x), y=base + 15, class_="tick mid"))
    # named between the numbers, where there is room
    middle = _LEFT + 0.75 * (WIDTH - _LEFT - _RIGHT - 14)
    parts.append(tag("text", "wide", x=_n(middle), y=base + 15, class_="tick mid"))
    parts.append(
        tag("text", "high", x=_LEFT - 6, y=_n((_TOP * 3 + base) / 4 + 4), class_="tick end")
    )
    for x, y, count in sorted(points, key=lambda point: -point[2]):
        parts.append(
            tag(
                "circle",
                tag("title", f"{x:,.0f} x {y:,.0f}: {count:,}"),
                cx=_n(_LEFT + x / right * (WIDTH - _LEFT - _RIGHT - 14)),
                cy=_n(base - y / top * (base - _TOP)),
                r=_n(3 + 11 * math.sqrt(count / most) if most > 1 else 4),
                class_="bubble",
            )
        )
    parts.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=base, y2=base, class_="axis"))
    return _svg(parts, HEIGHT, label)


def stacked(parts: Sequence[tuple[str, int, str]], *, label: str) -> Markup:
    """Draw one bar divided into shares: (name, count, CSS class)."""
    total = sum(count for _, count, _ in parts) or 1
    x = 0.0
    drawn: list[Markup] = []
    for number, (name, count, kind) in enumerate(parts):
        wide = WIDTH * count / total
        if count:
            title = tag("title", f"{name}: {count:,}")
            drawn.append(
                tag("rect", title, x=_n(x), y=6, width=_n(wide), height=34, class_=f"share {kind}")
            )
        y = 64 + 21 * number
        drawn.append(tag("rect", x=0, y=y - 11, width=13, height=13, rx=3, class_=f"share {kind}"))
        drawn.append(tag("text", name, x=20, y=y, class_="tick"))
        text = f"{count:,} ({percent(count, total)})"
        drawn.append(tag("text", text, x=WIDTH, y=y, class_="tick end"))
        x += wide
    return _svg(drawn, 64 + 21 * len(parts) - 8, label, kind="chart low")


def half_octaves(
    values: npt.NDArray[np.float64], *, anchor: float, low: int, high: int
) -> npt.NDArray[np.int64]:
    """Count values into bins of half an octave with an edge exactly at `anchor`.

    Bin i spans anchor * 2**((low + i) / 2) and on; the first and the last include what is beyond.
    """
    edges = half_octave_edges(anchor, low, high)
    counted = np.clip(values[np.isfinite(values)], edges[0], edges[-1])
    return np.histogram(counted, edges)[0]


def half_octave_edges(anchor: float, low: int, high: int) -> npt.NDArray[np.float64]:
    """Return the edges of the bins; whole octaves are exact."""
    return np.array([anchor * 2.0 ** (step / 2) for step in range(low, high + 1)])


def nice_ceiling(value: float) -> float:
    """Round up to 1, 2, 4, 5 or 10 times a power of ten."""
    if value <= 1:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 6, 8, 10) if step * power >= value)


def percent(count: float, total: float) -> str:
    """Format a share; 0% and 100% mean exactly that."""
    if not total:
        return "0 %"
    share = 100 * count / total
    if 0 < share < 0.1:
        return "<0.1 %"
    if 99.9 < share < 100:
        return ">99.9 %"
    return f"{share:.1f} %".replace(".0 %", " %")


def _grid(top: float) -> Markup:
    base = HEIGHT - _BOTTOM
    parts = []
    for share in (0.5, 1.0):
        if share == 0.5 and top < 2:
            continue
        y = base - share * (base - _TOP)
        parts.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=_n(y), y2=_n(y), class_="grid"))
        parts.append(tag("text", _count(top * share), x=_LEFT - 6, y=_n(y + 4), class_="tick end"))
    return join(parts)


def _count(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _svg(parts: Sequence[Markup], height: float, label: str, *, kind: str = "chart") -> Markup:
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_label=label,
        class_=kind,
    )


def _n(value: float) -> str:
    return f"{value:.1f}"
