"""Derive the arrays and attributes of one sample from a picture and its polygons.

The same code runs in a build's workers, for a further view, and when a store is compared with its
source, so that they cannot disagree.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from ocrstore.annotation import AnnotationReader, FoundSample, Polygon, Problem, ReadableFile
from ocrstore.building.map_files import find_maps, import_maps
from ocrstore.decode import (
    DEFAULT_MAX_PIXELS,
    SUFFIXES,
    EncodedPicture,
    TooManyPixelsError,
    decode,
    format_by_name,
    open_picture,
)
from ocrstore.errors import DecodeError, SchemaError, SourceError
from ocrstore.float16 import to_float16
from ocrstore.format.codecs import encode_row
from ocrstore.format.columns import Column, Encoded
from ocrstore.geometry import (
    Matrix,
    Pixels,
    frame_of,
    invert,
    transform_points,
    turn_polygons,
)
from ocrstore.keys import shown
from ocrstore.maps import MAX_POINTS, dbnet_maps
from ocrstore.schema import IMAGE, INVERSE_MATRIX, TENSOR
from ocrstore.targets import give_targets
from ocrstore.views import IMPORTED, View, stored_columns

if TYPE_CHECKING:
    from ocrstore.store import Store

Points = list[npt.NDArray[np.float32]]
Columns = dict[str, "npt.NDArray[Any] | Encoded"]
_FAR = float(2**29)


NOT_DRAWN = (IMAGE, TENSOR, INVERSE_MATRIX)
"""The columns that are not drawn from polygons."""
_TRIES = 3  # to read a file that changes meanwhile


class SkippedPictureError(SourceError):
    """A picture cannot be used; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem

    def __reduce__(self) -> tuple[type[SkippedPictureError], tuple[Problem]]:
        return SkippedPictureError, (self.problem,)


@dataclass(frozen=True, slots=True)
class FileState:
    """Size and modification time of a file, to detect changes."""

    nbytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture's bytes, read while its file did not change."""

    data: bytes
    state: FileState

    @property
    def hash(self) -> int:
        """xxh3_64 of the bytes, as an unsigned integer."""
        return xxhash.xxh3_64_intdigest(self.data)


@dataclass(frozen=True, slots=True)
class FrameRule:
    """How the frame of polygons is chosen where the picture has an EXIF rotation."""

    asked: str = "auto"
    """`auto`, `raw` or `upright`."""
    ambiguous: str = "raw"
    """`raw` or `upright`, for polygons that fit both frames."""

    def choose(
        self, sample: FoundSample, stored_size: tuple[int, int], orientation: int
    ) -> tuple[str, str]:
        """Return the frame, `raw` or `upright`, and why.

        The reason is stored with the sample, as the messages below are. It depends on the polygons
        and the frame alone, so that another rule that chooses the same frame changes nothing.
        """
        if sample.frame is not None:
            return sample.frame, f"are {sample.frame}, as the annotation says"
        points = [polygon.points for polygon in sample.polygons]
        loosely = frame_of(points, stored_size, orientation)
        strictly = frame_of(points, stored_size, orientation, strict=True)
        evidence = loosely if self.asked == "auto" else strictly
        frame = {"stored": "raw", "upright": "upright"}.get(evidence, self.ambiguous)
        if loosely == "either":
            return frame, "would fit either way"
        if frame == ("raw" if loosely == "stored" else "upright"):
            return frame, f"fit the {loosely} picture only"
        return frame, f"fit neither picture, the {loosely} one better"

    def turn(
        self, sample: FoundSample, stored_size: tuple[int, int], orientation: int
    ) -> tuple[Points, list[Problem]]:
        """Return a sample's polygons in the upright frame, and a note if that was decided here."""
        given = [polygon.points for polygon in sample.polygons]
        if orientation == 1 or not given:
            return given, []
        frame, why = self.choose(sample, stored_size, orientation)
        kind, done = ("polygons-rotated", "rotated along")
        if frame == "upright":
            kind, done = ("polygons-upright", "kept")
        else:
            given, _ = turn_polygons(given, stored_size, orientation, frame="stored")
        message = f"EXIF orientation {orientation}: its polygons {why}; {done}"
        return given, [Problem(kind, message, key=sample.key)]


