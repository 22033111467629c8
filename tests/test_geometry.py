"""The built-in geometries and EXIF orientation: pixels, points and the way back."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from ocrstore.errors import SchemaError
from ocrstore.geometry import (
    INTERPOLATIONS,
    Geometry,
    frame_of,
    invert,
    longest_side,
    rotate_points,
    stretch,
    transform_points,
    turn_polygons,
    turn_upright,
    upright_size,
)

A = pytest.importorskip("albumentations")


def picture(height, width, seed=0):
    """Noise: every pixel tells where it came from."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def albumentations_pipeline(size, interpolation=cv2.INTER_LINEAR):
    """The pipeline that the default view stands in for."""
    return A.Compose(
        [
            A.LongestMaxSize(max_size=size, interpolation=interpolation),
            A.PadIfNeeded(size, size, position="top_left", border_mode=cv2.BORDER_CONSTANT, fill=0),
        ],
        keypoint_params=A.KeypointParams(format="xy", remove_invisible=False),
    )


SIZES = [(72, 128), (128, 72), (64, 64), (10, 7), (1, 300), (300, 1), (1, 1), (333, 211), (97, 96)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", [64, 96])
@pytest.mark.parametrize("interpolation", ["linear", "nearest", "cubic", "lanczos"])
def test_longest_side_is_albumentations_pixel_for_pixel(size, side, interpolation):
    """The default view equals LongestMaxSize + PadIfNeeded(top_left), pixels and keypoints."""
    pixels = picture(*size)
    points = np.array([[0, 0], [size[1], size[0]], [1.5, 2.25], [-3, 5]], np.float32)
    wanted = albumentations_pipeline(side, INTERPOLATIONS[interpolation])(
        image=pixels, keypoints=points
    )
    geometry = longest_side(size, (side, side), interpolation=interpolation)
    assert np.array_equal(geometry.apply(pixels), wanted["image"])
    moved = transform_points(geometry.matrix, points)
    assert np.allclose(moved, wanted["keypoints"], rtol=1e-6, atol=1e-4)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 130))
@settings(max_examples=60)
def test_longest_side_is_albumentations_for_any_size(height, width, side):
    """No rounding case differs from the albumentations pipeline."""
    pixels = picture(height, width)
    wanted = albumentations_pipeline(side)(image=pixels, keypoints=np.zeros((0, 2), np.float32))
    assert np.array_equal(
        longest_side((height, width), (side, side)).apply(pixels), wanted["image"]
    )


def test_area_interpolation_shrinks_by_area_and_grows_linearly():
    """`area` is INTER_AREA for shrinking only, as albumentations' area_for_downscale is."""
    small, large = picture(30, 30), picture(90, 90)
    shrunk = longest_side((90, 90), (60, 60), interpolation="area").apply(large)
    grown = longest_side((30, 30), (60, 60), interpolation="area").apply(small)
    assert np.array_equal(shrunk, cv2.resize(large, (60, 60), interpolation=cv2.INTER_AREA))
    assert np.array_equal(grown, cv2.resize(small, (60, 60), interpolation=cv2.INTER_LINEAR))


def test_points_follow_the_corners_of_pixels():
    """(0, 0) stays, (width, height) becomes the scaled size: the corner convention."""
    geometry = longest_side((720, 1280), (640, 640))
    moved = transform_points(geometry.matrix, [[0, 0], [1280, 720], [0.5, 0.5]])
    assert np.array_equal(moved, [[0, 0], [640, 360], [0.25, 0.25]])


@given(st.integers(1, 9000), st.integers(1, 9000))
@settings(max_examples=100)
def test_points_there_and_back(height, width):
    """The inverse matrix brings every point home to a thousandth of a pixel."""
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    for geometry in (
        longest_side((height, width), (640, 640)),
        longest_side((height, width), (736, 1280)),
        stretch((height, width), (640, 960)),
    ):
        view = transform_points(geometry.matrix, corners)
        assert np.all(view <= np.array(geometry.view_size[::-1]) + 1e-9)
        assert np.allclose(transform_points(geometry.inverse, view), corners, atol=1e-3)


