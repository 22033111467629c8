"""Small pictures and map overlays as data URIs; the only part of a report that reads payload."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ocrstore.inspection.sample import picture_of
from ocrstore.inspection.views import StoredView
from ocrstore.store import Store

Matrix = npt.NDArray[np.float64]
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 78]
_PNG = [cv2.IMWRITE_PNG_COMPRESSION, 9]
# RGB of each map's overlay; its alpha is the map
_COLOURS = {"prob_map": (236, 72, 220), "thresh_map": (250, 204, 21)}


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A sample's picture made small, and its maps in the same frame."""

    uri: str
    width: int
    """Of the frame that polygons are drawn in: the upright picture, or the view."""
    height: int
    overlays: Mapping[str, str] = field(default_factory=dict)
    """Data URIs of prob_map and thresh_map, where the store has them."""
    to_frame: Matrix = field(default_factory=lambda: np.eye(3))
    """3x3: from the upright picture, in which polygons are given, to the frame."""


def make_thumbnail(
    store: Store, row: int, *, side: int, view: StoredView | None = None
) -> Thumbnail | None:
    """Make a picture of at most `side` pixels, with the maps of a view if one is given."""
    found = picture_of(store, row)
    if found is None:
        return None
    height, width = found.pixels.shape[:2]
    scale = min(1.0, side / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = np.asarray(cv2.resize(found.pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
    overlays: dict[str, str] = {}
    if view is not None:
        # overlays are smooth: half the size is enough
        half = max(1, size[0] // 2), max(1, size[1] // 2)
        place = np.diag((half[0] / width, half[1] / height, 1.0))
        overlays = _overlays(store, row, view, found.to_pixels, place, half)
    return Thumbnail(
        _uri("image/jpeg", ".jpg", np.ascontiguousarray(small[..., ::-1]), _JPEG),
        width,
        height,
        overlays,
        found.to_pixels,
    )


def _overlays(
    store: Store,
    row: int,
    view: StoredView,
    to_pixels: Matrix,
    place: Matrix,
    size: tuple[int, int],
) -> dict[str, str]:
    inverse = view.columns.get("inverse_matrix")
    if inverse not in store.columns:
        return {}
    back = np.asarray(store[str(inverse)][row], np.float64)  # view -> upright picture
    matrix = place @ to_pixels @ back
    lowest = _thresh_min(view)
    overlays: dict[str, str] = {}
    for name, colour in _COLOURS.items():
        column = view.columns.get(name)
        if column not in store.columns:
            continue
        values = np.asarray(store[str(column)][row], np.float32)
        if name == "thresh_map":
            values = (values - lowest) / max(1e-6, 1.0 - lowest) * 1.4
        shrink = np.hypot(matrix[0, 0], matrix[1, 0])
        if 0 < shrink < 1:  # warping does not average: without this, edges would be stairs
            values = np.asarray(cv2.GaussianBlur(values, (0, 0), 0.5 / shrink), np.float32)
        moved = cv2.warpPerspective(values, matrix, size, flags=cv2.INTER_LINEAR)
        picture = np.empty((size[1], size[0], 4), np.uint8)
        picture[..., :3] = colour[::-1]
        # sixteen steps are plenty for an overlay, and compress well
        picture[..., 3] = (np.clip(moved, 0, 1) * 12).astype(np.uint8) * 17
        overlays[name] = _uri("image/png", ".png", picture, _PNG)
    return overlays


def _thresh_min(view: StoredView) -> float:
    maps: Any = view.recipe.get("maps")
    found = maps.get("thresh_min", 0.3) if isinstance(maps, Mapping) else 0.3
    return float(found)


def _uri(kind: str, suffix: str, pixels: npt.NDArray[np.uint8], params: list[int]) -> str:
    done, data = cv2.imencode(suffix, pixels, params)
    assert done  # a picture of at least one pixel, in memory
    return f"data:{kind};base64,{base64.b64encode(data.tobytes()).decode()}"
