"""Each step draws a part exactly as drawing the whole and cutting the part out."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("albumentations")

from ocrstore.augment import warp as warping
from ocrstore.augment.rules import _is_identity, jitter
from ocrstore.augment.steps import Crop, PlannedPicture, Region, Turn, Warp
from ocrstore.augment.warp import Rect, rounding, warp


@st.composite
def parts(draw, height, width):
    """A rectangle inside a picture."""
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return Rect(top, left, draw(st.integers(top + 1, height)), draw(st.integers(left + 1, width)))


def noise(height, width, seed=0):
    """A picture in which the least difference shows."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@settings(max_examples=40)
@given(st.data())
def test_a_part_of_a_warp(data):
    """Any matrix, border, fill and part: the same bits as cut out of the whole."""
    size = data.draw(st.tuples(st.integers(8, 300), st.integers(8, 600)))
    source = noise(*data.draw(st.tuples(st.integers(4, 200), st.integers(4, 300))))
    # OpenCV takes for ever to reflect what a nearly singular matrix throws far away
    middle, scale = data.draw(st.tuples(st.floats(0, 99), st.floats(0, 99))), st.floats(0.3, 3)
    matrix = cv2.getRotationMatrix2D(middle, data.draw(st.floats(-180, 180)), data.draw(scale))
    matrix[0] += data.draw(st.floats(-0.2, 0.2)) * matrix[1]
    matrix[:, 2] += data.draw(st.tuples(st.floats(-90, 90), st.floats(-90, 90)))
    border = data.draw(st.sampled_from([0, 1, 2, 3, 4]))
    fill = data.draw(st.sampled_from([0, 7, (3.0, 250.0, 300.0)]))
    part = data.draw(parts(*size))
    whole = cv2.warpAffine(
        source, matrix, size[::-1], flags=cv2.INTER_LINEAR, borderMode=border, borderValue=fill
    )
    found = warp(source, matrix, size, border, fill, part)
    assert np.array_equal(found, part.cut(whole))
    step = Warp(source.shape[:2], matrix, size, border, fill)
    needed = step.needs(part)
    # nothing but what it needs is given
    given_ = np.full_like(source, 99)
    needed.cut(given_)[:] = needed.cut(source)
    drawn = step.draw(Region(needed.cut(given_), needed, source.shape[:2]), part)
    assert np.array_equal(drawn.part(part), part.cut(whole))


def test_this_opencv_is_known():
    """Of the versions that the project is tested with, everything is known."""
    assert rounding() in ("fused", "separate")
    assert warping.can_begin() and warping._is_widening_exact()


@pytest.mark.parametrize("part", [Rect(20, 30, 140, 190), Rect(100, 300, 140, 352)])
@pytest.mark.parametrize("lacks", ["four channels", "beginnings", "rounding", "all of them"])
def test_an_opencv_that_lacks_something(monkeypatch, lacks, part):
    """Whatever does not give equal bits is left out, and the rest still gives the same pixels."""
    if lacks in ("four channels", "all of them"):
        monkeypatch.setattr(warping, "_is_widening_exact", lambda: False)
    if lacks in ("beginnings", "all of them"):
        monkeypatch.setattr(warping, "can_begin", lambda: False)
    if lacks in ("rounding", "all of them"):
        monkeypatch.setattr(warping, "rounding", lambda: None)
    source = noise(180, 370)
    matrix = cv2.getRotationMatrix2D((170, 90), 8.5, 1.1)
    whole = cv2.warpAffine(source, matrix, (370, 180), flags=cv2.INTER_LINEAR)
    drawn = Warp((180, 370), matrix, (180, 370), 0, 0).draw(
        Region(source, Rect.whole((180, 370)), (180, 370)), part
    )
    assert np.array_equal(drawn.part(part), part.cut(whole))


def test_what_is_drawn_stays():
    """Memory is reused, but not while a picture in it is referenced."""
    source = noise(300, 400)
    matrix = cv2.getRotationMatrix2D((200, 150), 5, 1)

    def draw():
        picture = PlannedPicture(source)
        picture.plan(Turn((300, 400), flips_columns=True))
        picture.plan(Warp((300, 400), matrix, (300, 400), 0, 0))
        return picture.draw()

    first = draw()
    kept = first.copy()
    second = draw()
    assert not np.may_share_memory(first, second)
    second[:] = 0
    draw()[:] = 1
    assert np.array_equal(first, kept)


@settings(max_examples=60)
@given(
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([0.0, 1e-8, -1e-8, 1.0001e-8, 1e-5, 1.001e-5, 1.1e-5, np.nan, np.inf])
    | st.floats(-2e-5, 2e-5),
)
def test_what_moves_nothing(i, j, change):
    """Albumentations' own tolerances decide what is no warp at all."""
    from albumentations.augmentations.geometric.functional import is_identity_matrix

    matrix = np.eye(3)
    matrix[i, j] += change
    assert _is_identity(matrix) == is_identity_matrix(matrix)
    assert _is_identity(matrix.astype(np.float32)) == is_identity_matrix(matrix.astype(np.float32))


@settings(max_examples=40)
@given(st.booleans(), st.booleans(), st.booleans(), st.data())
def test_all_ways_to_lay_a_picture(transposes, rows, columns, data):
    """Flips and turns of a part, against numpy."""
    source = noise(9, 14)
    whole = source.transpose(1, 0, 2) if transposes else source
    whole = whole[::-1] if rows else whole
    whole = whole[:, ::-1] if columns else whole
    step = Turn((9, 14), transposes=transposes, flips_rows=rows, flips_columns=columns)
    assert step.size_after == whole.shape[:2]
    part = data.draw(parts(*step.size_after))
    needed = step.needs(part)
    drawn = step.draw(Region(needed.cut(source), needed, (9, 14)), part)
    assert np.array_equal(drawn.part(part), part.cut(whole))


def test_a_picture_without_steps_is_a_copy():
    """What is drawn is memory of its own, contiguous and writable, also if nothing was planned."""
    source = noise(20, 30)
    source.flags.writeable = False
    picture = PlannedPicture(source)
    drawn = picture.draw()
    assert drawn.flags.writeable and np.array_equal(drawn, source)
    picture.plan(Crop((20, 30), Rect(2, 3, 12, 13)))
    cut = picture.draw()
    assert picture.shape == cut.shape == (10, 10, 3)
    assert cut.flags.writeable and cut.flags.c_contiguous
    cut[:] = 0
    assert np.array_equal(drawn, source)


@settings(max_examples=30)
@given(
    st.tuples(*[st.sampled_from([0, 1]) | st.floats(0, 3)] * 3),
    st.sampled_from([0, 0.5, -0.5]) | st.floats(-0.5, 0.5),
    st.permutations(range(4)),
    st.integers(1, 70),
)
def test_the_colour_jitter(factors, hue, order, width):
    """Brightness, contrast, saturation and hue in any order, as albumentations computes them."""
    import albumentations

    params = dict(zip(("brightness", "contrast", "saturation"), factors, strict=True))
    params |= {"hue": hue, "order": order}
    source = noise(13, width)
    expected = albumentations.ColorJitter(p=1).apply(source.copy(), **params)
    found = jitter(source, params)
    assert np.array_equal(found, expected)
    assert np.array_equal(source, noise(13, width)) and not np.may_share_memory(found, source)