AUTO_FRAME = FrameRule()
"""Each picture by itself; polygons that fit both frames are raw."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all samples of a build have in common; sent to each worker once."""

    views: tuple[View, ...]
    """The views to derive from a picture's file."""
    stored_views: tuple[View, ...] = ()
    """The views to derive from a stored picture; its other columns are still valid."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    maps_folder: Path | None = None
    frames: FrameRule = AUTO_FRAME
    store: Path | None = None
    """The store that holds the pictures and polygons of tasks with a row."""
    modules: tuple[str, ...] = ()
    """Modules besides albumentations that the views' pipelines may use."""
    targets: tuple[str, ...] = ()
    """Functions that draw the views' targets."""
    encode: Mapping[str, Column] = field(default_factory=dict)
    """The columns of a writer, which gets the compressed ones encoded; others come as arrays."""


@dataclass(frozen=True, slots=True)
class Task:
    """One sample to derive: from its file, or from its row in the job's store."""

    sample: FoundSample
    row: int | None = None


Reserve = Callable[[int], None]
"""Called with the bytes of a picture's pixels, before they are decoded."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A sample, ready to be written."""

    key: str
    columns: Columns
    """Encoded are the picture's own file and, if the job says so, compressed columns."""
    attributes: dict[str, Any]
    problems: tuple[Problem, ...]
    """Problems found while deriving; those of the source are not included."""

    def without_columns(self) -> Derived:
        """Return a shallow copy without arrays, to be pickled."""
        return replace(self, columns={})


class Deriver:
    """Derives the tasks of one job; opens the job's store when a task first needs it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._store: Store | None = None
        for name in job.targets:
            give_targets(name)
        if job.modules:
            from ocrstore.pipeline import permit_modules

            permit_modules(job.modules)

    def derive(self, task: Task, *, reserve: Reserve | None = None) -> Derived:
        """Derive one sample, from its file or from the store."""
        derived = self._derive(task, reserve)
        for name, spec in self._job.encode.items():
            value = derived.columns.get(name)
            if isinstance(value, np.ndarray) and not spec.is_raw:
                array = spec.conform(value, where=f"sample {derived.key!r}, column {name!r}")
                data = encode_row(spec, array).data
                derived.columns[name] = Encoded(data, array.shape, trusted=True)
        return derived

    def _derive(self, task: Task, reserve: Reserve | None) -> Derived:
        if task.row is None:
            return derive(task.sample, self._job, reserve=reserve)
        if self._store is None:
            from ocrstore.store import Store  # most workers never need Arrow and LMDB

            assert self._job.store is not None
            limit = max(DEFAULT_MAX_PIXELS, self._job.max_pixels) * 3
            self._store = Store(self._job.store, max_row_nbytes=limit)
        return derive_stored(self._store, task.row, self._job, reserve=reserve)


def derive(sample: FoundSample, job: Job, *, reserve: Reserve | None = None) -> Derived:
    """Derive all columns and attributes of a sample from its picture's file.

    Args:
        sample: The picture and its polygons.
        job: Views, limits and folders.
        reserve: Called with the bytes of the pixels, before they are decoded; may block.

    Raises:
        SkippedPictureError: The picture cannot be used.
    """
    file = read_picture(sample.path, sample.key)
    picture = _open(file, sample, job.max_pixels)
    image = _image_column(job)
    if image is not None and image[1] == "jpeg" and picture.format != "jpeg":
        message = f"its format is {picture.format}; use --codec image=file to store it"
        raise _skip("not-a-jpeg", message, sample)
    if reserve is not None:
        reserve(3 * picture.size[0] * picture.size[1])
    try:
        decoded = decode(picture)
    except DecodeError as exc:
        raise _skip("bad-picture", str(exc), sample) from exc
    problems = list(_mislabelled(sample, decoded.format))
    points, notes = job.frames.turn(sample, decoded.stored_size, decoded.orientation)
    problems += notes
    height, width = decoded.pixels.shape[:2]
    problems += _outside(sample, points, height, width)
    columns: Columns = {}
    if image is not None:
        columns[image[0]] = _stored_image(image[1], file.data, decoded.pixels)
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
        **sample.attributes,
    }
    return Derived(sample.key, columns, attributes, tuple(problems))


def derive_stored(store: Store, row: int, job: Job, *, reserve: Reserve | None = None) -> Derived:
    """Derive views of a sample from the picture and polygons in a store."""
    key = store.keys[row]
    stored = store.attributes(row, as_stored=True)
    sample = stored_sample(store, row)
    if reserve is not None:
        height, width = store[IMAGE].shapes[row].tolist()[:2]
        reserve(3 * width * height)
    pixels = store[IMAGE][row]
    points = [polygon.points for polygon in sample.polygons]
    columns: Columns = {}
    problems: list[Problem] = []
    for view in job.stored_views:
        made, found = derive_view(sample, view, pixels, points, job.maps_folder)
        columns |= made
        problems += found
    return Derived(key, columns, stored, tuple(problems))


def stored_sample(store: Store, row: int) -> FoundSample:
    """Return a stored sample as a source would give it; its polygons are upright."""
    reader = AnnotationReader(store, row=row)
    parts = reader.annotation(0)
    polygons = tuple(
        Polygon(points, text, ignored, language)
        for points, ignored, text, language in zip(*parts[:4], strict=True)
    )
    annotated = reader.numbers("annotated", 1)
    return FoundSample(store.keys[row], Path(), polygons, bool(annotated[0]))


def largest_picture(store: Store) -> int:
    """Return the pixels of a store's largest picture, as recorded; 0 if that is unknown."""
    reader = AnnotationReader(store)
    width, height = reader.numbers("width", 0), reader.numbers("height", 0)
    return int((width * height).max(initial=0))


