# ruff: noqa: D103  # the names of the functions that spoil files say what they do
"""What verify must report though opening does not see it: rules R43 to R46 of docs/FORMAT.md 11."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import xxhash

import ocrstore
from ocrstore import CorruptStoreError
from tests.format.rejecting import (
    write_store,
)
from tools import crafting as craft


def set_meta(path, offset, data):
    craft.patch(path, craft.newest_meta(path)["start"] + offset, data)


def extent(path, column_name):
    """Return key, file offset and bytes of a column's first extent."""
    key = b"extent/00000000/" + column_name.encode()
    value = craft.get(path, key)
    return key, path.read_bytes().index(value), bytearray(value)


def rehash(value):
    """Give an extent's header and directory their right hash."""
    capacity = struct.unpack_from("<I", value, 16)[0]
    digest = xxhash.xxh3_64_intdigest(bytes(value[:104]) + bytes(value[112 : 112 + 24 * capacity]))
    struct.pack_into("<Q", value, 104, digest)


def spoil_extent(kind, position, number, column_name="one"):
    """Change one number of an extent, with a right hash."""

    def make(path):
        _, offset, value = extent(path, column_name)
        struct.pack_into(f"<{kind}", value, position, number)
        rehash(value)
        craft.patch(path, offset, bytes(value))

    return make


def flip(column_name, position, bit=1):
    """Flip a bit of an extent, without a new hash."""

    def make(path):
        _, offset, value = extent(path, column_name)
        craft.patch(path, offset + position, bytes([value[position] ^ bit]))

    return make


def flip_row(path):
    position = craft.rows_of(path, "image")[3]["offset"] + 77
    craft.patch(path, position, bytes([path.read_bytes()[position] ^ 0x10]))


def shorten_extent(path):
    craft.put(path, extent(path, "one")[0], bytes(5000))


def other_hash_in_the_index(path):
    craft.edit_place(path, "one", 2, hash=5)


def key_in_its_place(key):
    """Add a record that a published store does not have."""
    return lambda path: craft.put(path, key, bytes(5000))


VERIFY = {
    ("R43", "magic"): (flip("one", 0), "starts with"),
    ("R43", "group"): (spoil_extent("I", 8, 7), "says it is column 'one' of group 7"),
    ("R43", "rows"): (spoil_extent("I", 12, 9999), "impossible sizes"),
    ("R43", "capacity"): (flip("one", 19, 0x80), "impossible sizes"),
    ("R43", "reserved"): (spoil_extent("I", 20, 1), "says it is column"),
    ("R43", "end"): (spoil_extent("Q", 24, 2**63), "impossible sizes"),
    ("R43", "name"): (spoil_extent("B", 41, ord("0")), "expected column 'one'"),
    ("R43", "name length"): (spoil_extent("B", 40, 255), "expected column 'one'"),
    ("R43", "hash"): (flip("one", 105), "does not match its hash"),
    ("R43", "directory"): (flip("one", 120), "does not match its hash"),
    ("R43", "row outside"): (spoil_extent("Q", 112, 2**63), "overlap or leave"),
    ("R43", "rows overlap"): (spoil_extent("Q", 120, 100), "overlap or leave"),
    ("R43", "entry behind the last"): (spoil_extent("Q", 112 + 24 * 5, 1), "not zero"),
    ("R43", "all"): (shorten_extent, "starts with"),
    ("R44", "row"): (flip_row, "do not match their hash"),
    ("R44", "padding"): (flip("one", 4070), "is not zero"),
    ("R44", "index"): (other_hash_in_the_index, "different rows"),
    ("R45", "page count"): (lambda p: set_meta(p, 112, b"\x63"), "overflow pages"),
    ("R45", "last page"): (lambda p: set_meta(p, 136, b"\x60"), "reachable"),
    ("R45", "transaction"): (lambda p: set_meta(p, 144, b"\x77"), "transaction"),
    ("R46", "group record"): (key_in_its_place(b"group/00000000"), "unknown record"),
    ("R46", "unknown record"): (key_in_its_place(b"aaa"), "unknown record"),
    ("R46", "index alone"): (key_in_its_place(b"index/00000009"), "no manifest"),
}  # fmt: skip


@pytest.mark.parametrize("rule", VERIFY, ids=" ".join)
def test_damage_behind_the_index_is_reported(rule, tmp_path):
    """What opening does not read, verify reports, with sample and column where there is one."""
    path = tmp_path / "wrong.ocrs"
    write_store(path)
    make, words = VERIFY[rule]
    make(path)
    result = ocrstore.verify(path)
    assert any(re.search(words, finding.message) for finding in result.findings), result.findings
    if rule == ("R44", "row"):
        finding = result.findings[0]
        assert (finding.sample, finding.column) == ("img_3.jpg", "image")


@pytest.mark.parametrize("kind", ["manifest", "index"])
@pytest.mark.parametrize("offset", [0, 20, 70])
def test_damage_of_one_generation_leaves_the_others(kind, offset, tmp_path):
    """An older index or manifest that is damaged, or its page header, is lost alone (12)."""
    path = tmp_path / "older.ocrs"
    path.write_bytes((Path(__file__).parents[1] / "golden" / "format-1.0.ocrs").read_bytes())
    data = path.read_bytes()
    page = data.index(craft.get(path, f"{kind}/00000001".encode())) - 16
    craft.patch(path, page + offset, bytes([data[page + offset] ^ 4]))
    assert ocrstore.open(path).generations == [1, 2, 3]
    assert len(ocrstore.open(path, generation=2)) == 4
    with pytest.raises(CorruptStoreError):
        ocrstore.open(path, generation=1)
    result = ocrstore.verify(path)
    assert result.findings
    assert result.generations == [2, 3]


@pytest.mark.parametrize("page", [0, 1])
def test_meta_pages_are_never_free(page, tmp_path):
    """A free list that offers a meta page to liblmdb is found before liblmdb is let near it."""
    path = tmp_path / "free.ocrs"
    path.write_bytes((Path(__file__).parents[1] / "golden" / "format-1.0.ocrs").read_bytes())
    data = path.read_bytes()
    root = struct.unpack_from("<Q", data, craft.newest_meta(path)["start"] + 80)[0] * craft.PAGE
    numbers = root + struct.unpack_from("<H", data, root + 16)[0] + 16
    count = struct.unpack_from("<Q", data, numbers)[0]
    craft.patch(path, numbers + 8 * count, struct.pack("<Q", page))
    findings = [finding.message for finding in ocrstore.verify(path).findings]
    assert any("free list" in message for message in findings), findings
    with pytest.raises(CorruptStoreError, match="not safe to write"):
        ocrstore.edit(path)


def test_sound_store_has_no_findings(tmp_path):
    """The table above starts from a store in which verify finds nothing."""
    path = tmp_path / "good.ocrs"
    write_store(path)
    assert ocrstore.verify(path).findings == []
