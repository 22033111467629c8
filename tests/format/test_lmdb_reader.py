"""The page reader finds in any LMDB file what liblmdb finds there, and the census finds damage."""

from __future__ import annotations

import struct

import pytest

from ocrstore.errors import CorruptStoreError, NotAStoreError, OCRStoreError
from ocrstore.format.lmdb_check import check_pages
from ocrstore.format.lmdb_reader import PageReader
from ocrstore.format.lmdb_writer import LmdbWriter
from ocrstore.format.mapped_file import MappedFile
from tools import crafting as craft

KEYS = [b"extent/%08d/a-column-with-a-rather-long-name" % number for number in range(3000)]


def by_liblmdb(path):
    """Write a tree of several levels, then change and delete, so that there are free pages."""
    with craft.environment(path) as env:
        for start in range(0, 3000, 500):
            with env.begin(write=True) as transaction:
                for key in KEYS[start : start + 500]:
                    transaction.put(key, key.ljust(4080, b"\0"))
        with env.begin(write=True) as transaction:
            for key in KEYS[::3]:
                transaction.delete(key)


def by_ocrstore(path):
    """Write the same keys front to back, and forget some."""
    path.touch()
    file = LmdbWriter(path)
    file.commit({key: key.ljust(4080, b"\0") for key in KEYS})
    file.commit({}, deletes=KEYS[::3])
    file.finish()
    file.close()


@pytest.mark.parametrize("write", [by_liblmdb, by_ocrstore])
def test_agrees_with_liblmdb(write, tmp_path):
    """Both writers' files, read by both readers, hold the same keys and values."""
    path = tmp_path / "tree.mdb"
    write(path)
    with craft.environment(path) as env, env.begin() as transaction:
        wanted = [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
        info = env.stat()
    reader = PageReader(MappedFile(path).buffer, name="tree")
    assert reader.meta.main.depth == info["depth"] > 1
    found = [(key, bytes(reader.view(reader.find(key)))) for key in reader.keys_with(b"")]
    assert found == wanted
    assert len(found) == 2000
    assert reader.last()[0] == wanted[-1][0]
    for key, value in wanted[::50]:
        assert bytes(reader.view(reader.find(key))) == value
    for key in (KEYS[0], b"", b"zzz", KEYS[3] + b"0"):
        assert reader.find(key) is None
    assert list(reader.keys_with(b"extent/000012")) == [
        key for key, _ in wanted if key.startswith(b"extent/000012")
    ]
    census = check_pages(reader)
    assert census.problems == []
    assert census.free_pages >= 1000
    assert len(census.values) == 2000


def test_empty_database(tmp_path):
    """A database without keys has no last key, no items, and nothing to find."""
    path = tmp_path / "empty.mdb"
    craft.environment(path).close()
    reader = PageReader(MappedFile(path).buffer, name="empty")
    assert reader.last() is None
    assert reader.find(b"a") is None
    assert list(reader.keys_with(b"")) == []


def census_of(path, pages, *, depth):
    """Count a crafted file."""
    craft.tree_file(path, pages, depth=depth)
    return " ".join(check_pages(PageReader(MappedFile(path).buffer, name="x")).problems)


def test_census_of_crafted_trees(tmp_path):
    """Trees that lead astray are found by the census, whatever they are used for."""
    path = tmp_path / "tree.mdb"
    leaf = craft.leaf_page
    branch = craft.branch_page
    small = [(b"a", b"value")]
    assert "inside a tree page" in census_of(path, [leaf(2, small)], depth=1)
    assert "not as deep" in census_of(path, [leaf(2, small)], depth=2)
    assert "deeper than it records" in census_of(
        path, [branch(2, [(b"", 3)]), leaf(3, small)], depth=1
    )
    page = bytearray(leaf(3, [(b"a", struct.pack("<Q", 4))]))
    pointer = struct.unpack_from("<H", page, 16)[0]
    struct.pack_into("<HHH", page, pointer, 4080, 0, 1)
    value = struct.pack("<QHHI", 4, 0, 4, 1).ljust(craft.PAGE, b"\0")
    twice = [branch(2, [(b"", 3), (b"b", 3)]), bytes(page), value]
    assert "page 3 belongs to the main tree and to" in census_of(path, twice, depth=2)
    swapped = [branch(2, [(b"", 3), (b"m", 4)]), leaf(3, [(b"z", b"1")]), leaf(4, [(b"n", b"1")])]
    assert "a key of another page" in census_of(path, swapped, depth=2)


def free_file(path, data: bytes, *, key: bytes = struct.pack("<Q", 1), flags: int = 0):
    """Write a file whose free list has one record."""
    page = bytearray(craft.leaf_page(2, [(key, data)]))
    pointer = struct.unpack_from("<H", page, 16)[0]
    struct.pack_into("<H", page, pointer + 4, flags)
    craft.tree_file(path, [bytes(page)], depth=0)
    for slot in (0, 1):
        start = slot * craft.PAGE
        craft.patch(path, start + 46, struct.pack("<H5Q", 1, 0, 1, 0, 1, 2))
        craft.patch(path, start + 96, struct.pack("<5Q", 0, 0, 0, 0, 2**64 - 1))
    return " ".join(check_pages(PageReader(MappedFile(path).buffer, name="x")).problems)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (struct.pack("<Q", 0), {}, ""),
        (b"", {}, "damaged"),
        (struct.pack("<QQ", 2, 5), {}, "damaged"),
        (struct.pack("<Q", 2**63), {}, "damaged"),
        (struct.pack("<QQQ", 2, 5, 6), {}, "not in order"),
        (struct.pack("<QQ", 1, 2), {}, "free and in use"),
        (struct.pack("<QQ", 1, 9), {}, "behind the last one"),
        (struct.pack("<QQ", 1, 0), {}, "a meta page"),
        (struct.pack("<Q", 0), {"key": struct.pack("<Q", 99)}, "damaged"),
        (struct.pack("<Q", 0), {"key": b"abc"}, "damaged"),
        (struct.pack("<Q", 0), {"flags": 2}, "unknown kind"),
    ],
)
def test_census_of_crafted_free_lists(data, options, words, tmp_path):
    """A free list is believed only if it can be true: liblmdb writes to the pages it names."""
    found = free_file(tmp_path / "free.mdb", data, **options)
    assert words in found
    assert bool(words) == bool(found)