def views_nbytes(job: Job) -> int:
    """Estimate the memory for the arrays of a sample's views, besides its picture."""
    return sum(column.row_nbytes for column in stored_columns(job.views).values())


def derive_view(
    sample: FoundSample,
    view: View,
    pixels: Pixels,
    points: Points,
    maps_folder: Path | None = None,
) -> tuple[dict[str, npt.NDArray[Any]], list[Problem]]:
    """Derive the columns of one view from upright pixels and polygons."""
    recipe, names = view.recipe, view.columns
    try:
        drawn, matrix = recipe.draw(pixels)
        back = invert(matrix)
    except SchemaError as exc:
        raise _skip("bad-geometry", f"view {view.name}: {exc}", sample) from exc
    problems: list[Problem] = []
    columns: dict[str, npt.NDArray[Any]] = {}
    if TENSOR in names:
        columns[names[TENSOR]] = drawn
    if INVERSE_MATRIX in names:
        columns[names[INVERSE_MATRIX]] = back
    targets = [column for column in recipe.columns if column.name not in NOT_DRAWN]
    if targets:
        arrays = _draw(sample, view, drawn, matrix, points, problems)
        if maps_folder is not None and recipe.map_algorithm.startswith(IMPORTED):
            arrays, found = import_maps(maps_folder, sample, arrays)
            problems += found
        for column in targets:
            columns[names[column.name]] = _cast(arrays[column.name], column.dtype)
    return columns, problems


# --- files and hashes


def file_state(path: ReadableFile) -> FileState:
    """Return a file's size and modification time; raises OSError."""
    found = path.stat()
    return FileState(found.st_size, found.st_mtime_ns)


def read_picture(path: ReadableFile, key: str) -> PictureFile:
    """Read a whole file, again if it changed meanwhile.

    Raises:
        SkippedPictureError: The file is missing, unreadable, or changed on every attempt.
    """
    try:
        if not isinstance(path, Path):  # inside of another file, which looks for changes itself
            return PictureFile(path.read_bytes(), file_state(path))
        for _ in range(_TRIES):
            with path.open("rb") as file:
                before = os.fstat(file.fileno())
                data = file.read()
                after = os.fstat(file.fileno())
            state = FileState(after.st_size, after.st_mtime_ns)
            if len(data) == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                return PictureFile(data, state)
    except FileNotFoundError as exc:
        message = f"no file {shown(os.fspath(path))}: it does not exist, or not any more"
        raise SkippedPictureError(Problem("vanished", message, key=key)) from exc
    except OSError as exc:
        message = f"the file cannot be read: {exc.strerror or exc}"
        raise SkippedPictureError(Problem("unreadable", message, key=key)) from exc
    message = f"the file changed during {_TRIES} attempts to read it; build again later"
    raise SkippedPictureError(Problem("changing", message, key=key))


