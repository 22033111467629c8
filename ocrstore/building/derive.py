"""One picture with its polygons becomes the arrays and attributes of one sample.

The same code runs in the build's workers, for a further view, and when a store is held against its
source, so that they cannot disagree.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.building.files import PictureFile, SkippedPictureError, read_picture
from ocrstore.building.imported import find_maps, import_maps
from ocrstore.building.views import IMPORTED, View
from ocrstore.decode import (
    DEFAULT_MAX_PIXELS,
    SUFFIXES,
    EncodedPicture,
    TooManyPixelsError,
    decode,
    open_picture,
)
from ocrstore.errors import DecodeError, SchemaError
from ocrstore.geometry import Matrix, Pixels, invert, transform_points, turn_polygons
from ocrstore.halves import to_float16
from ocrstore.maps import MAX_POINTS, Maps, draw_maps
from ocrstore.recipe import MAP_COLUMNS
from ocrstore.sample import Polygon, Problem, SourceSample

if TYPE_CHECKING:
    from ocrstore.store import Store

Points = list[npt.NDArray[np.float32]]
_FAR = float(2**29)


@dataclass(frozen=True, slots=True)
class Job:
    """What all samples of a build have in common; sent to every worker."""

    views: tuple[View, ...]
    """The views to make of a picture's file."""
    stored_views: tuple[View, ...] = ()
    """The views to make of a stored picture; its other columns are still good."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    maps_folder: Path | None = None
    store: Path | None = None
    """A store whose pictures and polygons stand in for files, for tasks with a row of it."""


@dataclass(frozen=True, slots=True)
class Task:
    """One sample to derive: from its file, or from its row in the job's store."""

    sample: SourceSample
    row: int | None = None


Reserve = Callable[[int], None]
"""Called with the bytes that a sample will take, before its picture is decoded."""


@dataclass(frozen=True, slots=True)
class JPEGBytes:
    """A picture's own bytes for an image column of codec jpeg, and the shape they decode to."""

    data: bytes
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Derived:
    """A sample, ready to be written."""

    key: str
    columns: dict[str, npt.NDArray[Any] | JPEGBytes]
    attributes: dict[str, Any]
    problems: tuple[Problem, ...]
    """What came up here; the source's own problems are not repeated."""

    def without_columns(self) -> Derived:
        """Return the same without arrays, for a message."""
        return replace(self, columns={})


