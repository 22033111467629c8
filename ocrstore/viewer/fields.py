"""What samples can be filtered and sorted by: flat columns made from the index.

Hides the nesting: of a list its length is taken (`polygons.count`), of a list of flags also how
many are set (`ignored.true`), of a column the stored bytes (`image.nbytes`).
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

NUMBER, TEXT, FLAG, TEXTS = "number", "text", "flag", "texts"


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that is known of every sample."""

    name: str
    kind: str
    """`number`, `text`, `flag`, or `texts` for a list of them."""
    make: Callable[[], Any]


class Fields(Mapping[str, Field]):
    """The fields of a store by name; arrays are made when first asked for, then kept."""

    def __init__(self, fields: list[Field]) -> None:
        self._fields = {field.name: field for field in fields}
        self._arrays: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def array(self, name: str) -> Any:
        """Return a field's Arrow array, one entry per sample."""
        if name not in self._arrays:
            self._arrays[name] = self._fields[name].make()
        return self._arrays[name]


def read_fields(store: Store, extra: Mapping[str, npt.NDArray[Any]]) -> Fields:
    """Describe what a store's samples can be filtered by; `extra` are further numbers."""
    table = store.index
    fields = [
        Field("row", NUMBER, lambda: pa.array(np.arange(len(store), dtype=np.int64))),
        Field("key", TEXT, lambda: _whole(table["key"])),
    ]
    for name, numbers in extra.items():
        fields.append(Field(name, NUMBER, _constant(pa.array(numbers, from_pandas=True))))
    for attribute in store.snapshot.index.attributes:
        fields += _attribute_fields(table, attribute)
    for name in store.columns:
        fields.append(Field(f"{name}.nbytes", NUMBER, _constant(pa.array(store[name].nbytes))))
    return Fields(fields)


def _attribute_fields(table: pa.Table, attribute: pa.Field) -> list[Field]:
    name, kind = attribute.name, attribute.type
    if pa.types.is_boolean(kind):
        return [Field(name, FLAG, lambda: _whole(table[name]))]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return [Field(name, NUMBER, lambda: _whole(table[name]))]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [Field(name, TEXT, lambda: _whole(table[name]))]
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return []  # nested otherwise, dates: they are shown, and SQL reaches them
    fields = [
        Field(f"{name}.count", NUMBER, lambda: pc.fill_null(_lengths(_whole(table[name])), 0))
    ]
    if pa.types.is_boolean(kind.value_type):
        fields.append(Field(f"{name}.true", NUMBER, lambda: _count_true(_whole(table[name]))))
    if pa.types.is_string(kind.value_type):
        fields.append(Field(name, TEXTS, lambda: _whole(table[name])))
    return fields


def any_of(lists: Any, found: Any) -> Any:
    """Tell for each list whether any of its flattened values was `found`."""
    parents = pc.list_parent_indices(lists).to_numpy()
    hits = np.zeros(len(lists), bool)
    hits[parents[pc.fill_null(found, False).to_numpy(zero_copy_only=False)]] = True
    return pa.array(hits)


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
