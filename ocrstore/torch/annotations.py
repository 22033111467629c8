"""Read what the index of a store records of samples: polygons, texts, names, sizes, rows."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ocrstore.schema import INVERSE_MATRIX, TENSOR
from ocrstore.torch.memory.row_layout import AnyArray, IntArray

if TYPE_CHECKING:
    import numpy.typing as npt

    from ocrstore.store import Store
    from ocrstore.torch.row_refs import RowRefs
    from ocrstore.torch.store_view import StoreView

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
"""Those that are lists in a batch; to make them takes longer than all tensors of the batch."""


class Annotation(NamedTuple):
    """The text regions of one picture."""

    polygons: list[npt.NDArray[np.float32]]
    """(n, 2) each, in the upright picture."""
    ignored: list[bool]
    texts: list[str | None]


class IndexReader:
    """Reads the index of an open store sample by sample. Thread-safe; works on after a fork.

    Lists are cut from Arrow's offsets and values with numpy: Arrow's own list scalars take several
    times as long.
    """

    def __init__(self, store: Store) -> None:
        self._index = store.index
        self._names = frozenset(self._index.column_names)  # Arrow makes a new list at each access
        self._numbers: dict[str, IntArray | None] = {}
        self._lists: dict[str, tuple[AnyArray, Any] | None] = {}

    def attribute(self, name: str, row: int) -> Any:
        """Return one attribute of a sample; None if the store does not record it."""
        return self._index[name][row].as_py() if name in self._names else None

    def number(self, name: str, row: int) -> Any:
        """Return one integer attribute of a sample, faster than `attribute`."""
        numbers = self.numbers(name)
        return self.attribute(name, row) if numbers is None else int(numbers[row])

    def numbers(self, name: str) -> IntArray | None:
        """Return an integer attribute of all samples; None unless every sample has it."""
        if name not in self._numbers:
            column = self._index[name] if name in self._names else None
            known = column is not None and len(column) and not column.null_count
            self._numbers[name] = np.asarray(column).astype(np.int64) if known else None
        return self._numbers[name]

    def annotation(self, row: int) -> Annotation:
        """Return a sample's polygons in the upright picture, with flags and texts."""
        polygons: list[npt.NDArray[np.float32]] = []
        if "polygons" in self._names:
            lists, ends, points = self._polygons
            first, last = int(lists[row]), int(lists[row + 1])
            edges = ends[first : last + 1].tolist()
            polygons = [
                np.array(points[start:end], np.float32).reshape(-1, 2)
                for start, end in itertools.pairwise(edges)
            ]
        count = len(polygons)
        ignored = self._list("ignored", row) or [False] * count
        texts = self._list("texts", row) or [None] * count
        return Annotation(polygons, [bool(flag) for flag in ignored], texts)

    def _list(self, name: str, row: int) -> list[Any]:
        """Return a list attribute of a sample; empty if the store does not record it."""
        if name not in self._lists:
            column = self._index[name].combine_chunks() if name in self._names else None
            found = None if column is None else (np.asarray(column.offsets), column.values)
            self._lists[name] = found
        found = self._lists[name]
        if found is None:
            return []
        first, last = found[0][row : row + 2].tolist()
        listed: list[Any] = found[1].slice(first, last - first).to_pylist()
        return listed

    @cached_property
    def _polygons(self) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Return where each sample's polygons begin, where each polygon begins, and the numbers."""
        samples = self._index["polygons"].combine_chunks()
        polygons = samples.values
        starts, ends = np.asarray(samples.offsets), np.asarray(polygons.offsets)
        return starts, ends, np.asarray(polygons.values)


def annotate(refs: RowRefs, name: str) -> Any:
    """Return one annotation of every sample: a list, or a tensor where it is a number.

    `polygons` are in the frame of `images`; `raw_size` is (width, height) of the upright picture.
    """
    if name == "rows":
        return torch.from_numpy(refs.dataset_rows.copy())
    for view in refs.views:
        view.check()
    if name in ("raw_size", "orientation"):
        names = ("width", "height") if name == "raw_size" else ("orientation",)
        found = _numbers(refs, *names)
        if found is not None:
            return found if name == "raw_size" else found[:, 0].clamp(min=1)
    each = refs.each()
    if name == "polygons":
        return [polygons_in_view(view, row) for view, row in each]
    if name in ("ignored", "texts"):
        return [getattr(view.index_reader.annotation(row), name) for view, row in each]
    if name == "image_filename":
        return [view.key(row) for view, row in each]
    if name == "raw_size":
        sizes = [raw_size(view, row) for view, row in each]
        return torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2)
    values = [view.index_reader.attribute("orientation", row) or 1 for view, row in each]
    return torch.tensor(values, dtype=torch.int64)


def _numbers(refs: RowRefs, *names: str) -> torch.Tensor | None:
    """Return integer attributes of every sample, (B, names); None if some are not recorded."""
    out = np.empty((len(refs), len(names)), np.int64)
    for view, positions, rows in refs.groups():
        for place, name in enumerate(names):
            numbers = view.index_reader.numbers(name)
            if numbers is None:
                return None
            out[positions, place] = numbers[rows]
    return torch.from_numpy(out)


def raw_size(view: StoreView, row: int) -> tuple[int, int]:
    """Return (width, height) of a sample's upright picture."""
    width, height = view.index_reader.number("width", row), view.index_reader.number("height", row)
    if width is None or height is None:
        name = "image" if "image" in view.store.columns else next(iter(view.columns), None)
        shape = view.column(name).shapes[row] if name is not None else (0, 0)
        height, width = (int(shape[0]), int(shape[1])) if len(shape) > 1 else (0, 0)
    return int(width), int(height)


def polygons_in_view(view: StoreView, row: int) -> list[npt.NDArray[np.float32]]:
    """Return a sample's polygons in the frame of the view's tensor."""
    polygons = view.index_reader.annotation(row).polygons
    stored = view.stored_view
    column = INVERSE_MATRIX if stored is None else stored.columns.get(INVERSE_MATRIX)
    if not polygons or column not in view.store.columns or TENSOR not in view.columns:
        return polygons
    forward = np.linalg.inv(np.asarray(view.store[column][row], np.float64))
    # all points in one product: a picture has many polygons of few points
    points = np.concatenate(polygons).astype(np.float64)
    projected = points @ forward[:, :2].T + forward[:, 2]
    moved = (projected[:, :2] / projected[:, 2:]).astype(np.float32)
    ends = np.cumsum([len(points) for points in polygons]).tolist()
    return [moved[end - len(points) : end] for points, end in zip(polygons, ends, strict=True)]
