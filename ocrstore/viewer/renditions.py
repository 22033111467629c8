"""Find a store's pictures, views and maps and encode them for the browser as JPEG or PNG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.annotation import AnnotationReader
from ocrstore.errors import OCRStoreError, SchemaError, UnknownColumnError
from ocrstore.geometry import transform_points
from ocrstore.schema import COLUMNS, IMAGE, INVERSE_MATRIX, MAPS, TENSOR, VIEW_COLUMNS
from ocrstore.store import Store
from ocrstore.views import Matrix, fits, readable_views, view_matrices


@dataclass(frozen=True, slots=True)
class ShownView:
    """A baked view: its columns by role (`tensor`, `inverse_matrix`, maps)."""

    name: str
    columns: Mapping[str, str]

    @property
    def maps(self) -> list[str]:
        """The roles of its maps and masks."""
        return [name for name in MAPS if name in self.columns]


def find_views(store: Store) -> tuple[ShownView, ...]:
    """Return a store's views, the default one first.

    A store that `build` did not make has one view if its columns have the usual names.
    """
    recorded, _ = readable_views(store)
    views = [ShownView(view.name, view.columns) for view in recorded]
    if not views:
        usual = [name for name in VIEW_COLUMNS if name in store.columns]
        fitting = {name: name for name in usual if fits(store.columns[name], name)}
        views = [ShownView("baked", fitting)]
    return tuple(view for view in views if TENSOR in view.columns or view.maps)


def find_picture(store: Store) -> str | None:
    """Return the column with the original pictures, if there is one."""
    taken = {column for view in find_views(store) for column in view.columns.values()}
    others = [name for name, spec in store.columns.items() if fits(spec, IMAGE)]
    return next((name for name in (IMAGE, *others) if name in others and name not in taken), None)


def picture_size(store: Store, row: int, picture: str | None) -> tuple[int, int] | None:
    """Return (height, width) of a sample's picture, as recorded or as stored."""
    size = AnnotationReader(store, row=row, strict=False).size(0)
    if size is not None:
        return size[1], size[0]
    if picture is None:
        return None
    shape = store[picture].shapes[row].tolist()
    return shape[0], shape[1]


def shown_matrices(store: Store, row: int, view: ShownView) -> tuple[Matrix, Matrix] | None:
    """Return the matrices from picture to view and back; None where none or no usable one is."""
    column = view.columns.get(INVERSE_MATRIX)
    try:
        return None if column is None else view_matrices(store, column, row)
    except SchemaError:
        return None


# ---- encoding ----

Pixels = npt.NDArray[np.uint8]

MAX_SIDE = 8192
"""Larger pictures are scaled down: browsers do not show them."""
_LOSSLESS_PIXELS = 1_500_000


def encode_picture(pixels: Pixels) -> tuple[bytes, str]:
    """Encode a picture in full size; return bytes and media type."""
    pixels = shrink(pixels, MAX_SIDE)
    bgr = np.ascontiguousarray(pixels[..., ::-1])
    if bgr.shape[0] * bgr.shape[1] <= _LOSSLESS_PIXELS:
        return _encode(".png", bgr, [cv2.IMWRITE_PNG_COMPRESSION, 1]), "image/png"
    options = [cv2.IMWRITE_JPEG_QUALITY, 94]
    options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return _encode(".jpg", bgr, options), "image/jpeg"


def encode_thumbnail(pixels: Pixels) -> bytes:
    """Encode a small picture as JPEG."""
    return _encode(".jpg", np.ascontiguousarray(pixels[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 84])


def encode_map(name: str, values: npt.NDArray[Any]) -> bytes:
    """Encode a map or mask as a PNG of one colour, with the map as its alpha channel.

    The threshold map is scaled to its own range, which makes its ramp visible. The probability
    mask is opaque where pixels do not count, the threshold mask where they do.
    """
    strength = np.nan_to_num(np.asarray(values, np.float32), posinf=0.0, neginf=0.0)
    if name == "thresh_map" and strength.size:
        low, high = float(strength.min()), float(strength.max())
        strength = (strength - low) / (high - low) if high > low else np.zeros_like(strength)
    elif name == "prob_mask":
        strength = (strength == 0) * np.float32(0.8)
    elif name == "thresh_mask":
        strength = (strength != 0) * np.float32(0.8)
    layer = np.empty((*strength.shape, 4), np.uint8)
    layer[..., :3] = COLUMNS[name].colour[::-1]
    layer[..., 3] = np.clip(strength, 0, 1) * 255
    return _encode(".png", layer, [cv2.IMWRITE_PNG_COMPRESSION, 1])


def shrink(pixels: Pixels, side: int) -> Pixels:
    """Scale a picture down so that its longer side is at most `side`."""
    height, width = pixels.shape[:2]
    if max(height, width) <= side or not pixels.size:
        return pixels
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def _encode(suffix: str, pixels: Pixels, options: list[int]) -> bytes:
    if not pixels.size:
        pixels = np.full((1, 1, pixels.shape[2]), 128, np.uint8)
    done, data = cv2.imencode(suffix, pixels, options)
    if not done:
        raise OCRStoreError(f"OpenCV could not encode a picture of shape {pixels.shape}.")
    return bytes(data)


# ---- thumbnails ----

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
    """A polygon in pixels of the picture, and its state (a key of `COLOURS`)."""

    points: npt.NDArray[np.floating]
    state: str


class Thumbnails:
    """Make the thumbnails of one state of a store. Threads may share it."""

    def __init__(self, store: Store, picture: str | None, view: ShownView | None) -> None:
        self._store = store
        self._picture = picture
        self._view = view if view is not None and TENSOR in view.columns else None
        baked = self._view.columns[TENSOR] if self._view else None
        self.column = baked or picture
        """The column they are made from."""

    def tag(self, row: int, side: int, outlines: list[Outline]) -> str:
        """Return the ETag: hashes of the row and of the outlines."""
        if self.column is None:
            raise UnknownColumnError(f"{self._store.path}: no column holds pictures.")
        digest = xxhash.xxh3_64(str(side).encode())
        for outline in outlines:
            digest.update(outline.state.encode() + outline.points.tobytes())
        return f'"{int(self._store[self.column].hashes[row]):016x}-{digest.hexdigest()}"'

    def make(self, row: int, side: int, outlines: list[Outline]) -> bytes:
        """Return a JPEG with a longer side of at most `side`."""
        if self.column is None:
            raise UnknownColumnError(f"{self._store.path}: no column holds pictures.")
        pixels: Any = self._store[self.column][row]
        size = picture_size(self._store, row, self._picture)
        matrix = np.eye(3)
        corner = np.zeros(2)
        if self._view is not None:
            matrices = shown_matrices(self._store, row, self._view)
            if matrices is not None and size is not None:
                matrix = matrices[0]
                pixels, corner = _cut(pixels, matrix, size)
            else:
                outlines = []
        if not pixels.size:
            return encode_thumbnail(pixels)
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
    """Crop a view to the picture without its padding; return pixels and top-left corner."""
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
    small = float(np.ptp(points, axis=0).min()) < 14  # a thick line would hide the text
    thick = 1 if small or max(pixels.shape[:2]) <= 240 else 2
    colour = COLOURS[outline.state]
    cv2.polylines(pixels, [whole], True, colour, thick, cv2.LINE_AA, _SHIFT)
