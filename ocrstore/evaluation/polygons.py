"""Areas of polygons and of what two of them share; exact, also where they are not convex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyclipper

Points = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Paths = list[Any]

# pyclipper computes in integers; a 1/1024 px grid keeps areas to 1e-3 of a pixel's and pictures
# of 2^20 px within its exact 128-bit range
_SCALE = 1024.0


def to_paths(points: npt.ArrayLike) -> Paths:
    """Return a polygon as closed paths without self-intersections (even-odd rule).

    A polygon without area gives no path at all.
    """
    scaled = np.rint(np.asarray(points, dtype=np.float64).reshape(-1, 2) * _SCALE).astype(np.int64)
    if len(scaled) < 3:
        return []
    return list(pyclipper.SimplifyPolygon(scaled.tolist(), pyclipper.PFT_EVENODD))


def area_of(paths: Paths) -> float:
    """Return the area that paths enclose, in square pixels (holes counted off)."""
    return abs(sum(float(pyclipper.Area(path)) for path in paths)) / _SCALE**2


def area(points: npt.ArrayLike) -> float:
    """Return the area of a polygon, in square pixels."""
    return area_of(to_paths(points))


def combine(first: Paths, second: Paths, *, operation: int) -> Paths:
    """Return what a boolean operation of pyclipper (`CT_...`) makes of two sets of paths."""
    if not first:
        return [] if operation != pyclipper.CT_UNION else second
    if not second:
        return [] if operation == pyclipper.CT_INTERSECTION else first
    clipper = pyclipper.Pyclipper()
    clipper.AddPaths(first, pyclipper.PT_SUBJECT, True)
    clipper.AddPaths(second, pyclipper.PT_CLIP, True)
    return list(clipper.Execute(operation, pyclipper.PFT_EVENODD, pyclipper.PFT_EVENODD))


def intersection_areas(first: Sequence[Paths], second: Sequence[Paths]) -> Floats:
    """Return the (len(first), len(second)) matrix of shared areas, in square pixels.

    Only pairs whose bounding boxes meet are clipped; in a picture with text that is a few per row.
    """
    areas = np.zeros((len(first), len(second)))
    if not first or not second:
        return areas
    a, b = _bounds(first), _bounds(second)
    meet = (a[:, None, 0] < b[None, :, 2]) & (b[None, :, 0] < a[:, None, 2])
    meet &= (a[:, None, 1] < b[None, :, 3]) & (b[None, :, 1] < a[:, None, 3])
    for i, j in np.argwhere(meet):
        common = combine(first[i], second[j], operation=pyclipper.CT_INTERSECTION)
        areas[i, j] = area_of(common)
    return areas


def _bounds(polygons: Sequence[Paths]) -> Floats:
    """Return (n, 4) left, top, right, bottom; of an empty polygon a box that meets nothing."""
    out = np.full((len(polygons), 4), np.inf)
    out[:, 2:] = -np.inf
    for row, paths in enumerate(polygons):
        if paths:
            points = np.concatenate([np.asarray(path, dtype=np.float64) for path in paths])
            out[row, :2], out[row, 2:] = points.min(axis=0), points.max(axis=0)
    return out
