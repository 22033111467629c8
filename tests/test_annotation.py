"""The reader of annotations in an index: what it returns, and what it refuses by name."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

import ocrstore
from ocrstore.annotation import AnnotationReader, read_annotation
from ocrstore.errors import SchemaError

QUAD = [0.0, 0.0, 9.0, 0.0, 9.0, 5.0, 0.0, 5.0]
NUMBERS = pa.float32()


def write(path, records, **types):
    """Write a store of attributes alone; types are those of a build unless others are given."""
    kinds = {
        "polygons": pa.list_(pa.list_(NUMBERS)),
        "ignored": pa.list_(pa.bool_()),
        "texts": pa.list_(pa.string()),
        "languages": pa.list_(pa.string()),
        "width": pa.int32(),
        **types,
    }
    columns = {"a": ocrstore.Column("int8", ())}
    with ocrstore.create(path, columns, attributes=pa.schema(list(kinds.items()))) as writer:
        for number, record in enumerate(records):
            writer.append(f"k{number}", {"a": 0}, attributes=record)
    return ocrstore.open(path)


GOOD = {"polygons": [QUAD, QUAD[:6]], "ignored": [True, False], "texts": ["a", None], "width": 7}


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.float64())),
        pa.large_list(pa.large_list(pa.float16())),
        pa.list_(pa.list_(pa.int16())),
    ],
    ids=str,
)
def test_annotations_come_back(tmp_path, kind):
    """Whatever kind of lists and numbers the writer chose; null is nothing."""
    empty = {"polygons": None, "ignored": [], "width": None}
    store = write(tmp_path / "a.ocrs", [empty, GOOD, empty, GOOD], polygons=kind)
    reader = AnnotationReader(store)
    for row in (1, 3):
        for found in (reader.annotation(row), read_annotation(store, row)):
            assert [points.shape for points in found.polygons] == [(4, 2), (3, 2)]
            assert found.polygons[0].ravel().tolist() == QUAD
            assert found[1:] == ([True, False], ["a", None], [None, None], 0)
    assert reader.annotation(0) == ([], [], [], [], 0)
    assert reader.numbers("width", 3).tolist() == [3, 7, 3, 7]
    everything = reader.all_polygons()
    assert everything.counts.tolist() == [0, 2, 0, 2] and everything.ends.tolist() == [4, 7, 11, 14]
    assert everything.ignored.tolist() == [True, False, True, False]


def test_lists_of_a_fixed_size(tmp_path):
    """Quadrilaterals may be stored as eight numbers each."""
    kind = pa.list_(pa.list_(pa.float32(), 8))
    store = write(
        tmp_path / "a.ocrs", [{"polygons": [QUAD, QUAD]}, {"polygons": []}], polygons=kind
    )
    reader = AnnotationReader(store)
    assert [points.ravel().tolist() for points in reader.polygons(0)] == [QUAD, QUAD]
    assert reader.polygons(1) == []


WRONG = {
    "odd": {"polygons": [QUAD, [1.0, 2.0, 3.0]]},
    "nan": {"polygons": [QUAD, [1.0, 2.0, 3.0, 4.0, 5.0, math.nan]]},
    "infinite": {"polygons": [QUAD, [-math.inf] * 6]},
    "null": {"polygons": [QUAD, [1.0, None, 3.0, 4.0, 5.0, 6.0]]},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_polygons(tmp_path, name):
    """The sample is named, others can be read; tools that show any store leave the polygon out."""
    store = write(tmp_path / "a.ocrs", [GOOD, {**GOOD, **WRONG[name]}])
    reader = AnnotationReader(store)
    assert len(reader.annotation(0).polygons) == 2
    with pytest.raises(SchemaError, match="'k1', attribute 'polygons': polygon 1 has"):
        reader.annotation(1)
    found = read_annotation(store, 1, strict=False)
    assert len(found.polygons) == 1 and found[1:] == ([True], ["a"], [None], 1)
    assert AnnotationReader(store, strict=False).all_polygons().counts.tolist() == [2, 1]


def test_limits_of_the_caller(tmp_path):
    """Too few points and coordinates that are too large are wrong where the caller says so."""
    store = write(tmp_path / "a.ocrs", [{"polygons": [QUAD[:4], [2.0**40] * 6, []]}])
    assert [len(points) for points in read_annotation(store, 0).polygons] == [2, 3, 0]
    with pytest.raises(SchemaError, match="fewer than 3 points"):
        read_annotation(store, 0, min_points=3)
    assert read_annotation(store, 0, strict=False, min_points=3, limit=2.0**30).unusable == 3


@pytest.mark.parametrize("name", ["ignored", "texts", "languages"])
def test_lists_that_are_not_parallel(tmp_path, name):
    """A list of another length is refused, or used as far as it goes."""
    values = [True] if name == "ignored" else ["x"]
    store = write(tmp_path / "a.ocrs", [{**GOOD, name: values}])
    with pytest.raises(SchemaError, match=f"'k0', attribute '{name}': 1 elements for 2 polygons"):
        read_annotation(store, 0)
    found = read_annotation(store, 0, strict=False)
    assert getattr(found, name) == [values[0], False if name == "ignored" else None]


def test_other_types(tmp_path):
    """An attribute of another type is refused by its name, or counts as missing."""
    store = write(tmp_path / "a.ocrs", [{"polygons": "x", "width": 3}], polygons=pa.string())
    with pytest.raises(SchemaError, match="attribute 'polygons' has the type string"):
        AnnotationReader(store)
    reader = AnnotationReader(store, strict=False)
    assert "polygons" not in reader.names and reader.annotation(0).polygons == []


def test_numbers_out_of_range(tmp_path):
    """No picture has a negative width."""
    store = write(tmp_path / "a.ocrs", [GOOD, {"width": -1}, GOOD])
    with pytest.raises(SchemaError, match="'k1', attribute 'width': expected 0 to"):
        AnnotationReader(store).numbers("width", 0)
    loose = AnnotationReader(store, strict=False)
    assert loose.numbers("width", 0).tolist() == [7, 0, 7] and loose.size(0) is None


def test_a_store_without_samples(tmp_path):
    """There is nothing to read, and nothing to trip over."""
    reader = AnnotationReader(write(tmp_path / "a.ocrs", []))
    assert len(reader.all_polygons().counts) == 0 and reader.problems() == []
    assert np.array_equal(reader.numbers("width", 0), [])
