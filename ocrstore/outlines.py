"""The polygons of one picture, checked and measured together; hides the ragged arithmetic.

All measures are float64 whatever the polygons came as, and made of sums, products, quotients and
square roots only, which every machine rounds alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError

MAX_COORDINATE = float(2**30)
"""Larger coordinates, either way, are refused: contours are int32, and no picture is so large."""

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Outlines:
    """Measured polygons, point after point and polygon after polygon.

    The edge of a point runs from it to the next point of its polygon, the last one's to the first.
    """

    points: Floats
    """(2, points): x and y. So are all pairs here and in the modules that use them."""
    edges: Floats
    """(2, points)"""
    lengths: Floats
    """(points,), of the edges."""
    owners: Ints
    """(points,): the polygon that each point belongs to."""
    previous: Ints
    """(points,): the point before each point."""
    pixels: npt.NDArray[np.int32]
    """(points, 2): truncated towards zero, as pyclipper does, in OpenCV's order."""
    starts: Ints
    """(polygons + 1,): where each begins, and the end of the last."""
    areas: Floats
    """(polygons,), signed, by the shoelace formula; loops that cross add up with their sign."""
    perimeters: Floats
    """(polygons,)"""
    lows: Floats
    """(2, polygons): the smallest x and y."""
    highs: Floats
    """(2, polygons): the largest x and y."""

    def __len__(self) -> int:
        return len(self.areas)


def measure(polygons: Sequence[npt.ArrayLike]) -> Outlines:
    """Check at least one polygon and measure them all.

    Raises `SchemaError` for what is not (n, 2) numbers with n >= 1, for NaN and infinities, and for
    coordinates beyond `MAX_COORDINATE`, each with the polygon's position.
    """
    arrays = [_as_points(polygon, position) for position, polygon in enumerate(polygons)]
    stacked = np.concatenate(arrays).astype(np.float64, copy=False)
    counts = np.array([len(array) for array in arrays])
    starts = np.zeros(len(arrays) + 1, np.intp)
    counts.cumsum(out=starts[1:])
    owners = np.arange(len(arrays)).repeat(counts)
    _refuse_unusable(stacked, owners, starts)

    heads, tails = starts[:-1], starts[1:] - 1
    points = stacked.T.copy()
    edges = np.empty_like(points)
    np.subtract(points[:, 1:], points[:, :-1], out=edges[:, :-1])
    edges[:, tails] = points.take(heads, axis=1) - points.take(tails, axis=1)
    lengths = np.sqrt(edges[0] * edges[0] + edges[1] * edges[1])
    previous = np.arange(-1, len(owners) - 1)
    previous[heads] = tails
    # measured from the first point: a small polygon far from the origin keeps its digits
    x, y = points - points.take(heads[owners], axis=1)
    return Outlines(
        points=points,
        edges=edges,
        lengths=lengths,
        owners=owners,
        previous=previous,
        pixels=stacked.astype(np.int32),
        starts=starts,
        areas=np.add.reduceat(x * edges[1] - y * edges[0], heads) / 2,
        perimeters=np.add.reduceat(lengths, heads),
        lows=np.minimum.reduceat(points, heads, axis=1),
        highs=np.maximum.reduceat(points, heads, axis=1),
    )


def find_convex(outlines: Outlines) -> Bools:
    """Tell which polygons are convex, simple and without repeated points."""
    x, y = outlines.edges
    before_x, before_y = outlines.edges.take(outlines.previous, axis=1)
    turns = (before_x * y - before_y * x) * outlines.areas[outlines.owners]
    forward = (turns > 0) | ((turns == 0) & (before_x * x + before_y * y > 0))
    # turning forward all the way, directions change between the half planes twice per full turn
    half = (x > 0) | ((x == 0) & (y > 0))
    changes = half != half[outlines.previous]
    heads = outlines.starts[:-1]
    once = np.add.reduceat(changes, heads, dtype=np.intp) == 2
    return np.asarray(once & np.logical_and.reduceat(forward, heads))


def _as_points(polygon: npt.ArrayLike, position: int) -> npt.NDArray[np.generic]:
    try:
        array = np.asarray(polygon)
    except ValueError as exc:
        raise SchemaError(
            f"polygon {position} is not an array: {exc}; expected (n, 2) numbers, x then y"
        ) from exc
    if array.ndim != 2 or array.shape[1] != 2 or not len(array) or array.dtype.kind not in "fiu":
        raise SchemaError(
            f"polygon {position} has shape {array.shape} and type {array.dtype}; "
            "expected (n, 2) real numbers, x then y, with n of at least 1"
        )
    return array


def _refuse_unusable(points: Floats, owners: Ints, starts: Ints) -> None:
    usable = np.abs(points) <= MAX_COORDINATE  # False for NaN too
    if usable.all():
        return
    index = int(np.argmin(usable.all(axis=1)))
    position = int(owners[index])
    x, y = points[index].tolist()
    raise SchemaError(
        f"polygon {position} has the point ({x:g}, {y:g}) at position {index - starts[position]}; "
        f"expected finite coordinates between ±{MAX_COORDINATE:.0f}: "
        "leave the polygon out, or correct its annotation"
    )