def test_meta_pages_must_follow_each_other(tmp_path):
    """Two meta pages are of consecutive transactions, each in its place."""
    path = tmp_path / "metas.mdb"
    page = craft.leaf_page(2, [(b"a", b"v")])
    for transactions, words in (((1, 1), "of the other page"), ((0, 7), "do not follow")):
        metas = [
            craft.meta_page(slot, root=2, depth=1, last=2, transaction=transaction)
            for slot, transaction in enumerate(transactions)
        ]
        path.write_bytes(b"".join([*metas, page]))
        problems = check_pages(PageReader(memoryview(path.read_bytes()), name="x")).problems
        assert any(words in problem for problem in problems), problems
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 32, 12345)
    problems = check_pages(PageReader(memoryview(data), name="x")).problems
    assert any("map size" in problem for problem in problems)


def test_chains_without_an_end(tmp_path):
    """Walks over a chain of pages stop at the greatest depth there is."""
    path = tmp_path / "chain.mdb"
    craft.tree_file(path, [craft.branch_page(n, [(b"", n + 1)]) for n in range(2, 60)], depth=32)
    reader = PageReader(memoryview(path.read_bytes()), name="x")
    for walk in (reader.last, lambda: reader.find(b"a"), lambda: list(reader.keys_with(b""))):
        with pytest.raises(CorruptStoreError, match="deeper than 32"):
            walk()


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("nul\0byte", NotAStoreError, "not a path"),
        ("x" * 5000, OCRStoreError, "cannot be opened"),
        ("/dev/null/inside", OCRStoreError, "cannot be opened"),
    ],
)
def test_paths_that_are_none(path, error, words):
    """Whatever the system says of a path becomes an error with the path in it."""
    with pytest.raises(error, match=words):
        MappedFile(path)
