"""Maps against a slow reference, written from the rules, and against geometry itself."""

from __future__ import annotations

import gc
import math
import os
import pickle
import threading
from pathlib import Path

import cv2
import numpy as np
import pyclipper
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrstore.buffers import BufferPool
from ocrstore.errors import SchemaError
from ocrstore.maps import ALGORITHM, MAX_COORDINATE, MAX_POINTS, MapParams, Maps, draw_maps
from ocrstore.maps.border import (
    DENSE_NUMBERS,
    BorderPainter,
    Tile,
    measure_by_edges,
    measure_densely,
)
from ocrstore.maps.outlines import measure

NAMES = ("prob_map", "prob_mask", "thresh_map", "thresh_mask")
SQUARE = np.array([[20, 20], [60, 20], [60, 60], [20, 60]], np.float64)
STAR = np.array([[50 + 40 * math.sin(4 * math.pi * i / 5), 50 - 40 * math.cos(4 * math.pi * i / 5)]
                 for i in range(5)])  # fmt: skip


def area_and_length(polygon: np.ndarray) -> tuple[float, float]:
    """Return the shoelace area and the perimeter."""
    area = length = 0.0
    for i in range(len(polygon)):
        (x0, y0), (x1, y1) = polygon[i - 1].tolist(), polygon[i].tolist()
        area += x0 * y1 - x1 * y0
        length += math.hypot(x1 - x0, y1 - y0)
    return abs(area) / 2, length