def annotation_hash(sample: FoundSample, maps_folder: Path | None = None) -> int:
    """Hash a picture's annotation as the source gives it, and its map file; 64 bits, unsigned."""
    digest = xxhash.xxh3_64(b"annotated" if sample.annotated else b"not annotated")
    if sample.frame is not None:
        digest.update(sample.frame.encode())
    for polygon in sample.polygons:
        points = np.ascontiguousarray(polygon.points, "<f4")
        digest.update(struct.pack("<IB", len(points), polygon.ignored) + points.tobytes())
        for text in (polygon.text, polygon.language):
            encoded = b"" if text is None else text.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<q", -1 if text is None else len(encoded)) + encoded)
    if sample.attributes:
        digest.update(repr(sorted(sample.attributes.items())).encode())
    for path in [] if maps_folder is None else find_maps(maps_folder, sample):
        try:
            digest.update(path.read_bytes())
        except OSError:
            digest.update(b"unreadable")
    return digest.intdigest()


def _skip(kind: str, message: str, sample: FoundSample) -> SkippedPictureError:
    return SkippedPictureError(Problem(kind, message, key=sample.key))


def _open(file: PictureFile, sample: FoundSample, max_pixels: int) -> EncodedPicture:
    """Read the header and check the size against the limit, before anything is decoded."""
    try:
        return open_picture(file.data, max_pixels=max_pixels)
    except TooManyPixelsError as exc:
        raise _skip("too-many-pixels", str(exc), sample) from exc
    except DecodeError as exc:
        raise _skip("bad-picture", str(exc), sample) from exc


def _stored_image(codec: str, data: bytes, pixels: Pixels) -> Pixels | Encoded:
    """Return what an image column of a codec stores of a picture: its file, or its pixels.

    A file that is larger than its pixels (BMP, 16 bits, many pages) is not worth keeping: a column
    of codec `file` compresses the pixels instead.
    """
    if codec == "jpeg" or (codec == "file" and len(data) <= pixels.nbytes):
        return Encoded(data, pixels.shape)
    return pixels


def _image_column(job: Job) -> tuple[str, str] | None:
    for view in job.views:
        for column in view.recipe.columns:
            if column.name == IMAGE:
                return column.name, column.codec
    return None


# The messages of the following problems are stored with the sample: they are part of the content
# fingerprint, and another wording would make existing stores differ from their source.


def _mislabelled(sample: FoundSample, format: str) -> list[Problem]:
    suffix = sample.path.suffix.lower()
    if suffix in SUFFIXES[format]:
        return []
    if not isinstance(sample.path, Path) and format_by_name(f"x{suffix}") is None:
        return []  # bytes from Python, or of a table: there is no file with a wrong name
    message = f"its name ends in {suffix or 'nothing'}, its content is {format}; taken as that"
    return [Problem("mislabelled", message, key=sample.key)]


def _outside(sample: FoundSample, points: Points, height: int, width: int) -> list[Problem]:
    problems = []
    for position, polygon in enumerate(points):
        low, high = polygon.min(axis=0), polygon.max(axis=0)
        if high[0] < 0 or high[1] < 0 or low[0] > width or low[1] > height:
            message = f"polygon {position} is entirely outside the picture; kept"
            problems.append(Problem("polygon-outside", message, sample.key, position))
    return problems


def _draw(
    sample: FoundSample,
    view: View,
    drawn: Pixels,
    matrix: Matrix,
    points: Points,
    problems: list[Problem],
) -> dict[str, npt.NDArray[Any]]:
    moved, ignored = [], []
    for position, (polygon, source) in enumerate(zip(points, sample.polygons, strict=True)):
        placed = transform_points(matrix, polygon)
        why = why_undrawable(placed)
        if why:
            message = f"view {view.name}: polygon {position} {why}; kept, but not drawn"
            problems.append(Problem("undrawable-polygon", message, sample.key, position))
            continue
        moved.append(placed)
        ignored.append(source.ignored)
    height, width = drawn.shape[:2]
    targets = view.recipe.targets
    if targets is None:
        return dbnet_maps(moved, ignored, height, width, params=view.recipe.maps)
    try:
        return targets.draw(moved, ignored, height, width)
    except SchemaError as exc:
        raise SchemaError(f"{sample.key}: {exc}") from exc


def why_undrawable(placed: npt.NDArray[np.float64]) -> str:
    """Return why a polygon in view coordinates cannot be drawn; empty if it can."""
    if not (np.abs(placed) < _FAR).all():
        return "is sent out of all bounds"
    if len(placed) > MAX_POINTS:
        return f"has {len(placed)} points, more than the {MAX_POINTS} that can be drawn"
    return ""


def _cast(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    if dtype == "float16":
        return to_float16(array)
    return array.astype(dtype, copy=False)
