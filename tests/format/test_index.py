"""The index: what is written is read; of bytes that are changed, what Arrow reads, or an error."""

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
from ocrstore.format import index as index_module
from ocrstore.format.index import Index, Rows, build_table, parse_index, serialize
from tools import crafting as craft

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


def make_table(keys, attributes):
    """Make an index table with places that are drawn at random."""
    count = len(keys)
    random = np.random.default_rng(count)
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


@st.composite
def tables(draw):
    """Draw an index table with any attributes."""
    keys = draw(
        st.lists(st.text("ab\u00e4\u20ac", min_size=1, max_size=5), unique=True, max_size=9)
    )
    attributes = {}
    for number, (kind, values) in enumerate(draw(st.lists(TYPES, max_size=3))):
        items = draw(st.lists(with_none(values), min_size=len(keys), max_size=len(keys)))
        attributes[f"attribute{number}"] = pa.array(items, kind)
    return make_table(keys, attributes)


def parse(payload, samples=None):
    """Read an index."""
    return parse_index(memoryview(payload), COLUMNS, samples=samples, where="it")


def same_places(index, table):
    """Tell whether an index says the same of keys and rows as a table does."""
    other = Index(table.combine_chunks(), COLUMNS)
    return index.keys == other.keys and all(
        np.array_equal(mine, theirs)
        for name in COLUMNS
        for mine, theirs in zip(index.rows[name], other.rows[name])
    )


@property_test
@given(table=tables())
def test_what_is_written_is_read(table):
    """Keys, places and the table come back in place, whatever the attributes are."""
    payload = serialize(table)
    index = parse(payload, len(table))
    assert len(index) == len(table)
    assert same_places(index, table)
    assert [index.key(row) for row in range(len(index))] == table["key"].to_pylist()
    assert index.table.equals(table)
    start = pa.py_buffer(payload).address
    for array in (array for rows in index.rows.values() for array in rows if array.size):
        assert not array.flags.writeable
        assert start <= array.ctypes.data < start + len(payload)


@property_test
@given(table=tables(), data=st.data())
def test_what_is_accepted_is_what_arrow_reads(table, data):
    """Whatever byte of the file is changed: it is refused, or read as pyarrow alone reads it."""
    payload = bytearray(serialize(table))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptStoreError):
        index = parse(bytes(payload), len(table))
        assert same_places(index, pa.ipc.open_file(pa.py_buffer(bytes(payload))).read_all())


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
    """A type that no attribute may have is refused by name."""
    table = make_table([], {}).append_column("odd", pa.array([], kind))
    with pytest.raises(CorruptStoreError, match="attribute 'odd': An attribute cannot have"):
        parse(craft.arrow_file(table))


def test_texts_under_nulls_do_not_count():
    """Bytes that are no UTF-8 may lie where a text is missing, not where one is."""
    offsets, data = pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer(b"\xff\xc3")
    texts = pa.StringArray.from_buffers(2, offsets, data, pa.py_buffer(b"\0"))
    assert parse(craft.arrow_file(make_table(["a", "b"], {"text": texts}))).table["text"][0]
    halves = pa.StringArray.from_buffers(2, offsets, pa.py_buffer("\u00e4".encode()))
    with pytest.raises(CorruptStoreError, match="UTF8"):
        parse(craft.arrow_file(make_table(["a", "b"], {"text": halves})))


SMALL = serialize(make_table(["a", "b"], {"n": pa.array([1, 2])}))


def footer_of(payload):
    """Return where the footer starts."""
    return len(payload) - 10 - struct.unpack_from("<i", payload, len(payload) - 10)[0]


def block_of(payload):
    """Return where the footer says where the record batch lies: offset, metadata, body."""
    footer = memoryview(payload)[footer_of(payload) :]
    root = index_module._indirect(footer, 0)
    return footer_of(payload) + index_module._vector(footer, root, 3)[0]


@pytest.mark.parametrize(
    ("part", "kind", "number"),
    [
        (0, "<q", 0), (0, "<q", -8), (0, "<q", 2**62), (0, "<q", 9), (0, "<q", 16),
        (8, "<i", 0), (8, "<i", 8), (8, "<i", -8), (8, "<i", 2**31 - 8), (8, "<i", 7),
        (16, "<q", 0), (16, "<q", -1), (16, "<q", 8), (16, "<q", 2**40), (16, "<q", 2**63 - 1),
    ],
)  # fmt: skip
def test_a_block_that_lies_elsewhere_is_refused(part, kind, number):
    """Each number that says where the record batch lies is checked before it is used."""
    payload = bytearray(SMALL)
    struct.pack_into(kind, payload, block_of(payload) + part, number)
    with pytest.raises(CorruptStoreError, match="not a valid Arrow table"):
        parse(bytes(payload))


def test_a_block_that_is_the_schema_is_refused():
    """A block of another message is not taken for a record batch."""
    payload = bytearray(SMALL)
    nbytes = struct.unpack_from("<i", payload, 12)[0] + 8
    struct.pack_into("<qi4xq", payload, block_of(payload), 8, nbytes, 0)
    with pytest.raises(CorruptStoreError, match="its record batch is a schema"):
        parse(bytes(payload))


def test_every_number_of_the_metadata():
    """No value of any four bytes of the Flatbuffers leads to another error, or to a loop."""
    offset, nbytes = struct.unpack_from("<qi", SMALL, block_of(SMALL))
    spots = [*range(offset, offset + nbytes, 2), *range(footer_of(SMALL), len(SMALL) - 4, 2)]
    for position in spots:
        for number in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(SMALL)):
            payload = bytearray(SMALL)
            struct.pack_into("<I", payload, position, number)
            with suppress(CorruptStoreError):
                parse(bytes(payload))


def test_a_schema_that_shares_its_fields_ends():
    """Forty structs that each have the next one twice are refused, not followed 2**40 times."""
    kind = pa.int8()
    for _ in range(40):
        kind = pa.struct([("a", kind), ("b", pa.int8())])
    table = make_table([], {}).append_column("s", pa.array([], kind))
    payload = bytearray(craft.arrow_file(table))
    start = footer_of(payload)
    footer = memoryview(payload)[start:]

    def children(table, number):
        items, count = index_module._vector(footer, table, number)
        return [items + 4 * n for n in range(count)]

    schema = index_module._field(footer, index_module._indirect(footer, 0), 1)
    field = children(index_module._indirect(footer, schema), 1)[-1]
    for _ in range(40):
        first, second = children(index_module._indirect(footer, field), 5)
        struct.pack_into("<I", footer, second, index_module._indirect(footer, first) - second)
        field = first
    with pytest.raises(CorruptStoreError, match="not a valid Arrow table"):
        parse(bytes(payload))
