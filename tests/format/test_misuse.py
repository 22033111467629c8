"""What a writer refuses: each mistake is named with sample, column and remedy; nothing is lost."""

from __future__ import annotations

import multiprocessing
import re

import lmdb
import numpy as np
import pyarrow as pa
import pytest

import ocrstore
from ocrstore.format import lmdb_writer
from ocrstore.format.lmdb_check import check_pages
from ocrstore.format.lmdb_reader import PageReader
from ocrstore.format.lmdb_update import Environment
from ocrstore.format.mapped_file import MappedFile

SPEC = {"a": ocrstore.Column("uint8", (2,)), "b": ocrstore.Column("float32", (None,))}
GOOD = {"a": np.zeros(2, np.uint8), "b": np.zeros(1, np.float32)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("complex64",), "cannot be stored"),
        (("nonsense",), "Unknown dtype"),
        (("uint8", 5), "must be a tuple"),
        (("uint8", (1,) * 9), "more than 8 dimensions"),
        (("uint8", (-1,)), "None or an int"),
        (("uint8", (True,)), "None or an int"),
        (("uint8", (2**40,)), "None or an int"),
        (("uint8", (2**16, 2**16)), "2 GiB"),
        (("uint8", (1,), "gzip"), "Unknown codec"),
        (("float32", (None, None, 3), "jpeg"), "holds pictures"),
    ],
)
def test_impossible_columns(arguments, message):
    """A column that cannot be is refused where it is described."""
    with pytest.raises(ocrstore.SchemaError, match=message):
        ocrstore.Column(*arguments)


