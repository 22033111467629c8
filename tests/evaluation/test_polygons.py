"""Areas of polygons: by hand, and against drawing them pixel by pixel."""

import cv2
import numpy as np
import pytest

from ocrstore.evaluation.polygons import area, intersection_areas, to_paths
from tests.evaluation.iou import iou_matrix

SQUARE = [(0, 0), (10, 0), (10, 10), (0, 10)]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (SQUARE, 100),
        (SQUARE[::-1], 100),
        ([(0, 0), (10, 0), (0, 10)], 50),
        ([(0, 0), (10, 10), (10, 0), (0, 10)], 50),  # a bow tie: two triangles
        ([(0, 0), (10, 0), (10, 10), (5, 5), (0, 10)], 75),  # not convex
        ([(0, 0), (10, 0), (5, 0)], 0),
        ([(0, 0), (10, 0)], 0),
        ([(0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75)], 0.25),
    ],
)
def test_areas_by_hand(points, expected):
    """Orientation does not matter, self-intersections follow the even-odd rule."""
    assert area(points) == pytest.approx(expected, abs=1e-2)


def test_iou_by_hand():
    """Half-shifted squares share 50 of 150; the same one all; a far one nothing."""
    half = [(5, 0), (15, 0), (15, 10), (5, 10)]
    far = [(50, 0), (60, 0), (60, 10), (50, 10)]
    touching = [(10, 0), (20, 0), (20, 10), (10, 10)]
    line = [(0, 0), (10, 10), (0, 0)]
    found = iou_matrix([SQUARE], [SQUARE, half, far, touching, line])
    np.testing.assert_allclose(found, [[1, 1 / 3, 0, 0, 0]], atol=1e-6)


def test_no_polygons_give_empty_matrices():
    """Empty sides keep their shape."""
    assert iou_matrix([], [SQUARE]).shape == (0, 1)
    assert iou_matrix([SQUARE], []).shape == (1, 0)


def star(rng, centre, radius):
    """Return a star-shaped polygon, seldom convex."""
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    r = radius * rng.uniform(0.4, 1.0, 9)
    return np.stack([centre[0] + r * np.cos(angles), centre[1] + r * np.sin(angles)], axis=1)


def drawn(points, scale=16, size=100):
    """Draw a polygon on a fine grid."""
    canvas = np.zeros((size * scale, size * scale), np.uint8)
    fixed = np.rint((np.asarray(points) * scale - 0.5) * 256).astype(np.int32)
    cv2.fillPoly(canvas, [fixed], 1, shift=8)
    return canvas


def test_intersections_equal_those_of_drawn_polygons():
    """Twenty pairs of stars: the shared area is that of the common pixels, to 2 %."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        a = star(rng, rng.uniform(40, 60, 2), 35)
        b = star(rng, rng.uniform(40, 60, 2), 35)
        shared = intersection_areas([to_paths(a)], [to_paths(b)])[0, 0]
        pixels = np.count_nonzero(drawn(a) & drawn(b)) / 16**2
        assert shared == pytest.approx(pixels, rel=0.02, abs=2)