def distance_to_edges(polygon: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return for every pixel of the canvas the distance to the nearest edge, as a segment."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    nearest = np.full((height, width), np.inf)
    for i in range(len(polygon)):
        (ax, ay), (bx, by) = polygon[i - 1].tolist(), polygon[i].tolist()
        square = (bx - ax) ** 2 + (by - ay) ** 2
        share = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / square if square else 0.0
        share = np.clip(share, 0, 1)
        nearest = np.minimum(
            nearest, np.hypot(x - ax - share * (bx - ax), y - ay - share * (by - ay))
        )
    return nearest


def reference(
    polygons: list[np.ndarray],
    ignored: list[bool],
    height: int,
    width: int,
    ratio: float = 0.4,
    low: float = 0.3,
    high: float = 0.7,
    min_size: float = 8,
) -> Maps:
    """Draw one polygon after the other over the whole canvas, in float64, as the rules say it."""
    prob_map = np.zeros((height, width), np.float32)
    prob_mask = np.ones((height, width), np.uint8)
    thresh = np.full((height, width), low)
    thresh_mask = np.zeros((height, width), np.uint8)
    for given_polygon, skip in zip(polygons, ignored, strict=True):
        polygon = np.asarray(given_polygon, np.float64)
        area, length = area_and_length(polygon - polygon[0])
        small = min(np.ptp(polygon[:, 0]), np.ptp(polygon[:, 1])) < min_size
        shrunken: list[list[list[int]]] = []
        if not (skip or small or area == 0):
            reach = area * (1 - ratio**2) / length
            clipper = pyclipper.PyclipperOffset()
            clipper.AddPath(polygon.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
            shrunken = clipper.Execute(-reach)
        if not shrunken:
            cv2.fillPoly(prob_mask, [np.trunc(polygon).astype(np.int32)], 0)
            continue
        cv2.fillPoly(prob_map, [np.array(shrunken[0], np.int32)], 1)
        clipper = pyclipper.PyclipperOffset()
        clipper.AddPath(polygon.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        own = np.zeros((height, width), np.uint8)
        for part in clipper.Execute(reach)[:1]:
            cv2.fillPoly(own, [np.array(part, np.int32)], 1)
        thresh_mask |= own
        share = 1 - np.clip(distance_to_edges(polygon, height, width) / reach, 0, 1)
        thresh = np.where(own == 1, np.maximum(thresh, low + (high - low) * share), thresh)
    return Maps(prob_map, prob_mask, thresh.astype(np.float32), thresh_mask)


def assert_same(found: Maps, expected: Maps, *, tolerance: float = 1e-3) -> None:
    """Compare masks and probabilities exactly, thresholds to the tolerance."""
    for name in NAMES:
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype, name
        assert one.shape == other.shape, name
        allowed = tolerance if name == "thresh_map" else 0
        assert np.abs(one.astype(np.float64) - other).max() <= allowed, name


def check(polygons: list, height: int = 100, width: int = 120, ignored: list | None = None) -> Maps:
    """Draw, compare with the reference, and return what was drawn."""
    flags = [False] * len(polygons) if ignored is None else ignored
    found = draw_maps(polygons, flags, height, width)
    assert_same(found, reference(polygons, flags, height, width))
    return found


def turned(points: np.ndarray, angle: float, centre: tuple[float, float]) -> np.ndarray:
    """Turn points about the origin, then move it to the centre."""
    c, s = math.cos(angle), math.sin(angle)
    return points @ np.array([[c, s], [-s, c]]) + centre


def word(width: float, height: float, angle: float, centre: tuple[float, float]) -> np.ndarray:
    """Return a rotated rectangle."""
    w, h = width / 2, height / 2
    return turned(np.array([[-w, -h], [w, -h], [w, h], [-w, h]]), angle, centre)


def arc(radius: float, height: float, angle: float, centre: tuple[float, float]) -> np.ndarray:
    """Return a band along a circle, as curved text has it."""
    angles = np.linspace(-angle, angle, 9)
    ring = np.stack((np.sin(angles), -np.cos(angles)), axis=1)
    return np.concatenate((ring * (radius + height), ring[::-1] * radius)) + centre


def moved(x: float, y: float) -> np.ndarray:
    """Return the square at another place."""
    return SQUARE + np.array([x, y])


CASES = {
    "upright rectangle": [SQUARE],
    "rectangle off the pixels": [word(70, 22, 0, (55.3, 47.8))],
    "rotated word": [word(70, 22, 0.5, (55.3, 47.8))],
    "rotated by a right angle": [word(70, 22, math.pi / 2, (55.3, 47.8))],
    "perspective quadrilateral": [np.array([[10, 20], [100, 5], [110, 60], [15, 45.5]])],
    "acute triangle": [np.array([[10, 10], [110, 20], [12, 40]])],
    "hexagon": [np.array([[30, 10], [80, 12], [100, 50], [80, 85], [30, 80], [10, 45]])],
    "concave": [np.array([[10, 10], [100, 10], [100, 80], [55, 30], [10, 80]])],
    "curved text": [arc(35, 20, 1.2, (60, 80))],
    "nearly closed ring": [arc(25, 15, 3.0, (60, 50))],
    "many points": [
        np.array([[60 + 40 * math.cos(a), 50 + 40 * math.sin(a)] for a in np.arange(0, 6.28, 0.1)])
    ],
    "partly left": [moved(-40, 0)],
    "partly above": [moved(0, -45)],
    "partly right": [moved(75, 0)],
    "partly below": [moved(0, 60)],
    "across a corner, rotated": [word(90, 40, 0.7, (5, 5))],
    "around the canvas": [word(700, 500, 0.1, (60, 50))],
    "beside, dilation reaches in": [moved(102, 0)],
    "wholly outside": [moved(1000, 0), moved(0, -500)],
    "figure eight": [np.array([[10, 10], [100, 80], [100, 10], [10, 60]])],
    "figure eight without area": [np.array([[10, 10], [90, 90], [90, 10], [10, 90]])],
    "pentagram": [STAR],
    "around twice": [np.concatenate((SQUARE, SQUARE))],
    "clockwise": [word(70, 22, 0.5, (55, 48))[::-1]],
    "line": [np.array([[10, 10], [50, 50], [90, 90]])],
    "there and back": [np.array([[10, 10], [90, 80], [50, 45]])],
    "one point": [np.array([[30.5, 30.5]])],
    "two points": [np.array([[10, 10], [80, 60]])],
    "the same point": [np.array([[30, 30]] * 4)],
    "duplicated points": [np.repeat(word(70, 22, 0.3, (55, 48)), 2, axis=0)],
    "closed explicitly": [np.concatenate((SQUARE, SQUARE[:1]))],
    "points on the edges": [
        np.array([[20, 20], [40, 20], [60, 20], [60, 50], [60, 60], [20, 60], [20, 40]])
    ],
    "spike": [np.array([[20, 20], [60, 20], [110, 20], [60, 20], [60, 60], [20, 60]])],
    "shrinks to nothing": [np.array([[10, 10], [100, 60], [100, 62], [10, 12]])],
    "shrinks to parts": [
        np.array(
            [
                [5, 10],
                [45, 10],
                [45, 38],
                [70, 38],
                [70, 10],
                [115, 10],
                [115, 80],
                [70, 80],
                [70, 44],
                [45, 44],
                [45, 80],
                [5, 80],
            ]
        )
    ],
    "slender": [np.array([[2, 2], [118, 90], [118, 90.02], [2, 2.03]])],
    "slender figure eight": [np.array([[10, 10], [90, 90], [90, 10], [10, 90.2]])],
    "tiny": [word(5, 5, 0, (50, 50))],
    "7.99 px high": [word(60, 7.99, 0, (50, 50))],
    "8 px high": [np.array([[20, 20], [80, 20], [80, 28], [20, 28]])],
    "overlapping": [word(70, 22, 0.5, (55, 48)), word(70, 30, -0.4, (60, 50)), SQUARE],
    "nested": [SQUARE, word(100, 90, 0, (60, 50)), word(12, 12, 0, (40, 40))],
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name: str) -> None:
    """Every form of polygon gives the reference's maps."""
    check(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_orientation_makes_no_difference(name: str) -> None:
    """A polygon drawn backwards gives the same maps as the reference of it backwards."""
    check([polygon[::-1] for polygon in CASES[name]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint16])
def test_takes_any_real_type(dtype: type) -> None:
    """Integers and floats of any width are polygons."""
    check([SQUARE.astype(dtype)])


def test_takes_lists() -> None:
    """Nested lists and tuples are polygons too."""
    assert_same(
        draw_maps([SQUARE.tolist()], (False,), 90, 80), reference([SQUARE], [False], 90, 80)
    )


def test_random_pictures_agree() -> None:
    """Pictures full of words, curves and nonsense give the reference's maps."""
    random = np.random.default_rng(3)
    for _ in range(12):
        polygons = []
        for _ in range(int(random.integers(1, 9))):
            centre = random.uniform(-20, 140, 2)
            kind = random.integers(4)
            if kind == 0:
                polygons.append(word(*random.uniform(4, 90, 2), random.uniform(-4, 4), centre))
            elif kind == 1:
                polygons.append(arc(*random.uniform((5, 5, 0.2), (60, 30, 3)), centre))
            elif kind == 2:
                polygons.append(random.uniform(-40, 160, (int(random.integers(1, 9)), 2)))
            else:
                polygons.append(np.rint(word(*random.uniform(4, 90, 2), 0, centre)))
        check(polygons, 110, 130, [bool(flag) for flag in random.random(len(polygons)) < 0.2])


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(
            st.tuples(*[st.floats(-50, 150, width=32) | st.integers(-50, 150)] * 2),
            min_size=1,
            max_size=7,
        ),
        max_size=3,
    )
)
def test_any_polygons_agree(polygons: list) -> None:
    """Whatever points come, the maps are the reference's."""
    check([np.array(polygon, np.float64) for polygon in polygons], 64, 80)


def test_nothing_to_draw() -> None:
    """Without polygons the maps are 0 and 0.3, the masks 1 and 0."""
    maps = draw_maps([], [], 30, 40)
    assert maps.prob_map.shape == (30, 40)
    for name, value in zip(NAMES, (0, 1, np.float32(0.3), 0), strict=True):
        assert (getattr(maps, name) == value).all(), name


def test_ten_thousand_polygons() -> None:
    """Ten thousand polygons are drawn, and the same as in pieces."""
    random = np.random.default_rng(5)
    polygons = [
        word(*random.uniform(9, 40, 2), random.uniform(-3, 3), random.uniform(0, 300, 2))
        for _ in range(10_000)
    ]
    whole = draw_maps(polygons, [False] * 10_000, 300, 300)
    pieces = [draw_maps(polygons[i::4], [False] * 2500, 300, 300) for i in range(4)]
    for name in NAMES:
        merge = np.minimum if name == "prob_mask" else np.maximum
        merged = merge.reduce([getattr(piece, name) for piece in pieces])
        assert np.array_equal(getattr(whole, name), merged), name


def test_hundreds_of_crossing_edges() -> None:
    """A scribble whose edges cross everywhere gives the reference's maps."""
    check([np.random.default_rng(2).uniform(0, 100, (300, 2))])


def test_as_many_points_as_are_allowed() -> None:
    """A polygon of the most points is drawn: here with many points to a pixel."""
    angles = np.linspace(0, 2 * math.pi, MAX_POINTS, endpoint=False)
    circle = 30 + 20 * np.stack((np.cos(angles), np.sin(angles)), axis=1)
    check([circle], 60, 60)


def test_order_makes_no_difference() -> None:
    """Overlaps combine by maximum and minimum, so the order does not show."""
    polygons = [word(70, 22, a, (50 + 5 * a, 48)) for a in np.arange(0, 6, 0.7)]
    flags = [i % 3 == 0 for i in range(len(polygons))]
    one = draw_maps(polygons, flags, 100, 120)
    other = draw_maps(polygons[::-1], flags[::-1], 100, 120)
    for name in NAMES:
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_ignored_gets_the_mask_and_nothing_else() -> None:
    """An ignored polygon is cut out of the probability mask; there is no border around it."""
    maps = check([SQUARE], ignored=[True])
    assert not maps.prob_mask[20:61, 20:61].any()
    assert maps.prob_mask.sum() == 100 * 120 - 41 * 41
    assert not maps.prob_map.any()
    assert not maps.thresh_mask.any()
    assert (maps.thresh_map == np.float32(0.3)).all()


@pytest.mark.parametrize("name", ["shrinks to nothing", "line", "7.99 px high", "tiny"])
def test_what_cannot_be_shrunken_is_ignored(name: str) -> None:
    """What shrinking ignores gets no border either."""
    maps = check(CASES[name])
    assert not maps.prob_mask.all()
    assert not maps.prob_map.any()
    assert not maps.thresh_mask.any()


def test_the_first_part_is_taken() -> None:
    """Where shrinking splits a polygon, one part is drawn, and the border follows all edges."""
    polygon = CASES["shrinks to parts"][0]
    area, length = area_and_length(polygon)
    clipper = pyclipper.PyclipperOffset()
    clipper.AddPath(polygon.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    assert len(clipper.Execute(-area * 0.84 / length)) == 2
    maps = check([polygon])
    assert cv2.connectedComponents((maps.prob_map > 0).astype(np.uint8))[0] == 2
    assert maps.thresh_map[10, 20] == maps.thresh_map[10, 100] == np.float32(0.7)


def test_exactly_eight_pixels_count() -> None:
    """A box of exactly the least size is drawn."""
    assert check(CASES["8 px high"]).prob_map.any()


def test_values_along_a_line() -> None:
    """The threshold falls linearly from the edge to D, on both sides and beyond corners."""
    maps = draw_maps([SQUARE], [False], 100, 100)
    reach = 40 * 40 * 0.84 / 160
    for step in range(8):
        value = 0.7 - 0.4 * step / reach
        assert maps.thresh_map[40, 20 - step] == pytest.approx(value, abs=1e-5)
        assert maps.thresh_map[40, 20 + step] == pytest.approx(value, abs=1e-5)
        corner = max(0.3, 0.7 - 0.4 * math.hypot(step, step) / reach)
        assert maps.thresh_map[60 + step, 60 + step] == pytest.approx(corner, abs=1e-5)


@pytest.mark.parametrize("name", ["rotated word", "curved text", "acute triangle", "hexagon"])
def test_areas_are_those_of_geometry(name: str) -> None:
    """Without Clipper: shrunken is inside and D from the edges, dilated within D, to two pixels."""
    (polygon,) = CASES[name]
    maps = draw_maps([polygon], [False], 100, 120)
    area, length = area_and_length(polygon)
    reach = area * 0.84 / length
    distance = distance_to_edges(polygon, 100, 120)
    inside = np.zeros((100, 120), np.uint8)
    cv2.fillPoly(inside, [np.rint(polygon).astype(np.int32)], 1)
    signed = np.where(inside == 1, distance, -distance)
    assert (signed[maps.prob_map == 1] > reach - 2).all()
    assert (signed[maps.prob_map == 0] < reach + 2).all()
    assert (signed[maps.thresh_mask == 1] > -reach - 2).all()
    assert (signed[maps.thresh_mask == 0] < -reach + 2).all()


def test_parameters_are_used() -> None:
    """Ratio, thresholds and least size are the caller's."""
    params = MapParams(shrink_ratio=0.7, thresh_min=0.1, thresh_max=0.9, min_size=20)
    polygons = [word(70, 22, 0.5, (55, 48)), word(19, 60, 0, (90, 40))]
    expected = reference(polygons, [False] * 2, 100, 120, 0.7, 0.1, 0.9, 20)
    assert_same(draw_maps(polygons, [False] * 2, 100, 120, params=params), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shrink_ratio": 1.0},
        {"shrink_ratio": -0.1},
        {"shrink_ratio": math.nan},
        {"thresh_min": 0.7},
        {"thresh_max": 1.5},
        {"thresh_min": -0.1},
        {"min_size": -1.0},
        {"min_size": math.inf},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, float]) -> None:
    """Numbers that make no map are named."""
    with pytest.raises(SchemaError, match=next(iter(wrong))):
        MapParams(**wrong)


@pytest.mark.parametrize(
    ("polygon", "message"),
    [
        ([[0, 0], [math.nan, 5], [9, 9]], r"polygon 1 has the point \(nan, 5\) at position 1"),
        ([[0, 0], [5, 5], [9, -math.inf]], r"polygon 1 .*\(9, -inf\) at position 2"),
        ([[0, 0], [5, 2e9], [9, 9]], "finite coordinates between ±1073741824"),
        ([[0, 0], [5, 1e300], [9, 9]], "leave the polygon out"),
        (np.zeros((0, 2)), r"polygon 1 has shape \(0, 2\)"),
        (np.zeros((4, 3)), r"polygon 1 has shape \(4, 3\)"),
        (np.zeros(8), r"polygon 1 has shape \(8,\)"),
        ([[0, 0], [1]], "polygon 1 is not an array"),
        ([["a", "b"]] * 3, "polygon 1 has shape .* and type <U1"),
        (np.ones((3, 2), complex), "complex128"),
        ([[None, None]] * 3, "object"),
        (np.zeros((MAX_POINTS + 1, 2)), "polygon 1 has 4097 points; .* at most 4096: simplify it"),
    ],
)
def test_what_is_no_polygon_is_refused(polygon: object, message: str) -> None:
    """The error names the polygon, the point and the remedy."""
    with pytest.raises(SchemaError, match=message):
        draw_maps([SQUARE, polygon], [False, False], 50, 50)


def test_flags_must_match() -> None:
    """One flag for each polygon."""
    with pytest.raises(SchemaError, match="1 polygons came with 2 ignore flags"):
        draw_maps([SQUARE], [False, True], 50, 50)


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (-1, 5)])
def test_no_canvas(height: int, width: int) -> None:
    """Maps need pixels."""
    with pytest.raises(SchemaError, match="at least 1x1"):
        draw_maps([], [], height, width)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 120), (100, 1), (3, 1000), (1000, 3)])
