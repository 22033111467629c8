"""Owns the names under which records show the columns of a view, and how tensors are turned."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from ocrstore.torch._rows import AnyArray


class Field(NamedTuple):
    """One column as a record shows it."""

    column: str
    """The logical name in the view."""
    plural: str
    """Its name in a batch."""
    singular: str
    """Its name in a sample."""
    kind: str = "plain"
    """`picture` (HWC, shown as CHW), `map` (HW, shown as 1HW) or `plain`."""

    def show(self, rows: torch.Tensor) -> torch.Tensor:
        """Turn stored rows (B, ...) the way a batch shows them; a view, never a copy."""
        if self.kind == "picture" and rows.ndim == 4:
            return rows.permute(0, 3, 1, 2)
        return rows.unsqueeze(1) if self.kind == "map" and rows.ndim == 3 else rows

    def tensor(self, rows: AnyArray) -> torch.Tensor:
        """Return what `show` makes of stored rows (B, ...), as a tensor that is no view of another.

        Torch takes many times as long to end a tensor that others were views of.
        """
        if self.kind == "picture" and rows.ndim == 4:
            return as_tensor(rows.transpose(0, 3, 1, 2))
        tensor = as_tensor(rows)
        return tensor.unsqueeze_(1) if self.kind == "map" and rows.ndim == 3 else tensor

    def shown_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that `show` gives rows of this shape."""
        if self.kind == "picture" and len(shape) == 4:
            return (shape[0], shape[3], shape[1], shape[2])
        return (shape[0], 1, *shape[1:]) if self.kind == "map" and len(shape) == 3 else shape

    def unshow(self, shown: torch.Tensor) -> torch.Tensor:
        """Undo `show`."""
        if self.kind == "picture" and shown.ndim == 4:
            return shown.permute(0, 2, 3, 1)
        return shown.squeeze(1) if self.kind == "map" and shown.ndim == 4 else shown


_KNOWN = {
    "tensor": Field("tensor", "images", "image", "picture"),
    "image": Field("image", "images", "image", "picture"),
    "prob_map": Field("prob_map", "prob_maps", "prob_map", "map"),
    "thresh_map": Field("thresh_map", "thresh_maps", "thresh_map", "map"),
    "prob_mask": Field("prob_mask", "prob_masks", "prob_mask", "map"),
    "thresh_mask": Field("thresh_mask", "thresh_masks", "thresh_mask", "map"),
}


def field_of(column: str, *, pictures_taken: bool = False) -> Field:
    """Return how a column is shown; one that ocrstore does not know keeps its name.

    `pictures_taken`: the view's tensor is shown as the picture, so whole pictures keep their own
    name.
    """
    if column == "image" and pictures_taken:
        return Field("image", "whole_images", "whole_image", "picture")
    return _KNOWN.get(column) or Field(column, column, column)


@lru_cache(maxsize=64)
def fields_of(columns: tuple[str, ...]) -> tuple[Field, ...]:
    """Return how the columns of a view are shown."""
    return tuple(field_of(name, pictures_taken="tensor" in columns) for name in columns)


def as_tensor(array: AnyArray) -> torch.Tensor:
    """Return a tensor on the array's memory; unsigned types that torch lacks are reinterpreted."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


def pack_polygons(polygons: list[AnyArray]) -> tuple[AnyArray, AnyArray]:
    """Return all points as one (n, 2) float32 array, and where each polygon ends."""
    ends = np.cumsum([len(points) for points in polygons], dtype=np.int64)
    points = np.concatenate([*polygons, np.empty((0, 2), np.float32)]).astype(np.float32)
    return points, ends


def unpack_polygons(points: AnyArray, ends: AnyArray) -> list[AnyArray]:
    """Undo `pack_polygons`."""
    return np.split(points, ends[:-1].tolist()) if len(ends) else []
