"""Points between the stored and the upright frame."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from ocrstore.decode.upright import turn_upright
from ocrstore.orientation import frame_of, rotate_points, turn_polygons, upright_size

ORIENTATIONS = range(1, 9)
STORED = (1280, 720)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_every_pixel_lands_where_its_point_lands(orientation):
    """The rotated point finds the same pixel in the rotated picture, for every pixel."""
    height, width = 5, 7
    stored = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    upright = turn_upright(stored, orientation)
    assert upright.flags.c_contiguous
    assert upright.shape[1::-1] == upright_size((width, height), orientation)
    ys, xs = np.mgrid[:height, :width]
    moved = rotate_points(np.stack([xs, ys], axis=-1), orientation, (width, height)).astype(int)
    np.testing.assert_array_equal(upright[moved[..., 1], moved[..., 0]], stored)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_pixels_turn_as_pillow_turns_them(orientation):
    """An independent implementation of EXIF agrees on all eight orientations."""
    stored = np.random.default_rng(orientation).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    image = Image.fromarray(stored)
    image.getexif()[274] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(turn_upright(stored, orientation), expected)


@given(
    orientation=st.integers(1, 8),
    size=st.tuples(st.integers(1, 9000), st.integers(1, 9000)),
    points=st.lists(st.tuples(st.integers(-99, 9999), st.integers(-99, 9999)), max_size=8),
)
def test_inverse_restores_the_points(orientation, size, points):
    """There and back is exact, in float32 too."""
    given_points = np.asarray(points, dtype=np.float32).reshape(-1, 2)
    there = rotate_points(given_points, orientation, size)
    assert there.dtype == np.float32
    back = rotate_points(there, orientation, size, inverse=True)
    np.testing.assert_array_equal(back, given_points)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_drawn_word_keeps_its_ink(orientation):
    """A box drawn on the stored picture lies on the same ink after both were rotated."""
    stored = np.zeros((60, 90, 3), np.uint8)
    box = np.array([[10, 5], [50, 5], [50, 20], [10, 20]])
    cv2.fillPoly(stored, [box], (255, 255, 255))
    upright = turn_upright(stored, orientation)
    moved = rotate_points(box, orientation, (90, 60)).astype(np.int32)
    redrawn = np.zeros_like(upright)
    cv2.fillPoly(redrawn, [moved], (255, 255, 255))
    np.testing.assert_array_equal(redrawn, upright)


def box(left, top, right, bottom):
    """One rectangle as a polygon."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], dtype=np.float32)


@pytest.mark.parametrize(
    ("polygons", "orientation", "expected"),
    [
        pytest.param([box(900, 10, 1200, 60)], 6, "stored", id="only the stored frame is as wide"),
        pytest.param([box(10, 900, 300, 1200)], 6, "upright", id="only the upright one as tall"),
        pytest.param([box(10, 10, 300, 60)], 6, "either", id="fits both"),
        pytest.param([box(900, 10, 1200, 60)], 3, "either", id="half a turn keeps the size"),
        pytest.param([box(900, 10, 1200, 60)], 1, "either", id="no rotation, one frame"),
        pytest.param([], 6, "either", id="no polygons"),
        pytest.param([np.full((4, 2), np.nan)], 6, "either", id="nothing finite"),
        pytest.param([box(10, 10, 300, 725)], 6, "either", id="overshoots the border a little"),
        pytest.param([box(900, 10, 1330, 60)], 8, "stored", id="fits neither, nearer to stored"),
        pytest.param([box(0, 0, 9, 9), box(10, 900, 90, 990)], 5, "upright", id="one decides"),
        pytest.param([box(900, 900, 1200, 1200)], 6, "either", id="fits neither, equally"),
    ],
)
def test_the_frame_is_told_from_the_polygons(polygons, orientation, expected):
    """Polygons that fit only one of the two frames say which one they were drawn in."""
    assert frame_of(polygons, STORED, orientation) == expected


def test_polygons_turn_unless_they_fit_only_the_upright_frame():
    """Polygons in the unrotated frame rotate along, upright ones stay, and it is said which."""
    stored_box, upright_box = box(900, 10, 1200, 60), box(10, 900, 300, 1200)
    turned, frame = turn_polygons([stored_box], STORED, 6)
    assert frame == "stored"
    np.testing.assert_array_equal(turned[0], rotate_points(stored_box, 6, STORED))
    kept, frame = turn_polygons([upright_box], STORED, 6)
    assert frame == "upright"
    np.testing.assert_array_equal(kept[0], upright_box)
    same, frame = turn_polygons([stored_box], STORED, 1)
    assert frame == "either"
    assert same[0] is stored_box


def test_the_input_is_never_written_to():
    """Rotation makes new points."""
    points = box(1, 2, 3, 4)
    before = points.copy()
    for orientation in ORIENTATIONS:
        rotate_points(points, orientation, STORED)
        np.testing.assert_array_equal(points, before)


@pytest.mark.parametrize("orientation", [0, 9, -1])
def test_other_orientations_are_refused(orientation):
    """Only 1 to 8 exist; a reader of EXIF has made 1 of anything else."""
    with pytest.raises(ValueError, match="1 to 8"):
        rotate_points(box(0, 0, 1, 1), orientation, STORED)
