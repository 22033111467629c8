"""Flatbuffers tables, the encoding of Arrow's metadata: fields by number, every position checked.

Whatever the bytes are, only ValueError and struct.error leave this module, and nothing is read
outside of them.
"""

from __future__ import annotations

import struct

from ocrstore.quicktuple import QuickTuple


class FlatTable(QuickTuple):
    """A table at a position of some bytes."""

    data: memoryview
    position: int

    @classmethod
    def root(cls, data: memoryview) -> FlatTable:
        """Return the table that the bytes start with."""
        return cls(data, _number("<I", data, 0))

    def field(self, number: int) -> int | None:
        """Return where a field lies; None if the table does not have it."""
        vtable = self.position - _number("<i", self.data, self.position)
        slot = 4 + 2 * number
        if slot + 2 > _number("<H", self.data, vtable):
            return None
        offset = _number("<H", self.data, vtable + slot)
        return self.position + offset if offset else None

    def scalar(self, number: int, kind: str) -> int:
        """Return a number of a struct format such as "<q"; 0 if the table does not have it."""
        position = self.field(number)
        return 0 if position is None else _number(kind, self.data, position)

    def table(self, number: int) -> FlatTable | None:
        """Return a table inside this one."""
        position = self.field(number)
        return None if position is None else self._at(position)

    def tables(self, number: int) -> list[FlatTable]:
        """Return a list of tables."""
        return [self._at(start) for start in range(*self._vector(number, 4), 4)]

    def structs(self, number: int, kind: struct.Struct) -> list[tuple[int, ...]]:
        """Return a list of structs."""
        start, end = self._vector(number, kind.size)
        return list(kind.iter_unpack(self.data[start:end]))

    def text(self, number: int) -> str:
        """Return a string; empty if the table does not have it."""
        start, end = self._vector(number, 1)
        return str(self.data[start:end], "utf-8")

    def _at(self, position: int) -> FlatTable:
        return FlatTable(self.data, position + _number("<I", self.data, position))

    def _vector(self, number: int, size: int) -> tuple[int, int]:
        """Return [start, end) of the items of a list; they lie inside the data."""
        position = self.field(number)
        if position is None:
            return 0, 0
        position += _number("<I", self.data, position)
        count = _number("<I", self.data, position)
        start, end = position + 4, position + 4 + count * size
        if end > len(self.data):
            raise ValueError(f"a list of {count} leaves it")
        return start, end


def _number(kind: str, data: memoryview, position: int) -> int:
    if position < 0:  # struct would count from the end
        raise ValueError("a position before its start")
    return int(struct.unpack_from(kind, data, position)[0])
