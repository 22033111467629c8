"""Read what the index of a store records of samples: polygons, texts, names, sizes, rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from ocrstore.schema import IMAGE, INVERSE_MATRIX, TENSOR
from ocrstore.views import view_matrices

if TYPE_CHECKING:
    import numpy.typing as npt

    from ocrstore.torch.row_refs import RowRefs
    from ocrstore.torch.store_view import StoreView

ANNOTATIONS = (
    "polygons",
    "ignored",
    "texts",
    "image_filename",
    "raw_size",
    "orientation",
    "source_orientation",
    "rows",
)

LISTS = ("polygons", "ignored", "texts", "image_filename")
"""Those that are lists in a batch; to make them takes longer than all tensors of the batch."""

ON_ACCESS = ("image_path", "shape", "canonical_size", "annotated", "metadata")
"""Further lists, for code that expects them: never made ahead, sent to a device or to another
process unless they were accessed."""

SampleTensor = Literal[
    "image",
    "prob_map",
    "thresh_map",
    "prob_mask",
    "thresh_mask",
    "inverse_matrix",
    "raw_size",
]
BatchTensor = Literal[
    "images",
    "prob_maps",
    "thresh_maps",
    "prob_masks",
    "thresh_masks",
    "inverse_matrix",
    "raw_size",
    "orientation",
    "source_orientation",
    "rows",
]
"""The tensors of samples and batches, for type checkers. `images` is a list, though, where a store
has whole pictures only: they differ in size."""

_IN_OTHER_KEYS = ("polygons", "ignored", "texts")


def annotate(refs: RowRefs, name: str) -> Any:
    """Return one annotation of every sample: a list, or a tensor where it is a number.

    `polygons` are in the frame of `images`; `raw_size` is (width, height) of the upright picture.
    """
    if name == "rows":
        return torch.from_numpy(refs.dataset_rows.copy())
    if name == "orientation":
        return torch.ones(len(refs), dtype=torch.int64)  # every stored picture is upright
    refs.check()
    if name in ("raw_size", "source_orientation"):
        names = ("width", "height") if name == "raw_size" else ("orientation",)
        found = _numbers(refs, *names)
        if found is not None:
            return found if name == "raw_size" else found[:, 0].clamp(min=1)
    each = refs.each()
    if name == "polygons":
        return [polygons_in_view(view, row) for view, row in each]
    if name in ("ignored", "texts"):
        lists = [view.annotations.parallel(name, row) for view, row in each]
        return [[bool(flag) for flag in flags] for flags in lists] if name == "ignored" else lists
    if name == "image_filename":
        return [view.key(row) for view, row in each]
    if name in ON_ACCESS:
        return [_further(view, row, name) for view, row in each]
    if name == "raw_size":
        sizes = [raw_size(view, row) for view, row in each]
        return torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2)
    values = [source_orientation(view, row) for view, row in each]
    return torch.tensor(values, dtype=torch.int64)


def _further(view: StoreView, row: int, name: str) -> Any:
    """Return one of `ON_ACCESS` of one sample."""
    if name == "image_path":
        return view.image_path(row)
    if name == "annotated":
        return is_annotated(view, row)
    if name == "metadata":
        attributes = view.store.attributes(row)
        return {key: value for key, value in attributes.items() if key not in _IN_OTHER_KEYS}
    width, height = raw_size(view, row)
    return (height, width) if name == "shape" else (width, height)


def is_annotated(view: StoreView, row: int) -> bool:
    """Return whether the source has an annotation for a sample; an empty one is one, too."""
    return bool(view.annotations.numbers("annotated", 1)[row])


def source_orientation(view: StoreView, row: int) -> int:
    """Return the EXIF orientation that the source picture of a sample had; 1 if unknown."""
    return max(1, int(view.annotations.numbers("orientation", 1)[row]))


def _numbers(refs: RowRefs, *names: str) -> torch.Tensor | None:
    """Return integer attributes of every sample, (B, names); None if some are not recorded."""
    out = np.empty((len(refs), len(names)), np.int64)
    for view, positions, rows in refs.groups():
        for place, name in enumerate(names):
            if not view.annotations.is_complete(name):
                return None
            out[positions, place] = view.annotations.numbers(name, 0)[rows]
    return torch.from_numpy(out)


def raw_size(view: StoreView, row: int) -> tuple[int, int]:
    """Return (width, height) of a sample's upright picture."""
    size = view.annotations.size(row)
    if size is not None:
        return size
    name = IMAGE if IMAGE in view.store.columns else next(iter(view.columns), None)
    shape = view.column(name).shapes[row] if name is not None else (0, 0)
    return (int(shape[1]), int(shape[0])) if len(shape) > 1 else (0, 0)


def polygons_in_view(view: StoreView, row: int) -> list[npt.NDArray[np.float32]]:
    """Return a sample's polygons in the frame of the view's tensor."""
    polygons = view.annotations.polygons(row)
    stored = view.stored_view
    column = INVERSE_MATRIX if stored is None else stored.columns.get(INVERSE_MATRIX)
    if (
        not polygons
        or column is None
        or column not in view.store.columns
        or TENSOR not in view.columns
    ):
        return polygons
    forward, _ = view_matrices(view.store, column, row)
    # all points in one product: a picture has many polygons of few points
    points = np.concatenate(polygons).astype(np.float64)
    projected = points @ forward[:, :2].T + forward[:, 2]
    moved = (projected[:, :2] / projected[:, 2:]).astype(np.float32)
    ends = np.cumsum([len(points) for points in polygons]).tolist()
    return [moved[end - len(points) : end] for points, end in zip(polygons, ends, strict=True)]
