"""The look at an Arrow file before Arrow reads it, on files crafted number by number."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from ocrstore.errors import CorruptStoreError
from ocrstore.format.arrowfile import check_arrow_file


def flat_table(fields: list[bytes | None]) -> tuple[bytes, bytes]:
    """Return vtable and inline part of a Flatbuffers table with these inline fields."""
    offsets, inline = [], b""
    for field in fields:
        offsets.append(4 + len(inline) if field is not None else 0)
        inline += field or b""
    vtable = struct.pack(f"<HH{len(fields)}H", 4 + 2 * len(fields), 4 + len(inline), *offsets)
    return vtable, inline


def with_vectors(scalars: dict[int, bytes], vectors: dict[int, list[bytes]], count: int) -> bytes:
    """Return a root table whose fields are scalars and vectors of structs."""
    fields = [scalars.get(n, bytes(4) if n in vectors else None) for n in range(count)]
    vtable, inline = flat_table(fields)
    table = 4 + len(vtable)
    data = bytearray(struct.pack("<I", table) + vtable + struct.pack("<i", len(vtable)) + inline)
    for number, items in vectors.items():
        place = table + struct.unpack_from("<H", vtable, 4 + 2 * number)[0]
        struct.pack_into("<I", data, place, len(data) - place)
        data += struct.pack("<I", len(items)) + b"".join(items)
    return bytes(data)


def message(*, kind=3, body=64, buffers=((0, 64),), compressed=False, header=True) -> bytes:
    """Return the metadata of a record batch message, with its prefix."""
    scalars = {3: bytes(4)} if compressed else {}
    pairs = [struct.pack("<qq", *pair) for pair in buffers]
    batch = with_vectors(scalars, {2: pairs}, 4)
    fields = [None, bytes([kind]), bytes(4) if header else None, struct.pack("<q", body)]
    vtable, inline = flat_table(fields)
    table = 4 + len(vtable)
    data = bytearray(struct.pack("<I", table) + vtable + struct.pack("<i", len(vtable)) + inline)
    if header:
        place = table + struct.unpack_from("<H", vtable, 8)[0]
        root = len(data) + struct.unpack_from("<I", batch)[0]
        struct.pack_into("<I", data, place, root - place)
    flat = bytes(data) + batch
    return struct.pack("<Ii", 0xFFFFFFFF, len(flat)) + flat


def arrow_file(metadata=None, *, blocks=None, dictionaries=(), tail=None) -> bytes:
    """Return a file with one record batch of 64 bytes, and a footer that says so."""
    metadata = message() if metadata is None else metadata
    data = b"ARROW1\0\0" + metadata + bytes(64)
    if blocks is None:
        blocks = [(8, len(metadata), 64)]
    packed = [struct.pack("<qi4xq", *block) for block in blocks]
    others = [struct.pack("<qi4xq", *block) for block in dictionaries]
    footer = with_vectors({}, {2: others, 3: packed}, 4)
    end = struct.pack("<i6s", len(footer), b"ARROW1") if tail is None else tail
    return data + footer + end


LENGTH = len(message())
GOOD = arrow_file()


def check(data: bytes) -> None:
    """Look at a file."""
    check_arrow_file(memoryview(data), where="crafted")


def test_crafted_and_real_files_pass():
    """What has neither compression nor a second batch is left to Arrow."""
    check(GOOD)
    check(arrow_file(blocks=[]))
    for table in (pa.table({"a": [1, 2]}), pa.table({"a": pa.array([], pa.string())})):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        check(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not start"),
        (b"ARROW2" + GOOD[6:], "does not start"),
        (GOOD[:-1] + b"2", "its end"),
        (arrow_file(tail=struct.pack("<i6s", 0, b"ARROW1")), "its end"),
        (arrow_file(tail=struct.pack("<i6s", -8, b"ARROW1")), "its end"),
        (arrow_file(tail=struct.pack("<i6s", 2**31 - 1, b"ARROW1")), "its end"),
        (arrow_file(dictionaries=[(8, 16, 0)]), "dictionaries"),
        (arrow_file(blocks=[(8, LENGTH, 64)] * 2), "more than one"),
        (arrow_file(blocks=[(0, LENGTH, 64)]), "outside"),
        (arrow_file(blocks=[(-8, LENGTH, 64)]), "outside"),
        (arrow_file(blocks=[(8, 4, 64)]), "outside"),
        (arrow_file(blocks=[(8, LENGTH, -1)]), "outside"),
        (arrow_file(blocks=[(8, LENGTH, 65)]), "outside"),
        (arrow_file(blocks=[(8, LENGTH, 2**63 - 1)]), "outside"),
        (arrow_file(blocks=[(2**62, LENGTH, 0)]), "outside"),
        (arrow_file(b"\0" * 64), "no proper header"),
        (arrow_file(struct.pack("<Ii", 0xFFFFFFFF, 2**31 - 1) + bytes(60)), "no proper header"),
        (arrow_file(struct.pack("<Ii", 0xFFFFFFFF, -1) + bytes(60)), "no proper header"),
        (arrow_file(message(kind=2)), "something else"),
        (arrow_file(message(header=False)), "something else"),
        (arrow_file(message(body=128)), "not as long"),
        (arrow_file(message(compressed=True)), "compressed"),
        (arrow_file(message(buffers=[(0, 65)])), "a buffer lies outside"),
        (arrow_file(message(buffers=[(64, 1)])), "a buffer lies outside"),
        (arrow_file(message(buffers=[(-1, 1)])), "a buffer lies outside"),
        (arrow_file(message(buffers=[(0, -1)])), "a buffer lies outside"),
        (arrow_file(message(buffers=[(2**63 - 1, 2**63 - 1)])), "a buffer lies outside"),
    ],
)
def test_others_are_refused(data, words):
    """Each number that could lead outside the file is checked."""
    with pytest.raises(CorruptStoreError, match=words):
        check(data)


def test_every_number_of_the_footer():
    """No value of any four bytes of the Flatbuffers leads to another error, or to a loop."""
    start = GOOD.rindex(b"ARROW1") - 4 - struct.unpack_from("<i", GOOD, len(GOOD) - 10)[0]
    for position in [*range(8, 8 + LENGTH - 3), *range(start, len(GOOD) - 13)]:
        for number in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(GOOD)):
            data = bytearray(GOOD)
            struct.pack_into("<I", data, position, number)
            try:
                check(bytes(data))
            except CorruptStoreError as exc:
                assert "crafted" in str(exc)