@pytest.mark.parametrize(
    ("columns", "attributes", "message"),
    [
        ({"key": SPEC["a"]}, None, "is not `key`"),
        ({"a b": SPEC["a"]}, None, "letters, digits"),
        ({"x" * 64: SPEC["a"]}, None, "at most 63"),
        ({"a": "uint8"}, None, "expected ocrstore.Column"),
        (SPEC, {"a": pa.int8()}, "also the name of a column"),
        (SPEC, {"t": pa.timestamp("s")}, "cannot have the Arrow type"),
        (SPEC, {"t": "no type at all"}, "not a schema"),
        (SPEC, pa.schema([("t", pa.int8()), ("t", pa.int8())]), "Two attributes have one name"),
    ],
)
def test_impossible_schemas(tmp_path, columns, attributes, message):
    """Nothing is written for a schema that cannot be."""
    with pytest.raises(ocrstore.SchemaError, match=message):
        ocrstore.create(tmp_path / "a.ocrs", columns, attributes=attributes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "arrays", "message"),
    [
        ("", GOOD, "non-empty str"),
        (7, GOOD, "non-empty str"),
        ("\ud800", GOOD, "not valid Unicode"),
        ("x" * 5000, GOOD, "5000 bytes"),
        ("first", GOOD, "use replace"),
        ("k", {"a": GOOD["a"]}, "missing or unknown: ['b']"),
        ("k", {**GOOD, "c": 1}, "missing or unknown: ['c']"),
        ("k", {**GOOD, "a": np.zeros(2, np.int16)}, "sample 'k', column 'a': expected uint8"),
        ("k", {**GOOD, "a": np.zeros(3, np.uint8)}, "expected shape (2,), found (3,)"),
        ("k", {**GOOD, "a": ["x", "y"]}, "cannot be converted to a uint8 array"),
        ("k", {**GOOD, "b": ocrstore.Encoded(b"", (1,))}, "not a row of codec"),
        ("k", {**GOOD, "b": ocrstore.Encoded(b"", (1, 2))}, "expected shape (None,)"),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit(quick_path, key, arrays, message):
    """A refused sample leaves the writer as it was; the next ones are taken."""
    path = quick_path / "a.ocrs"
    with ocrstore.create(path, SPEC) as writer:
        writer.append("first", GOOD)
        with pytest.raises(ocrstore.SchemaError, match=re.escape(message)):
            writer.append(key, arrays)
        writer.append("last", {"a": [1, 2], "b": [0.5]})
        assert writer.keys == ("first", "last")
    assert ocrstore.open(path).keys == ("first", "last")
    assert ocrstore.verify(path).ok


@pytest.mark.parametrize(
    ("schema", "records", "message"),
    [
        ({"n": pa.int8()}, [{"n": 1}, {"n": 1000}], "sample '1': its attributes do not fit"),
        ({"n": pa.int8()}, [{"m": 1}], "unknown attribute 'm'"),
        (None, [{"n": 1}, {"n": object()}], "sample '1'"),
        (None, [{"n": 1}, {"n": [1]}], "do not fit together"),
        (None, [{"n n": 1}], "letters, digits"),
    ],
)
def test_attributes_that_do_not_fit(quick_path, schema, records, message):
    """Attributes of the wrong kind name their sample, and nothing is published."""
    path = quick_path / "a.ocrs"
    with (
        pytest.raises(ocrstore.SchemaError, match=re.escape(message)),
        ocrstore.create(path, {}, attributes=schema) as writer,
    ):
        for row, record in enumerate(records):
            writer.append(str(row), {}, attributes=record)
    assert list(quick_path.iterdir()) == []


def test_groups_that_disagree_about_attributes(quick_path):
    """Types that no schema can join are found when the groups are joined."""
    path = quick_path / "a.ocrs"
    with (
        pytest.raises(ocrstore.SchemaError, match="Give `attributes=` a schema"),
        ocrstore.create(path, {}, group_rows=1) as writer,
    ):
        writer.append("0", {}, attributes={"n": 1})
        writer.append("1", {}, attributes={"n": [1]})


def test_attributes_of_several_groups_are_joined(quick_path):
    """What one group does not have is None; integers and fractions join; arrays are taken."""
    path = quick_path / "a.ocrs"
    with ocrstore.create(path, {}, group_rows=1) as writer:
        writer.append("0", {}, attributes={"n": np.int16(1), "points": np.ones((2, 2))})
        writer.append("1", {}, attributes={"n": 0.5, "flat": np.arange(3), "none": None})
    store = ocrstore.open(path)
    assert store.attributes(0) == {
        "n": 1.0, "points": [[1, 1], [1, 1]], "flat": None, "none": None
    }  # fmt: skip
    assert store.attributes(1) == {"n": 0.5, "points": None, "flat": [0, 1, 2], "none": None}


@pytest.mark.parametrize("metadata", [{"a": object()}, {"a": float("nan")}, {"a": {1, 2}}])
def test_metadata_must_be_json(quick_path, metadata):
    """Metadata that JSON cannot hold is refused."""
    with pytest.raises(ocrstore.SchemaError, match="must be JSON"):
        ocrstore.create(quick_path / "a.ocrs", {}, metadata=metadata)


def test_changing_what_is_not_there(make_store):
    """Replacing and deleting need a sample; columns need arrays for all samples, and a name."""
    path = make_store(samples=3)
    with ocrstore.edit(path) as writer:
        for change in (writer.delete, lambda key: writer.replace(key, {})):
            with pytest.raises(ocrstore.UnknownSampleError, match="use append"):
                change("nobody")
    column = ocrstore.Column("int8")
    zeros = [np.int8(0)] * 3
    cases = [
        ("image", zeros, ocrstore.SchemaError, "the name is already used"),
        ("number", zeros, ocrstore.SchemaError, "the name is already used"),
        ("new", zeros[:2], ocrstore.SchemaError, "2 were given"),
        ("new", iter(zeros[:2]), ocrstore.SchemaError, "2 were given"),
        ("new", iter(zeros * 2), ocrstore.SchemaError, "more arrays"),
        ("new", {"s0": 0}, ocrstore.UnknownSampleError, "no array for sample 's1'"),
        ("new", dict.fromkeys(["s0", "s1", "s2", "s9"], 0), ocrstore.UnknownSampleError, "'s9'"),
    ]
    for name, arrays, error, message in cases:
        with pytest.raises(error, match=message):
            ocrstore.add_column(path, name, column, arrays)
    assert ocrstore.open(path).generation == 1 and ocrstore.verify(path).ok
    ocrstore.add_column(path, "new", column, {"s2": 2, "s0": 0, "s1": 1})
    assert ocrstore.open(path)["new"][:].tolist() == [0, 1, 2]


def test_a_closed_writer_says_so(make_store):
    """After the block, and in a forked child, a writer refuses."""
    path = make_store(samples=1)
    with ocrstore.edit(path) as writer:
        writer.delete("s0")
        if "fork" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("fork")
            child = context.Process(target=_must_refuse, args=(writer,))
            child.start()
            child.join()
            assert child.exitcode == 0
    writer.close()
    with pytest.raises(ocrstore.StoreClosedError, match="closed"):
        writer.delete("s0")
    assert len(ocrstore.open(path)) == 0


def _must_refuse(writer):
    with pytest.raises(ocrstore.StoreClosedError, match="forked"):
        writer.append("x", {})
    writer.abort()


def test_the_map_grows_with_the_file(make_store, monkeypatch):
    """An append larger than LMDB's map makes the map larger first."""
    monkeypatch.setattr("ocrstore.format.lmdb_update._MAP_STEP", 4096)
    monkeypatch.setattr("ocrstore.format.lmdb_update._SLACK_PAGES", 16)
    path = make_store(samples=2)
    with ocrstore.edit(path) as writer:
        for number in range(200):
            arrays = {
                "image": np.full((50, 60, 3), number, np.uint8),
                "tensor": np.full((64, 64, 3), number, np.uint8),
                "text": np.zeros(3, np.int16),
            }
            writer.append(f"n{number}", arrays, attributes={"number": number})
    store = ocrstore.open(path)
    assert len(store) == 202 and store["tensor"][201][0, 0, 0] == 199
    assert ocrstore.verify(path).ok


def test_a_key_is_never_written_twice(make_store):
    """The container refuses to put a second value under a key."""
    path = make_store(samples=1)
    environment = Environment(path)
    reader = PageReader(MappedFile(path).buffer, name="test")
    taken = next(iter(reader.keys_with(b"manifest/")))
    with pytest.raises(ocrstore.CorruptStoreError, match="exists already"):
        environment.commit({taken: bytes(5000)})
    environment.close()
    assert ocrstore.verify(path).ok


def test_large_trees_and_free_lists_are_sound(quick_path, monkeypatch):
    """Thousands of keys and a free list in several records give a file that liblmdb accepts."""
    monkeypatch.setattr(lmdb_writer, "_FREE_CHUNK", 300)
    path = quick_path / "a.mdb"
    path.touch()
    for count in (0, 1, 50, 51, 2300):
        file = lmdb_writer.LmdbWriter(path)
        keys = [b"k%07d" % number for number in range(count)]
        file.commit({key: bytes(4080) for key in keys})
        file.commit({}, deletes=keys[1::2])
        file.finish()
        file.close()
        environment = lmdb.open(str(path), subdir=False, lock=False, readonly=True)
        with environment.begin() as transaction:
            assert [key for key, _ in transaction.cursor()] == keys[::2]
        environment.close()
        census = check_pages(PageReader(MappedFile(path).buffer, name="test"))
        assert census.problems == [] and census.free_pages == len(keys[1::2])
        verifier = pytest.importorskip("lmdb.verify")
        assert verifier.verify(str(path)) == []