def test_odd_canvases(height: int, width: int) -> None:
    """Canvases of one pixel, row or column."""
    check([*CASES["overlapping"], SQUARE - 20], height, width)


@pytest.mark.parametrize("name", ["perspective quadrilateral", "concave", "slender", "curved text"])
def test_large_polygons_are_measured_in_tiles(name: str) -> None:
    """A polygon larger than tiles and batches gives the same values."""
    check([CASES[name][0] * 6, SQUARE * 3], 600, 720)


def test_far_outside_on_all_sides() -> None:
    """With edges farther out than contours are filled whole, the canvas is inside."""
    maps = draw_maps([word(2e9, 2e9, 0, (0, 0))], [False], 60, 50)
    assert maps.prob_map.all()
    assert maps.thresh_mask.all()
    assert (maps.thresh_map == np.float32(0.3)).all()


@pytest.mark.parametrize("scale", [1e4, 1e6, 1e9])
@pytest.mark.parametrize("angle", [0.0, 0.3])
@pytest.mark.parametrize("ignored", [False, True])
def test_one_edge_of_a_huge_polygon(scale: float, angle: float, ignored: bool) -> None:
    """Where one edge of a huge polygon crosses the canvas, each side is what it should be."""
    polygon = turned(
        np.array([[0, -0.7], [0.7, -0.7], [0.7, 0.7], [0, 0.7]]) * scale, angle, (50, 40)
    )
    maps = draw_maps([polygon], [ignored], 80, 100)
    y, x = np.mgrid[:80, :100]
    side = (x - 50) * math.cos(angle) + (y - 40) * math.sin(angle)
    if ignored:
        assert not maps.prob_mask[side > 2].any()
        assert maps.prob_mask[side < -2].all()
    else:
        assert maps.thresh_mask.all()
        assert not maps.prob_map.any()
        reach = 0.7 * 1.4 * 0.84 / 4.2 * scale
        expected = 0.7 - 0.4 * np.abs(side) / reach
        assert np.abs(maps.thresh_map - expected).max() < 1e-4


