# ruff: noqa: D103  # the names of the functions that spoil files say what they do
"""What a reader must reject in an index, and behind it: rules R29 to R42 of docs/FORMAT.md 11."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

import ocrstore
from ocrstore import CorruptStoreError
from tests.format.rejecting import (
    COLUMNS,
    Case,
    Cases,
    check_refusal,
    edit_fields,
)
from tools import crafting as craft
from tools.crafting import INDEX

CASES = Cases()

# --- the index ------------------------------------------------------------------------------


def index(payload):
    return lambda path: craft.put_payload(path, INDEX, payload)


def edit_bytes(change):
    """Change the Arrow file's bytes; its hash will be right."""

    def make(path):
        payload = bytearray(craft.payload_of(path, INDEX))
        craft.put_payload(path, INDEX, bytes(change(payload) or payload))

    return make


def edit_table(change):
    return lambda path: craft.put_table(path, change(craft.index_table(path)))


def find(payload: bytearray, values: list[int], kind: str) -> int:
    """Return where a buffer with these values lies in an Arrow file."""
    position = payload.find(struct.pack(f"<{len(values)}{kind}", *values))
    assert position > 0
    return position


def set_number(values, kind, position, number):
    """Change one number of the buffer that holds `values`."""

    def change(payload):
        start = find(payload, values, kind) + position * struct.calcsize(kind)
        struct.pack_into(f"<{kind}", payload, start, number)

    return change


KEY_OFFSETS = [0, 9, 18, 27, 36, 45]
TEXT_OFFSETS = [0, 6, 12, 18, 24, 30]
LIST_OFFSETS = [0, 3, 6, 9, 12, 15]


@CASES.add("R29", CorruptStoreError, "is not there")
def index_removed(path):
    craft.put(path, INDEX, None)


CASES.add_all(
    "R30", CorruptStoreError, "not a valid Arrow table",
    index_of_nothing=index(b""),
    index_of_zeros=index(bytes(1000)),
    index_of_text=index(b"ARROW1\0\0" + b"x" * 1000 + b"ARROW1"),
    index_cut=edit_bytes(lambda payload: payload[:-10]),
    index_start_missing=edit_bytes(lambda payload: payload[8:]),
    footer_negative=edit_bytes(lambda p: struct.pack_into("<i", p, len(p) - 10, -5)),
    footer_absurd=edit_bytes(lambda p: struct.pack_into("<i", p, len(p) - 10, 2**31 - 1)),
    footer_root_absurd=edit_bytes(
        lambda p: struct.pack_into("<I", p, footer_start(p), 2**31)
    ),
    index_as_stream=lambda path: craft.put_payload(path, INDEX, stream_of(craft.index_table(path))),
)  # fmt: skip


def footer_start(payload):
    return len(payload) - 10 - struct.unpack_from("<i", payload, len(payload) - 10)[0]


