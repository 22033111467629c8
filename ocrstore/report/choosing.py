"""Which samples a contact sheet shows: those that are most unlike one another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ocrstore.inspection.measures import Measures


def choose_varied(measures: Measures, count: int) -> list[int]:
    """Choose rows for variety, in row order; always the same ones for the same store.

    Pictures are described by size, shape, number and heights of polygons, and share of ignored
    ones; each next choice is the one farthest from all before. A part of them are spread evenly,
    since the unusual alone would show a wrong picture of the store.
    """
    if count >= measures.samples:
        return list(range(measures.samples))
    if count <= 0:
        return []
    even = np.linspace(0, measures.samples - 1, max(1, count // 2)).astype(np.int64)
    chosen = dict.fromkeys(even.tolist())
    features = _features(measures)
    distance = np.full(measures.samples, np.inf)
    for row in chosen:
        distance = np.minimum(distance, ((features - features[row]) ** 2).sum(axis=1))
    while len(chosen) < count:
        distance[list(chosen)] = -1.0
        row = int(distance.argmax())
        chosen[row] = None
        distance = np.minimum(distance, ((features - features[row]) ** 2).sum(axis=1))
    return sorted(chosen)


def _features(measures: Measures) -> npt.NDArray[np.float64]:
    heights = (
        np.nan_to_num(measures.box_sizes.min(axis=1)) if measures.has_polygons else np.zeros(0)
    )
    wide = np.maximum(measures.width, 1).astype(np.float64)
    high = np.maximum(measures.height, 1).astype(np.float64)
    some = np.maximum(measures.counts, 1)
    total = np.bincount(measures.owner, heights, minlength=measures.samples)
    ignored = np.bincount(measures.owner, measures.ignored, minlength=measures.samples)
    columns = np.stack(
        [
            np.log2(wide * high),
            np.log2(wide / high),
            np.log2(1 + measures.counts),
            np.log2(1 + np.maximum(total, 0) / some),
            ignored / some,
            (measures.orientation != 1).astype(np.float64),
        ],
        axis=1,
    )
    spread = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0))
