"""A data set of many stores, opened as one store."""

import pickle
import shutil

import numpy as np
import pytest

import ocrstore
from ocrstore import store_set
from ocrstore.annotation import AnnotationReader
from ocrstore.catalog import Catalog, read_catalog, write_catalog
from ocrstore.verification import check_headers
from tests.sharded import shard_store
from tests.torch_.making import make_store


@pytest.fixture(scope="module")
def whole_path(tmp_path_factory):
    """A store of 11 samples with a compressed view."""
    return make_store(tmp_path_factory.mktemp("whole") / "all.ocrs", samples=11, codec="lz4block")


@pytest.fixture(scope="module")
def folder(whole_path, tmp_path_factory):
    """The same samples in 4 shards."""
    return shard_store(whole_path, tmp_path_factory.mktemp("set") / "train")


@pytest.fixture
def own_folder(folder, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(folder, tmp_path / "own")


def test_it_has_the_samples_of_all_shards(folder, whole_path):
    """Arrays by row, key, slice, list and mask; attributes and polygons; nothing is lost."""
    one, whole = ocrstore.open(folder), ocrstore.open(whole_path)
    assert sorted(one.keys) == sorted(whole.keys) and len(one) == 11
    assert dict(one.columns) == dict(whole.columns)
    assert one.path == str(folder) and "11 samples" in repr(one)
    polygons, expected = AnnotationReader(one), AnnotationReader(whole)
    for row, key in enumerate(one):
        other = whole.row(key)
        assert one.row(key) == row and key in one
        assert one.attributes(row) == whole.attributes(key)
        assert np.array_equal(polygons.polygons(row)[0], expected.polygons(other)[0])
        for name in one.columns:
            assert np.array_equal(one[name][row], whole[name][key]), name
            assert bytes(one[name].stored(row)) == bytes(whole[name].stored(key))
    rows = [whole.row(key) for key in one]
    assert np.array_equal(one["tensor"][:], whole["tensor"][rows])
    assert np.array_equal(one["tensor"][[7, 2]], whole["tensor"][[rows[7], rows[2]]])
    assert one.index["key"].to_pylist() == list(one.keys)


def test_raw_rows_are_views_of_their_shard(tmp_path):
    """Rows of one shard are one array without a copy; a batch over two shards is copied."""
    path = make_store(tmp_path / "all.ocrs", samples=9)
    folder = shard_store(path, tmp_path / "train", bits=1)
    one, whole = ocrstore.open(folder), ocrstore.open(path)
    first = read_catalog(folder).shards[0].samples
    column = one["tensor"]
    assert column.is_run(0, first) and not column.is_run(first - 1, first + 1)
    rows = [whole.row(key) for key in one]
    assert np.array_equal(column[0:first], whole["tensor"][rows[:first]])
    assert np.array_equal(
        column[first - 1 : first + 1], whole["tensor"][rows[first - 1 : first + 1]]
    )


def test_few_shards_stay_mapped(folder, monkeypatch):
    """With room for one, arrays of unmapped shards stay valid, and all rows are read."""
    monkeypatch.setattr(store_set, "_MOST_MAPPED", 1)
    monkeypatch.setattr(store_set, "_JOINED", 2)
    store = ocrstore.open(folder)
    arrays = [store["tensor"][row] for row in range(len(store))]
    assert len(store.snapshot.mapping._mapped) == 1
    assert all(np.array_equal(a, store["tensor"][row]) for row, a in enumerate(arrays))
    assert store.snapshot.mapping.resident_nbytes() in (
        None,
        *range(store.snapshot.mapping.nbytes + 1),
    )


def test_pickling_and_refreshing(own_folder):
    """Another process opens the same data set; a new catalog is seen by `refresh`."""
    store = ocrstore.open(own_folder / "dataset.json")
    again = pickle.loads(pickle.dumps(store))
    assert again.keys == store.keys and again.fingerprint == store.fingerprint
    assert not store.refresh()
    catalog = read_catalog(own_folder)
    write_catalog(
        Catalog(str(own_folder), catalog.columns, catalog.metadata, catalog.shards[1:], {})
    )
    pickled = pickle.dumps(store)
    assert store.refresh() and len(store) == 11 - catalog.shards[0].samples
    with pytest.raises(ocrstore.StoreChangedError):
        pickle.loads(pickled)


def test_what_cannot_be_opened(own_folder, tmp_path):
    """Older generations, folders without a catalog, shards that are missing or replaced."""
    with pytest.raises(ocrstore.UnknownGenerationError, match="no older ones"):
        ocrstore.open(own_folder, generation=3)
    with pytest.raises(ocrstore.NotAStoreError, match=r"there is no dataset\.json"):
        ocrstore.open(tmp_path)
    store = ocrstore.open(own_folder)
    first, second = sorted(own_folder.glob("*.ocrs"))[:2]
    shutil.copy(first, tmp_path / "copy")
    (tmp_path / "copy").replace(first)
    with pytest.raises(ocrstore.StoreChangedError, match="was replaced"):
        store["tensor"][0]
    second.unlink()
    with pytest.raises(ocrstore.CorruptStoreError, match=f"shard {second.name}.*no such file"):
        ocrstore.open(own_folder)


def test_a_data_set_without_shards(own_folder):
    """It has columns and no samples."""
    catalog = read_catalog(own_folder)
    write_catalog(Catalog(str(own_folder), catalog.columns, catalog.metadata, (), {}))
    store = ocrstore.open(own_folder)
    assert len(store) == 0 and store.keys == () and set(store.columns) == set(catalog.columns)


def test_headers_of_all_shards(folder):
    """The quick check goes through every shard."""
    found = check_headers(ocrstore.open(folder))
    assert found.ok and found.rows == 11 * 7 and found.extents >= 4 * 7


def test_verification_names_bad_shards(own_folder, whole_path):
    """Damage, another size, another store, a missing one, a key of another bucket."""
    assert ocrstore.verify(own_folder).ok
    paths = sorted(own_folder.glob("*.ocrs"))
    catalog = read_catalog(own_folder)
    damaged = bytearray(paths[0].read_bytes())
    with ocrstore.open(paths[0]) as store:
        damaged[int(store["tensor"].offsets[0])] ^= 1
    paths[0].write_bytes(damaged)
    paths[1].write_bytes(paths[1].read_bytes() + bytes(4096))
    paths[2].unlink()
    told = []
    result = ocrstore.verify(own_folder, progress=lambda done, total: told.append((done, total)))
    assert not result.ok and told[-1][0] == told[-1][1] == result.nbytes
    messages = [finding.message for finding in result.findings]
    for path, why in ((paths[0], "hash"), (paths[1], "expected bytes"), (paths[2], "no such file")):
        assert any(path.name in message and why in message for message in messages), path
    assert not any(paths[3].name in message for message in messages)
    moved = {"00": "10", "10": "00", "01": "01", "11": "11"}
    shards = tuple(shard._replace(bucket=moved[shard.bucket]) for shard in catalog.shards)
    write_catalog(Catalog(str(own_folder), catalog.columns, catalog.metadata, shards, {}))
    found = ocrstore.verify(own_folder, quick=True).findings
    assert any("the key is not of bucket" in finding.message for finding in found)
