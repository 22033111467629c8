"""A batch's annotation as evaluation wants it: in picture coordinates, in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Polygons = list[npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Truth:
    """The annotation of a batch of pictures, and how their views lie in them."""

    polygons: list[Polygons]
    """Per picture the regions, in the frame of the upright picture."""
    ignored: list[npt.NDArray[np.bool_]]
    texts: list[list[str | None]]
    names: list[str]
    sizes: list[tuple[int, int]]
    """(width, height) of the upright picture."""
    inverse_matrices: npt.NDArray[np.float64]
    """(B, 3, 3), view -> picture."""


def truth_of(batch: Mapping[str, Any]) -> Truth:
    """Read a batch of `OCRStoreDataset` (whose polygons lie in the view)."""
    inverse = np.asarray(batch["inverse_matrix"].cpu(), dtype=np.float64)
    polygons = [
        [move(matrix, points) for points in regions]
        for matrix, regions in zip(inverse, batch["polygons"], strict=True)
    ]
    flags = [np.asarray(f, dtype=bool).reshape(-1) for f in batch["ignored"]]
    texts = [list(t) for t in batch["texts"]]
    names = [str(n) for n in batch["image_filename"]]
    sizes = [(int(w), int(h)) for w, h in np.asarray(batch["raw_size"].cpu())]
    return Truth(polygons, flags, texts, names, sizes, inverse)


def move(matrix: npt.NDArray[np.float64], points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Send (n, 2) points through a 3x3 matrix."""
    given = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    moved = given @ matrix[:, :2].T + matrix[:, 2]
    result: npt.NDArray[np.float64] = moved[:, :2] / moved[:, 2:]
    return result
