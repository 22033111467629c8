"""Draw maps by the rules "truncated": those of training code that turns polygons into int32 first.

For moving a running experiment over with equal targets; the package's docstring has the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper

from ocrstore.maps.outlines import NEAR, Contour, Outlines, bring_near, fill

if TYPE_CHECKING:
    from ocrstore.maps.drawing import MapParams, Maps

Image = npt.NDArray[np.float32]


def draw_truncated(maps: Maps, groups: list[Outlines], params: MapParams) -> None:
    """Draw measured polygons on blank maps."""
    maps.thresh_mask.fill(1)
    border = np.zeros_like(maps.thresh_map)  # 1 on an edge, 0 from D on
    for contour in (contour for outlines in groups for contour in outlines.pixels):
        area, length = cv2.contourArea(contour), cv2.arcLength(contour, True)
        if area == 0:
            continue
        distance = area * (1 - params.shrink_ratio**2) / length
        clipper = pyclipper.PyclipperOffset()
        clipper.AddPath(contour.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        for part in _parts(clipper, -distance):
            far = (np.abs(part) > NEAR).any()
            fill(maps.prob_map, bring_near(part, *border.shape) if far else part, 1)
        for part in _parts(clipper, distance):
            left, top, width, height = cv2.boundingRect(part)
            box = (max(left, 0), max(top, 0), left + width, top + height)
            _raise(border, box, contour, distance)
    np.multiply(border, np.float32(params.thresh_max - params.thresh_min), out=maps.thresh_map)
    np.add(maps.thresh_map, np.float32(params.thresh_min), out=maps.thresh_map)


def _parts(clipper: pyclipper.PyclipperOffset, distance: float) -> Iterator[Contour]:
    for part in clipper.Execute(distance):
        yield np.array(part, np.int32)


def _raise(
    border: Image, box: tuple[int, int, int, int], contour: Contour, distance: float
) -> None:
    """Raise the border to 1 - d / D within a box; left, top, right, bottom."""
    points = contour.astype(np.float64)
    for (ax, ay), (bx, by) in zip(points, np.roll(points, -1, axis=0), strict=True):
        # beyond D of the edge nothing changes
        left = max(box[0], int(min(ax, bx) - distance))
        top = max(box[1], int(min(ay, by) - distance))
        right = max(0, min(box[2], int(max(ax, bx) + distance) + 1))
        bottom = max(0, min(box[3], int(max(ay, by) + distance) + 1))
        part = border[top:bottom, left:right]
        if not part.size:
            continue
        y = np.arange(top, top + part.shape[0], dtype=np.float64)[:, None]
        x = np.arange(left, left + part.shape[1], dtype=np.float64)
        nearer = np.minimum((x - ax) ** 2 + (y - ay) ** 2, (x - bx) ** 2 + (y - by) ** 2)
        measured = np.sqrt(nearer)
        if ax != bx or ay != by:
            across = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
            beside = (ax - x) * (bx - x) + (ay - y) * (by - y) <= 0
            np.copyto(measured, np.abs(across) / np.hypot(bx - ax, by - ay), where=beside)
        share = np.minimum(measured / distance, 1).astype(np.float32)
        np.maximum(part, 1 - share, out=part)
