"""Further views in a store that is there."""

import numpy as np
import pytest

import ocrstore
from ocrstore.building.add_view import add_view
from ocrstore.building.build import build
from ocrstore.errors import SchemaError, SourceError
from ocrstore.recipe import Recipe
from ocrstore.verification import verify
from tests.building.conftest import SIZE, draw, encode


@pytest.fixture
def built(dataset):
    """A data set of three pictures, built."""
    dataset.fill(3)
    build(dataset.images, dataset.store, size=SIZE, workers=0)
    return dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_a_view_is_added_without_touching_the_rest(built, workers):
    """The new columns are what a build makes; the others lie where they lay."""
    before = ocrstore.open(built.store)
    offsets = {name: before[name].offsets.tolist() for name in before.columns}
    added = add_view(built.store, size=96, workers=workers)
    assert added.view == "96" and added.samples == 3 and "96/tensor" in added.columns
    after = ocrstore.open(built.store)
    assert {name: after[name].offsets.tolist() for name in offsets} == offsets
    assert after.generation == 2 and before["tensor"][0].shape == (SIZE, SIZE, 3)
    other = build(built.images, built.root / "other.ocrs", size=96, workers=0)
    wanted = ocrstore.open(other.store)
    for name, column in after.metadata["views"]["96"]["columns"].items():
        assert column == f"96/{name}"
        for row in range(3):
            assert np.array_equal(after[column][row], wanted[name][row])
    assert after.metadata["default_view"] == str(SIZE)
    assert ocrstore.verify(built.store).ok
    assert verify(built.store, source=built.images, workers=0).ok


def test_views_are_kept_up_to_date(built):
    """A build maintains all views: of new pictures, and when the default view changes."""
    add_view(built.store, size=96, workers=0)
    built.fill(2, start=3)
    report = build(built.images, built.store, size=SIZE, workers=0)
    assert report.action == "update" and report.derived == 2
    report = build(built.images, built.store, size=48, workers=0)
    assert report.action == "rewrite"
    store = ocrstore.open(built.store)
    assert store["tensor"][4].shape == (48, 48, 3) and store["96/tensor"][4].shape == (96, 96, 3)
    assert sorted(store.metadata["views"]) == ["48", "96"]
    assert verify(built.store, source=built.images, workers=0).ok


def test_the_default_view_can_become_one_that_was_added(built):
    """A further view of that name is dropped, and the plan says so."""
    add_view(built.store, size=96, workers=0)
    report = build(built.images, built.store, size=96, workers=0)
    assert "view 96 is dropped: the default view has that name now" in report.reasons
    store = ocrstore.open(built.store)
    assert list(store.metadata["views"]) == ["96"] and "96/tensor" not in store.columns
    assert verify(built.store, source=built.images, workers=0).ok


def test_a_view_that_is_there_already(built):
    """The same recipe: nothing to do. Another one under the same name: an error with the diff."""
    add_view(built.store, size=96, workers=0)
    again = add_view(built.store, size=96, workers=0)
    assert again.columns == {} and ocrstore.open(built.store).generation == 2
    with pytest.raises(SchemaError, match=r"columns\.prob_map.*--view"):
        add_view(built.store, size=96, columns=["tensor"], workers=0)
    add_view(built.store, size=96, columns=["tensor"], view="small", workers=0)
    assert "small/tensor" in ocrstore.open(built.store).columns


def test_a_pipeline_as_a_view(built):
    """A pipeline is a view like any other."""
    A = pytest.importorskip("albumentations")
    add_view(built.store, pipeline=A.Resize(32, 48), view="wide", workers=0)
    store = ocrstore.open(built.store)
    assert store["wide/tensor"][0].shape == (32, 48, 3)
    assert verify(built.store, source=built.images, workers=0).ok


def test_a_store_without_pictures_needs_its_source(built):
    """Without `image` the files are needed, and they must be the same."""
    build(built.images, built.store, size=SIZE, columns=["tensor"], workers=0)
    with pytest.raises(SourceError, match="--source"):
        add_view(built.store, size=96, workers=0)
    add_view(built.store, size=96, images=built.images, workers=0)
    assert verify(built.store, source=built.images, workers=0).ok
    built.add("img_001.jpg", seed=77)
    with pytest.raises(SourceError, match=r"img_001\.jpg: the file changed since"):
        add_view(built.store, size=32, images=built.images, workers=0)
    assert ocrstore.verify(built.store).ok


def test_what_cannot_be_added(built, tmp_path):
    """A recipe of `image` alone, a picture the pipeline fails on, a store of something else."""
    A = pytest.importorskip("albumentations")
    with pytest.raises(SchemaError, match="column besides `image`"):
        add_view(built.store, recipe=Recipe.make(columns=["image"]), workers=0)
    built.add("small.jpg", encode(draw(20, 20)))
    build(built.images, built.store, size=SIZE, workers=0)
    with pytest.raises(SourceError, match=r"small\.jpg: .*bad-geometry"):
        add_view(built.store, pipeline=A.Crop(0, 0, 50, 50), workers=0)
    assert ocrstore.verify(built.store).ok and list(ocrstore.open(built.store).metadata["views"])
    other = tmp_path / "other.ocrs"
    with ocrstore.create(other, {"x": ocrstore.Column("uint8", ())}) as writer:
        writer.append("a", {"x": 1})
    with pytest.raises(SchemaError, match="not built from pictures"):
        add_view(other, size=96)
