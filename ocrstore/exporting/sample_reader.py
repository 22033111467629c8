"""Read samples as other tools want them: upright picture files, and annotations as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.annotation import AnnotationReader
from ocrstore.errors import CorruptStoreError, DecodeError
from ocrstore.schema import IMAGE, INVERSE_MATRIX, TENSOR
from ocrstore.store import Store, StoredColumn
from ocrstore.views import StoredView, view_matrices

KEPT = {"jpeg": ".jpg", "png": ".png", "webp": ".webp"}
"""Formats of stored files that every tool reads, and their suffixes; others leave as PNG."""


@dataclass(frozen=True, slots=True)
class Region:
    """One text region."""

    points: list[tuple[float, float]]
    """Integers where they are whole; others have the fewest digits that give the float32 again."""
    text: str | None
    ignored: bool
    language: str | None

    @property
    def flat(self) -> list[float]:
        """The points as x, y, x, y, ..."""
        return [value for point in self.points for value in point]

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        xs, ys = zip(*self.points, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    @property
    def area(self) -> float:
        """The area, by the shoelace formula."""
        xs, ys = np.array(self.points, np.float64).T
        return float(abs(np.dot(xs, np.roll(ys, -1)) - np.dot(ys, np.roll(xs, -1))) / 2)


@dataclass(frozen=True, slots=True)
class Annotated:
    """What the index says about a sample."""

    row: int
    key: str
    width: int
    height: int
    annotated: bool
    """False if nobody has annotated the picture, which is not the same as no text."""
    regions: list[Region]


class SampleReader:
    """Reads pictures and annotations of a store. Thread-safe.

    Args:
        store: The store.
        view: Give the pictures of this view, with polygons moved into it; else those of the column
            `image`, which the store has to have.
    """

    def __init__(self, store: Store, view: StoredView | None) -> None:
        self.store = store
        self.view = view
        self._reader = AnnotationReader(store, min_points=3)
        self._pictures = store[IMAGE if view is None else view.columns[TENSOR]]
        self._annotated = self._reader.numbers("annotated", int("polygons" in self._reader.names))
        self.orientation = self._reader.numbers("orientation", 0)
        """EXIF orientation of the files that pictures were read from; 0 if it is not known."""

    def read(self, row: int) -> Annotated:
        """Return a sample's annotation."""
        polygons, flags, texts, languages, _ = self._reader.annotation(row)
        height, width = self._pictures.shapes[row].tolist()[:2]
        points: list[npt.NDArray[Any]] = list(polygons)
        if self.view is not None:
            forward, _ = view_matrices(self.store, self.view.columns[INVERSE_MATRIX], row)
            points = [_moved(forward, polygon) for polygon in polygons]
        regions = [
            Region(plain, text, ignored, language)
            for plain, ignored, text, language in zip(
                _plain(points), flags, texts, languages, strict=True
            )
        ]
        key, annotated = self.store.keys[row], bool(self._annotated[row])
        return Annotated(row, key, width, height, annotated, regions)

    def raw_size(self, row: int) -> list[int]:
        """Return width and height of the whole picture; 0 if they are not known."""
        return [int(self._reader.numbers(name, 0)[row]) for name in ("width", "height")]

    def suffix(self, row: int) -> str:
        """Return how the name of a picture's file has to end; as the key does, if that fits."""
        return self._suffix(row, self._kept(row) or "png")

    def _suffix(self, row: int, kind: str) -> str:
        from ocrstore.decode import SUFFIXES

        _, dot, ending = self.store.keys[row].rpartition(".")
        return dot + ending if (dot + ending).lower() in SUFFIXES[kind] else KEPT[kind]

    def picture(self, row: int) -> tuple[str, memoryview]:
        """Return a sample's upright picture, the stored file as it is or a PNG, and its suffix.

        Raises:
            CorruptStoreError: The picture does not match its hash.
        """
        require_intact(self._pictures, row)
        kind = self._kept(row)
        if kind is not None:
            return self._suffix(row, kind), self._pictures.stored(row)
        import cv2

        pixels = cv2.cvtColor(self._pictures[row], cv2.COLOR_RGB2BGR)
        done, data = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])
        assert done
        return self._suffix(row, "png"), data.data

    def nbytes(
        self, rows: list[int], columns: Sequence[str], *, decoded: bool = False
    ) -> npt.NDArray[np.int64]:
        """Return the most bytes that pictures, arrays of columns and annotations will take.

        Args:
            rows: The samples.
            columns: The arrays.
            decoded: Count the pixels of stored files, which some have to be encoded from.
        """
        files = self._pictures.spec.holds_files and not decoded
        total = 4096 + (self._pictures.nbytes[rows] if files else _decoded(self._pictures, rows))
        for name in columns:
            total = total + _decoded(self.store[name], rows)
        return np.asarray(total, np.int64)

    def _kept(self, row: int) -> str | None:
        """Return the format of a stored file that leaves as it is; None if a PNG is made."""
        if not self._pictures.spec.holds_files:
            return None
        from ocrstore.decode import open_picture, sniff

        data = self._pictures.stored(row)
        try:
            kind = sniff(bytes(data[:256]))
            # other tools do not turn pictures, and polygons are those of the upright one
            orientation = self.orientation[row] or open_picture(bytes(data)).orientation
        except DecodeError:
            return None
        return kind if kind in KEPT and orientation == 1 else None


def require_intact(column: StoredColumn[Any], row: int) -> None:
    """Raise CorruptStoreError if a row does not match its hash.

    Else a store that is built from the export would have a valid hash for the damage.
    """
    if xxhash.xxh3_64_intdigest(column.stored(row)) != column.hashes[row]:
        raise CorruptStoreError(
            f"{column.path}: row {row}, column {column.name!r}: its bytes do not match their hash. "
            "Run `ocrstore verify`; restore the file from a copy or build it again."
        )


def _decoded(column: StoredColumn[Any], rows: list[int]) -> npt.NDArray[np.int64]:
    sizes = np.asarray(column.shapes[rows], np.int64)
    return np.asarray(column.spec.numpy_dtype.itemsize * np.prod(sizes, axis=1), np.int64)


def _moved(matrix: npt.NDArray[Any], polygon: npt.NDArray[Any]) -> npt.NDArray[Any]:
    from ocrstore.geometry import transform_points

    return transform_points(matrix, polygon).astype(np.float32)


def _plain(polygons: list[npt.NDArray[Any]]) -> list[list[tuple[float, float]]]:
    """Return the points of float32 polygons as Python numbers."""
    if not polygons:
        return []
    values = np.concatenate(polygons, axis=None, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int32)
    # compared bit by bit, because -0.0 has no integer; one array at once, for speed
    if np.array_equal(whole.astype(np.float32).view(np.int32), values.view(np.int32)):
        numbers = whole.tolist()
    else:
        numbers = [_number(value) for value in values.tolist()]
    points = zip(numbers[::2], numbers[1::2], strict=True)
    return [list(islice(points, len(polygon))) for polygon in polygons]


def _number(value: float) -> float:
    if value.is_integer() and (value or math.copysign(1, value) > 0):  # -0.0 has no integer
        return int(value)
    return float(str(np.float32(value)))
