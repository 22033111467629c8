"""Turn probability maps into boxes in picture coordinates.

There are two sets of rules. The default ones (`rules="ocrstore"`):

- Each outer contour is a region; of too many the largest are kept.
- Its score is the mean probability inside the contour.
- It grows by what the maps were shrunk by, and boxes are dropped for their size after that.
- Coordinates are those of the pixel's area: a contour runs through pixel centres, at + 0.5.

`rules="db"` are those of the DBNet authors' published code, box by box, for comparisons with it:

- Every contour is a region, holes as well; of too many the first that OpenCV finds are kept.
- Its score is the mean probability inside the smallest rectangle around it.
- Rectangles with a short side below `min_size` are dropped before they grow, and those below
  `min_size + 2` after.
- The rectangle's corners, cut to integers, grow by `unclip_ratio * area / perimeter`.
- Coordinates are rounded to whole pixels.

The default rules keep text that the others lose. A region is shrunk to 3 px or less where text is
up to about 10 px high, and is dropped there before it could grow; the rectangle around slanted or
curved text is half empty, which lowers its score; and 1.5 A / L gives back less of a region the
longer it is. docs/training.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper

from ocrstore.errors import SchemaError
from ocrstore.geometry import transform_points
from ocrstore.recipe import Recipe

Floats = npt.NDArray[np.float32]

_SCALE = 256.0  # sub-pixel grid of pyclipper's integers
# contours run through pixel centres, which lie at + 0.5 in the frame of the matrices; it is also
# the mean of what drawing the maps cuts off from coordinates
_CENTRE = np.float32(0.5)

Rules = Literal["ocrstore", "db"]
DB_RULES: dict[str, Any] = {
    "rules": "db",
    "threshold": 0.3,
    "min_score": 0.7,
    "unclip_ratio": 1.5,
    "min_size": 3.0,
    "max_candidates": 1000,
}
"""The authors' rules with the authors' values, for `PostParams(**DB_RULES)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostParams:
    """How regions of a probability map become boxes."""

    rules: Rules = "ocrstore"
    """"ocrstore", or "db" for those of the DBNet authors' code; see the module's docstring."""
    threshold: float = 0.5
    """A pixel belongs to a region above this probability. 0.3 in the paper, where the wider regions
    make up for part of what `unclip_ratio=1.5` does not give back."""
    min_score: float = 0.6
    """A region is kept if its mean probability reaches this."""
    unclip_ratio: float | None = None
    """Regions grow by `ratio * area / perimeter` (1.5 in the paper); None undoes the shrinking."""
    shrink_ratio: float = 0.4
    """What the maps were shrunk by, for `unclip_ratio=None`; the recipe has it."""
    min_size: float = 3.0
    """Boxes with a short side below this are dropped, in view pixels."""
    max_candidates: int = 1000
    """At most so many regions of a picture are looked at."""
    polygons: bool = False
    """Outlines that follow the text, instead of rectangles."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1 or not 0 <= self.shrink_ratio < 1:
            raise SchemaError(
                f"threshold {self.threshold} and shrink_ratio {self.shrink_ratio}: expected "
                "numbers between 0 and 1"
            )
        if not 0 <= self.min_score <= 1:
            raise SchemaError(f"min_score {self.min_score}: expected a number from 0 to 1")
        if self.min_size < 0 or self.max_candidates < 1 or (self.unclip_ratio or 0) < 0:
            raise SchemaError(
                f"min_size {self.min_size}, max_candidates {self.max_candidates}, unclip_ratio "
                f"{self.unclip_ratio}: expected no negative numbers, and at least one candidate"
            )
        if self.rules not in ("ocrstore", "db"):
            raise SchemaError(f"unknown rules {self.rules!r}: expected 'ocrstore' or 'db'")
        if self.rules == "db" and (self.unclip_ratio is None or self.polygons):
            raise SchemaError(
                f"rules 'db' with unclip_ratio {self.unclip_ratio} and polygons {self.polygons}: "
                "expected a number (the authors' is 1.5) and no polygons; DB_RULES has their values"
            )


def params_for(recipe: Recipe, **changes: Any) -> PostParams:
    """Return the parameters that undo what a recipe does to its maps."""
    return PostParams(shrink_ratio=recipe.maps.shrink_ratio, **changes)


def changes_for(rules: str | None, **given: Any) -> dict[str, Any]:
    """Return the fields of `PostParams` that a command's options change; None is not given."""
    changes = dict(DB_RULES) if rules == "db" else {} if rules is None else {"rules": rules}
    return changes | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Detections:
    """What was found in one picture."""

    polygons: tuple[Floats, ...]
    """Each (n, 2) float32 x, y; clockwise as seen, quads from the upper left corner."""
    scores: Floats
    """(len(polygons),) float32 mean probability."""

    def __len__(self) -> int:
        return len(self.polygons)


def detect(
    prob_maps: npt.NDArray[np.floating],
    *,
    inverse_matrices: npt.NDArray[np.floating] | None = None,
    sizes: Sequence[tuple[int, int]] | None = None,
    params: PostParams | None = None,
) -> list[Detections]:
    """Return the boxes of a batch of probability maps, (B, H, W) or (B, 1, H, W).

    Args:
        prob_maps: Float16 or float32.
        inverse_matrices: (B, 3, 3), from view to picture coordinates; without them boxes stay in
            the view (with `rules="db"` and `sizes`, the map is taken as the resized picture).
        sizes: (width, height) of each picture; boxes are clipped to it.
        params: The default ones if None.
    """
    params = params or PostParams()
    maps = np.asarray(prob_maps)
    if maps.ndim == 4 and maps.shape[1] == 1:
        maps = maps[:, 0]
    if maps.ndim != 3:
        raise SchemaError(
            f"probability maps of shape {np.shape(prob_maps)}: expected (B, H, W) or (B, 1, H, W)"
        )
    found = []
    for position, prob in enumerate(maps):
        matrix = None if inverse_matrices is None else np.asarray(inverse_matrices[position])
        size = None if sizes is None else sizes[position]
        found.append(detect_one(prob, inverse_matrix=matrix, size=size, params=params))
    return found


def detect_one(
    prob_map: npt.NDArray[np.floating],
    *,
    inverse_matrix: npt.NDArray[np.floating] | None = None,
    size: tuple[int, int] | None = None,
    params: PostParams | None = None,
) -> Detections:
    """Return the boxes of one (H, W) probability map; see `detect`."""
    params = params or PostParams()
    prob = np.ascontiguousarray(prob_map, dtype=np.float32)
    if params.rules == "db":
        return _detect_by_db_rules(prob, inverse_matrix, size, params)
    contours = _outlines(prob > params.threshold, params.max_candidates)
    if not contours:
        return Detections((), np.zeros(0, np.float32))
    if params.polygons:
        candidates = [_grow_polygon(contour, params) for contour in contours]
    else:
        candidates = list(_grow_rectangles(contours, params))
    polygons, scores = [], []
    for candidate, contour in zip(candidates, contours, strict=True):
        if candidate is None or _short_side(candidate) < params.min_size:
            continue
        score = _mean_inside(prob, contour)
        if score < params.min_score:
            continue
        polygon = _to_picture(candidate + _CENTRE, inverse_matrix, size)
        # what lies in the padding alone has nothing left after it was cut at the picture's edges
        if cv2.contourArea(polygon) > 0:
            polygons.append(polygon)
            scores.append(score)
    return Detections(tuple(polygons), np.asarray(scores, np.float32))


def _outlines(bitmap: npt.NDArray[np.bool_], limit: int) -> list[npt.NDArray[np.int32]]:
    """Return the outer contour of every region, also of those that lie in another's hole."""
    contours, hierarchy = cv2.findContours(
        bitmap.view(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE
    )
    outer = [
        np.asarray(contour, np.int32).reshape(-1, 2)
        for contour, links in zip(contours, () if hierarchy is None else hierarchy[0], strict=True)
        if links[3] < 0
    ]
    if len(outer) > limit:
        # by bounding box: a line of one pixel's height has no contour area
        outer.sort(key=lambda c: int(np.prod(np.ptp(c, axis=0) + 1)), reverse=True)
        del outer[limit:]
    return outer


def _grow_rectangles(contours: list[npt.NDArray[np.int32]], params: PostParams) -> Floats:
    """Return (n, 4, 2): each region's rectangle, grown; all regions at once."""
    rectangles = [cv2.minAreaRect(contour) for contour in contours]
    centre = np.array([r[0] for r in rectangles])
    side = np.array([r[1] for r in rectangles])
    angle = np.radians([r[2] for r in rectangles])
    grown = side + 2 * rectangle_offsets(side, params)[:, None]
    return _corners(centre, grown, angle)


def rectangle_offsets(
    side: npt.NDArray[np.floating], params: PostParams
) -> npt.NDArray[np.float64]:
    """Return by how much each rectangle of (n, 2) sides grows on every side.

    A contour runs through pixel centres, so a region one pixel high has a side of 0 there. Its
    area is taken with the half pixel around it; or else the thinnest text would never grow.
    """
    sides = np.maximum(np.asarray(side, np.float64), 1.0)
    w, h = sides[:, 0], sides[:, 1]
    offsets: npt.NDArray[np.float64]
    if params.unclip_ratio is not None:
        offsets = params.unclip_ratio * w * h / (2 * (w + h))
        return offsets
    # the D for which shrinking the grown rectangle gives this one back:
    # D = c A / L with A = (w + 2D)(h + 2D), L = 2 (w + h + 4D), c = 1 - r^2
    c = 1.0 - params.shrink_ratio**2
    a, b = 8.0 - 4.0 * c, 2.0 * (1.0 - c) * (w + h)
    offsets = (np.sqrt(b * b + 4.0 * a * c * w * h) - b) / (2.0 * a)
    return offsets


def _corners(
    centre: npt.NDArray[np.float64], side: npt.NDArray[np.float64], angle: npt.NDArray[np.float64]
) -> Floats:
    """Return (n, 4, 2) corners, clockwise as seen, from the upper left one."""
    along = np.stack([np.cos(angle), np.sin(angle)], axis=1)[:, None]
    across = np.stack([-np.sin(angle), np.cos(angle)], axis=1)[:, None]
    half = side[:, None] / 2
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64)
    quads = (
        centre[:, None]
        + signs[None, :, :1] * half[..., :1] * along
        + signs[None, :, 1:] * half[..., 1:] * across
    )
    # the upper left corner is the one with the smallest x + y
    first = quads.sum(axis=2).argmin(axis=1)
    order = (first[:, None] + np.arange(4)) % 4
    return np.take_along_axis(quads, order[..., None], axis=1).astype(np.float32)


def _grow_polygon(contour: npt.NDArray[np.int32], params: PostParams) -> Floats | None:
    """Return the region's outline, simplified and grown; None if nothing is left."""
    perimeter = cv2.arcLength(contour, True)
    outline = cv2.approxPolyDP(contour, 0.005 * perimeter, True).reshape(-1, 2)
    if len(outline) < 3 or cv2.contourArea(outline) < 1:
        # a line: its rectangle is the best answer
        grown: Floats = _grow_rectangles([contour], params)[0]
        return grown
    offset = polygon_offset(cv2.contourArea(outline), cv2.arcLength(outline, True), params)
    clipper = pyclipper.PyclipperOffset(2.0, 0.25 * _SCALE)
    clipper.AddPath(
        (outline.astype(np.int64) * int(_SCALE)).tolist(),
        pyclipper.JT_ROUND,
        pyclipper.ET_CLOSEDPOLYGON,
    )
    paths = clipper.Execute(offset * _SCALE)
    if not paths:
        return None
    largest = max(paths, key=lambda path: abs(pyclipper.Area(path)))
    points = np.asarray(largest, dtype=np.float32) / np.float32(_SCALE)
    slim = cv2.approxPolyDP(points, 0.002 * cv2.arcLength(points, True), True).reshape(-1, 2)
    slim = points if len(slim) < 3 else slim
    return _clockwise(slim.astype(np.float32))


def polygon_offset(area: float, perimeter: float, params: PostParams) -> float:
    """Return by how much an outline of this area and perimeter grows on every side."""
    if params.unclip_ratio is not None:
        return params.unclip_ratio * area / perimeter
    # as for rectangles, with A = area + perimeter D + pi D^2 and L = perimeter + 2 pi D
    c = 1.0 - params.shrink_ratio**2
    a, b = math.pi * (2.0 - c), (1.0 - c) * perimeter
    return (math.sqrt(b * b + 4.0 * a * c * area) - b) / (2.0 * a)


def _clockwise(points: Floats) -> Floats:
    """Return the points clockwise as seen (y points down)."""
    x, y = points[:, 0], points[:, 1]
    signed = float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))
    return points if signed >= 0 else np.ascontiguousarray(points[::-1])


def _short_side(points: Floats) -> float:
    if len(points) == 4:
        edges = np.linalg.norm(points - np.roll(points, -1, axis=0), axis=1)
        return float(min(edges[0] + edges[2], edges[1] + edges[3])) / 2
    return float(min(cv2.minAreaRect(points)[1]))


def _mean_inside(prob: Floats, contour: npt.NDArray[np.int32]) -> float:
    """Return the mean probability of the pixels inside a contour.

    Inside the contour, not inside its rectangle: that of slanted text is half empty.
    """
    left, top, width, height = cv2.boundingRect(contour)
    mask = np.zeros((height, width), np.uint8)
    cv2.fillPoly(mask, [contour - np.array((left, top), np.int32)], 1)
    return float(cv2.mean(prob[top : top + height, left : left + width], mask)[0])


def _to_picture(
    points: Floats,
    matrix: npt.NDArray[np.floating] | None,
    size: tuple[int, int] | None,
) -> Floats:
    out = points.astype(np.float64) if matrix is None else transform_points(matrix, points)
    if size is not None:
        out = np.clip(out, 0, size)
    return out.astype(np.float32)


def _detect_by_db_rules(
    prob: Floats,
    matrix: npt.NDArray[np.floating] | None,
    size: tuple[int, int] | None,
    params: PostParams,
) -> Detections:
    """Return the boxes that the authors' code gives; see the module's docstring."""
    bitmap = (prob > params.threshold).view(np.uint8)
    contours, _ = cv2.findContours(bitmap, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    polygons, scores = [], []
    for contour in contours[: params.max_candidates]:
        box, short_side = _smallest_rectangle(contour)
        if short_side < params.min_size:
            continue
        score = _mean_in_rectangle(prob, box)
        if score < params.min_score:
            continue
        box, short_side = _smallest_rectangle(_unclip(box, params.unclip_ratio or 0.0))
        if short_side < params.min_size + 2:
            continue
        polygon = _to_whole_pixels(box, prob.shape, matrix, size)
        # only a matrix can have padding around the picture, of which nothing is left when clipped
        if matrix is None or cv2.contourArea(polygon) > 0:
            polygons.append(polygon)
            scores.append(score)
    return Detections(tuple(polygons), np.asarray(scores, np.float32))


def _smallest_rectangle(points: Any) -> tuple[Floats, float]:
    """Return (4, 2) corners, clockwise from the upper left one, and the shorter side's length."""
    rectangle = cv2.minAreaRect(points)
    corners = cv2.boxPoints(rectangle)
    corners = corners[np.argsort(corners[:, 0], kind="stable")]
    # the two on the left by y, then those on the right; of equal y the second is taken as the upper
    left, right = corners[:2], corners[2:]
    upper_left, lower_left = left if left[1, 1] > left[0, 1] else left[::-1]
    upper_right, lower_right = right if right[1, 1] > right[0, 1] else right[::-1]
    return np.stack([upper_left, upper_right, lower_right, lower_left]), min(rectangle[1])


def _mean_in_rectangle(prob: Floats, box: Floats) -> float:
    """Return the mean probability inside a box, of which only the part in the map counts."""
    limit = np.array(prob.shape[::-1]) - 1
    first = np.clip(np.floor(box.min(axis=0)).astype(int), 0, limit)
    last = np.clip(np.ceil(box.max(axis=0)).astype(int), 0, limit)
    width, height = last - first + 1
    mask = np.zeros((height, width), np.uint8)
    cv2.fillPoly(mask, [(box - first.astype(np.float32)).astype(np.int32)], 1)
    window = prob[first[1] : last[1] + 1, first[0] : last[0] + 1]
    return float(cv2.mean(window, mask)[0])


def _unclip(box: Floats, ratio: float) -> npt.NDArray[np.int32]:
    """Return the outline of a box, its corners cut to integers, that has grown on every side."""
    corners = box.astype(np.float64)
    perimeter = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1).sum()
    # summed as shapely does it: the last bit of the distance can move a corner by a pixel
    x, y = corners[:, 0] - corners[0, 0], corners[:, 1]
    area = abs(float(np.sum(x * (np.roll(y, 1) - np.roll(y, -1))))) / 2
    clipper = pyclipper.PyclipperOffset()
    clipper.AddPath(box.astype(np.int64).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    (outline,) = clipper.Execute(area * ratio / float(perimeter))
    return np.asarray(outline, np.int32)


def _to_whole_pixels(
    box: Floats,
    shape: tuple[int, ...],
    matrix: npt.NDArray[np.floating] | None,
    size: tuple[int, int] | None,
) -> Floats:
    height, width = shape
    if matrix is None:
        size = size or (width, height)
        # in float32 and in this order, as the authors do: a half may round to either side
        whole, target = np.array((width, height), np.float32), np.array(size, np.float32)
        box = np.multiply(np.divide(box, whole), target)
    else:
        box = transform_points(matrix, box).astype(np.float32)
    rounded = np.round(box)
    return (rounded if size is None else np.clip(rounded, 0, size)).astype(np.float32)
