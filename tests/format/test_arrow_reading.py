"""The index as ocrstore reads it and as pyarrow reads it: both say the same, or both refuse."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocrstore
from ocrstore.errors import CorruptStoreError
from ocrstore.format.arrowarrays import read_arrays
from ocrstore.format.arrowfile import check_arrow_file
from ocrstore.format.arrowtypes import UnknownTypeError, read_fields
from ocrstore.format.index import Rows, parse_index
from ocrstore.format.indextable import build_table, index_of, serialize
from tests.format import crafting as craft

property_test = settings(max_examples=80)

COLUMNS = {
    "image": ocrstore.Column("uint8", (None, None, 3)),
    "one": ocrstore.Column("float64"),
}
WHOLE = [(pa.int8(), 7), (pa.uint16(), 15), (pa.int32(), 31), (pa.int64(), 63), (pa.uint64(), 63)]
LEAVES = [
    *((kind, st.integers(0, 2**bits - 1)) for kind, bits in WHOLE),
    (pa.bool_(), st.booleans()),
    (pa.float16(), st.integers(0, 99).map(np.float16)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    (pa.large_string(), st.text("a\u00e4\u20ac\U0001f600", max_size=4)),
    (pa.binary(), st.binary(max_size=4)),
    (pa.large_binary(), st.binary(max_size=4)),
]


def nested(inner):
    """Lists and structs of some (type, values)."""
    return st.one_of(
        inner.map(lambda i: (pa.list_(i[0]), st.lists(with_none(i[1]), max_size=3))),
        inner.map(lambda i: (pa.large_list(i[0]), st.lists(with_none(i[1]), max_size=3))),
        inner.map(lambda i: (pa.list_(i[0], 2), st.lists(with_none(i[1]), min_size=2, max_size=2))),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda items: (
                pa.struct([(f"f{n}", kind) for n, (kind, _) in enumerate(items)]),
                st.fixed_dictionaries({f"f{n}": with_none(v) for n, (_, v) in enumerate(items)}),
            )
        ),
    )


def with_none(values):
    """Add the missing value."""
    return st.none() | values


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


@st.composite
def tables(draw):
    """Draw an index table with any attributes."""
    keys = draw(
        st.lists(st.text("ab\u00e4\u20ac", min_size=1, max_size=5), unique=True, max_size=9)
    )
    count = len(keys)
    attributes = {}
    for number, (kind, values) in enumerate(draw(st.lists(TYPES, max_size=3))):
        items = draw(st.lists(with_none(values), min_size=count, max_size=count))
        attributes[f"attribute{number}"] = pa.array(items, kind)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    rows = {
        name: Rows(
            random.integers(0, 2**40, count),
            random.integers(0, 2**20, count),
            random.integers(0, 99, (count, len(column.shape))).astype(np.int32),
            random.integers(0, 2**63, count).astype(np.uint64),
        )
        for name, column in COLUMNS.items()
    }
    table = pa.table(attributes) if attributes else pa.table({"_": pa.nulls(count)}).select([])
    return build_table(keys, COLUMNS, rows, table)


def read_both(payload):
    """Return the arrays that ocrstore reads and the table that pyarrow reads; None if refused."""
    mine = theirs = None
    with suppress(CorruptStoreError, ValueError, struct.error):
        file = check_arrow_file(memoryview(payload), where="it")
        mine = read_arrays(read_fields(file.footer), file.batch) if file.batch else {}
    with suppress(pa.ArrowException, OSError, ValueError):
        theirs = pa.ipc.open_file(pa.py_buffer(payload)).read_all()
        theirs.validate(full=True)
        return mine, theirs
    return mine, None


def same_index(index, table):
    """Tell whether an index says what a table says."""
    other = index_of(table.combine_chunks(), COLUMNS)
    return list(index.keys) == list(other.keys) and all(
        np.array_equal(mine, theirs)
        for name in COLUMNS
        for mine, theirs in zip(index.rows[name], other.rows[name])
    )


@property_test
@given(table=tables())
def test_both_read_the_same(table):
    """Keys, places and the table are what was written, whatever the attributes are."""
    payload = serialize(table)
    index = parse_index(memoryview(payload), COLUMNS, samples=len(table), where="it")
    assert len(index) == len(table)
    assert same_index(index, table)
    assert [index.keys[row] for row in range(len(index))] == table["key"].to_pylist()
    assert index.keys[-2:] == table["key"].to_pylist()[-2:]
    assert index.table.equals(table)
    if len(table):
        arrays = [array for rows in index.rows.values() for array in rows if array.size]
        assert not any(array.flags.writeable for array in arrays)


@property_test
@given(table=tables(), data=st.data())
def test_both_refuse_the_same_values(table, data):
    """What Arrow's full validation finds in the buffers, ocrstore finds, and nothing else."""
    payload = bytearray(serialize(table))
    batch = check_arrow_file(memoryview(bytes(payload)), where="it").batch
    spots = [(start, size) for start, size in (batch.buffers if batch else []) if size]
    if not spots:
        return
    body = payload.rindex(bytes(batch.body))
    for _ in range(data.draw(st.integers(1, 3))):
        start, size = data.draw(st.sampled_from(spots))
        place = body + start + data.draw(st.integers(0, size - 1))
        payload[place] = data.draw(st.integers(0, 255))
    mine, theirs = read_both(bytes(payload))
    assert (mine is None) == (theirs is None)


