"""The arrays of an Arrow record batch in place, fully validated: no number leads out of a buffer.

This is Arrow's own full validation (lengths, null counts, offsets that rise and stay inside,
UTF-8), done on whole buffers for the types that an index may have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ocrstore.format.arrowfile import ArrowBatch
from ocrstore.format.arrowtypes import BITS, ArrowField
from ocrstore.quicktuple import QuickTuple

if TYPE_CHECKING:
    import numpy.typing as npt

_OFFSETS = {
    "utf8": "<i4", "binary": "<i4", "list": "<i4",
    "large_utf8": "<i8", "large_binary": "<i8", "large_list": "<i8",
}  # fmt: skip


class ArrowArray(QuickTuple):
    """One array and its children; the buffers point into the file."""

    length: int
    nulls: int
    offsets: npt.NDArray[Any] | None
    """Where each text or list starts and the last one ends."""
    data: memoryview
    children: tuple[ArrowArray, ...]

    def has_nulls(self) -> bool:
        """Tell whether a value is missing, here or in any part."""
        return self.nulls > 0 or any(child.has_nulls() for child in self.children)

    def numbers(self, dtype: str, count: int) -> npt.NDArray[Any]:
        """Return the first values of an array of numbers, without copying them."""
        return np.frombuffer(self.data, dtype, count)


class Texts(Sequence[str]):
    """An array of texts without nulls; decoded when asked for."""

    def __init__(self, array: ArrowArray) -> None:
        self._offsets = array.offsets
        self._data = array.data
        self._length = array.length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self)[index]
        assert self._offsets is not None
        row = range(self._length)[index]
        return str(self._data[self._offsets[row] : self._offsets[row + 1]], "utf-8")

    def __iter__(self) -> Iterator[str]:
        return (item.decode("utf-8") for item in self.encoded())

    def encoded(self) -> list[bytes]:
        """Return all texts as bytes."""
        if self._offsets is None or not self._length:
            return []
        ends, data = self._offsets.tolist(), bytes(self._data)
        return [data[start:end] for start, end in itertools.pairwise(ends)]

    def lengths(self) -> npt.NDArray[Any]:
        """Return the bytes of each text."""
        return np.empty(0, np.int32) if self._offsets is None else np.diff(self._offsets)


def read_arrays(fields: Sequence[ArrowField], batch: ArrowBatch) -> dict[str, ArrowArray]:
    """Return the arrays by the names of their fields; ValueError for what Arrow calls invalid."""
    reader = _Reader(batch)
    arrays = {field.name: reader.read(field) for field in fields}
    reader.finish()
    for name, array in arrays.items():
        if array.length != batch.rows:
            raise ValueError(f"{name!r} has {array.length} values in {batch.rows} rows")
    return arrays


class _Reader:
    """Takes nodes and buffers one after another, as a walk over the fields meets them."""

    def __init__(self, batch: ArrowBatch) -> None:
        self._nodes = iter(batch.nodes)
        self._buffers = iter(batch.buffers)
        self._body = batch.body

    def _buffer(self, name: str, bits: int) -> memoryview:
        """Return the next buffer, which must have room for this many bits."""
        place = next(self._buffers, None)
        if place is None or place[1] * 8 < bits:
            raise ValueError(f"a buffer of {name!r} is missing or too short")
        return self._body[place[0] : place[0] + place[1]]

    def finish(self) -> None:
        """Make sure that nothing is left."""
        if next(self._nodes, None) is not None or next(self._buffers, None) is not None:
            raise ValueError("it has more arrays than fields")

    def read(self, field: ArrowField) -> ArrowArray:
        name = field.name
        length, nulls = next(self._nodes, (-1, 0))
        if not 0 <= nulls <= length:
            raise ValueError(f"{name!r} has {nulls} nulls in {length} values, or is not there")
        valid = _valid(self._buffer(name, length if nulls else 0), length, nulls, name)
        offsets, data = None, self._body[:0]
        if field.kind in BITS:
            data = self._buffer(name, length * BITS[field.kind])
        elif field.kind in _OFFSETS:
            offsets = self._offsets(field, length)
            if not field.children:
                data = self._buffer(name, 0)
                _check_end(offsets, len(data), name)
            if field.kind.endswith("utf8"):
                _check_text(data, offsets, valid, name)
        children = tuple(self.read(child) for child in field.children)
        for child in children:
            if offsets is not None:
                _check_end(offsets, child.length, name)
            elif child.length < length * (field.size if field.kind == "fixed_size_list" else 1):
                raise ValueError(f"{name!r} has fewer values inside than it needs")
        return ArrowArray(length, nulls, offsets, data, children)

    def _offsets(self, field: ArrowField, length: int) -> npt.NDArray[Any]:
        dtype = np.dtype(_OFFSETS[field.kind])
        count = length + 1 if length else 0  # an empty array may do without its one offset
        buffer = self._buffer(field.name, count * dtype.itemsize * 8)
        offsets = np.frombuffer(buffer, dtype, count)
        if count and (offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any()):
            raise ValueError(f"the offsets of {field.name!r} fall or are negative")
        return offsets


def _valid(bitmap: memoryview, length: int, nulls: int, name: str) -> npt.NDArray[Any] | None:
    """Return which values are there; None if all are."""
    if not nulls:
        return None
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=length, bitorder="little")
    if length - int(np.count_nonzero(bits)) != nulls:
        raise ValueError(f"{name!r} has another number of nulls than it says")
    return bits


def _check_end(offsets: npt.NDArray[Any], end: int, name: str) -> None:
    if len(offsets) and offsets[-1] > end:
        raise ValueError(f"the offsets of {name!r} lead behind its {end} values")


def _check_text(
    data: memoryview, offsets: npt.NDArray[Any], valid: npt.NDArray[Any] | None, name: str
) -> None:
    """Make sure that every text that is there is UTF-8."""
    if not len(offsets):
        return
    first, last = int(offsets[0]), int(offsets[-1])
    try:
        if str(data[first:last], "utf-8").isascii():
            return
        # the whole is UTF-8; so is each part, if none starts inside a character
        starts = offsets[(offsets > first) & (offsets < last)]
        inside = (np.frombuffer(data, np.uint8)[starts] & 0xC0 == 0x80).any()
    except UnicodeDecodeError:
        inside = True
    if not inside:
        return
    try:  # what lies under a null does not count
        for row in range(len(offsets) - 1) if valid is None else np.flatnonzero(valid).tolist():
            str(data[offsets[row] : offsets[row + 1]], "utf-8")
    except UnicodeDecodeError as exc:
        raise ValueError(f"a text of {name!r} is not UTF-8") from exc
