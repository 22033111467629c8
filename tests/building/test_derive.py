"""Deriving one sample: the corners that a whole build seldom reaches."""

import numpy as np
import pytest

import ocrstore
from ocrstore.annotation import FoundSample, Polygon, Problem
from ocrstore.building import derive as deriving
from ocrstore.building.derive import SkippedPictureError, annotation_hash, stored_sample
from ocrstore.errors import SchemaError, WriteError
from ocrstore.recipe import Recipe
from ocrstore.views import View, check_views
from tests.building.conftest import SIZE


def sample(*polygons, **facts):
    """A sample with these polygons."""
    return FoundSample("k.jpg", None, tuple(polygons), **facts)


def quad(*points, **facts):
    """A polygon."""
    return Polygon(np.array(points, np.float32), **facts)


def test_a_polygon_that_the_geometry_sends_to_infinity():
    """It is reported with its position, and the others are drawn."""
    near = quad([5, 5], [40, 5], [40, 40], [5, 40])
    far = quad([5, 5], [100, 5], [100, 40])
    given = sample(near, far)
    matrix = np.array([[1, 0, 0], [0, 1, 0], [-0.01, 0, 1.0]])
    problems = []
    view = View("v", Recipe.make(size=SIZE), default=True)
    canvas = np.zeros((SIZE, SIZE, 3), np.uint8)
    maps = deriving._draw(given, view, canvas, matrix, [near.points, far.points], problems)
    assert [(p.kind, p.polygon, p.key) for p in problems] == [("undrawable-polygon", 1, "k.jpg")]
    assert maps["prob_map"].any()


@pytest.mark.parametrize(
    "other",
    [
        sample(),
        sample(quad([0, 0], [9, 0], [9, 9]), annotated=False),
        sample(quad([0, 0], [9, 0], [9, 8])),
        sample(quad([0, 0], [9, 0], [9, 9], [0, 9])),
        sample(quad([0, 0], [9, 0], [9, 9], ignored=True)),
        sample(quad([0, 0], [9, 0], [9, 9], text="")),
        sample(quad([0, 0], [9, 0], [9, 9], text="a")),
        sample(quad([0, 0], [9, 0], [9, 9], language="a")),
        sample(quad([0, 0], [9, 0], [9, 9]), quad([0, 0], [9, 0], [9, 9])),
    ],
)
def test_the_annotation_hash_sees_every_difference(other):
    """Points, text, flag, language, number of polygons, and whether there is an annotation."""
    base = sample(quad([0, 0], [9, 0], [9, 9]))
    assert annotation_hash(base) == annotation_hash(sample(quad([0, 0], [9, 0], [9, 9])))
    assert annotation_hash(base) != annotation_hash(other)


def test_a_stored_sample_is_the_sample_again(tmp_path):
    """Attributes lead back to the polygons they were made from."""
    given = sample(
        quad([0, 1], [9, 2], [9, 9], text="a", language="fr"), quad([1, 1], [2, 2], [3, 5])
    )
    attributes = {
        "polygons": [p.points.reshape(-1).tolist() for p in given.polygons],
        "texts": ["a", None],
        "ignored": [False, False],
        "languages": ["fr", None],
        "annotated": True,
    }
    with ocrstore.create(tmp_path / "a.ocrs", {"a": ocrstore.Column("int8", ())}) as writer:
        writer.append("k.jpg", {"a": 0}, attributes=attributes)
    again = stored_sample(ocrstore.open(tmp_path / "a.ocrs"), 0)
    assert annotation_hash(again) == annotation_hash(given)


def test_views_that_cannot_be():
    """Names, the image column, duplicates and order are refused."""
    recipe = Recipe.make(size=SIZE)
    bare = Recipe.make(size=SIZE, columns=["tensor"])
    with pytest.raises(SchemaError, match="only the default view"):
        View("v", recipe, default=False)
    default, further = View("v", recipe, default=True), View("w", bare, default=False)
    assert check_views((default, further)) == (default, further)
    with pytest.raises(SchemaError, match="two views of one name"):
        check_views((default, View("v", bare, default=False)))
    with pytest.raises(SchemaError, match="the default view"):
        check_views((further, default))


def test_a_skipped_picture_survives_pickling():
    """The reason crosses from a worker to the build."""
    import pickle

    problem = Problem("vanished", "gone", key="k")
    assert pickle.loads(pickle.dumps(SkippedPictureError(problem))).problem == problem


def test_a_report_that_cannot_be_written(tmp_path):
    """The place is named."""
    from ocrstore.building.build_report import BuildReport

    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="file"):
        BuildReport("s", "d").write(tmp_path / "file" / "report.json")
