"""Find samples with annotations that look wrong, and rank them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ocrstore.inspection.polygon_stats import PolygonStats
from ocrstore.report.distributions import Limit, shorter_sides
from ocrstore.store import Store

KINDS = {
    "duplicate": "the same picture as another sample (equal bytes)",
    "outside": "polygons that are entirely outside the picture",
    "no-annotation": "no annotation for this picture",
    "no-polygons": "annotated, but with no polygon at all",
    "tiny-text": "every polygon that counts is under the limit",
    "no-area": "polygons without an area",
    "all-ignored": "every polygon is ignored",
    "sticks-out": "polygons that stick out of the picture",
}
"""What makes a sample suspicious, the worst first."""

_WEIGHTS = dict(zip(KINDS, (6.0, 5.0, 4.0, 4.0, 3.0, 2.0, 1.5, 0.5), strict=True))
_MARGIN = 2.0
"""Annotators click beside the edge; this many pixels outside are not reported."""


@dataclass(slots=True)
class Suspect:
    """One sample with its reasons."""

    row: int
    key: str
    score: float = 0.0
    kinds: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def find_suspects(store: Store, stats: PolygonStats, limit: Limit | None) -> list[Suspect]:
    """Return the suspicious samples, the worst first; no payload is read."""
    found: dict[int, Suspect] = {}

    def add(row: int, kind: str, reason: str, times: int = 1) -> None:
        suspect = found.setdefault(row, Suspect(row, store.keys[row]))
        # more polygons of a kind add little
        suspect.score += _WEIGHTS[kind] * (1 + 0.1 * min(times - 1, 10))
        suspect.kinds.append(kind)
        suspect.reasons.append(reason)

    for row, twins in _duplicates(store).items():
        others = ", ".join(twins[:3]) + (", …" if len(twins) > 3 else "")
        add(row, "duplicate", f"the same picture as {others}", len(twins))
    if "polygons" not in store.snapshot.index.attributes.names:
        return _ranked(found)
    for row in np.flatnonzero(stats.counts == 0).tolist():
        if stats.annotated[row]:
            add(row, "no-polygons", "no polygons")
        else:
            add(row, "no-annotation", "no annotation")
    outside, sticking = _outside(stats)
    for kind, flags, words in (
        ("outside", outside, "outside of the picture"),
        ("no-area", _without_area(stats), "without an area"),
        ("sticks-out", sticking, "stick out of the picture"),
    ):
        for row, times in Counter(stats.owner[flags].tolist()).items():
            noun = "polygon" if times == 1 else "polygons"
            verb = words.replace("stick ", "sticks ") if times == 1 else words
            add(row, kind, f"{times} {noun} {verb}", times)
    _add_tiny(stats, limit, add)
    return _ranked(found)


def count_kinds(suspects: list[Suspect]) -> dict[str, int]:
    """Count samples by what is odd about them, the worst kind first."""
    counts = Counter(kind for suspect in suspects for kind in suspect.kinds)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def _ranked(found: dict[int, Suspect]) -> list[Suspect]:
    return sorted(found.values(), key=lambda suspect: (-suspect.score, suspect.row))


def _duplicates(store: Store) -> dict[int, list[str]]:
    """Group samples by the hash of their source, or of their stored picture."""
    if "source_hash" in store.index.column_names and "int" in str(store.index["source_hash"].type):
        hashes = store.index["source_hash"].to_pylist()
    else:
        column = next((name for name in ("image", "tensor") if name in store.columns), None)
        if column is None:
            return {}
        hashes = store[column].hashes.tolist()
    groups: dict[object, list[int]] = {}
    for row, digest in enumerate(hashes):
        if digest is not None:
            groups.setdefault(digest, []).append(row)
    return {
        row: [store.keys[other] for other in rows if other != row]
        for rows in groups.values()
        if len(rows) > 1
        for row in rows
    }


def _outside(stats: PolygonStats) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    none = np.zeros(len(stats.owner), np.bool_)
    if not stats.has_sizes:
        return none, none
    left, top, right, bottom = stats.boxes.T
    wide = stats.width[stats.owner]
    high = stats.height[stats.owner]
    wholly = (right <= 0) | (bottom <= 0) | (left >= wide) | (top >= high)
    partly = (
        (left < -_MARGIN) | (top < -_MARGIN) | (right > wide + _MARGIN) | (bottom > high + _MARGIN)
    )
    return wholly, partly & ~wholly


def _without_area(stats: PolygonStats) -> npt.NDArray[np.bool_]:
    sizes = stats.box_sizes
    return np.asarray(~(sizes > 0).all(axis=1))  # NaN: a polygon without points


def _add_tiny(stats: PolygonStats, limit: Limit | None, add: object) -> None:
    assert callable(add)
    pixels = limit.pixels if limit is not None else 8.0
    sizes = limit.sizes if limit is not None and limit.sizes is not None else stats.box_sizes
    place = f"in view {limit.view}" if limit is not None and limit.sizes is not None else ""
    counted = ~stats.ignored
    tall = counted & (shorter_sides(sizes) >= pixels)
    number = np.bincount(stats.owner[counted], minlength=stats.samples)
    large = np.bincount(stats.owner[tall], minlength=stats.samples)
    for row in np.flatnonzero((number > 0) & (large == 0)).tolist():
        words = "its only polygon" if number[row] == 1 else f"all {number[row]} polygons"
        add(row, "tiny-text", f"{words} under {pixels:g} px {place}".rstrip())
    for row in np.flatnonzero((number == 0) & (stats.counts > 0)).tolist():
        add(row, "all-ignored", f"all {stats.counts[row]} polygons ignored")
