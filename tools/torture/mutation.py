"""Random changes of bytes, JSON records and attribute tables, for the tools that attack stores."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from tools import crafting as craft

NAMES = (
    "", " ", ".", "..", "/", "../../etc/passwd", "-rf", "--help", "a\nb", "a\tb", "a\\b", "%s%n{0}",
    "\x1b[2J\x1b]0;title\x07", "[bold red]x[/]", "[/]", "\x9b31m", "\u202egpj.exe", "\u200b", "é", "e\u0301",
    "<script>alert(1)</script>", "'; drop table samples; --", '"', "$(id)", "`id`", "CON", "x" * 250, "🙂" * 60,
    "key", "os.system", "evil_module.Evil", "evil_module:Evil", "__class__", "nan", "1e400", "0x10", "NULL",
)  # fmt: skip
"""Strings that some program, terminal or page has stumbled over."""

VALUES = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 2**200, 0.5, -1e308, [], {}, [[]], [None], {"": None},
    [1, 2], [0, 0], ["a"], [1e300] * 3, {"a": 1}, "640", "x" * 70_000, *NAMES,
)  # fmt: skip


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Flip bits, overwrite or clear a range, cut, or append."""
    how = random.choice(("bits", "bits", "bits", "noise", "zeros", "cut", "append"))
    at = random.randrange(len(data) + 1)
    if how == "cut":
        return data[:at]
    if how == "append":
        return data + random.randbytes(random.randint(1, 9000))
    damaged = bytearray(data)
    if how == "bits":
        for _ in range(random.choice((1, 1, 1, 2, 8)) if data else 0):
            damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
    else:
        length = min(random.choice((1, 8, 512, 4096, 20_000)), len(data) - at)
        damaged[at : at + length] = random.randbytes(length) if how == "noise" else bytes(length)
    return bytes(damaged)


def _places(record: Any) -> list[tuple[Any, Any]]:
    """List every (container, key) of a JSON record."""
    inner = []
    if isinstance(record, dict):
        inner = [(record, key) for key in record]
    elif isinstance(record, list):
        inner = [(record, position) for position in range(len(record))]
    return inner + [place for outer, key in inner for place in _places(outer[key])]


def mutate_json(record: Any, random: Random) -> Any:
    """Return a record of which one to three values were replaced, removed, renamed or wrapped."""
    record = copy.deepcopy(record)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = _places(record)
        if not places:
            return record
        outer, key = random.choice(places)
        value = outer[key]
        how = random.choice(
            ("replace", "replace", "replace", "remove", "wrap", "swap", "name", "number")
        )
        if how == "remove":
            del outer[key]
        elif how == "wrap":
            outer[key] = random.choice(([value], {"a": value}, [value] * 3))
        elif how == "swap":
            other, place = random.choice(places)
            # a record that holds itself cannot be written
            outer[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(value)
        elif how == "name" and isinstance(outer, dict):
            outer[random.choice(NAMES)] = outer.pop(key)
        elif how == "number" and isinstance(value, (int, float)):
            outer[key] = random.choice((value * 1000, -value, value + 1, value / 3, str(value)))
        else:
            outer[key] = copy.deepcopy(random.choice(VALUES))
    return record


def mutate_manifest(path: Path, random: Random) -> None:
    """Change the newest manifest, three times of four below `metadata` and `history` only."""
    record = json.loads(craft.payload_of(path, craft.MANIFEST))
    if random.random() < 0.75:
        record.update(mutate_json({name: record[name] for name in ("metadata", "history")}, random))
    else:
        record = mutate_json(record, random)
    craft.put_payload(path, craft.MANIFEST, json.dumps(record).encode())


def mutate_attributes(path: Path, random: Random) -> None:
    """Change one to three attribute columns of the index: values, type, name, or all of it."""
    table = craft.index_table(path)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = {f.name for f in table.schema if pa.types.is_struct(f.type)} | {"key"}
        names = [name for name in table.schema.names if name not in places]
        if not names:
            break
        name = random.choice(names)
        position = table.schema.get_field_index(name)
        how = random.choice(("values", "values", "values", "type", "nulls", "drop", "swap"))
        if how == "drop":
            table = table.remove_column(position)
        elif how == "swap":
            table = table.set_column(position, name, table[random.choice(names)])
        elif how == "nulls":
            table = table.set_column(position, name, pa.nulls(len(table), table[name].type))
        elif how == "type":
            table = table.set_column(position, name, _other_type(len(table), random))
        else:
            field = table.schema.field(position)
            values = mutate_json(table[name].to_pylist(), random)
            values = (values + [None] * len(table))[: len(table)]
            try:
                table = table.set_column(position, field, pa.array(values, field.type))
            except (pa.ArrowException, TypeError, OverflowError, ValueError):
                continue  # a value that the type cannot hold
    craft.put_table(path, table)


def _other_type(rows: int, random: Random) -> pa.Array:
    value, kind = random.choice((
        ("x", pa.string()), (b"\xff", pa.binary()), (2**63, pa.uint64()), (float("nan"), pa.float64()),
        (float("inf"), pa.float32()), ([], pa.list_(pa.string())), ([1], pa.list_(pa.int8())),
        ([["a"]], pa.list_(pa.list_(pa.string()))), ([[None]], pa.list_(pa.list_(pa.float32()))),
        ([[1.0, float("nan")]], pa.list_(pa.list_(pa.float64()))), (True, pa.bool_()), (-1, pa.int64()),
        ({"a": 1}, pa.struct([("a", pa.int32())])),
    ))  # fmt: skip
    return pa.array([value] * rows, kind)
