"""Outlines shrunken and dilated on whole pixels, and filled; hides pyclipper and fillPoly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper

from ocrstore.outlines import Bools, Floats

Canvas = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
Contour = npt.NDArray[np.int32]
"""(n, 2), x then y."""
Path = list[list[int]]

SLACK = 3.0
"""Truncation, Clipper's rounding and the rim of fills reach less than this beyond D."""
_REACH = 4096
"""Contours are filled as they are up to this many pixels outside the canvas, and cut beyond it."""
_BATCH_NUMBERS = 1 << 16
"""Paths are held as Python numbers up to about this many; huge round joins have many points."""


@dataclass(frozen=True, slots=True, eq=False)
class Offset:
    """What became of one polygon: its first shrunken and its first dilated part, empty if none."""

    polygon: int
    shrunken: Contour
    dilated: Contour
    box: tuple[int, int, int, int]
    """Of the dilated part: left, top, right and bottom, all inclusive; of nothing, inside out."""


def offset_outlines(
    paths: Mapping[int, Path], distances: Sequence[float]
) -> Iterator[list[Offset]]:
    """Shrink and dilate paths, by polygon, by their polygon's distance, in batches of bounded size.

    A polygon that shrinks to nothing is not dilated.
    """
    numbers: list[int] = []
    batch: list[int] = []
    lengths: list[int] = []
    for polygon, path in paths.items():
        clipper = pyclipper.PyclipperOffset()
        clipper.AddPath(path, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        parts = clipper.Execute(-distances[polygon])
        shrunken = parts[0] if parts else ()
        parts = clipper.Execute(distances[polygon]) if parts else ()
        dilated = parts[0] if parts else ()
        numbers.extend(chain.from_iterable(shrunken))
        numbers.extend(chain.from_iterable(dilated))
        batch.append(polygon)
        lengths += (len(shrunken), len(dilated))
        if len(numbers) > _BATCH_NUMBERS:
            yield _split(numbers, batch, lengths)
            numbers, batch, lengths = [], [], []
    if batch:
        yield _split(numbers, batch, lengths)


def _split(numbers: list[int], batch: list[int], lengths: list[int]) -> list[Offset]:
    # converted and measured all at once: one by one, this would take longer than Clipper does;
    # the last point gives `reduceat` something to stand on where a contour is empty
    points = np.array([*numbers, 0, 0], np.int32).reshape(-1, 2)
    bounds = [0, *accumulate(lengths)]
    lows = np.minimum.reduceat(points, bounds).tolist()
    highs = np.maximum.reduceat(points, bounds).tolist()
    offsets = []
    for index, polygon in enumerate(batch):
        first, second, end = bounds[2 * index : 2 * index + 3]
        box = (*lows[2 * index + 1], *highs[2 * index + 1]) if end > second else (0, 0, -1, -1)
        offsets.append(Offset(polygon, points[first:second], points[second:end], box))
    return offsets


def fill(
    canvas: Canvas, contour: Contour, value: float, *, shift: tuple[int, int] = (0, 0)
) -> None:
    """Fill a contour, its rim included, by the even-odd rule, moved by `shift`."""
    if len(contour):
        cv2.fillPoly(canvas, (contour,), value, cv2.LINE_8, 0, shift)


def locate(lows: Floats, highs: Floats, height: int, width: int) -> tuple[Bools, Bools]:
    """Tell which boxes touch the canvas, and which leave it so far that `bring_near` is needed."""
    size = np.array([[width], [height]], np.float64)
    outside = np.concatenate((-lows, highs - size))
    touching = np.logical_and.reduce(outside >= -np.concatenate((size, size)))
    return touching, np.logical_or.reduce(outside > _REACH)


def bring_near(contour: Contour, height: int, width: int) -> Contour:
    """Cut off what lies far outside a canvas: filling walks every row of a contour, seen or not."""
    left, top, right, bottom = -_REACH, -_REACH, width + _REACH, height + _REACH
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