def test_fit_into_a_rectangle():
    """A view need not be square: the tighter side decides."""
    geometry = longest_side((720, 1280), (640, 960))
    assert geometry.matrix[0, 0] == 0.75
    view = geometry.apply(np.full((720, 1280, 3), 9, np.uint8))
    assert view.shape == (640, 960, 3)
    assert (view[:540] == 9).all() and not view[540:].any()


def test_stretch_moves_points_by_both_scales():
    """Stretching has one scale per axis, and leaves no padding."""
    geometry = stretch((50, 100), (200, 300))
    assert np.array_equal(transform_points(geometry.matrix, [[100, 50]]), [[300, 200]])
    assert np.array_equal(
        geometry.apply(picture(50, 100)),
        cv2.resize(picture(50, 100), (300, 200), interpolation=cv2.INTER_LINEAR),
    )


def test_fill_colours_the_padding():
    """The rest of the view has the colour asked for."""
    view = longest_side((50, 100), (100, 100), fill=(1, 2, 3)).apply(picture(50, 100))
    assert np.array_equal(view[50:], np.broadcast_to((1, 2, 3), (50, 100, 3)))


def test_apply_draws_into_a_given_array_and_leaves_the_picture():
    """`out` is filled whole, padding too, and a read-only picture will do."""
    pixels = picture(72, 128)
    pixels.flags.writeable = False
    geometry = longest_side((72, 128), (64, 64))
    out = np.full((64, 64, 3), 77, np.uint8)
    assert geometry.apply(pixels, out=out) is out
    assert np.array_equal(out, geometry.apply(pixels))


def test_wrong_shapes_are_refused():
    """A picture of another size, another dtype or a wrong target is an error, not a surprise."""
    geometry = longest_side((72, 128), (64, 64))
    with pytest.raises(SchemaError, match=r"\(72, 128, 3\)"):
        geometry.apply(picture(72, 127))
    with pytest.raises(SchemaError, match="float32"):
        geometry.apply(picture(72, 128).astype(np.float32))
    with pytest.raises(SchemaError, match="out"):
        geometry.apply(picture(72, 128), out=np.empty((64, 63, 3), np.uint8))
    with pytest.raises(SchemaError, match="at least one pixel"):
        longest_side((0, 5), (64, 64))
    with pytest.raises(SchemaError, match="unknown interpolation 'soft'"):
        longest_side((5, 5), (64, 64), interpolation="soft")


def test_projective_points():
    """A matrix with a perspective row divides by it; a point at infinity says so."""
    matrix = np.array([[1, 0, 0], [0, 1, 0], [0.1, 0, 1.0]])
    assert np.allclose(transform_points(matrix, [[10, 4]]), [[5, 2]])
    assert not np.isfinite(transform_points(matrix, [[-10, 4]])).any()
    assert transform_points(matrix, np.zeros((0, 2))).shape == (0, 2)


def test_geometry_is_frozen():
    """A geometry is a value: it cannot be changed after the fact."""
    with pytest.raises(AttributeError):
        longest_side((5, 5), (8, 8)).view_size = (9, 9)
    assert isinstance(stretch((5, 5), (8, 8)), Geometry)


@given(st.lists(st.floats(-5, 5), min_size=8, max_size=8))
def test_inverses_are_numpys(numbers):
    """The closed form agrees with LAPACK wherever the matrix can be inverted well."""
    matrix = np.array([*numbers, 1.0]).reshape(3, 3)
    if abs(np.linalg.det(matrix)) > 0.1:
        assert np.allclose(invert(matrix) @ matrix, np.eye(3), atol=1e-8)
        matrix[2] = (0, 0, 1)
    if abs(np.linalg.det(matrix)) > 0.1:
        assert np.array_equal(invert(matrix)[2], (0, 0, 1))


def test_inverses_of_scales_are_exact():
    """A scale of 1/3 comes back as 3; a matrix without an inverse is an error."""
    assert invert(np.diag((0.1, 1 / 3, 1.0))).tolist() == [[10, 0, 0], [0, 3, 0], [0, 0, 1]]
    with pytest.raises(SchemaError, match="no inverse"):
        invert(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))


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
