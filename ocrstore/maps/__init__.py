"""Draw DBNet's probability and threshold maps and their masks from polygons.

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

With `MapParams(rules="truncated")` the maps are those of training code that turns polygons into
int32 first, for experiments that are under way:

1. Each polygon is truncated to whole pixels; A is `cv2.contourArea` of that, L `cv2.arcLength`.
2. None is ignored, by flag or by size, and there are no masks: both are 1 everywhere. A polygon
   without area draws nothing.
3. All parts that shrinking leaves are filled.
4. The border is drawn in the whole bounding box of each dilated part, not only in its outline.
   d is the smallest of the distances to the edges, and the distance to an edge is that to its line
   within the circle over the edge, else that to the nearer end of the edge.
"""

from __future__ import annotations

from ocrstore.errors import needs

with needs("build"):
    from ocrstore.maps.drawing import ALGORITHM, MapParams, Maps, dbnet_maps, draw_maps
    from ocrstore.maps.outlines import MAX_COORDINATE, MAX_POINTS

__all__ = [
    "ALGORITHM",
    "MAX_COORDINATE",
    "MAX_POINTS",
    "MapParams",
    "Maps",
    "dbnet_maps",
    "draw_maps",
]
