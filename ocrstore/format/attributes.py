"""Attributes: which Arrow types they may have, inferring their schema, making tables of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ocrstore.errors import SchemaError
from ocrstore.format.layout import is_valid_name

_SIMPLE = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "halffloat", "float", "double", "string", "large_string", "binary", "large_binary",
}  # fmt: skip
_CANONICAL = {"halffloat": "float16", "float": "float32", "double": "float64"}


def type_name(kind: pa.DataType) -> str:
    """Name an attribute type independently of Arrow's spelling; SchemaError if not allowed."""
    if str(kind) in _SIMPLE:
        return _CANONICAL.get(str(kind), str(kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    if pa.types.is_fixed_size_list(kind):
        return f"list<{type_name(kind.value_type)}>[{kind.list_size}]"
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = (kind.field(i) for i in range(kind.num_fields))
        return "struct<" + ",".join(f"{f.name}:{type_name(f.type)}" for f in fields) + ">"
    raise SchemaError(
        f"An attribute cannot have the Arrow type {kind}; use numbers, strings, binary, lists and "
        "structs of them (a struct has at least one field)."
    )


def check_schema(schema: pa.Schema, columns: Mapping[str, object]) -> pa.Schema:
    """Return `schema` without metadata; SchemaError if a field cannot be an attribute."""
    for field in schema:
        if not is_valid_name(field.name) or field.name in columns:
            raise SchemaError(
                f"attribute {field.name!r}: a name has letters, digits and _ . - /, at most 63 of "
                "them, is not `key` and not also the name of a column."
            )
        type_name(field.type)
    if len(set(schema.names)) != len(schema.names):
        raise SchemaError(f"Two attributes have one name: {', '.join(sorted(schema.names))}.")
    return schema.remove_metadata()


def to_schema(attributes: Mapping[str, Any] | pa.Schema | None) -> pa.Schema | None:
    """Return an Arrow schema for what a caller gave: a schema, or names with Arrow types."""
    if attributes is None or isinstance(attributes, pa.Schema):
        return attributes
    try:
        return pa.schema(list(attributes.items()))
    except (TypeError, ValueError, pa.ArrowException) as exc:
        raise SchemaError(
            f"attributes: not a schema ({exc}); give names with Arrow types."
        ) from exc


def to_table(
    keys: Sequence[str], records: Sequence[Mapping[str, Any]], schema: pa.Schema | None
) -> pa.Table:
    """Make a table of the attributes of some samples; without a schema, types are inferred."""
    try:
        return _to_table(records, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        for key, record in zip(keys, records):  # find out which sample it was
            try:
                _to_table([record], schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as own:
                raise SchemaError(f"sample {key!r}: its attributes do not fit: {own}") from own
        raise SchemaError(
            f"samples {keys[0]!r} to {keys[-1]!r}: their attributes do not fit together: {exc}"
        ) from exc


def _to_table(records: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    names = dict.fromkeys(name for record in records for name in record)
    if schema is None:
        arrays = [pa.array([_plain(record.get(name)) for record in records]) for name in names]
        return pa.table(dict(zip(names, arrays))) if names else _empty(len(records))
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise ValueError(f"unknown attribute {unknown[0]!r}; the store has {schema.names}")
    if not schema.names:
        return _empty(len(records))
    arrays = [
        pa.array([_plain(record.get(field.name)) for record in records], field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _empty(rows: int) -> pa.Table:
    return pa.table({"_": pa.nulls(rows)}).select([])


def unify(tables: Sequence[pa.Table], schema: pa.Schema | None) -> pa.Table:
    """Concatenate the tables of all row groups, cast to one schema."""
    if schema is None and not tables:
        schema = pa.schema([])
    elif schema is None:
        try:
            schema = pa.unify_schemas([t.schema for t in tables], promote_options="permissive")
        except (pa.ArrowException, TypeError) as exc:
            raise SchemaError(
                f"The attributes of different samples do not fit together: {exc}. Give "
                "`attributes=` a schema to say what is meant."
            ) from exc
        schema = pa.schema([field.with_type(_resolve(field.type)) for field in schema])
    rows = sum(t.num_rows for t in tables)
    if not schema.names:
        return _empty(rows)
    columns = []
    for field in schema:
        chunks: list[pa.Array] = []
        for table in tables:
            if field.name in table.schema.names:
                chunks += table[field.name].cast(field.type).chunks
            else:
                chunks.append(pa.nulls(table.num_rows, field.type))
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.table(columns, schema=schema)


def _resolve(kind: pa.DataType) -> pa.DataType:
    """Replace the type of values that were always None by string."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_resolve(kind.value_type))
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return pa.struct([f.with_type(_resolve(f.type)) for f in fields])
    return kind


def _plain(value: Any) -> Any:
    """Convert numpy values, at any depth, to what Arrow accepts."""
    if isinstance(value, np.ndarray):
        return value if value.ndim == 1 and value.dtype.kind in "biuf" else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value
