"""List the fields to filter and sort samples by: attributes and numbers derived from them.

A list has its length as a further field (`polygons_count`), a list of flags also how many are set
(`ignored_true`), a column the bytes that it takes (`image_nbytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ocrstore.store import Store

NUMBER, TEXT, FLAG, TEXTS, OTHER = "number", "text", "flag", "texts", "other"
SORTABLE = (NUMBER, TEXT, FLAG)


@dataclass(frozen=True, slots=True)
class Field:
    """One value for each sample; `make` returns them as an Arrow array."""

    name: str
    kind: str
    """`number`, `text`, `flag` (true or false), `texts` (a list) or `other` (nested, binary)."""
    make: Callable[[], Any]


class Fields(Mapping[str, Field]):
    """The fields of a store by name; arrays are made on first use and kept."""

    def __init__(self, fields: list[Field]) -> None:
        self._fields: dict[str, Field] = {}
        for field in fields:
            self._fields.setdefault(field.name, field)  # an attribute cannot replace `row`
        self._arrays: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def array(self, name: str) -> Any:
        """Return a field's Arrow array, one value for each sample."""
        if name not in self._arrays:
            self._arrays[name] = self._fields[name].make()
        return self._arrays[name]

    def table(self) -> pa.Table:
        """Return all fields as one table, `row` first."""
        return pa.table({name: self.array(name) for name in self})


def read_fields(store: Store, extra: Mapping[str, npt.NDArray[Any]], tags: Any = None) -> Fields:
    """List a store's fields; `extra` are further numbers, NaN where there is none."""
    table = store.index
    fields = [
        Field("row", NUMBER, lambda: pa.array(np.arange(len(store), dtype=np.int64))),
        Field("key", TEXT, lambda: _whole(table["key"])),
    ]
    for name, numbers in extra.items():
        fields.append(Field(name, NUMBER, _constant(pa.array(numbers, from_pandas=True))))
    if tags is not None:
        fields.append(Field("tags", TEXTS, _constant(tags)))
    attributes = store.snapshot.index.attributes
    fields += [_attribute(table, attribute) for attribute in attributes]
    for attribute in attributes:
        fields += _derived(table, attribute)
    for name in store.columns:
        fields.append(Field(f"{name}_nbytes", NUMBER, _constant(pa.array(store[name].nbytes))))
    return Fields(fields)


def _attribute(table: pa.Table, attribute: pa.Field) -> Field:
    name, kind = attribute.name, attribute.type
    if pa.types.is_boolean(kind):
        return Field(name, FLAG, lambda: _whole(table[name]))
    if pa.types.is_float16(kind):  # neither Arrow's sorting nor duckdb takes it
        return Field(name, NUMBER, lambda: pc.cast(_whole(table[name]), pa.float32()))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Field(name, NUMBER, lambda: _whole(table[name]))
    if _is_text(kind):
        return Field(name, TEXT, lambda: _whole(table[name]))
    if _is_list(kind) and _is_text(kind.value_type):
        return Field(name, TEXTS, lambda: _whole(table[name]))
    return Field(name, OTHER, lambda: _whole(table[name]))


def _derived(table: pa.Table, attribute: pa.Field) -> list[Field]:
    name, kind = attribute.name, attribute.type
    if not _is_list(kind):
        return []
    fields = [
        Field(f"{name}_count", NUMBER, lambda: pc.fill_null(_lengths(_whole(table[name])), 0))
    ]
    if pa.types.is_boolean(kind.value_type):
        fields.append(Field(f"{name}_true", NUMBER, lambda: _count_true(_whole(table[name]))))
    return fields


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _lengths(lists: Any) -> Any:
    return pc.cast(pc.list_value_length(lists), pa.int64())


def _count_true(lists: Any) -> Any:
    parents = pc.list_parent_indices(lists).to_numpy()
    flags = pc.fill_null(pc.list_flatten(lists), False).to_numpy(zero_copy_only=False)
    return pa.array(np.bincount(parents[flags], minlength=len(lists)).astype(np.int64))


def _whole(chunked: pa.ChunkedArray) -> Any:
    return chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()


def _constant(array: Any) -> Callable[[], Any]:
    return lambda: array
