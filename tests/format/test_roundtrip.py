"""Whatever is written is what is read: any schema, any arrays, any order."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocrstore
from tests.strategies import keys, same, samples, specs

quick = settings(max_examples=60)


@quick
@given(data=st.data(), spec=specs(), group_rows=st.integers(1, 5))
def test_any_schema_and_arrays(memory_folder, data, spec, group_rows):
    """Write -> read is bit-identical for one sample, for slices and for any selection of rows."""
    path = memory_folder / "a.ocrs"
    model = data.draw(st.dictionaries(keys, samples(spec), max_size=9))
    with ocrstore.create(path, spec, overwrite=True, group_rows=group_rows) as writer:
        for key, arrays in model.items():
            writer.append(key, arrays)
    store = ocrstore.open(path)
    assert store.keys == tuple(model)
    assert dict(store.columns) == spec
    expected = list(model.values())
    for name in spec:
        column = store[name]
        for row, arrays in enumerate(expected):
            assert same(column[row], arrays[name])
            assert not column[row].flags.writeable
        start = data.draw(st.integers(0, len(model)))
        stop = data.draw(st.integers(0, len(model)))
        step = data.draw(st.sampled_from([1, 1, 2, -1]))
        batch = column[start:stop:step]
        assert len(batch) == len(expected[start:stop:step])
        for array, arrays in zip(batch, expected[start:stop:step]):
            assert same(array, arrays[name])
    assert ocrstore.verify(path).ok


@quick
@given(
    values=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "number": st.one_of(st.none(), st.integers(-(2**40), 2**40)),
                "polygons": st.lists(st.lists(st.floats(width=32), max_size=3), max_size=3),
                "texts": st.lists(st.one_of(st.none(), keys), max_size=3),
                "box": st.fixed_dictionaries({"x": st.integers(-5, 5), "y": st.floats(width=32)}),
            },
        ),
        max_size=9,
    )
)
def test_any_attributes(memory_folder, values):
    """Attributes come back as they were given; what was not given is None."""
    schema = {
        "number": pa.int64(),
        "polygons": pa.list_(pa.list_(pa.float32())),
        "texts": pa.list_(pa.string()),
        "box": pa.struct([("x", pa.int64()), ("y", pa.float32())]),
    }
    path = memory_folder / "b.ocrs"
    with ocrstore.create(path, {}, attributes=schema, overwrite=True, group_rows=2) as writer:
        for row, attributes in enumerate(values):
            writer.append(str(row), {}, attributes=attributes)
    store = ocrstore.open(path)
    for row, attributes in enumerate(values):
        found = store.attributes(row)
        for name in schema:
            assert repr(found[name]) == repr(attributes.get(name)) or _close(
                found[name], attributes.get(name)
            )
    assert ocrstore.verify(path).ok


def _close(left, right):
    if isinstance(left, dict):
        return all(_close(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_close, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
def test_scalars_and_empty_arrays(tmp_path, dtype):
    """Zero-dimensional and zero-size arrays keep dtype and shape."""
    spec = {
        "scalar": ocrstore.Column(dtype),
        "none": ocrstore.Column(dtype, (0,)),
        "varying": ocrstore.Column(dtype, (None, 0, None), codec="zstd"),
    }
    with ocrstore.create(tmp_path / "a.ocrs", spec) as writer:
        for row in range(3):
            arrays = {
                "scalar": np.array(row == 1, dtype),
                "none": np.zeros(0, dtype),
                "varying": np.zeros((row, 0, 2), dtype),
            }
            writer.append(str(row), arrays)
    store = ocrstore.open(tmp_path / "a.ocrs")
    assert store["scalar"][1].shape == () and bool(store["scalar"][1])
    assert store["scalar"][0:3].tolist() == [0, 1, 0]
    assert store["none"][0:3].shape == (3, 0)
    assert [a.shape for a in store["varying"]] == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]
    assert ocrstore.verify(tmp_path / "a.ocrs").ok


@pytest.mark.parametrize("count", [0, 1, 64, 65])
def test_sample_counts_around_a_row_group(tmp_path, count):
    """No sample, one sample, exactly a row group, and one more."""
    path = tmp_path / "a.ocrs"
    with ocrstore.create(path, {"a": ocrstore.Column("int32", (2,))}) as writer:
        for row in range(count):
            writer.append(str(row), {"a": [row, -row]})
    store = ocrstore.open(path)
    assert len(store) == count == len(store["a"])
    assert store["a"][:].tolist() == [[row, -row] for row in range(count)]
    assert ocrstore.verify(path).ok


def test_many_small_samples(memory_folder):
    """100,000 small samples: written, opened, found, verified."""
    path = memory_folder / "c.ocrs"
    value = np.zeros(1, np.int32)
    with ocrstore.create(path, {"a": ocrstore.Column("int32", (1,))}) as writer:
        for row in range(100_000):
            value[0] = row
            writer.append(f"{row:06d}", {"a": value})
    store = ocrstore.open(path)
    assert store.row("099999") == 99_999
    assert store["a"][77_777].tolist() == [77_777]
    assert store["a"][::10_000].tolist() == [[row] for row in range(0, 100_000, 10_000)]
    assert ocrstore.verify(path).ok


def test_alignment_and_strides(tmp_path):
    """Rows of a page or more start on a page, smaller ones on 64; a run is one strided array."""
    spec = {
        "page": ocrstore.Column("uint8", (4096,)),
        "odd": ocrstore.Column("uint8", (5000,)),
        "small": ocrstore.Column("uint8", (70,)),
        "varying": ocrstore.Column("uint8", (None,)),
    }
    path = tmp_path / "a.ocrs"
    with ocrstore.create(path, spec) as writer:
        for row in range(10):
            arrays = {n: np.full(c.shape, row, np.uint8) for n, c in spec.items() if c.is_fixed}
            writer.append(str(row), {**arrays, "varying": np.zeros(row * 1000, np.uint8)})
    store = ocrstore.open(path)
    assert (store["page"].offsets % 4096 == 0).all() and (store["odd"].offsets % 4096 == 0).all()
    assert (store["small"].offsets % 64 == 0).all()
    long_rows = store["varying"].nbytes >= 4096
    assert (store["varying"].offsets[long_rows] % 4096 == 0).all() and long_rows.any()
    for name, stride in (("page", 4096), ("odd", 8192), ("small", 128)):
        batch = store[name][2:7]
        assert batch.strides == (stride, 1) and not batch.flags.owndata
        assert (batch == np.arange(2, 7)[:, None]).all()


def test_groups_close_by_size_on_a_multiple_of_sixteen(tmp_path):
    """A group that is closed by its bytes ends where usual batches end."""
    path = tmp_path / "a.ocrs"
    column = ocrstore.Column("uint8", (1000,))
    with ocrstore.create(path, {"a": column}, group_nbytes=40_000) as writer:
        for row in range(64):
            writer.append(str(row), {"a": np.zeros(1000, np.uint8)})
    store = ocrstore.open(path)
    assert [store["a"].is_run(start, start + 16) for start in range(0, 64, 16)] == [True] * 4
    assert not store["a"].is_run(0, 33)


def test_groups_of_large_rows_are_small(tmp_path):
    """Where not even sixteen rows fit, memory counts: an eighth of the limit closes a group."""
    path = tmp_path / "a.ocrs"
    column = ocrstore.Column("uint8", (50_000,))
    with ocrstore.create(path, {"a": column}, group_nbytes=400_000) as writer:
        for row in range(4):
            writer.append(str(row), {"a": np.full(50_000, row, np.uint8)})
        assert writer._payload.next_group == 4
    store = ocrstore.open(path)
    assert [int(store["a"][row][0]) for row in range(4)] == [0, 1, 2, 3]