@property_test
@given(table=tables(), data=st.data())
def test_what_is_accepted_is_true(table, data):
    """Whatever byte of the file is changed: it is refused, or read as pyarrow reads it."""
    payload = bytearray(serialize(table))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptStoreError):
        index = parse_index(memoryview(bytes(payload)), COLUMNS, samples=len(table), where="it")
        assert same_index(index, index.table)


@pytest.mark.parametrize(
    "kind",
    [
        pa.date32(), pa.timestamp("s"), pa.decimal128(5), pa.null(), pa.string_view(),
        pa.binary(4), pa.map_(pa.string(), pa.int8()), pa.struct([]), pa.list_(pa.struct([])),
        pa.list_view(pa.int8()), pa.duration("s"), pa.month_day_nano_interval(),
        pa.json_(), pa.bool8(),
    ],
    ids=str,
)  # fmt: skip
def test_other_types_are_refused(kind):
    """A type that no attribute may have is refused by name, before its buffers are looked at."""
    payload = craft.arrow_file(pa.schema([pa.field("odd", kind)]).empty_table())
    footer = check_arrow_file(memoryview(payload), where="it").footer
    with pytest.raises(UnknownTypeError, match=r"odd|item"):
        read_fields(footer)


def test_texts_under_nulls_do_not_count():
    """Bytes that are no UTF-8 may lie where a text is missing, not where one is."""
    offsets, data = pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer(b"\xff\xc3")
    table = pa.table({"text": pa.StringArray.from_buffers(2, offsets, data, pa.py_buffer(b"\0"))})
    mine, theirs = read_both(craft.arrow_file(table))
    assert mine is not None
    assert theirs is not None
    halves = pa.StringArray.from_buffers(2, offsets, pa.py_buffer("\u00e4".encode()))
    mine, theirs = read_both(craft.arrow_file(pa.table({"text": halves})))
    assert mine is None
    assert theirs is None


def test_a_schema_that_shares_its_fields_ends():
    """Forty structs that each have the next one twice are refused, not followed 2**40 times."""
    kind = pa.int8()
    for _ in range(40):
        kind = pa.struct([("a", kind), ("b", pa.int8())])
    payload = bytearray(craft.arrow_file(pa.schema([("s", kind)]).empty_table()))
    footer = check_arrow_file(memoryview(bytes(payload)), where="it").footer
    base = payload.rindex(bytes(footer.data))
    table = footer.table(1).tables(1)[0]
    for _ in range(40):
        vector = table.field(5)
        second = vector + struct.unpack_from("<I", table.data, vector)[0] + 8
        table = table.tables(5)[0]
        struct.pack_into("<I", payload, base + second, table.position - second)
    with pytest.raises(ValueError, match="too deep"):
        read_fields(check_arrow_file(memoryview(payload), where="it").footer)
