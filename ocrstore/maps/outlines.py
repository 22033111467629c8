"""Check and measure the polygons of one picture; shrink, dilate and fill their contours.

Polygons with the same number of points make one group, so that all arithmetic is on plain arrays,
with a row for each polygon. All measures are float64 whatever the polygons came as, and made of
sums, products, quotients and square roots only, which every machine rounds in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper

from ocrstore.errors import SchemaError

MAX_COORDINATE = float(2**30)
"""Larger coordinates, either way, are refused: contours are int32, and no picture is so large."""

MAX_POINTS = 4096
"""Polygons with more points are refused: if their edges cross at random, offsetting takes seconds
with so many already, and grows faster than the square of their number."""

_GROUP_POLYGONS = 1024
"""A group has at most so many, which bounds the memory for what is made of it."""

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Outlines:
    """Measured polygons that have the same number of points.

    The edge of a point leads to it from the point before, the first one's from the last.
    """

    positions: list[int]
    """Of the polygons, among all that were measured."""
    points: Floats
    """(2, polygons, points): x and y. So are all pairs here and in the modules that use them."""
    edges: Floats
    """(2, polygons, points)"""
    lengths: Floats
    """(polygons, points), of the edges."""
    pixels: npt.NDArray[np.int32]
    """(polygons, points, 2): truncated towards zero, as pyclipper does, in OpenCV's order."""
    areas: Floats
    """(polygons,), signed, by the shoelace formula; loops that cross add up with their sign."""
    perimeters: Floats
    """(polygons,)"""
    lows: Floats
    """(2, polygons): the smallest x and y."""
    highs: Floats
    """(2, polygons): the largest x and y."""


def measure(polygons: Sequence[npt.ArrayLike]) -> list[Outlines]:
    """Check polygons and measure them, in groups.

    Raises `SchemaError` for what is not (n, 2) numbers with 1 <= n <= `MAX_POINTS`, for NaN and
    infinities, and for coordinates beyond `MAX_COORDINATE`, each with the polygon's position.
    """
    arrays = [_as_points(polygon, position) for position, polygon in enumerate(polygons)]
    groups: dict[int, list[int]] = {}
    for position, array in enumerate(arrays):
        groups.setdefault(len(array), []).append(position)
    return [
        _measure_group([arrays[position] for position in some], some)
        for positions in groups.values()
        for some in _pieces(positions)
    ]


def _pieces(positions: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(positions), _GROUP_POLYGONS):
        yield positions[first : first + _GROUP_POLYGONS]


def _measure_group(arrays: list[npt.NDArray[np.generic]], positions: list[int]) -> Outlines:
    count = len(arrays[0])
    stacked = np.concatenate(arrays, dtype=np.float64).reshape(len(arrays), count, 2)
    if not np.maximum.reduce(np.abs(stacked), axis=None) <= MAX_COORDINATE:  # NaN is not either
        _refuse_unusable(stacked, positions)
    points = stacked.transpose(2, 0, 1).copy()
    edges = points - points.take(np.arange(-1, count - 1), axis=2)
    squares = edges * edges
    lengths = np.sqrt(squares[0] + squares[1])
    # measured from the first point: a small polygon far from the origin keeps its digits
    x, y = points - points[:, :, :1]
    return Outlines(
        positions=positions,
        points=points,
        edges=edges,
        lengths=lengths,
        pixels=stacked.astype(np.int32),
        areas=np.add.reduce(x * edges[1] - y * edges[0], axis=1) / 2,
        perimeters=np.add.reduce(lengths, axis=1),
        lows=np.minimum.reduce(points, axis=2),
        highs=np.maximum.reduce(points, axis=2),
    )


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
    if len(array) > MAX_POINTS:
        raise SchemaError(
            f"polygon {position} has {len(array)} points; expected at most {MAX_POINTS}: "
            "simplify it, or leave it out"
        )
    return array


def _refuse_unusable(stacked: Floats, positions: list[int]) -> None:
    usable = (np.abs(stacked) <= MAX_COORDINATE).all(axis=2)
    polygon, point = np.argwhere(~usable)[0].tolist()
    x, y = stacked[polygon, point].tolist()
    raise SchemaError(
        f"polygon {positions[polygon]} has the point ({x:g}, {y:g}) at position {point}; "
        f"expected finite coordinates between ±{MAX_COORDINATE:.0f}: "
        "leave the polygon out, or correct its annotation"
    )


Canvas = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
Contour = npt.NDArray[np.int32]
"""(n, 2), x then y."""

SLACK = 3.0
"""Truncation, Clipper's rounding and the rim of fills reach less than this beyond D."""
NEAR = 4096
"""Contours are filled as they are up to this many pixels outside the canvas, and cut beyond it."""
NOTHING: Contour = np.empty((0, 2), np.int32)


def shrink_and_dilate(contour: Contour, distance: float) -> tuple[Contour, Contour]:
    """Return the first shrunken and the first dilated part of a contour.

    They are empty if there is none; what shrinks to nothing is not dilated.
    """
    clipper = pyclipper.PyclipperOffset()
    clipper.AddPath(contour.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    shrunken = clipper.Execute(-distance)
    if not shrunken:
        return NOTHING, NOTHING
    return _first(shrunken), _first(clipper.Execute(distance))


def _first(parts: list[list[list[int]]]) -> Contour:
    if not parts:
        return NOTHING
    numbers = chain.from_iterable(parts[0])  # three times as fast as an array of lists
    return np.fromiter(numbers, np.int32, 2 * len(parts[0])).reshape(-1, 2)


def fill(
    canvas: Canvas, contour: Contour, value: float, *, shift: tuple[int, int] = (0, 0)
) -> None:
    """Fill a contour, its rim included, by the even-odd rule, moved by `shift`."""
    if len(contour):
        cv2.fillPoly(canvas, (contour,), value, cv2.LINE_8, 0, shift)


def bring_near(contour: Contour, height: int, width: int) -> Contour:
    """Clip a contour far outside of the canvas: filling visits every row, visible or not."""
    left, top, right, bottom = -NEAR, -NEAR, width + NEAR, height + NEAR
    points = contour.astype(np.float64)
    for axis, sign, limit in ((0, 1, left), (0, -1, -right), (1, 1, top), (1, -1, -bottom)):
        points = _cut(points, sign * points[:, axis] - limit)
    return np.rint(points).astype(np.int32)


def _cut(points: Floats, depth: Floats) -> Floats:
    """Keep the part of a closed path where `depth` is not negative (Sutherland and Hodgman)."""
    inside = depth >= 0
    if inside.all():
        return points
    following, further = np.roll(points, -1, axis=0), np.roll(depth, -1)
    crosses = inside != np.roll(inside, -1)
    share = depth / np.where(crosses, depth - further, 1.0)
    crossings = points + share[:, None] * (following - points)
    # each point, if it is kept, then the crossing of its edge, if there is one
    both = np.stack((points, crossings), axis=1).reshape(-1, 2)
    return np.asarray(both[np.stack((inside, crosses), axis=1).ravel()])
