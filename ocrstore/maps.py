"""Polygons to probability and threshold maps with their masks, by the rules of DBNet.

Pixel (x, y) is the point (x, y) of the polygons' plane. For each polygon:

1. *Measure.* A is the absolute shoelace area, L the perimeter, D = A (1 - r^2) / L with r the
   shrink ratio; in float64, on the polygon as given. Nothing is clipped to the picture: a polygon
   partly outside is drawn as far as it is inside, with the D of the whole.
2. *Ignore.* A polygon is ignored if the caller says so, if its upright bounding box (largest minus
   smallest x, and y) is under `min_size` in width or height, if it has no area (fewer than three
   points, points on a line, a figure eight with equal loops), or if shrinking leaves nothing. It
   is filled with 0 in `prob_mask` and gets nothing else: no probability, no border.
3. *Shrink* by D: pyclipper, round joins, coordinates truncated towards zero to whole pixels as
   pyclipper does. Where this leaves several parts, the first one that Clipper lists is taken. It
   is filled with 1 in `prob_map`.
4. *Dilate* by D in the same way. The first part is the outer contour, so that a hole which
   dilating leaves is covered. It is filled with 1 in `thresh_mask`.
5. *Border.* Within that dilated contour, and only there, `thresh_map` is at least
   `thresh_min + (thresh_max - thresh_min) * (1 - min(1, d / D))`, where d is the distance from
   the pixel to the nearest edge, as a segment, of the polygon as given (not truncated).

Fills are those of OpenCV's `fillPoly`: even-odd, pixels on the contour included. Overlaps combine
by the maximum in `prob_map`, `thresh_map` and `thresh_mask` and by the minimum in `prob_mask`, so
that the order of the polygons makes no difference. Outside of every polygon the maps are 0 and
`thresh_min`, the masks 1 and 0. Orientation and repeated points make no difference either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ocrstore.blocks import POOL
from ocrstore.border import BorderPainter
from ocrstore.errors import SchemaError
from ocrstore.offsets import SLACK, Canvas, Contour, bring_near, fill, locate, offset_outlines
from ocrstore.outlines import MAX_COORDINATE, Outlines, measure

__all__ = ["ALGORITHM", "MAX_COORDINATE", "MapParams", "Maps", "draw_maps"]

ALGORITHM = "db-maps/1"
"""Goes into fingerprints: changes whenever the same polygons could give other maps."""


@dataclass(frozen=True, slots=True)
class MapParams:
    """The numbers in the rules; the defaults are those of DBNet."""

    shrink_ratio: float = 0.4
    thresh_min: float = 0.3
    thresh_max: float = 0.7
    min_size: float = 8.0
    """In pixels of the map: what is narrower or lower is ignored."""

    def __post_init__(self) -> None:
        if not 0 <= self.shrink_ratio < 1:
            raise SchemaError(f"shrink_ratio is {self.shrink_ratio}; expected 0 <= ratio < 1")
        if not 0 <= self.thresh_min < self.thresh_max <= 1:
            raise SchemaError(
                f"thresh_min is {self.thresh_min} and thresh_max {self.thresh_max}; "
                "expected 0 <= thresh_min < thresh_max <= 1"
            )
        if not 0 <= self.min_size < float("inf"):
            raise SchemaError(f"min_size is {self.min_size}; expected pixels, 0 or more")


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """Four (height, width) arrays, writable and yours.

    Those of `draw_maps` share one block of memory, which is used again when all four are gone.
    """

    prob_map: npt.NDArray[np.float32]
    """1 inside the shrunken polygons, else 0."""
    prob_mask: npt.NDArray[np.uint8]
    """0 inside ignored polygons, else 1: the pixel counts."""
    thresh_map: npt.NDArray[np.float32]
    """`thresh_max` on the polygons' edges, falling to `thresh_min` at distance D."""
    thresh_mask: npt.NDArray[np.uint8]
    """1 inside the dilated polygons: the pixel counts; else 0."""


