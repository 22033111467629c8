"""The distributions of a report: a sentence and a chart for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrstore.inspection.polygon_stats import PolygonStats
from ocrstore.report.charts import (
    Bar,
    Markup,
    bars,
    bubbles,
    half_octave_edges,
    half_octaves,
    named_bars,
    percent,
    stacked,
)

Floats = npt.NDArray[np.float64]
_TURNS = {
    1: "1: as stored",
    2: "2: mirrored",
    3: "3: upside down",
    4: "4: flipped",
    5: "5: transposed",
    6: "6: turned right",
    7: "7: transversed",
    8: "8: turned left",
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """A chart of the report with its title and sentence."""

    title: str
    sentence: str
    chart: Markup


@dataclass(frozen=True, slots=True)
class Limit:
    """The smallest polygon that counts in a view, and every polygon's size there."""

    view: str
    pixels: float
    sizes: Floats | None
    """(polygons, 2): box width and height in the view; None if unknown."""


def distributions(stats: PolygonStats, limit: Limit | None) -> Iterator[Distribution]:
    """Yield the distributions of pictures and polygons that the index allows."""
    if stats.has_sizes:
        yield _picture_sizes(stats)
    if stats.has_polygons:
        yield from _text_heights(stats, limit)
        yield _per_picture(stats)
        yield _ignored(stats, limit)
    if stats.has_sizes:
        yield _picture_aspects(stats)
    if stats.has_polygons:
        yield _polygon_aspects(stats)
        yield _text_directions(stats)
    if stats.has_sizes:
        yield _orientations(stats)


def shorter_sides(sizes: Floats) -> Floats:
    """Return the shorter side of each box: the height of horizontal text."""
    return np.asarray(sizes.min(axis=1))


