"""The annotation to evaluate against, in picture coordinates, and the view that is evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError
from ocrstore.geometry import transform_points
from ocrstore.store import Store

Polygons = list[npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The annotation of a batch of pictures, and the matrices from their views to them."""

    polygons: list[Polygons]
    """For each picture its regions, in the coordinates of the upright picture."""
    ignored: list[npt.NDArray[np.bool_]]
    texts: list[list[str | None]]
    keys: list[str]
    sizes: list[tuple[int, int]]
    """(width, height) of the upright picture."""
    inverse_matrices: npt.NDArray[np.float64]
    """(B, 3, 3), view -> picture."""


def ground_truth_of(batch: Mapping[str, Any]) -> GroundTruth:
    """Read a batch of `OCRStoreDataset`, whose polygons are in view coordinates."""
    inverse = np.asarray(batch["inverse_matrix"].cpu(), dtype=np.float64)
    polygons = [
        [transform_points(matrix, points) for points in regions]
        for matrix, regions in zip(inverse, batch["polygons"], strict=True)
    ]
    flags = [np.asarray(f, dtype=bool).reshape(-1) for f in batch["ignored"]]
    texts = [list(t) for t in batch["texts"]]
    keys = [str(key) for key in batch["image_filename"]]
    sizes = [(int(w), int(h)) for w, h in np.asarray(batch["raw_size"].cpu())]
    return GroundTruth(polygons, flags, texts, keys, sizes, inverse)


def find_view(
    store: Store, view: str | None, *, needs: Sequence[str] = ()
) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the record of a view (the default one if none is named).

    `needs` are columns, by their logical names, without which it is of no use.
    """
    views: Mapping[str, Any] = store.metadata.get("views") or {}
    if not views:
        raise SchemaError(
            f"{store.path} has no baked view: build it with a recipe (`ocrstore build`)"
        )
    name = view or str(store.metadata.get("default_view") or next(iter(views)))
    if name not in views:
        raise SchemaError(f"{store.path} has no view {name!r}; it has {', '.join(views)}")
    missing = [column for column in needs if column not in views[name]["columns"]]
    if missing:
        raise SchemaError(
            f"{store.path}: view {name!r} lacks {', '.join(missing)}. Build it with them"
            " (`ocrstore build` makes them unless its columns are chosen by hand)"
        )
    return name, views[name]
