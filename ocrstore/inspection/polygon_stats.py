"""Read the polygons of all samples from the index into flat arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ocrstore.schema import INVERSE_MATRIX
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
    orientation: Ints
    """EXIF orientation; 1 if unknown."""
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
    table = store.index
    samples = len(store)
    names = set(store.snapshot.index.attributes.names)
    width = _numbers(table, "width", names, samples, 0)
    height = _numbers(table, "height", names, samples, 0)
    if not width.any() and "image" in store.columns and len(store.columns["image"].shape) == 3:
        shapes = store["image"].shapes.astype(np.int64)
        height, width = shapes[:, 0], shapes[:, 1]
    points, ends, counts = _polygons(table, names, samples)
    ignored = np.zeros(len(ends), np.bool_)
    flags = _flat(table, "ignored", names)
    if flags is not None and len(flags) == len(ends):
        ignored = np.array(flags.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
    return PolygonStats(
        samples=samples,
        width=width,
        height=height,
        orientation=_numbers(table, "orientation", names, samples, 1),
        annotated=_numbers(table, "annotated", names, samples, 1).astype(np.bool_),
        counts=counts,
        owner=np.repeat(np.arange(samples), counts),
        ignored=ignored,
        points=points,
        ends=ends,
        boxes=_boxes(points, ends),
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
    inverse = np.asarray(store[name][:]).reshape(-1, 3, 3)
    with np.errstate(all="ignore"):
        forward = np.linalg.inv(inverse)
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


def _numbers(table: pa.Table, name: str, names: set[str], samples: int, default: int) -> Ints:
    if name not in names:
        return np.full(samples, default, np.int64)
    try:
        column = table[name].cast(pa.int64()).fill_null(default)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.full(samples, default, np.int64)  # another tool's attribute of that name
    return np.array(column.to_numpy(), np.int64)


def _flat(table: pa.Table, name: str, names: set[str]) -> pa.Array | None:
    """Return the elements of all lists of an attribute, concatenated."""
    if name not in names or not pa.types.is_list(table[name].type):
        return None
    array = table[name].combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else None
    return None if array is None else array.flatten()


def _polygons(table: pa.Table, names: set[str], samples: int) -> tuple[Floats, Ints, Ints]:
    empty = np.zeros((0, 2)), np.zeros(0, np.int64), np.zeros(samples, np.int64)
    polygons = _flat(table, "polygons", names)
    if polygons is None or not pa.types.is_list(polygons.type):
        return empty
    kind = polygons.type.value_type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        return empty
    counts = _lengths(table["polygons"])
    values = np.asarray(polygons.flatten().to_numpy(zero_copy_only=False), np.float64)
    lengths = _lengths(polygons)
    if (lengths % 2).any():
        return empty
    return values.reshape(-1, 2), np.cumsum(lengths // 2), counts


def _lengths(lists: Any) -> Ints:
    import pyarrow.compute as pc

    found = pc.list_value_length(lists).fill_null(0)
    return np.array(found.to_numpy(zero_copy_only=False) if len(found) else [], np.int64)


def _boxes(points: Floats, ends: Ints) -> Floats:
    boxes = np.full((len(ends), 4), np.nan)
    lengths = np.diff(ends, prepend=0)
    full = lengths > 0
    if full.any():
        starts = (ends - lengths)[full]  # empty polygons take no points, so these follow closely
        boxes[full, :2] = np.minimum.reduceat(points, starts, axis=0)
        boxes[full, 2:] = np.maximum.reduceat(points, starts, axis=0)
    return boxes
