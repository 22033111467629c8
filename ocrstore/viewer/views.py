"""Which columns of a store are pictures, baked views and maps; hides how the manifest says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.store import Store

MAPS = ("prob_map", "thresh_map", "prob_mask", "thresh_mask")
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShownView:
    """A baked view: the names of its columns by what they are."""

    name: str
    columns: Mapping[str, str]

    @property
    def maps(self) -> list[str]:
        """The maps and masks it has."""
        return [name for name in MAPS if name in self.columns]


def find_views(store: Store) -> tuple[ShownView, ...]:
    """Return a store's views, the default one first.

    A store that was not made by `build` has one if its columns carry the names of a view.
    """
    recorded = store.metadata.get("views")
    entries: dict[str, Mapping[str, Any]] = {}
    if isinstance(recorded, Mapping):
        default = store.metadata.get("default_view")
        for name in sorted(recorded, key=lambda name: (name != default, str(name))):
            entry = recorded[name]
            columns = entry.get("columns") if isinstance(entry, Mapping) else None
            if isinstance(columns, Mapping):
                entries[str(name)] = columns
    if not entries:
        entries["baked"] = {name: name for name in ("tensor", "inverse_matrix", *MAPS)}
    views = [
        ShownView(
            name,
            {
                part: column
                for part, column in columns.items()
                if isinstance(column, str) and _fits(store, part, column)
            },
        )
        for name, columns in entries.items()
    ]
    return tuple(view for view in views if "tensor" in view.columns or view.maps)


def find_picture(store: Store) -> str | None:
    """Return the column with whole pictures."""
    if "image" in store.columns and _is_picture(store, "image"):
        return "image"
    taken = {column for view in find_views(store) for column in view.columns.values()}
    return next((n for n in store.columns if n not in taken and _is_picture(store, n)), None)


def picture_size(store: Store, row: int, picture: str | None) -> tuple[int, int] | None:
    """Return (height, width) of a sample's picture, as recorded or as stored."""
    record = store.attributes(row)
    height, width = record.get("height"), record.get("width")
    if isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0:
        return height, width
    if picture is None:
        return None
    shape = store[picture].shapes[row].tolist()
    return shape[0], shape[1]


def forward_matrix(store: Store, row: int, view: ShownView) -> Matrix | None:
    """Return the matrix from picture to view, or None where none is stored."""
    column = view.columns.get("inverse_matrix")
    if column is None:
        return None
    try:
        forward = np.linalg.inv(np.asarray(store[column][row], np.float64))
    except np.linalg.LinAlgError:
        return None
    return forward if np.isfinite(forward).all() else None


def _fits(store: Store, part: str, column: str) -> bool:
    if column not in store.columns:
        return False
    if part == "tensor":
        return _is_picture(store, column)
    spec = store.columns[column]
    if part == "inverse_matrix":
        return tuple(spec.shape) == (3, 3)
    return part in MAPS and len(spec.shape) == 2


def _is_picture(store: Store, column: str) -> bool:
    spec = store.columns[column]
    return spec.dtype == "uint8" and len(spec.shape) == 3 and spec.shape[2] == 3