def test_a_huge_sliver() -> None:
    """A band of 30 px across the canvas that is 2e9 long keeps its profile."""
    polygon = np.array([[-1e9, 20], [1e9, 20], [1e9, 50], [-1e9, 50]])
    maps = draw_maps([polygon], [False], 80, 60)
    reach = 2e9 * 30 * 0.84 / (2 * (2e9 + 30))
    y = np.arange(80)
    edge = np.minimum(np.abs(y - 20), np.abs(y - 50))
    expected = np.maximum(0.3, 0.7 - 0.4 * edge / reach)
    assert np.abs(maps.thresh_map - expected[:, None]).max() < 1e-3


def test_nonsense_of_huge_size() -> None:
    """Random polygons of up to the largest coordinates are drawn without harm."""
    random = np.random.default_rng(11)
    for exponent in range(4, 10):
        polygons = [
            random.uniform(-1, 1, (n, 2)) * min(10.0**exponent, MAX_COORDINATE) for n in range(1, 9)
        ]
        maps = draw_maps(polygons, [n % 3 == 0 for n in range(8)], 40, 50)
        assert set(np.unique(maps.prob_map)) <= {0, 1}
        assert maps.thresh_map.min() >= np.float32(0.3)
        assert maps.thresh_map.max() <= np.float32(0.7)


