"""Owns the bar plot of a profile; matplotlib is needed for this only."""

from __future__ import annotations

import datetime
import platform
import statistics
from pathlib import Path

from ocrstore.errors import OCRStoreError, SchemaError
from ocrstore.profiling.records import Profile

SUFFIXES = (".svg", ".png", ".pdf")
_COLOURS = {
    "bakeable": ("#2a9d5c", "could be baked into the store"),
    "random": ("#e07a1f", "random: stays"),
    "deterministic": ("#8cb369", "always the same, but behind a random step"),
    "unfit": ("#b5651d", "no view can hold it"),
    "other": ("#3b6ea5", "no transform"),
    "compare": ("#b9bec6", "to compare with, no part of the sum"),
}


def check_plot_path(path: Path) -> None:
    """Refuse a name that says no known format, and a machine without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise SchemaError(f"{path}: a plot's name ends in {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401  # asked for here, so that the error says what to install
    except ImportError as exc:
        raise OCRStoreError(
            "a plot needs matplotlib: install it with pip install 'ocrstore[plot]'"
        ) from exc


def plot_profile(profile: Profile, path: Path, *, caption: str = "") -> None:
    """Draw the costs as bars, from front to back, and write them to a file."""
    check_plot_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    path_first = sorted(profile.costs, key=lambda cost: not cost.in_path)
    kinds = {step.cost.name: step.kind for step in profile.steps}
    # a figure of its own, with no window and no global state
    figure = Figure(figsize=(9, 1.6 + 0.36 * len(path_first)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    used: dict[str, None] = {}
    # on a busy machine the clock tells of others; shares go by the processor, and so do the bars
    figures = [cost.cpu_ms if profile.busy else cost.clock_ms for cost in path_first]
    widest = max(max(values) for values in figures) or 1.0
    for place, (cost, values) in enumerate(zip(path_first, figures)):
        kind = "compare"
        if cost.in_path:
            kind = kinds.get(cost.name, "other") if cost.part == "transform" else "other"
        used[kind] = None
        low, middle, high = min(values), statistics.median(values), max(values)
        axes.barh(
            place,
            middle,
            color=_COLOURS[kind][0],
            xerr=[[middle - low], [high - middle]],
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#444444"},
        )
        share = profile.share(cost)
        text = f"{middle:.2f}" + ("" if share is None else f"  ({share:.0%})")
        axes.text(high + 0.012 * widest, place, text, va="center", fontsize=9)
    axes.set_yticks(range(len(path_first)), [cost.name for cost in path_first])
    axes.invert_yaxis()
    axes.set_xlim(0, widest * 1.2)
    unit = "ms of processor time" if profile.busy else "ms"
    axes.set_xlabel(f"{unit} per sample (bars: median; whiskers: min to max over the repeats)")
    title = f"{profile.pipeline}: {profile.weighed_ms:.1f} {unit} per sample"
    axes.set_title(title, loc="left", fontsize=12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.legend(
        handles=[Patch(color=_COLOURS[kind][0], label=_COLOURS[kind][1]) for kind in used],
        loc="outside upper center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    figure.supxlabel(caption or _caption(profile), fontsize=7, color="#666666")
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)


def _caption(profile: Profile) -> str:
    today = datetime.date.today().isoformat()
    return (
        f"ocrstore profile, {today}, {profile.cpus} processors ({platform.machine()}), "
        f"{profile.measured} samples, {profile.repeats} repeats, "
        f"processor time {profile.total_processor_ms:.1f} ms per sample"
    )