class Deriver:
    """Does the tasks of one job; opens the job's store when the first one needs it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._store: Store | None = None

    def derive(self, task: Task, *, reserve: Reserve | None = None) -> Derived:
        """Do one task, whichever kind it is."""
        if task.row is None:
            return derive(task.sample, self._job, reserve=reserve)
        if self._store is None:
            from ocrstore.store import Store  # Arrow and LMDB are needed for this only

            assert self._job.store is not None
            self._store = Store(self._job.store)
        return derive_stored(self._store, task.row, self._job, reserve=reserve)


def derive(sample: SourceSample, job: Job, *, reserve: Reserve | None = None) -> Derived:
    """Read a picture and make everything of it that the job asks for.

    Raises `SkippedPictureError` for a picture that has to be left out, with the reason.
    """
    file = read_picture(sample.path, sample.key)
    picture = _open(file, sample, job.max_pixels)
    image = _image_column(job)
    if image is not None and image[1] == "jpeg" and picture.format != "jpeg":
        message = f"its format is {picture.format}; choose the codec zstd for `image` to keep it"
        raise _skip("not-a-jpeg", message, sample)
    if reserve is not None:
        reserve(needed_nbytes(job, picture.size))
    try:
        decoded = decode(picture)
    except DecodeError as exc:
        raise _skip("bad-picture", str(exc), sample) from exc
    problems = list(_mislabelled(sample, decoded.format))
    given = [polygon.points for polygon in sample.polygons]
    points, frame = turn_polygons(given, decoded.stored_size, decoded.orientation)
    if decoded.orientation != 1 and given:
        problems.append(_rotation_note(sample, decoded.orientation, frame))
    height, width = decoded.pixels.shape[:2]
    problems += _outside(sample, points, height, width)
    columns: dict[str, npt.NDArray[Any] | JPEGBytes] = {}
    if image is not None:
        name, codec = image
        shape = decoded.pixels.shape
        columns[name] = JPEGBytes(file.data, shape) if codec == "jpeg" else decoded.pixels
    for view in job.views:
        made, found = derive_view(sample, view, decoded.pixels, points, job.maps_folder)
        columns |= made
        problems += found
    attributes = {
        "width": width,
        "height": height,
        "orientation": decoded.orientation,
        "annotated": sample.annotated,
        "polygons": [polygon.astype(np.float32).reshape(-1) for polygon in points],
        "ignored": [polygon.ignored for polygon in sample.polygons],
        "texts": [polygon.text for polygon in sample.polygons],
        "languages": [polygon.language for polygon in sample.polygons],
        "source_nbytes": file.state.nbytes,
        "source_mtime_ns": file.state.mtime_ns,
        "source_hash": file.hash,
        "annotation_hash": annotation_hash(sample, job.maps_folder),
        "problems": [f"{problem.kind}: {problem.message}" for problem in problems],
    }
    return Derived(sample.key, columns, attributes, tuple(problems))


def derive_stored(store: Store, row: int, job: Job, *, reserve: Reserve | None = None) -> Derived:
    """Make the views of a sample from the picture and the polygons that a store holds."""
    key = store.keys[row]
    stored = store.attributes(row)
    sample = stored_sample(key, stored)
    if reserve is not None:
        reserve(needed_nbytes(job, (stored["width"], stored["height"])))
    pixels = store["image"][row]
    points = [polygon.points for polygon in sample.polygons]
    columns: dict[str, npt.NDArray[Any] | JPEGBytes] = {}
    problems: list[Problem] = []
    for view in job.stored_views:
        made, found = derive_view(sample, view, pixels, points, job.maps_folder)
        columns |= made
        problems += found
    return Derived(key, columns, stored, tuple(problems))


def stored_sample(key: str, attributes: Mapping[str, Any]) -> SourceSample:
    """Turn a store's attributes back into a sample; its polygons are upright."""
    polygons = tuple(
        Polygon(np.array(points, np.float32).reshape(-1, 2), text, ignored, language)
        for points, text, ignored, language in zip(
            attributes["polygons"],
            attributes["texts"],
            attributes["ignored"],
            attributes["languages"],
            strict=True,
        )
    )
    return SourceSample(key, Path(), polygons, attributes.get("annotated", True))


def needed_nbytes(job: Job, size: tuple[int, int]) -> int:
    """Estimate what a picture of (width, height) takes: itself, and its views' arrays."""
    picture = 3 * size[0] * size[1]
    per_pixel = 3 + 2 * 2 + 2
    views = sum((v.recipe.size[0] or 0) * (v.recipe.size[1] or 0) for v in job.views)
    return picture + per_pixel * views


def derive_view(
    sample: SourceSample,
    view: View,
    pixels: Pixels,
    points: Points,
    maps_folder: Path | None = None,
) -> tuple[dict[str, npt.NDArray[Any]], list[Problem]]:
    """Make one view's columns of an upright picture and its upright polygons."""
    recipe, names = view.recipe, view.columns
    try:
        drawn, matrix = recipe.draw(pixels)
        back = invert(matrix)
    except SchemaError as exc:
        raise _skip("bad-geometry", f"view {view.name}: {exc}", sample) from exc
    problems: list[Problem] = []
    columns: dict[str, npt.NDArray[Any]] = {}
    if "tensor" in names:
        columns[names["tensor"]] = drawn
    if "inverse_matrix" in names:
        columns[names["inverse_matrix"]] = back
    if names.keys() & set(MAP_COLUMNS):
        maps = _draw(sample, view, drawn, matrix, points, problems)
        if maps_folder is not None and recipe.map_algorithm.startswith(IMPORTED):
            maps, found = import_maps(maps_folder, sample.key, maps)
            problems += found
        dtypes = {column.name: column.dtype for column in recipe.columns}
        for name in names.keys() & set(MAP_COLUMNS):
            columns[names[name]] = _cast(getattr(maps, name), dtypes[name])
    return columns, problems


