"""Gather what a store holds about one sample: attributes, polygons, rows, picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrstore.annotation import Annotation, AnnotationReader
from ocrstore.errors import DecodeError
from ocrstore.schema import IMAGE, INVERSE_MATRIX, TENSOR
from ocrstore.store import Store
from ocrstore.views import readable_views, view_matrices


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One column's row of a sample."""

    column: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    nbytes: int
    offset: int
    hash: str


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """Attributes and rows of one sample."""

    path: str
    key: str
    row: int
    rows: tuple[SampleRow, ...]
    attributes: dict[str, Any]
    annotation: Annotation | None
    """None if the store has no polygons."""

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        return {
            "path": self.path,
            "key": self.key,
            "row": self.row,
            "columns": [asdict(row) for row in self.rows],
            "attributes": _as_json(self.attributes),
        }


def sample_facts(store: Store, key: str) -> SampleFacts:
    """Gather attributes and rows of one sample; no payload is read."""
    row = store.row(key)
    rows = []
    for name, spec in store.columns.items():
        column = store[name]
        shape = tuple(int(size) for size in column.shapes[row])
        rows.append(
            SampleRow(
                name,
                spec.dtype,
                shape,
                spec.codec,
                int(column.nbytes[row]),
                int(column.offsets[row]),
                f"{int(column.hashes[row]):016x}",
            )
        )
    reader = AnnotationReader(store, row=row, strict=False)
    annotation = reader.annotation(0) if "polygons" in reader.names else None
    return SampleFacts(str(store.path), key, row, tuple(rows), store.attributes(row), annotation)


@dataclass(frozen=True, slots=True)
class SamplePicture:
    """The pixels of a sample and the column they are from."""

    pixels: npt.NDArray[np.uint8]
    """(H, W, 3) RGB, read-only."""
    column: str
    to_pixels: npt.NDArray[np.float64]
    """3x3: from the upright picture, in which polygons are given, to these pixels."""


def picture_of(store: Store, row: int) -> SamplePicture | None:
    """Return the picture, or the default view's tensor without a picture column or a decoder.

    Raises a DecodeError where a decoder is needed for both and none is installed.
    """
    undecoded = None
    views, _ = readable_views(store)
    tensor = views[0].columns.get(TENSOR, TENSOR) if views else TENSOR
    for name in (IMAGE, tensor):
        spec = store.columns.get(name)
        if spec is None or spec.dtype != "uint8" or len(spec.shape) != 3:
            continue
        if store[name].shapes[row][2] != 3 or 0 in store[name].shapes[row]:
            continue
        matrix = np.eye(3)
        inverse = views[0].columns.get(INVERSE_MATRIX) if views else None
        if name != IMAGE and inverse in store.columns:
            matrix, _ = view_matrices(store, str(inverse), row)
        try:
            pixels = store[name][row]
        except ImportError as exc:
            undecoded = DecodeError(
                f"{store.path}: column {name!r} keeps encoded pictures, and no decoder is "
                f'installed ({exc.name}); pip install "ocrstore[build]"'
            )
            continue
        return SamplePicture(pixels, name, matrix)
    if undecoded is not None:
        raise undecoded
    return None


def _as_json(value: Any) -> Any:
    """Convert values of Arrow into JSON types."""
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