def test_ranges_and_layout() -> None:
    """Maps are float32, masks uint8 of 0 and 1, contiguous, writable and apart from each other."""
    maps = draw_maps(CASES["overlapping"], [False, False, True], 100, 120)
    for name in NAMES:
        array = getattr(maps, name)
        assert array.dtype == (np.uint8 if name.endswith("mask") else np.float32)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        if name.endswith("mask"):
            assert array.max() <= 1
    before = maps.thresh_mask.copy()
    maps.prob_map.fill(7)
    maps.prob_mask.fill(7)
    maps.thresh_map.fill(7)
    assert np.array_equal(maps.thresh_mask, before)


def test_the_callers_polygons_stay() -> None:
    """Polygons are only read; read-only ones are fine."""
    polygon = SQUARE.copy()
    polygon.flags.writeable = False
    draw_maps([polygon], [False], 80, 80)
    assert np.array_equal(polygon, SQUARE)


def test_maps_stay_while_others_are_drawn() -> None:
    """Memory is reused only when nothing refers to it, not even a view of a view."""
    first = draw_maps([SQUARE], [False], 80, 80)
    expected = {name: getattr(first, name).copy() for name in NAMES}
    row = first.thresh_map[20:30][:, ::2]
    for i in range(20):
        draw_maps([word(50, 30, i, (40, 40))], [i % 2 == 0], 80, 80)
    assert all(np.array_equal(getattr(first, name), expected[name]) for name in NAMES)
    del first
    gc.collect()
    for i in range(20):
        draw_maps([word(50, 30, i, (40, 40))], [i % 2 == 0], 80, 80)
    assert np.array_equal(row, expected["thresh_map"][20:30, ::2])