def annotation_hash(sample: SourceSample, maps_folder: Path | None = None) -> int:
    """Hash what a source says about a picture, as it says it; 64 bits, unsigned."""
    digest = xxhash.xxh3_64(b"annotated" if sample.annotated else b"not annotated")
    for polygon in sample.polygons:
        points = np.ascontiguousarray(polygon.points, "<f4")
        digest.update(struct.pack("<IB", len(points), polygon.ignored) + points.tobytes())
        for text in (polygon.text, polygon.language):
            encoded = b"" if text is None else text.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<q", -1 if text is None else len(encoded)) + encoded)
    path = None if maps_folder is None else find_maps(maps_folder, sample.key)
    if path is not None:
        try:
            digest.update(path.read_bytes())
        except OSError:
            digest.update(b"unreadable")
    return digest.intdigest()


def _skip(kind: str, message: str, sample: SourceSample) -> SkippedPictureError:
    return SkippedPictureError(Problem(kind, message, key=sample.key))


def _open(file: PictureFile, sample: SourceSample, max_pixels: int) -> EncodedPicture:
    """Read the header and hold the size against the limit; nothing is decoded."""
    try:
        return open_picture(file.data, max_pixels=max_pixels)
    except TooManyPixelsError as exc:
        raise _skip("too-many-pixels", str(exc), sample) from exc
    except DecodeError as exc:
        raise _skip("bad-picture", str(exc), sample) from exc


def _image_column(job: Job) -> tuple[str, str] | None:
    for view in job.views:
        for column in view.recipe.columns:
            if column.name == "image":
                return column.name, column.codec
    return None


def _mislabelled(sample: SourceSample, format: str) -> list[Problem]:
    suffix = sample.path.suffix.lower()
    if suffix in SUFFIXES[format]:
        return []
    message = f"its name ends in {suffix or 'nothing'}, its content is {format}; taken as that"
    return [Problem("mislabelled", message, key=sample.key)]


def _rotation_note(sample: SourceSample, orientation: int, frame: str) -> Problem:
    if frame == "upright":
        message = f"EXIF orientation {orientation}: its polygons fit the upright picture only; kept"
        return Problem("polygons-upright", message, key=sample.key)
    reason = "fit the stored picture only" if frame == "stored" else "would fit either way"
    message = f"EXIF orientation {orientation}: its polygons {reason}; rotated along"
    return Problem("polygons-rotated", message, key=sample.key)


def _outside(sample: SourceSample, points: Points, height: int, width: int) -> list[Problem]:
    problems = []
    for position, polygon in enumerate(points):
        low, high = polygon.min(axis=0), polygon.max(axis=0)
        if high[0] < 0 or high[1] < 0 or low[0] > width or low[1] > height:
            message = f"polygon {position} lies wholly outside of its picture; kept"
            problems.append(Problem("polygon-outside", message, sample.key, position))
    return problems


def _draw(
    sample: SourceSample,
    view: View,
    drawn: Pixels,
    matrix: Matrix,
    points: Points,
    problems: list[Problem],
) -> Maps:
    moved, ignored = [], []
    for position, (polygon, source) in enumerate(zip(points, sample.polygons, strict=True)):
        placed = transform_points(matrix, polygon)
        why = ""
        if not (np.abs(placed) < _FAR).all():
            why = "is sent out of all bounds"
        elif len(placed) > MAX_POINTS:
            why = f"has {len(placed)} points, more than the {MAX_POINTS} that can be drawn"
        if why:
            message = f"view {view.name}: polygon {position} {why}; kept, but not drawn"
            problems.append(Problem("undrawable-polygon", message, sample.key, position))
            continue
        moved.append(placed)
        ignored.append(source.ignored)
    return draw_maps(moved, ignored, drawn.shape[0], drawn.shape[1], params=view.recipe.maps)


def _cast(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    if dtype == "float16":
        return to_float16(array)
    return array.astype(dtype, copy=False)
