"""The store as its users know it: keys, rows, errors that help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ocrstore


def test_rows_by_number_and_key(make_store):
    """A sample is found by its row from either end, and by its key."""
    store = ocrstore.open(make_store(samples=5))
    assert store.row("s3") == 3
    assert store["tensor"][-1][0, 0, 0] == 4
    assert store["tensor"][np.int64(2)][0, 0, 0] == 2
    assert store["tensor"][[4, 0, 4]][:, 0, 0, 0].tolist() == [4, 0, 4]
    assert store.attributes(1) == store.attributes("s1") == {"number": 1}
    assert store.attributes(-1) == {"number": 4}
    assert "tensor" in store and "nothing" not in store
    assert "5 samples" in repr(store) and "tensor" in repr(store["tensor"])


def test_columns_take_keys_as_rows(make_store):
    """One key, several, a slice between keys, a mask; iterating a store yields its keys."""
    store = ocrstore.open(make_store(samples=5))
    column = store["tensor"]
    assert list(store) == list(store.keys) and "s3" in store and "s9" not in store
    assert all(np.array_equal(column[key], column[row]) for row, key in enumerate(store))
    assert column[["s4", "s0"]][:, 0, 0, 0].tolist() == [4, 0]
    assert column["s1":"s3"][:, 0, 0, 0].tolist() == [1, 2]
    assert column[:"s2"].shape == column[0:2].shape and column["s3":].shape == column[3:].shape
    assert column["s0"::2][:, 0, 0, 0].tolist() == [0, 2, 4]
    assert column[np.array([True, False, False, True, False])][:, 0, 0, 0].tolist() == [0, 3]
    assert bytes(store["text"].stored("s1")) == bytes(store["text"].stored(1))
    store.close()
    assert column["s2"][0, 0, 0] == 2  # a column stays usable, as its arrays do


def test_a_wrong_index_is_named(make_store):
    """What was given, and what is expected in its place."""
    store = ocrstore.open(make_store(samples=5))
    for wrong in (1.5, [1.5], True, None, [[0]]):
        with pytest.raises(TypeError, match="expected a row, a key, a slice") as caught:
            store["tensor"][wrong]
        assert repr(wrong) in str(caught.value) and "'tensor'" in str(caught.value)
    for wrong in ("s9", ["s0", "s9"], slice("s9", None)):
        with pytest.raises(ocrstore.UnknownSampleError, match="no sample 's9'"):
            store["tensor"][wrong]
    with pytest.raises(ocrstore.UnknownRowError, match="mask of length 2: expected 5"):
        store["tensor"][[True, False]]
    for wrong in (0, slice(0, 2), "s1"):
        with pytest.raises(ocrstore.UnknownColumnError, match=r"store\['image'\]\[0\]"):
            store[wrong]


@pytest.mark.parametrize("row", [5, -6, 99])
def test_an_unknown_row_says_which_there_are(make_store, row):
    """Rows outside the store are an IndexError that names the bounds."""
    store = ocrstore.open(make_store(samples=5))
    for ask in (store["tensor"].__getitem__, store["text"].stored, store.attributes):
        with pytest.raises(ocrstore.UnknownRowError, match="rows 0 to 4") as caught:
            ask(row)
        assert isinstance(caught.value, IndexError)


def test_unknown_keys_and_columns_say_what_there_is(make_store, tmp_path):
    """A wrong name shows right ones."""
    store = ocrstore.open(make_store(samples=2))
    with pytest.raises(KeyError, match="keys look like 's0'"):
        store.row("img_1.jpg")
    with pytest.raises(ocrstore.UnknownColumnError, match="image, tensor, text"):
        store["prob_map"]
    with ocrstore.create(tmp_path / "none.ocrs", {}):
        pass
    empty = ocrstore.open(tmp_path / "none.ocrs")
    assert len(empty) == 0 and empty.keys == ()
    with pytest.raises(ocrstore.UnknownSampleError, match="no samples"):
        empty.row("a")
    with pytest.raises(ocrstore.UnknownRowError, match="no samples"):
        empty.attributes(0)


def test_a_closed_store_says_so(make_store):
    """After close() only arrays taken before can be used."""
    store = ocrstore.open(make_store())
    array = store["tensor"][1]
    with store:
        pass
    store.close()
    assert array[0, 0, 0] == 1 and "closed" in repr(store)
    for use in (lambda: len(store), lambda: store["tensor"], lambda: store.index, store.refresh):
        with pytest.raises(ocrstore.StoreClosedError, match="open it again"):
            use()


def test_history_tells_what_was_done(make_store):
    """Every generation has an entry: what, when, by which version, how many."""
    path = make_store(samples=3)
    with ocrstore.edit(path) as writer:
        writer.delete("s0")
        writer.metadata["note"] = "cleaned"
    store = ocrstore.open(path)
    assert [entry["action"] for entry in store.history] == ["create", "edit"]
    assert store.history[1]["deleted"] == 1 and store.history[1]["samples"] == 2
    assert store.metadata == {"note": "cleaned"}
    assert ocrstore.open(path, generation=1).metadata == {}


def test_file_columns_take_files_and_pixels(tmp_path):
    """A file is kept as it is, pixels without one are compressed; damage names its place."""
    simplejpeg = pytest.importorskip("simplejpeg")
    pixels = np.full((48, 64, 3), 7, np.uint8)
    jpeg = simplejpeg.encode_jpeg(pixels, quality=95)
    column = ocrstore.Column("uint8", (None, None, 3), codec="file")
    with ocrstore.create(tmp_path / "a.ocrs", {"image": column}) as writer:
        writer.append("file", {"image": ocrstore.Encoded(jpeg, (48, 64, 3))})
        writer.append("pixels", {"image": pixels})
        block = ocrstore.open(Path(__file__).parent / "golden" / "file.ocrs")["image"].stored(2)
        with pytest.raises(ocrstore.SchemaError, match="not a row of codec file"):
            writer.append("wrong", {"image": ocrstore.Encoded(block, (4, 51, 3))})
        writer.append("block", {"image": ocrstore.Encoded(block, (4, 50, 3))})
    store = ocrstore.open(tmp_path / "a.ocrs")
    assert bytes(store["image"].stored(0)) == jpeg and len(store["image"].stored(1)) < 200
    assert np.array_equal(store["image"][1], pixels) and store["image"][2].shape == (4, 50, 3)
    assert ocrstore.verify(tmp_path / "a.ocrs").ok
    with (tmp_path / "a.ocrs").open("r+b") as file:
        file.seek(int(store["image"].offsets[1]) + 8)
        file.write(b"\xff" * 12)
    with pytest.raises(ocrstore.CorruptStoreError, match=r"'pixels'.*column 'image'"):
        ocrstore.open(tmp_path / "a.ocrs")["image"][1]


def test_jpeg_columns_decode_on_access(tmp_path):
    """A jpeg column keeps the source's own bytes and gives upright pixels."""
    simplejpeg = pytest.importorskip("simplejpeg")
    pixels = np.tile(np.arange(48, dtype=np.uint8)[:, None, None] * 5, (1, 64, 3))
    jpeg = simplejpeg.encode_jpeg(pixels, quality=95)
    path = tmp_path / "a.ocrs"
    with ocrstore.create(
        path, {"image": ocrstore.Column("uint8", (None, None, 3), codec="jpeg")}
    ) as w:
        w.append("a", {"image": ocrstore.Encoded(jpeg, (48, 64, 3))})
        with pytest.raises(ocrstore.SchemaError, match="Encoded"):
            w.append("b", {"image": pixels})
    store = ocrstore.open(path)
    assert bytes(store["image"].stored(0)) == jpeg
    found = store["image"][0]
    assert found.shape == (48, 64, 3) and not found.flags.writeable
    assert np.abs(found.astype(int) - pixels).max() < 4
