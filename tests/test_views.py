"""Views in a manifest: what is read, and the field that each error names."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import ocrstore
from ocrstore.errors import SchemaError
from ocrstore.metadata import build_record
from ocrstore.recipe import Recipe
from ocrstore.views import (
    View,
    built_views,
    find_view,
    readable_views,
    stored_columns,
    stored_views,
    views_metadata,
)

VIEWS = (
    View("8", Recipe.make(size=8), default=True),
    View("wide", Recipe.make(size=(8, 16), columns=["tensor", "prob_map"]), default=False),
)
GOOD = {**views_metadata(VIEWS), "build": {"source": {"images": "/p"}, "decoders": {}}}


def write(path, metadata):
    """Write a store without samples that has the columns of `VIEWS`."""
    with ocrstore.create(path, stored_columns(VIEWS), metadata=metadata):
        pass
    return ocrstore.open(path)


def changed(place, value):
    """Return the good metadata with one field replaced, or removed if the value is `...`."""
    metadata = copy.deepcopy(GOOD)
    *outer, last = place
    inner = metadata
    for name in outer:
        inner = inner[name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return metadata


def test_views_come_back(tmp_path):
    """The default view is first; recipes, names and columns are those that were written."""
    store = write(tmp_path / "a.ocrs", GOOD)
    prints = [(v.name, v.recipe.fingerprint, v.default) for v in built_views(store)]
    assert prints == [(v.name, v.recipe.fingerprint, v.default) for v in VIEWS]
    default, wide = stored_views(store)
    assert default.has_maps and default.maps["min_size"] == 8
    assert wide.columns == {"tensor": "wide/tensor", "prob_map": "wide/prob_map"}
    assert find_view(store, None) == default and find_view(store, "wide") == wide
    with pytest.raises(SchemaError, match="no view '9'; it has 8, wide"):
        find_view(store, "9")
    with pytest.raises(SchemaError, match="lacks inverse_matrix"):
        find_view(store, "wide", needs=("tensor", "inverse_matrix"))


BAD = {
    "views": (["views"], 3),
    "views.8: ": (["views", "8"], None),
    "views.8.recipe: ": (["views", "8", "recipe"], []),
    "with 'size'": (["views", "8", "recipe", "size"], ...),
    "recipe.size[1]": (["views", "8", "recipe", "size"], [4, "x"]),
    "recipe.maps.min_size": (["views", "8", "recipe", "maps", "min_size"], 1e300),
    "recipe.maps: ": (["views", "8", "recipe", "maps", "more"], 1),
    "recipe.columns.tensor.dtype": (["views", "8", "recipe", "columns", "tensor", "dtype"], 7),
    "recipe.fill: ": (["views", "8", "recipe", "fill"], [0, 0]),
    "recipe.mean[0]": (["views", "8", "recipe", "mean"], [True, 0, 0]),
    "views.8.fingerprint": (["views", "8", "fingerprint"], 5),
    "columns.tensor: expected the name": (["views", "8", "columns", "tensor"], "none"),
    "columns.tensor: expected a column": (["views", "8", "columns", "tensor"], "prob_map"),
    "columns.inverse_matrix: ": (["views", "8", "columns", "inverse_matrix"], "tensor"),
    "names of 1 to 40": (["views", "\x1b[31m"], copy.deepcopy(GOOD["views"]["8"])),
    "default_view": (["default_view"], ...),
    "default_view: expected 8 or wide": (["default_view"], "9"),
}


@pytest.mark.parametrize("named", BAD)
def test_the_field_is_named(tmp_path, named):
    """A view that a build cannot have written is refused; the store still opens."""
    place, value = BAD[named]
    store = write(tmp_path / "a.ocrs", changed(place, value))
    assert len(store) == 0
    with pytest.raises(SchemaError) as caught:
        stored_views(store)
    assert named in str(caught.value) and "metadata." in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert readable_views(store) == ((), str(caught.value))


BAD_BUILDS = {
    "build: ": (["build"], [1]),
    "build.decoders.jpeg": (["build", "decoders"], {"jpeg": 1}),
    "build.source.images": (["build", "source", "images"], {"a": 1}),
    "build.problems.counts.x": (["build", "problems"], {"counts": {"x": -1}, "first": []}),
    "build.problems.first[0]": (["build", "problems"], {"counts": {}, "first": [{"kind": "a"}]}),
}


@pytest.mark.parametrize("named", BAD_BUILDS)
def test_builds(tmp_path, named):
    """So is the record of a build, unless the store was not built from pictures."""
    place, value = BAD_BUILDS[named]
    metadata = changed(place, value)
    with pytest.raises(SchemaError) as caught:
        build_record(write(tmp_path / "a.ocrs", metadata))
    assert named in str(caught.value)
    del metadata["views"]
    assert build_record(write(tmp_path / "b.ocrs", metadata)) == {}


def test_metadata_of_other_writers(tmp_path):
    """Whatever else metadata holds is nobody's business."""
    store = write(tmp_path / "a.ocrs", {"made": [1, {"x": None}], "source": 3})
    assert stored_views(store) == () and build_record(store) == {}
    assert np.array_equal(store["tensor"][:], np.empty((0, 8, 8, 3), np.uint8))
