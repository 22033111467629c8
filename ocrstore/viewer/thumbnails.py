"""Thumbnails: of the baked view where there is one, cut to its picture; with outlines if wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.errors import UnknownColumnError
from ocrstore.geometry import transform_points
from ocrstore.store import Store
from ocrstore.viewer.pictures import Pixels, encode_thumbnail, shrink
from ocrstore.viewer.views import ShownView, forward_matrix, picture_size

SIZES = (160, 320, 640)

# RGB; style.css has the same
COLOURS = {
    "truth": (46, 204, 113),
    "ignored": (150, 158, 170),
    "hit": (46, 204, 113),
    "miss": (255, 69, 90),
    "false_alarm": (255, 176, 0),
    "left_out": (150, 158, 170),
}
_SHIFT = 4  # fractional bits of OpenCV's coordinates


@dataclass(frozen=True, slots=True)
class Outline:
    """A polygon in the picture's frame, and what it is."""

    points: npt.NDArray[np.float64]
    state: str


class Thumbnails:
    """Makes the thumbnails of one state of a store. Threads may share it."""

    def __init__(self, store: Store, picture: str | None, view: ShownView | None) -> None:
        self._store = store
        self._picture = picture
        self._view = view if view is not None and "tensor" in view.columns else None
        baked = self._view.columns["tensor"] if self._view else None
        self.column = baked or picture
        """The column they are made from."""

    def tag(self, row: int, side: int, outlines: list[Outline]) -> str:
        """Return the ETag: the hash of the row, and of what is drawn over it."""
        if self.column is None:
            raise UnknownColumnError(f"{self._store.path}: no column holds pictures.")
        digest = xxhash.xxh3_64(str(side).encode())
        for outline in outlines:
            digest.update(outline.state.encode() + outline.points.tobytes())
        return f'"{int(self._store[self.column].hashes[row]):016x}-{digest.hexdigest()}"'

    def make(self, row: int, side: int, outlines: list[Outline]) -> bytes:
        """Return a JPEG whose longer side is at most `side`."""
        if self.column is None:
            raise UnknownColumnError(f"{self._store.path}: no column holds pictures.")
        pixels: Any = self._store[self.column][row]
        size = picture_size(self._store, row, self._picture)
        matrix = np.eye(3)
        corner = np.zeros(2)
        if self._view is not None:
            forward = forward_matrix(self._store, row, self._view)
            if forward is not None and size is not None:
                matrix = forward
                pixels, corner = _cut(pixels, forward, size)
            else:
                outlines = []
        small = shrink(pixels, side)
        scale = np.array([small.shape[1] / pixels.shape[1], small.shape[0] / pixels.shape[0]])
        if outlines:
            small = np.ascontiguousarray(small).copy()
            for outline in outlines:
                _draw(small, (transform_points(matrix, outline.points) - corner) * scale, outline)
        return encode_thumbnail(small)


def _cut(
    pixels: Pixels, forward: npt.NDArray[np.float64], size: tuple[int, int]
) -> tuple[Pixels, npt.NDArray[np.float64]]:
    """Cut a view to where the picture lies in it; returns pixels and their top-left corner."""
    height, width = size
    corners = transform_points(forward, [(0, 0), (width, 0), (width, height), (0, height)])
    if not np.isfinite(corners).all():
        return pixels, np.zeros(2)
    limits = (pixels.shape[1], pixels.shape[0])
    low = np.clip(np.floor(corners.min(axis=0) + 0.5), 0, limits).astype(int)
    high = np.clip(np.ceil(corners.max(axis=0) - 0.5), 0, limits).astype(int)
    if (high - low < 1).any():
        return pixels, np.zeros(2)
    return pixels[low[1] : high[1], low[0] : high[0]], low.astype(np.float64)


def _draw(pixels: Pixels, points: npt.NDArray[np.float64], outline: Outline) -> None:
    if not np.isfinite(points).all() or np.abs(points).max(initial=0) > 1e6:
        return
    whole = np.rint((points - 0.5) * (1 << _SHIFT)).astype(np.int32).reshape(-1, 1, 2)
    small = float(np.ptp(points, axis=0).min()) < 14  # a thick line would hide what is inside
    thick = 1 if small or max(pixels.shape[:2]) <= 240 else 2
    colour = COLOURS[outline.state]
    cv2.polylines(pixels, [whole], True, colour, thick, cv2.LINE_AA, _SHIFT)
