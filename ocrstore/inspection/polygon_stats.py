"""Read the polygons of all samples from the index into flat arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.annotation import AnnotationReader
from ocrstore.schema import IMAGE, INVERSE_MATRIX
from ocrstore.store import Store
from ocrstore.views import StoredView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PolygonStats:
    """One entry per sample, or per polygon in the order of the samples."""

    samples: int
    width: Ints
    """Of each picture; 0 if unknown."""
    height: Ints
    source_orientation: Ints
    """EXIF orientation of the source; 1 if unknown. All stored pixels are upright."""
    annotated: Bools
    counts: Ints
    """Number of polygons of each sample."""
    owner: Ints
    """Row of the sample of each polygon."""
    ignored: Bools
    """Whether the source marks the polygon as ignored."""
    points: Floats
    """(n, 2): the points of all polygons, concatenated."""
    ends: Ints
    """End of each polygon in `points`."""
    boxes: Floats
    """(polygons, 4): left, top, right, bottom of each polygon; NaN without points."""

    @property
    def has_sizes(self) -> bool:
        """Return whether the sizes of the pictures are known."""
        return bool(self.width.any() and self.height.any())

    @property
    def has_polygons(self) -> bool:
        """Return whether there is any polygon."""
        return len(self.owner) > 0

    @property
    def box_sizes(self) -> Floats:
        """Return (polygons, 2): width and height of each bounding box, in picture pixels."""
        return self.boxes[:, 2:] - self.boxes[:, :2]


def measure_polygons(store: Store) -> PolygonStats:
    """Read all polygons of a store; no payload is read. Stores without polygons are fine."""
    reader = AnnotationReader(store, strict=False)
    width, height, orientation, annotated = (
        reader.numbers(name, default)
        for name, default in (("width", 0), ("height", 0), ("orientation", 1), ("annotated", 1))
    )
    image = store.columns.get(IMAGE)
    if not width.any() and image is not None and len(image.shape) == 3:
        shapes = store[IMAGE].shapes.astype(np.int64)
        height, width = shapes[:, 0], shapes[:, 1]
    found = reader.all_polygons()
    return PolygonStats(
        samples=len(store),
        width=width,
        height=height,
        source_orientation=orientation,
        annotated=annotated.astype(np.bool_),
        counts=found.counts,
        owner=np.repeat(np.arange(len(store)), found.counts),
        ignored=found.ignored,
        points=found.points,
        ends=found.ends,
        boxes=_boxes(found.points, found.ends),
    )


def view_boxes(stats: PolygonStats, view: StoredView, store: Store) -> Floats | None:
    """Return (polygons, 2): width and height of each bounding box in a view; None if unknown.

    Views that only scale need the sizes of the pictures; others need the stored matrices.
    """
    scale = view_scales(stats, view.recipe_json)
    if scale is not None:
        return stats.box_sizes * scale[stats.owner]
    name = view.columns.get(INVERSE_MATRIX)
    if name is None or name not in store.columns or not stats.has_polygons:
        return None
    try:
        forward = np.linalg.inv(np.asarray(store[name][:], np.float64).reshape(-1, 3, 3))
    except np.linalg.LinAlgError:
        return None
    with np.errstate(all="ignore"):
        lengths = np.diff(stats.ends, prepend=0)
        per_point = forward[np.repeat(stats.owner, lengths)]
        homogeneous = np.concatenate([stats.points, np.ones((len(stats.points), 1))], axis=1)
        moved = np.einsum("nij,nj->ni", per_point, homogeneous)
        boxes = _boxes(moved[:, :2] / moved[:, 2:], stats.ends)
    return np.asarray(boxes[:, 2:] - boxes[:, :2])


def view_scales(stats: PolygonStats, recipe: Mapping[str, Any]) -> Floats | None:
    """Return (samples, 2): the factors by which a recipe scales x and y; None for a pipeline."""
    size = recipe.get("size")
    kind = recipe.get("geometry")
    if not isinstance(size, list) or kind not in ("longest", "stretch") or not stats.has_sizes:
        return None
    high, wide = (float(side or 0) for side in size)
    with np.errstate(divide="ignore"):
        scale = np.stack([wide / stats.width, high / stats.height], axis=1)
    if kind == "longest":
        scale = np.repeat(scale.min(axis=1, keepdims=True), 2, axis=1)
    return np.asarray(scale)


def _boxes(points: Floats, ends: Ints) -> Floats:
    boxes = np.full((len(ends), 4), np.nan)
    lengths = np.diff(ends, prepend=0)
    full = lengths > 0
    if full.any():
        starts = (ends - lengths)[full]  # empty polygons take no points, so these follow closely
        boxes[full, :2] = np.minimum.reduceat(points, starts, axis=0)
        boxes[full, 2:] = np.maximum.reduceat(points, starts, axis=0)
    return boxes
