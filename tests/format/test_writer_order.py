"""What a build needs of the writer: another order, and what an interrupted run had written."""

from __future__ import annotations

import numpy as np
import pytest

import ocrstore

SPEC = {"x": ocrstore.Column("uint8", (4,))}


def row(value):
    """One sample's arrays."""
    return {"x": np.full(4, value, np.uint8)}


def test_reorder_changes_rows_and_nothing_else(tmp_path):
    """Samples keep their arrays and attributes; the store is the one written in that order."""
    first, second = tmp_path / "a.ocrs", tmp_path / "b.ocrs"
    with ocrstore.create(first, SPEC) as writer:
        for value in (2, 0, 1):
            writer.append(f"k{value}", row(value), attributes={"v": value})
        writer.reorder(["k0", "k1", "absent", "k2"])
    with ocrstore.create(second, SPEC) as writer:
        for value in (0, 1, 2):
            writer.append(f"k{value}", row(value), attributes={"v": value})
    store = ocrstore.open(first)
    assert store.keys == ("k0", "k1", "k2")
    assert store.fingerprint == ocrstore.open(second).fingerprint
    assert [int(a[0]) for a in store["x"][0:3]] == [0, 1, 2]
    with ocrstore.edit(first) as writer:
        writer.append("a", row(9), attributes={"v": 9})
        writer.reorder(["a", "k0", "k1", "k2"])
    assert ocrstore.open(first).keys[0] == "a" and ocrstore.verify(first).ok


def test_reorder_names_every_sample(tmp_path):
    """An order that leaves one out is refused, and nothing is published."""
    with (
        pytest.raises(ocrstore.UnknownSampleError, match="lacks sample 'k1'"),
        ocrstore.create(tmp_path / "a.ocrs", SPEC) as writer,
    ):
        writer.append("k0", row(0))
        writer.append("k1", row(1))
        writer.reorder(["k0"])
    assert not (tmp_path / "a.ocrs").exists()


def test_resumed_attributes(tmp_path):
    """A resumed writer tells key and attributes of what is there; a replaced sample's last ones."""
    path = tmp_path / "a.ocrs"
    options = {"resume": "token", "group_rows": 2, "attributes": {"v": "int64"}}

    def start():
        import pyarrow as pa

        return ocrstore.create(path, SPEC, **{**options, "attributes": {"v": pa.int64()}})

    writer = start()
    assert writer.resumed_attributes().num_rows == 0
    for value in range(3):
        writer.append(f"k{value}", row(value), attributes={"v": value})
    writer.abort()
    writer = start()
    table = writer.resumed_attributes()
    assert table["key"].to_pylist() == ["k0", "k1"] and table["v"].to_pylist() == [0, 1]
    writer.replace("k0", row(7), attributes={"v": 7})
    writer.append("k2", row(2), attributes={"v": 2})
    writer.abort()
    with start() as writer:
        table = writer.resumed_attributes()
        assert table["key"].to_pylist() == ["k0", "k1", "k0", "k2"]
        assert writer.resumed == 3 and writer.keys == ("k0", "k1", "k2")
        assert dict(zip(*table.to_pydict().values(), strict=True)) == {"k0": 7, "k1": 1, "k2": 2}
    assert [int(a[0]) for a in ocrstore.open(path)["x"][0:3]] == [7, 1, 2]
