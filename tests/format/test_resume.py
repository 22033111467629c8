"""Changes in place that were begun and not published: readers do not see them, the next run does.

Killing at every point is tests/test_crash.py; here is what is found afterwards.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import struct

import lmdb
import numpy as np
import pyarrow as pa
import pytest
import xxhash

import ocrstore
from ocrstore.format import lmdb_update
from ocrstore.format.column_writer import ColumnWriter
from ocrstore.format.lmdb_update import drop_unfinished
from ocrstore.format.publish import partial_path
from ocrstore.format.resume import find_unfinished

SPEC = {"a": ocrstore.Column("uint8", (5000,)), "b": ocrstore.Column("int16", (None,), "zstd")}
EXTRA = {"view/x": ocrstore.Column("uint8", (6000,))}
ENGINE = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


def row(number):
    """The arrays of a sample."""
    return {"a": np.full(5000, number, np.uint8), "b": np.arange(number, dtype=np.int16)}


@pytest.fixture
def path(quick_path):
    """A store of ten samples."""
    path = quick_path / "store.ocrs"
    with ocrstore.create(path, SPEC) as writer:
        for number in range(10):
            writer.append(f"s{number}", row(number), attributes={"number": number})
    return path


def change(path, *, stop=None, token="work", **options):
    """Replace s5 to s9 and append up to s21, or give up before a sample; say what was written."""
    written = []
    with ocrstore.edit(path, resume=token, group_rows=4, **options) as writer:
        done = set(writer.resumed_attributes()["key"].to_pylist())
        for number in range(5, 22):
            if number == stop:
                writer.abort()
                return written
            if f"s{number}" not in done:
                write = writer.replace if f"s{number}" in writer else writer.append
                write(f"s{number}", row(100 + number), attributes={"number": -number})
                written.append(number)
        writer.delete("s0")
    return written


def add(path, *, stop=None, token="work"):
    """Add a column, or give up before a sample; say how many samples were found done."""
    with ColumnWriter(path, EXTRA, resume=token, group_rows=4) as writer:
        for number in range(writer.resumed, len(writer.keys)):
            if number == stop:
                writer.abort()
                break
            array = np.full(6000, number, np.uint8)
            writer.add({"view/x": array}, remarks=[f"about {number}"] * (number % 2))
    return writer.resumed


def whole(path):
    """The fingerprint and history counts of the same change in one go."""
    copy = path.with_name("whole.ocrs")
    shutil.copy(path, copy)
    change(copy, token=None)
    with ocrstore.open(copy) as store:
        found = store.fingerprint, counts(store)
    copy.unlink()
    return found


def counts(store):
    """What the history says of the newest generation."""
    return {k: v for k, v in store.history[-1].items() if k not in ("at", "by")}


def names(path):
    """All files beside a store, and itself."""
    return sorted(entry.name for entry in path.parent.iterdir())


def test_what_is_done_is_not_done_again(path):
    """Whole row groups are taken up, and the result is that of a change in one go."""
    expected = whole(path)
    assert change(path, stop=18) == list(range(5, 18))  # three groups and one sample
    assert change(path, stop=21) == list(range(17, 21))  # interrupted once more
    assert change(path) == [21]
    assert names(path) == ["store.ocrs"]
    with ocrstore.open(path) as store:
        assert (store.fingerprint, counts(store)) == expected
        assert all((store["a"][store.row(f"s{n}")] == 100 + n).all() for n in range(5, 22))
        assert store.keys == tuple(f"s{n}" for n in range(1, 22)) and store.generation == 2
    assert ocrstore.verify(path).findings == []


def test_readers_see_the_published_generation(path):
    """With unfinished work in it a store opens, verifies and has the fingerprint it had."""
    before = ocrstore.open(path)
    change(path, stop=18)
    store = ocrstore.open(path)
    assert (store.generation, store.fingerprint) == (1, before.fingerprint)
    assert store.keys == before.keys and not before.refresh()
    assert all((store["a"][n] == n).all() for n in range(10))
    result = ocrstore.verify(path)
    assert result.ok and any("6 extents" in note and "resumes" in note for note in result.notes)
    found = find_unfinished(path)
    assert found.in_place and not found.obstacle and found.samples == 12
    assert found.nbytes > 12 * 5000 and found.columns == ("a", "b")


def test_columns_are_resumed(path):
    """A column that is being added goes on behind the samples that have it, and their remarks."""
    expected = path.with_name("whole.ocrs")
    shutil.copy(path, expected)
    assert add(expected, token=None) == 0
    assert add(path, stop=9) == 0
    assert ocrstore.verify(path).ok and list(ocrstore.open(path).columns) == ["a", "b"]
    with ColumnWriter(path, EXTRA, resume="work") as writer:
        assert writer.resumed == 8 and writer.keys[8] == "s8"
        assert writer.resumed_remarks == {
            f"s{n}": [f"about {n}"] if n % 2 else [] for n in range(8)
        }
        for number in (8, 9):
            writer.add({"view/x": np.full(6000, number, np.uint8)})
    store = ocrstore.open(path)
    assert store.fingerprint == ocrstore.open(expected).fingerprint
    assert counts(store) == counts(ocrstore.open(expected))
    assert ocrstore.verify(path).ok and names(path) == ["store.ocrs", "whole.ocrs"]


@pytest.mark.parametrize(
    "name", ["remarks", "remarks_", "z"]
)  # remarks are attributes of the journal's records; a column may have that name
def test_columns_of_any_name_are_resumed(path, name):
    """What the journal notes beside the columns gets in the way of none of them."""
    columns = {name: ocrstore.Column("int8"), "remarks": ocrstore.Column("int8")}
    for start, stop in ((0, 7), (4, 10)):
        with ColumnWriter(path, columns, resume="work", group_rows=4) as writer:
            assert writer.resumed == start
            for number in range(start, stop):
                writer.add(dict.fromkeys(columns, np.int8(number)), remarks=["x"])
            if stop < 10:
                writer.abort()
    assert [int(value) for value in ocrstore.open(path)[name]] == list(range(10))


def test_nothing_stays_beside_a_store_without_a_whole_group(path):
    """Given up before the first row group: nothing could be resumed, and nothing is kept."""
    assert change(path, stop=8) == [5, 6, 7]
    assert add(path, stop=2) == 0
    assert names(path) == ["store.ocrs"] and find_unfinished(path) is None


@pytest.mark.parametrize("other", ["token", "columns", "create"])
def test_other_work_starts_again(path, other):
    """What another work left is neither used nor kept."""
    fingerprint, _ = whole(path)
    change(path, stop=18, token="other" if other != "columns" else "work")
    if other == "token":
        assert change(path) == list(range(5, 22))
        assert ocrstore.open(path).fingerprint == fingerprint
    elif other == "columns":
        assert add(path) == 0
        assert ocrstore.open(path)["view/x"][9][0] == 9
    else:
        with ocrstore.create(path, SPEC, overwrite=True, resume="other") as writer:
            assert writer.resumed == 0
            writer.append("only", row(1))
        assert ocrstore.open(path).keys == ("only",)
    result = ocrstore.verify(path)
    assert result.ok and not any("extents" in note for note in result.notes)
    assert names(path) == ["store.ocrs"]


def test_a_store_that_changed_since(path):
    """Work on an older generation is not gone on with; it is said why."""
    change(path, stop=18)
    with ocrstore.edit(path) as writer:
        writer.delete("s9")
    found = find_unfinished(path)
    assert "generation 2 now, 1 when the work began" in found.obstacle and found.samples == 12
    assert change(path) == list(range(5, 22))
    assert ocrstore.verify(path).ok and names(path) == ["store.ocrs"]


def test_a_writer_that_gave_up_has_freed_it(path):
    """Another writer frees what it finds even if it publishes nothing; the journal is no lie."""
    change(path, stop=18)
    ocrstore.edit(path).abort()
    assert "freed" in find_unfinished(path).obstacle
    assert change(path) == list(range(5, 22))
    assert ocrstore.verify(path).ok and names(path) == ["store.ocrs"]


def test_another_store_in_its_place(path):
    """A journal beside a store that it is not of is not believed, though the generation fits."""
    change(path, stop=18)
    with ocrstore.create(path.with_name("new.ocrs"), SPEC) as writer:
        for number in range(10):
            writer.append(f"s{number}", row(number + 1), attributes={"number": number})
    path.with_name("new.ocrs").replace(path)
    assert "changed" in find_unfinished(path).obstacle
    assert change(path) == list(range(5, 22))
    assert ocrstore.verify(path).ok and names(path) == ["store.ocrs"]


@pytest.mark.parametrize(
    ("place", "left"),
    [
        ("record", 0),
        ("second record", 4),
        ("cut", 8),
        ("garbage", 0),
        ("empty", 0),
        ("missing", 0),
        ("row", 4),
        ("directory", 4),
    ],
)
def test_what_is_damaged_is_made_again(path, place, left):
    """Whatever happened to the journal or to the extents: what is sound is used, no more."""
    fingerprint, _ = whole(path)
    change(path, stop=18)
    partial = partial_path(path)
    data = partial.read_bytes()
    second = data.index(b"OCRSGRP1", data.index(b"OCRSGRP1") + 1)
    damaged = {
        "record": data.replace(b"OCRSGRP1", b"OCRSGRP2"),
        "second record": data[: second + 60] + b"\xff" + data[second + 61 :],
        "cut": data[:-4096],
        "garbage": os.urandom(20_000),
        "empty": b"",
    }
    if place == "missing":
        partial.unlink()
    elif place in damaged:
        partial.write_bytes(damaged[place])
    else:
        store = path.read_bytes()
        sample = 100 + 10  # the second of the second group
        at = store.index(bytes([sample]) * 5000) + 9
        if place == "directory":
            at = store.rindex(b"OCRSEXT1", 0, at) + 130
        path.write_bytes(store[:at] + b"\xff" + store[at + 1 :])
    assert len(change(path)) == 17 - left
    assert ocrstore.open(path).fingerprint == fingerprint
    assert ocrstore.verify(path).ok and names(path) == ["store.ocrs"]


def test_a_journal_of_samples_in_another_order_is_refused(path):
    """Columns are added row by row: a journal that someone made of other rows is an error."""
    add(path, stop=9)
    partial = partial_path(path)
    data = bytearray(partial.read_bytes())
    start = data.index(b"OCRSGRP1")
    (nbytes,) = struct.unpack_from("<Q", data, start + 8)
    payload = bytes(data[start + 48 : start + 48 + nbytes]).replace(b"s0s1s2s3", b"s1s0s2s3")
    data[start + 48 : start + 48 + nbytes] = payload
    struct.pack_into("<Q", data, start + 16, xxhash.xxh3_64_intdigest(payload))
    struct.pack_into("<Q", data, start + 40, xxhash.xxh3_64_intdigest(data[start : start + 40]))
    partial.write_bytes(data)
    with pytest.raises(ocrstore.CorruptStoreError, match=r"another order.*compact"):
        add(path)
    ocrstore.compact(path)
    assert add(path) == 0 and names(path) == ["store.ocrs"]


def test_killed_just_behind_the_publication(path, monkeypatch):
    """A journal whose work is published is no unfinished work, and goes with the next run."""
    change(path, stop=18)
    partial = partial_path(path)
    kept = partial.read_bytes()
    change(path)
    partial.write_bytes(kept)
    assert find_unfinished(path) is None
    drop_unfinished(path, if_useless=True)
    assert names(path) == ["store.ocrs"] and ocrstore.open(path).generation == 2
    partial.write_bytes(kept)
    with ocrstore.edit(path, resume="work") as writer:
        assert writer.resumed == 0
    assert names(path) == ["store.ocrs"] and ocrstore.open(path).generation == 2


def test_compact_drops_it(path):
    """Compaction copies what is published, and nothing else stays."""
    fingerprint = ocrstore.open(path).fingerprint
    size = path.stat().st_size
    change(path, stop=18)
    ocrstore.compact(path)
    assert names(path) == ["store.ocrs"] and path.stat().st_size <= size
    assert ocrstore.open(path).fingerprint == fingerprint
    assert find_unfinished(path) is None and ocrstore.verify(path).notes == []


def test_dropping(path):
    """Dropped work is gone and its pages are free; useful work is dropped on demand only."""
    change(path, stop=18)
    drop_unfinished(path, if_useless=True)
    assert find_unfinished(path).samples == 12
    drop_unfinished(path)
    drop_unfinished(path)
    result = ocrstore.verify(path)
    assert result.ok and result.dead_nbytes > 12 * 5000 and names(path) == ["store.ocrs"]
    assert change(path) == list(range(5, 22))


def test_unfinished_new_stores_are_found_too(path):
    """The hidden file of a new store, whether the target is there or not."""
    for target in (path, path.with_name("new.ocrs")):
        writer = ocrstore.create(target, SPEC, overwrite=True, resume="new", group_rows=4)
        for number in range(6):
            writer.append(f"k{number}", row(number))
        writer.abort()
        found = find_unfinished(target)
        assert (found.samples, found.in_place, found.obstacle) == (4, False, "")
        assert found.token == "new"
        assert json.loads(json.dumps(found.to_json()))["columns"] == ["a", "b"]
        drop_unfinished(target)
        assert find_unfinished(target) is None
    assert names(path) == ["store.ocrs"]


def test_a_build_that_could_not_begin_removes_nothing(path):
    """A writer that is refused because another is at work leaves unfinished work where it is."""
    change(path, stop=18)
    held = ocrstore.edit(path.with_name("store.ocrs"))
    # the writer that holds the store has freed the row groups; the journal is not its own
    with pytest.raises(ocrstore.StoreBusyError):
        ocrstore.create(path, SPEC, overwrite=True)
    assert names(path) == [".store.ocrs.partial", "store.ocrs"]
    held.abort()


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_one_journal_by_whatever_link(path):
    """Work that was begun by one name of a store goes on by another."""
    link = path.parent / "links" / "link.ocrs"
    link.parent.mkdir()
    link.symlink_to(path)
    change(link, stop=18)
    assert find_unfinished(path).samples == find_unfinished(link).samples == 12
    assert change(path) == list(range(17, 22))
    assert names(path) == ["links", "store.ocrs"] and names(link) == ["link.ocrs"]


def test_a_start_over_uses_nothing(path):
    """`start_over` makes a new store although the same work is unfinished beside it."""
    for start_over, resumed in ((False, 0), (False, 4), (True, 0)):
        writer = ocrstore.create(
            path, SPEC, overwrite=True, resume="w", start_over=start_over, group_rows=4
        )
        assert writer.resumed == resumed
        for number in range(writer.resumed, 6):
            writer.append(f"k{number}", row(number))
        writer.abort()


def test_the_hidden_file_is_as_specified(path):
    """Pending record, group records, extents in the store: read by docs/FORMAT.md 9 alone."""
    change(path, stop=18)
    data = partial_path(path).read_bytes()
    values, page = [], 2
    while page * 4096 < len(data):  # 3.4: overflow values, one behind the other
        number, flags, pages = struct.unpack_from("<Q2xHI", data, page * 4096)
        assert (number, flags) == (page, 4)
        values.append(data[page * 4096 + 16 : (page + pages) * 4096])
        page += pages

    def payload(value, magic, number):  # 4: records
        found, nbytes, digest, said, zero, header = struct.unpack_from("<8s5Q", value)
        assert (found, said, zero) == (magic, number, 0)
        assert header == xxhash.xxh3_64_intdigest(value[:40])
        content = value[48 : 48 + nbytes]
        assert xxhash.xxh3_64_intdigest(content) == digest
        return content

    pending = json.loads(payload(values[0], b"OCRSPND1", 0))
    store = ocrstore.open(path)
    assert pending["token"] == "work" and [c["name"] for c in pending["columns"]] == ["a", "b"]
    assert pending["base"] == {"fingerprint": store.fingerprint, "generation": 1, "groups": 1}
    with (
        lmdb.open(str(path), subdir=False, lock=False, readonly=True, **ENGINE) as environment,
        environment.begin() as transaction,
    ):
        extents = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    assert all(re.match(rb"(extent|index|manifest)/\d{8}", key) for key in extents)
    keys = []
    for group, value in enumerate(values[1:], pending["base"]["groups"]):
        table = pa.ipc.open_file(payload(value, b"OCRSGRP1", group)).read_all()
        keys += table["key"].to_pylist()
        extent = extents[b"extent/%08d/a" % group]
        for key, place in zip(table["key"].to_pylist(), table["a"].to_pylist()):
            start = place["offset"]
            assert extent[start : start + place["nbytes"]] == bytes([100 + int(key[1:])]) * 5000
    assert keys == [f"s{number}" for number in range(5, 17)]


@pytest.mark.parametrize("write", [change, add])
def test_no_file_can_be_made_beside_the_store(path, write):
    """Then the work is done all the same; interrupted, it starts over."""
    partial_path(path).mkdir()
    write(path, stop=9)
    assert find_unfinished(path) is None and ocrstore.verify(path).ok
    assert write(path) in (0, list(range(5, 22)))
    assert ocrstore.verify(path).ok and ocrstore.open(path).generation == 2


@pytest.mark.parametrize("base", [{}, [], None, 7, {"groups": "a"}, {"more": 1}])
def test_a_record_that_makes_no_sense(path, base):
    """A hidden file that no writer could have written is not unfinished work."""
    change(path, stop=18)
    partial = partial_path(path)
    data = bytearray(partial.read_bytes())
    start = data.index(b"OCRSPND1")
    (nbytes,) = struct.unpack_from("<Q", data, start + 8)
    record = json.loads(data[start + 48 : start + 48 + nbytes])
    if isinstance(base, dict) and base:
        base = record["base"] | base
    payload = json.dumps(record | {"base": base}).encode()
    data[start + 48 : start + 4080] = payload.ljust(4032, b"\0")
    struct.pack_into("<QQ", data, start + 8, len(payload), xxhash.xxh3_64_intdigest(payload))
    struct.pack_into("<Q", data, start + 40, xxhash.xxh3_64_intdigest(data[start : start + 40]))
    partial.write_bytes(data)
    assert find_unfinished(path) is None
    assert change(path) == list(range(5, 22)) and names(path) == ["store.ocrs"]


@pytest.mark.parametrize("with_work", [False, True])
def test_what_cannot_begin_leaves_nothing(path, monkeypatch, with_work):
    """The orphans cannot be freed, or the journal not be begun: an error, and no empty file."""
    change(path, stop=18, token="other")
    if not with_work:
        partial_path(path).unlink()

    def fail(self, puts, *, deletes=()):
        raise ocrstore.WriteError("no")

    monkeypatch.setattr(lmdb_update.Environment, "commit", fail)
    with pytest.raises(ocrstore.WriteError):
        change(path)
    assert (partial_path(path).exists(), ocrstore.verify(path).ok) == (with_work, True)
    monkeypatch.undo()
    monkeypatch.setattr(lmdb_update.LmdbWriter, "commit", fail)
    with pytest.raises(ocrstore.WriteError):
        change(path)
    assert names(path) == ["store.ocrs"] and ocrstore.verify(path).ok
    monkeypatch.undo()
    assert change(path) == list(range(5, 22))


def test_damage_without_reading_rows(path):
    """An extent whose directory is not that of the journal is reported without reading its rows."""
    change(path, stop=18)
    data = path.read_bytes()
    at = data.rindex(b"OCRSEXT1")
    path.write_bytes(data[:at] + b"OCRSEXT9" + data[at + 8 :])
    assert "damaged" in find_unfinished(path).obstacle


def test_column_writers_are_used_as_they_should(path):
    """A closed writer, too many arrays, too few, a taken name: each is an error that says so."""
    writer = ColumnWriter(path, EXTRA, resume="work")
    writer.abort()
    writer.close()
    with pytest.raises(ocrstore.StoreClosedError, match="closed"):
        writer.add({"view/x": np.zeros(6000, np.uint8)})
    writer = ColumnWriter(path, EXTRA, resume="work")
    for _ in range(10):
        writer.add({"view/x": np.zeros(6000, np.uint8)})
    with pytest.raises(ocrstore.SchemaError, match="more arrays than its 10 samples"):
        writer.add({"view/x": np.zeros(6000, np.uint8)})
    writer.abort()
    with pytest.raises(ocrstore.SchemaError, match="0 were given"):
        ColumnWriter(path, EXTRA).close()
    with pytest.raises(ocrstore.SchemaError, match="'a': the name is already used"):
        ColumnWriter(path, {"a": SPEC["a"]}, resume="work")
    ColumnWriter(path, EXTRA, resume="work")
    gc.collect()  # a writer that is forgotten lets go by itself
    assert names(path) == ["store.ocrs"] and ocrstore.open(path).generation == 1