def test_maps_can_be_pickled() -> None:
    """Maps cross a process border by value."""
    maps = draw_maps([SQUARE], [False], 80, 80)
    assert_same(pickle.loads(pickle.dumps(maps)), maps, tolerance=0)


def test_threads() -> None:
    """Drawing in several threads gives what drawing in one gives."""
    polygons = [word(50, 20, a, (60, 50)) for a in range(10)]
    expected = draw_maps(polygons, [False] * 10, 100, 120)
    failures = []

    def draw() -> None:
        for _ in range(20):
            maps = draw_maps(polygons, [False] * 10, 100, 120)
            if not all(np.array_equal(getattr(maps, n), getattr(expected, n)) for n in NAMES):
                failures.append(1)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_blocks_come_back() -> None:
    """A block is used again after its last view is gone, and not before."""
    pool = BufferPool(kept_nbytes=1000)
    lease = pool.take(400)
    address = lease.ctypes.data
    view = lease[10:20]
    del lease
    assert pool.free_nbytes == 0
    assert pool.take(400).ctypes.data != address
    pool = BufferPool(kept_nbytes=1000)
    address = pool.take(400).ctypes.data
    assert pool.free_nbytes == 400
    assert pool.take(400).ctypes.data == address
    assert len(view) == 10


def test_few_blocks_are_kept() -> None:
    """What is kept is bounded, and old sizes make room for new ones."""
    pool = BufferPool(kept_nbytes=1000)
    leases = [pool.take(400) for _ in range(5)]
    leases.clear()
    assert 0 < pool.free_nbytes <= 1000
    pool.take(900)
    assert pool.free_nbytes == 900
    pool.take(5000)
    assert pool.free_nbytes <= 1000


