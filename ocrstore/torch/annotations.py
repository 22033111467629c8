"""Owns what a record says beside its columns: polygons in the view, texts, names, sizes, rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ocrstore.torch.parts import Parts
from ocrstore.torch.view import StoreView

if TYPE_CHECKING:
    import numpy.typing as npt

ANNOTATIONS = (
    "polygons",
    "ignored",
    "texts",
    "image_filename",
    "raw_size",
    "orientation",
    "rows",
)

LISTS = ("polygons", "ignored", "texts", "image_filename")
"""Those that are lists in a batch, and take longer to make than all of its tensors."""


def annotate(parts: Parts, name: str) -> Any:
    """Return one annotation of every sample: a list, or a tensor where it is a number.

    `polygons` are in the frame of `images`; `raw_size` is (width, height) of the upright picture.
    """
    if name == "rows":
        return torch.from_numpy(parts.rows.copy())
    for view in parts.views:
        view.check()
    if name in ("raw_size", "orientation"):
        names = ("width", "height") if name == "raw_size" else ("orientation",)
        found = _numbers(parts, *names)
        if found is not None:
            return found if name == "raw_size" else found[:, 0].clamp(min=1)
    each = parts.each()
    if name == "polygons":
        return [polygons_in_view(view, row) for view, row in each]
    if name in ("ignored", "texts"):
        return [getattr(view.recorded.annotation(row), name) for view, row in each]
    if name == "image_filename":
        return [view.key(row) for view, row in each]
    if name == "raw_size":
        sizes = [raw_size(view, row) for view, row in each]
        return torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2)
    values = [view.recorded.attribute("orientation", row) or 1 for view, row in each]
    return torch.tensor(values, dtype=torch.int64)


def _numbers(parts: Parts, *names: str) -> torch.Tensor | None:
    """Return recorded numbers of every sample, (B, names); None if some are not recorded."""
    out = np.empty((len(parts.local), len(names)), np.int64)
    for view, positions, rows in parts.groups():
        for place, name in enumerate(names):
            numbers = view.recorded.numbers(name)
            if numbers is None:
                return None
            out[positions, place] = numbers[rows]
    return torch.from_numpy(out)


def raw_size(view: StoreView, row: int) -> tuple[int, int]:
    """Return (width, height) of a sample's upright picture."""
    width, height = view.recorded.number("width", row), view.recorded.number("height", row)
    if width is None or height is None:
        name = "image" if "image" in view.store.columns else next(iter(view.columns), None)
        shape = view.column(name).shapes[row] if name is not None else (0, 0)
        height, width = (int(shape[0]), int(shape[1])) if len(shape) > 1 else (0, 0)
    return int(width), int(height)


def polygons_in_view(view: StoreView, row: int) -> list[npt.NDArray[np.float32]]:
    """Return a sample's polygons in the frame of the view's tensor."""
    polygons = view.recorded.annotation(row).polygons
    record = view.recipe or {}
    column = record.get("columns", {}).get("inverse_matrix", "inverse_matrix")
    if not polygons or column not in view.store.columns or "tensor" not in view.columns:
        return polygons
    forward = np.linalg.inv(np.asarray(view.store[column][row], np.float64))
    # all at once: there are many, and of four points each
    moved = move_points(forward, np.concatenate(polygons)).astype(np.float32)
    ends = np.cumsum([len(points) for points in polygons]).tolist()
    return [moved[end - len(points) : end] for points, end in zip(polygons, ends, strict=True)]


def move_points(matrix: npt.NDArray[np.float64], points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Send (n, 2) points through a 3x3 matrix."""
    given = np.asarray(points, np.float64)
    moved = given @ matrix[:, :2].T + matrix[:, 2]
    return np.asarray(moved[:, :2] / moved[:, 2:], np.float64)