_DBNET = MapParams()


def draw_maps(
    polygons: Sequence[npt.ArrayLike],
    ignored: Sequence[bool] | npt.NDArray[np.bool_],
    height: int,
    width: int,
    *,
    params: MapParams = _DBNET,
) -> Maps:
    """Draw the maps of one picture; the module's docstring has the rules.

    Takes (n, 2) arrays of x and y in pixels of the maps, and for each whether it is ignored. Raises
    `SchemaError` for what cannot be drawn: NaN, infinities and coordinates beyond `MAX_COORDINATE`
    among others, naming the polygon. Safe in threads and after fork.
    """
    if len(polygons) != len(ignored):
        raise SchemaError(
            f"{len(polygons)} polygons came with {len(ignored)} ignore flags; expected one for each"
        )
    if height < 1 or width < 1:
        raise SchemaError(f"maps of {width}x{height} pixels cannot be drawn; expected at least 1x1")
    # checked before anything is allocated
    outlines = measure(polygons) if len(polygons) else None
    maps = _blank(height, width, params)
    if outlines is not None:
        _draw(maps, outlines, np.asarray(ignored, np.bool_), params)
    return maps


def _blank(height: int, width: int, params: MapParams) -> Maps:
    pixels = height * width
    block = POOL.take(10 * pixels)
    floats = block[: 8 * pixels].view(np.float32).reshape(2, height, width)
    masks = block[8 * pixels :].reshape(2, height, width)
    maps = Maps(floats[0], masks[0], floats[1], masks[1])
    # each in the way that is fastest for it: `fill` is for bytes, and not for floats
    block[: 4 * pixels].fill(0)
    maps.prob_mask.fill(1)
    maps.thresh_map[...] = params.thresh_min
    maps.thresh_mask.fill(0)
    return maps


def _draw(
    maps: Maps, outlines: Outlines, ignored: npt.NDArray[np.bool_], params: MapParams
) -> None:
    height, width = maps.prob_map.shape
    areas = np.abs(outlines.areas)
    # a polygon that is one point has no perimeter either
    distances = areas * (1 - params.shrink_ratio**2) / np.maximum(outlines.perimeters, 1e-300)
    wide, high = outlines.highs - outlines.lows >= params.min_size
    ignored = ignored | ~(wide & high) | (distances <= 0)
    reach = distances + SLACK
    visible, beyond = locate(outlines.lows - reach, outlines.highs + reach, height, width)
    far = beyond.tolist()

    def fill_near(canvas: Canvas, contour: Contour, polygon: int, value: int) -> Contour:
        if far[polygon]:
            contour = bring_near(contour, height, width)
        fill(canvas, contour, value)
        return contour

    starts = outlines.starts.tolist()
    contours = [outlines.pixels[begin:end] for begin, end in pairwise(starts)]
    for polygon in (ignored & visible).nonzero()[0].tolist():
        fill_near(maps.prob_mask, contours[polygon], polygon, 0)
    drawn = (~ignored & visible).nonzero()[0].tolist()
    if not drawn:
        return
    paths = {polygon: contours[polygon].tolist() for polygon in drawn}
    painter = BorderPainter(
        outlines, distances, thresh_min=params.thresh_min, thresh_max=params.thresh_max
    )
    for offsets in offset_outlines(paths, distances.tolist()):
        bordered = []
        for offset in offsets:
            if not len(offset.shrunken):
                fill_near(maps.prob_mask, contours[offset.polygon], offset.polygon, 0)
                continue
            fill_near(maps.prob_map, offset.shrunken, offset.polygon, 1)
            dilated = fill_near(maps.thresh_mask, offset.dilated, offset.polygon, 1)
            bordered.append(replace(offset, dilated=dilated) if far[offset.polygon] else offset)
        painter.paint(maps.thresh_map, bordered)