@pytest.mark.parametrize("name", [name for name in CASES if name != "around the canvas"])
def test_company_makes_no_difference(name: str) -> None:
    """What is drawn alone and what is drawn among many, in another way, is the same to 1e-5."""
    polygons = CASES[name]
    alone = draw_maps(polygons, [False] * len(polygons), 100, 700)
    # as many points each, so that they are measured together; apart, so that they do not overlap
    others = [polygon + np.array([250 + 6 * i, 0]) for i in range(50) for polygon in polygons]
    among = draw_maps([*polygons, *others], [False] * len(polygons) * 51, 100, 700)
    seen = slice(None), slice(0, 125)
    parts = [Maps(*(getattr(maps, n)[seen] for n in NAMES)) for maps in (alone, among)]
    assert_same(*parts, tolerance=1e-5)


def test_ways_of_measuring_agree() -> None:
    """Lines, the dense way and edge by edge give the same distances, to 1e-5."""
    polygon = word(70, 22, 0.5, (55.3, 47.8))
    (outlines,) = measure([polygon])
    area, length = area_and_length(polygon)
    reach = area * 0.84 / length
    directions, slopes = outlines.edges / outlines.lengths, np.array([0.4 / reach])
    tile = Tile(0, 0, 0, 120, 100, 0)
    dense, edgewise = np.empty(12_000, np.float32), np.empty((100, 120), np.float32)
    scratch = np.empty(3 * DENSE_NUMBERS, np.float32)
    measure_densely(dense, scratch, [tile], outlines, directions, slopes)
    measure_by_edges(
        edgewise, tile, outlines, directions, reach=reach, slope=0.4 / reach, kind=np.float32
    )
    expected = distance_to_edges(polygon, 100, 120) * (0.4 / reach)
    near = expected <= 0.4
    assert np.abs(dense.reshape(100, 120) - expected).max() < 1e-5
    assert np.abs(edgewise - expected)[near].max() < 1e-5
    # and by lines, which copies to the right of it make worth while
    maps = draw_maps([polygon, *[polygon + np.array([200, 0])] * 100], [False] * 101, 100, 400)
    inside = near & (maps.thresh_mask[:, :120] == 1)
    assert np.abs(maps.thresh_map[:, :120] - (0.7 - expected))[inside].max() < 1e-5


def test_convexity() -> None:
    """Only what turns once, forwards, is convex."""
    squares = [SQUARE, SQUARE[::-1], SQUARE * 1e6, np.roll(SQUARE, 1, axis=0)]
    crossed = [CASES[name][0][:4] for name in ("figure eight", "the same point", "concave")]
    crossed.append(np.array([[10, 10], [90, 10], [30, 30], [10, 90]]))
    assert are_convex([*squares, *crossed]) == [True] * 4 + [False] * 4
    assert are_convex(CASES["points on the edges"]) == [True]
    for name in ("concave", "pentagram", "around twice", "duplicated points", "spike"):
        assert are_convex(CASES[name]) == [False], name


def are_convex(polygons: list[np.ndarray]) -> list[bool]:
    """Ask for polygons with the same number of points."""
    (outlines,) = measure(polygons)
    painter = BorderPainter(outlines, outlines.perimeters, thresh_min=0.3, thresh_max=0.7)
    return painter.find_lined()


def test_the_algorithm_has_a_name() -> None:
    """Fingerprints contain it: whoever changes the maps changes the name."""
    assert ALGORITHM == "db-maps/1"


