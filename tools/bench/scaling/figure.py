"""Draws the scale study: six panels, each with its slope as the title."""

from __future__ import annotations

from pathlib import Path

from scaling.fits import Figure, Results, fit

BLUE, ORANGE, GREY, GREEN = "#3b6ea5", "#e07a1f", "#9aa0a8", "#2a9d5c"
MB = 1e6


def draw(results: Results, path: Path, *, caption: str) -> None:
    """Write the figure; panels whose series was not measured stay empty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(
        {"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "svg.hashsalt": "scale"}
    ):
        figure, axes = plt.subplots(2, 3, figsize=(13, 7.6), layout="constrained")
        panels = {
            _opening: "samples",
            _memory: "samples",
            _bytes: "bytes",
            _workers: "workers",
            _sizes: "size",
            _limits: "limit",
        }
        for (panel, series), axis in zip(panels.items(), axes.flat, strict=True):
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
            axis.grid(color="#e3e3e3", linewidth=0.8)
            axis.set_axisbelow(True)
            if results.series(series):
                panel(axis, results)
        figure.supxlabel(caption, fontsize=7, color="#666666")
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=110, metadata=metadata)
        plt.close(figure)


def _points(axis, points: dict[float, Figure], *, unit=1.0, colour=BLUE, label=None) -> None:
    xs = list(points)
    ys = [figure.median / unit for figure in points.values()]
    # a fall of memory below what it was is noise, and cannot be drawn as a whisker
    low = [max(0.0, (f.median - f.low) / unit) for f in points.values()]
    high = [max(0.0, (f.high - f.median) / unit) for f in points.values()]
    axis.errorbar(
        xs, ys, yerr=[low, high], fmt="o-", color=colour, capsize=3, label=label, markersize=5
    )


def _opening(axis, results: Results) -> None:
    points, line = results.points("samples", "open_ms"), results.line("samples", "open_ms")
    _points(axis, points)
    axis.set(xscale="log", yscale="log", xlabel="samples in the store", ylabel="opening, ms")
    if line:
        axis.set_title(f"Opening: {1000 * line.slope:.2f} µs per sample", loc="left")


def _memory(axis, results: Results) -> None:
    for column, colour, label in (
        ("added_nbytes", ORANGE, "after an epoch, shuffled"),
        ("opened_nbytes", GREY, "after opening: kept for reuse"),
        ("live_nbytes", BLUE, "in use by the open store"),
    ):
        _points(axis, results.points("samples", column), unit=MB, colour=colour, label=label)
    line = results.line("samples", "live_nbytes")
    axis.set(xscale="log", xlabel="samples in the store", ylabel="memory added, MB")
    axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    axis.legend(frameon=False)
    if line:
        axis.set_title(f"Memory: {line.slope:.1f} bytes per sample held", loc="left")


def _bytes(axis, results: Results) -> None:
    points, line = results.points("bytes", "own_nbytes"), results.line("bytes", "own_nbytes")
    _points(axis, points, unit=MB, label="own memory, all processes")
    axis.set(xlabel="store, GB (2 workers)", ylabel="own memory, MB")
    if points:
        axis.set_ylim(0, 1.3 * max(f.high for f in points.values()) / MB)
    if line:
        axis.set_title(f"Store size: {line.slope / MB:+.1f} MB of memory per GB", loc="left")


def _workers(axis, results: Results) -> None:
    store = results.points("workers", "own_nbytes", order="shuffled")
    bare = results.points("workers", "own_nbytes", order="bare")
    _points(axis, store, unit=MB, label="with the store")
    _points(axis, bare, unit=MB, colour=GREY, label="a loader of zeros")
    axis.set(xlabel="workers", ylabel="own memory, MB")
    if store:
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
    lines = [results.line("workers", "own_nbytes", order=o) for o in ("shuffled", "bare")]
    if lines[0] and lines[1]:
        mine, zeros = (line.slope / MB for line in lines)
        axis.set_title(f"Workers: {mine:.0f} MB each (of zeros: {zeros:.0f})", loc="left")


def _sizes(axis, results: Results) -> None:
    rates = results.points("size", "rate")
    points = {x: Figure(1000 / f.median, 1000 / f.high, 1000 / f.low) for x, f in rates.items()}
    _points(axis, points)
    axis.set(xlabel="MB per sample (320 to 1920 pixels)", ylabel="ms per sample, copied")
    if points:
        axis.set_ylim(bottom=0)
    line = fit(list(points), [figure.median for figure in points.values()])
    if line and line.slope > 0:
        axis.set_title(f"Pictures: {1 / line.slope:.1f} GB/s, whatever the size", loc="left")


def _limits(axis, results: Results) -> None:
    styles = (
        ("sequential", GREY, "in order"),
        ("window", GREEN, "window shuffle"),
        ("shuffled", ORANGE, "full shuffle"),
    )
    shares = sorted({record["x"] for record in results.series("limit")}, reverse=True)
    for place, (order, colour, label) in enumerate(styles):
        points = results.points("limit", "rate", order=order)
        for number, share in enumerate(shares):
            if share in points:
                value = points[share].median
                where = number + (place - 1) * 0.27
                axis.bar(where, value, 0.25, color=colour, label=label if not number else None)
                axis.text(where, value, f"{value:,.0f}", ha="center", va="bottom", fontsize=8)
    axis.set_yscale("log")
    axis.set_xticks(
        range(len(shares)),
        ["no limit" if share == 1 else f"store is {1 / share:.0f}x cache" for share in shares],
    )
    axis.set_ylabel("samples/s, second epoch (logarithmic)")
    axis.tick_params(axis="y", which="both", labelleft=False, length=0)  # the bars tell theirs
    if shares:
        axis.legend(frameon=False, fontsize=8)
    rates = {o: results.points("limit", "rate", order=o) for o in ("window", "shuffled")}
    last = shares[-1] if shares else None
    if last is not None and all(last in rates[o] for o in rates):
        times = rates["window"][last].median / rates["shuffled"][last].median
        axis.set_title(f"Memory limit: window shuffle {times:.1f}x full shuffle", loc="left")
