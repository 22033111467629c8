"""The schema of an Arrow file, read from its footer: the types that an index may have, no others.

With `arrowarrays` this replaces pyarrow where a store is opened: importing pyarrow takes longer
than all else between starting a process and its first batch.
"""

from __future__ import annotations

from ocrstore.format.flatbuffers import FlatTable
from ocrstore.quicktuple import QuickTuple

_FIXED = {4: "binary", 5: "utf8", 6: "bool", 12: "list", 13: "struct", 16: "fixed_size_list",
          19: "large_binary", 20: "large_utf8", 21: "large_list"}  # fmt: skip
_INT, _FLOAT, _FIXED_SIZE_LIST = 2, 3, 16
_FLOATS = ("float16", "float32", "float64")
BITS = {
    "bool": 1,
    **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": 16,
    "float32": 32,
    "float64": 64,
}
"""Bits of one value, for the types that have no children and one size."""

_CHILDREN = {"list": 1, "large_list": 1, "fixed_size_list": 1}
_VERSIONS = (3, 4)  # V4 and V5, which differ in nothing that an index has
_MAX_DEPTH = 64


class ArrowField(QuickTuple):
    """A named type."""

    name: str
    nullable: bool
    kind: str
    size: int
    """Items of a fixed_size_list, otherwise 0."""
    children: tuple[ArrowField, ...]


class UnknownTypeError(ValueError):
    """A type that no field of an index may have."""


def read_fields(footer: FlatTable) -> tuple[ArrowField, ...]:
    """Return the fields of a file; ValueError or struct.error for what is no schema of an index."""
    schema = footer.table(1)
    if schema is None or footer.scalar(0, "<h") not in _VERSIONS or schema.scalar(0, "<h"):
        raise ValueError("it has no schema, or is big-endian, or of an unknown version")
    # a field takes more bytes than this: lists that share their fields end here, not after 2**64
    return tuple(_Reader(len(footer.data) // 8).read(table, 0) for table in schema.tables(1))


class _Reader:
    def __init__(self, most: int) -> None:
        self._left = most

    def read(self, table: FlatTable, depth: int) -> ArrowField:
        self._left -= 1
        if depth >= _MAX_DEPTH or self._left < 0:
            raise ValueError("its schema is nested too deep, or shares its fields")
        name = table.text(0)
        kind, size = _kind(table, name)
        children = tuple(self.read(child, depth + 1) for child in table.tables(5))
        if len(children) != _CHILDREN.get(kind, max(len(children), 1) if kind == "struct" else 0):
            raise UnknownTypeError(f"{name!r} is a {kind} of {len(children)} fields")
        return ArrowField(name, bool(table.scalar(1, "<B")), kind, size, children)


def _kind(table: FlatTable, name: str) -> tuple[str, int]:
    number, details = table.scalar(2, "<B"), table.table(3)
    if details is None or table.table(4) is not None:
        raise UnknownTypeError(f"{name!r} has no type, or is a dictionary")
    if any(pair.text(0) == "ARROW:extension:name" for pair in table.tables(6)):
        raise UnknownTypeError(f"{name!r} has an extension type")
    if number == _INT:
        sign = "" if details.scalar(1, "<B") else "u"
        kind = f"{sign}int{details.scalar(0, '<i')}"
    elif number == _FLOAT:
        precision = details.scalar(0, "<h")
        kind = _FLOATS[precision] if 0 <= precision < len(_FLOATS) else "?"
    else:
        kind = _FIXED.get(number, "?")
    size = details.scalar(0, "<i") if number == _FIXED_SIZE_LIST else 0
    if (kind not in BITS and number not in _FIXED) or size < 0:
        raise UnknownTypeError(
            f"{name!r} has the Arrow type number {number}; an attribute has numbers, strings, "
            "binary, lists and structs of them"
        )
    return kind, size