def stream_of(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def halves(table):
    return table.slice(0, 3), table.slice(3)


def dictionary_of(table):
    return table.append_column("word", table["text"].combine_chunks().dictionary_encode())


CASES.add_all(
    "R31", CorruptStoreError, "compressed|dictionaries|more than one record batch",
    index_compressed_zstd=lambda p: craft.put_table(p, craft.index_table(p), compression="zstd"),
    index_compressed_lz4=lambda p: craft.put_table(p, craft.index_table(p), compression="lz4"),
    index_in_two_batches=lambda p: craft.put_table(p, *halves(craft.index_table(p))),
    index_with_dictionary=edit_table(dictionary_of),
)  # fmt: skip


@CASES.add("R31", CorruptStoreError, "compressed")
def index_that_inflates_to_a_tebibyte(path):
    payload = bytearray(craft.arrow_file(craft.index_table(path), compression="zstd"))
    frame = payload.find(b"\x28\xb5\x2f\xfd")  # the first zstd frame; its size stands before it
    struct.pack_into("<q", payload, frame - 8, 2**40)
    craft.put_payload(path, INDEX, bytes(payload))


CASES.add_all(
    "R32", CorruptStoreError, "not a valid Arrow table",
    key_offsets_fall=edit_bytes(set_number(KEY_OFFSETS, "i", 2, 5)),
    key_offset_negative=edit_bytes(set_number(KEY_OFFSETS, "i", 1, -9)),
    key_offset_behind_the_end=edit_bytes(set_number(KEY_OFFSETS, "i", 5, 2**30)),
    text_offset_behind_the_end=edit_bytes(set_number(TEXT_OFFSETS, "i", 5, 2**31 - 1)),
    list_offset_behind_the_end=edit_bytes(set_number(LIST_OFFSETS, "i", 5, 1000)),
    key_not_utf8=edit_bytes(lambda p: p.replace(b"img_0.jpg", b"img_\xff.jpg")),
)  # fmt: skip


def replaced(name, kind, values=None, *, new_name=None):
    """Put a field of another type (or name) in place of a field."""

    def change(table):
        position = table.schema.get_field_index(name)
        array = pa.array(values if values is not None else [None] * len(table), kind)
        return table.set_column(position, new_name or name, array)

    return edit_table(change)


def in_other_order(table):
    kind = table.schema.field("one").type
    turned = pa.struct([kind.field(i) for i in (1, 0, 2)])
    places = pa.array(table["one"].to_pylist(), turned)
    return table.set_column(table.schema.get_field_index("one"), pa.field("one", turned), places)


def renamed(old, new):
    return edit_table(lambda t: t.rename_columns([new if n == old else n for n in t.schema.names]))


CASES.add_all(
    "R33", CorruptStoreError, "field|place is recorded|attribute",
    key_missing=edit_table(lambda table: table.drop_columns(["key"])),
    key_a_number=replaced("key", pa.int64(), range(5)),
    key_a_large_string=replaced("key", pa.large_string(), "abcde"),
    column_missing=edit_table(lambda table: table.drop_columns(["image"])),
    column_a_number=replaced("map", pa.int64(), range(5)),
    place_in_other_order=edit_table(in_other_order),
    two_fields_of_one_name=renamed("text", "ok"),
    attribute_with_odd_name=renamed("text", "a b"),
    attribute_without_name=renamed("text", ""),
    attribute_a_date=replaced("text", pa.date32()),
    attribute_a_map=replaced("text", pa.map_(pa.string(), pa.string())),
    attribute_a_view=replaced("text", pa.string_view()),
    attribute_a_null=replaced("text", pa.null()),
    attribute_an_empty_struct=replaced("text", pa.list_(pa.struct([]))),
    attribute_a_union=edit_table(lambda table: table.append_column("u", pa.UnionArray.from_sparse(
        pa.array([0] * 5, pa.int8()), [pa.array(range(5))]))),
)  # fmt: skip
CASES.add_all(
    "R34", CorruptStoreError, "the manifest says",
    samples_too_few=edit_fields(samples=4),
    samples_too_many=edit_fields(samples=2**31 - 1),
    index_without_rows=edit_table(lambda table: table.slice(0, 0)),
)  # fmt: skip


def with_nulls(name, part=None):
    """Let the third sample's place (or a part of it) be missing."""

    def change(table):
        position = table.schema.get_field_index(name)
        array = table[name].combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
        mask = pa.array([row == 2 for row in range(5)])
        if part is None:
            values = pa.array([None if row == 2 else v for row, v in enumerate(array.to_pylist())],
                              array.type)  # fmt: skip
        else:
            parts = [array.field(i) for i in range(array.type.num_fields)]
            number = array.type.get_field_index(part)
            if pa.types.is_fixed_size_list(parts[number].type):
                flat = parts[number].values.to_numpy()
                numbers = pa.array(flat, pa.int32(), mask=np.arange(len(flat)) == 4)
                size = parts[number].type.list_size
                parts[number] = pa.FixedSizeListArray.from_arrays(
                    numbers, type=pa.list_(array.type.field(number).type.value_field, size)
                )
            else:
                parts[number] = pa.compute.if_else(mask, None, parts[number])
            values = pa.StructArray.from_arrays(parts, fields=list(array.type))
        return table.set_column(position, pa.field(name, array.type), values)

    return edit_table(change)


CASES.add_all(
    "R35", CorruptStoreError, "missing|not a valid Arrow table",
    key_null=with_nulls("key"),
    place_null=with_nulls("one"),
    offset_null=with_nulls("one", "offset"),
    hash_null=with_nulls("image", "hash"),
    size_null=with_nulls("image", "shape"),
)  # fmt: skip
CASES.add_all(
    "R36", CorruptStoreError, "a key is empty or longer",
    key_empty=replaced("key", pa.string(), ["a", "b", "", "c", "d"]),
    key_too_long=replaced("key", pa.string(), ["a", "b", "x" * 4097, "c", "d"]),
)  # fmt: skip
CASES.add_all("R37", CorruptStoreError, "two samples have one key",
      key_twice=replaced("key", pa.string(), list("abcda")))  # fmt: skip


# --- places ---------------------------------------------------------------------------------


def place(column_name, row=2, **parts):
    return lambda path: craft.edit_place(path, column_name, row, **parts)


CASES.add_all(
    "R38", CorruptStoreError, "'img_2.jpg'.*lies outside the file",
    offset_behind_the_end=place("one", offset=2**40),
    offset_at_the_limit=place("one", offset=2**63 - 64),
    offset_negative=place("one", offset=-64),
    offset_in_the_meta_pages=place("one", offset=4096),
    nbytes_negative=place("tags", nbytes=-1),
    nbytes_most_negative=place("tags", nbytes=-(2**63)),
    nbytes_absurd=place("tags", nbytes=2**63 - 1),
    row_ends_behind_the_end=place("tags", nbytes=10**7),
)  # fmt: skip
CASES.add_all(
    "R39", CorruptStoreError, "'img_2.jpg'.*not aligned",
    small_row_off_64=lambda path: craft.edit_place(
        path, "one", 2, offset=craft.rows_of(path, "one")[2]["offset"] + 8),
    large_row_off_4096=lambda path: craft.edit_place(
        path, "map", 2, offset=craft.rows_of(path, "map")[2]["offset"] + 64),
)  # fmt: skip
CASES.add_all(
    "R40", CorruptStoreError, "'img_2.jpg'.*impossible shape",
    shape_negative=place("image", shape=[-30, -52, 3]),
    shape_of_another_column=place("map", shape=[96, 24]),
    shape_too_large_for_its_bytes=place("image", shape=[30, 53, 3]),
    shape_too_small_for_its_bytes=place("image", shape=[0, 0, 3]),
    shape_absurd=place("image", shape=[2**31 - 1, 2**31 - 1, 3]),
    shape_absurd_when_decoded=place("tags", shape=[2**31 - 1]),
    shape_empty_but_absurd=lambda path: (
        craft.edit_manifest(path, lambda r: r["columns"][0].update(shape=[None, None, 3])),
        craft.edit_place(path, "image", 2, nbytes=0, shape=[2**31 - 1, 0, 3]),
    ),
)  # fmt: skip
CASES.add_all(
    "R41", CorruptStoreError, "overlap",
    two_rows_in_one_place=lambda path: craft.edit_place(
        path, "one", 2, offset=craft.rows_of(path, "one")[1]["offset"]),
    row_inside_another_column=lambda path: craft.edit_place(
        path, "one", 2, offset=craft.rows_of(path, "image")[0]["offset"] + 64),
)  # fmt: skip


# --- rows -----------------------------------------------------------------------------------


def read(column_name):
    return lambda path: ocrstore.open(path)[column_name][2]


def stored_nbytes(column_name, difference):
    """Let a row end earlier or later than its stream."""

    def make(path):
        nbytes = craft.rows_of(path, column_name)[2]["nbytes"]
        craft.edit_place(path, column_name, 2, nbytes=nbytes + difference)

    return make


for name in ("tags", "fast", "block"):
    for label, spoil in {
        "short_row": place(name, shape=[101]),
        "long_row": place(name, shape=[103]),
        "absurd_row": place(name, shape=[10**8]),
        "truncated_stream": stored_nbytes(name, -1),
        "stream_with_a_byte_behind_it": stored_nbytes(name, 1),
    }.items():
        message = f"its {COLUMNS[name].codec} bytes cannot be decoded"
        CASES.append(Case("R42", f"{name}_{label}", spoil, CorruptStoreError, message, read(name)))


@pytest.mark.parametrize("case", CASES, ids=CASES.names)
def test_wrong_files_are_refused_with_a_remedy(case, tmp_path):
    """Each wrong file gives the right error, which names the file and says what to do."""
    check_refusal(case, tmp_path / "wrong.ocrs")
