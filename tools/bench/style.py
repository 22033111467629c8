"""How all plots of the docs look: one accent for ocrstore, grey for the rest, a caption below."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # the backend has to be chosen before

ACCENT = "#c2410c"
OTHER = "#94a3b8"
LIMIT = "#475569"
SECOND = "#fdba74"
SECOND_OTHER = "#dbe2ea"
INK = "#1e293b"
FAINT = "#64748b"
OPTIONS = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": "#cbd5e1",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "xtick.color": FAINT,
    "ytick.color": INK,
    "grid.color": "#e2e8f0",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "ocrstore",
}
applied = plt.rc_context(OPTIONS)
"""A decorator: the plots of a function are in this style, those of others are not."""


def figure(rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes in the style of the docs."""
    return plt.subplots(rows, columns, **options)


def colour(peer: str) -> str:
    """Return the colour of a peer's bars and lines."""
    if peer.startswith("ocrstore"):
        return ACCENT
    return LIMIT if peer.startswith("limit") else OTHER


def caption(about: Mapping[str, str]) -> str:
    """Return the line below a plot: date, machine, command."""
    parts = [about.get("date", ""), about.get("machine", ""), about.get("command", "")]
    return "  ·  ".join(part for part in parts if part)


def save(drawn: Any, path: Path, about: Mapping[str, str]) -> Path:
    """Write a figure with its caption as SVG or PNG, by the path's suffix; the same bytes each time."""
    lines = textwrap.wrap(caption(about), int(17 * drawn.get_figwidth()))
    drawn.text(0.01, 0.008, "\n".join(lines), fontsize=7, color=FAINT, ha="left", va="bottom")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    drawn.savefig(path, metadata=metadata, dpi=150)
    plt.close(drawn)
    return path


def headline(drawn: Any, text: str) -> None:
    """Write the title of a figure of several axes, and keep room for it and for the caption."""
    drawn.suptitle(text, x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    keep_room(drawn)


def keep_room(drawn: Any) -> None:
    """Keep the caption's line free."""
    line = 0.2 / drawn.get_figheight()
    drawn.get_layout_engine().set(rect=(0, line, 1, 1 - line))
