"""One judgement for every region: which become polygons, which become which problem."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocrstore.sources import Flaw, Region
from ocrstore.sources.validate import COORDINATE_LIMIT, judge

SQUARE = [[0, 0], [9, 0], [9, 9], [0, 9]]


@pytest.mark.parametrize(
    ("points", "kind"),
    [
        (None, "bad-points"),
        ("1,2,3", "bad-points"),
        ({"x": 1}, "bad-points"),
        ([], "too-few-points"),
        ([[1, 2]], "too-few-points"),
        ([[1, 2], [3, 4]], "too-few-points"),
        ([1, 2, 3, 4], "too-few-points"),
        ([1, 2, 3, 4, 5, 6, 7], "odd-coordinates"),
        ([[1, 2], [3, 4], [5]], "odd-coordinates"),
        ([[1, 2], [3, 4], [5, 6, 7]], "bad-points"),
        ([[1, 2], [3, 4], []], "bad-points"),
        ([[1, 2], 3, 4, 5, 6], "bad-points"),
        ([[1, 2], [3, 4], [5, None]], "not-a-number"),
        ([[1, 2], [3, 4], [5, "6"]], "not-a-number"),
        ([[1, 2], [3, 4], [5, True]], "not-a-number"),
        ([[1, 2], [3, 4], [5, math.nan]], "not-finite"),
        ([[1, 2], [3, 4], [5, math.inf]], "not-finite"),
        ([[1, 2], [3, 4], [-math.inf, 6]], "not-finite"),
        ([[1, 2], [3, 4], [5, 1e300]], "huge-coordinates"),
        ([[1, 2], [3, 4], [5, 10**400]], "huge-coordinates"),
        ([[1, 2], [3, 4], [5, -COORDINATE_LIMIT - 1]], "huge-coordinates"),
    ],
)
def test_rejected(points, kind):
    """A region that is no polygon becomes one problem with kind, key and position."""
    polygons, problems = judge([Region(SQUARE), Region(points)], key="k", where="w")
    assert len(polygons) == 1
    assert [(p.kind, p.key, p.polygon) for p in problems] == [(kind, "k", 1)]


@pytest.mark.parametrize(
    "points",
    [
        SQUARE,
        [0, 0, 9, 0, 9, 9, 0, 9],
        np.array(SQUARE),
        list(np.array(SQUARE, np.float32).ravel()),
        list(np.array(SQUARE)),
        tuple(map(tuple, SQUARE)),
    ],
    ids=["pairs", "flat", "array", "scalars", "rows", "tuples"],
)
def test_accepted(points):
    """Points may be pairs or flat; they are kept as float32, in order."""
    (polygon,), problems = judge([Region(points, "t")], key="k", where="w")
    assert problems == [] and polygon.points.dtype == np.float32
    assert polygon.points.tolist() == SQUARE


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2), min_size=3, max_size=50))
def test_any_number_of_points_is_kept(points):
    """Three points or fifty: exactly the float32 values that were given, repeated ones too."""
    (polygon,), _ = judge([Region(points)], key="k", where="w")
    assert polygon.points.tolist() == [list(p) for p in points]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.lists(st.builds(Region, json_values, json_values, json_values, json_values), max_size=5))
def test_nothing_is_dropped_and_nothing_raises(regions):
    """Whatever stands in a JSON, each region is a polygon or a problem at its position."""
    polygons, problems = judge(regions, key="k", where="w")
    lost = {p.polygon for p in problems if p.kind not in ("bad-text", "bad-language", "bad-flag")}
    assert len(polygons) + len(lost) == len(regions)
    for polygon in polygons:
        assert np.isfinite(polygon.points).all()
        (polygon.text or "").encode("utf-8")
        (polygon.language or "").encode("utf-8")
    for problem in problems:
        problem.message.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        (None, None, None),
        ("", "", None),
        ("a,b", "a,b", None),
        ("bad \ud800 one", "bad \ufffd one", "bad-text"),
        (12, "12", "bad-text"),
        (True, None, "bad-text"),
        (["a"], None, "bad-text"),
    ],
)
def test_texts(text, expected, kind):
    """A text that is none does not cost the polygon."""
    (polygon,), problems = judge([Region(SQUARE, text)], key="k", where="w")
    assert polygon.text == expected and [p.kind for p in problems] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("flag", "expected", "odd"),
    [
        (True, True, False),
        (1, True, False),
        ("true", True, False),
        (None, False, False),
        (0, False, False),
        ("0", False, False),
        ("maybe", False, True),
        (2, False, True),
        ([1], False, True),
    ],
)
def test_flags(flag, expected, odd):
    """Ignore flags come as booleans, numbers and words."""
    (polygon,), problems = judge([Region(SQUARE, "t", flag)], key="k", where="w")
    assert polygon.ignored is expected
    assert [p.kind for p in problems] == (["bad-flag"] if odd else [])


@pytest.mark.parametrize(
    ("language", "expected", "odd"),
    [
        ("en", "en", 0),
        (["ko"], "ko", 0),
        (["ko", "en"], "ko,en", 0),
        ([], None, 0),
        (3, None, 1),
        ([3], None, 1),
    ],
)
def test_languages(language, expected, odd):
    """A language is a text or a list of texts."""
    (polygon,), problems = judge([Region(SQUARE, language=language)], key="k", where="w")
    assert polygon.language == expected and len(problems) == odd


def test_three_hashes_are_ignored_everywhere():
    """The text ### marks a region to be ignored; the text itself is kept."""
    (polygon,), _ = judge([Region(SQUARE, "###", False)], key="k", where="w")
    assert polygon.ignored and polygon.text == "###"


def test_flaws_take_their_positions():
    """A flaw in place of a region counts as one; a flaw of the whole has no position."""
    whole = Flaw("not-utf8", "m", region=False)
    items = [whole, Flaw("bad-line", "m"), Region(SQUARE), Region([1])]
    _, problems = judge(items, key="k", where="w")
    found = [(p.kind, p.polygon) for p in problems]
    assert found == [("not-utf8", None), ("bad-line", 0), ("odd-coordinates", 2)]
