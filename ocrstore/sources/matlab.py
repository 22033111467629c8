"""MATLAB 5 files: SynthText's gt.mat, and Total-Text's file per picture.

The reader is our own because scipy's crashes the process on damaged files. It reads what these two
have: arrays of numbers, of characters and of cells.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from ocrstore.annotation import ReadableFile
from ocrstore.sources.annotation_file import AnnotationFile, Flaw, UnusableAnnotationError
from ocrstore.sources.dialect import Dialect, Entry, Region, file_of, register

_NUMBERS = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_TEXTS = {2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16"}
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _OBJECT, _CHAR, _SPARSE = 1, 2, 3, 4, 5
_MOST_NBYTES = 1 << 31
"""Of one variable; SynthText's largest that is read has a quarter of it."""
_MOST_NESTED = 4


class _Elements:
    """The data elements in a block of bytes, one after the other; ValueError where they end."""

    def __init__(self, data: bytes | memoryview, order: str) -> None:
        self.data = memoryview(data)
        self._order = order
        self._at = 0

    def next(self) -> tuple[int, memoryview]:
        """Return type and data of the next element."""
        if self._at + 8 > len(self.data):
            raise ValueError("it ends within an element")
        kind, nbytes = struct.unpack_from(f"{self._order}II", self.data, self._at)
        start = self._at + 8
        if kind >> 16:  # a small element: type and size in four bytes, the data in the other four
            kind, nbytes, start = kind & 0xFFFF, kind >> 16, self._at + 4
        if start + nbytes > len(self.data):
            raise ValueError("it ends within an element")
        self._at = (
            max(start + nbytes + -nbytes % 8, self._at + 8) if start > self._at + 4 else start + 4
        )
        return kind, self.data[start : start + nbytes]

    def numbers(self) -> Any:
        """Return the next element as an array."""
        kind, data = self.next()
        if kind not in _NUMBERS:
            raise ValueError(f"an element of type {kind} where numbers are expected")
        return np.frombuffer(data, self._order + _NUMBERS[kind])

    def header(self) -> tuple[int, tuple[int, ...], str]:
        """Return class, shape and name of an array, whose data follows."""
        # struct, not numpy: there are millions of small arrays
        (_, flags), (_, sides), (_, name) = self.next(), self.next(), self.next()
        if len(flags) != 8 or len(sides) < 8 or len(sides) % 4:
            raise ValueError("an array without a class or shape")
        kind = struct.unpack_from(f"{self._order}I", flags)[0] & 0xFF
        shape = struct.unpack(f"{self._order}{len(sides) // 4}i", sides)
        if min(shape) < 0:
            raise ValueError(f"an array of the shape {shape}")
        return kind, shape, bytes(name).decode("latin-1")

    def array(self, depth: int = 0) -> Any:
        """Return the next array: of numbers, of objects for cells, a list of rows for texts."""
        kind, data = self.next()
        if kind != _MATRIX or depth > _MOST_NESTED:
            raise ValueError(f"an element of type {kind}, {depth} cells deep")
        if not len(data):
            return np.empty((0, 0))
        inner = _Elements(data, self._order)
        kind, shape, _ = inner.header()
        count = math.prod(shape)
        if kind in (_STRUCT, _OBJECT, _SPARSE):
            raise ValueError("a structure, an object or a sparse array")
        if kind == _CHAR:
            return inner.rows(shape)
        if kind != _CELL:
            return inner.numbers().reshape(shape, order="F")
        if 8 * count > len(data):
            raise ValueError(f"{count} cells in {len(data)} bytes")
        cells = np.empty(count, object)
        for i in range(count):
            cells[i] = inner.array(depth + 1)
        return cells.reshape(shape, order="F")

    def rows(self, shape: tuple[int, ...]) -> list[str]:
        """Return the next element as texts, which are stored column by column."""
        kind, data = self.next()
        if kind not in _TEXTS:
            raise ValueError(f"an element of type {kind} where characters are expected")
        encoding = _TEXTS[kind]
        if encoding == "utf-16":
            encoding = "utf-16-le" if self._order == "<" else "utf-16-be"
        text = bytes(data).decode(encoding)
        if math.prod(shape) != len(text):
            raise ValueError(f"{len(text)} characters in an array of {shape}")
        return [text[row :: shape[0]] for row in range(shape[0])]