def _picture_sizes(stats: PolygonStats) -> Distribution:
    wide, high = stats.width, stats.height
    step = 1 if len(np.unique(np.stack([wide, high]), axis=1).T) <= 400 else _round_step(wide, high)
    pairs = np.stack([wide // step * step, high // step * step])
    unique, counts = np.unique(pairs, axis=1, return_counts=True)
    points = [(float(x), float(y), int(n)) for (x, y), n in zip(unique.T, counts)]
    if len(points) == 1:
        sentence = f"All pictures are {wide[0]} x {high[0]} pixels."
    else:
        pixels = wide * high / 1e6
        sentence = (
            f"{wide.min()} to {wide.max()} wide, {high.min()} to {high.max()} high; the median "
            f"picture has {np.median(pixels):.2g} megapixels."
        )
    chart = bubbles(points, label="Picture widths and heights")
    return Distribution("Picture sizes", sentence, chart)


def _round_step(wide: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> int:
    return max(1, int(max(wide.max(), high.max())) // 60)


def _text_heights(stats: PolygonStats, limit: Limit | None) -> Iterator[Distribution]:
    counted = ~stats.ignored
    before = shorter_sides(stats.box_sizes)[counted]
    known = limit is not None and limit.sizes is not None
    anchor = limit.pixels if limit is not None and limit.pixels > 0 else 8.0
    after = (
        shorter_sides(limit.sizes)[counted] if known and limit and limit.sizes is not None else None
    )
    both = before if after is None else np.concatenate([before, after])
    low, high = _octaves(both, anchor)
    yield Distribution(
        "Text heights in the pictures",
        f"{_middle(before)} The shorter side of the box around each polygon that counts.",
        _height_chart(before, anchor, low, high, warn=after is None, name="in the pictures"),
    )
    if after is None or limit is None:
        return
    under = int((after < limit.pixels).sum())
    yield Distribution(
        f"Text heights in view {limit.view}",
        f"{_middle(after)} {under:,} of {len(after):,} polygons ({percent(under, len(after))}) "
        f"fall under the {limit.pixels:g} px limit and are not learned from.",
        _height_chart(after, anchor, low, high, warn=True, name=f"in view {limit.view}"),
    )


def _middle(values: Floats) -> str:
    values = values[np.isfinite(values)]
    if not len(values):
        return "No polygon counts."
    quarter, half, three = np.percentile(values, [25, 50, 75])
    return f"Median {half:.0f} px, half of them {quarter:.0f} to {three:.0f} px."


def _octaves(values: Floats, anchor: float) -> tuple[int, int]:
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return -4, 8
    low = int(np.floor(2 * np.log2(values.min() / anchor)))
    high = int(np.floor(2 * np.log2(values.max() / anchor))) + 1
    return max(-6, min(low, -2)), min(14, max(high, 4))


def _height_chart(
    values: Floats, anchor: float, low: int, high: int, *, warn: bool, name: str
) -> Markup:
    counts = half_octaves(values, anchor=anchor, low=low, high=high)
    edges = half_octave_edges(anchor, low, high)
    bins = [
        Bar(int(count), f"{edges[i]:.3g} to {edges[i + 1]:.3g} px", warn and low + i < 0)
        for i, count in enumerate(counts)
    ]
    ticks = [
        (step - low, f"{anchor * 2.0 ** (step / 2):g}" + (" px" if step == 0 else ""))
        for step in range(low, high + 1)
        if step % 2 == 0
    ]
    return bars(bins, ticks, label=f"Text heights {name}", line=-low if warn else None)


def _per_picture(stats: PolygonStats) -> Distribution:
    counts = stats.counts
    top = int(counts.max())
    step = max(1, -(-(top + 1) // 24))
    found = np.bincount(counts // step)
    bins = [
        Bar(
            int(n),
            f"{i * step}" if step == 1 else f"{i * step} to {i * step + step - 1}",
            warn=i == 0 and step == 1,
        )
        for i, n in enumerate(found)
    ]
    every = max(1, -(-len(bins) // 8))
    ticks = [(i + 0.5, str(i * step)) for i in range(0, len(bins), every)]
    none = int((counts == 0).sum())
    sentence = f"{counts.mean():.1f} on average, {top} at most; " + (
        f"{none:,} {'picture has' if none == 1 else 'pictures have'} none."
        if none
        else "every picture has some."
    )
    return Distribution(
        "Polygons per picture", sentence, bars(bins, ticks, label="Polygons per picture")
    )


def _ignored(stats: PolygonStats, limit: Limit | None) -> Distribution:
    ignored = int(stats.ignored.sum())
    total = len(stats.ignored)
    parts = [("counted", total - ignored, "counted"), ("ignored by the source", ignored, "ignored")]
    if limit is not None and limit.sizes is not None:
        with np.errstate(invalid="ignore"):
            small = int(((limit.sizes < limit.pixels).any(axis=1) & ~stats.ignored).sum())
        parts[0] = ("counted", total - ignored - small, "counted")
        parts.append((f"under {limit.pixels:g} px in view {limit.view}", small, "warned"))
    per = np.bincount(stats.owner[stats.ignored], minlength=stats.samples)
    whole = int(((per == stats.counts) & (stats.counts > 0)).sum())
    sentence = f"The source ignores {percent(ignored, total)} of {total:,} polygons" + (
        f"; in {whole:,} picture{'s' * (whole > 1)} it ignores every one." if whole else "."
    )
    return Distribution(
        "Ignored share", sentence, stacked(parts, label="Share of ignored polygons")
    )


def _aspect_chart(ratios: Floats, label: str) -> Markup:
    low, high = _octaves(ratios, 1.0)
    low, high = min(low, -4), max(high, 4)
    counts = half_octaves(ratios, anchor=1.0, low=low, high=high)
    edges = half_octave_edges(1.0, low, high)
    bins = [
        Bar(int(n), f"{edges[i]:.2g} to {edges[i + 1]:.2g} times as wide as high")
        for i, n in enumerate(counts)
    ]
    ticks = [
        (step - low, f"{2 ** (step // 2)}:1" if step >= 0 else f"1:{2 ** (-step // 2)}")
        for step in range(low, high + 1)
        if step % 2 == 0
    ]
    return bars(bins, ticks, label=label)


def _picture_aspects(stats: PolygonStats) -> Distribution:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = stats.width / stats.height
    upright = int((stats.height > stats.width).sum())
    sentence = (
        f"{percent(upright, stats.samples)} are higher than wide. Width to height, "
        f"median {np.nanmedian(ratios):.2f}."
    )
    chart = _aspect_chart(ratios, "Width to height of pictures")
    return Distribution("Aspect ratios of pictures", sentence, chart)


def _polygon_aspects(stats: PolygonStats) -> Distribution:
    sizes = stats.box_sizes
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = sizes[:, 0] / sizes[:, 1]
    finite = ratios[np.isfinite(ratios)]
    middle = f"median {np.median(finite):.1f}" if len(finite) else "none has an area"
    sentence = f"Width to height of the box around each polygon, {middle}."
    chart = _aspect_chart(ratios, "Width to height of polygons")
    return Distribution("Aspect ratios of polygons", sentence, chart)


def _text_directions(stats: PolygonStats) -> Distribution:
    angles = text_angles(stats)
    found = angles[np.isfinite(angles)]
    # 10 degrees a bin, the middle one around the horizontal
    counts = np.bincount((np.clip(found + 95, 0, 189.9) // 10).astype(np.int64), minlength=19)
    bins = [Bar(int(n), f"{-95 + 10 * i}° to {-85 + 10 * i}°") for i, n in enumerate(counts)]
    ticks = [(i + 0.5, f"{-90 + 10 * i}°") for i in range(0, 19, 3)]
    level = int((np.abs(found) <= 5).sum())
    sentence = f"{percent(level, len(found))} of the polygons lie within 5° of the horizontal."
    return Distribution(
        "Text directions", sentence, bars(bins, ticks, label="Angle of each polygon's longest edge")
    )


def text_angles(stats: PolygonStats) -> Floats:
    """Return the angle of each polygon's longest edge, -90 to 90 degrees, rising text positive."""
    lengths = np.diff(stats.ends, prepend=0)
    angles = np.full(len(lengths), np.nan)
    if not len(stats.points):
        return angles
    following = np.arange(1, len(stats.points) + 1)
    last = stats.ends[lengths > 0] - 1
    following[last] = (stats.ends - lengths)[lengths > 0]
    edges = stats.points[following] - stats.points
    polygon = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((np.hypot(edges[:, 0], edges[:, 1]), polygon))
    longest = edges[order[stats.ends[lengths > 0] - 1]]
    turned = np.degrees(np.arctan2(-longest[:, 1], longest[:, 0]))
    turned = np.where(turned > 90, turned - 180, np.where(turned < -90, turned + 180, turned))
    angles[lengths > 0] = turned
    return angles


def _orientations(stats: PolygonStats) -> Distribution:
    values, counts = np.unique(stats.source_orientation, return_counts=True)
    rows = [
        (_TURNS.get(int(value), f"{value}: unknown"), int(count), False)
        for value, count in zip(values, counts)
    ]
    turned = int((stats.source_orientation != 1).sum())
    sentence = (
        f"{turned:,} pictures ({percent(turned, stats.samples)}) were turned upright."
        if turned
        else "No picture had to be turned upright."
    )
    return Distribution("EXIF orientation", sentence, named_bars(rows, label="EXIF orientation"))