def truncated_reference(polygons: list, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the maps of the truncated rules pixel by pixel, with angles in place of products."""
    prob_map = np.zeros((height, width), np.float32)
    thresh_map = np.full((height, width), 0.3)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    for given_polygon in polygons:
        polygon = np.asarray(given_polygon).astype(np.int32)
        area, length = area_and_length(polygon)
        if not area:
            continue
        far = area * (1 - 0.4**2) / length
        offset = pyclipper.PyclipperOffset()
        offset.AddPath(polygon, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        for part in offset.Execute(-far):
            cv2.fillPoly(prob_map, [np.array(part)], 1)
        nearest = np.full((height, width), np.inf)
        for i in range(len(polygon)):
            (ax, ay), (bx, by) = polygon[i - 1].tolist(), polygon[i].tolist()
            to_a, to_b = np.hypot(x - ax, y - ay), np.hypot(x - bx, y - by)
            edge = math.hypot(bx - ax, by - ay)
            # the height of the triangle over the edge, by its three sides, where it is obtuse
            half = (to_a + to_b + edge) / 2
            triangle = np.sqrt(np.maximum(half * (half - to_a) * (half - to_b) * (half - edge), 0))
            obtuse = to_a**2 + to_b**2 <= edge**2 + 1e-6
            over = 2 * triangle / edge if edge else np.inf
            nearest = np.minimum(nearest, np.where(obtuse, over, np.minimum(to_a, to_b)))
        value = 0.3 + 0.4 * (1 - np.minimum(nearest / far, 1))
        for part in offset.Execute(far):
            (left, top), (right, bottom) = np.min(part, axis=0), np.max(part, axis=0)
            inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
            thresh_map = np.where(inside, np.maximum(thresh_map, value), thresh_map)
    return prob_map, thresh_map


def check_truncated(polygons: list, height: int = 100, width: int = 120) -> Maps:
    """Draw by the truncated rules and compare with the reference."""
    flags = [number % 2 == 0 for number in range(len(polygons))]  # they make no difference
    params = MapParams(rules="truncated")
    found = draw_maps(polygons, flags, height, width, params=params)
    prob_map, thresh_map = truncated_reference(polygons, height, width)
    assert np.array_equal(found.prob_map, prob_map)
    assert np.abs(found.thresh_map - thresh_map).max() < 1e-4
    assert found.prob_mask.all() and found.thresh_mask.all()
    return found


@pytest.mark.parametrize("name", CASES)
def test_truncated_rules(name: str) -> None:
    """Each shape alone, ignored or not, gives the reference's maps."""
    check_truncated(CASES[name])


def test_truncated_rules_of_random_polygons() -> None:
    """Words of any size and place, overlapping, partly and far outside, and slivers."""
    rng = np.random.default_rng(3)
    for _ in range(12):
        words = [
            word(
                rng.uniform(1, 60), rng.uniform(1, 30), rng.uniform(0, 7), rng.uniform(-20, 130, 2)
            )
            for _ in range(12)
        ]
        check_truncated([*words, STAR, STAR + 400, STAR - 9000, SQUARE * 50, SQUARE[:2]])


def test_truncated_rules_differ_from_the_exact_ones() -> None:
    """The corners of the dilated box have a border, and a small word is text."""
    turned_word = word(60, 20, 0.6, (60, 50))
    found, exact = check_truncated([turned_word]), check([turned_word])
    assert (found.thresh_map != exact.thresh_map).sum() > 50
    small = word(7, 7, 0, (50, 50))
    assert check_truncated([small]).prob_map.any()
    assert not check([small]).prob_map.any()


def test_the_usual_rules_are_not_written() -> None:
    """Recipes that were there before the rules had names keep their fingerprints."""
    assert "rules" not in MapParams().to_json()
    assert MapParams(rules="truncated").to_json()["min_size"] == 0
    with pytest.raises(SchemaError, match="known: exact, truncated"):
        MapParams(rules="rounded")


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["sroie", "icdar2015"])
def test_real_annotations(name: str) -> None:
    """Annotations of real pictures give the reference's maps."""
    root = os.environ.get("OCRSTORE_PICTURES")
    if not root or not (Path(root) / name / "gt").is_dir():
        pytest.skip("OCRSTORE_PICTURES names no folder with them")
    for path in sorted((Path(root) / name / "gt").iterdir())[:4]:
        polygons, ignored = [], []
        for line in path.read_text("utf-8-sig", errors="replace").splitlines():
            fields = line.split(",", 8)
            if len(fields) == 9:
                polygons.append(np.array(fields[:8], np.float32).reshape(4, 2))
                ignored.append(fields[8] == "###")
        scale = np.float32(320 / max(float(p.max()) for p in polygons))
        check([p * scale for p in polygons], 320, 320, ignored)
        check_truncated([p * scale for p in polygons], 320, 320)