def _variables(
    path: ReadableFile, wanted: Collection[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the names of a file's variables and, of those that are wanted, the arrays."""
    with path.open("rb") as stream:
        header = stream.read(128)
        if not header.startswith(b"MATLAB 5.0 MAT-file") or header[126:] not in (b"IM", b"MI"):
            raise ValueError("it does not begin as one")
        order = "<" if header[126:] == b"IM" else ">"
        while tag := stream.read(8):
            if len(tag) < 8:
                raise ValueError("it ends within an element")
            kind, nbytes = struct.unpack(f"{order}II", tag)
            start = stream.tell()
            head = stream.read(min(nbytes, 1024))
            if kind == _COMPRESSED:
                head = zlib.decompressobj().decompress(head, 512)[8:]
            # its shape and name are in the first hundreds of bytes, so nothing else is read
            name = _Elements(head, order).header()[2]
            value = None
            if wanted is not None and name in wanted:
                stream.seek(start)
                data = stream.read(nbytes)
                if kind == _COMPRESSED:
                    data = zlib.decompressobj().decompress(data, _MOST_NBYTES)
                else:
                    data = tag + data
                value = _Elements(data, order).array()
            yield name, value
            stream.seek(start + nbytes)


def _names(file: AnnotationFile) -> set[str]:
    try:
        return {name for name, _ in _variables(file.path)}
    except (OSError, ValueError, zlib.error):
        return set()


def _load(file: AnnotationFile, *names: str) -> list[Any]:
    """Return variables of a file; raise UnusableAnnotationError if it lacks one."""
    try:
        found = dict(_variables(file.path, names))
        return [found[name] for name in names]
    except KeyError as exc:
        raise UnusableAnnotationError("missing-key", f"{file.shown}: no variable {exc}") from exc
    except (OSError, ValueError, zlib.error, MemoryError) as exc:
        message = f"{file.shown}: no MATLAB 5 file that can be read: {exc}"
        raise UnusableAnnotationError("unreadable-annotation", message) from exc


def _first(cell: Any) -> str | None:
    """Return the text of a cell; None for one of numbers, which an empty one is, too."""
    return cell[0] if isinstance(cell, list) and cell else None


@register
class SynthText(Dialect):
    """One file for all pictures, with a quadrilateral per word."""

    name = "synthtext"
    looks_for = "a .mat file with imnames, wordBB and txt"
    suffixes = (".mat",)

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by the names of the variables."""
        return {"imnames", "wordBB", "txt"} <= _names(file)

    def entries(self, file: AnnotationFile) -> Iterator[Entry | Flaw]:
        """Yield one entry per picture."""
        names, boxes, texts = (np.ravel(v) for v in _load(file, "imnames", "wordBB", "txt"))
        if not len(names) == len(boxes) == len(texts):
            message = f"{file.shown}: {len(names)} names, {len(boxes)} boxes, {len(texts)} texts"
            raise UnusableAnnotationError("bad-structure", message)
        for i, (name, box, text) in enumerate(zip(names, boxes, texts, strict=True)):
            yield Entry((_first(name) or "",), (box, text), f"{file.shown} picture {i}")

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield the words; `txt` has lines of them."""
        record: Any = entry.record
        boxes, lines = record
        if not isinstance(boxes, np.ndarray) or boxes.shape[:2] != (2, 4) or boxes.ndim > 3:
            message = f"{entry.where}: expected 2 x 4 x n coordinates in wordBB"
            raise UnusableAnnotationError("bad-structure", message)
        points = boxes.reshape(2, 4, -1).transpose(2, 1, 0)
        words = [word for line in lines for word in line.split()] if _first(lines) else []
        if len(words) != len(points):
            message = f"{entry.where}: {len(words)} words for {len(points)} boxes; texts left out"
            yield Flaw("bad-text", message, region=False)
            words = [None] * len(points)
        yield from (Region(quad, word) for quad, word in zip(points, words, strict=True))


@register
class TotalTextMat(Dialect):
    """A file per picture (poly_gt_img1.mat): a row of x, y, text and orientation per region."""

    name = "totaltext-mat"
    looks_for = "a .mat file per picture with polygt"
    suffixes = (".mat",)
    per_picture = True

    def recognise(self, file: AnnotationFile) -> bool:
        """Recognise by the name of the variable."""
        return "polygt" in _names(file)

    def regions(self, entry: Entry) -> Iterator[Region | Flaw]:
        """Yield a region for each row; `#` as text means ignored."""
        (rows,) = _load(file_of(entry), "polygt")
        if not isinstance(rows, np.ndarray) or rows.dtype != object or rows.shape[1] < 5:
            message = f"{entry.where}: expected rows of six cells in polygt"
            raise UnusableAnnotationError("bad-structure", message)
        for i, (_, xs, _, ys, label, *_) in enumerate(rows):
            text = _first(label)
            if not isinstance(xs, np.ndarray) or np.shape(ys) != xs.shape:
                yield Flaw("bad-points", f"{entry.where} row {i}: as many x as y expected")
            else:
                points = list(zip(xs.flat, np.ravel(ys), strict=True))
                yield Region(points, text, ignored=text == "#")
