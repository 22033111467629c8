"""Annotations: records of a source, and the one reader of what an index says about its samples."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from ocrstore.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from ocrstore.store import Store


class Polygon(NamedTuple):
    """One text region, in the coordinates its source gave."""

    points: npt.NDArray[np.float32]
    """(n, 2) float32, n >= 3, x then y."""
    text: str | None = None
    ignored: bool = False
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a source or the build had to decide about; nothing is dropped without one."""

    kind: str
    """A short, stable word, such as `too-few-points`; the docs list them all."""
    message: str
    key: str | None = None
    """The sample it is about, where there is one."""
    polygon: int | None = None
    """The polygon's position in its annotation, where it is about one."""


class ReadableFile(Protocol):
    """What is used of a file's path; members of archives and rows of tables have it, too."""

    @property
    def suffix(self) -> str:
        """The last suffix of the name."""

    def stat(self) -> os.stat_result:
        """Return size and time."""

    def read_bytes(self) -> bytes:
        """Read the whole file."""

    def open(self, mode: Any = ...) -> Any:
        """Open it for reading."""

    def __fspath__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FoundSample:
    """A picture of a source with its annotation, before decoding."""

    key: str
    path: ReadableFile
    polygons: tuple[Polygon, ...] = ()
    annotated: bool = True
    """False for a picture without any annotation, which is not the same as no text."""
    problems: tuple[Problem, ...] = field(default=())
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Further values for the index."""
    frame: str | None = None
    """`raw` or `upright`: the frame of the polygons where the picture has an EXIF rotation; None
    if the annotation does not say it."""


class Annotation(NamedTuple):
    """The text regions of one stored picture; the lists are parallel."""

    polygons: list[npt.NDArray[np.float32]]
    """(n, 2) each, in the upright picture."""
    ignored: list[bool]
    texts: list[str | None]
    languages: list[str | None] = []  # noqa: RUF012  # a NamedTuple's default; never changed
    unusable: int = 0
    """Polygons that were left out; 0 if the reader is strict."""


class Turned(NamedTuple):
    """A sample whose source had an EXIF rotation, which the build undid."""

    row: int
    source_orientation: int
    frame: str | None
    """The frame in which its polygons were given, `raw` (rotated along) or `upright` (kept); None
    without polygons."""
    reason: str
    """Why that frame, as the build stored it."""


class AllPolygons(NamedTuple):
    """The polygons of all samples, one behind the other."""

    counts: npt.NDArray[np.int64]
    """Number of polygons of each sample."""
    ends: npt.NDArray[np.int64]
    """End of each polygon in `points`."""
    points: npt.NDArray[np.float64]
    """(n, 2)"""
    ignored: npt.NDArray[np.bool_]


class AnnotationReader:
    """Reads the annotations in the index of an open store. Thread-safe; works on after a fork.

    Types are checked when it is made, contents when a sample is read.

    Args:
        store: The store.
        row: Read this sample alone, which is row 0 then; all by default.
        strict: Raise SchemaError, which names attribute and sample, for what a build cannot have
            written. Else an attribute of another type counts as missing, and polygons that are
            none are left out: for tools that show any store.
        min_points: Polygons with fewer points are wrong.
        limit: Coordinates that are not smaller are wrong.
    """

    def __init__(
        self,
        store: Store,
        *,
        row: int | None = None,
        strict: bool = True,
        min_points: int = 0,
        limit: float = float(np.finfo(np.float32).max),
    ) -> None:
        self._store = store
        self._first = row or 0
        self._strict = strict
        self._min_points = min_points
        self._limit = limit
        self.names = typed_attributes(store.snapshot.index.attributes)
        """Attributes of the annotation that the store has."""
        odd = sorted(_EXPECTED.keys() & set(store.snapshot.index.attributes.names) - self.names)
        if odd and strict:
            kind = store.snapshot.index.attributes.field(odd[0]).type
            raise SchemaError(
                f"{store.path}: attribute {odd[0]!r} has the type {kind}; expected "
                f"{_EXPECTED[odd[0]][0]}. Rename it, or build the store again."
            )
        table = store.snapshot.index.table.select(sorted(self.names))
        self._table = table if row is None else table.slice(row, 1)
        self._count = len(store) if row is None else 1
        self._numbers: dict[str, npt.NDArray[np.int64]] = {}
        self._lists: dict[str, tuple[npt.NDArray[np.int64], Any]] = {}

    def annotation(self, row: int) -> Annotation:
        """Return a sample's polygons in the upright picture, with flags, texts and languages."""
        polygons = self.polygons(row)
        flags, texts, languages = (
            self.parallel(name, row) for name in ("ignored", "texts", "languages")
        )
        left_out = int(self._polygons.starts[row + 1] - self._polygons.starts[row]) - len(polygons)
        return Annotation(polygons, [bool(flag) for flag in flags], texts, languages, left_out)

    def polygons(self, row: int) -> list[npt.NDArray[np.float32]]:
        """Return a sample's polygons in the upright picture."""
        first, last, kept = self._select(row)
        edges = list(itertools.pairwise(self._polygons.ends[first : last + 1].tolist()))
        values = self._polygons.values
        return [
            np.array(values[start:end], np.float32).reshape(-1, 2)
            for start, end in (edges if kept is None else [edges[i] for i in kept])
        ]

    def parallel(self, name: str, row: int) -> list[Any]:
        """Return `ignored`, `texts` or `languages` of a sample's polygons; None where unknown."""
        first, last, kept = self._select(row)
        count = last - first
        offsets, listed = self._cut(name)
        start, end = offsets[row : row + 2].tolist()
        if self._strict and end - start not in (0, count):
            self._refuse(row, name, f"{end - start} elements for {count} polygons")
        found: list[Any] = [] if start == end else listed.slice(start, end - start).to_pylist()
        if kept is None and len(found) == count:
            return found
        places = range(count) if kept is None else kept
        return [found[i] if i < len(found) else None for i in places]

    def size(self, row: int) -> tuple[int, int] | None:
        """Return (width, height) of a sample's upright picture; None if it is not recorded."""
        width, height = self.numbers("width", 0), self.numbers("height", 0)
        found = int(width[row]), int(height[row])
        return found if all(found) else None

    def numbers(self, name: str, default: int) -> npt.NDArray[np.int64]:
        """Return width, height, orientation or annotated of all samples; a default if unknown."""
        if name not in self._numbers:
            self._numbers[name] = self._read_numbers(name, default)
        return self._numbers[name]

    def is_complete(self, name: str) -> bool:
        """Tell whether every sample has the attribute, and there are samples."""
        return name in self.names and self._count > 0 and not self._table[name].null_count

    def all_polygons(self) -> AllPolygons:
        """Return the polygons of all samples; wrong ones are left out."""
        starts, ends, values, wrong = self._polygons
        keep = np.ones(len(ends) - 1, np.bool_) if wrong is None else ~wrong
        lengths = np.diff(ends)
        counts = np.diff(starts)
        owner = np.repeat(np.arange(len(counts)), counts)
        flags = np.zeros(len(keep), np.bool_)
        offsets, listed = self._cut("ignored")
        if listed is not None:
            given = np.minimum(np.diff(offsets), counts)
            place = np.arange(len(keep)) - starts[:-1][owner]
            has = place < given[owner]
            found = listed.fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_)
            flags[has] = found[(offsets[:-1][owner] + place)[has]]
        points = values[np.repeat(keep, lengths)].astype(np.float64).reshape(-1, 2)
        return AllPolygons(
            np.bincount(owner[keep], minlength=len(counts)).astype(np.int64),
            np.cumsum(lengths[keep] // 2),
            points,
            flags[keep],
        )

    def problems(self) -> list[list[str]]:
        """Return the lines that the build stored with each sample."""
        offsets, listed = self._cut("problems")
        if listed is None:
            return [[] for _ in range(self._count)]
        lines = [line or "" for line in listed.to_pylist()]
        return [lines[start:end] for start, end in itertools.pairwise(offsets.tolist())]

    def turned(self) -> list[Turned]:
        """Return the samples with an EXIF rotation, in row order."""
        orientations = self.numbers("orientation", 1)
        rows = np.flatnonzero(orientations > 1).tolist()
        problems = self.problems() if rows else []
        found = []
        for row in rows:
            frame, reason = None, "without polygons"
            for line in problems[row]:
                kind, _, message = line.partition(": ")
                if kind in ("polygons-rotated", "polygons-upright"):
                    frame = "raw" if kind == "polygons-rotated" else "upright"
                    reason = message
            found.append(Turned(row, int(orientations[row]), frame, reason))
        return found

    @cached_property
    def _polygons(self) -> _Polygons:
        starts, polygons = self._cut("polygons")
        if polygons is None:
            return _Polygons(starts, np.zeros(1, np.int64), np.empty(0, np.float32), None)
        ends, numbers = _cut(polygons)
        values = np.asarray(numbers.to_numpy(zero_copy_only=False))  # nulls become NaN
        if values.dtype == np.float16:
            values = values.astype(np.float32)  # the limit is beyond its range
        lengths = np.diff(ends)
        wrong = (lengths % 2 != 0) | (lengths < 2 * self._min_points)
        far = np.flatnonzero(~(np.abs(values) < self._limit))  # NaN, too
        wrong[np.searchsorted(ends, far, side="right") - 1] = True
        return _Polygons(starts, ends, values, wrong if wrong.any() else None)

    def _select(self, row: int) -> tuple[int, int, list[int] | None]:
        """Return a sample's first and last polygon, and which are kept; None if all are."""
        starts, _, _, wrong = self._polygons
        first, last = starts[row : row + 2].tolist()
        if wrong is None or not wrong[first:last].any():
            return first, last, None
        kept = np.flatnonzero(~wrong[first:last]).tolist()
        if self._strict:
            number = next(i for i in range(last - first) if i not in kept)
            self._refuse(
                row,
                "polygons",
                f"polygon {number} has an odd count of numbers, fewer than {self._min_points} "
                f"points, or one that is not finite or beyond {self._limit:g}",
            )
        return first, last, kept

    def _cut(self, name: str) -> tuple[npt.NDArray[np.int64], Any]:
        """Return where each sample's part of a list attribute begins, and the elements."""
        if name not in self._lists:
            found: tuple[npt.NDArray[np.int64], Any] = np.zeros(self._count + 1, np.int64), None
            if name in self.names:
                found = _cut(self._table[name].combine_chunks())
            self._lists[name] = found
        return self._lists[name]

    def _read_numbers(self, name: str, default: int) -> npt.NDArray[np.int64]:
        if name not in self.names:
            return np.full(self._count, default, np.int64)
        filler = bool(default) if name == "annotated" else default
        values = np.asarray(self._table[name].fill_null(filler).to_numpy())
        wrong = (values < 0) | (values >= 2**31)
        if wrong.any():
            if self._strict:
                row = int(np.flatnonzero(wrong)[0])
                self._refuse(row, name, f"expected 0 to 2147483647, found {values[row]}")
            values = np.where(wrong, default, values)
        return values.astype(np.int64)

    def _refuse(self, row: int, name: str, why: str) -> NoReturn:
        key = self._store.keys[self._first + row]
        raise SchemaError(
            f"{self._store.path}: sample {key!r}, attribute {name!r}: {why}. Build the store again."
        )


class _Polygons(NamedTuple):
    starts: npt.NDArray[np.int64]
    """The first polygon of each sample."""
    ends: npt.NDArray[np.int64]
    """The first number of each polygon."""
    values: npt.NDArray[Any]
    """The numbers of all polygons."""
    wrong: npt.NDArray[np.bool_] | None
    """Which polygons are none; None if all are right."""


def read_annotation(store: Store, row: int, **options: Any) -> Annotation:
    """Return the annotation of one sample; options are those of `AnnotationReader`."""
    return AnnotationReader(store, row=row, **options).annotation(0)


def require_polygons(store: Store, purpose: str) -> None:
    """Raise SchemaError if no sample has a polygon; `purpose` is what they are needed to do."""
    reader = AnnotationReader(store, strict=False)
    if reader.all_polygons().counts.any():
        return
    known = int(reader.numbers("annotated", 1).sum())
    raise SchemaError(
        f"{store.path}: no polygon in any of its {len(store)} samples ({known} of them annotated), "
        f"so there is nothing to {purpose}. Build it again with the annotations: ocrstore build "
        f"IMAGES --annotations PATH --out {store.path} --size 640"
    )


def typed_attributes(schema: pa.Schema) -> frozenset[str]:
    """Return which attributes of an annotation a store has, of the type that a build gives them.

    A store may have an attribute of the same name for another purpose.
    """
    return frozenset(
        field.name
        for field in schema
        if field.name in _EXPECTED and _EXPECTED[field.name][1](field.type)
    )


def is_list(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type is a list of any kind."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return _is_int(kind) or str(kind) in ("halffloat", "float", "double")


def _is_int(kind: pa.DataType) -> bool:
    return str(kind).removeprefix("u") in ("int8", "int16", "int32", "int64")


def _is_text(kind: pa.DataType) -> bool:
    return str(kind) in ("string", "large_string")


def _list_of(inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda kind: is_list(kind) and inner(kind.value_type)


_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "polygons": ("lists of lists of numbers", _list_of(_list_of(_is_number))),
    "ignored": ("lists of bool", _list_of(lambda kind: str(kind) == "bool")),
    "texts": ("lists of strings", _list_of(_is_text)),
    "languages": ("lists of strings", _list_of(_is_text)),
    "problems": ("lists of strings", _list_of(_is_text)),
    "annotated": ("bool", lambda kind: str(kind) == "bool"),
    "width": ("integers", _is_int),
    "height": ("integers", _is_int),
    "orientation": ("integers", _is_int),
}
"""The attributes of an annotation: their types in words, and the test of an Arrow type."""


def _cut(lists: Any) -> tuple[npt.NDArray[np.int64], Any]:
    """Return where each list begins in the elements of all, and these; null lists are empty.

    Lists are cut with numpy: Arrow's own list scalars take several times as long.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(lists, pa.ChunkedArray):  # what combining no chunks gives
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets, lists.flatten()
